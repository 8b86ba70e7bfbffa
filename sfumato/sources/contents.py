"""Everything that a source holds as it is stored, whatever is split off or resized: its digest, its files, its pictures, what is wrong with them."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sfumato.errors import BadInput
from sfumato.progress import Progress, silent
from sfumato.sources.catalogue import (
    NO_GROUPS,
    Reading,
    Record,
)
from sfumato.sources.chosen import resolve_names
from sfumato.sources.decoding import kind_of, read_as_dicom
from sfumato.sources.dicom import BURNED_IN
from sfumato.sources.embedded import tables_of
from sfumato.sources.folders import FOLDER, overlooked
from sfumato.sources.identity import (
    NAMES,
    as_written,
    existing,
    fingerprint,
    parts_of,
)
from sfumato.sources.inspecting import Inspection, inspected
from sfumato.sources.opening import as_stored, open_one, open_source
from sfumato.sources.published import images_of
from sfumato.sources.tables import READERS
from sfumato.sources.webdataset import shards_of


def source_digest(source: str | Path, reading: Reading = Reading()) -> str:
    """SHA-256 of everything a source holds, as stored: shape, pixels, class name and group of every record, in any order.

    Decodes every record, so a damaged one is found (`BadInput` names it). Resizing, splitting and file names do not change it.
    With `reading.only` it is that of a source without the other classes.
    """
    catalogue = open_source(source, as_stored(reading))
    names = catalogue.facts.classes
    return digest_of([record_digest(record, names[record.label]) for record in catalogue.records()])


def digest_of(digests: Iterable[bytes]) -> str:
    """The digest of a source whose records have these, in any order."""
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def record_digest(record: Record, name: str) -> bytes:
    """SHA-256 of one record of the class `name`: shape, class name, group where it has one, pixels."""
    pixels = record.identity
    head = (pixels.shape, name, *([record.group] if record.group else []))
    return hashlib.sha256(repr(head).encode() + pixels.tobytes()).digest()


def files_now(source: str | Path, reading: Reading = Reading()) -> str:
    """A digest of the lengths and times of the files that a source is read from, which changes where one of them is written, comes or goes.

    No file is opened. What else lies in their folders, such as the home of a run, does not count.
    """
    digest = hashlib.sha256()
    for part in parts_of(source):
        if part in NAMES:
            digest.update(fingerprint(part, folder=reading.folder).encode())
            continue
        for path in _paths_of(part, reading):
            digest.update(repr((str(path), *as_written(path.stat()))).encode())
    return digest.hexdigest()


def _paths_of(part: str, reading: Reading) -> list[Path]:
    """The files of a source that is no mixture and has a path, in order: its pictures, its table, its tables or shards, or all in its folder."""
    place, files = existing(part), open_one(part, as_stored(reading)).files
    pictures = {file.path for file in files() if isinstance(file.path, Path)} if files else set()
    if not place.is_dir():
        return sorted({place, *pictures})
    place = images_of(place)
    held = pictures or {path for _, path in tables_of(place)} or set(shards_of(place))
    return sorted(held or {path for path in place.iterdir() if path.is_file()})


def stored_pictures(source: str | Path, reading: Reading = Reading()) -> Iterator[np.ndarray]:
    """The pictures of everything that a source holds, as stored, one after the other: uint8 `[h, w, 1 or 3]`."""
    return (record.identity for record in open_source(source, as_stored(reading)).records())


def text_burned_in(source: str | Path, reading: Reading = Reading()) -> int:
    """Pictures of a source of DICOM files whose header says that text is burned into them; others say nothing, and are not opened."""
    catalogue = open_source(source, replace(as_stored(reading), group=_depth(reading), forgiving=True))
    files = list(catalogue.files()) if catalogue.files else []
    if not (files and read_as_dicom(files[0].path)):
        return 0
    return sum(kind_of(file.path).endswith(BURNED_IN) for file in files)


def left_out(source: str | Path, reading: Reading) -> str:
    """What lies in the folders of a source and is not read as one of its pictures, in words without a name; empty where that is all."""
    texts = []
    everything = replace(reading, part="all", classes=(), group=_depth(reading), forgiving=True)
    for part in parts_of(source):
        try:
            files = None if part in NAMES else open_one(part, everything).files
        except BadInput:  # of which whoever reads the source hears elsewhere
            continue
        paths = [file.path for file in files() if isinstance(file.path, Path)] if files else []
        if paths and existing(part).is_dir():
            texts.append(overlooked(images_of(existing(part)), paths))
    return ", ".join(text for text in texts if text)


def _depth(reading: Reading) -> str:
    """The groups of a reading as far as they say how deep its folders are; no header of a person is read for them."""
    return reading.group if reading.group == FOLDER else NO_GROUPS


def tables_among(text: str) -> list[str]:
    """Suffixes of tables among what `left_out` says; by its own path such a table would be a source."""
    return [suffix for suffix in READERS if suffix in text]


def inspect(source: str | Path, reading: Reading = Reading(), *, progress: Progress = silent) -> Inspection:
    """Look through all records of a source as they are stored, those of a mixture at one size, and go on after those that cannot be read."""
    catalogue = open_source(source, for_inspection(source, reading))
    return inspected(str(source), catalogue, window=reading.decoding.window, progress=progress)


def for_inspection(source: str | Path, reading: Reading) -> Reading:
    """The options with which `inspect` opens a source."""
    return replace(
        as_stored(reading),
        size=reading.size if len(parts_of(source)) > 1 else None,
        without=reading.without,
        glyphs_per_class=reading.glyphs_per_class,
        characters=reading.characters,
        shapes_per_class=reading.shapes_per_class,
        forgiving=True,
    )


def resolve_classes(
    source: str | Path, chosen: Sequence[str], setting: str, reading: Reading = Reading()
) -> tuple[str, ...]:
    """The names of the classes of a source that `chosen` means, by names or positions; `setting` is what a refusal calls it."""
    if not chosen:
        return ()
    everything = Reading(
        "all",
        folder=reading.folder,
        columns=reading.columns,
        decoding=reading.decoding.model_copy(update={"labels": True}),
        characters=reading.characters,
        forgiving=True,
    )
    return resolve_names(open_source(source, everything).facts.classes, chosen, str(source), setting)
