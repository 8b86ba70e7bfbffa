"""The largest memory of a stage is its own, as far as one process can tell."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tasks.runtime import memory
from tasks.runtime.environment import CHECKOUT

MEGABYTES = 200
STAGES = f"""
import json
import numpy as np
from tasks.runtime import memory

seen = []
for size in (0, {MEGABYTES}, 0):
    memory.begin()
    np.ones(size * 10**6, np.uint8)
    seen.append(memory.peaks()["memory"])
print(json.dumps(seen))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux begins a peak anew")
def test_a_stage_does_not_count_what_an_earlier_one_let_go_of():
    """In a process of its own: what other tests hold comes and goes."""
    done = subprocess.run([sys.executable, "-c", STAGES], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    before, during, after = json.loads(done.stdout)
    assert during >= before + 0.8 * MEGABYTES / 1000 and after <= before + 0.5 * MEGABYTES / 1000


def test_without_a_way_to_begin_anew_the_peak_is_that_of_the_process(monkeypatch):
    monkeypatch.setattr(memory.Path, "write_text", lambda *_: (_ for _ in ()).throw(PermissionError))
    memory.begin()
    assert memory.peaks()["memory"] > 0


def test_the_fullest_gpu_counts_and_a_gpu_that_nobody_uses_is_left_alone(monkeypatch):
    begun, peaks = [], [1.5e9, 7.254e9]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(peaks))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", begun.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", peaks.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    memory.begin()
    assert begun == [] and memory.peaks()["gpu_memory"] == 0
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    memory.begin()
    assert begun == [0, 1] and memory.peaks()["gpu_memory"] == 7.25
