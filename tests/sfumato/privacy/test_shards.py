"""Shards: a record's place is its own affair, and a member knows its own shard alone."""

import itertools

import numpy as np
import pytest
import torch

from sfumato import sources
from sfumato.config import Network, Pretraining, Schedule
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.networks.build import build
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.shards import check_shards, dealt, shard_trained
from sfumato.training import denoiser_training

DIGITS = sources.load("digits", part="train")
CPU = torch.device("cpu")
LITTLE = Pretraining(steps=3, batch=16, warm_up=1, ema_decay=0.5)


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z") as opened:
        yield opened


def access(ledger, limit):
    private = PrivateSet(name="digits", source="digits", limit=limit)
    terms = {"run": "run-1", "stage": "training", "purpose": "member", "code_version": "0"}
    return Access(ledger=ledger, private=private, relation="add_remove", delta=1e-5, **terms)


def member(ledger, limit, shard, key="two", shards=2):
    model = build(Network(kind="mlp", width=16, blocks=1, condition=8), (1, 8, 8), 10, seed=0)
    train = denoiser_training(model, make_schedule(Schedule(timesteps=20)), LITTLE, seed=0)
    return shard_trained(access(ledger, limit), train, shard=shard, shards=shards, key=key, device=CPU)


def test_a_record_never_changes_shard_when_others_come_or_go():
    everyone = dealt(DIGITS, 20, "shards")
    assert everyone.shape == (len(DIGITS),) and set(everyone) == set(range(20))
    rng = np.random.default_rng(0)
    for kept in (rng.permutation(len(DIGITS)), np.flatnonzero(rng.random(len(DIGITS)) < 0.3), np.array([700])):
        assert np.array_equal(dealt(DIGITS.subset(kept), 20, "shards"), everyone[kept])


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
    with Ledger(f"sqlite:///{tmp_path}/other.db", lambda: "2026-01-01T00:00:00Z") as other:
        models = {(n, shard): member(book, n, shard)[0] for n, book in ((60, ledger), (59, other)) for shard in (0, 1)}
    same = {
        shard: all(torch.equal(a, b) for a, b in zip(models[60, shard].parameters(), models[59, shard].parameters(), strict=True))
        for shard in (0, 1)
    }  # fmt: skip
    assert same == {place: False, 1 - place: True}


def test_a_member_costs_nothing_and_is_internal(ledger):
    trained, entries = member(ledger, 60, 0)
    assert [entry.kind for entry in ledger.entries()] == ["look"] and set(entries.values()) == {"INTERNAL"}
    assert ledger.total("digits", 1e-5, "add_remove").epsilon == 0
    assert not any(parameter.requires_grad for parameter in trained.parameters())


def test_a_shard_that_lacks_a_class_is_refused_before_anything_is_trained(ledger):
    for ask in (lambda: check_shards(access(ledger, 60), 5, "two"), lambda: member(ledger, 60, 0, shards=30)):
        with pytest.raises(
            BadInput, match=r"shard \d+ of \d+ of 'digits' holds no record of the class '\d': use fewer members"
        ):
            ask()
    entries = check_shards(access(ledger, 60), 2, "two")
    assert set(entries.values()) == {"INTERNAL"}
