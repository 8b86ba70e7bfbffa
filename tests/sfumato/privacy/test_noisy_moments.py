"""The mechanism of the moments: its noise, and what no record, group or neighbour can add, whatever the codec makes of it."""

import contextlib
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sfumato import alignment
from sfumato.alignment import Reference, packed, unpacked
from sfumato.config import Alignment
from sfumato.images import ImageSet
from sfumato.latents import PIXELS
from sfumato.privacy import door, mechanisms, noise
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import DiscreteHistogram, Gaussian, MomentEvents
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.mechanisms import noisy_moments
from sfumato.privacy.noise import Source
from sfumato.privacy.units import speakers
from tests.seeded import seeded_source
from tests.spends import KEYS

DIGITS = PrivateSet(name="digits", source="digits", share=0.1395)
EVENTS = MomentEvents(
    counts=DiscreteHistogram(noise_multiplier=3.0),
    means=Gaussian(noise_multiplier=4.0),
    covariances=Gaussian(noise_multiplier=5.0),
)
MORE = EVENTS.model_copy(
    update={"distances": DiscreteHistogram(noise_multiplier=6.0), "rounds": Gaussian(noise_multiplier=7.0, count=2)}
)
"""With a histogram of distances and two rounds of k-means."""
HOW = Alignment(kind="moments", cells=2, inside=0.5)
SMALL = 4
"""Numbers of the made-up images, 2x2 grey levels."""


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


def access(ledger, **changes):
    fields = {
        "ledger": ledger, "private": DIGITS, "run": "run-1", "stage": "moments", "purpose": "a test",
        "code_version": "0.1", "relation": "add_remove", "delta": 1e-5,
    }  # fmt: skip
    return Access(**(fields | changes))


def reference(numbers=64, cells=1, radius=3.0, residual=2.0):
    eye = torch.eye(numbers, dtype=torch.float64)
    centroids = torch.zeros(cells, numbers, dtype=torch.float64)
    centroids[:, 0] = torch.arange(cells) - (cells - 1) / 2
    return Reference(torch.full((numbers,), -0.2, dtype=torch.float64), eye, eye, centroids, radius, residual)


def test_the_noise_is_that_of_the_events_and_off_the_diagonal_smaller_by_sqrt_2(ledger, monkeypatch):
    """Noise of many calls, less what the same calls find without any."""
    where = reference(16, radius=2.0, residual=1.5)
    images = ImageSet(np.zeros((3, 1, 4, 4), np.uint8), np.array([0, 1, 1]), ("a", "b", "c"))
    actual = [mechanism(images, where, monkeypatch) for _ in range(200)]
    truth = mechanism(images, where, monkeypatch, silent=True)
    counts = torch.stack([one.counts - truth.counts for one in actual]).double()
    assert counts.std() == pytest.approx(3.0, rel=0.15), "600 draws: five of their deviations"
    sums = torch.stack([one.sums - truth.sums for one in actual])
    assert sums.std() == pytest.approx(4.0 * 2.0, rel=0.1) and actual[0].mean_noise == pytest.approx(8.0, rel=2e-3)
    # The residuals are clipped to 1.5 around noisy centres: they add at most 2.25 each beside noise of 11.25.
    seconds = unpacked(torch.stack([one.seconds for one in actual]))[:, 2]
    off = ~torch.eye(16, dtype=torch.bool)
    assert seconds[:, ~off].std() == pytest.approx(5.0 * 2.25, rel=0.1) == actual[0].second_noise
    assert seconds[:, off].std() == pytest.approx(5.0 * 2.25 / math.sqrt(2), rel=0.1)
    assert torch.equal(seconds, seconds.mT)


def mechanism(images, where, monkeypatch, silent=False, codec=PIXELS, source=None, events=EVENTS):
    """What the mechanism itself makes of a set; `silent`: without noise."""
    with monkeypatch.context() as patch:
        visit = SimpleNamespace(images=images, entries={}, payment=None)
        patch.setattr(mechanisms, "spending", lambda *_, **__: contextlib.nullcontext(visit))
        if silent:
            patch.setattr(Source, "discrete_gaussian", lambda self, shape, _: torch.zeros(*shape, dtype=torch.int64))
            patch.setattr(Source, "steps", lambda self, shape, _: torch.zeros(*shape, dtype=torch.float64))
        return noisy_moments(None, events, where, HOW, classes=len(images.classes), codec=codec, source=source).result


def test_without_noise_it_is_what_a_loop_finds(monkeypatch):
    generator = np.random.default_rng(0)
    pixels, labels = generator.integers(0, 256, (40, 1, 2, 2)).astype(np.uint8), generator.integers(0, 3, 40)
    where = reference(SMALL, cells=2, radius=1.5, residual=0.9)
    actual = mechanism(ImageSet(pixels, labels, ("a", "b", "c")), where, monkeypatch, silent=True)
    counts, sums, seconds = np.zeros((3, 2)), np.zeros((3, 2, SMALL)), np.zeros((3, SMALL, SMALL))
    away = pixels.reshape(40, SMALL).astype(np.float32) / 127.5 - 1 + 0.2
    cells = (np.abs(away[:, :1] - np.array([[-0.5, 0.5]]))).argmin(1)
    away = np.stack([v * min(1, 1.5 / np.linalg.norm(v)) for v in away])
    for v, y, k in zip(away, labels, cells, strict=True):
        counts[y, k] += 1
        sums[y, k] += v
    centres = alignment.centres(torch.tensor(counts), torch.tensor(sums), actual.mean_noise, where).numpy()
    for v, y, k in zip(away, labels, cells, strict=True):
        left = v - centres[y, k]
        left = left * min(1, 0.9 / np.linalg.norm(left))
        seconds[y] += np.outer(left, left)
    assert torch.equal(actual.counts, torch.tensor(counts).long())
    assert np.abs(actual.sums.numpy() - sums).max() < 2e-3, "but for the grid"
    assert np.abs(unpacked(actual.seconds).numpy() - seconds).max() < 2e-2


class Crafted:
    """A codec that a bad image may choose anything of."""

    limit = 1.0

    def encode(self, x):
        z = x.clone()
        z[x[:, 0, 0, 0] > 0.99] = torch.tensor([[math.inf, -math.inf], [math.nan, 3e38]])
        z[(x[:, 0, 0, 0] > 0.9) & (x[:, 0, 0, 0] < 0.99)] = 3e38
        return z


@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
@pytest.mark.parametrize("cells", [1, 2])
def test_no_neighbour_moves_a_moment_farther_than_the_price_says(grouped, cells, monkeypatch):
    """Every small set against the same with one unit more and with one exchanged; crafted latents among them."""
    where, events = reference(SMALL, cells=cells, radius=1.5, residual=0.9), MORE if cells == 1 else EVENTS
    records = {0: (0, 10), 1: (1, 255), 2: (2, 245), 3: (1, 120), 4: (0, 250)}
    units = [[one] for one in records] if not grouped else [[0], [1, 1, 2], [0, 4, 4, 3], [2, 3, 1, 0]]
    fixed = torch.zeros(3, cells, SMALL, dtype=torch.float64)
    monkeypatch.setattr(alignment, "centres", lambda *_: fixed)  # what was let out before is the same for neighbours
    own = torch.eye(3, 2, dtype=torch.float64)[..., None].expand(3, 2, SMALL)
    monkeypatch.setattr(alignment, "covariances", lambda *_: (None, None))
    monkeypatch.setattr(alignment, "starting", lambda *_: own)
    monkeypatch.setattr(alignment, "refined", lambda *_: (-own, None))
    monkeypatch.setattr(alignment, "bound_of", lambda *_: 0.7)

    def moments(chosen):
        members = [(unit, one) for unit, name in enumerate(chosen) for one in units[name]]
        pixels = np.array([records[one][1] for _, one in members], np.uint8).reshape(-1, 1, 1, 1) * np.ones(
            (1, 1, 2, 2), np.uint8
        )
        labels = np.array([records[one][0] for _, one in members], np.int64)
        groups = np.array([unit for unit, _ in members], np.int64)
        images = ImageSet(pixels, labels, ("a", "b", "c"), groups if grouped else None)
        return mechanism(
            images, where, monkeypatch, silent=True, codec=Crafted(), source=seeded_source(7), events=events
        )

    limits = {"counts": 1.0, "sums": 1.5, "seconds": 0.81}
    if events.rounds:
        limits |= {"seconds": 0.49, "distances": 1.0, "first": 0.7, "second": 0.7}
    for base in ([], [0], [0, 1, 3]):
        without = moments(base)
        with_one = [moments([*base, name]) for name in range(len(units))]
        for field, limit in limits.items():
            values = [part_of(one, field) for one in with_one]
            added = [float((value - part_of(without, field)).norm()) for value in values]
            assert max(added) <= limit * 1.002 and all(math.isfinite(one) for one in added), (
                "the grid adds a thousandth"
            )
            assert max(float((a - b).norm()) for a in values for b in values) <= 2 * limit * 1.001
        assert all(float((one.counts - without.counts).abs().sum()) == 1 for one in with_one), (
            "a whole record to one cell"
        )


def part_of(moments, field):
    """A field of the moments, or one round of k-means by its place in words."""
    if field in ("first", "second"):
        return moments.rounds[("first", "second").index(field)]
    return getattr(moments, field).double()


def test_the_noise_of_distances_and_rounds_is_that_of_their_events(monkeypatch):
    where = reference(SMALL, radius=2.0, residual=1.5)
    images = ImageSet(np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 1]), ("a", "b", "c"))
    actual = [mechanism(images, where, monkeypatch, events=MORE) for _ in range(60)]
    assert torch.stack([one.distances for one in actual]).double().std() == pytest.approx(6.0, rel=0.1)
    assert all(one.residual == 1.5 for one in actual), "three records say nothing beside that noise"
    rounds = torch.stack([one.rounds for one in actual])
    assert rounds.std() == pytest.approx(7.0 * 1.5, rel=0.1) and actual[0].round_noise == pytest.approx(10.5, rel=2e-3)
    assert abs(float((rounds[:, 0] * rounds[:, 1]).mean())) < 0.1 * 10.5**2, "each round has noise of its own"


def test_a_narrow_class_far_from_the_public_images_is_bounded_by_how_narrow_it_is(monkeypatch):
    """Half of the records lie within the bound, up to the fineness of the histogram; without noise."""
    generator = np.random.default_rng(0)
    pixels = (200 + 10 * generator.standard_normal((400, 1, 2, 2))).clip(0, 255).astype(np.uint8)
    images = ImageSet(pixels, np.zeros(400, np.int64), ("a",))
    where = reference(SMALL, radius=5.0, residual=3.5)
    actual = mechanism(images, where, monkeypatch, silent=True, events=MORE)
    away = torch.from_numpy(pixels).flatten(1).double() / 127.5 - 1
    apart = (away - away.mean(0)).norm(dim=1)
    assert float(actual.distances.sum()) == 400
    assert 0.45 < float((apart <= actual.residual).double().mean()) < 0.75 and actual.residual < 0.3
    wide = mechanism(images, where, monkeypatch, silent=True)
    assert wide.residual == 3.5 and actual.second_noise < wide.second_noise / 100


def test_distances_say_something_where_they_are_clear_of_their_own_noise(monkeypatch):
    """Twice as loud as that of the counts; the drawn noise itself is left out."""
    needed = alignment.CLEAR * MORE.distances.noise_multiplier * math.sqrt(alignment.BINS)
    assert MORE.counts.noise_multiplier == MORE.distances.noise_multiplier / 2
    for count, clear in ((math.floor(0.9 * needed), False), (math.ceil(1.1 * needed), True)):
        images = ImageSet(np.full((count, 1, 2, 2), 120, np.uint8), np.zeros(count, np.int64), ("a",))
        actual = mechanism(images, reference(SMALL), monkeypatch, silent=True, events=MORE)
        assert (actual.residual < 2.0) == clear


@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
def test_rounds_of_k_means_are_what_a_loop_finds(grouped, monkeypatch):
    """Two rounds, record by record; a group adds the mean of its members beside the one that speaks, whose draw is the same."""
    generator = np.random.default_rng(1)
    pixels, labels = generator.integers(0, 256, (60, 1, 2, 2)).astype(np.uint8), generator.integers(0, 2, 60)
    groups = np.arange(60) // 3 if grouped else None
    images, where = ImageSet(pixels, labels, ("a", "b"), groups), reference(SMALL, radius=1.5, residual=0.9)
    actual = mechanism(images, where, monkeypatch, silent=True, events=MORE, source=seeded_source(3))
    speaking, owner = speakers(images, seeded_source(3))
    spreads, _ = alignment.covariances(actual, where)
    middle = alignment.centres(actual.counts, actual.sums, actual.mean_noise, where)[:, 0].numpy()
    away = pixels.reshape(60, SMALL).astype(np.float32) / 127.5 - 1 + 0.2
    away = np.stack([v * min(1, 1.5 / np.linalg.norm(v)) for v in away]).astype(np.float64)
    centres, clip = alignment.starting(spreads, 2), actual.residual
    for noisy in actual.rounds:
        cell = [
            int((torch.tensor(v - middle[y]) - centres[y]).norm(dim=1).argmin())
            for v, y in zip(away, labels, strict=True)
        ]
        expected = np.zeros((2, 2, SMALL + 1))
        for unit, leader in enumerate(speaking.tolist()):
            beside = [
                i
                for i in np.flatnonzero(owner.numpy() == unit)
                if (labels[i], cell[i]) == (labels[leader], cell[leader])
            ]
            for i in beside:
                left = away[i] - middle[labels[i]]
                left = left * min(1, clip / np.linalg.norm(left)) / len(beside)
                added = [*(math.sqrt(0.9) * left), math.sqrt(0.1) * clip / len(beside)]
                expected[labels[i], cell[i]] += added
        assert np.abs(noisy.numpy() - expected).max() < 2e-3, "but for the grid"
        centres = alignment.refined(noisy, actual, spreads)[0]


def test_the_price_is_written_before_the_door_opens_and_an_empty_set_is_no_error(ledger, monkeypatch):
    paid = noisy_moments(access(ledger), MORE, reference(), HOW, classes=10)
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "open"]
    ((entry, events),) = ledger.spends("digits")
    assert events == MORE.paid and entry.body["arithmetic"] == f"{noise.DISCRETE}; {noise.ON_GRID}"
    assert entry.body["epsilon"] == pytest.approx(accountant.epsilon(MORE.paid, 1e-5))
    paid.payment.commit(ledger, "a" * 64)
    assert set(paid.entries.values()) == {"DP"} and ledger.verify() == [] and ledger.replay() == []
    assert paid.result.sums.shape == (10, 1, 64) and paid.result.seconds.shape == (10, 64 * 65 // 2)
    assert paid.result.rounds.shape == (2, 10, 2, 65) and paid.result.distances.shape == (alignment.BINS,)
    nobody = ImageSet(np.zeros((0, 1, 2, 2), np.uint8), np.zeros(0, np.int64), ("a", "b"))
    actual = mechanism(nobody, reference(SMALL), monkeypatch, silent=True, events=MORE)
    assert float(actual.sums.norm() + actual.seconds.norm() + actual.rounds.norm()) == 0 and actual.residual == 2.0


def test_a_comparison_is_a_look_and_injected_noise_is_internal(ledger):
    noisy_moments(access(ledger, comparison=True), EVENTS, reference(), HOW, classes=10)
    assert [entry.kind for entry in ledger.entries()] == ["look"]
    paid = noisy_moments(access(ledger), EVENTS, reference(), HOW, classes=10, source=seeded_source(1))
    assert set(paid.entries.values()) == {"INTERNAL"}


def test_it_finds_the_classes_of_real_images(ledger):
    with door.looking(access(ledger), "train") as visit:
        y, x = (
            torch.as_tensor(visit.images.labels),
            torch.as_tensor(visit.images.pixels).flatten(1).double() / 127.5 - 1,
        )
    tiny = Gaussian(noise_multiplier=1e-6)
    faint = MomentEvents(counts=DiscreteHistogram(noise_multiplier=1e-6), means=tiny, covariances=tiny)
    where = reference(radius=20.0, residual=20.0)
    actual = noisy_moments(access(ledger), faint, where, HOW, classes=10).result
    for label in range(10):
        own = x[y == label]
        assert int(actual.counts[label]) == len(own)
        torch.testing.assert_close(actual.sums[label, 0] / len(own), own.mean(0) + 0.2, atol=2e-3, rtol=0)
        spread = (own - own.mean(0)).T @ (own - own.mean(0))
        torch.testing.assert_close(actual.seconds[label], packed(spread), atol=0.5, rtol=1e-2)
