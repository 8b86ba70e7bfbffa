"""One stage at a time on each GPU of this machine.

A lock on a file per device: the operating system gives it back when its holder dies, however it dies. Prefect's tag
limit, which `sfumato ui` sets on its server, says the same to runs on several machines and shows who waits.
"""

import contextlib
import fcntl
from collections.abc import Iterator

import torch

from tasks.progress import CONSOLE
from tasks.where import Where


@contextlib.contextmanager
def holding(device: torch.device, place: Where) -> Iterator[None]:
    """Wait for the device and hold it; the CPU needs no turn."""
    if device.type != "cuda":
        yield
        return
    folder = place.home / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / f"cuda-{device.index or 0}").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            CONSOLE.print(f"waiting for {device}, which another run holds")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
