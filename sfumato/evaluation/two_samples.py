"""A two-sample test by a classifier on pixels: can it separate synthetic images from real ones?

A distance in features misses what the features do not represent, and a classifier may learn well from images that nobody
would take for real. Here a small CNN learns on one half of the images to separate real from synthetic, and is tested on the
other half (Lopez-Paz and Oquab 2017, "Revisiting Classifier Two-Sample Tests"). Both halves hold equally many images of each
kind and class, so that different shares of the classes reveal nothing. The result is the area under its ROC curve: the
probability that it scores a synthetic image above a real one; .5 is guessing, 1 is always.

Compare it with the same number for real training images against held-out ones, which need not be .5 where the two parts were
collected separately.

Label: INTERNAL wherever the real images are private.
Not covered: a larger network, or more images, could separate the sets better: the number is a lower bound on their difference.
Differences smaller than the pixel noise of training (`JITTER`) do not count, since the grey levels in which a set is stored
would reveal it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.evaluation.classifier import predict, train_classifier
from sfumato.evaluation.intervals import Interval
from sfumato.evaluation.ranking import area, area_interval
from sfumato.progress import Progress, silent

MOST_IMAGES = 2000
"""Largest number of real images in the test, and of synthetic ones."""
LEAST_IMAGES = 40
"""Smallest number of real images for the test."""
STEPS = 150
"""Largest number of optimiser steps of 128 images."""
ENOUGH = 0.02
"""Mean loss below which training ends, since the two kinds are hardly ever confused."""
JITTER = 0.1
"""Standard deviation of the pixel noise in training; pixels lie in [-1, 1]."""
LARGEST_SIDE = 64
"""Larger images are averaged down to fit into so many pixels a side."""


@dataclass(frozen=True)
class TwoSampleTest:
    """Result of the two-sample test."""

    auc: float
    """Area under its ROC curve on images that it did not learn from, in [0, 1]."""
    interval: Interval
    """95 %, over draws of the images judged."""


def two_sample_test(
    real: Tensor,
    real_labels: Tensor,
    synthetic: Tensor,
    labels: Tensor,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> TwoSampleTest | str:
    """How well a classifier separates images `[m, c, h, w]` with labels int64 `[m]` from real ones `[n, c, h, w]`; INTERNAL.

    Where too few images remain after both kinds are matched by class, the reason instead of a number. `progress` hears of the end alone,
    since the step at which training ends tells of the images.

    Many parameters: real and synthetic data, how they are judged, and what is shown of it.
    """
    ours, theirs = matched(real_labels.cpu(), labels.cpu(), seed=seed)
    if len(ours) < LEAST_IMAGES:
        progress(STEPS, STEPS)
        return f"{len(ours)} real and synthetic images of the same classes are too few to tell apart; it takes {LEAST_IMAGES}"
    images = torch.cat([_fitting(real[ours]), _fitting(synthetic[theirs])])
    is_synthetic = torch.arange(len(images)) >= len(ours)
    held_out = torch.arange(len(ours)).repeat(2) % 2 == 1  # both kinds stand in order of class
    model = train_classifier(
        images[~held_out], is_synthetic[~held_out].long(), 2,
        steps=STEPS, enough=ENOUGH, seed=seed, jitter=JITTER, device=device,
    )  # fmt: skip
    progress(STEPS, STEPS)
    predicted, true = predict(model, images[held_out])[:, 1].double().numpy(), is_synthetic[held_out].numpy()
    return TwoSampleTest(area(predicted, true), area_interval(predicted, true))


def matched(one: Tensor, other: Tensor, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positions int64 `[k]` in two sets with labels int64 `[n]` and `[m]`, as many of each class in both and about `MOST_IMAGES` at most, in order of
    class."""
    generator = torch.Generator().manual_seed(seed)
    classes = sorted(set(one.tolist()) & set(other.tolist()))
    orders = [torch.randperm(len(labels), generator=generator) for labels in (one, other)]
    of_class = [
        [order[labels[order] == label] for order, labels in zip(orders, (one, other), strict=True)] for label in classes
    ]
    both = sum(min(map(len, pair)) for pair in of_class)
    share = min(1.0, MOST_IMAGES / max(both, 1))
    counts = [max(1, int(share * min(map(len, pair)))) for pair in of_class]
    empty = torch.zeros(0, dtype=torch.int64)
    positions = [
        torch.cat([empty, *(pair[side][:count] for pair, count in zip(of_class, counts, strict=True))])
        for side in range(2)
    ]
    return positions[0], positions[1]


def _fitting(images: Tensor) -> Tensor:
    """Images `[n, c, h, w]` averaged down by a whole number until they fit into `LARGEST_SIDE`."""
    times = fold(max(images.shape[2:]))
    return images if times <= 1 else F.avg_pool2d(images, times)


def fold(side: int) -> int:
    """Factor by which images of `side` pixels are averaged down."""
    return -(-side // LARGEST_SIDE)
