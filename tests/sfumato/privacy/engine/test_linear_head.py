"""What a record adds to a step of the paid judge, against a slow oracle; its noise; and what it learns."""

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sfumato.config import Judge
from sfumato.images import ImageSet, to_unit
from sfumato.judge import unit
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.engine.linear_head import clipped_gradient, train_head
from sfumato.privacy.noise import grid, reach
from sfumato.privacy.units import units_of
from tests.seeded import seeded_source

CPU = torch.device("cpu")
SCALE = 20.0
PUBLIC = 80
"""The public number of records, where there are 50: the true one is private, and no sum may be divided by it."""


def records(count, *, groups=None, classes=3, directions=5, seed=0):
    """Features of norm 1, labels, units and a head far enough from zero that some gradients are clipped."""
    generator = torch.Generator().manual_seed(seed)
    x = unit(torch.randn(count, directions, generator=generator))
    y = torch.randint(classes, (count,), generator=generator)
    head = torch.randn(classes, directions + 1, generator=generator, dtype=torch.float64)
    pixels = np.zeros((count, 1, 1, 1), np.uint8)
    images = ImageSet(pixels, y.numpy(), tuple("abcdefghij"[:classes]), groups)
    return head, x, y, units_of(images, each=1)


def slow(head, x, y, groups):
    """Autograd, record by record; mean over the group, clipped to 1, summed."""
    total, each = torch.zeros_like(head), {}
    for place, group in enumerate(groups):
        learnt = head.clone().requires_grad_()
        F.cross_entropy(SCALE * x[place : place + 1] @ learnt.T, y[place : place + 1]).backward()
        each.setdefault(int(group), []).append(learnt.grad / SCALE)
    for actual in each.values():
        mean = torch.stack(actual).mean(0)
        total += mean / max(1.0, float(mean.norm()))
    return total


GROUPED = np.array([4, 1, 4, 2, 2, 4, 0, 0, 4, 7, 1, 2], np.int64)
"""Gradients of group 1 point the same way, so that their mean is clipped; of the others they cancel."""


@pytest.mark.parametrize("groups", [None, GROUPED], ids=["records", "groups"])
def test_the_sum_is_that_of_clipped_gradients_one_by_one(groups):
    head, x, y, units = records(12, groups=groups)
    names = np.arange(12) if groups is None else groups
    assert torch.allclose(clipped_gradient(head, x, y, units, SCALE), slow(head, x, y, names), atol=1e-12)
    members = [np.flatnonzero(names == name) for name in np.unique(names)]
    clipped = sum(float(slow(head, x[own], y[own], [0] * len(own)).norm()) > 1 - 1e-12 for own in members)
    assert 0 < clipped < len(members), "the oracle met both cases, of units and not of their records"


def test_groups_of_many_parts_are_summed_as_one(monkeypatch):
    monkeypatch.setattr("sfumato.privacy.engine.linear_head.AT_ONCE", 2)
    head, x, y, units = records(12, groups=GROUPED)
    assert torch.allclose(clipped_gradient(head, x, y, units, SCALE), slow(head, x, y, GROUPED), atol=1e-12)


@pytest.mark.parametrize("groups", [None, GROUPED], ids=["records", "groups"])
def test_no_unit_moves_the_sum_by_more_than_one(groups):
    head, x, y, units = records(12, groups=groups)
    names, whole = np.arange(12) if groups is None else groups, clipped_gradient(head, x, y, units, SCALE)
    for gone in np.unique(names):
        rest = np.flatnonzero(names != gone)
        images = ImageSet(
            np.zeros((len(rest), 1, 1, 1), np.uint8),
            y[rest].numpy(),
            ("a", "b", "c"),
            None if groups is None else groups[rest],
        )
        without = clipped_gradient(head, x[rest], y[rest], units_of(images, each=1), SCALE)
        assert float((whole - without).norm()) <= 1 + 1e-12


@pytest.mark.parametrize("crafted", [math.inf, -math.inf, math.nan, 3e38, 1e-45])
def test_crafted_features_have_norm_1_or_none(crafted):
    actual = unit(torch.tensor([[crafted, 1.0], [0.0, 0.0]]))
    assert actual.isfinite().all() and actual.norm(dim=1).max() <= 1 + 1e-12
    head, _, _, units = records(2, directions=2)
    total = clipped_gradient(head * 1e300, actual, torch.tensor([0, 1]), units, SCALE)
    assert total.isfinite().all() and float(total.norm()) <= 2


def head_of(images, monkeypatch, *, steps=1, noise=1.0, classes=3, source=None, **settings):
    """What the mechanism lets out of a set, with features that are the images' own values."""
    with monkeypatch.context() as patch:
        visit = SimpleNamespace(images=images, entries={}, payment=None)
        patch.setattr(mechanisms, "spending", lambda *_, **__: contextlib.nullcontext(visit))
        event = Gaussian(noise_multiplier=noise, count=steps)
        requested = {"classes": classes, "records": PUBLIC, "device": CPU, "source": source or seeded_source()}
        return mechanisms.noisy_head(None, event, lambda x: x.flatten(1), Judge(**settings), **requested).result


def shown(count=50, classes=3, names=None):
    """Three pixels, of which the record's class is bright."""
    labels = np.arange(count) % classes
    pixels = np.random.default_rng(0).integers(0, 60, (count, 1, 1, 3), dtype=np.uint8)
    pixels[np.arange(count), 0, 0, labels] = 255
    return ImageSet(pixels, labels, names or ("a", "b", "c"))


def test_each_number_of_a_step_has_noise_of_the_events_size(monkeypatch):
    loud, faint = ({"noise": noise, "learning_rate": 1.0} for noise in (3.0, 1e-9))
    truth = head_of(shown(), monkeypatch, **faint)
    errors = torch.stack([head_of(shown(), monkeypatch, source=seeded_source(i), **loud) - truth for i in range(200)])
    expected = 3.0 * reach(1.0, errors[0].numel()) / PUBLIC
    assert errors.std() == pytest.approx(expected, rel=0.1), "2,400 draws"
    assert errors.mean().abs() < 5 * expected / math.sqrt(errors.numel())


def test_a_group_adds_as_much_as_a_record_to_what_the_mechanism_lets_out(monkeypatch):
    labels = np.arange(12) % 3
    images = ImageSet(shown(12).pixels, labels, ("a", "b", "c"), GROUPED)
    x = unit(to_unit(images.pixels).flatten(1))
    expected = -slow(torch.zeros(3, 4, dtype=torch.float64), x, torch.from_numpy(labels), GROUPED) / PUBLIC
    actual = head_of(images, monkeypatch, noise=1e-9, learning_rate=1.0)
    assert torch.allclose(actual, expected, atol=grid(1.0, 12) / PUBLIC), "but for the rounding to the grid"


def test_as_many_steps_look_as_are_paid_for():
    seen = []
    _, x, y, units = records(12)
    train_head(Judge(), x, y, units, classes=3, steps=7, expected=12, noised=lambda _, total: seen.append(1) or total)
    assert len(seen) == 7


def test_it_learns_the_classes_and_never_names_one_that_is_empty(monkeypatch):
    images = shown(names=("a", "b", "c", "nobody"))
    head = head_of(images, monkeypatch, steps=60, noise=0.01, classes=4)
    features = unit(torch.from_numpy(images.pixels.astype(np.float32) / 127.5 - 1).flatten(1))
    assert ((features @ head.T).argmax(1).numpy() == images.labels).mean() == 1


def test_a_set_without_records_gives_noise_alone(monkeypatch):
    nobody = shown().subset(np.zeros(0, np.int64))
    assert head_of(nobody, monkeypatch, steps=2).isfinite().all()
