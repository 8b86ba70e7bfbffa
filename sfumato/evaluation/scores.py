"""All scores of one image set in one frozen value, always measured against the same held-out real images.

The judge is a CNN trained on the real training images; its answers say what is readable. The distances are measured in
the features of an extractor that has seen none of them (`sfumato.evaluation.extractors`): a small CNN trained on public
images, or Inception; every Scores value names it. Fidelity is measured against the real *test* images, so a set that
repeats the training images gains nothing over the reference, which is those training images themselves. Several sets
share a bench.

Nothing is chosen by these numbers: no training stops, goes on or keeps its weights by them.

Label: a Scores value looks at private images without noise and is INTERNAL, as a whole and number by number.
Not covered: published FIDs, even in Inception's features, are measured against training images; the spread between
judges, seeds and draws of the images.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from sfumato.config import Evaluation
from sfumato.errors import BadInput
from sfumato.evaluation import intervals, utility
from sfumato.evaluation.classifier import Classifier, Progress, predict, train_classifier
from sfumato.evaluation.extractors import Extractor
from sfumato.evaluation.fidelity import frechet_distance, inception_score, kernel_distance, neighbours
from sfumato.evaluation.intervals import Interval
from sfumato.images import shape_of

NEIGHBOURS = 5
"""The k of coverage, precision, recall and density (Naeem et al. 2020), and so one less than `FEWEST_JUDGED`."""


class Scores(BaseModel):
    """What one image set is worth: frozen, refuses NaN and unknown fields, serialises to JSON; INTERNAL."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    frechet: float | None = Field(ge=0)
    """Frechet distance to the real test images in the extractor's features; less is better, 0 is best. None where there
    are no more images than features."""
    kid: float
    """Kernel distance (KID) to the real test images; less is better, and below 0 by chance alone."""
    inception_score: float = Field(ge=1)
    """Inception score by the extractor's classes; more is better, their number is best."""
    coverage: float = Field(ge=0, le=1)
    """Share of real test images with an image of the set in their neighbourhood (k = 5)."""
    precision: float = Field(ge=0, le=1)
    """Share of images of the set in some real test image's neighbourhood."""
    recall: float = Field(ge=0, le=1)
    """Share of real test images in the neighbourhood of some image of the set."""
    density: float = Field(ge=0)
    """How many real neighbourhoods hold an image of the set, on average, divided by k; may exceed 1."""
    readable: float = Field(ge=0, le=1)
    """Share of images that the judge reads as the class they were drawn for."""
    logistic: float | None = Field(ge=0, le=1)
    """Accuracy on the real test images of a logistic regression trained on the set; this and what follows are None where all its
    images are labelled as one class."""
    cnn: float | None = Field(ge=0, le=1)
    """Accuracy on the real test images of the small CNN trained on the set."""
    mlp: float | None = Field(default=None, ge=0, le=1)
    """The same of the papers' MLP; this and what follows are None where they were not asked for."""
    paper_cnn: float | None = Field(default=None, ge=0, le=1)
    """The same of the papers' CNN."""
    resnet9: float | None = Field(default=None, ge=0, le=1)
    """The same of the ResNet-9."""
    eleven: float | None = Field(default=None, ge=0, le=1)
    """Mean accuracy of eleven of scikit-learn's classifiers, the logistic regression among them."""
    scikit: dict[str, float] = {}
    """The accuracies behind that mean, by classifier."""
    intervals: dict[str, Interval]
    """95 % interval of each score that has one, by name (`sfumato.evaluation.intervals`)."""
    missing: dict[str, str] = {}
    """Why a score that was asked for has no number, by name."""
    images: int = Field(ge=1)
    """How many images the set has; the fidelity scores of sets of different sizes do not compare exactly."""
    feature_extractor: str
    """In whose features the distances were measured."""

    def numbers(self) -> dict[str, float]:
        """The scores that are single numbers, by name."""
        return {name: float(value) for name, value in self if isinstance(value, int | float)}


@dataclass(frozen=True)
class Bench:
    """What every set is measured with; INTERNAL."""

    images: Tensor
    """Real test images [n, c, h, w] in [-1, 1], n > 5."""
    labels: Tensor
    """int64 [n]."""
    features: Tensor
    """Theirs, [n, d]."""
    classes: int
    judge: Classifier
    extractor: Extractor
    how: Evaluation
    seed: int
    device: str | torch.device


def make_bench(
    real_test: Tensor,
    labels: Tensor,
    *,
    judge_model: Classifier,
    extractor: Extractor,
    how: Evaluation,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Bench:
    """The bench of real test images [n, c, h, w] in [-1, 1] with labels int64 [n]; they are read once, for all sets."""
    _enough(real_test, "real test images")
    read, _ = extractor.read(real_test)
    classes = judge_model.head.out_features
    return Bench(real_test, labels, read, classes, judge_model, extractor, how, seed, device)


def judge(synthetic: Tensor, labels: Tensor, bench: Bench, *, progress: Progress | None = None) -> Scores:
    """All scores of images [n, c, h, w] in [-1, 1], n > 5, drawn for labels int64 [n]; INTERNAL.

    `progress` hears the optimiser steps of all trainings as one count.
    """
    utility.check_task(synthetic, labels, bench.images, bench.labels, classes=bench.classes)
    _enough(synthetic, "synthetic images")
    sampling = {"resamples": bench.how.resamples, "seed": bench.seed}
    values, spans, missing = _distances(synthetic, bench)
    rows = {"readable": (predict(bench.judge, synthetic).argmax(1) == labels.cpu()).double().numpy()}

    names, unread = utility.wanted(bench.how, shape_of(synthetic))
    if len(labels.unique()) < 2:
        reason = f"all images are labelled as class {int(labels[0])}, which leaves a classifier nothing to learn"
        names, unread = (), unread | dict.fromkeys(names, reason)
    task = (synthetic, labels, bench.images, bench.labels)
    if names:
        for name, right in utility.answers(
            names, *task, how=bench.how, seed=bench.seed, device=bench.device, progress=progress
        ):
            rows[name] = right.double().numpy()
    if set(utility.ELEVEN) <= set(rows):
        rows["eleven"] = np.mean([rows[name] for name in utility.ELEVEN], axis=0)
    found: dict[str, Any] = {"logistic": None, "cnn": None} | {name: float(row.mean()) for name, row in rows.items()}
    return Scores(
        **values,
        **{name: value for name, value in found.items() if name not in utility.TEN},
        scikit={name: found[name] for name in utility.ELEVEN if "eleven" in found},
        intervals=spans | {name: intervals.mean_interval(row, **sampling) for name, row in rows.items()},
        missing=missing | unread,
        images=len(synthetic),
        feature_extractor=bench.extractor.name,
    )


def _distances(synthetic: Tensor, bench: Bench) -> tuple[dict[str, Any], dict[str, Interval], dict[str, str]]:
    """Fidelity scores in the extractor's features, their intervals, and why some have no number."""
    sampling = {"resamples": bench.how.resamples, "seed": bench.seed}
    drawn, probabilities = bench.extractor.read(synthetic)
    real, width = bench.features, bench.extractor.width
    kid, error = kernel_distance(real, drawn)
    score, table = inception_score(probabilities)
    near = neighbours(real, drawn, k=NEIGHBOURS)
    rows = {"coverage": near.covered, "precision": near.precise, "recall": near.recalled, "density": near.held}
    values = {name: float(row.mean()) for name, row in rows.items()} | {"kid": kid, "inception_score": score}
    spans = {name: intervals.mean_interval(row, **sampling) for name, row in rows.items()}
    spans["kid"] = intervals.around(kid, error)
    spans["inception_score"] = intervals.score_interval(score, table, **sampling)
    few = min((len(drawn), "synthetic images"), (len(real), "real test images"))
    if few[0] <= width:
        reason = f"{few[0]} {few[1]} are too few for {width} features; it takes {width + 1} or more of both"
        return values | {"frechet": None}, spans, {"frechet": reason}
    values["frechet"] = frechet_distance(real, drawn)
    if width <= intervals.WIDEST:
        spans["frechet"] = intervals.frechet_interval(values["frechet"], real, drawn, **sampling)
    return values, spans, {}


def _enough(images: Tensor, name: str) -> None:
    if len(images) <= NEIGHBOURS:
        raise BadInput(f"{name}: {len(images)} are too few to judge; give {NEIGHBOURS + 1} or more")


def train_judge(
    real_train: Tensor,
    real_train_labels: Tensor,
    *,
    classes: int,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Classifier:
    """The judging CNN, trained without privacy on real images [n, c, h, w] in [-1, 1]: INTERNAL, and may not leave."""
    return train_classifier(real_train, real_train_labels, classes, seed=seed, device=device, progress=progress)
