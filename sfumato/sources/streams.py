"""The bytes of a picture, in a file of its own or held by another, and what is said of a file that cannot be opened."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sfumato.errors import BadInput
from sfumato.sources.catalogue import Held


def stream(path: Path | Held) -> IO[bytes]:
    """The bytes of a picture, from their beginning."""
    return io.BytesIO(path.data) if isinstance(path, Held) else open(path, "rb")


@contextmanager
def reachable(path: Path | Held, what: str) -> Iterator[None]:
    """A block that opens a file; where nobody may read it, or it is gone, `BadInput` names it, and without its name what it is (`a what`)."""
    try:
        yield
    except PermissionError:
        raise _lacking(path, what, "may not be read", "grant this user read permission") from None
    except FileNotFoundError:
        raise _lacking(path, what, "is a broken link or was removed", "remove the link") from None


def _lacking(path: Path | Held, what: str, why: str, way_out: str) -> BadInput:
    article = "an" if what[0] in "aeiou" else "a"
    return BadInput(
        f"the {what} {str(path)!r} {why}; {way_out}", nameless=f"holds {article} {what} that {why}: {way_out}"
    )
