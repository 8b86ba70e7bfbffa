"""Inspects a source picture by picture: the facts of each, and every picture that cannot be read."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from sfumato.config import AUTO_WINDOW
from sfumato.errors import BadInput
from sfumato.progress import Progress, silent
from sfumato.sources.catalogue import Catalogue, Record, group_number
from sfumato.sources.decoding import kind_of, record_of
from sfumato.sources.pictures import reshape

THUMBNAIL = 16
"""Side of the grey thumbnails by which pictures of any size are compared."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """The content of a source, record by record; as private as the source is."""

    source: str
    classes: tuple[str, ...]
    where: tuple[str, ...]
    """File, or place in it, of each record that could be read; files from the source's own folder on."""
    labels: np.ndarray
    """int64 `[n]`."""
    groups: np.ndarray | None
    """int64 `[n]`, as in `ImageSet`."""
    kinds: tuple[str, ...]
    """Size of each record as it is decoded, and its mode as it is stored, such as `640x480 RGB`."""
    digests: tuple[bytes, ...]
    """Digest of the pixels of each record, equal for pictures with equal pixels."""
    thumbnails: np.ndarray
    """uint8 `[n, THUMBNAIL, THUMBNAIL]`."""
    broken: tuple[str, ...]
    """A line for each picture that cannot be read, with its name and the reason."""


class Beside(Protocol):
    """A reader to whom the records of an inspection are handed too, so that none is decoded twice."""

    def take(self, record: Record, name: str) -> None:
        """The next record, of the class `name`."""

    def fail(self, fault: BadInput) -> None:
        """A record that cannot be read, or a file of many."""


def inspected(
    source: str,
    catalogue: Catalogue,
    *,
    window: str = AUTO_WINDOW,
    beside: Beside | None = None,
    progress: Progress = silent,
) -> Inspection:
    """Decode every record of a catalogue, and go on after those that cannot be read.

    In a file of many pictures a fault of the file itself ends it.
    """
    broken: list[str] = []
    rows: list[tuple[str, int, int, str, bytes, np.ndarray]] = []
    folder = f"{source}/" if Path(source).is_dir() else f"{Path(source).parent}/"
    for done, (record, kind) in enumerate(_readable(catalogue, broken, window, beside), 1):
        pixels, at = record.pixels, record.where.removeprefix(folder)
        digest = hashlib.blake2b(repr(pixels.shape).encode() + pixels.tobytes(), digest_size=16).digest()
        thumbnail = reshape(pixels, THUMBNAIL, 1)[:, :, 0]
        rows.append((at, record.label, group_number(record.group), kind, digest, thumbnail))
        progress(done + len(broken), catalogue.facts.records)
    where, labels, groups, kinds, digests, thumbnails = zip(*rows, strict=True) if rows else ((),) * 6
    return Inspection(
        source=source,
        classes=catalogue.facts.classes,
        where=where,
        labels=np.array(labels, np.int64),
        groups=None if catalogue.facts.groups is None else np.array(groups, np.int64),
        kinds=kinds,
        digests=digests,
        thumbnails=np.array(thumbnails, np.uint8).reshape(-1, THUMBNAIL, THUMBNAIL),
        broken=tuple(broken),
    )


def _readable(
    catalogue: Catalogue, broken: list[str], window: str, beside: Beside | None
) -> Iterator[tuple[Record, str]]:
    """The records that can be read, with their kinds; a line for each of the others goes to `broken`, and all go to `beside`."""
    classes = catalogue.facts.classes
    numbers = {name: number for number, name in enumerate(classes)}

    def fail(fault: BadInput) -> None:
        broken.append(str(fault))
        if beside:
            beside.fail(fault)

    try:
        for file in catalogue.files() if catalogue.files else ():
            try:
                record = record_of(file, numbers[file.label], window)
                kind = kind_of(file.path)
            except BadInput as fault:
                fail(fault)
                continue
            if beside:
                beside.take(record, file.label)
            yield record, kind
        for record in () if catalogue.files else catalogue.records():
            if beside:
                beside.take(record, classes[record.label])
            height, width, channels = record.pixels.shape
            yield record, f"{width}x{height} {'L' if channels == 1 else 'RGB'}"
    except BadInput as fault:
        fail(fault)
