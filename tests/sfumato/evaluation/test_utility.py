import warnings

import pytest
import torch
from torch import Tensor

from sfumato.config import Evaluation
from sfumato.errors import BadInput
from sfumato.evaluation import classifier, utility
from sfumato.evaluation.utility import ELEVEN, FAST, PAPERS, TEN, answers, spread, training_steps, wanted

FEW = Evaluation(epochs=2, scikit_images=150)


def right(kind: str, *task: Tensor, **others) -> Tensor:
    """Where one classifier is right."""
    ((name, result, _),) = answers((kind,), *task, **{"how": FEW, **others})
    assert name == kind
    return result


def accuracy(kind: str, *task: Tensor, **others) -> float:
    return float(right(kind, *task, **others).double().mean())


@pytest.mark.parametrize("kind, least", [("logistic", 0.94), ("cnn", 0.96)])
def test_real_digits_teach_real_digits(digits, kind, least):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accuracy(kind, *digits) > least


@pytest.mark.parametrize("kind", ["logistic", "cnn"])
def test_shuffled_labels_stay_near_chance(digits, kind):
    shuffled = digits.train_labels[torch.randperm(1437, generator=torch.Generator().manual_seed(1))]
    assert accuracy(kind, digits.train, shuffled, digits.test, digits.test_labels) < 0.3


def test_logistic_is_scikit_learns_on_pixels_from_0_to_1(digits):
    from sklearn.linear_model import LogisticRegression

    pixels, test_pixels = (((x + 1) / 2).reshape(len(x), -1).double().numpy() for x in (digits.train, digits.test))
    plain = LogisticRegression(max_iter=1000).fit(pixels, digits.train_labels.numpy())
    expected = plain.score(test_pixels, digits.test_labels.numpy())
    assert accuracy("logistic", *digits, seed=5) == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
def test_a_solver_that_stops_at_its_limit_is_scored_and_says_nothing_on_the_screen(digits, monkeypatch):
    monkeypatch.setattr(utility, "ITERATIONS", 5)
    assert 0.5 < accuracy("logistic", *digits, seed=5) < 1


@pytest.mark.parametrize("kind", ["logistic", "cnn"])
def test_a_missing_class_costs_its_test_images_and_nothing_else(digits, kind):
    retained = digits.train_labels != 9  # the last one: the classes are not just those seen in training
    task = (digits.train[retained], digits.train_labels[retained], digits.test, digits.test_labels)
    correct = right(kind, *task)
    missing = digits.test_labels == 9
    assert correct.shape == (360,) and correct.dtype == torch.bool
    assert not correct[missing].any() and correct[~missing].double().mean() > 0.9


def test_two_classes_are_enough(digits):
    two = digits.train_labels < 2
    task = (digits.train[two], digits.train_labels[two], digits.test, digits.test_labels)
    correct = right("logistic", *task)
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
        accuracy(kind, *change(digits))


def test_refuses_an_unknown_classifier(digits):
    with pytest.raises(BadInput, match="'forest' is unknown; choose from logistic, cnn, mlp"):
        accuracy("forest", *digits)


@pytest.mark.parametrize("kind", TEN)
def test_each_of_scikit_learns_learns_from_a_few_images(digits, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = accuracy(kind, *digits)
    assert result > (0.3 if kind == "adaboost" else 0.5)


def test_a_seed_fixes_what_a_forest_reads(digits):
    first, again, other = (right("random_forest", *digits, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_eleven_are_eleven_and_scikit_images_limits_ten(digits, monkeypatch):
    assert len(set(ELEVEN)) == 11 and "mlp" not in ELEVEN
    taught = []
    monkeypatch.setattr(utility, "_scikit", lambda model, x, y, others: taught.append(len(x)) or torch.zeros(360))
    monkeypatch.setattr(
        utility, "_logistic", lambda x, y, others, classes: (taught.append(len(x)) or torch.zeros(360), None)
    )
    for kind in ELEVEN:
        accuracy(kind, *digits)
    assert taught == [1437] + [150] * 10
    accuracy("bagging", *digits, how=Evaluation(scikit_images=0))
    assert taught[-1] == 1437


def test_fewer_images_than_classes_still_teach_all_of_them(digits):
    """One image of 200 was asked for, of one class, and a classifier that needs two classes stopped the judging of a paid run."""
    few = Evaluation(scikit_images=1)
    assert 0 <= accuracy("linear_svm", *digits, how=few) <= 1
    labels = torch.tensor([2, 2, 0, 1, 0])
    assert utility.with_each_class(torch.tensor([1]), labels).tolist() == [1, 2, 3]
    assert utility.with_each_class(torch.tensor([0, 2, 3]), labels).tolist() == [0, 2, 3]


def test_what_is_asked_for_depends_on_the_images():
    assert wanted(Evaluation(), (3, 32, 32)) == (FAST, {})
    everything = Evaluation(classifiers="all")
    names, missing = wanted(everything, (3, 32, 32))
    assert set(names) == {*FAST, *PAPERS, *TEN} and missing == {}
    assert wanted(Evaluation(classifiers="dppm_cnn"), (1, 8, 8)) == ((*FAST, "dppm_cnn"), {})
    names, missing = wanted(Evaluation(classifiers="dppm_cnn"), (1, 1, 8))
    assert names == FAST and "2 pixels a side, here are 1x8" in missing["dppm_cnn"]
    names, missing = wanted(everything, (1, 8, 8))
    assert set(names) == {*FAST, "mlp", *TEN}
    assert "18 pixels a side, here are 8x8" in missing["paper_cnn"] and "colour" in missing["resnet9"]
    assert "8 pixels a side, here are 32x7" in wanted(everything, (3, 32, 7))[1]["resnet9"]


def test_progress_counts_the_steps_of_all(digits):
    heard, names = [], ("logistic", "cnn", "mlp")
    list(answers(names, *digits, how=FEW, progress=lambda *step: heard.append(step)))
    total = training_steps(names, 1437, FEW)
    assert total == 200 + 2 * 10 and heard == [(step + 1, total) for step in range(total)]


@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_test_images_and_their_labels_choose_nothing(digits, kind, monkeypatch):
    """What a classifier reads in an image does not depend on the other test images, nor on any test label."""
    monkeypatch.setattr(classifier, "LEAST_STEPS", 1)
    task = (digits.train[:200], digits.train_labels[:200])
    wrong = (digits.test_labels + 1) % 10
    again = torch.stack([right(kind, *task, digits.test, torch.full((360,), label)) for label in range(10)])
    assert torch.equal(again.sum(0), torch.ones(360, dtype=torch.int64)), "each image is read as one class"
    assert torch.equal(right(kind, *task, digits.test, wrong), again[wrong, torch.arange(360)])
    part = right(kind, *task, digits.test[:50], wrong[:50])
    assert torch.equal(part, again[wrong, torch.arange(360)][:50])


@pytest.mark.parametrize(("images", "count", "expected"), [(10, 4, [0, 3, 6, 9]), (3, 9, [0, 1, 2]), (5, 1, [0])])
def test_a_part_is_spread_evenly(images, count, expected):
    assert spread(images, count).tolist() == expected
