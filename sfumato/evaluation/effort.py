"""Estimates the time of judging beforehand: seconds of one core, from a fixed table and the sizes of the sets.

The table is that of `sfumato.costs`, so that two machines give the same estimate; multiply by a machine's speed for its own time.
scikit-learn's classifiers, distances and neighbours run on the CPU whatever the device.

Not covered: Inception's features, and images read from disk.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import nn

from sfumato.config import Evaluation
from sfumato.costs import Cost, Work, counted, training_seconds, without_numbers
from sfumato.evaluation import networks, two_samples
from sfumato.evaluation.classifier import BATCH_IMAGES, Classifier, default_steps
from sfumato.evaluation.utility import NETWORKS, TEN, wanted

LOGISTIC, LOGISTIC_SECONDS = 300, 2.6e-9
"""Iterations of a logistic regression on pixels, and the seconds of one per image value, for ten classes."""
SCIKIT_SECONDS, SCIKIT_IMAGES, SCIKIT_NUMBERS = 240.0, 2000, 784
"""Seconds that ten of scikit-learn's classifiers were measured to take, and the images of MNIST's size and the numbers in each that it was for; more
of either are taken to cost in proportion."""
DISTANCE_SECONDS, PAIR_SECONDS = 3.0, 3.3e-8
"""Intervals and distances of one set, and neighbours and kernels of two of its images, or of one and a real one."""
FEW = 2000
"""Images of the public model alone that are judged, at most: it knows no private class, and more teach nothing about it."""
TEST_PART = 6
"""Training images per test image in a source with a test part of its own, about."""
READING_NETWORKS = 2
"""Networks of the small CNN's size that read a judged set: the reader, and the extractor of the distances."""
PASSES = 3
"""Readings of an image that cost what a training step does on it: one forward, and the way back as much as two."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the judged sets and of the real images."""

    image: tuple[int, int, int]
    """Channels, height and width."""
    classes: int
    records: int
    """Private training images."""
    full: int
    """Sets that teach all classifiers, the real training images among them."""
    brief: int
    """Sets that teach the fast ones alone; that of the public model, which has fewer images, comes on top."""
    ceilings: int
    """Sets that take part in the two-sample test and teach nothing."""

    @property
    def test(self) -> int:
        """Approximate number of real test images."""
        return max(1, round(self.records / TEST_PART))


@functools.lru_cache
def classifier_work(image: tuple[int, int, int], classes: int) -> Work:
    """Work of the small CNN (reader, utility and two-sample test) for one image."""
    with without_numbers(image):
        return _work(Classifier(image[0], classes, side=max(image[1:])), image)


@functools.lru_cache
def network_work(name: str, image: tuple[int, int, int], classes: int) -> Work:
    """Work of one of the papers' networks for one image."""
    with without_numbers(image):
        return _work(NETWORKS[name](image, classes), image)


def _work(network: nn.Module, image: tuple[int, int, int]) -> Work:
    return counted(network, functools.partial(network.eval(), torch.zeros(1, *image)))


def judging_seconds(how: Evaluation, sizes: Sizes, judged: int, table: dict[str, Cost]) -> float:
    """Seconds of judging sets of `judged` images each: the reader, classifiers taught by the sets, two-sample tests, distances."""
    step = _step_seconds(sizes, sizes.image, table)
    seen = _seen_seconds(sizes, judged, step, table)
    full = seen + _taught_seconds(sizes, judged, step) + _papers_seconds(how, sizes, judged, table)
    brief = seen + _taught_seconds(sizes, judged, step)
    few = min(judged, FEW)
    alone = _seen_seconds(sizes, few, step, table) + _taught_seconds(sizes, few, step)
    reader = default_steps(sizes.records) * step
    return reader + sizes.full * full + sizes.brief * brief + alone + sizes.ceilings * seen


def _step_seconds(sizes: Sizes, image: tuple[int, int, int], table: dict[str, Cost]) -> float:
    """Seconds of a training step of the small CNN on images of this shape."""
    return training_seconds(table["classifier"], classifier_work(image, sizes.classes), BATCH_IMAGES)


def _seen_seconds(sizes: Sizes, judged: int, step: float, table: dict[str, Cost]) -> float:
    """Seconds of a set's two-sample test, of reading it by the reader and the extractors, and of the distances."""
    channels, height, width = sizes.image
    times = two_samples.fold(max(height, width))
    telling = _step_seconds(sizes, (channels, height // times, width // times), table)
    reading = READING_NETWORKS * judged / BATCH_IMAGES * step / PASSES
    pairs = judged * (judged + sizes.test)
    return two_samples.STEPS * telling + reading + DISTANCE_SECONDS + pairs * PAIR_SECONDS


def _taught_seconds(sizes: Sizes, judged: int, step: float) -> float:
    """Seconds of the fast classifiers."""
    return default_steps(judged) * step + LOGISTIC * judged * math.prod(sizes.image) * LOGISTIC_SECONDS


def _papers_seconds(how: Evaluation, sizes: Sizes, judged: int, table: dict[str, Cost]) -> float:
    """Seconds of the other classifiers in the settings."""
    seconds = 0.0
    for name in wanted(how, sizes.image)[0]:
        if name in NETWORKS:
            cost = table[KINDS[name]]
            one = training_seconds(cost, network_work(name, sizes.image, sizes.classes), networks.BATCH_IMAGES)
            seconds += networks.steps(judged, how.epochs) * one
        elif name in TEN:
            few = min(judged, how.scikit_images or judged)
            seconds += SCIKIT_SECONDS / len(TEN) * (few / SCIKIT_IMAGES) * (math.prod(sizes.image) / SCIKIT_NUMBERS)
    return seconds


KINDS = {"mlp": "mlp", "paper_cnn": "classifier", "dppm_cnn": "classifier", "resnet9": "backbone"}
"""The row of the table of costs for each of the papers' networks."""
