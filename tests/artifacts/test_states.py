"""The state of a training comes back whole or not at all, and goes when it is done."""

import pytest
import torch

from artifacts.states import drop_state, load_state, save_state
from sfumato.resuming import TrainingState


def state(step=3):
    return TrainingState(step, {"weight/a": torch.full((2, 3), float(step))}, {"4": "DP", "9": "INTERNAL"}, "abc")


def test_the_last_state_comes_back(tmp_path):
    folder = tmp_path / "states" / "key"
    assert load_state(folder) is None
    save_state(folder, state(3))
    save_state(folder, state(5))
    result = load_state(folder)
    assert (result.step, result.entries, result.reservation) == (5, {"4": "DP", "9": "INTERNAL"}, "abc")
    assert torch.equal(result.tensors["weight/a"], torch.full((2, 3), 5.0))
    assert len(list(folder.glob("*.safetensors"))) == 1 and folder.stat().st_mode & 0o077 == 0
    drop_state(folder)
    assert not folder.exists()
    drop_state(folder)


@pytest.mark.parametrize("harm", ["cut", "empty", "no facts", "no tensors", "nonsense"])
def test_a_damaged_state_counts_as_none(tmp_path, harm):
    save_state(tmp_path, state())
    (tensors,) = tmp_path.glob("*.safetensors")
    if harm == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-3])
    elif harm == "no tensors":
        tensors.unlink()
    else:
        text = {"empty": "", "no facts": "{}", "nonsense": "[1, 2]"}[harm]
        (tmp_path / "state.json").write_text(text)
    assert load_state(tmp_path) is None


def test_a_write_that_fails_leaves_the_state_before(tmp_path, monkeypatch):
    save_state(tmp_path, state(3))
    monkeypatch.setattr("artifacts.states.write_text", lambda *_: (_ for _ in ()).throw(OSError("disk is full")))
    with pytest.raises(OSError, match="disk is full"):
        save_state(tmp_path, state(5))
    assert load_state(tmp_path).step == 3
