"""Sources in which every picture is a file of its own, or held like one: a list of them becomes a catalogue."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sfumato.config import Slices
from sfumato.errors import BadInput
from sfumato.sources.catalogue import GROUP, PATIENT, VOLUME, Catalogue, File, Reading, Record, SourceFacts
from sfumato.sources.decoding import read_as_dicom, record_of, shape_of
from sfumato.sources.nifti import is_volume, slices_of
from sfumato.sources.pictures import check_same_shape

PEEKED = 32
"""Files of a list, about, whose headers are compared before anything is decoded."""


def of_files(
    source: str,
    files: Sequence[File],
    classes: tuple[str, ...],
    reading: Reading,
    *,
    has_parts: bool = False,
    grouped: bool = False,
) -> Catalogue:
    """The catalogue of one or more files; the first one's header gives the shape, and a few others must agree with it.

    Where `reading` is forgiving, it is the first that can be read, whatever others say; where pictures are read as stored, none need agree. A
    volume gives its slices, which belong together wherever there are several.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    several = reading.decoding.slices.count > 1 and any(is_volume(file.path) for file in files)
    by_volume = several and not grouped
    grouped = grouped or (by_volume and reading.group in ("", VOLUME))
    files = sliced(files, reading.decoding.slices, Path(source), by_volume=by_volume and grouped)
    groups = len({file.group for file in files}) if grouped else None
    shape = first_shape(lambda: files, reading)
    by_patient = not grouped and files and read_as_dicom(files[0].path)
    grouping = VOLUME if by_volume else PATIENT if by_patient else GROUP
    facts = SourceFacts(source, len(files), classes, *shape, groups, grouping=grouping)
    if not (reading.forgiving or reading.stored):
        check_headers(files, facts, reading)

    def labels() -> Iterator[tuple[int, str]]:
        return ((numbers[file.label], file.group) for file in files)

    records = decoded(lambda: files, classes, reading.decoding.window)
    return Catalogue(facts, records, has_parts=has_parts, files=lambda: files, labels=labels)


def sliced(files: Sequence[File], slices: Slices, root: Path, *, by_volume: bool) -> list[File]:
    """The files with the slices of each volume in its place; `by_volume` makes a group of each file, by its path below `root`."""
    return [
        File(place, file.label, os.path.relpath(str(file.path), root) if by_volume else file.group)
        for file in files
        for place in (slices_of(file.path, slices) if is_volume(file.path) else (file.path,))
    ]


def decoded(
    files: Callable[[], Iterable[File]], classes: tuple[str, ...], window: str
) -> Callable[[], Iterator[Record]]:
    """A function that decodes one file after the other."""
    numbers = {name: number for number, name in enumerate(classes)}

    def records() -> Iterator[Record]:
        for file in files():
            yield record_of(file, numbers[file.label], window)

    return records


def check_headers(files: Sequence[File], facts: SourceFacts, reading: Reading) -> None:
    """Refuse a second shape, as requested, among about `PEEKED` of the files, spread evenly; `load` compares all."""
    wanted = [file for file in files if reading.takes(file.label) and file.label in (reading.classes or facts.classes)]
    first: Record | None = None
    for file in wanted[:: -(-len(wanted) // PEEKED) or 1]:
        channels, height, width = shape_of(file.path, reading.decoding.window)
        own = replace(facts, channels=channels, height=height, width=width)
        channels, height, width = reading.shape(own)
        record = Record(str(file.path), np.broadcast_to(np.uint8(0), (height, width, channels)), 0)
        first = first or record
        check_same_shape(first, record)


def first_shape(files: Callable[[], Iterable[File]], reading: Reading) -> tuple[int, int, int]:
    """Channels, height and width of the first file of the requested classes, else of the first one; of the first readable one if `reading` is
    forgiving."""
    fault: BadInput | None = None
    for file in itertools.chain((file for file in files() if reading.takes(file.label)), files()):
        try:
            return shape_of(file.path, reading.decoding.window)
        except BadInput as error:
            fault = fault or error
            if not reading.forgiving:
                break
    raise fault or BadInput("no picture has a shape, for there is none")
