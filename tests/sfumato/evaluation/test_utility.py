import warnings

import pytest
import torch

from sfumato.errors import BadInput
from sfumato.evaluation.utility import accuracy_interval, downstream_accuracy, downstream_correct


@pytest.mark.parametrize("kind, least", [("logistic", 0.94), ("cnn", 0.96)])
def test_real_digits_teach_real_digits(digits, kind, least):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert downstream_accuracy(*digits, kind=kind) > least


@pytest.mark.parametrize("kind", ["logistic", "cnn"])
def test_shuffled_labels_stay_near_chance(digits, kind):
    shuffled = digits.train_labels[torch.randperm(1437, generator=torch.Generator().manual_seed(1))]
    assert downstream_accuracy(digits.train, shuffled, digits.test, digits.test_labels, kind=kind) < 0.3


def test_logistic_is_scikit_learns_on_pixels_from_0_to_1(digits):
    from sklearn.linear_model import LogisticRegression

    pixels, test_pixels = (((x + 1) / 2).reshape(len(x), -1).double().numpy() for x in (digits.train, digits.test))
    plain = LogisticRegression(max_iter=1000).fit(pixels, digits.train_labels.numpy())
    expected = plain.score(test_pixels, digits.test_labels.numpy())
    assert downstream_accuracy(*digits, kind="logistic", seed=5) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["logistic", "cnn"])
def test_a_missing_class_costs_its_test_images_and_nothing_else(digits, kind):
    kept = digits.train_labels != 9  # the last one: the classes are not just those seen in training
    task = (digits.train[kept], digits.train_labels[kept], digits.test, digits.test_labels)
    correct = downstream_correct(*task, kind=kind)
    missing = digits.test_labels == 9
    assert correct.shape == (360,) and correct.dtype == torch.bool
    assert not correct[missing].any() and correct[~missing].double().mean() > 0.9


def test_two_classes_are_enough(digits):
    two = digits.train_labels < 2
    task = (digits.train[two], digits.train_labels[two], digits.test, digits.test_labels)
    correct = downstream_correct(*task, kind="logistic")
    assert correct[digits.test_labels < 2].double().mean() > 0.95


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: (d.train, torch.full_like(d.train_labels, 4), d.test, d.test_labels), "only class 4"),
        (lambda d: (d.train[:0], d.train_labels[:0], d.test, d.test_labels), "synthetic images"),
        (lambda d: (d.train, d.train_labels, d.test[:0], d.test_labels[:0]), "real test images"),
        (lambda d: (d.train * float("nan"), d.train_labels, d.test, d.test_labels), "1437 of 1437 hold NaN"),
        (lambda d: (d.train, d.train_labels[:7], d.test, d.test_labels), r"give int64 \[1437\]"),
        (lambda d: (d.train[..., :6], d.train_labels, d.test, d.test_labels), "bring both to one size"),
    ],
)
@pytest.mark.parametrize("kind", ["logistic", "cnn"])
def test_refuses_what_cannot_be_learnt_from(digits, kind, change, message):
    with pytest.raises(BadInput, match=message):
        downstream_accuracy(*change(digits), kind=kind)


def test_refuses_an_unknown_kind(digits):
    with pytest.raises(BadInput, match="choose logistic or cnn"):
        downstream_accuracy(*digits, kind="forest")


def test_interval_is_wilsons():
    low, high = accuracy_interval(torch.arange(360) < 342)  # 95 %
    z, n, p = 1.959964, 360, 0.95
    centre, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    assert (low, high) == pytest.approx([(centre + side * half) / (1 + z * z / n) for side in (-1, 1)], rel=1e-6)
    assert accuracy_interval(torch.ones(10, dtype=torch.bool))[0] < 0.75  # ten hits are no proof
    with pytest.raises(BadInput, match="n >= 1"):
        accuracy_interval(torch.ones(0, dtype=torch.bool))
