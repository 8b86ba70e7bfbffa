"""Shards: each record is dealt by itself, and what learns from one shard stays inside."""

import itertools

import numpy as np
import pytest
import torch

from sfumato import sources
from sfumato.config import Network, Pretraining, Schedule
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.images import joined, to_unit
from sfumato.networks.build import build
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.shards import dealt, shard_trained
from sfumato.training import denoiser_training

TRAINING = Pretraining(steps=3, batch=8, warm_up=1)


@pytest.fixture(scope="module")
def digits():
    return sources.load("digits", part="train")


@pytest.fixture
def access(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z") as ledger:
        yield Access(
            ledger=ledger, private=PrivateSet(name="digits", source="digits"), run="run-1", stage="training",
            purpose="a member", code_version="0", relation="add_remove", delta=1e-5,
        )  # fmt: skip


def trained(access, shards, shard=0, train=None):
    model = build(Network(kind="mlp", width=8, blocks=1, condition=8), (1, 8, 8), 10)
    train = train or denoiser_training(model, make_schedule(Schedule(timesteps=20)), TRAINING, seed=0)
    return shard_trained(access, train, shard=shard, shards=shards, key="k", device=torch.device("cpu"))


def test_a_record_never_changes_shard_when_others_come_or_go(digits):
    all_of_them = dealt(digits, 7, "k")
    some = np.arange(0, len(digits), 3)
    assert (dealt(digits.subset(some), 7, "k") == all_of_them[some]).all()
    twice = joined(digits.subset(slice(20)), digits)
    assert (dealt(twice, 7, "k")[:20] == all_of_them[:20]).all(), "equal records stand together"


def test_shards_are_of_even_size_and_independent_of_the_split_and_of_other_keys(digits):
    found, other = dealt(digits, 5, "k"), dealt(digits, 5, "another")
    counts, expected = np.bincount(found, minlength=5), len(digits) / 5
    assert len(counts) == 5 and abs(counts - expected).max() < 5 * expected**0.5
    agreement = (found == other).mean()
    assert agreement == pytest.approx(1 / 5, abs=5 * (0.16 / len(digits)) ** 0.5)


def test_a_member_learns_its_own_shard_alone(access, digits):
    (x, y), _ = trained(access, 3, shard=1, train=lambda x, y: (x, y))
    own = digits.subset(dealt(digits, 3, "k") == 1)
    assert torch.equal(x, to_unit(own.pixels)) and y.tolist() == own.labels.tolist()


def test_a_member_is_internal_and_costs_nothing(access):
    model, entries = trained(access, 3)
    assert list(entries.values()) == ["INTERNAL"] and [e.kind for e in access.ledger.entries()] == ["look"]
    assert not any(p.requires_grad for p in model.parameters()) and access.ledger.total("digits").epsilon == 0


def test_a_shard_without_some_class_is_refused(access):
    with pytest.raises(
        BadInput, match=r"shard 0 of 900 of 'digits' holds no record of the class '\d': use fewer members"
    ):
        trained(access, 900)
