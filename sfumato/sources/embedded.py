"""Tables that hold the pictures themselves, as Hugging Face keeps data sets: a Parquet file, a folder of them, or one of `save_to_disk`.

A picture is a column of bytes, or of records `{bytes, path}`, of which the path is ignored; a label is a text, or a whole
number that the schema's metadata may name (`ClassLabel`). In a folder the files lie at its top, below `data`, or below
folders of splits, and are called after their split (`train-00000-of-00002.parquet`). They are read in batches of a few
pictures; nothing in them can run code.

Not covered: pictures that a table names by their paths alone (`sfumato.sources.tables`), several pictures or labels in a
row, and several configurations in one folder (give the folder of one).
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.config import Columns
from sfumato.errors import BadInput
from sfumato.sources.catalogue import GROUP, NO_GROUPS, UNLABELLED, Catalogue, File, Held, Reading, SourceFacts
from sfumato.sources.files import decoded, first_shape
from sfumato.sources.listing import check_inside, entries
from sfumato.sources.saved import ArrowTable, saved_tables
from sfumato.sources.splits import SPLITS, splits_of_part
from sfumato.sources.tables import METADATA, label_column, opened_table, text

SUFFIX = ".parquet"
DATA = "data"
"""Folder below which Hugging Face keeps the files of a data set."""
PICTURES = ("image", "img", "picture")
"""Default columns of the pictures, where several are possible."""
FEATURES = b"huggingface"
"""Key of the schema's metadata under which the names of the classes stand."""
ROWS = 64
"""Pictures that are in memory at once, as they are packed."""
MANY_ROWS = 65_536
"""Labels that are in memory at once."""
WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class Sheet:
    """Facts from the head of such a file."""

    path: Path
    rows: int
    picture: str
    """Name of the column of pictures."""
    label: str
    """Name of the column of labels; empty where there is none."""
    group: str
    """Name of the column of groups, or `none`."""
    names: tuple[str, ...] | None
    """Names of the labels 0, 1, ... where it has them."""


def holds_pictures(place: Path, columns: Columns) -> bool:
    """Whether a Parquet file, or one of those that make a data set of a folder, has a column of pictures.

    A file of a folder that cannot be read counts, so that opening it says why.
    """
    for path in [place] if not place.is_dir() else [path for _, path in tables_of(place)]:
        try:
            with opened_table(path) as file:
                has_pictures = bool(picture_columns(file.schema_arrow, columns))
        except BadInput:
            has_pictures = place.is_dir()
        if has_pictures:
            return True
    return False


def open_embedded(place: Path, reading: Reading) -> Catalogue:
    """One file, or a folder of them in splits or not; `BadInput` names the faulty file, and its `nameless` message does not."""
    tables = tables_of(place) if place.is_dir() else [("", place)]
    splits = {split for split, _ in tables}
    if "" in splits and len(splits) > 1:
        stray = next(path for split, path in tables if not split)
        raise BadInput(
            f"{str(stray)!r} is of no split, while other files of {str(place)!r} are: begin its name with train, validation or test, "
            "or move it away"
        )
    sheets = {path: sheet_of(path, reading) for _, path in tables}
    if len({sheet.label for sheet in sheets.values()}) > 1:
        raise BadInput(
            f"only some files of {str(place)!r} have labels: write them into all, or into none",
            nameless="has labels in some of its files only: write them into all, or into none",
        )
    groups = {sheet.group for sheet in sheets.values()}
    if len(groups) > 1:
        name = next(name for name in sorted(groups) if name != NO_GROUPS)
        raise BadInput(
            f"only some files of {str(place)!r} have the column {name!r}: write it into all, or use data.group=none",
            nameless=f"has the column {name!r} in some of its files only: write it into all, or use data.group=none",
        )
    read = {path: list(rows_of(sheet)) for path, sheet in sheets.items()}
    classes = all_classes(place, list(sheets.values()), read)
    chosen, has_parts = splits_of_part(splits, reading.part)
    paths = [path for split, path in tables if split in chosen]

    def labels() -> Iterator[tuple[int, str]]:
        numbers = {name: number for number, name in enumerate(classes)}
        return ((numbers[label], group) for path in paths for label, group in read[path])

    def files() -> Iterator[File]:
        for path in paths:
            for held, (label, group) in zip(pictures_of(sheets[path]), read[path], strict=True):
                yield File(held, label, group)

    grouped = groups != {NO_GROUPS}
    count = sum(sheets[path].rows for path in paths)
    if not count:
        raise BadInput(
            f"{str(place)!r} has no rows; add one for each image", nameless="has no rows: add one for each image"
        )
    groups_there = len({group for path in paths for _, group in read[path]}) if grouped else None
    facts = SourceFacts(str(place), count, classes, *first_shape(files, reading), groups_there)
    return Catalogue(
        facts, decoded(files, classes, reading.decoding.window), has_parts=has_parts, files=files, labels=labels
    )


def tables_of(folder: Path) -> list[tuple[str, Path]]:
    """The files that make a data set of a folder, in order, each with its split, or empty where its name says none."""
    if saved := saved_tables(folder):
        return [(split_of(split), path) for split, path in saved]
    return [(split, path) for split, path in _below(folder, folder, "") if path.stem != METADATA]


def _below(folder: Path, root: Path, split: str) -> Iterator[tuple[str, Path]]:
    for entry in entries(folder):
        own = split or split_of(entry.name)
        if entry.is_dir() and not split and (own or entry.name == DATA):
            check_inside(entry, root)
            yield from _below(Path(entry.path), root, own)
        elif entry.name.endswith(SUFFIX) and not entry.is_dir():
            check_inside(entry, root)
            yield own, Path(entry.path)


def split_of(name: str) -> str:
    """The split that the name of a file or a folder begins with, as a word of its own; empty for none."""
    word = WORD.match(name)
    return next((split for split, words in SPLITS.items() if word and word[0] in words), "")


def picture_columns(schema: Any, columns: Columns) -> list[str]:
    """Names of the columns that hold pictures: records with bytes in them, or bytes in a column of a usual or of the asked name."""
    import pyarrow

    def holds_bytes(kind: Any) -> bool:
        return pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)

    def within(kind: Any) -> bool:
        return pyarrow.types.is_struct(kind) and any(part.name == "bytes" and holds_bytes(part.type) for part in kind)

    usual = (columns.path, *PICTURES)
    return [field.name for field in schema if within(field.type) or (field.name in usual and holds_bytes(field.type))]


def sheet_of(path: Path, reading: Reading) -> Sheet:
    """The head of one file, with the columns that the settings name."""
    with opened_table(path) as file:
        schema, rows = file.schema_arrow, rows_in(file)
    return Sheet(
        path,
        rows,
        *columns_of(path, schema, reading.columns, reading.group),
        names_of(path, schema, reading.columns.label),
    )


def rows_in(file: Any) -> int:
    """Rows of an opened table."""
    return file.rows if isinstance(file, ArrowTable) else file.metadata.num_rows


class SheetColumns(NamedTuple):
    """Names of the columns that are read."""

    pictures: str
    label: str
    """Empty where there is none."""
    group: str
    """`NO_GROUPS` where there is none."""


def columns_of(path: Path, schema: Any, columns: Columns, group: str) -> SheetColumns:
    """The columns that are read; `BadInput` for one that is not there or not of its kind."""
    import pyarrow

    there = picture_columns(schema, columns)
    usual = [name for name in (columns.path, *PICTURES) if name in there] or (there if len(there) == 1 else [])
    if not usual or (columns.path and columns.path not in there):
        _refuse_column(path, schema, columns.path or PICTURES[0], "data.columns.path", "pictures")
    wanted = group or (GROUP if GROUP in schema.names else NO_GROUPS)
    label = label_column(schema.names, columns)
    named = {label: "data.columns.label"} if label else {}
    settings = named | ({wanted: "data.group"} if wanted != NO_GROUPS else {})
    kinds = (
        pyarrow.types.is_integer,
        pyarrow.types.is_string,
        pyarrow.types.is_large_string,
        pyarrow.types.is_dictionary,
    )
    for name, setting in settings.items():
        if name not in schema.names or not any(fits(schema.field(name).type) for fits in kinds):
            _refuse_column(path, schema, name, setting, "whole numbers or texts")
    return SheetColumns(usual[0], label, wanted)


def _refuse_column(path: Path, schema: Any, name: str, setting: str, what: str) -> None:
    columns = ", ".join(f"{field.name!r} ({field.type})" for field in schema)
    raise BadInput(
        f"{str(path)!r} has no column {name!r} of {what} (its columns: {columns}); name it by {setting}",
        nameless=f"has no column {name!r} of {what} (its columns: {columns}): name it by {setting}",
    )


def names_of(path: Path, schema: Any, label: str) -> tuple[str, ...] | None:
    """Names of the labels 0, 1, ... as Hugging Face writes them beside the schema; None where it has none."""
    try:
        features = json.loads((schema.metadata or {}).get(FEATURES, b"{}")).get("info", {}).get("features", {})
        listed = features.get(label, {}).get("names")
        if isinstance(listed, dict):  # as in the card of a data set
            listed = [listed[str(number)] for number in range(len(listed))]
        if listed is None:
            return None
        names = tuple(listed)
        sound = len(set(names)) == len(names) and all(isinstance(n, str) and n and n.isprintable() for n in names)
    except (AttributeError, KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        what = f"metadata that names the classes of {label!r} not at all, twice or unprintably"
        raise BadInput(f"{str(path)!r} has {what}; name each class once", nameless=f"has {what}: name each class once")
    return names


def rows_of(sheet: Sheet) -> Iterator[tuple[str, str]]:
    """Label and group of each row, as texts; no picture is read."""
    grouped = sheet.group != NO_GROUPS
    wanted = [*([sheet.label] if sheet.label else []), *([sheet.group] if grouped else [])]
    if not wanted:
        yield from itertools.repeat((UNLABELLED, ""), sheet.rows)
        return
    with opened_table(sheet.path) as file:
        for batch in file.iter_batches(columns=wanted, batch_size=MANY_ROWS):
            labels = batch.column(sheet.label).to_pylist() if sheet.label else [UNLABELLED] * batch.num_rows
            groups = batch.column(sheet.group).to_pylist() if grouped else [None] * len(labels)
            for label, group in zip(labels, groups, strict=True):
                own = text(group)
                if grouped and not (own and own.isprintable()):
                    raise _unnamed_row(sheet, sheet.group)
                yield label_of(sheet, label), own


def label_of(sheet: Sheet, value: Any) -> str:
    """The name of a label; `BadInput` for one that is missing or has no name."""
    if not sheet.label:
        return UNLABELLED
    if sheet.names is not None and isinstance(value, int):
        if not 0 <= value < len(sheet.names):
            where = f"in the column {sheet.label!r}, whose names run from 0 to {len(sheet.names) - 1}"
            raise BadInput(
                f"{str(sheet.path)!r} has a label {value} {where}; correct it, or leave unlabelled rows out",
                nameless=f"has a label without a name {where}: correct it",
            )
        return sheet.names[value]
    name = text(value)
    if not name or not name.isprintable():
        raise _unnamed_row(sheet, sheet.label)
    return name


def _unnamed_row(sheet: Sheet, column: str) -> BadInput:
    what = f"a row whose {column!r} is missing or unprintable"
    return BadInput(
        f"{str(sheet.path)!r} has {what}; write a name that can be printed", nameless=f"has {what}: name it"
    )


def all_classes(place: Path, sheets: list[Sheet], read: dict[Path, list[tuple[str, str]]]) -> tuple[str, ...]:
    """The names of all classes: as the metadata has them, else sorted, numbers by their value."""
    if len({sheet.names for sheet in sheets}) > 1:
        raise BadInput(
            f"the files of {str(place)!r} name their classes differently; bring together files of one data set",
            nameless="has files that name their classes differently: bring together files of one data set",
        )
    if sheets[0].names is not None:
        return sheets[0].names
    labels = {label for rows in read.values() for label, _ in rows}
    numbers = all(re.fullmatch(r"-?\d+", name, re.ASCII) for name in labels)
    return tuple(sorted(labels, key=(lambda name: (int(name), name)) if numbers else None))


def pictures_of(sheet: Sheet) -> Iterator[Held]:
    """The pictures of a file one after the other, as they are packed."""
    at = 0
    with opened_table(sheet.path) as file:
        for batch in file.iter_batches(columns=[sheet.picture], batch_size=ROWS):
            for value in batch.column(sheet.picture).to_pylist():
                data = value.get("bytes") if isinstance(value, dict) else value
                if not data:
                    what = "a row without a picture, or with its path alone"
                    raise BadInput(
                        f"{sheet.path}[{at}] is {what}; save the data set with its pictures in it",
                        nameless=f"has {what}",
                    )
                yield Held(f"{sheet.path}[{at}]", data)
                at += 1
