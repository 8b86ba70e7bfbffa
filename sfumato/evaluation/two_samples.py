"""Whether a classifier can tell synthetic images from real ones: a two-sample test that reads the pixels themselves.

A distance in features is blind to what the features do not see, and a classifier may learn well from images that nobody
would take for real. Here a small CNN is taught on one half of the images to tell real from synthetic, and asked about the
other half (Lopez-Paz and Oquab 2017, "Revisiting Classifier Two-Sample Tests"). As many of each kind and class take part
on either side, so that another share of the classes gives nothing away. The answer is the area under its ROC curve: how
often it holds the synthetic one of a synthetic and a real image for the more synthetic; .5 is guessing, 1 is always.

Beside it belongs the same number of real training images against held-out ones, which need not be .5 where the two were
gathered apart.

Label: INTERNAL wherever the real images are private.
Not covered: a larger network, or more images, would tell more apart: the number bounds from below how different the sets
are. Differences smaller than the pixel noise of training (`JITTER`) are not looked for, since the grey levels in which a
set is stored would give it away.
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
"""Real images that take part at most, and as many synthetic ones."""
LEAST_IMAGES = 40
"""Real images that it takes at least."""
STEPS = 150
"""Optimiser steps of 128 images, at most."""
ENOUGH = 0.02
"""Mean loss below which it ends: there is nothing left to learn where the two kinds are hardly ever mistaken."""
JITTER = 0.1
"""Standard deviation of the pixel noise in training; pixels lie in [-1, 1]."""
LARGEST_SIDE = 64
"""Larger images are averaged down to fit into so many pixels a side."""


@dataclass(frozen=True)
class TwoSampleTest:
    """What the classifier told apart."""

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
    """How well images `[m, c, h, w]` with labels int64 `[m]` are told from real ones `[n, c, h, w]`; INTERNAL.

    Where too few of a kind are left once both have as many of each class, the reason in place of a number.
    """
    ours, theirs = matched(real_labels.cpu(), labels.cpu(), seed=seed)
    if len(ours) < LEAST_IMAGES:
        return f"{len(ours)} real and synthetic images of the same classes are too few to tell apart; it takes {LEAST_IMAGES}"
    images = torch.cat([_fitting(real[ours]), _fitting(synthetic[theirs])])
    is_synthetic = torch.arange(len(images)) >= len(ours)
    held_out = torch.arange(len(ours)).repeat(2) % 2 == 1  # both kinds stand in order of class
    model = train_classifier(
        images[~held_out], is_synthetic[~held_out].long(), 2,
        steps=STEPS, enough=ENOUGH, seed=seed, jitter=JITTER, device=device, progress=progress,
    )  # fmt: skip
    predicted, true = predict(model, images[held_out])[:, 1].double().numpy(), is_synthetic[held_out].numpy()
    return TwoSampleTest(area(predicted, true), area_interval(predicted, true))


def matched(one: Tensor, other: Tensor, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positions in two sets of labels int64, as many of each class in both and at most `MOST_IMAGES`, in order of class."""
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
    """By how much images of `side` pixels are averaged down."""
    return -(-side // LARGEST_SIDE)
