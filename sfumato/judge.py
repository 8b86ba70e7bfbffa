"""A judge of what was drawn: a linear head, paid for, on features of a public classifier.

The head was trained on private records with noise (`sfumato.privacy.mechanisms.noisy_head`), so that whatever it says of drawn
images is post-processing and costs nothing more.
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
"""Probability below which an image's class counts as so unlikely."""
START, BOUNDS = (0.0, 1.0), ((-3.0, 3.0), (-3.0, 7.0))
"""Logarithm of the temperature, and log odds of an image showing the class that it was drawn for: where the search begins, and its limits."""
CHUNK = 1000
"""Images judged at once."""
Sorting = Literal["relabel", "weigh", "filter", "agreeing"]
"""What is made of drawn images: the judge's class for all of them, the likelier one of that and the class drawn for, the surest of them, or
those whose class is also the judge's."""


def unit(features: Tensor) -> Tensor:
    """Features `[n, d]` with a constant, scaled to norm 1, float64 `[n, d + 1]`; zeros where they are not finite."""
    found = torch.cat([features.double(), features.new_ones(len(features), 1, dtype=torch.float64)], 1)
    scaled = found / found.norm(dim=1, keepdim=True)
    return scaled.where(scaled.isfinite().all(1, keepdim=True), 0.0)


@dataclass(frozen=True, eq=False)
class LinearJudge:
    """Tells the private classes apart."""

    backbone: Backbone
    head: Tensor
    """`[classes, directions + 1]`."""
    scale: float
    """What logits are multiplied by."""

    def log_probabilities(self, images: Tensor) -> Tensor:
        """Of each class, `[n, classes]`, for images `[n, c, h, w]` in [-1, 1]; differentiable where gradients are on."""
        features = self.backbone.whitened(images, self.head.shape[1] - 1)
        return (self.scale * unit(features) @ self.head.T).log_softmax(1).to(images.dtype)

    @torch.no_grad()
    def of_set(self, images: ImageSet, device: torch.device) -> Tensor:
        """Log-probabilities of the images of a set, `[n, classes]` on the CPU."""
        parts = [images.pixels[at : at + CHUNK] for at in range(0, len(images), CHUNK)]
        return torch.cat([self.log_probabilities(to_unit(part).to(device)).cpu() for part in parts])


def relabelled(images: ImageSet, judged: Tensor) -> ImageSet:
    """Each image with the judge's class; `judged` `[n, classes]` are log-probabilities."""
    return ImageSet(images.pixels, judged.argmax(1).numpy(), images.classes)


def weighed(images: ImageSet, judged: Tensor) -> ImageSet:
    """Each image with its likeliest class, by what the judge says of it and by the class that it was drawn for.

    An image is taken to show the class it was drawn for with one probability, and each other class with an equal share of the rest, and the
    judge's probabilities to be right up to a temperature (Guo et al. 2017). Both numbers are those under which the classes that the
    images were drawn for are likeliest, so that nothing but drawn images and the judge's word on them is used.
    """
    from scipy.optimize import minimize

    drawn, rest = torch.from_numpy(images.labels), max(1, judged.shape[1] - 1)

    def joint(temperature: float, right: float) -> Tensor:
        found = torch.full(judged.shape, (1 - right) / rest, dtype=torch.float64)
        found[torch.arange(len(drawn)), drawn] = right
        return found * (judged.double() / temperature).softmax(1)

    def unlikely(numbers: np.ndarray) -> float:
        temperature, right = np.exp(numbers[0]), 1 / (1 + np.exp(-numbers[1]))
        return -float(joint(temperature, right).sum(1).clamp(min=LEAST).log().mean())

    found = minimize(unlikely, START, method="Nelder-Mead", bounds=BOUNDS).x
    best = joint(np.exp(found[0]), 1 / (1 + np.exp(-found[1])))
    return ImageSet(images.pixels, best.argmax(1).numpy(), images.classes)


def agreeing(images: ImageSet, judged: Tensor) -> np.ndarray:
    """Positions of the images whose class is the judge's."""
    return np.flatnonzero(judged.argmax(1).numpy() == images.labels)


def surest(images: ImageSet, judged: Tensor, wanted: Sequence[int]) -> np.ndarray:
    """Positions of `wanted[c]` images drawn as class c, in order of class: those that the judge agrees with first, the surest of each first.

    Where fewer agree, the surest others of the class fill up, and where fewer were drawn, others, so that there are as many as were asked for.
    """
    labels = torch.from_numpy(images.labels)
    sure = judged.gather(1, labels[:, None])[:, 0].numpy()
    order = np.lexsort((-sure, judged.argmax(1) != labels))
    chosen = np.concatenate([order[images.labels[order] == label][:count] for label, count in enumerate(wanted)])
    others = order[~np.isin(order, chosen)]
    return np.concatenate([chosen, others[: sum(wanted) - len(chosen)]])


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a judge made of drawn images."""

    images: ImageSet
    drawn_for: np.ndarray
    """int64 `[n]`, the classes that these were drawn for."""
    agreed: float
    """Of which share of all that was drawn the judge's class is the one drawn for."""


def sorted_out(
    judge: LinearJudge, use: Sorting, drawn: ImageSet, wanted: Sequence[int], device: torch.device
) -> Verdict:
    """What a judge makes of drawn images; `filter` keeps `wanted[c]` of class c, which the other uses do not read."""
    said = judge.of_set(drawn, device)
    agreed = agreeing(drawn, said)
    share = len(agreed) / len(drawn)
    if use == "relabel":
        return Verdict(relabelled(drawn, said), drawn.labels, share)
    if use == "weigh":
        return Verdict(weighed(drawn, said), drawn.labels, share)
    chosen = surest(drawn, said, wanted) if use == "filter" else agreed
    return Verdict(drawn.subset(chosen), drawn.labels[chosen], share)


def to_draw(judge: Judge | None, images: int) -> int:
    """How many images are drawn so that so many are left: more where a judge keeps some of them alone."""
    return math.ceil(images / judge.keep) if judge and judge.use == "filter" else images
