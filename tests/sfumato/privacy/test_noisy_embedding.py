"""The mechanism of mean embeddings: what it sums, its noise, its price, and what no record, group or neighbour can add."""

import contextlib
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sfumato.images import ImageSet
from sfumato.privacy import mechanisms, noise
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.mechanisms import noisy_embedding
from sfumato.privacy.noise import Source
from tests.seeded import seeded_source
from tests.sfumato.privacy.test_noisy_moments import access
from tests.spends import KEYS

ONCE = Gaussian(noise_multiplier=4.0)
SHARE = 0.19
CLASSES = ("a", "b", "c")


def crafted(x, y):
    """Features that are no features: huge, tiny, infinite or undefined, by the first pixel."""
    first = ((x.flatten(1)[:, :1] + 1) * 127.5).round()
    features = x.flatten(1) * torch.where(first >= 250, 1e30, torch.where(first <= 5, 1e-3, 3.0))
    features[(first == 240)[:, 0]] = math.inf
    features[(first == 245)[:, 0], 1] = math.nan
    return features


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


def mechanism(images, monkeypatch, *, embed=crafted, silent=True, source=None):
    """What the mechanism itself makes of a set; `silent`: without noise."""
    with monkeypatch.context() as patch:
        visit = SimpleNamespace(images=images, entries={}, payment=None)
        patch.setattr(mechanisms, "spending", lambda *_, **__: contextlib.nullcontext(visit))
        if silent:
            patch.setattr(Source, "steps", lambda self, shape, _: torch.zeros(*shape, dtype=torch.float64))
        paid = noisy_embedding(None, ONCE, embed, classes=len(CLASSES), count_share=SHARE, source=source)
    return paid.result


def few(count=40, grouped=False):
    generator = np.random.default_rng(0)
    pixels, labels = generator.integers(6, 240, (count, 1, 2, 2)).astype(np.uint8), generator.integers(0, 3, count)
    return ImageSet(pixels, labels, CLASSES, generator.integers(0, 12, count) if grouped else None)


@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
def test_without_noise_it_is_what_a_loop_sums(monkeypatch, grouped):
    images, expected = few(grouped=grouped), np.zeros((3, 5))
    for at, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        v = 3 * (pixels.reshape(4).astype(np.float64) / 127.5 - 1)
        v *= min(1, 1 / np.linalg.norm(v))
        record = np.append(math.sqrt(1 - SHARE) * v, math.sqrt(SHARE))
        expected[label] += record / (sum(images.groups == images.groups[at]) if grouped else 1)
    sums = mechanism(images, monkeypatch)
    assert sums.dtype == torch.float64 and np.abs(sums.numpy() - expected).max() < 1e-3, "but for the grid"


def test_the_noise_is_that_of_the_event_on_every_number(monkeypatch):
    sums = torch.stack([mechanism(few(0), monkeypatch, silent=False) for _ in range(200)])
    assert sums.shape == (200, 3, 5), "an empty set is released like any other"
    assert (sums.std(0) / 4.0).sub(1).abs().max() < 0.3 and sums.mean() == pytest.approx(0, abs=0.4)
    assert len(sums.flatten().unique()) > 0.9 * sums.numel(), "no number has the noise of another"


@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
def test_no_neighbour_moves_the_sums_farther_than_the_price_says(grouped, monkeypatch):
    """Small sets against the same with one unit more and with one exchanged; infinite, undefined and huge features among them."""
    records = {0: (0, 3), 1: (1, 255), 2: (2, 245), 3: (1, 240), 4: (0, 100)}
    units = [[one] for one in records] if not grouped else [[0], [1, 1, 2], [0, 4, 4, 3], [2, 3, 1, 0], [4] * 5]

    def sums(chosen):
        members = [(unit, one) for unit, name in enumerate(chosen) for one in units[name]]
        pixels = np.array([records[one][1] for _, one in members], np.uint8).reshape(-1, 1, 1, 1)
        labels = np.array([records[one][0] for _, one in members], np.int64)
        groups = np.array([unit for unit, _ in members], np.int64) if grouped else None
        images = ImageSet(pixels * np.ones((1, 1, 2, 2), np.uint8), labels, CLASSES, groups)
        return mechanism(images, monkeypatch, source=seeded_source(7))

    for base in ([], [0], [0, 1, 3]):
        values = [sums([*base, name]) for name in range(len(units))]
        moved = [float((value - sums(base)).norm()) for value in values]
        assert max(moved) <= 1.001 and all(map(math.isfinite, moved)), "the grid adds a thousandth"
        assert max(moved) > 0.99, "the bound is met"
        assert max(float((a - b).norm()) for a in values for b in values) <= 2.001


def test_the_price_is_written_before_the_door_opens(ledger):
    paid = noisy_embedding(access(ledger), ONCE, crafted, classes=10, count_share=SHARE)
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "open"]
    ((entry, events),) = ledger.spends("digits")
    assert events == (ONCE,) and entry.body["arithmetic"] == noise.ON_GRID
    assert entry.body["epsilon"] == pytest.approx(accountant.epsilon([ONCE], 1e-5))
    paid.payment.commit(ledger, "a" * 64)
    assert set(paid.entries.values()) == {"DP"} and ledger.verify() == [] and ledger.replay() == []


def test_a_comparison_is_a_look_and_injected_noise_is_internal(ledger):
    noisy_embedding(access(ledger, comparison=True), ONCE, crafted, classes=10, count_share=SHARE)
    assert [entry.kind for entry in ledger.entries()] == ["look"]
    paid = noisy_embedding(access(ledger), ONCE, crafted, classes=10, count_share=SHARE, source=seeded_source(1))
    assert set(paid.entries.values()) == {"INTERNAL"}
