"""What is said of private images that cannot be used: no file, no row and no group by its name.

The same code reads public images, where to name the file is right; so the names are taken out here, at the one place that
everything which reads private images goes through. Class names are no secret (they are in the card), nor is the name of
an NPZ file, of IDX files or of a data set by name, which hold no names of their own.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sfumato.errors import BadInput, Unnamed
from sfumato.sources.identity import NAMES, parts_of
from sfumato.sources.idx import holds_idx

Content = TypeVar("Content")
CANNOT = "holds a file, a row or a folder that cannot be used as it is"
"""What is said where the reason itself would name something."""


def unnamed(source: str, what: str, read: Callable[[], Content]) -> Content:
    """What `read` gives, reading the private `source`; `Unnamed` in place of an error that names something in it.

    `what` is what the line calls the source.
    """
    try:
        return read()
    except BadInput as error:
        if isinstance(error, Unnamed) or nameless(source):
            raise
        reason, internal = error.nameless or CANNOT, str(error)
    except OSError as error:
        reason, internal = f"{CANNOT} ({error.strerror})", str(error)
    # Outside of the handler, so that no traceback shows the error with the name above this one.
    raise Unnamed(f"{what} {reason}", internal)


def nameless(source: str) -> bool:
    """Whether errors about a source can name nothing but the source: it is not there, or holds no files with names."""
    for part in parts_of(source):
        place = Path(part)
        if part not in NAMES and place.is_dir() and not holds_idx(place):
            return False
        if part not in NAMES and place.is_file() and place.suffix != ".npz":
            return False
    return True
