"""The common form of every kind of source: facts, and records to decode one after the other."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sfumato.config import Columns, Constants, Crop, Decoding
from sfumato.errors import BadInput

NO_GROUPS = "none"
"""The value of `data.group` with which each record stands for itself."""
GROUP = "group"
"""The column that is taken for the groups where none is named."""
UNLABELLED = "unlabelled"
"""The one class of pictures without labels."""
PATIENT = "patient"
"""The value of `data.group` that takes the person in the header of a DICOM file."""
VOLUME = "volume"
"""The value of `data.group` by which the slices of a volume belong together."""
USUAL_COLUMNS = Columns()
USUAL_DECODING = Decoding()
Part = Literal["train", "test", "all"]
"""`train` is for training, `test` for evaluation, `all` is both (public sources)."""


@dataclass(frozen=True)
class SourceFacts:
    """Facts about a source, known before any picture is decoded."""

    source: str
    records: int
    """Records in the requested part; the expected number where the part is split off by hash (see `held_out_by_hash`)."""
    classes: tuple[str, ...]
    channels: int
    height: int
    width: int
    """Width at the requested size; else of the first picture, and `load` refuses a folder that mixes sizes."""
    groups: int | None = None
    """Groups in the requested part, counted as `records` are; None where each record stands for itself."""
    whole: Constants | None = None
    """The constants of the whole source, before a part is held out or a share taken; None in a catalogue."""
    grouping: str = GROUP
    """The value of `data.group` that asks for these groups where nothing else was said; or, without groups, for those that there could be."""
    stored: int = 0
    """The smaller side of the first picture as it is stored; of a mixture, of its smallest part."""
    colours: int = 0
    """Channels of the first picture as it is stored; of a mixture, of the part that has most."""


@dataclass(frozen=True)
class Held:
    """A picture inside a file that holds many, with the bytes that a file of its own would have."""

    where: str
    """The place in that file, for messages."""
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.where


@dataclass(frozen=True)
class Slice:
    """One slice of a volume, by its place along an axis of the body (`Slices.axis`)."""

    path: Path
    axis: str
    place: float
    """From 0 to 1, of the length of the axis."""

    def __str__(self) -> str:
        return f"{self.path}[{self.axis} {self.place:.3f}]"


Place = Path | Held | Slice
"""The place of a picture."""


class File(NamedTuple):
    """A picture that is a file of its own, or is held like one."""

    path: Place
    label: str
    group: str = ""


class Record(NamedTuple):
    """One decoded picture before resizing."""

    where: str
    """The file, or the place in it, for messages."""
    pixels: np.ndarray
    """uint8 `[h, w, c]`."""
    label: int
    group: str = ""
    """Name of the group that it belongs to; empty where it stands for itself."""
    known_as: np.ndarray | None = None
    """The picture that identifies it under any window, uint8 `[h, w, c]`; None where that is `pixels`."""
    unit: str = ""
    """Unit of the values in its file, such as `16 bits` or `HU`; empty where it is unknown."""

    @property
    def identity(self) -> np.ndarray:
        """The picture from which the digest, the split and the ledger's fingerprints are computed, uint8 `[h, w, c]`."""
        return self.pixels if self.known_as is None else self.known_as


@dataclass(frozen=True)
class Catalogue:
    """A source opened as far as names and headers: `describe` reads it, `load` goes on to `records`."""

    facts: SourceFacts
    records: Callable[[], Iterable[Record]]
    """Decodes one record after the other."""
    has_parts: bool
    """The source says itself which records are for testing; otherwise the hash decides."""
    files: Callable[[], Iterable[File]] | None = None
    """The records' files, in order, where each record has one of its own or is held like one; read once more by each call."""
    labels: Callable[[], Iterable[tuple[int, str]]] | None = None
    """Label and group of each record, in any order, where they can be had without decoding it."""


@dataclass(frozen=True)
class Reading:
    """The options for reading a source, in one value from the settings to the pixels."""

    part: Part = "train"
    size: int | None = None
    """Side in pixels that every picture is stretched to; None or 0 keeps them."""
    channels: int | None = None
    """1 turns all grey, 3 into colour; None or 0 keeps them."""
    crop: Crop = "none"
    """`centre` takes the largest square from the middle first."""
    invert: bool = False
    """Turn the grey levels round, so that dark ink on paper stands beside light ink."""
    held_out: float = 0.2
    """Share that is kept for testing where the source has no test part."""
    share: float = 1.0
    """Share of the part `train` that is used (`used_by_hash`)."""
    folder: str = ""
    """Folder of the data sets by name."""
    glyphs_per_class: int = 400
    characters: str | None = None
    """The characters that `glyphs` renders; by default all letters."""
    shapes_per_class: int = 2500
    shares: tuple[float, ...] = ()
    """Shares of the sources in a mixture (`sfumato.sources.mixture.mix`)."""
    seed: int = 0
    """Seed of the rendering of glyphs and shapes, and of the choice of records in a mixture."""
    columns: Columns = USUAL_COLUMNS
    """For tables (`Data.columns`)."""
    decoding: Decoding = USUAL_DECODING
    group: str = NO_GROUPS
    """For tables, folders and NPZ files (`Data.group`)."""
    classes: tuple[str, ...] = ()
    """The class list, where it is declared: labels are places in it, records of other classes are left out, and a class may be without any."""
    only: tuple[str, ...] = ()
    """Names of the classes that are taken, as if there were no others; all where that is empty."""
    without: tuple[str, ...] = ()
    """Names of classes that are left out in the same way."""
    forgiving: bool = False
    """Take the shape of the first picture whose header can be read."""
    stored: bool = False
    """Each picture is read by itself as it is stored, and they need not agree in shape."""

    def __post_init__(self) -> None:
        if self.part not in ("train", "test", "all"):
            raise BadInput(f"part={self.part!r} is not a part of a source; use 'train', 'test' or 'all'")
        if self.size is not None and self.size < 0:
            raise BadInput(
                f"data.size={self.size} is negative; give a side in pixels, or 0 to keep the images as they are"
            )
        if self.channels not in (None, 0, 1, 3):
            raise BadInput(
                f"data.channels={self.channels} is not possible; use 1 (grey), 3 (colour) or 0 (as they are)"
            )
        if self.crop not in ("none", "centre"):
            raise BadInput(f"data.crop={self.crop!r} is not possible; use 'none' or 'centre' (the largest square)")
        if not 0 < self.held_out < 1:
            raise BadInput(f"data.held_out={self.held_out} is no share; use a number above 0 and below 1")
        if not 0 < self.share <= 1:
            raise BadInput(f"data.share={self.share} is no share; use a number above 0, and 1 for all records")

    def takes(self, name: str) -> bool:
        """Whether the class of this name is among those that are chosen."""
        return (not self.only or name in self.only) and name not in self.without

    @property
    def used(self) -> float:
        """The share of the records that is used: the requested share of the training part, and all of the others."""
        return self.share if self.part == "train" else 1.0

    def shape(self, facts: SourceFacts) -> tuple[int, int, int]:
        """Channels, height and width of the pictures as requested."""
        height, width = facts.height, facts.width
        if self.crop == "centre":
            height = width = min(height, width)
        return self.channels or facts.channels, self.size or height, self.size or width


def group_number(name: str) -> int:
    """A number for a group that depends on its name alone, so that groups keep theirs when others come or go; 64 bits, signed."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
