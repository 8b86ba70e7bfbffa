"""A source read once for several readers: the inspection, the digest and the images of its parts, where all of them see the same records.

Each picture is decoded once, and no reader keeps more than it would by itself. What cannot share is read by itself: parts of a source
that says itself which records are for testing and has no files by which these are known, and what is drawn.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.progress import Progress, silent
from sfumato.sources.catalogue import Catalogue, Reading, Record
from sfumato.sources.contents import digest_of, for_inspection, record_digest
from sfumato.sources.identity import is_drawn
from sfumato.sources.inspecting import Inspection, inspected
from sfumato.sources.loading import Gathering, load
from sfumato.sources.opening import as_stored, open_source


class Whole(NamedTuple):
    """A source as it is in its files."""

    digest: str
    """As `source_digest` has it."""
    parts: tuple[ImageSet, ...]
    """As `load` has them."""


def inspect_together(
    source: str | Path, reading: Reading, parts: Sequence[Reading], *, progress: Progress = silent
) -> "tuple[Inspection, Together]":
    """The inspection of a source (`inspect`), and what gathered its digest and `parts` in the same pass, or why they cannot be had."""
    together = Together(source, reading, parts)
    catalogue = open_source(source, for_inspection(source, reading))
    beside = None if is_drawn(str(source)) else together  # a digest is of fewer drawings than an inspection
    inspection = inspected(str(source), catalogue, window=reading.decoding.window, beside=beside, progress=progress)
    if beside:
        beside.end()
    return inspection, together


class Together:
    """Gathers digest and parts of a source from records that are handed to it, or that it reads itself; a fault waits until it is asked for them."""

    def __init__(self, source: str | Path, reading: Reading, parts: Sequence[Reading]):
        """Opens the source: headers and listings alone."""
        self._source, self._digests, self._is_read = source, list[bytes](), False
        self._fault: BadInput | OSError | None = None
        self._parts: list[_Part] = []
        try:
            self._stored = open_source(source, as_stored(reading))
        except (BadInput, OSError) as fault:
            self.fail(fault)
            return
        self._parts = [_part_of(source, one, self._stored) for one in parts]

    def take(self, record: Record, name: str) -> None:
        """The next record, of the class `name`, as it is stored."""
        if not self._fault:
            self._digests.append(record_digest(record, name))
            for part in self._parts:
                part.take(record, name)

    def fail(self, fault: BadInput | OSError) -> None:
        """A record that cannot be read, or all; the first is what ends it."""
        self._fault = self._fault or fault
        self._parts, self._digests = [], []

    def end(self) -> None:
        """All records were handed over."""
        self._is_read = True

    def whole(self) -> Whole:
        """Digest and parts, once; `BadInput` or `OSError` for the first fault, in the order of digest and parts."""
        if not (self._is_read or self._fault):
            names = self._stored.facts.classes
            for record in self._stored.records():
                self.take(record, names[record.label])
        if self._fault:
            raise self._fault
        return Whole(digest_of(self._digests), tuple(part.images(self._source) for part in self._parts))


@dataclass
class _Part:
    """A part of a source, and what has been gathered of it."""

    reading: Reading
    gathering: Gathering | None
    """None where it must be read by itself."""
    places: Collection[str] | None = None
    """The places of its records; None for all."""
    fault: BadInput | OSError | None = None

    def take(self, record: Record, name: str) -> None:
        if self.gathering and (self.places is None or record.where in self.places):
            try:
                self.gathering.take(record, name)
            except BadInput as fault:
                self.fault, self.gathering = fault, None

    def images(self, source: str | Path) -> ImageSet:
        gathering, self.gathering = self.gathering, None  # a part is large: let go of its pictures one by one
        if self.fault:
            raise self.fault
        return gathering.images() if gathering else load(source, self.reading)


def _part_of(source: str | Path, reading: Reading, stored: Catalogue) -> _Part:
    """A part, gathered from the `stored` records where it can be: all of them where the split is by their hash, else those of its files."""
    try:
        gathering = Gathering(source, reading)
    except (BadInput, OSError) as fault:
        return _Part(reading, None, fault=fault)
    if is_drawn(str(source)):
        return _Part(reading, None)
    if not gathering.catalogue.has_parts:
        return _Part(reading, gathering)
    places = _places(stored, gathering.catalogue)
    return _Part(reading, gathering if places is not None else None, places)


def _places(stored: Catalogue, part: Catalogue) -> Collection[str] | None:
    """The places of the records of a part, by which they are known in their order among all that are stored; None where they are not."""
    if not (stored.files and part.files) or any(not isinstance(file.path, Path) for file in stored.files()):
        return None
    files = list(part.files())
    places = {str(file.path) for file in files}
    return places if [file for file in stored.files() if str(file.path) in places] == files else None
