"""Names and places of sources, whether two of them are the same, and the side of the split on which a record lies."""

import difflib
import hashlib
import os
from pathlib import Path

import numpy as np

from sfumato.errors import BadInput
from sfumato.sources.built_in import BUILT_IN, DRAWN
from sfumato.sources.named import NAMED, locate
from sfumato.sources.tables import READERS

NAMES = (*BUILT_IN, *NAMED)
"""Everything that is a source by its name alone; a folder of such a name is written `./name`."""
FILES = (".npz", *READERS)
"""Ends of the names of files that are sources."""
PACKED = (".zip", ".tgz", ".7z", ".rar")
"""Ends of the names of archives."""
USED = b"used"
"""Key of the hash that takes a share of the training records; the split has none."""


def parts_of(source: str | Path) -> tuple[str, ...]:
    """The sources of a mixture `a+b`, or the one source; a path that exists is one source whatever its name."""
    text = str(source)
    if "+" not in text or os.path.lexists(text):
        return (text,)
    parts = tuple(part.strip() for part in text.split("+"))
    if len(set(parts)) != len(parts):
        raise BadInput(
            f"the mixture {text!r} names a source twice; name each once, and say how much of it by data.shares"
        )
    return parts


def prefixes(parts: tuple[str, ...]) -> list[str]:
    """The prefix of the class names of each part of a mixture: its name, or the last part of its path."""
    names = [Path(part).name for part in parts]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise BadInput(f"two sources of the mixture {'+'.join(parts)!r} are called {repeated[0]!r}; rename one of them")
    return names


def absolute(source: str) -> str:
    """The same source with its paths made absolute."""
    return "+".join(part if part in NAMES else str(Path(part).resolve()) for part in parts_of(source))


def is_drawn(source: str) -> bool:
    """Whether another seed gives other images of all parts of a source."""
    return set(parts_of(source)) <= set(DRAWN)


def needs_folder(*sources: str) -> bool:
    """Whether any of these lies in the data folder."""
    return any(part in NAMED for source in sources for part in parts_of(source))


def is_there(source: str) -> bool:
    """Whether this is the name of a source, or the place of an existing one, or of several (`a+b`)."""
    return all(part in NAMES or os.path.lexists(part) for part in parts_of(source))


def must_exist(source: str, what: str) -> None:
    """`BadInput` for a source, or a part of a mixture, that is neither a name nor a place; `what` is called so in the message."""
    for part in parts_of(source):
        if part not in NAMES:
            existing(part, what)


def existing(source: str, what: str = "the data source") -> Path:
    """The folder or file of that name, or the reason why there is none."""
    path = Path(source)
    known = (
        f"give {', '.join(NAMES)}, a folder of class folders, a folder with IDX files, or a file ({', '.join(FILES)})"
    )
    if "://" in str(source):
        raise BadInput(f"{what} {source!r} is at a URL: copy it into a folder here first, and name the folder")
    if not os.path.lexists(source):
        near = difflib.get_close_matches(path.name.lower(), NAMES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        as_path = os.sep in str(source) or path.suffix in FILES
        raise BadInput(
            f"{what} {source!r} does not exist; {'no such folder or file: is it mounted?' if as_path else hint + known}"
        )
    if not path.is_dir() and path.suffix not in FILES:
        packed = path.suffix.lower() in PACKED
        raise BadInput(
            f"{what} {source!r} is {'an archive: unpack it, and name the folder' if packed else f'not a folder; {known}'}"
        )
    return path


def same_source(a: str | Path, b: str | Path, *, folder: str = "") -> bool:
    """Whether two sources share a part, judged by names and places: the same name, the same place, or one inside the other (links
    followed).

    `folder` is where named data sets lie. No file is opened. Not covered: copies, which only the door can find
    (`sfumato.privacy.door.check_in`), since it takes private pixels to know them.
    """
    return any(one_source(one, two, folder) for one in parts_of(a) for two in parts_of(b))


def one_source(a: str, b: str, folder: str) -> bool:
    """`same_source` for two sources that are no mixtures."""
    if a == b or a in BUILT_IN or b in BUILT_IN:
        return a == b
    located = [locate(name, folder) if name in NAMED else Path(name) for name in (a, b)]
    places = [place for place in located if place]
    if len(places) < len(located):
        return False
    one, two = (Path(os.path.realpath(place)) for place in places)
    if one.is_relative_to(two) or two.is_relative_to(one):
        return True
    return any(same_inode(one, above) for above in (two, *two.parents)) or any(
        same_inode(two, above) for above in one.parents
    )


def fingerprint(source: str | Path, *, folder: str = "") -> str:
    """A digest of the names, lengths and times of all files of a source, for a table of all in its folder, which changes
    where their content does.

    No file is opened, and built-in sources have none. The digest also changes where an equal file replaces another. `folder` holds the
    named data sets; a missing one has no files either.
    """
    digest = hashlib.sha256()
    for part in parts_of(source):
        place = None if part in BUILT_IN else locate(part, folder) if part in NAMED else Path(part)
        if place is None:
            continue
        top = (place.parent if place.suffix in READERS else place).resolve()
        for file in [top, *sorted(top.rglob("*"))]:
            facts = file.lstat()
            identity = (part, str(file.relative_to(top)), *as_written(facts))
            digest.update(repr(identity).encode())
    return digest.hexdigest()


def as_written(facts: os.stat_result) -> tuple[int, int, int]:
    """Length and times of a file, which change where it is written: no copying tool can reset the time of the inode's last change."""
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def same_inode(a: Path, b: Path) -> bool:
    """Whether both exist and are one place under two names (a bind mount, a file system that ignores case)."""
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


def held_out_by_hash(pixels: np.ndarray, name: str, share: float) -> bool:
    """Whether a record, `[h, w, c]` uint8 of the class `name`, is kept for testing; True for about `share` of records.

    The answer depends on the record's own bytes and on nothing else: no key, no position, no count. So a record never
    changes side when others come or go, and data sets that differ in one record have training parts that differ in at
    most that one: the neighbours that the privacy statement is about. Equal records land on the same side.
    """
    return _below(share, pixels, name)


def group_held_out(name: str, share: float) -> bool:
    """Whether a group is kept for testing, with all its records: by its name and nothing else, as above."""
    return held_out_by_hash(np.zeros(0, np.uint8), name, share)


def used_by_hash(pixels: np.ndarray, name: str, share: float) -> bool:
    """Whether a training record, `[h, w, c]` uint8 of the class `name`, is in a `share`, 0 to 1, of them; a larger share contains every smaller one.

    Like its side of the split, this depends on its own bytes alone, under another key, so that the two are independent. A fixed number
    of records cannot be chosen in this way: whichever records it takes, removing one pulls another in.
    """
    return _below(share, pixels, name, key=USED)


def group_used(name: str, share: float) -> bool:
    """Whether a group is used with all its records: by its name and nothing else, as above."""
    return used_by_hash(np.zeros(0, np.uint8), name, share)


def _below(share: float, pixels: np.ndarray, name: str, key: bytes = b"") -> bool:
    """Whether the hash of a record under `key`, as a number from 0 to 1, lies below `share`; always where that is 1."""
    digest = hashlib.blake2b(repr((pixels.shape, name)).encode(), digest_size=8, key=key)
    digest.update(np.ascontiguousarray(pixels).data)
    return int.from_bytes(digest.digest(), "big") < share * 2**64
