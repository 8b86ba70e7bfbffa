"""Names of private files, which no message may hold: they are stored in the home, and the message says where."""

import os
import tempfile
from pathlib import Path

from sfumato.errors import BadInput, Unnamed
from tasks.runtime.environment import now

FOLDER = "internal"
"""Folder of the home for what must not leave."""


def pointed(error: BadInput, home: Path) -> BadInput:
    """The error as it may be shown anywhere: the name of a private file goes into an INTERNAL file, which the line names."""
    if not isinstance(error, Unnamed) or not error.internal:
        return error
    folder = home / FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = "".join(c for c in now()[:19] if c.isalnum())
        handle, name = tempfile.mkstemp(
            prefix=f"{stamp}-unreadable-", suffix=".txt", dir=folder
        )  # readable by its owner alone
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"INTERNAL, must not leave\n{error.internal}\n")
    except OSError as fault:
        return BadInput(f"{error} (more could not be written into {folder}: {fault.strerror})")
    return BadInput(f"{error}; more in {name} (INTERNAL)")
