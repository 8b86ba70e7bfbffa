"""Judging: two looks that are written down, everything INTERNAL, one reader for all sets."""

import itertools

import numpy as np
import pytest
import torch

from sfumato.config import Evaluation, Schedule
from sfumato.diffusion.edm import stopped_at
from sfumato.diffusion.schedule import make_schedule
from sfumato.edm_levels import Levels
from sfumato.errors import BadInput
from sfumato.evaluation import scores
from sfumato.evaluation.classifier import default_steps
from sfumato.evaluation.extractors import FeatureReader
from sfumato.evaluation.membership import COMBINED, CONTROL, NEAREST, Models, attack_times
from sfumato.images import ImageSet, to_unit
from sfumato.privacy import door
from sfumato.privacy.auditing.looks import ATTACKED, CEILING, REAL, attacked, copied, judged, stopped, tensors
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger.ledger import Ledger
from tests.spends import KEYS

DIGITS = PrivateSet(name="digits", source="digits", share=0.0336)


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


def test_judging_is_two_looks_and_one_reader(ledger, monkeypatch):
    trained, made, requested = [], [], []

    def train_reader(x, y, **others):
        trained.append((x, y))
        return "the reader"

    def make_bench(x, y, **others):
        made.append((len(x), len(y), others["reader"], others["extractor"], others["how"]))
        return "the bench"

    def scores_of(x, y, bench, **others):
        requested.append((len(x), len(y), bench))
        return f"row of {len(x)}"

    monkeypatch.setattr(scores, "train_reader", train_reader)
    monkeypatch.setattr(scores, "make_bench", make_bench)
    monkeypatch.setattr(scores, "scores_of", scores_of)
    access = Access(
        ledger=ledger, private=DIGITS, run="r", stage="evaluation", purpose="judge", code_version="0",
        relation="add_remove", delta=1e-5,
    )  # fmt: skip
    sets = {"a": (torch.zeros(3, 1, 8, 8), torch.zeros(3)), "b": (torch.zeros(5, 1, 8, 8), torch.zeros(5))}
    result = judged(
        access, sets, classes=10, extractor="public eyes", how=Evaluation(), seed=0, device=torch.device("cpu"), shown=2
    )
    rows, entries = result.rows, result.entries
    assert rows == {"a": "row of 3", "b": "row of 5", REAL: "row of 50"}
    test = door.read(DIGITS, "test")
    assert result.real.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert np.array_equal(result.real.pixels[0], test.pixels[test.labels == 0][0])
    assert (
        made == [(360, 360, "the reader", "public eyes", Evaluation())]
        and [bench for *_, bench in requested] == ["the bench"] * 3
    )
    ((x, y),) = trained
    assert torch.equal(x, to_unit(door.read(DIGITS, "train").pixels)) and len(y) == 50
    assert entries == {entry.hash: "INTERNAL" for entry in ledger.entries()}
    assert [entry.kind for entry in ledger.entries()] == ["look", "look"]
    reasons = [entry.body["reason"] for entry in ledger.entries()]
    assert all(reason.startswith("judge: ") for reason in reasons) and len(set(reasons)) == 2
    assert ledger.total("digits").epsilon == 0


def test_in_latents_real_images_go_through_the_autoencoder_too(ledger, monkeypatch):
    requested = {}

    class Halved(Halves):
        def decode(self, z):
            return (z * 2).repeat_interleave(2, 2).repeat_interleave(2, 3)

    def ceiling(train, test, bench, **others):
        requested["train"], requested["test"] = train, test
        return "the best"

    def make_bench(x, y, **others):
        requested["further"] = others["further"]
        return "the bench"

    monkeypatch.setattr(scores, "train_reader", lambda *_, **__: "the reader")
    monkeypatch.setattr(scores, "make_bench", make_bench)
    monkeypatch.setattr(scores, "scores_of", lambda *_, **__: "a row")
    monkeypatch.setattr(scores, "ceiling", ceiling)
    how = {"classes": 10, "extractor": "eyes", "how": Evaluation(images=20), "seed": 0, "device": torch.device("cpu")}
    result = judged(access_to(ledger), {}, **how, shown=1, codec=Halved())
    assert result.rows == {REAL: "a row", CEILING: "the best"} and list(requested["further"]) == ["frechet_latents"]
    (train, _), (test, labels) = requested["train"], requested["test"]
    real = door.read(DIGITS, "test")
    assert len(train) == 20 and np.array_equal(labels.numpy(), real.labels)
    blocks = to_unit(real.pixels)[..., ::2, ::2].repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(test, blocks), "in the grey levels of a stored image"


def test_one_bar_counts_the_reader_and_all_sets(ledger, monkeypatch):
    images = door.read(DIGITS, "train")
    sets = {name: (to_unit(images.pixels), torch.as_tensor(images.labels)) for name in ("a", "b")}
    nine_pixels = FeatureReader("nine pixels", 9, lambda x: (x.flatten(1)[:, :9], torch.ones(len(x), 10) / 10))
    heard = []
    judged(
        access_to(ledger), sets, classes=10, extractor=nine_pixels,
        how=Evaluation(classifiers="fast", resamples=20), seed=0, device=torch.device("cpu"), shown=1,
        progress=lambda *step: heard.append(step),
    )  # fmt: skip
    done, totals = zip(*heard, strict=True)
    assert set(totals) == {100} and list(done) == sorted(done), "its steps would tell how many records there are"
    assert len(heard) > 4 * default_steps(50), "steps of the reader and of all sets are heard"
    assert done.index(100) == len(done) - 1, "the bar is full when the last set is judged, and no sooner"


@pytest.mark.parametrize(("count", "expected"), [(100, 12), (12, 12), (4, 4), (2, 2), (1, 1)])
def test_a_part_of_the_images_is_spread_over_the_set(count, expected):
    images = ImageSet(np.arange(12, dtype=np.uint8).reshape(12, 1, 1, 1) * 20, np.arange(12) // 4, tuple("abc"))
    x, y = tensors(images, count)
    assert len(x) == len(y) == expected and len(x.unique()) == expected
    places = ((x.flatten() + 1) * 127.5 / 20).round().long()
    assert y.tolist() == (places // 4).tolist(), "each image keeps its label"
    if count == 4:
        assert set(y.tolist()) == {0, 1, 2}


def access_to(ledger, **changes):
    fields = {
        "ledger": ledger, "private": DIGITS, "run": "r", "stage": "audit", "purpose": "audit", "code_version": "0",
        "relation": "add_remove", "delta": 1e-5,
    }  # fmt: skip
    return Access(**(fields | changes))


class Silence(torch.nn.Module):
    """A denoiser that predicts no noise."""

    def forward(self, x, t, y):
        return torch.zeros_like(x)


class Leak(torch.nn.Module):
    """A denoiser that knows the true noise of every private training image."""

    def __init__(self, schedule):
        super().__init__()
        self.schedule, self.known = schedule, to_unit(door.read(DIGITS, "train").pixels)

    def forward(self, x, t, y):
        guesses = (x[:, None] - self.schedule.signal(t)[:, None] * self.known[None]) / self.schedule.noise(t)[:, None]
        size = guesses.square().flatten(2).mean(2)
        best = guesses[torch.arange(len(x)), size.argmin(1)]
        return torch.where((size.amin(1) < 2).view(-1, 1, 1, 1), best, torch.zeros_like(x))


def test_attacking_a_model_and_its_images_is_two_looks(ledger):
    schedule = make_schedule(Schedule(timesteps=40))
    models = Models(schedule, Silence(), Leak(schedule))
    images = door.read(DIGITS, "train").subset(slice(0, 30))
    result, entries = attacked(access_to(ledger), images, models, seed=0, device=torch.device("cpu"))
    by_name = {row.name: row for row in result}
    assert {COMBINED, CONTROL, NEAREST} < set(by_name) and len(result) == len(attack_times(40)) + 3
    assert by_name[COMBINED].auc > 0.9 and by_name[NEAREST].auc > 0.7 and by_name[CONTROL].auc < 0.9
    assert {(row.members, row.others) for row in result} == {(50, 360)} and ATTACKED > 360
    assert entries == {entry.hash: "INTERNAL" for entry in ledger.entries()}
    looks = ledger.entries()
    assert [entry.kind for entry in looks] == ["look", "look"] and ledger.total("digits").epsilon == 0
    assert [entry.body["reason"] for entry in looks] == [f"audit: attack, {p} images" for p in ("training", "held-out")]


class Halves:
    """A codec that is no identity."""

    def encode(self, x):
        return x[..., ::2, ::2] / 2

    def largest_norm(self, image):
        return 4.0  # of 16 values from -1/2 to 1/2 no more than 2


def test_a_model_of_latents_is_attacked_in_latents_and_its_images_in_pixels(ledger):
    shapes, schedule = set(), make_schedule(Schedule(timesteps=40))

    class Watch(Silence):
        def forward(self, x, t, y):
            shapes.add(tuple(x.shape[1:]))
            return super().forward(x, t, y)

    images = door.read(DIGITS, "train").subset(slice(0, 30))
    models, terms = Models(schedule, Watch(), Watch()), {"seed": 0, "device": torch.device("cpu")}
    result, _ = attacked(access_to(ledger), images, models, codec=Halves(), **terms)
    plain, _ = attacked(access_to(ledger), images, None, **terms)
    assert shapes == {(1, 4, 4)} and result[-1] == plain[0]


def test_images_alone_are_attacked_where_no_model_is_released(ledger):
    images = door.read(DIGITS, "test").subset(slice(0, 30))
    (only,), _ = attacked(access_to(ledger), images, None, seed=0, device=torch.device("cpu"))
    assert only.name == NEAREST and only.auc < 0.6


def test_too_few_private_records_to_attack_are_refused(ledger):
    few = PrivateSet(name="digits", source="digits", share=0.0052)
    images = door.read(DIGITS, "test").subset(slice(0, 30))
    with pytest.raises(BadInput, match="9 members are too few"):
        attacked(access_to(ledger, private=few), images, None, seed=0, device=torch.device("cpu"))


def test_the_copy_check_looks_twice_and_shows_the_pairs(ledger):
    train, test = door.read(DIGITS, "train"), door.read(DIGITS, "test")
    images = ImageSet(
        np.concatenate([test.pixels[:40] // 2 + 50, train.pixels[7:8]]), np.zeros(41, np.int64), train.classes
    )
    result = copied(access_to(ledger), images)
    assert not result.check.passed and result.check.unexplained == 1
    assert (result.check.closest[0].image, result.check.closest[0].record) == (40, 7)
    assert result.pairs.shape == (10, 2, 1, 8, 8) and result.pairs.dtype == np.uint8
    assert np.array_equal(result.pairs[0, 0], result.pairs[0, 1])
    for pair, (image, record) in zip(result.check.closest, result.pairs, strict=True):
        assert np.array_equal(image, images.pixels[pair.image]) and np.array_equal(record, train.pixels[pair.record])
    assert len(result.to_train) == len(result.to_test) == 41
    assert result.entries == {entry.hash: "INTERNAL" for entry in ledger.entries()}
    assert all("look for copies" in entry.body["reason"] for entry in ledger.entries())


def test_sampling_by_the_records_ends_in_records_and_stops_earlier_in_noise(ledger):
    """One look; each class ends at one of its own records, and the network, which here predicts no noise at all, does not."""
    train, levels = door.read(DIGITS, "train"), Levels(N=50).levels().tolist()
    schedule = make_schedule(Schedule(timesteps=50))

    def silent(x, t, y):
        return torch.zeros_like(x)

    def picture(at):
        def sample(denoise, like):
            return stopped_at(denoise, like, levels, at, seed=3)

        return stopped(access_to(ledger), silent, schedule, sample, classes=10, device=torch.device("cpu"))

    shown, entries = picture((32, 50))
    assert shown.shape == (2, 2, 10, 1, 8, 8) and shown.dtype == np.uint8
    ends = shown[1, 0].astype(int)
    for label, end in enumerate(ends):
        own = train.pixels[train.labels == label].astype(int)
        assert abs(own - end).max((1, 2, 3)).min() <= 1
    assert abs(shown[0, 0].astype(int) - ends).mean() > 20 < abs(shown[1, 1].astype(int) - ends).mean()
    assert np.array_equal(picture((50,))[0][0], shown[1]), "the same seed, wherever else it stops"
    assert len(entries) == 1 and set(entries.values()) == {"INTERNAL"}
