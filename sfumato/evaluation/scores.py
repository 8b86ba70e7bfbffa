"""All scores of one image set in one frozen value, always measured against the same held-out real images.

The judge is a CNN trained on the real training images; its features carry the Frechet distance and the neighbour
scores, its answers say what is readable. Fidelity is measured against the real *test* images, so a set that repeats the
training images gains nothing over the reference, which is those training images themselves. Several sets share a judge.

Label: a Scores value looks at private images without noise and is INTERNAL, as a whole and number by number.
Not covered: published FIDs (other features), and the spread between judges, seeds and draws of the images.
"""

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from sfumato.errors import BadInput
from sfumato.evaluation.classifier import FEATURES, Classifier, Progress, default_steps, features, train_classifier
from sfumato.evaluation.fidelity import coverage, frechet_distance, precision_recall_density, share_readable
from sfumato.evaluation.utility import accuracy_interval, check_task, downstream_correct

NEIGHBOURS = 5
"""The k of coverage, precision, recall and density (Naeem et al. 2020)."""
EXTRACTOR = f"hidden layer ({FEATURES} features) of a small CNN trained on the real training images; not Inception"


class Scores(BaseModel):
    """What one image set is worth: frozen, refuses NaN and unknown fields, serialises to JSON; INTERNAL."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    frechet: float = Field(ge=0)
    """Frechet distance to the real test images in the judge's features; less is better, 0 is best."""
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
    logistic: float = Field(ge=0, le=1)
    """Accuracy on the real test images of a logistic regression trained on the set."""
    logistic_interval: tuple[float, float]
    """95 % interval of `logistic` over draws of the test images alone."""
    cnn: float = Field(ge=0, le=1)
    """Accuracy on the real test images of the small CNN trained on the set."""
    cnn_interval: tuple[float, float]
    """95 % interval of `cnn` over draws of the test images alone."""
    images: int = Field(ge=1)
    """How many images the set has; the fidelity scores of sets of different sizes do not compare exactly."""
    feature_extractor: str
    """In whose features the distances were measured."""

    def numbers(self) -> dict[str, float]:
        """The scores that are single numbers, by name."""
        return {name: float(value) for name, value in self if isinstance(value, int | float)}


def judge(
    synthetic: Tensor,
    labels: Tensor,
    *,
    real_train: Tensor,
    real_train_labels: Tensor,
    real_test: Tensor,
    real_test_labels: Tensor,
    classes: int,
    judge_model: Classifier | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Scores:
    """All scores of synthetic images [n, c, h, w] in [-1, 1], n > 5, drawn for labels int64 [n]; INTERNAL.

    Without a judge_model, `train_judge` makes one of the real training images; with one, those are not looked at.
    `progress` hears the optimiser steps of both trainings as one count.
    """
    task = (synthetic, labels, real_test, real_test_labels)
    check_task(*task, classes=classes)
    for images, name in ((synthetic, "synthetic images"), (real_test, "real test images")):
        if len(images) <= NEIGHBOURS:
            raise BadInput(f"{name}: {len(images)} are too few to judge; give {NEIGHBOURS + 1} or more")
    if judge_model is not None and judge_model.head.out_features != classes:
        raise BadInput(f"the judge knows {judge_model.head.out_features} classes, not {classes}; train another one")
    training = default_steps(len(real_train)) if judge_model is None else 0
    total = training + default_steps(len(synthetic))
    if judge_model is None:
        judge_model = train_judge(
            real_train,
            real_train_labels,
            classes=classes,
            seed=seed,
            device=device,
            progress=progress and (lambda step, _: progress(step, total)),
        )
    real, drawn = features(judge_model, real_test), features(judge_model, synthetic)
    precision, recall, density = precision_recall_density(real, drawn, k=NEIGHBOURS)
    logistic = downstream_correct(*task, kind="logistic")
    cnn = downstream_correct(
        *task,
        kind="cnn",
        seed=seed,
        device=device,
        progress=progress and (lambda step, _: progress(training + step, total)),
    )
    return Scores(
        frechet=frechet_distance(real, drawn),
        coverage=coverage(real, drawn, k=NEIGHBOURS),
        precision=precision,
        recall=recall,
        density=density,
        readable=share_readable(judge_model, synthetic, labels),
        logistic=float(logistic.double().mean()),
        logistic_interval=accuracy_interval(logistic),
        cnn=float(cnn.double().mean()),
        cnn_interval=accuracy_interval(cnn),
        images=len(synthetic),
        feature_extractor=EXTRACTOR,
    )


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


def reference(
    *,
    real_train: Tensor,
    real_train_labels: Tensor,
    real_test: Tensor,
    real_test_labels: Tensor,
    classes: int,
    judge_model: Classifier | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Scores:
    """The row to compare with: the real training images judged as if they were synthetic; INTERNAL.

    Its `readable` flatters, since the judge learnt from these very images; `cnn` says how well they are read unseen.
    """
    return judge(
        real_train,
        real_train_labels,
        real_train=real_train,
        real_train_labels=real_train_labels,
        real_test=real_test,
        real_test_labels=real_test_labels,
        classes=classes,
        judge_model=judge_model,
        seed=seed,
        device=device,
        progress=progress,
    )
