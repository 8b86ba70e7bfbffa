"""Locks: one stage at a time on each GPU, and one process at a time on each stage with the same inputs.

A turn is a lock on a file, which the operating system releases when its holder dies, however it dies. Two identical runs at once
therefore do the work once: the second waits and reuses the result, and private data is paid for once. Runs on several machines
that share a PostgreSQL ledger and a store wait for each other at the ledger (`turn_everywhere`). Prefect's tag limit, which
`sfumato serve` sets on its server, limits the GPU among runs on several machines.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch

from sfumato.privacy.ledger.chain import queueing
from tasks.runtime.environment import Where
from tasks.runtime.progress import CONSOLE


@contextlib.contextmanager
def holding(device: torch.device, home: Path) -> Iterator[None]:
    """Wait for the device and hold it; the CPU needs no turn."""
    if device.type != "cuda":
        yield
        return
    with turn(home, f"cuda-{device.index or 0}", f"waiting for {device}, which another run holds"):
        yield


@contextlib.contextmanager
def turn(home: Path, name: str, waiting: str) -> Iterator[None]:
    """Wait for the turn called `name`, saying so in the terminal, and hold it."""
    path = home / "locks" / name
    path.parent.mkdir(exist_ok=True)
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                CONSOLE.print(waiting)
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                yield
                return


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether an open file is the one at this path still: one that was removed meanwhile holds back nobody."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def turn_everywhere(place: Where, name: str, waiting: str) -> Iterator[None]:
    """Wait for the turn called `name` on this machine and, where other machines could reuse the result, on those too; and hold it.

    Without a shared store the others would find nothing after the wait, so nobody waits for them.
    """
    with contextlib.ExitStack() as held:
        held.enter_context(turn(place.home, name, waiting))
        if place.shared_store:
            elsewhere = f"{waiting}, on another machine"
            held.enter_context(queueing(place.ledger_url, name, lambda: CONSOLE.print(elsewhere)))
        yield


def is_free(path: Path) -> bool:
    """Whether no process holds the turn whose lock is this file."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
