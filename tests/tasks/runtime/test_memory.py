"""The largest memory of a stage is its own, as far as one process can tell."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.runtime import memory

MEGABYTES = 200


def held() -> None:
    """Touches memory and lets go of it."""
    np.ones(MEGABYTES * 10**6, np.uint8)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux begins a peak anew")
def test_a_stage_does_not_count_what_an_earlier_one_let_go_of():
    memory.begin()
    before = memory.peaks()["memory"]
    held()
    assert memory.peaks()["memory"] >= before + 0.9 * MEGABYTES / 1000
    memory.begin()
    assert memory.peaks()["memory"] <= before + 0.5 * MEGABYTES / 1000


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
