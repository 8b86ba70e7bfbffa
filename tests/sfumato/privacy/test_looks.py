"""Judging: two looks that are written down, everything INTERNAL, one judge for all sets."""

import itertools

import numpy as np
import pytest
import torch

from sfumato.evaluation import scores
from sfumato.images import ImageSet, to_unit
from sfumato.privacy import door
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.looks import REAL, judged, tensors

DIGITS = PrivateSet(name="digits", source="digits", limit=50)


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z") as opened:
        yield opened


def test_judging_is_two_looks_and_one_judge(ledger, monkeypatch):
    trained, asked = [], []

    def train_judge(x, y, **others):
        trained.append((x, y))
        return "the judge"

    def judge(x, y, *, judge_model, real_train, real_test, **others):
        asked.append((x, judge_model, len(real_train), len(real_test)))
        return f"row of {len(x)}"

    monkeypatch.setattr(scores, "train_judge", train_judge)
    monkeypatch.setattr(scores, "judge", judge)
    monkeypatch.setattr(scores, "reference", lambda *, judge_model, **_: f"real by {judge_model}")
    access = Access(
        ledger=ledger, private=DIGITS, run="r", stage="evaluation", purpose="judge", code_version="0",
        relation="add_remove", delta=1e-5,
    )  # fmt: skip
    sets = {"a": (torch.zeros(3, 1, 8, 8), torch.zeros(3)), "b": (torch.zeros(5, 1, 8, 8), torch.zeros(5))}
    rows, entries = judged(access, sets, classes=10, seed=0, device=torch.device("cpu"))
    assert rows == {"a": "row of 3", "b": "row of 5", REAL: "real by the judge"}
    assert [(model, train, test) for _, model, train, test in asked] == [("the judge", 50, 360)] * 2
    ((x, y),) = trained
    assert torch.equal(x, to_unit(door.read(DIGITS, "train").pixels)) and len(y) == 50
    assert entries == {1: "INTERNAL", 2: "INTERNAL"}
    assert [entry.kind for entry in ledger.entries()] == ["look", "look"]
    reasons = [entry.body["reason"] for entry in ledger.entries()]
    assert all(reason.startswith("judge: ") for reason in reasons) and len(set(reasons)) == 2
    assert ledger.total("digits").epsilon == 0


@pytest.mark.parametrize(("count", "expected"), [(100, 12), (12, 12), (4, 4), (2, 2), (1, 1)])
def test_a_part_of_the_images_is_spread_over_the_set(count, expected):
    images = ImageSet(np.arange(12, dtype=np.uint8).reshape(12, 1, 1, 1) * 20, np.arange(12) // 4, tuple("abc"))
    x, y = tensors(images, count)
    assert len(x) == len(y) == expected and len(x.unique()) == expected
    places = ((x.flatten() + 1) * 127.5 / 20).round().long()
    assert y.tolist() == (places // 4).tolist(), "each image keeps its label"
    if count == 4:
        assert set(y.tolist()) == {0, 1, 2}
