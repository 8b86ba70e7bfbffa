"""Balanced accuracy and areas under ROC curves: scikit-learn's, and intervals that a bootstrap agrees with."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from sfumato.evaluation.ranking import area, area_interval, balanced, macro_area


@pytest.fixture
def answers():
    """Probabilities of three classes of different sizes, and the labels."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, size=300, p=[0.6, 0.3, 0.1])
    scores = rng.normal(size=(300, 3)) + 1.2 * np.eye(3)[labels]
    return np.exp(scores) / np.exp(scores).sum(1, keepdims=True), labels


def resampled(statistic, *columns):
    """The spread of a statistic over resamples of the rows."""
    rng, rows = np.random.default_rng(1), len(columns[0])
    drawn = [rng.integers(rows, size=rows) for _ in range(200)]
    return np.std([statistic(*(column[index] for column in columns)) for index in drawn])


def test_balanced_accuracy_is_scikit_learns(answers):
    sure, labels = answers
    read = sure.argmax(1)
    value, (low, high) = balanced((read == labels).astype(float), labels)
    assert value == pytest.approx(balanced_accuracy_score(labels, read))
    spread = resampled(balanced_accuracy_score, labels, read)
    assert (high - low) / 2 == pytest.approx(1.96 * spread, rel=0.2) and low < value < high


def test_areas_are_scikit_learns(answers):
    sure, labels = answers
    value, (low, high) = macro_area(sure, labels)
    whole = lambda y, p: roc_auc_score(y, p, multi_class="ovr", average="macro")  # noqa: E731
    assert value == pytest.approx(whole(labels, sure))
    assert (high - low) / 2 == pytest.approx(1.96 * resampled(whole, labels, sure), rel=0.2)
    two, retained = sure[labels < 2][:, :2], labels[labels < 2]
    two = two / two.sum(1, keepdims=True)
    assert macro_area(two, retained)[0] == pytest.approx(roc_auc_score(retained, two[:, 1]))


def test_ties_count_by_half():
    values, kinds = np.array([0.1, 0.5, 0.5, 0.5, 0.9]), np.array([False, True, False, True, False])
    assert area(values, kinds) == pytest.approx(roc_auc_score(kinds, values))
    assert area(np.ones(5), kinds) == 0.5


def test_where_all_is_right_there_is_still_an_interval():
    labels = np.repeat([0, 1], 20)
    value, (low, high) = balanced(np.ones(40), labels)
    assert value == high == 1 and 0.85 < low < 0.95
    values, kinds = np.arange(40.0), labels == 1
    low, high = area_interval(values, kinds)
    assert area(values, kinds) == high == 1 and 0.75 < low < 0.95


def test_of_a_single_class_there_is_no_area_and_a_class_that_nobody_asks_for_is_left_out(answers):
    sure, labels = answers
    assert macro_area(sure, np.zeros(300, dtype=int)) is None
    wider = np.column_stack([sure, np.zeros(300)])
    assert macro_area(wider, labels) == macro_area(sure, labels)
