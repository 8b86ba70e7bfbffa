"""Freezes the worker while runs save their state, and ends one that stayed frozen because its `sfumato serve` was killed meanwhile.

A frozen process hears no signal but SIGKILL, so nothing else would ever end it. A file in the home says which process it is; one whose parent lives is
left to it. Not covered: systems without `/proc`, where it stays until a person ends it.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from artifacts.store import write_text
from tasks.runtime.environment import Where

FILE = "frozen-worker.json"
"""File in the home while the worker is frozen."""
STATE, PARENT, BEGAN = 0, 1, 19
"""Fields of Linux's `/proc/PID/stat` after the name of the program: its state, its parent, and when it began."""
STOPPED = "T"


class Process(NamedTuple):
    """A process, by what no later one with the same number has too."""

    number: int
    state: str
    parent: str
    began: str


@contextlib.contextmanager
def frozen(place: Where, worker: subprocess.Popen[bytes]) -> Iterator[None]:
    """Inside the block the worker does nothing: it begins no run, and kills none, as it does when it ends."""
    note = place.home / FILE
    if process := process_of(worker.pid):
        write_text(note, json.dumps(process._asdict()))
    worker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGCONT)
        note.unlink(missing_ok=True)


def left_frozen(place: Where) -> int | None:
    """The number of a frozen worker whose `sfumato serve` is gone; None where there is none."""
    try:
        before = Process(**json.loads((place.home / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    now = process_of(before.number)
    if now is None or now.state != STOPPED or now.began != before.began or now.parent == before.parent:
        return None
    return before.number


def end_left_frozen(place: Where) -> str:
    """End a frozen worker that was left behind, and return a line on it; empty where there is none. Its runs write into its pipe: let them end first."""
    number = left_frozen(place)
    if number is None:
        return ""
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    (place.home / FILE).unlink(missing_ok=True)
    return f"the worker of a `sfumato serve` that was killed was still there, frozen (process {number}): it was ended"


def process_of(number: int) -> Process | None:
    """A process as Linux shows it; None where it is gone, or the system is another."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return Process(number, fields[STATE], fields[PARENT], fields[BEGAN])
    except (OSError, IndexError):
        return None
