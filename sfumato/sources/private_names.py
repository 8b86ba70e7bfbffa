"""Errors about private images without the names of files, rows and groups.

The same code reads public images, where an error should name the file; so the names are removed here, at the one place through
which all reading of private images goes. Class names are no secret (they are in the card), nor is the name of an NPZ file, of IDX
files or of a data set by name, which hold no names of their own; what such a file says of one image or label is left out like a name.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sfumato.errors import BadInput, Unnamed
from sfumato.sources.identity import NAMES, parts_of
from sfumato.sources.idx import holds_idx

Content = TypeVar("Content")
CANNOT = "holds a file, a row or a folder that cannot be used as it is"
"""The message where the reason itself would name something."""
WAY = "put it right or leave it out; sfumato check names it on the screen"
"""What is to be done then."""


def unnamed(source: str, what: str, read: Callable[[], Content]) -> Content:
    """The result of `read` on the private `source`; `Unnamed` in place of an error that names something in it.

    `what` is the name of the source in the message.
    """
    try:
        return read()
    except BadInput as error:
        if isinstance(error, Unnamed) or (nameless(source) and not error.nameless):
            raise
        reason, internal = error.nameless or f"{CANNOT}: {WAY}", str(error)
    except OSError as error:
        reason, internal = f"{CANNOT} ({error.strerror}): {WAY}", str(error)
    # Outside of the handler, so that no traceback shows the error with the name above this one.
    raise Unnamed(f"{what} {reason}", internal)


def nameless(source: str) -> bool:
    """Whether errors about a source can name only the source: it is missing, or holds no files with names."""
    for part in parts_of(source):
        place = Path(part)
        if part not in NAMES and place.is_dir() and not holds_idx(place):
            return False
        if part not in NAMES and place.is_file() and place.suffix != ".npz":
            return False
    return True
