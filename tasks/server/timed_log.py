"""The log of `sfumato serve`, with the time (UTC) before each line: a process of its own, since what is started writes on where `sfumato serve` is killed.

It reads until the last of those that write has ended, whatever signal reaches all of them. Not covered: the time at which a line was made, where
its program holds it back.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

END_SECONDS = 5
"""Seconds to wait at the end for what still writes, as a run that a killed worker left."""


@contextlib.contextmanager
def timed_log(path: Path) -> Iterator[IO[bytes]]:
    """A pipe for the output of processes, whose lines are added to the file."""
    command = [sys.executable, "-P", __file__]
    with path.open("ab") as file:
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True)
    assert writer.stdin is not None
    try:
        yield writer.stdin
    finally:
        writer.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            writer.wait(END_SECONDS)


def copy(lines: Iterable[bytes], log: IO[bytes]) -> None:
    """Copy lines as they come; empty ones without a time. One that a full disk refuses is lost."""
    for line in lines:
        stamp = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  ".encode() if line.strip() else b""
        with contextlib.suppress(OSError):
            log.write(stamp + line)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(1, "ab", buffering=0, closefd=False) as out:
        copy(sys.stdin.buffer, out)
