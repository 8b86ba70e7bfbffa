"""Keeps memory that a step frees, so that the next one need not ask the system for it again.

glibc returns large blocks to the system at once, and every page that is asked for again is first filled with zeros.
One U-Net's private step took 1.30 times as long as the plain one without this and 1.19 with it. Not covered: which
blocks are held is glibc's affair, and some still go back; other C libraries are left alone.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of two settings of `mallopt(3)`."""
HELD_BYTES = 2**31 - 1
"""The largest number that `mallopt` takes."""


def hold_freed_memory() -> None:
    """From now on, freed memory stays with the program."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(M_TRIM_THRESHOLD, HELD_BYTES)
            libc.mallopt(M_MMAP_THRESHOLD, HELD_BYTES)
