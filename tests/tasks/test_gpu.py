"""A GPU is held by one stage at a time; the CPU by as many as like."""

import fcntl
from types import SimpleNamespace

import pytest
import torch

from tasks.gpu import holding


def taken(path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_device_is_held_for_the_stage_and_given_back_even_when_it_fails(tmp_path):
    place = SimpleNamespace(home=tmp_path)
    with holding(torch.device("cuda"), place):
        assert taken(tmp_path / "locks" / "cuda-0")
        with holding(torch.device("cuda:1"), place):
            assert taken(tmp_path / "locks" / "cuda-1")
    assert not taken(tmp_path / "locks" / "cuda-0")
    with pytest.raises(RuntimeError, match="out of memory"), holding(torch.device("cuda:0"), place):
        raise RuntimeError("out of memory")
    assert not taken(tmp_path / "locks" / "cuda-0") and not taken(tmp_path / "locks" / "cuda-1")


def test_the_cpu_needs_no_turn(tmp_path):
    with holding(torch.device("cpu"), SimpleNamespace(home=tmp_path)), holding(torch.device("cpu"), None):
        assert list(tmp_path.iterdir()) == []
