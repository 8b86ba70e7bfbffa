"""Recognises a source and reads its names and headers: which kind lies at a place, and what of it is chosen."""

from pathlib import Path

from sfumato.config import AUTO_WINDOW
from sfumato.errors import BadInput, one_line
from sfumato.sources.built_in import OPENERS
from sfumato.sources.catalogue import (
    NO_GROUPS,
    Catalogue,
    Reading,
)
from sfumato.sources.chosen import narrowed
from sfumato.sources.embedded import holds_pictures, open_embedded
from sfumato.sources.files import of_files
from sfumato.sources.folders import open_image_folder
from sfumato.sources.identity import (
    NAMES,
    existing,
    parts_of,
    prefixes,
)
from sfumato.sources.idx import holds_idx, open_idx
from sfumato.sources.mixture import mix
from sfumato.sources.named import NAMED, open_named
from sfumato.sources.npz import open_npz
from sfumato.sources.private_names import CANNOT
from sfumato.sources.published import images_of
from sfumato.sources.tables import READERS, table_files
from sfumato.sources.unlabelled import without_labels
from sfumato.sources.webdataset import open_shards, shards_of


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


def open_one(source: str, reading: Reading) -> Catalogue:
    """A source that is no mixture."""
    try:
        place = None if source in NAMES else existing(source)
        place = images_of(place) if place and place.is_dir() else place
        catalogue = opened_one(source, place, reading)
    except OSError as error:
        if source in NAMES:  # which may be fetched
            raise
        raise BadInput(
            f"{error.filename or source!r} cannot be read ({error.strerror or one_line(error)}); give this user the permission, or mend the disk",
            nameless=f"{CANNOT} ({error.strerror or type(error).__name__})",
        ) from None
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
