"""The bytes of a picture, in a file of its own or held by another."""

import io
from pathlib import Path
from typing import IO

from sfumato.sources.catalogue import Held


def stream(path: Path | Held) -> IO[bytes]:
    """The bytes of a picture, from their beginning."""
    return io.BytesIO(path.data) if isinstance(path, Held) else open(path, "rb")
