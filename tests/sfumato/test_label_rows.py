"""Codes differ in half of their places, and a network learns public images with rows that no private class has."""

import itertools
import math

import pytest
import torch

from sfumato import label_rows
from sfumato.config import Network, Pretraining, Schedule
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.label_rows import label_codes, start_learnt, with_rows
from sfumato.methods.plan import Blueprint, OwnStart

SMALL = Network(kind="mlp", width=16, blocks=1, condition=8)


@pytest.mark.parametrize(("classes", "shape"), [(10, (1, 1, 8)), (16, (1, 1, 8)), (10, (3, 1, 4)), (64, (1, 2, 28))])
def test_any_two_labels_differ_in_half_of_a_code_or_more(classes, shape):
    codes = label_codes(classes, shape)
    assert codes.shape == (classes, *shape) and set(codes.unique().tolist()) <= {-1.0, 1.0}
    flat, used = codes.flatten(1), 2 ** int(math.log2(math.prod(shape)))
    assert all((one != other).sum() >= used / 2 for one, other in itertools.combinations(flat, 2))
    assert torch.equal(codes[:3], label_codes(3, shape)), "a label's code is the same whatever others there are"


def test_too_many_classes_for_a_row_are_refused_with_the_way_out():
    with pytest.raises(
        BadInput, match=r"label_rows=1 of 4 numbers and 1 channel.* hold 8 codes for 10 classes: use more rows"
    ):
        label_codes(10, (1, 1, 4))
    assert label_codes(10, (1, 2, 4)).shape == (10, 1, 2, 4)


def test_rows_stand_below_their_images():
    x, codes = torch.zeros(3, 2, 4, 8), label_codes(5, (2, 1, 8))
    u = with_rows(x, torch.tensor([4, 0, 4]), codes)
    assert u.shape == (3, 2, 5, 8) and torch.equal(u[:, :, :4], x)
    assert torch.equal(u[:, :, 4:], codes[[4, 0, 4]])


def test_a_start_sees_the_codes_after_those_of_the_private_classes_and_no_class(monkeypatch):
    blueprint = Blueprint(network=SMALL, shape=(1, 6, 8), classes=1)
    start = OwnStart(blueprint=blueprint, training=Pretraining(steps=3, batch=4), rows=2, before=4, classes=3)
    seen, learn = [], label_rows.pretrain
    monkeypatch.setattr(label_rows, "pretrain", lambda *given, **others: seen.append(given) or learn(*given, **others))
    x, y = torch.rand(12, 1, 4, 8), torch.arange(12) % 3
    one, losses = start_learnt(start, make_schedule(Schedule()), x, y, seed=1)
    _, _, u, labels, _ = seen[0]
    assert torch.equal(u[:, :, :4], x) and torch.equal(u[:, :, 4:], label_codes(7, (1, 2, 8))[4:][y])
    assert (labels == NO_CLASS).all() and len(losses) == 3
    two, _ = start_learnt(start, make_schedule(Schedule()), x, y, seed=1)
    other, _ = start_learnt(start, make_schedule(Schedule()), x, y, seed=2)
    assert torch.equal(one.output.weight, two.output.weight) and not torch.equal(one.output.weight, other.output.weight)
