"""The mechanism of central images: what it sums, its noise, its price, and what no record, group or neighbour can add."""

import contextlib
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sfumato.images import ImageSet
from sfumato.latents import PIXELS
from sfumato.privacy import mechanisms, noise
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.mechanisms import noisy_sums
from sfumato.privacy.noise import Source
from tests.seeded import seeded_source
from tests.sfumato.privacy.test_noisy_moments import SMALL, Crafted, access, reference
from tests.spends import KEYS

ONCE = Gaussian(noise_multiplier=4.0)
SAMPLED = SubsampledGaussian(noise_multiplier=4.0, sample_rate=0.3, steps=5)
EVENTS = {"cells": ONCE, "samples": SAMPLED}


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


def mechanism(images, event, where, monkeypatch, silent=False, codec=PIXELS, source=None):
    """What the mechanism itself makes of a set; `silent`: without noise."""
    with monkeypatch.context() as patch:
        visit = SimpleNamespace(images=images, entries={}, payment=None)
        patch.setattr(mechanisms, "spending", lambda *_, **__: contextlib.nullcontext(visit))
        if silent:
            patch.setattr(Source, "steps", lambda self, shape, _: torch.zeros(*shape, dtype=torch.float64))
        return noisy_sums(None, event, where, classes=len(images.classes), codec=codec, source=source).result


def few(grouped=False):
    generator = np.random.default_rng(0)
    pixels, labels = generator.integers(0, 256, (40, 1, 2, 2)).astype(np.uint8), generator.integers(0, 3, 40)
    groups = generator.integers(0, 12, 40) if grouped else None
    return ImageSet(pixels, labels, ("a", "b", "c"), groups)


@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
def test_without_noise_it_is_what_a_loop_sums(monkeypatch, grouped):
    images, where = few(grouped), reference(SMALL, cells=2, radius=1.0)
    sums = mechanism(images, ONCE, where, monkeypatch, silent=True)
    expected = np.zeros((1, 3, 2, SMALL))
    for at, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        v = pixels.reshape(SMALL).astype(np.float64) / 127.5 - 1 + 0.2
        cell = int(v[0] > 0)
        v *= min(1, 1.0 / np.linalg.norm(v))
        expected[0, label, cell] += v / (sum(images.groups == images.groups[at]) if grouped else 1)
    assert np.abs(sums.numpy() - expected).max() < 1e-3, "but for the grid"


def test_each_sample_holds_a_unit_as_often_as_the_price_says_and_whole(monkeypatch):
    """All records far out in one direction: a sum counts those in the sample."""
    white = ImageSet(
        np.full((400, 1, 2, 2), 255, np.uint8), np.zeros(400, np.int64), ("a",), np.arange(400, dtype=np.int64) // 2
    )
    event = SAMPLED.model_copy(update={"steps": 30})
    sums = mechanism(white, event, reference(SMALL, radius=1.0), monkeypatch, silent=True)
    units = sums[:, 0, 0].norm(dim=1)
    assert sums.shape == (30, 1, 1, SMALL) and len(units.round(decimals=1).unique()) > 5, "samples differ"
    assert float((units - units.round()).abs().max()) < 1e-2, "both members of a unit, or none"
    assert float(units.mean()) == pytest.approx(0.3 * 200, rel=0.1)


@pytest.mark.parametrize("kind", EVENTS)
def test_the_noise_is_that_of_the_event_in_every_sum(monkeypatch, kind):
    images, where = few().subset(slice(0)), reference(SMALL, cells=2, radius=2.0)
    sums = torch.cat([mechanism(images, EVENTS[kind], where, monkeypatch) for _ in range(60)])
    assert (sums.std(0) / (4.0 * 2.0)).sub(1).abs().max() < 0.6 and sums.std() == pytest.approx(8.0, rel=0.1)
    assert len(sums.flatten(0, 2).unique(dim=0)) == sums.shape[:3].numel(), "no sum has the noise of another"


@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
@pytest.mark.parametrize("cells", [1, 2])
def test_no_neighbour_moves_a_sum_farther_than_the_price_says(grouped, cells, monkeypatch):
    """Small sets against the same with one unit more and with one exchanged; infinite, undefined and huge records among them."""
    where = reference(SMALL, cells=cells, radius=1.5)
    records = {0: (0, 10), 1: (1, 255), 2: (2, 245), 3: (1, 120), 4: (0, 250)}
    units = [[one] for one in records] if not grouped else [[0], [1, 1, 2], [0, 4, 4, 3], [2, 3, 1, 0]]

    def sums(chosen):
        members = [(unit, one) for unit, name in enumerate(chosen) for one in units[name]]
        pixels = np.array([records[one][1] for _, one in members], np.uint8).reshape(-1, 1, 1, 1)
        labels = np.array([records[one][0] for _, one in members], np.int64)
        groups = np.array([unit for unit, _ in members], np.int64)
        images = ImageSet(
            pixels * np.ones((1, 1, 2, 2), np.uint8), labels, ("a", "b", "c"), groups if grouped else None
        )
        return mechanism(images, ONCE, where, monkeypatch, silent=True, codec=Crafted(), source=seeded_source(7))

    for base in ([], [0], [0, 1, 3]):
        values = [sums([*base, name]) for name in range(len(units))]
        moved = [float((value - sums(base)).norm()) for value in values]
        assert max(moved) <= 1.5 * 1.001 and all(map(math.isfinite, moved)), "the grid adds a thousandth"
        assert max(float((a - b).norm()) for a in values for b in values) <= 2 * 1.5 * 1.001


@pytest.mark.parametrize("kind", EVENTS)
def test_the_price_is_written_before_the_door_opens(ledger, kind):
    paid = noisy_sums(access(ledger), EVENTS[kind], reference(), classes=10)
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "open"]
    ((entry, events),) = ledger.spends("digits")
    assert events == (EVENTS[kind],) and entry.body["arithmetic"] == noise.ON_GRID
    assert entry.body["epsilon"] == pytest.approx(accountant.epsilon([EVENTS[kind]], 1e-5))
    paid.payment.commit(ledger, "a" * 64)
    assert set(paid.entries.values()) == {"DP"} and ledger.verify() == [] and ledger.replay() == []


def test_a_comparison_is_a_look_and_injected_noise_is_internal(ledger):
    noisy_sums(access(ledger, comparison=True), ONCE, reference(), classes=10)
    assert [entry.kind for entry in ledger.entries()] == ["look"]
    paid = noisy_sums(access(ledger), ONCE, reference(), classes=10, source=seeded_source(1))
    assert set(paid.entries.values()) == {"INTERNAL"}
