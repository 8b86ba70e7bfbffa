"""Each mechanism against a real ledger: what is written and when, what noise comes out, what the label is."""

import contextlib
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sfumato.config import FineTuning, Judge, Network, Schedule, Training
from sfumato.diffusion.objective import denoising_examples
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import Refused
from sfumato.images import ImageSet, to_pixels
from sfumato.networks.build import build
from sfumato.privacy import door, mechanisms, noise
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Gaussian,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.mechanisms import (
    drawn,
    fine_tuned,
    fine_tuned_beside,
    noised_records,
    noisy_counts,
    noisy_head,
    noisy_votes,
    unprotected,
)
from sfumato.privacy.noise import Source
from sfumato.training import unlabelled_losses
from tests.seeded import seeded_source
from tests.spends import KEYS
from tests.team import Led

DIGITS = PrivateSet(name="digits", source="digits", share=0.1395)
CPU = torch.device("cpu")
VOTE = DiscreteHistogram(noise_multiplier=3.0)
STEPS = SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.25, steps=3)
TUNING = FineTuning(steps=99, sample_rate=1.0, draws=1, trainable=("rows",), clip=1.0)
"""Steps and rate are those of the event; these here must not matter."""
SCHEDULE = make_schedule(Schedule(timesteps=20))


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


def access(ledger, private=DIGITS, **changes):
    fields = {
        "ledger": ledger, "private": private, "run": "run-1", "stage": "a stage", "purpose": "a test",
        "code_version": "0.1", "relation": "add_remove", "delta": 1e-5,
    }  # fmt: skip
    return Access(**(fields | changes))


def vote_zero(x, y):
    return torch.zeros(len(x), dtype=torch.long)


def vote(access, ballot=vote_zero, event=VOTE, options=4, **others):
    return noisy_votes(access, event, ballot, classes=10, options=options, device=CPU, **others)


def network():
    return build(Network(kind="mlp", width=8, blocks=1, condition=8), (1, 8, 8), 10)


def corrupt(x, y, generator):
    return denoising_examples(SCHEDULE, x, y, draws=1, low=1, high=20, generator=generator)


def tune(access, corrupt=corrupt, event=STEPS, **others):
    settings = {"records": 200, "device": CPU, "physical_batch": 32} | others
    return fine_tuned(access, event, network(), corrupt, TUNING, **settings)


def sample(access, corrupt=None, event=Gaussian(noise_multiplier=2.0, count=3), **others):
    def draw(x, y, source, counts):
        noise = source.normal((3, *x.shape[1:]))
        return ImageSet(to_pixels(x.mean(0) + noise), torch.arange(3).numpy(), tuple("0123456789"))

    return drawn(access, [event], corrupt or draw, **({"device": CPU} | others))


COUNT = DiscreteHistogram(noise_multiplier=4.0)


def count(access, event=COUNT, **others):
    return noisy_counts(access, event, classes=10, **others)


HEAD = Gaussian(noise_multiplier=5.0, count=4)


def judge(access, event=HEAD, **others):
    requested = {"classes": 10, "records": 200, "device": CPU} | others
    return noisy_head(access, event, lambda x: x.flatten(1), Judge(), **requested)


MECHANISMS = {
    "judge": (judge, HEAD),
    "votes": (vote, VOTE),
    "counts": (count, COUNT),
    "fine tuning": (tune, STEPS),
    "drawing": (sample, Gaussian(noise_multiplier=2.0, count=3)),
}
HOW = {
    "discrete_histogram": noise.DISCRETE,
    "subsampled_gaussian": noise.ON_GRID,
    "gaussian": noise.OF_SAMPLER,
}
"""What an entry says of the arithmetic."""
each_mechanism = pytest.mark.parametrize(("run", "event"), MECHANISMS.values(), ids=MECHANISMS)


def kinds(ledger):
    return [entry.kind for entry in ledger.entries()]


# The ledger, before and after


def test_votes_of_all_classes_together_are_one_row(ledger):
    """A record adds 1 to one cell of it, whatever its class."""

    def own(x, y):
        return y % 4

    whole = noisy_votes(access(ledger), DiscreteHistogram(noise_multiplier=1e-3), own, classes=1, options=4, device=CPU)
    each = vote(access(ledger), own, event=DiscreteHistogram(noise_multiplier=1e-3))
    assert whole.result.shape == (1, 4) and torch.equal(whole.result, each.result.sum(0, keepdim=True))


@each_mechanism
def test_the_price_is_written_before_the_door_opens_and_settled_after(ledger, run, event, monkeypatch):
    seen = []

    def read(private, part, real=door.read):
        seen.append((kinds(ledger), part))
        return real(private, part)

    monkeypatch.setattr(door, "read", read)
    claim = {"epsilon": 9.0, "source": "a paper"}
    paid = run(access(ledger, claim=claim, parents=("p1", "p2"), images=7, relation="replace_one", delta=1e-4))
    assert seen == [(["reserve", "open"], "train")], "one visit, to the training part, with the price on paper"
    assert kinds(ledger) == ["reserve", "open"], "until the result is kept, all that was reserved stands"
    paid.payment.commit(ledger, "a" * 64)
    assert kinds(ledger) == ["reserve", "open", "commit"]
    reserved, _, committed = ledger.entries()
    assert committed.body["artifact"] == "a" * 64
    ((spend, events),) = ledger.spends("digits")
    assert events == (event,) and spend.seq == reserved.seq
    body = reserved.body
    assert (body["claim"], body["parents"], body["images"]) == (claim, ["p1", "p2"], 7)
    assert (body["stage"], body["purpose"], body["run"], body["code_version"]) == ("a stage", "a test", "run-1", "0.1")
    assert (body["relation"], body["delta"]) == ("replace_one", 1e-4)
    assert body["generator"] == noise.GENERATOR and body["arithmetic"] == (
        noise.ON_GRID if event is HEAD else HOW[event.kind]
    )
    expected = accountant.epsilon([event], 1e-4, "replace_one")
    assert body["epsilon"] == committed.body["epsilon"] == pytest.approx(expected)
    assert paid.entries == {reserved.hash: "DP"}
    assert ledger.verify() == [] and ledger.replay() == []


@each_mechanism
def test_every_call_pays_again(ledger, run, event):
    for _ in range(2):
        run(access(ledger))
    assert kinds(ledger) == ["reserve", "open"] * 2
    assert ledger.total("digits").epsilon == pytest.approx(accountant.epsilon([event, event], 1e-5))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_a_crash_inside_leaves_the_whole_price_standing(ledger, error):
    def crash(*_):
        raise error("in the middle")

    with pytest.raises(error):
        vote(access(ledger), ballot=crash)
    with pytest.raises(error):
        tune(access(ledger), corrupt=crash)
    second = itertools.count()
    with pytest.raises(error):
        tune(access(ledger), progress=lambda *_: crash() if next(second) else None)
    assert kinds(ledger) == ["reserve", "open"] * 3
    assert [events for _, events in ledger.spends("digits")] == [(VOTE,), (STEPS,), (STEPS,)], (
        "steps not taken count too"
    )
    assert ledger.total("digits").epsilon == pytest.approx(accountant.epsilon([VOTE, STEPS, STEPS], 1e-5))


@each_mechanism
def test_a_comparison_is_a_look_that_costs_nothing_and_never_leaves(ledger, run, event):
    paid = run(access(ledger, comparison=True))
    (entry,) = ledger.entries()
    assert entry.kind == "look" and entry.body["reason"] == "a test"
    assert paid.entries == {entry.hash: "INTERNAL"}
    assert ledger.total("digits").spends == 0 and ledger.total("digits").epsilon == 0


@each_mechanism
def test_an_injected_source_is_noted_and_makes_the_result_internal(ledger, run, event):
    paid = run(access(ledger), source=seeded_source())
    assert kinds(ledger) == ["reserve", "open"]
    assert all(entry.body["insecure"] for entry in ledger.entries())
    assert ledger.entries()[0].body["generator"] == noise.INJECTED
    assert paid.entries == {ledger.entries()[0].hash: "INTERNAL"}


@each_mechanism
def test_a_budget_that_does_not_reach_is_refused_with_the_door_shut(ledger, run, event, monkeypatch):
    monkeypatch.setattr(door, "read", lambda *_: pytest.fail("the door was opened"))
    ledger.set_budget("digits", 0.5 * accountant.epsilon([event], 1e-5), 1e-5)
    with pytest.raises(Refused, match="noise multiplier .* would fit; or raise the budget"):
        run(access(ledger))
    assert kinds(ledger) == ["budget"], "nothing was reserved either"


@each_mechanism
def test_a_budget_bears_what_fits_and_no_more(ledger, run, event):
    ledger.set_budget("digits", 1.3 * accountant.epsilon([event], 1e-5), 1e-5)
    run(access(ledger))
    with pytest.raises(Refused):
        run(access(ledger))
    assert kinds(ledger) == ["budget", "reserve", "open"]


# The votes


def test_each_record_votes_once_in_its_class(ledger):
    """With noise of next to nothing the histogram is the exact one."""
    labels = []

    def ballot(x, y):
        labels.append(x)
        return (x.flatten(1).mean(1) > -0.35).long() + 1

    event = DiscreteHistogram(noise_multiplier=1e-3)
    actual = vote(access(ledger), ballot, event).result
    images = door.read(DIGITS, "train")
    bright = (torch.from_numpy(images.pixels / 127.5 - 1).flatten(1).mean(1) > -0.35).long() + 1
    exact = torch.zeros(10, 4, dtype=torch.int64)
    for label, option in zip(images.labels, bright, strict=True):
        exact[label, option] += 1
    assert actual.shape == (10, 4) and 0 < exact[:, 1].sum() < 200
    assert torch.equal(actual, exact)
    assert sum(len(x) for x in labels) == 200 and labels[0].min() >= -1 and labels[0].max() <= 1


def test_votes_come_in_pieces_of_bounded_size(ledger, monkeypatch):
    monkeypatch.setattr("sfumato.privacy.engine.queries.CHUNK", 30)
    sizes = []
    vote(access(ledger), lambda x, y: sizes.append(len(x)) or vote_zero(x, y))
    assert sizes == [30] * 6 + [20]


def test_one_record_more_changes_one_count_by_one(ledger):
    """The sensitivity that the price is for."""
    source = [seeded_source() for _ in range(2)]
    fewer = PrivateSet(name="digits", source="digits", share=0.1385)
    a = vote(access(ledger), lambda x, y: x[:, 0, 4, 4].gt(0).long(), source=source[0]).result
    b = vote(access(ledger, fewer), lambda x, y: x[:, 0, 4, 4].gt(0).long(), source=source[1]).result
    changed = (a - b).flatten().sort().values
    assert changed[-1] == 1 and not changed[:-1].any()


@pytest.mark.parametrize("noise", [3.0, 1.5])
def test_every_count_carries_noise_of_the_stated_level(ledger, noise):
    options = 4000
    counts = torch.bincount(torch.from_numpy(door.read(DIGITS, "train").labels), minlength=10)
    actual = vote(access(ledger), event=DiscreteHistogram(noise_multiplier=noise), options=options).result.double()
    actual[:, 0] -= counts
    cells, k = 10 * options, torch.arange(-60.0, 61, dtype=torch.float64)
    mass = (-k.square() / (2 * noise**2)).exp()
    variance = float((mass * k.square()).sum() / mass.sum())
    assert float(actual.mean()) == pytest.approx(0, abs=6 * noise / cells**0.5)
    assert float(actual.var()) == pytest.approx(variance, rel=8 * math.sqrt(2 / cells))
    assert actual[:, 0].abs().max() > 0, "the counted cells too"
    assert float(actual[:, 0].square().mean()) < variance * 6, "and with no more than that"


def test_the_noise_is_fresh_in_each_call_whatever_the_seed(ledger):
    actual = []
    for _ in range(2):
        torch.manual_seed(0)
        actual.append(vote(access(ledger)).result)
    assert not torch.equal(*actual)
    same = [vote(access(ledger), source=seeded_source()).result for _ in range(2)]
    assert torch.equal(*same)


# The fine-tuning


def test_the_event_decides_steps_and_rate_and_not_the_settings(ledger):
    sizes, steps = [], []

    def spy(x, y, generator):
        sizes.append(len(x))
        return corrupt(x, y, generator)

    event = SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.25, steps=30)
    tune(access(ledger), spy, event, progress=lambda *reported: steps.append(reported))
    assert steps == [(step, 30) for step in range(1, 31)]
    assert sum(sizes) / 30 == pytest.approx(50, abs=5 * math.sqrt(200 * 0.25 * 0.75 / 30))


def test_the_event_decides_the_rate_of_the_other_processes_too(ledger):
    sizes = []

    def spy(x, y, generator):
        sizes.append(len(x))
        return corrupt(x, y, generator)

    event = SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.25, steps=30)
    with door.spending(access(ledger), [event]) as visit:
        how = {"reservation": visit.hash, "team": Led(30), "device": CPU, "physical_batch": 32}
        fine_tuned_beside(access(ledger), event, network(), spy, TUNING, **how)
    assert kinds(ledger) == ["reserve", "open"], "the first process has paid for both"
    assert len(sizes) == 30 and sum(sizes) / 30 == pytest.approx(25, abs=5 * math.sqrt(100 * 0.25 * 0.75 / 30))


def test_the_noise_of_the_event_reaches_the_weights(ledger, monkeypatch):
    """Noise multiplier times clip over the expected batch of rate times public records."""
    levels = []

    class Watched(torch.optim.Adam):
        def step(self, *args, **kwargs):
            levels.append(torch.cat([p.grad.flatten() for group in self.param_groups for p in group["params"]]))
            return super().step(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "Adam", Watched)
    event = SubsampledGaussian(noise_multiplier=50.0, sample_rate=0.25, steps=40)
    tune(access(ledger), event=event, records=400)
    values = torch.cat(levels)
    expected = 50.0 * TUNING.clip / (0.25 * 400)
    assert float(values.std()) == pytest.approx(expected, rel=6 * math.sqrt(2 / len(values)) + 0.02)


def test_the_weights_differ_from_run_to_run_whatever_the_seed(ledger):
    actual = []
    for _ in range(2):
        torch.manual_seed(0)
        actual.append(tune(access(ledger)).result.condition.rows.weight)
    assert not torch.equal(*actual)
    same = [tune(access(ledger), source=seeded_source()).result for _ in range(2)]
    assert torch.equal(same[0].condition.rows.weight, same[1].condition.rows.weight)


def test_it_trains_on_the_training_part_as_images_between_minus_one_and_one(ledger):
    seen = []

    def spy(x, y, generator):
        seen.append((x, y))
        return corrupt(x, y, generator)

    whole = PrivateSet(name="digits", source="digits")
    tune(access(ledger, whole), spy, SubsampledGaussian(noise_multiplier=2.0, sample_rate=1.0, steps=1), records=1437)
    ((x, y),) = seen
    assert x.shape == (1437, 1, 8, 8) and x.min() == -1 and x.max() == 1
    assert torch.bincount(y).sum() == 1437 and len(load_digits().target) - 1437 == 360


# Numbers without noise


def test_watching_is_a_look_and_the_model_stays_what_it_is(ledger):
    paid = tune(access(ledger), watch=True)
    assert [row.step for row in paid.watched.steps] == [1, 2, 3]
    assert all(0 < row.records < 200 and row.loss > 0 for row in paid.watched.steps)
    (entry,) = paid.watched.entries
    (look,) = [entry for entry in ledger.entries() if entry.kind == "look"]
    assert look.hash == entry and look.body["reason"] == "a test: losses and norms"
    assert paid.watched.entries[entry] == "INTERNAL" and set(paid.entries.values()) == {"DP"}
    assert ledger.total("digits").epsilon == pytest.approx(accountant.epsilon([STEPS], 1e-5))


def test_nothing_is_watched_by_default(ledger):
    assert tune(access(ledger)).watched is None and "look" not in kinds(ledger)


# Noised copies

NOISED = NoisedRecords(noise_multiplier=1.5)


def test_every_record_leaves_once_with_the_stated_noise_and_in_random_order(ledger):
    """Records that sort themselves by brightness: the order in which they come out has nothing to do with it."""
    images = door.read(DIGITS, "train")
    x = torch.from_numpy(images.pixels / 127.5 - 1).float()
    faint = noised_records(access(ledger, relation="replace_one"), NoisedRecords(noise_multiplier=1e-6)).result
    nearest = torch.cdist(faint.flatten(1), x.flatten(1)).argmin(1)
    assert sorted(nearest.tolist()) == list(range(200)) and nearest.tolist() != list(range(200))
    ranks = torch.stack([nearest.float(), torch.arange(200.0)])
    assert abs(float(torch.corrcoef(ranks)[0, 1])) < 6 / 200**0.5
    actual = noised_records(access(ledger, relation="replace_one"), NOISED)
    assert actual.result.shape == (200, 1, 8, 8) and isinstance(actual.result, torch.Tensor), "no labels"
    spread = float((actual.result.double().var(0) - x.double().var(0)).mean())
    assert spread == pytest.approx((NOISED.noise_multiplier * 8) ** 2, rel=6 * math.sqrt(2 / 12_800))
    assert not torch.equal(actual.result, noised_records(access(ledger, relation="replace_one"), NOISED).result)


class Overflowing:
    """A codec that is not finite on dark images, as an autoencoder from elsewhere may be."""

    def encode(self, x):
        return x.where(x.flatten(1).mean(1)[:, None, None, None] > -0.4, math.nan)

    def largest_norm(self, image):
        return 8.0


def test_a_record_that_no_norm_bounds_becomes_zeros_before_the_noise(ledger):
    dark = sum(image.mean() / 127.5 - 1 <= -0.4 for image in door.read(DIGITS, "train").pixels)
    assert 0 < dark < 200
    copies = noised_records(access(ledger, relation="replace_one"), NOISED, codec=Overflowing()).result
    assert copies.isfinite().all()
    seen = sample(access(ledger), lambda x, y, source, counts: x.clone(), codec=Overflowing()).result
    assert seen.isfinite().all() and int((seen == 0).flatten(1).all(1).sum()) == dark


def test_a_noised_copy_is_paid_for_under_an_exchange_and_under_nothing_else(ledger):
    paid = noised_records(access(ledger, relation="replace_one"), NOISED)
    entry = ledger.entries()[0]
    exact = accountant.gdp_epsilon(2 / NOISED.noise_multiplier, 1e-5)
    assert entry.body["both"] == {"add_remove": None, "replace_one": pytest.approx(exact, rel=1e-9)}
    assert paid.entries == {ledger.entries()[0].hash: "DP"} and ledger.total("digits").relation == "replace_one"
    assert ledger.total("digits", relation="add_remove").epsilon == math.inf
    stated = noised_records(access(ledger), NOISED)
    assert list(stated.entries.values()) == ["INTERNAL"]
    assert "how many there are" in ledger.entries()[2].body["why"] and ledger.replay() == []


def test_a_budget_refuses_a_noised_copy_stated_under_add_remove(ledger, monkeypatch):
    monkeypatch.setattr(door, "read", lambda *_: pytest.fail("the door was opened"))
    ledger.set_budget("digits", 1000.0, 1e-5)
    with pytest.raises(Refused, match="no certificate .*how many there are"):
        noised_records(access(ledger), NOISED)


def test_an_injected_source_and_a_comparison_keep_noised_copies_inside(ledger):
    same = [noised_records(access(ledger, relation="replace_one"), NOISED, source=seeded_source(3)) for _ in range(2)]
    assert torch.equal(same[0].result, same[1].result) and set(same[0].entries.values()) == {"INTERNAL"}
    compared = noised_records(access(ledger, relation="replace_one", comparison=True), NOISED)
    assert ledger.entries()[-1].kind == "look" and set(compared.entries.values()) == {"INTERNAL"}


# Drawing that pays


def test_a_drawing_sees_the_records_as_the_denoiser_does_and_the_systems_noise(ledger):
    seen = []

    def draw(x, y, source, counts):
        seen.append((tuple(x.shape), len(y), source.words(4).tolist()))
        return ImageSet(to_pixels(x[:2]), y[:2].numpy(), tuple("0123456789"))

    actual = [sample(access(ledger, images=2), draw).result for _ in range(2)]
    assert seen[0][:2] == ((200, 1, 8, 8), 200) and seen[0][2] != seen[1][2], "a fresh seed each time"
    assert len(actual[0]) == 2 and ledger.entries()[0].body["images"] == 2


# Training without protection


def plain(access, steps=3, sample_rate=0.1, **others):
    settings = Training(steps=steps, batch=20, learning_rate=1e-2, ema_decay=0.0)
    leak = Uncertified(reason="one step leaks")
    choice = {"sample_rate": sample_rate, "device": CPU} | others
    return unprotected(access, leak, network(), unlabelled_losses(SCHEDULE, 15), settings, **choice)


def test_training_without_protection_is_written_as_such_and_internal(ledger):
    paid = plain(access(ledger))
    reserved = ledger.entries()[0]
    assert kinds(ledger) == ["reserve", "open"] and reserved.body["why"] == "one step leaks"
    assert paid.entries == {ledger.entries()[0].hash: "INTERNAL"} and ledger.total("digits").epsilon == math.inf
    moved = paid.result.state_dict()
    assert any(not torch.equal(value, moved[name]) for name, value in network().state_dict().items())
    assert not any(p.requires_grad for p in paid.result.parameters())


def test_training_without_protection_outlives_empty_batches(ledger):
    paid = plain(access(ledger), sample_rate=1e-9)
    assert all(p.isfinite().all() for p in paid.result.parameters())


def test_training_without_protection_sees_large_times_and_no_labels(ledger, monkeypatch):
    seen = []

    def spy(schedule, x, y, **others):
        seen.append((y, others["low"], others["high"]))
        return denoising_examples(schedule, x, y, **others)

    monkeypatch.setattr("sfumato.training.denoising_examples", spy)
    plain(access(ledger), steps=20, sample_rate=0.25)
    assert all((low, high) == (15, 20) and y.eq(-1).all() for y, low, high in seen)
    drawn = sum(len(y) for y, _, _ in seen) / 20
    assert drawn == pytest.approx(50, abs=6 * math.sqrt(200 * 0.25 * 0.75 / 20)), "Poisson batches"


# The number of records of each class


def test_counts_are_those_of_the_classes_with_noise_of_the_events_size(ledger):
    with door.looking(access(ledger), "train") as visit:
        truth = torch.bincount(torch.as_tensor(visit.images.labels), minlength=10).double()
    actual = [count(access(ledger)).result for _ in range(60)]
    assert {each.dtype for each in actual} == {torch.int64}
    errors = torch.stack(actual) - truth
    assert errors.mean().abs() < 5 * 4 / math.sqrt(600)
    assert errors.std() == pytest.approx(4.0, rel=0.15), "of the whole table: 600 draws"
    assert count(access(ledger, private=DIGITS)).entries.popitem()[1] == "DP"


def without_noise(images, monkeypatch):
    """The counts of a set, by the mechanism itself."""
    with monkeypatch.context() as patch:
        patch.setattr(
            mechanisms,
            "spending",
            lambda *_, **__: contextlib.nullcontext(SimpleNamespace(images=images, entries={}, payment=None)),
        )
        patch.setattr(Source, "discrete_gaussian", lambda source, shape, sigma: torch.zeros(*shape, dtype=torch.int64))
        return noisy_counts(None, COUNT, classes=3).result.double()


@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
def test_no_neighbour_moves_the_counts_farther_than_the_price_says(grouped, monkeypatch):
    """Every set of a few records, against every set with one unit more and with one exchanged."""
    units = [[label] for label in range(3)] if not grouped else [[0], [1], [0, 0, 1], [2, 1], [2, 2, 2, 2]]

    def counts(chosen):
        labels = np.array([label for unit in chosen for label in units[unit]], np.int64)
        groups = np.array([place for place, unit in enumerate(chosen) for _ in units[unit]], np.int64)
        pixels = np.zeros((len(labels), 1, 2, 2), np.uint8)
        return without_noise(ImageSet(pixels, labels, ("a", "b", "c"), groups if grouped else None), monkeypatch)

    added, exchanged = [], []
    for base in ([], [0], [0, 1, 1]):
        with_one = [counts([*base, unit]) for unit in range(len(units))]
        added += [float((more - counts(base)).norm()) for more in with_one]
        exchanged += [float((one - other).norm()) for one in with_one for other in with_one]
    assert max(added) == pytest.approx(1.0) and max(exchanged) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("constant", [150, 200, 260])
def test_as_many_noised_records_leave_as_are_publicly_known_whatever_is_there(ledger, constant):
    """Exchanged for a record that its hash holds out, one would else be missed in the number, which no exchange is priced for."""
    faint, requested = NoisedRecords(noise_multiplier=1e-6), access(ledger, relation="replace_one")
    actual = noised_records(requested, faint, records=constant).result.flatten(1)
    there = torch.from_numpy(door.read(DIGITS, "train").pixels).float().flatten(1) / 127.5 - 1
    far = torch.cdist(actual, torch.cat([there, torch.zeros(1, 64)]))
    assert len(actual) == constant and far.min(1).values.max() < 0.1
    assert (far.argmin(1) == len(there)).sum() == max(0, constant - len(there)), "grey images where records lack"
