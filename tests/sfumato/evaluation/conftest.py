from typing import NamedTuple

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from sfumato import sources
from sfumato.evaluation.classifier import Classifier, classifier_of
from sfumato.evaluation.extractors import FeatureReader, small_cnn
from sfumato.evaluation.scores import train_reader


class Digits(NamedTuple):
    """scikit-learn's 8x8 digits, shuffled once: 1,437 to train on, 360 to test on; pixels in [-1, 1]."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


@pytest.fixture(scope="session")
def digits() -> Digits:
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(bunch.images / 8 - 1).float()[:, None][order]
    labels = torch.from_numpy(bunch.target).long()[order]
    return Digits(images[:1437], labels[:1437], images[1437:], labels[1437:])


@pytest.fixture(scope="session")
def reader(digits) -> Classifier:
    return train_reader(digits.train, digits.train_labels, classes=10)


@pytest.fixture(scope="session")
def public_model() -> Classifier:
    """The small CNN that knows letters alone."""
    return classifier_of(sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=60)))


@pytest.fixture(scope="session")
def eyes(public_model) -> FeatureReader:
    return small_cnn(public_model, "glyphs")
