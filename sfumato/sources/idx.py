"""Folders of IDX files, the format that MNIST is published in (LeCun et al. 1998), packed or not."""

import gzip
import itertools
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from sfumato.errors import BadInput, one_line
from sfumato.sources.catalogue import UNLABELLED, Catalogue, Part, Record, SourceFacts
from sfumato.sources.listing import check_inside, entries

IDX_IMAGES, IDX_LABELS = 0x0803, 0x0801
"""Magic numbers: unsigned bytes in three dimensions, and in one."""
WORD, LAST_BYTE = 4, 0xFF
"""Bytes of the magic number and of each length after it; and the part of the magic number that counts the dimensions."""
PIECE = 2**22
"""Bytes that are read at once."""


@dataclass(frozen=True)
class Layout:
    """Names and layout of the files of a set; the defaults are MNIST's."""

    train: str = "train-"
    """Prefix of the names of the training files."""
    test: str = "t10k-"
    """Prefix of the names of the test files."""
    classes: tuple[str, ...] = ()
    """Names of the label values from `first` on; empty takes `classes.txt`, else the values themselves."""
    first: int = 0
    """The smallest label value."""
    transposed: bool = False
    """Rows and columns are exchanged in the files (EMNIST, Cohen et al. 2017)."""
    named: bool = False
    """It is that of a data set by name, which has labels; a folder of one's own may be without."""


MNIST = Layout()


def holds_idx(folder: Path) -> bool:
    """Whether a folder holds IDX images."""
    return folder.is_dir() and any("idx3-ubyte" in entry.name for entry in entries(folder))


def open_idx(folder: Path, part: Part, *, layout: Layout = MNIST) -> Catalogue:
    """A folder of IDX files: headers of the pictures, and the labels, which name the classes.

    Files whose names begin with neither of the layout's beginnings are a set without a test part.
    """
    listing = {entry.name for entry in entries(folder)}
    if not any("idx1-ubyte" in name for name in listing) and not layout.named:
        return open_unlabelled(folder, part, layout)
    train, test, whole = (idx_pair(folder, beginning) for beginning in (layout.train, layout.test, ""))
    if not (train or whole):
        files = f"{layout.train}images-idx3-ubyte and {layout.train}labels-idx1-ubyte"
        raise BadInput(f"{str(folder)!r} has no training images; add {files}, packed (.gz) or not")
    present = [pair for pair in (train or whole, test) if pair]
    values = [read_idx(labels, IDX_LABELS) for _, labels in present]
    headers = [idx_header(images, IDX_IMAGES) for images, _ in present]
    for (images, labels), header, codes_of_part in zip(present, headers, values, strict=True):
        if header[0] != len(codes_of_part):
            raise BadInput(
                f"{str(images)!r} holds {header[0]} images but {str(labels)!r} {len(codes_of_part)} labels; get both again"
            )
    codes, names = idx_classes(folder, values, layout)
    chosen = {"train": [0], "test": [len(present) - 1], "all": range(len(present))}[part]
    count = sum(headers[i][0] for i in chosen)
    _, *sides = headers[chosen[0]]
    height, width = reversed(sides) if layout.transposed else sides
    if not count * height * width:
        shape = f"{count} images of {width}x{height}"
        raise BadInput(f"{str(present[chosen[0]][0])!r} holds {shape}; get the file again")

    def records() -> Iterator[Record]:
        for i in chosen:
            path = present[i][0]
            labels = np.searchsorted(codes, values[i])
            for at, (pixels, label) in enumerate(zip(read_idx(path, IDX_IMAGES), labels, strict=True)):
                yield Record(f"{path}[{at}]", (pixels.T if layout.transposed else pixels)[:, :, None], int(label))

    def labelled() -> Iterator[tuple[int, str]]:
        return ((label, "") for i in chosen for label in np.searchsorted(codes, values[i]).tolist())

    facts = SourceFacts(str(folder), count, names, 1, height, width)
    return Catalogue(facts, records, has_parts=bool(test), labels=labelled)


def open_unlabelled(folder: Path, part: Part, layout: Layout) -> Catalogue:
    """A folder of images without any labels: all are one class."""
    beginnings = (layout.train, layout.test, "")
    train, test, whole = (idx_file(folder, beginning, "images", 3) for beginning in beginnings)
    present = [path for path in (train or whole, test) if path]
    chosen = {"train": present[:1], "test": present[-1:], "all": present}[part]
    headers = [idx_header(path, IDX_IMAGES) for path in chosen]
    if not chosen or not all(map(math.prod, headers)):
        raise BadInput(f"{str(folder)!r} holds no images that could be trained on; get the files again")
    count, (_, height, width) = sum(header[0] for header in headers), headers[0]

    def records() -> Iterator[Record]:
        for path in chosen:
            for at, pixels in enumerate(read_idx(path, IDX_IMAGES)):
                yield Record(f"{path}[{at}]", pixels[:, :, None], 0)

    facts = SourceFacts(str(folder), count, (UNLABELLED,), 1, height, width)
    return Catalogue(facts, records, has_parts=bool(test), labels=lambda: itertools.repeat((0, ""), count))


def idx_pair(folder: Path, beginning: str) -> tuple[Path, Path] | None:
    """Image and label file whose names begin so, packed or not; None if there are no such images."""
    images, labels = (idx_file(folder, beginning, *kind) for kind in (("images", 3), ("labels", 1)))
    if images and not labels:
        raise BadInput(f"{str(images)!r} has no labels beside it; add {beginning}labels-idx1-ubyte[.gz]")
    return (images, labels) if images and labels else None


def idx_file(folder: Path, beginning: str, kind: str, dimensions: int) -> Path | None:
    """The file of that kind whose name begins so, packed or not; None if there is none."""
    listing = {entry.name: entry for entry in entries(folder)}
    for name in (f"{beginning}{kind}{mark}idx{dimensions}-ubyte{end}" for mark in "-." for end in ("", ".gz")):
        if name in listing:
            check_inside(listing[name], folder)
            return folder / name
    return None


def idx_classes(folder: Path, values: list[np.ndarray], layout: Layout) -> tuple[np.ndarray, tuple[str, ...]]:
    """Label values in rising order, `[classes]`, and their names: the layout's, lines of `classes.txt`, else the values themselves.

    `BadInput` where a label has no name, or a name is no good.
    """
    codes = np.unique(np.concatenate(values))
    if layout.classes:
        known = np.arange(layout.first, layout.first + len(layout.classes))
        if strange := sorted(set(codes.tolist()) - set(known.tolist())):
            raise BadInput(
                f"the labels in {str(folder)!r} hold {strange[0]}, but run from {known[0]} to {known[-1]} in this data set;"
                " get the files again",
                nameless=f"has labels that do not run from {known[0]} to {known[-1]}: get the files again",
            )
        return known, layout.classes
    listing = {entry.name: entry for entry in entries(folder)}
    if "classes.txt" not in listing:
        return codes, tuple(str(code) for code in codes)
    check_inside(listing["classes.txt"], folder)
    path = folder / "classes.txt"
    try:
        names = tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"{str(path)!r} cannot be read as UTF-8 text; write one class name per line") from None
    if len(set(names)) != len(names) or not all(name.isprintable() and name for name in names):
        raise BadInput(f"{str(path)!r} repeats a name or has an empty or unprintable one; write one name per line")
    if len(codes) and codes[-1] >= len(names):
        raise BadInput(
            f"{str(path)!r} names {len(names)} classes, labels go up to {codes[-1]}; add the missing names",
            nameless=f"has labels beyond the {len(names)} that classes.txt names: add the missing names",
        )
    return np.arange(len(names)), names


@contextmanager
def opened_idx(path: Path) -> Iterator[BufferedIOBase]:
    """An IDX file, decompressed while read; any error inside the block names `path`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except PermissionError:
        raise BadInput(f"the file {str(path)!r} may not be read; grant this user read permission") from None
    except (OSError, EOFError, zlib.error) as fault:
        reason = one_line(fault)
        raise BadInput(f"the file {str(path)!r} is corrupt or cut off ({reason}); get it again") from None


def idx_header(path: Path, magic: int) -> tuple[int, ...]:
    """Lengths of the dimensions of an IDX file, from its first bytes."""
    dimensions = magic & LAST_BYTE
    with opened_idx(path) as file:
        head = file.read(WORD + WORD * dimensions)
    if len(head) >= WORD and head[:WORD] != magic.to_bytes(WORD, "big"):
        kind = "images" if magic == IDX_IMAGES else "labels"
        raise BadInput(
            f"the file {str(path)!r} begins with {head[:WORD].hex()}, but IDX {kind} begin with {magic:08x}; get it again"
        )
    if len(head) < WORD + WORD * dimensions:
        raise BadInput(f"the file {str(path)!r} is cut off after {len(head)} bytes; get it again")
    lengths = tuple(int.from_bytes(head[WORD * (i + 1) : WORD * (i + 2)], "big") for i in range(dimensions))
    if path.suffix != ".gz":
        check_bytes(path, lengths, path.stat().st_size - len(head))
    return lengths


def check_bytes(path: Path, lengths: tuple[int, ...], held: int) -> None:
    """Refuse a file that holds more or fewer bytes than its header promises."""
    wanted = math.prod(lengths)
    if held != wanted:
        amount = f"only {held:,}" if held < wanted else "more"
        raise BadInput(f"the file {str(path)!r} promises {wanted:,} bytes and holds {amount}; get it again")


def read_idx(path: Path, magic: int) -> np.ndarray:
    """The array of an IDX file, uint8 `[n, ...]` as its header says; `BadInput` for one that is cut off or of another kind than `magic`."""
    lengths = idx_header(path, magic)
    wanted = math.prod(lengths)
    body = bytearray()
    with opened_idx(path) as file:
        file.read(WORD + WORD * len(lengths))
        # In pieces, and one byte beyond: a header that promises terabytes must not reserve them.
        while len(body) <= wanted and (piece := file.read(min(PIECE, wanted + 1 - len(body)))):
            body += piece
    check_bytes(path, lengths, len(body))
    return np.frombuffer(bytes(body), np.uint8).reshape(lengths)
