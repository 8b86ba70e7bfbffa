"""A GPU is held by one stage at a time, the CPU by as many as like; equal stages wait for each other."""

import fcntl
import subprocess
import sys
import time

import pytest
import torch

from tasks.turns import holding, turn


def taken(path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_device_is_held_for_the_stage_and_given_back_even_when_it_fails(tmp_path):
    with holding(torch.device("cuda"), tmp_path):
        assert taken(tmp_path / "locks" / "cuda-0")
        with holding(torch.device("cuda:1"), tmp_path):
            assert taken(tmp_path / "locks" / "cuda-1")
    assert not taken(tmp_path / "locks" / "cuda-0")
    with pytest.raises(RuntimeError, match="out of memory"), holding(torch.device("cuda:0"), tmp_path):
        raise RuntimeError("out of memory")
    assert not taken(tmp_path / "locks" / "cuda-0") and not taken(tmp_path / "locks" / "cuda-1")


def test_the_cpu_needs_no_turn(tmp_path):
    with holding(torch.device("cpu"), tmp_path), holding(torch.device("cpu"), tmp_path / "nowhere"):
        assert list(tmp_path.iterdir()) == []


HOLDER = """
import sys, time
from pathlib import Path
from tasks.turns import turn
with turn(Path(sys.argv[1]), "key", ""):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_waits_and_a_dead_holder_gives_its_turn_back(tmp_path, capsys):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n" and taken(tmp_path / "locks" / "key")
    holder.kill()
    holder.wait()
    started = time.monotonic()
    with turn(tmp_path, "key", "waiting"):
        assert taken(tmp_path / "locks" / "key") and time.monotonic() - started < 30
