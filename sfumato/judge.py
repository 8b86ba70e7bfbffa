"""A judge of drawn images: a linear head, paid for, on features of a public classifier.

The head was trained on private records with noise (`sfumato.privacy.mechanisms.noisy_head`), so that its values on drawn images are
post-processing and cost nothing more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sfumato.backbone import Backbone
from sfumato.config import Judge
from sfumato.images import ImageSet, to_unit

LEAST = 1e-12
"""Lower bound of the probability of an image's class, in the fit."""
START, BOUNDS = (0.0, 1.0), ((-3.0, 3.0), (0.0, 7.0))
"""Start and bounds of the fit: logarithm of the temperature, and log odds of an image showing the class that it was drawn for, which is as
likely as not at least."""
HALF, CLEAR = 0.5, 3.0
"""Share of the images on which a judge must agree with the class that they were drawn for, to be believed on any other, and by how many standard
errors: of two that differ on most images one is mostly wrong, and nothing says which."""
NOISE_OF_JUDGE = 0.3
"""Longest noise in the mean gradient of a judge, where a record's is 1 at most. With .02 to .2 judges of MNIST, X-rays and photographs brought something;
with .5 and more, of small sets, nothing or wrong labels."""
HARDLY, ALIKE, LOOKED_AT = 0.1, 0.15, 4000
"""When a judge sees nothing of the classes that images were drawn for: how far from chance (0) to always (1) it agrees at most, and how far a classifier
of the drawn images themselves tells these classes apart, of so many of them at most. Writing in any colour on any ground, drawn by class moments, came
to .08 and .07, and the judge's own classes taught a CNN no less. Discs and tissue came to .14 and .22, and to .44 and .62: the judge misread images
whose classes differed, and its own taught far less (`benchmarks/judge_sorts.py`)."""
WEIGHT, ROUNDS = 0.01, 200
"""Weight of the data against large coefficients, and iterations, of that classifier."""
OF_EACH = 0.5
"""Share of the wanted images of a class that a judge must see, at least, for its classes to stand in place of those drawn for: one that gives the same
answer to nearly all knows nothing."""
CHUNK = 1000
"""Images judged at once."""
Sorting = Literal["relabel", "weigh", "filter", "agreeing"]
"""Uses of the judge on drawn images: give all the judge's class, or the likelier one of that and the class drawn for; keep the surest, or
those whose class is also the judge's."""


def unit(features: Tensor) -> Tensor:
    """Features `[n, d]` with a constant, scaled to norm 1, float64 `[n, d + 1]`; zeros where they are not finite."""
    extended = torch.cat([features.double(), features.new_ones(len(features), 1, dtype=torch.float64)], 1)
    scaled = extended / extended.norm(dim=1, keepdim=True)
    return scaled.where(scaled.isfinite().all(1, keepdim=True), 0.0)


@dataclass(frozen=True, eq=False)
class LinearJudge:
    """A linear classifier of the private classes on a backbone's features."""

    backbone: Backbone
    head: Tensor
    """`[classes, directions + 1]`."""
    scale: float
    """Factor on the logits."""
    noise: float = math.inf
    """Length of the noise in the mean gradients that taught it, where a record's is 1 at most; unknown: infinite."""

    def log_probabilities(self, images: Tensor) -> Tensor:
        """Log-probability of each class, `[n, classes]`, for images `[n, c, h, w]` in [-1, 1]; differentiable where gradients are on."""
        features = self.backbone.whitened(images, self.head.shape[1] - 1)
        return (self.scale * unit(features) @ self.head.T).log_softmax(1).to(images.dtype)

    @torch.no_grad()
    def of_set(self, images: ImageSet, device: torch.device) -> Tensor:
        """Log-probabilities of the images of a set, `[n, classes]` on the CPU."""
        parts = [images.pixels[at : at + CHUNK] for at in range(0, len(images), CHUNK)]
        return torch.cat([self.log_probabilities(to_unit(part).to(device)).cpu() for part in parts])

    @torch.no_grad()
    def separation(self, drawn: ImageSet, device: torch.device) -> float:
        """The `separation` of the classes that images were drawn for, in what it sees of some of them."""
        some = drawn.subset(np.arange(0, len(drawn), math.ceil(len(drawn) / LOOKED_AT)))
        parts = [some.pixels[at : at + CHUNK] for at in range(0, len(some), CHUNK)]
        seen = [self.backbone.whitened(to_unit(part).to(device), self.head.shape[1] - 1).cpu() for part in parts]
        return separation(torch.cat(seen), some.labels)


def relabelled(images: ImageSet, judged: Tensor) -> ImageSet:
    """Each image with the judge's class; `judged` `[n, classes]` are log-probabilities."""
    return ImageSet(images.pixels, judged.argmax(1).numpy(), images.classes)


def weighed(images: ImageSet, judged: Tensor) -> ImageSet:
    """Each image with its likeliest class, given the judge's log-probabilities `judged` `[n, classes]` and the class that it was drawn for.

    The model: an image shows the class it was drawn for with one probability, and each other class with an equal share of the rest, and
    the judge's probabilities are right up to a temperature (Guo et al. 2017). Both numbers are fitted by maximum likelihood of the
    classes that the images were drawn for, so that only drawn images and the judge's probabilities on them are used. Where the judge
    is not `credible`, all stay what they were drawn for.
    """
    from scipy.optimize import minimize

    if not credible(images, judged):
        return images
    drawn, rest = torch.from_numpy(images.labels), max(1, judged.shape[1] - 1)

    def joint(temperature: float, right: float) -> Tensor:
        prior = torch.full(judged.shape, (1 - right) / rest, dtype=torch.float64)
        prior[torch.arange(len(drawn)), drawn] = right
        return prior * (judged.double() / temperature).softmax(1)

    def unlikely(numbers: np.ndarray) -> float:
        temperature, right = np.exp(numbers[0]), 1 / (1 + np.exp(-numbers[1]))
        return -float(joint(temperature, right).sum(1).clamp(min=LEAST).log().mean())

    fit = minimize(unlikely, START, method="Nelder-Mead", bounds=BOUNDS).x
    best = joint(np.exp(fit[0]), 1 / (1 + np.exp(-fit[1])))
    return ImageSet(images.pixels, best.argmax(1).numpy(), images.classes)


def credible(images: ImageSet, judged: Tensor) -> bool:
    """Whether the judge clearly agrees on more than half of the images with the class that they were drawn for, on average over the classes; one
    with the same answer for all does not."""
    same = _agreed_by_class(images, judged)
    error = math.sqrt(sum(part.var() / len(part) for part in same)) / len(same)
    return bool(np.mean([part.mean() for part in same]) > HALF + CLEAR * error)


def disagrees(images: ImageSet, judged: Tensor) -> bool:
    """Whether a judge clearly agrees with next to none of the classes that the images were drawn for, of which there must be some of each."""
    classes, same = judged.shape[1], _agreed_by_class(images, judged)
    most = 1 / classes + HARDLY * (1 - 1 / classes)
    error = math.sqrt(most * (1 - most) * sum(1 / len(part) for part in same)) / classes  # were it as much as that
    return len(same) == classes and bool(np.mean([part.mean() for part in same]) < most - CLEAR * error)


def separation(features: Tensor, labels: np.ndarray) -> float:
    """How well a linear classifier on features `[n, d]` of drawn images, in order of class, tells the classes `[n]` that they were drawn for apart, on every
    second one, which it does not learn from: from 0, by chance, to 1, always."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import recall_score

    x = features.double().numpy()
    learnt = LogisticRegression(C=WEIGHT, class_weight="balanced", max_iter=ROUNDS).fit(x[::2], labels[::2])
    right = recall_score(labels[1::2], learnt.predict(x[1::2]), average="macro")
    chance = 1 / len(learnt.classes_)
    return float((right - chance) / (1 - chance))


def _agreed_by_class(images: ImageSet, judged: Tensor) -> list[np.ndarray]:
    """Whether each image of a class drawn for has the judge's, for the classes that there are: bool `[n of class]` each."""
    same = judged.argmax(1).numpy() == images.labels
    return [same[images.labels == label] for label in np.unique(images.labels)]


def agreeing(images: ImageSet, judged: Tensor) -> np.ndarray:
    """Positions int64 `[m]`, in rising order, of the images whose class is the judge's; `judged` `[n, classes]` are log-probabilities."""
    return np.flatnonzero(judged.argmax(1).numpy() == images.labels)


def surest(images: ImageSet, judged: Tensor, wanted: Sequence[int]) -> np.ndarray:
    """Positions int64 `[sum(wanted)]` of `wanted[c]` images drawn as class c, in order of class: those that the judge agrees with first, the
    surest of each first; `judged` `[n, classes]` are log-probabilities.

    Where fewer agree, the surest others of the class fill up, and where fewer were drawn, others do, so that the number is always right.
    """
    labels = torch.from_numpy(images.labels)
    sure = judged.gather(1, labels[:, None])[:, 0].numpy()
    order = np.lexsort((-sure, judged.argmax(1) != labels))
    chosen = np.concatenate([order[images.labels[order] == label][:count] for label, count in enumerate(wanted)])
    others = order[~np.isin(order, chosen)]
    return np.concatenate([chosen, others[: sum(wanted) - len(chosen)]])


@dataclass(frozen=True, eq=False)
class Verdict:
    """Drawn images after a judge's use."""

    images: ImageSet
    drawn_for: np.ndarray
    """int64 `[n]`, the classes that these were drawn for."""
    agreed: float
    """Share of all drawn images whose class is the judge's."""


def sorted_out(
    judge: LinearJudge,
    use: Sorting,
    drawn: ImageSet,
    wanted: Sequence[int],
    device: torch.device,
    own_classes: bool | None = None,
) -> Verdict:
    """Apply a judge to drawn images; `filter` keeps `wanted[c]` of class c, which the other uses ignore.

    Where a judge that learnt more than noise sees nothing of the classes that images were drawn for, and these look alike, `filter` keeps the surest
    of its own classes;
    `own_classes` says whether it did where the run's images were sorted, in place of looking at these.
    """
    logits = judge.of_set(drawn, device)
    agreed = agreeing(drawn, logits)
    share = len(agreed) / len(drawn)
    if use == "relabel":
        return Verdict(relabelled(drawn, logits), drawn.labels, share)
    if use == "weigh":
        return Verdict(weighed(drawn, logits), drawn.labels, share)
    if use == "agreeing":
        return Verdict(drawn.subset(agreed), drawn.labels[agreed], share)
    anew = relabelled(drawn, logits.masked_fill(torch.tensor([not number for number in wanted]), -math.inf))
    if own_classes is None:
        each = np.bincount(anew.labels, minlength=len(wanted)) >= OF_EACH * np.asarray(wanted)
        learnt = judge.noise <= NOISE_OF_JUDGE and bool(each.all())
        own_classes = learnt and disagrees(drawn, logits) and judge.separation(drawn, device) < ALIKE
    classed = anew if own_classes else drawn
    chosen = surest(classed, logits, wanted)
    return Verdict(classed.subset(chosen), drawn.labels[chosen], share)


def to_draw(judge: Judge | None, images: int) -> int:
    """The number of images to draw so that so many remain: more where the judge filters."""
    return math.ceil(images / judge.keep) if judge and judge.use == "filter" else images
