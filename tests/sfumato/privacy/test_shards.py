"""Shards: a record's place is its own affair, and a member knows its own shard alone."""

import itertools

import numpy as np
import pytest
import torch

from sfumato import sources
from sfumato.config import Network, Pretraining, Schedule
from sfumato.diffusion.schedule import make_schedule
from sfumato.methods.dp_ensemble import Method
from sfumato.networks.build import build
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.shards import dealt, shard_trained
from sfumato.training import denoiser_training
from tests.spends import KEYS

DIGITS = sources.load("digits", sources.Reading(part="train"))
CPU = torch.device("cpu")
LITTLE = Pretraining(steps=3, batch=16, warm_up=1, ema_decay=0.5)


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


def access(ledger, source):
    private = PrivateSet(name="digits", source=str(source), held_out=0.001)
    terms = {"run": "run-1", "stage": "training", "purpose": "member", "code_version": "0"}
    return Access(ledger=ledger, private=private, relation="add_remove", delta=1e-5, **terms)


def member(ledger, source, shard, key="two", shards=2):
    model = build(Network(kind="mlp", width=16, blocks=1, condition=8), (1, 8, 8), 10, seed=0)
    train = denoiser_training(model, make_schedule(Schedule(timesteps=20)), LITTLE, seed=0)
    return shard_trained(access(ledger, source), train, shard=shard, shards=shards, key=key, device=CPU)


def first(tmp_path, count):
    """The first so many digits as a set of their own."""
    path, some = tmp_path / f"{count}.npz", DIGITS.subset(slice(count))
    np.savez(path, images=some.pixels[:, 0], labels=some.labels, classes=np.array(some.classes))
    return path


def same(one, other):
    """Whether two models are the same to the last bit."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_record_never_changes_shard_when_others_come_or_go():
    everyone = dealt(DIGITS, 20, "shards")
    assert everyone.shape == (len(DIGITS),) and set(everyone) == set(range(20))
    rng = np.random.default_rng(0)
    for retained in (rng.permutation(len(DIGITS)), np.flatnonzero(rng.random(len(DIGITS)) < 0.3), np.array([700])):
        assert np.array_equal(dealt(DIGITS.subset(retained), 20, "shards"), everyone[retained])


def test_shards_are_about_equally_large_and_another_key_deals_anew():
    sizes = np.bincount(dealt(DIGITS, 20, "shards"))
    expected = len(DIGITS) / 20
    assert ((sizes - expected) ** 2 / expected).sum() < 45  # chi squared with 19 degrees of freedom, p = .001
    assert (dealt(DIGITS, 20, "shards") != dealt(DIGITS, 20, "other")).mean() > 0.9
    twice = DIGITS.subset(np.array([3, 3, 3]))
    assert len(set(dealt(twice, 20, "shards"))) == 1, "equal records stand together"


def test_a_member_depends_on_its_own_shard_alone(ledger, tmp_path):
    """One record less: its member changes, the other one is the same to the last bit."""
    place = int(dealt(DIGITS.subset(slice(60)), 2, "two")[59])
    with Ledger(f"sqlite:///{tmp_path}/other.db", lambda: "2026-01-01T00:00:00Z", KEYS) as other:
        sets = {n: first(tmp_path, n) for n in (60, 59)}
        models = {
            (n, shard): member(book, sets[n], shard)[0] for n, book in ((60, ledger), (59, other)) for shard in (0, 1)
        }
    assert {shard: same(models[60, shard], models[59, shard]) for shard in (0, 1)} == {place: False, 1 - place: True}


def test_a_member_costs_nothing_and_is_internal(ledger):
    trained, entries = member(ledger, "digits", 0)
    assert [entry.kind for entry in ledger.entries()] == ["look"] and set(entries.values()) == {"INTERNAL"}
    assert ledger.total("digits", 1e-5, "add_remove").epsilon == 0
    assert not any(parameter.requires_grad for parameter in trained.parameters())


def test_no_shard_is_refused_for_what_it_holds(ledger, tmp_path):
    """A run that exists only where every shard holds every class tells of the records that decide it, at any price."""
    few = first(tmp_path, 12)
    held = dealt(DIGITS.subset(slice(12)), 30, "two")
    empty = min(set(range(30)) - set(held))
    models = {shard: member(ledger, few, shard, shards=30)[0] for shard in (empty, int(held[0]))}
    untrained = build(Network(kind="mlp", width=16, blocks=1, condition=8), (1, 8, 8), 10, seed=0)
    assert same(models[empty], untrained), "an empty shard leaves the public model as it is"
    assert not same(models[int(held[0])], untrained), "a shard of one record trains on that one"
    assert not any(parameter.requires_grad for parameter in models[empty].parameters())


def test_with_the_shipped_key_the_run_no_longer_hangs_on_three_digits():
    """Attack of the survey: of 1,437 digits three were the only ones of their class in their shard, and so decided whether
    the run was refused. What a member is given is all that a record changes."""
    where = dealt(DIGITS, Method().members, Method().key)
    cells = np.zeros((Method().members, 10), int)
    np.add.at(cells, (where, DIGITS.labels), 1)
    assert (cells == 1).sum() == 3 and cells.min() == 1
