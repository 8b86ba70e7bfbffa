"""A part of a source, described by names and headers alone or decoded to pictures of one size."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from sfumato.config import Constants, Data
from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.progress import Progress, silent
from sfumato.sources.built_in import ALPHABETS
from sfumato.sources.catalogue import (
    Reading,
    Record,
    SourceFacts,
    group_number,
)
from sfumato.sources.identity import (
    group_held_out,
    group_used,
    held_out_by_hash,
    used_by_hash,
)
from sfumato.sources.opening import open_source
from sfumato.sources.pictures import check_same_shape, check_same_unit, shaped

PROGRESS_EVERY = 256
"""Decoded pictures between two signs of progress."""


def describe(source: str | Path, reading: Reading = Reading()) -> SourceFacts:
    """Records, classes and shape of a part of a source, from names and headers alone.

    A data set by name that is not there is fetched now, or refused.
    """
    catalogue = open_source(source, reading)
    facts = catalogue.facts

    units = facts.records if facts.groups is None else facts.groups
    whole = Constants(
        records=units, images=facts.records, classes=reading.classes or facts.classes, parts=catalogue.has_parts
    )

    def expected(count: int) -> int:
        if reading.part == "test" and not catalogue.has_parts:
            return round(count * reading.held_out)
        return whole.expected(count, held_out=reading.held_out if reading.part == "train" else 0.0, share=reading.used)

    groups = None if facts.groups is None else expected(facts.groups)
    stored, colours = facts.stored or min(facts.height, facts.width), facts.colours or facts.channels
    channels, height, width = reading.shape(facts)
    shaped_facts = replace(facts, source=str(source), channels=channels, height=height, width=width)
    records = expected(facts.records)
    counted = replace(shaped_facts, records=records, classes=whole.classes, groups=groups, whole=whole)
    return replace(counted, stored=stored, colours=colours)


def load(source: str | Path, reading: Reading = Reading(), *, progress: Progress = silent) -> ImageSet:
    """Decode a part of a source, as `[n, c, h, w]` pictures of one size."""
    gathering = Gathering(source, reading)
    facts = gathering.catalogue.facts
    for done, record in enumerate(gathering.catalogue.records(), 1):
        if not done % PROGRESS_EVERY:
            progress(done, facts.records)
        gathering.take(record, facts.classes[record.label])
    return gathering.images()


class Gathering:
    """The pictures of a part of a source, gathered from its records one after the other."""

    def __init__(self, source: str | Path, reading: Reading):
        """Opens the source: headers and listings alone."""
        self.catalogue = open_source(source, reading)
        self._source, self._reading = str(source), reading
        self._by_hash = reading.part != "all" and not self.catalogue.has_parts
        self._numbers = {name: number for number, name in enumerate(reading.classes or self.catalogue.facts.classes)}
        self._pixels: list[np.ndarray] = []
        self._labels: list[int] = []
        self._groups: list[int] = []
        self._first: Record | None = None

    def take(self, record: Record, name: str) -> None:
        """The next record, of the class `name`, as it is stored; `BadInput` for one that does not go with those before."""
        reading = self._reading
        # The split looks at the picture as stored, so that asking for another size moves no record to the other side.
        if self._by_hash and held_out_of(record, name, reading.held_out) != (reading.part == "test"):
            return
        if (reading.used < 1 and not used_of(record, name, reading.share)) or name not in self._numbers:
            return
        record = record._replace(pixels=shaped(record.pixels, reading), known_as=None)
        self._first = self._first or record
        check_same_shape(self._first, record)
        check_same_unit(self._first, record, reading.decoding.window)
        self._pixels.append(record.pixels)
        self._labels.append(self._numbers[name])
        self._groups.append(group_number(record.group))

    def images(self) -> ImageSet:
        """All that were taken, `[n, c, h, w]`; `BadInput` where there are none."""
        facts, part = self.catalogue.facts, self._reading.part
        held_out, share = self._reading.held_out, self._reading.share
        if not self._pixels:
            raise BadInput(
                f"the {part} part of {self._source!r} holds none of its {facts.records} records;"
                f" change data.held_out={held_out}, data.share={share:g} or add images",
                nameless=f"has no record in its {part} part, where the same picture, pixel by pixel, is held out or not every time it is there: change data.held_out={held_out}, "
                f"data.share={share:g} or add images",
            )
        stacked = np.ascontiguousarray(np.stack(self._pixels).transpose(0, 3, 1, 2))
        grouped = None if facts.groups is None else np.array(self._groups, dtype=np.int64)
        return ImageSet(stacked, np.array(self._labels, dtype=np.int64), tuple(self._numbers), grouped)


def held_out_of(record: Record, name: str, share: float) -> bool:
    """Whether a record of the class `name` is kept for testing where the source does not say: with its group, or by itself."""
    if record.group:
        return group_held_out(record.group, share)
    return held_out_by_hash(record.identity, name, share)


def used_of(record: Record, name: str, share: float) -> bool:
    """Whether a training record of the class `name` is in the share that is used: with its group, or by itself."""
    if record.group:
        return group_used(record.group, share)
    return used_by_hash(record.identity, name, share)


def public_reading(data: Data, size: int, *, seed: int = 0) -> Reading:
    """The options for reading the public side of a data section, resized to `size` pixels square (0: not resized)."""
    return Reading(
        "all",
        size=size,
        channels=data.channels,
        crop=data.crop,
        invert=data.invert in ("public", "both"),
        folder=data.folder,
        glyphs_per_class=data.glyphs_per_class,
        characters=ALPHABETS[data.glyphs],
        shapes_per_class=data.shapes_per_class,
        shares=data.shares,
        columns=data.columns,
        decoding=data.decoding("public"),
        only=data.public_classes,
        without=data.public_without,
        seed=seed,
    )
