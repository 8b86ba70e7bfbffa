"""Image collections: described without opening a picture, loaded with every fault named, split by a hash of each record.

A source is `digits` (scikit-learn's), `glyphs` (see `sfumato.sources.glyphs`), `shapes` (`sfumato.sources.shapes`), a data set by name (`sfumato.sources.named`), a
folder of pictures (`sfumato.sources.folders`), a table of them (`sfumato.sources.tables`, with the pictures inside
`sfumato.sources.embedded`), a folder of IDX files, an NPZ file, or for public images several of these as `a+b`; of each
some classes may be chosen (`sfumato.sources.chosen`). `describe` reads names and headers alone; `load` decodes. Pictures
are turned as their EXIF orientation says, and grey of more bits becomes 8 (`sfumato.sources.windows`), DICOM files (`sfumato.sources.dicom`)
and volumes (`sfumato.sources.nifti`) included. The digest, the split and the ledger's fingerprints look at what `auto` shows, so that another
window makes no other records of the same files.

Records of a folder or a table may have groups; then a group lies on one side of the split as a whole, by its name.

Not covered: more than 8 bits of colour (Pillow keeps the upper 8), transparency (ignored), frames after the first, and a
check whether two sources hold copies of the same pictures (`same_source` knows names and places alone).
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sfumato.config import AUTO_WINDOW, Constants, Data
from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.progress import Progress, silent
from sfumato.sources.built_in import ALPHABETS, OPENERS
from sfumato.sources.catalogue import (
    GROUP,
    NO_GROUPS,
    PATIENT,
    UNLABELLED,
    VOLUME,
    Catalogue,
    Part,
    Reading,
    Record,
    SourceFacts,
    group_number,
)
from sfumato.sources.chosen import narrowed, resolve_names
from sfumato.sources.decoding import kind_of, read_as_dicom
from sfumato.sources.dicom import BURNED_IN
from sfumato.sources.embedded import holds_pictures, open_embedded, tables_of
from sfumato.sources.files import of_files
from sfumato.sources.folders import FOLDER, open_image_folder, overlooked
from sfumato.sources.identity import (
    NAMES,
    absolute,
    as_written,
    existing,
    fingerprint,
    group_held_out,
    group_used,
    held_out_by_hash,
    is_drawn,
    is_there,
    must_exist,
    needs_folder,
    parts_of,
    prefixes,
    same_source,
    used_by_hash,
)
from sfumato.sources.idx import holds_idx, open_idx
from sfumato.sources.inspecting import Inspection, inspected
from sfumato.sources.mixture import mix
from sfumato.sources.named import NAMED, open_named
from sfumato.sources.npz import open_npz
from sfumato.sources.pictures import check_same_shape, check_same_unit, shaped
from sfumato.sources.private_names import unnamed
from sfumato.sources.published import card_above, images_of
from sfumato.sources.tables import READERS, table_files
from sfumato.sources.unlabelled import without_labels
from sfumato.sources.webdataset import open_shards, shards_of

__all__ = [
    "ALPHABETS",
    "BURNED_IN",
    "GROUP",
    "NAMES",
    "NO_GROUPS",
    "PATIENT",
    "UNLABELLED",
    "VOLUME",
    "Inspection",
    "Part",
    "Reading",
    "SourceFacts",
    "absolute",
    "card_above",
    "describe",
    "files_now",
    "fingerprint",
    "held_out_by_hash",
    "inspect",
    "is_drawn",
    "is_there",
    "left_out",
    "load",
    "must_exist",
    "needs_folder",
    "parts_of",
    "prefixes",
    "public_reading",
    "same_source",
    "source_digest",
    "stored_pictures",
    "text_burned_in",
    "unnamed",
]


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
    part, classes, held_out, share = reading.part, reading.classes, reading.held_out, reading.share
    catalogue = open_source(source, reading)
    names, by_hash = catalogue.facts.classes, part != "all" and not catalogue.has_parts
    numbers = {name: number for number, name in enumerate(classes or names)}
    pixels: list[np.ndarray] = []
    labels: list[int] = []
    groups: list[int] = []
    first: Record | None = None
    for done, record in enumerate(catalogue.records(), 1):
        if not done % PROGRESS_EVERY:
            progress(done, catalogue.facts.records)
        # The split looks at the picture as stored, so that asking for another size moves no record to the other side.
        if by_hash and held_out_of(record, names, held_out) != (part == "test"):
            continue
        if (reading.used < 1 and not used_of(record, names, share)) or names[record.label] not in numbers:
            continue
        record = record._replace(pixels=shaped(record.pixels, reading), known_as=None)
        first = first or record
        check_same_shape(first, record)
        check_same_unit(first, record, reading.decoding.window)
        pixels.append(record.pixels)
        labels.append(numbers[names[record.label]])
        groups.append(group_number(record.group))
    if not pixels:
        raise BadInput(
            f"the {part} part of {str(source)!r} holds none of its {catalogue.facts.records} records;"
            f" change data.held_out={held_out}, data.share={share:g} or add images",
            nameless=f"has no record in its {part} part, where the same picture, pixel by pixel, is held out or not every time it is there: change data.held_out={held_out}, "
            f"data.share={share:g} or add images",
        )
    stacked = np.ascontiguousarray(np.stack(pixels).transpose(0, 3, 1, 2))
    grouped = None if catalogue.facts.groups is None else np.array(groups, dtype=np.int64)
    return ImageSet(stacked, np.array(labels, dtype=np.int64), tuple(numbers), grouped)


def held_out_of(record: Record, classes: tuple[str, ...], share: float) -> bool:
    """Whether a record is kept for testing where the source does not say: with its group, or by itself."""
    if record.group:
        return group_held_out(record.group, share)
    return held_out_by_hash(record.identity, classes[record.label], share)


def used_of(record: Record, classes: tuple[str, ...], share: float) -> bool:
    """Whether a training record is in the share that is used: with its group, or by itself."""
    if record.group:
        return group_used(record.group, share)
    return used_by_hash(record.identity, classes[record.label], share)


def source_digest(source: str | Path, reading: Reading = Reading()) -> str:
    """SHA-256 of everything a source holds, as stored: shape, pixels, class name and group of every record, in any order.

    Decodes every record, so a damaged one is found (`BadInput` names it). Resizing, splitting and file names do not change it.
    With `reading.only` it is that of a source without the other classes.
    """
    catalogue = open_source(source, as_stored(reading))
    names = catalogue.facts.classes
    each = sorted(record_digest(record, names) for record in catalogue.records())
    return hashlib.sha256(b"".join(each)).hexdigest()


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


def _depth(reading: Reading) -> str:
    """The groups of a reading as far as they say how deep its folders are; no header of a person is read for them."""
    return reading.group if reading.group == FOLDER else NO_GROUPS


def as_stored(reading: Reading) -> Reading:
    """Everything that a source holds, of the chosen classes; how it is split and brought to a size is left out."""
    return Reading(
        "all",
        folder=reading.folder,
        columns=reading.columns,
        decoding=reading.decoding,
        group=reading.group,
        only=reading.only,
        glyphs_per_class=1,
        shapes_per_class=1,
        stored=True,
    )


def record_digest(record: Record, names: tuple[str, ...]) -> bytes:
    """SHA-256 of one record: shape, class name, group where it has one, pixels."""
    pixels = record.identity
    head = (pixels.shape, names[record.label], *([record.group] if record.group else []))
    return hashlib.sha256(repr(head).encode() + pixels.tobytes()).digest()


def inspect(source: str | Path, reading: Reading = Reading(), *, progress: Progress = silent) -> Inspection:
    """Look through all records of a source as they are stored, those of a mixture at one size, and go on after those that cannot be read."""
    everything = replace(
        as_stored(reading),
        size=reading.size if len(parts_of(source)) > 1 else None,
        without=reading.without,
        glyphs_per_class=reading.glyphs_per_class,
        characters=reading.characters,
        shapes_per_class=reading.shapes_per_class,
        forgiving=True,
    )
    return inspected(str(source), open_source(source, everything), window=reading.decoding.window, progress=progress)


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


def open_source(source: str | Path, reading: Reading) -> Catalogue:
    """Recognise a source and read its names and headers."""
    parts, chosen = parts_of(source), bool(reading.only or reading.without)
    if reading.shares and len(parts) == 1:
        raise BadInput(
            f"data.shares={list(reading.shares)} is for a mixture, but {str(source)!r} is one source; leave it out"
        )
    if reading.shares and chosen:
        raise BadInput(
            f"data.shares={list(reading.shares)} takes shares of whole sources, and classes of them are chosen; leave one of the two out"
        )
    if len(parts) > 1:
        catalogue = mix(
            {name: open_one(part, reading) for name, part in zip(prefixes(parts), parts, strict=True)}, reading
        )
    else:
        catalogue = open_one(parts[0], reading)
    catalogue = narrowed(catalogue, reading) if chosen else catalogue
    return catalogue if reading.decoding.labels else without_labels(catalogue, reading)


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


def tables_among(text: str) -> list[str]:
    """Suffixes of tables among what `left_out` says; by its own path such a table would be a source."""
    return [suffix for suffix in READERS if suffix in text]


def open_one(source: str, reading: Reading) -> Catalogue:
    """A source that is no mixture."""
    place = None if source in NAMES else existing(source)
    place = images_of(place) if place and place.is_dir() else place
    catalogue = opened_one(source, place, reading)
    if catalogue.files is None and reading.decoding.window != AUTO_WINDOW:
        raise BadInput(
            f"data.window={reading.decoding.window} is for pictures in files of their own or in tables, and {source!r} holds numbers of 8 "
            "bits, or numbers with their range; leave it at auto (data.public_window on the public side)"
        )
    return catalogue


def opened_one(source: str, place: Path | None, reading: Reading) -> Catalogue:
    """The source at a place, or of a name."""
    if place and (place.suffix == ".parquet" or place.is_dir()) and holds_pictures(place, reading.columns):
        return open_embedded(place, reading)
    if place and place.suffix in READERS and not place.is_dir():
        files, grouped = table_files(place, reading.columns, reading.group)
        return of_files(str(place), files, tuple(sorted({file.label for file in files})), reading, grouped=grouped)
    if place and place.is_dir() and shards_of(place):
        return open_shards(place, reading)
    if place and place.is_dir() and not holds_idx(place):
        return open_image_folder(place, reading)
    if place and not place.is_dir():
        return open_npz(place, reading)
    if reading.group not in ("", NO_GROUPS):
        known = "tables, folders of pictures and NPZ files"
        what = "IDX files have no place for groups: use NPZ or a table" if place else "leave it out"
        raise BadInput(f"data.group={reading.group!r} is for {known}, and {source!r} is none of these; {what}")
    if place:
        return open_idx(place, reading.part)
    if source in NAMED:
        return open_named(source, reading.folder, reading.part)
    return OPENERS[source](reading)
