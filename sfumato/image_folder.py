"""Class folders of PNG files, as loaders of images know them; each file says to machines that a model made it.

A file holds XMP with IPTC's `DigitalSourceType` `trainedAlgorithmicMedia`. Folders are named so that Hugging Face's `datasets` takes none for a
split, and file systems that know no upper case keep them apart. Not covered: marks in the pixels themselves; who saves a picture anew loses
them.
"""

import contextlib
import csv
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from sfumato.errors import BadInput
from sfumato.images import ImageSet, picture

DATA, SPLIT, LABELS = "data", "train", "labels.csv"
ORIGIN = "origin.json"
"""What says of images that were drawn from a released model later where they come from, by some of a card's fields."""
BEHIND = "sets_behind"
"""The field of a card with the names of the private sets behind the public side of its run."""
OF_SET = "-synthetic"
"""The end of the name of a published set, after that of the private one."""
READABLE = 0o755
"""Permissions of a folder that is handed over: everybody may read it."""
NAME_DIGITS = 6
"""Digits of a published picture's name."""
NAME_LENGTH = 60
"""Longest folder name in characters, but for what keeps it from being a split; file systems take 255 bytes."""
SPLIT_WORDS = "validation|valid|val|dev|testing|test|evaluation|eval"
"""Words that `datasets` takes for a split other than `train` wherever they stand alone in the name of a folder."""
SPLIT_IN_NAME = re.compile(rf"(?:(?<=[-._ 0-9])|^)(?=(?:{SPLIT_WORDS})(?:[-._ 0-9]|$))")
TAKEN = ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)))
"""Names that Windows keeps for itself."""
SYNTHETIC = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""IPTC's name for media made by a model that learnt from data."""
XMP_KEY = "XML:com.adobe.xmp"
"""Keyword of the chunk in which a PNG holds XMP."""
XMP = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
    '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" '
    'xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" '
    f'Iptc4xmpExt:DigitalSourceType="{SYNTHETIC}"/></rdf:RDF></x:xmpmeta><?xpacket end="r"?>'
)


class SetImage(NamedTuple):
    """A picture of a published set."""

    name: str
    """Its number, with as many digits as all others."""
    png: bytes
    label: int
    """The class that counts, as a position in the classes of the set."""
    drawn: int | None
    """The class that it was drawn for, where a judge changed or chose it."""


def png_of(picture: Image.Image) -> bytes:
    """A picture as PNG, with the mark and nothing else beside its pixels."""
    mark, out = PngInfo(), io.BytesIO()
    mark.add_itxt(XMP_KEY, XMP)
    picture.save(out, format="PNG", optimize=True, pnginfo=mark)
    return out.getvalue()


def pictures_of(
    images: ImageSet, drawn: np.ndarray | None = None, sign: Callable[[bytes], bytes] | None = None
) -> Iterator[SetImage]:
    """The pictures of a set one after the other, marked as synthetic, and signed where there is a way to; `drawn` int64 `[n]` are the classes that
    they were drawn for, where a judge changed or chose them."""
    for number, (pixels, label) in enumerate(zip(images.pixels, images.labels.tolist(), strict=True)):
        png = png_of(picture(pixels))
        own = None if drawn is None else int(drawn[number])
        yield SetImage(f"{number:0{NAME_DIGITS}d}", sign(png) if sign else png, label, own)


def write_folders(folder: Path, pictures: Iterable[SetImage], classes: Sequence[str]) -> None:
    """`data/train/CLASS/NUMBER.png`, and a table `labels.csv` beside `data`."""
    names = folder_names(classes)
    (folder / DATA / SPLIT).mkdir(parents=True)
    with (folder / LABELS).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        for first, one in zip(count(), pictures, strict=False):
            if not first:
                rows.writerow(["file", "label", "class", *([] if one.drawn is None else ["drawn"])])
            path = folder / DATA / SPLIT / names[one.label] / f"{one.name}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(one.png)
            drawn = [] if one.drawn is None else [classes[one.drawn]]
            rows.writerow([path.relative_to(folder).as_posix(), one.label, classes[one.label], *drawn])


def shown_names(classes: Sequence[str]) -> list[str]:
    """The names of the classes, where one cannot be printed that of its folder."""
    return [
        name if name and name.isprintable() else safe for name, safe in zip(classes, folder_names(classes), strict=True)
    ]


def folder_names(classes: Sequence[str]) -> list[str]:
    """A folder name of its own for each class, different from all others in more than capitals."""
    names: list[str] = []
    taken: set[str] = set()
    for safe in map(folder_name, classes):
        numbered = (f"{safe}-{i}" for i in count(2))
        free = next(name for name in chain([safe], numbered) if name.casefold() not in taken)
        taken.add(free.casefold())
        names.append(free)
    return names


def folder_name(name: str) -> str:
    """A class name as a folder name: one that `datasets` neither overlooks, as it does hidden folders, nor takes for a split."""
    safe = safe_name(name).rstrip(".")
    safe = f"_{safe.lstrip('_')}" if safe.startswith("__") else safe or "class"
    safe = f"class={safe}" if safe.split(".")[0].casefold() in TAKEN else safe
    return SPLIT_IN_NAME.sub("class=", safe)


def safe_name(name: str) -> str:
    """A name as one part of a path: letters, digits, dot, dash and underscore; never one that leaves its folder."""
    clean = re.sub(r"[^\w.\-]+", "_", name).lstrip(".")
    return clean[:NAME_LENGTH] or "class"


def free_folder(to: Path, beside: str = "") -> Path:
    """A folder as an absolute path; `BadInput` where it is taken already, cannot be written, or lies within `beside`, a collection that it would
    change."""
    if to == Path():
        raise BadInput("the place is the folder in which you are, or empty: name a new one with --to")
    to = to.expanduser().resolve()
    if beside and to.is_relative_to(Path(beside).resolve()):
        raise BadInput(
            f"{to} lies within the private images of this run, which it would change: choose another place with --to"
        )
    try:
        occupied = to.exists() and (not to.is_dir() or any(to.iterdir()))
        above = next(place for place in to.parents if place.exists())
    except OSError as error:
        raise BadInput(f"cannot write to {to}: {error.strerror}; choose another place with --to") from None
    if occupied:
        raise BadInput(f"{to} exists and is not an empty folder: choose another place with --to")
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise BadInput(f"cannot write to {to}: {above} is no folder that you may write; choose another place with --to")
    return to


@contextlib.contextmanager
def whole_folder(to: Path) -> Iterator[Path]:
    """A folder to fill beside `to`, which is free: it takes that name when the block ends, so that `to` appears complete or not at all.

    `OSError` where it cannot be written; then, and after any other error, nothing of it is left.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    try:
        yield draft
        draft.chmod(READABLE)
        if to.exists():
            to.rmdir()
        os.rename(draft, to)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
