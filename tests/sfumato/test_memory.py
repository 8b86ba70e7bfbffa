"""Freed memory stays with the program."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from sfumato.memory import hold_freed_memory
if {hold}:
    hold_freed_memory()
    hold_freed_memory()  # a second time changes nothing
torch.ones(3_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(3_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no mallopt")
def test_the_same_memory_is_used_again():
    faults = [
        int(subprocess.run([sys.executable, "-c", PROGRAM.format(hold=hold)], capture_output=True, check=True).stdout)
        for hold in (False, True)
    ]
    assert faults[1] < 0.1 * faults[0]
