"""Recomputed activations: the same sums, and less that is held between forward and backward."""

import pytest
import torch

from sfumato.diffusion.objective import record_losses
from sfumato.networks.checkpointing import checkpoint_blocks, is_checkpointed
from sfumato.privacy.engine import clipping
from sfumato.privacy.engine.clipping import clipped_sum
from tests.oracle import by, distance, norm
from tests.sfumato.privacy.engine.test_clipping import ALL, awake, digits


def held(model, examples):
    """Bytes that autograd keeps for the backward pass."""
    retained = {}

    def pack(part):
        retained[part.untyped_storage().data_ptr()] = part
        return part

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda part: part):
        record_losses(model, examples).sum()
    return sum(part.untyped_storage().nbytes() for part in retained.values())


@pytest.mark.parametrize("kind", ["unet", "dit"])
@pytest.mark.parametrize("way", ["grouped", "gram"])
@pytest.mark.parametrize("groups", [ALL, ("rows", "film")], ids=str)
def test_the_clipped_sum_stays_the_same(kind, groups, way, monkeypatch):
    """By the folded engine: the slow one, record by record, would be right as well."""
    monkeypatch.setattr(clipping, "gradients_of_records", lambda *_: pytest.fail("record by record"))
    model, trainable = awake(kind, groups)
    examples = digits(5, 2)
    settings = {"clip": 0.05, "chunk": 3, "choose": by(way)}
    expected = clipped_sum(model, trainable, examples, **settings)
    result = clipped_sum(checkpoint_blocks(model, True), trainable, examples, **settings)
    assert float(norm(expected)) > 0 and distance(result, expected) < 1e-5


def test_less_is_held():
    model, _ = awake("unet")
    examples = digits(8, 2)
    whole = held(model, examples)
    assert held(checkpoint_blocks(model, True), examples) < 0.5 * whole


def test_the_switch_is_off_by_default_and_where_there_are_no_blocks():
    model, _ = awake("unet")
    assert not is_checkpointed(model)
    assert is_checkpointed(checkpoint_blocks(model, True))
    assert not is_checkpointed(checkpoint_blocks(model, False))
    assert not is_checkpointed(checkpoint_blocks(awake("mlp")[0], True))
