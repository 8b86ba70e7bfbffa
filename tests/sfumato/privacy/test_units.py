"""Units of several records: a whole person moves what a mechanism sees by no more than one record would."""

import copy

import numpy as np
import pytest
import torch

from sfumato.config import FineTuning, Schedule
from sfumato.diffusion.objective import denoising_examples, record_losses
from sfumato.diffusion.schedule import make_schedule
from sfumato.images import ImageSet, joined, to_unit
from sfumato.networks.build import build
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import DiscreteHistogram, NoisedRecords, SubsampledGaussian, Uncertified
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import train_privately, trainable_parameters
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.shards import dealt
from sfumato.privacy.units import every_few, one_of_each, single_records, unit_examples, units_of
from sfumato.settings import resolve
from tests.examples import picture_set, write_classes
from tests.seeded import seeded_source
from tests.spends import KEYS, clock

SIZES = (1, 2, 5, 12)
SCHEDULE = make_schedule(Schedule(timesteps=20))


def grouped(sizes=SIZES, side=4) -> ImageSet:
    """Pictures of two classes whose groups have these sizes, mixed; groups have large and negative numbers."""
    numbers = np.repeat(np.array([7, -(2**63), 2**62, 0, -5, 11], np.int64)[: len(sizes)], sizes)
    order = np.random.default_rng(1).permutation(len(numbers))
    actual = picture_set(len(numbers), side=side)
    return ImageSet(actual.pixels, actual.labels, actual.classes, numbers[order])


def test_units_hold_the_records_of_each_group():
    images = grouped()
    units = units_of(images, each=3)
    actual = {
        frozenset(units.order[first : first + size].tolist())
        for first, size in zip(units.first.tolist(), units.size.tolist(), strict=True)
    }
    assert actual == {
        frozenset(np.flatnonzero(images.groups == group).tolist()) for group in set(images.groups.tolist())
    }
    assert len(units) == len(SIZES) and sorted(units.size.tolist()) == sorted(SIZES)


def test_picked_records_are_of_the_unit_spread_evenly_and_equally_likely():
    images, source = grouped(), seeded_source()
    units = units_of(images, each=4)
    count = torch.zeros(len(images))
    for _ in range(3000):
        picked = units.pick(torch.arange(len(units)), source)
        assert picked.shape == (len(units), 4)
        for unit, row in enumerate(picked):
            own = units.order[units.first[unit] : units.first[unit] + units.size[unit]]
            assert set(row.tolist()) <= set(own.tolist())
            assert len(set(row.tolist())) == min(4, int(units.size[unit]))
        count += torch.bincount(picked.flatten(), minlength=len(images))
    expected = 3000 * 4 / torch.tensor([float((images.groups == group).sum()) for group in images.groups])
    assert ((count - expected).abs() <= 6 * expected.sqrt()).all()
    assert units.pick(torch.zeros(0, dtype=torch.long), source).shape == (0, 4)


def test_single_records_draw_nothing():
    assert single_records(5).pick(torch.tensor([3, 1]), None).tolist() == [[3], [1]]
    images = picture_set(5)
    assert one_of_each(images, None) is images


@pytest.fixture
def model():
    settings = resolve("rapid").network.model_copy(update={"width": 16, "condition": 8})
    actual = build(settings, (1, 4, 4), 2, seed=0)
    with torch.no_grad():
        for number, parameter in enumerate(actual.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return actual


def corrupt(x, y, generator):
    return denoising_examples(SCHEDULE, x, y, draws=2, low=1, high=20, generator=generator)


def tensors(images):
    return to_unit(images.pixels), torch.as_tensor(images.labels)


@pytest.mark.parametrize("rule", ["flat", "per_group", "automatic"])
def test_the_gradient_of_a_unit_is_that_of_the_mean_over_its_picked_records(model, rule):
    images, clip = grouped(), 0.3
    units = units_of(images, each=3)
    source = seeded_source(3)
    examples = unit_examples(units, torch.arange(len(units)), *tensors(images), corrupt, source, source.generator())
    assert examples.x_t.shape[:2] == (len(SIZES), 6) and len(set(examples.y[-1].tolist())) >= 1
    assert any(len(set(row.tolist())) == 2 for row in examples.y), "a unit may be of several classes"
    trainable = trainable_parameters(model, ("rows", "film", "time", "rest"))
    total = clipped_sum(model, trainable, examples, clip=clip, chunk=2, rule=rule)
    slow = {name: torch.zeros_like(p) for name, p in trainable.items()}
    for unit in range(len(units)):
        loss = record_losses(model, examples.map(lambda field, at=unit: field[at : at + 1])).sum()
        own = dict(zip(trainable, torch.autograd.grad(loss, list(trainable.values())), strict=True))
        alone = clipped_sum(
            model, trainable, examples.map(lambda field, at=unit: field[at : at + 1]), clip=clip, chunk=1, rule=rule
        )
        norm = torch.stack([value.square().sum() for value in alone.values()]).sum().sqrt()
        assert norm <= clip * (1 + 1e-5)
        if rule == "flat":
            length = torch.stack([value.square().sum() for value in own.values()]).sum().sqrt()
            for name in slow:
                slow[name] += own[name] * min(1.0, clip / float(length))
    if rule == "flat":
        for name, value in slow.items():
            torch.testing.assert_close(total[name], value, rtol=1e-4, atol=1e-6)


def test_without_a_person_the_clipped_sum_moves_by_the_clip_at_most(model):
    images, clip = grouped((3, 4, 9)), 0.05
    index = torch.arange(3)
    units = units_of(images, each=4)
    source = seeded_source(3)
    examples = unit_examples(units, index, *tensors(images), corrupt, source, source.generator())
    trainable = trainable_parameters(model, ("rows", "film"))
    whole = clipped_sum(model, trainable, examples, clip=clip, chunk=8)
    for gone in range(3):
        rest = examples.map(lambda field, gone=gone: field[index != gone])
        less = clipped_sum(model, trainable, rest, clip=clip, chunk=8)
        moved = torch.stack([(whole[name] - less[name]).square().sum() for name in whole]).sum().sqrt()
        assert 0 < moved <= clip * (1 + 1e-4)


def test_training_samples_whole_units(model):
    images, seen = grouped(), []

    def spy(x, y, generator):
        seen.append(x)
        return corrupt(x, y, generator)

    settings = FineTuning(steps=60, sample_rate=0.5, trainable=("rows",), clip=0.1)
    x, y = tensors(images)
    watched = []
    train_privately(
        copy.deepcopy(model), x, y, spy, settings, noise_multiplier=1.0, source=seeded_source(1), pairs=torch.Generator(),
        expected_batch=2.0, physical_batch=2, watch=watched.append, units=units_of(images, each=3),
    )  # fmt: skip
    assert all(len(batch) == 3 * step.records for batch, step in zip(seen, watched, strict=True))
    drawn = [step.records for step in watched]
    assert max(drawn) <= len(SIZES) and min(drawn) < 2 and abs(np.mean(drawn) - 2) < 6 / np.sqrt(60)


def test_several_processes_share_the_persons_out():
    images = grouped()
    parts = [every_few(images, slice(rank, None, 2)) for rank in range(2)]
    assert sum(map(len, parts)) == len(images)
    assert sum(len(units_of(part, each=2)) for part in parts) == len(SIZES)
    assert not set(parts[0].groups) & set(parts[1].groups)
    assert len(every_few(picture_set(5), slice(1, None, 2))) == 2


def test_one_record_speaks_for_a_person_each_as_likely():
    images, source, spoken = grouped(), seeded_source(), []
    for _ in range(400):
        few = one_of_each(images, source)
        assert sorted(few.groups.tolist()) == sorted(set(images.groups.tolist()))
        spoken.append(few.pixels[few.groups == -5] if -5 in few.groups else few.pixels[:1])
    own = images.subset(images.groups == 0)
    chosen = [
        int(np.flatnonzero((own.pixels == one_of_each(own, source).pixels).all((1, 2, 3)))[0]) for _ in range(1200)
    ]
    assert np.bincount(chosen, minlength=len(own)).min() > 50, "a hundred each are expected of twelve"


def test_a_group_lies_in_one_shard_wherever_others_lie():
    images = grouped()
    where = dealt(images, 3, "shards")
    assert all(len(set(where[images.groups == group].tolist())) == 1 for group in images.groups)
    some = images.groups != images.groups[0]
    assert np.array_equal(dealt(images.subset(some), 3, "shards"), where[some])
    assert not np.array_equal(dealt(images, 3, "another"), where)


def test_canaries_become_groups_of_their_own():
    images, canaries = grouped((2, 3)), picture_set(4, side=4)
    both = joined(images, canaries)
    assert len(set(both.groups.tolist())) == 6 and len(units_of(both, each=2)) == 6
    few = ImageSet(images.pixels, images.labels, images.classes, np.arange(5, dtype=np.int64))
    assert len(set(joined(few, canaries).groups.tolist())) == 9
    own = ImageSet(canaries.pixels, canaries.labels, canaries.classes, np.array([4, 4, 0, 0], np.int64))
    groups = joined(few, own).groups.tolist()
    assert len(set(groups)) == 7 and groups[5] == groups[6] != groups[7] == groups[8], (
        "none of the five is joined by them"
    )
    with pytest.raises(ValueError, match="cannot join"):
        joined(canaries, own)


# --- through the door -------------------------------------------------------------------------------------------------


@pytest.fixture
def requested(tmp_path):
    """An access to forty pictures by five persons, all of whom are trained on."""
    root = write_classes(tmp_path / "scans", {"ill": 20, "well": 20}, 4, 4)
    for label in ("ill", "well"):
        for number in range(20):
            (root / label / f"{number:03}.png").rename(root / label / f"p{number // 4}_{number}.png")
    secret = PrivateSet(name="scans", source=str(root), group="prefix", unit="person", held_out=0.01)
    terms = {"run": "run-1", "stage": "a stage", "purpose": "a test", "code_version": "1"}
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", clock, KEYS) as ledger:
        yield Access(ledger=ledger, private=secret, relation="add_remove", delta=1e-3, **terms)


CPU = torch.device("cpu")


def votes(requested, noise=1e-3):
    """The histogram of votes for how bright a picture is; almost no noise."""
    paid = mechanisms.noisy_votes(
        requested,
        DiscreteHistogram(noise_multiplier=noise),
        lambda x, y: (x.flatten(1).mean(1) > 0).long(),
        classes=2,
        options=2,
        device=CPU,
    )
    return paid.result


def test_votes_of_a_person_sum_to_one(requested, tmp_path):
    whole = votes(requested)
    assert int(whole.sum()) == 5 and whole.dtype == torch.int64
    for path in (tmp_path / "scans").rglob("p1_*.png"):
        path.unlink()
    requested.ledger.new_version("scans", _digest(requested), run="run-1", code_version="1")
    moved = whole - votes(requested)
    assert int(moved.sum()) == 1, "others may speak through another record now, which costs nothing"


def _digest(requested):
    from sfumato.privacy.door import identify

    return identify(requested.private)


def test_the_ledger_says_what_a_price_protects(requested):
    votes(requested, 2.0)
    assert [entry.body.get("unit") for entry in requested.ledger.entries() if entry.kind == "reserve"] == ["person"]


def test_a_mechanism_for_single_records_refuses_groups(requested):
    with pytest.raises(ValueError, match="knows no groups"):
        mechanisms.noised_records(requested, NoisedRecords(noise_multiplier=1.0))
    with pytest.raises(ValueError, match="knows no groups"):
        mechanisms.unprotected(
            requested, Uncertified(reason="a test"), torch.nn.Linear(1, 1), lambda *_: None, resolve("rapid").pretraining,
            sample_rate=0.5, device=CPU,
        )  # fmt: skip


def test_groups_without_a_unit_are_no_set(requested):
    from dataclasses import replace

    nameless = replace(requested, private=requested.private.model_copy(update={"unit": ""}))
    with pytest.raises(ValueError, match="does not fit"):
        votes(nameless)


def test_fine_tuning_pays_for_persons(requested, model):
    event = SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.5, steps=4)
    settings = FineTuning(trainable=("rows",), images_per_group=3)
    paid = mechanisms.fine_tuned(
        requested, event, model, corrupt, settings, records=5, device=CPU, physical_batch=4, watch=True
    )
    assert set(paid.entries.values()) == {"DP"} and max(step.records for step in paid.watched.steps) <= 5
