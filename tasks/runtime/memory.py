"""The largest memory of a stage: resident memory of its process, and what torch held on the GPU.

What earlier stages left in the process counts too, INTERNAL ones among them, so that these numbers are INTERNAL whatever the stage made. Where the system cannot begin anew (only Linux can), it is the largest since the process
began. Not covered: stages side by side in threads, which are not told apart; further processes of one training; what other libraries
hold on a GPU.
"""

import contextlib
import resource
import sys
from pathlib import Path

import torch

GIGA = 1e9
KIBI = 1024
BYTES = 1 if sys.platform == "darwin" else KIBI
"""Unit of `ru_maxrss`, in bytes."""
PEAK = "5"
"""What begins a process's peak anew (Linux, proc_pid_clear_refs(5))."""
DIGITS = 2
"""Digits of a gigabyte that are noted."""


def begin() -> None:
    """Begin the peaks of this process anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(PEAK)
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)


def peaks() -> dict[str, float]:
    """The largest memory (GB) since `begin`: `memory` of the process, and `gpu_memory`, 0 where no GPU was used."""
    there = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    on_gpu = max((torch.cuda.max_memory_allocated(device) for device in there), default=0)
    return {"memory": round(_resident() / GIGA, DIGITS), "gpu_memory": round(on_gpu / GIGA, DIGITS)}


def _resident() -> int:
    """The largest resident memory (bytes) since `begin`: what Linux says of the process, else what the system counts since it began."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * KIBI
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * BYTES
