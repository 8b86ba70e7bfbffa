"""Tables of images: each row names a file below the table's own folder and its class, and may name its group.

Read as CSV (UTF-8, commas), JSON lines (`.jsonl`) and Parquet; all values are taken as text, and nothing in them can run
code. A folder with a table called `metadata` is one as well, which is how Hugging Face's image folders are kept.

Not covered: pictures inside the table (`sfumato.sources.embedded`), and more than one class for a picture.
"""

import csv
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from sfumato.config import Columns
from sfumato.errors import BadInput, one_line
from sfumato.sources import dicom, saved
from sfumato.sources.catalogue import GROUP, NO_GROUPS, PATIENT, UNLABELLED, USUAL_COLUMNS, VOLUME, File
from sfumato.sources.listing import entries

OTHER_MARKS = (";", "\\t", "|")
"""What some programs put between columns, as Python writes it."""
METADATA = "metadata"
"""Name of the table that makes an image folder of the folder that it lies in."""
PATHS = ("path", "file_name")
"""Default columns of the paths, of which the first present one counts."""
Rows = Iterable[Mapping[str, Any]]


def rows_of_csv(path: Path) -> Rows:
    """Rows of a CSV file with a head; `BadInput` for a column that stands in it twice, and for a row of more values."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        head = list(reader.fieldnames or ())
        if twice := _repeated([name for name in head if name]):
            raise BadInput(
                f"the table {str(path)!r} has the column {twice!r} twice; keep one of them",
                nameless=f"holds a table with the column {twice!r} twice: keep one of them",
            )
        rows = list(reader)
    for number, row in enumerate(rows, 1):
        surplus = row.get(None) or []  # where the reader puts what no column takes; Excel writes empty ones
        if any(value.strip() for value in surplus):
            raise BadInput(
                f"row {number} of {str(path)!r} has {len(head) + len(surplus)} values for {len(head)} columns; put a value that holds a comma in quotes",
                nameless="holds a table with a row of more values than columns: put a value that holds a comma in quotes",
            )
    return rows


def rows_of_lines(path: Path) -> Rows:
    """Rows of a file with one JSON object in each line."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    rows = [json.loads(line, object_pairs_hook=_each_key_once) for line in lines if line.strip()]
    if strange := [row for row in rows if not isinstance(row, dict)]:
        raise ValueError(f"{strange[0]!r} is no JSON object")
    return rows


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := _repeated([key for key, _ in pairs]):
        raise ValueError(f"the key {twice!r} stands twice in a line")
    return dict(pairs)


def _repeated(names: list[str]) -> str:
    """The first name that was there before; empty where each stands once."""
    return next((name for at, name in enumerate(names) if name in names[:at]), "")


def rows_of_parquet(path: Path) -> Rows:
    """Rows of a Parquet file, without its metadata."""
    with opened_table(path) as file:
        import pyarrow

        plain = [field.name for field in file.schema_arrow if not pyarrow.types.is_nested(field.type)]
        return file.read(columns=plain).to_pylist()


@contextmanager
def opened_table(path: Path) -> Iterator[Any]:
    """A Parquet file (`pyarrow.parquet.ParquetFile`), or one in Arrow's stream format; any error inside the block names `path`."""
    try:
        from pyarrow import parquet  # here, since nothing else needs it
    except ImportError:
        raise BadInput(f"{str(path)!r} needs pyarrow: pip install pyarrow, or save the table as CSV") from None
    try:
        if path.suffix == saved.SUFFIX:
            yield saved.opened_stream(path)
            return
        with parquet.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            yield file
    except (BadInput, MemoryError):
        raise
    except PermissionError:
        raise _unreadable(path) from None
    except Exception as fault:  # pyarrow raises its own kinds, and those of Python
        raise _damaged(path, fault) from None


READERS: dict[str, Callable[[Path], Rows]] = {
    ".csv": rows_of_csv,
    ".jsonl": rows_of_lines,
    ".parquet": rows_of_parquet,
}
"""Readers of each kind of table, by the suffix of its name."""


def metadata_of(folder: Path) -> Path | None:
    """The table called `metadata` in a folder, or None; `BadInput` for two of them."""
    names = [entry.name for entry in entries(folder) if entry.name in {METADATA + suffix for suffix in READERS}]
    if len(names) > 1:
        raise BadInput(f"{str(folder)!r} holds both {names[0]!r} and {names[1]!r}; keep one of them")
    return folder / names[0] if names else None


PERSONS = ("patient", "subject", "person", "participant")
"""Beginnings of the names of columns that usually say whose an image is."""


def column_of_persons(source: str, columns: Columns) -> str:
    """The first column of a source's table that is named like persons, from its head or first row; empty where none is, or there is no table. Columns
    that say something else are left out."""
    place = Path(source)
    table = metadata_of(place) if place.is_dir() else place
    if not (table and table.is_file() and table.suffix in READERS):
        return ""
    others = [name for name in _head(table) if name not in (columns.path, columns.label)]
    return next((name for name in others if name.lower().startswith(PERSONS)), "")


def _head(table: Path) -> list[str]:
    """The names of a table's columns."""
    if table.suffix == ".parquet":
        with opened_table(table) as file:
            return list(file.schema_arrow.names)
    with open(table, encoding="utf-8-sig", newline="") as file:
        if table.suffix == ".csv":
            return list(csv.DictReader(file).fieldnames or ())
        return list(json.loads(next((line for line in file if line.strip()), "{}")))


def table_files(table: Path, columns: Columns, group: str, *, root: Path | None = None) -> tuple[list[File], bool]:
    """The files that a table names, and whether they have groups; `root` is what no path may leave, else the table's folder.

    `BadInput` for a path that leads out or to nothing, for a picture that is named twice, and for a row without class or
    group.
    """
    root = root or table.parent
    rows = read_rows(table)
    if not rows:
        raise BadInput(
            f"the table {str(table)!r} has no rows; add one for each image",
            nameless="has no rows: add one for each image",
        )
    present = list(rows[0])
    path_name = columns.path or next((name for name in PATHS if name in present), PATHS[0])
    group_name = group or (GROUP if GROUP in present else NO_GROUPS)
    by_patient = group_name == PATIENT and PATIENT not in present
    if by_patient or (group_name == VOLUME and VOLUME not in present):
        group_name = NO_GROUPS
    grouped = group_name != NO_GROUPS
    label_name = label_column(present, columns)
    settings = {path_name: "data.columns.path"} | ({label_name: "data.columns.label"} if label_name else {})
    for name, setting in (settings | ({group_name: "data.group"} if grouped else {})).items():
        if name not in present:
            present_names = ", ".join(map(repr, present))
            way = f"name it by {setting}"
            if len(present) == 1 and (mark := next((one for one in OTHER_MARKS if one in present_names), "")):
                way = f"save the table with commas between its columns, in place of {mark!r}"
            raise BadInput(
                f"the table {str(table)!r} has no column {name!r} (its columns: {present_names}); {way}",
                nameless=f"has no column {name!r} (its columns: {present_names}): {way}",
            )
    real, files = Path(os.path.realpath(root)), []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {str(table)!r}"
        for name in (path_name, label_name, group_name if grouped else ""):
            if isinstance(row.get(name), list | dict):
                raise BadInput(f"{where} has {row[name]!r} in the column {name!r}; write one name, as text")
        path = inside(table.parent, text(row[path_name]), real, where)
        if (first := seen.setdefault(os.path.realpath(path), number)) != number:
            raise BadInput(f"{where} names the picture {str(path)!r} again, as row {first} does; keep one of the two")
        label, own = text(row[label_name]) if label_name else UNLABELLED, text(row[group_name]) if grouped else ""
        for name, value in ((label_name, label), *([(group_name, own)] if grouped else [])):
            if not value or not value.isprintable():
                raise BadInput(f"{where} has {value!r} in the column {name!r}; write a name that can be printed")
        files.append(File(path, label, dicom.patient(path) if by_patient else own))
    return files, grouped or by_patient


def label_column(present: Collection[str], columns: Columns) -> str:
    """The column of the labels; empty for a table without the usual one, whose pictures are all one class."""
    return "" if columns.label == USUAL_COLUMNS.label and columns.label not in present else columns.label


def read_rows(table: Path) -> list[Mapping[str, Any]]:
    """All rows of a table; any error names it."""
    try:
        return list(READERS[table.suffix](table))
    except (BadInput, MemoryError):
        raise
    except PermissionError:
        raise _unreadable(table) from None
    except Exception as fault:  # decoding, csv and json each raise their own
        raise _damaged(table, fault) from None


def _unreadable(table: Path) -> BadInput:
    return BadInput(
        f"the table {str(table)!r} may not be read; grant this user read permission",
        nameless="holds a table that may not be read: grant this user read permission",
    )


def _damaged(table: Path, fault: Exception) -> BadInput:
    reason = one_line(fault)
    way = "save it as UTF-8" if isinstance(fault, UnicodeError) else "make it again"
    return BadInput(
        f"the table {str(table)!r} is damaged or no {table.suffix[1:]} ({reason}); {way}",
        nameless=f"holds a table that is damaged or no {table.suffix[1:]}: {way}",
    )


def text(value: Any) -> str:
    """A value of a table as text, without spaces around it; empty for a value that is missing."""
    return "" if value is None else str(value).strip()


def inside(folder: Path, name: str, real: Path, where: str) -> Path:
    """The file of that name below `folder`; `BadInput` for one that is not there, or that is not in the folder `real`."""
    parts = PurePath(name)
    if not name or "\0" in name or parts.is_absolute() or ".." in parts.parts:
        raise BadInput(
            f"{where} names {name!r}: paths from data files cannot leave their folder; write them from the table's folder on,"
            " without '..'"
        )
    path = folder / parts
    if not Path(os.path.realpath(path)).is_relative_to(real):
        raise BadInput(
            f"{where} names {name!r}, a link out of its folder: paths from data files cannot leave it; copy the images in"
        )
    try:
        there = path.is_file()
    except OSError:  # a name that is too long
        there = False
    if not there:
        raise BadInput(f"{where} names {name!r}, which is no file below {str(folder)!r}; correct the row or remove it")
    return path
