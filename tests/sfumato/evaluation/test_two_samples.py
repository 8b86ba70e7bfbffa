"""Telling synthetic images from real ones: guessing on one source, always on another, as many of each class."""

from functools import partial

import pytest
import torch

from sfumato.evaluation import two_samples
from sfumato.evaluation.classifier import train_classifier
from sfumato.evaluation.two_samples import LEAST_IMAGES, MOST_IMAGES, matched, two_sample_test


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(two_samples, "STEPS", 60)


def test_two_parts_of_one_source_are_not_told_apart(digits):
    real, labels = digits.train[700:], digits.train_labels[700:]
    reported = two_sample_test(real, labels, digits.train[:700], digits.train_labels[:700])
    low, high = reported.interval
    assert 0.4 < reported.auc < 0.6 and low < 0.5 < high and high - low < 0.15


def test_what_is_no_digit_is_always_told(digits):
    noise = torch.rand(digits.train.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    blobs = torch.zeros_like(digits.train) + digits.train.mean((1, 2, 3), keepdim=True)
    for images in (noise, blobs):
        reported = two_sample_test(digits.test, digits.test_labels, images, digits.train_labels)
        assert reported.auc > 0.99 and reported.interval[1] <= 1 and reported.interval[0] <= reported.auc


def test_it_ends_where_nothing_is_left_to_learn_and_progress_does_not_tell(digits, monkeypatch):
    """Where it ends is a result of a look at private images, and progress is shown where nothing INTERNAL may be."""
    taken, heard = [], []
    monkeypatch.setattr(
        two_samples, "train_classifier", partial(train_classifier, progress=lambda *at: taken.append(at))
    )
    black, end = -torch.ones_like(digits.train), (two_samples.STEPS, two_samples.STEPS)
    for images in (black, digits.train, digits.train[: LEAST_IMAGES // 2]):
        labels = digits.train_labels[: len(images)]
        two_sample_test(digits.test, digits.test_labels, images, labels, progress=lambda *at: heard.append(at))
    assert heard == [end] * 3
    assert taken.count(end) == 2 and two_samples.STEPS < len(taken) < 2 * two_samples.STEPS, "the first ended early"


def test_another_share_of_the_classes_gives_nothing_away(digits):
    """Zeros and ones as they are, far more of one than among the real ones: pixels alone would tell them."""
    ones, zeros = ((digits.train_labels == label).nonzero()[:, 0] for label in (1, 0))
    shown = torch.cat([ones, zeros[:60]])
    retained = digits.test_labels < 2
    reported = two_sample_test(
        digits.test[retained], digits.test_labels[retained], digits.train[shown], digits.train_labels[shown]
    )
    assert reported.interval[0] < 0.5


def test_as_many_of_each_class_take_part_on_both_sides():
    one, other = torch.tensor([0] * 5 + [1] * 9 + [2] * 4), torch.tensor([1] * 3 + [0] * 8 + [3] * 6)
    ours, theirs = matched(one, other)
    assert one[ours].tolist() == other[theirs].tolist() == [0] * 5 + [1] * 3
    assert len(set(ours.tolist())) == len(set(theirs.tolist())) == 8
    again, another = matched(one, other)[0], matched(one, other, seed=1)[0]
    assert torch.equal(ours, again) and not torch.equal(ours, another)
    many = torch.arange(3 * MOST_IMAGES) % 7
    assert MOST_IMAGES - 7 <= len(matched(many, many)[0]) <= MOST_IMAGES
    assert [len(part) for part in matched(one, other + 5)] == [0, 0]


def test_too_few_images_give_the_reason(digits):
    few = LEAST_IMAGES - 20
    why = two_sample_test(digits.test, digits.test_labels, digits.train[:few], digits.train_labels[:few])
    assert "too few to tell apart" in why and f"it takes {LEAST_IMAGES}" in why


def test_large_images_are_averaged_down_and_no_image_is_learnt_and_judged(digits, monkeypatch):
    monkeypatch.setattr(two_samples, "LARGEST_SIDE", 4)
    seen = {}

    def train(images, labels, classes, **how):
        seen["taught"] = images
        return "a model"

    def predict(model, images):
        seen["judged"] = images
        return torch.tensor([[0.5, 0.5]] * len(images))

    monkeypatch.setattr(two_samples, "train_classifier", train)
    monkeypatch.setattr(two_samples, "predict", predict)
    reported = two_sample_test(digits.test, digits.test_labels, digits.train, digits.train_labels)
    assert reported.auc == 0.5
    taught, judged = ({tuple(image.flatten().tolist()) for image in seen[name]} for name in ("taught", "judged"))
    assert seen["taught"].shape[1:] == (1, 4, 4) and len(taught & judged) <= 1
    assert len(seen["taught"]) == pytest.approx(len(seen["judged"]), abs=2) and len(seen["taught"]) > 300


def test_a_seed_fixes_the_number(digits):
    task = (digits.test, digits.test_labels, digits.train[:400] * 0.9, digits.train_labels[:400])
    first, again, other = (two_sample_test(*task, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
