"""Folders that Hugging Face's `datasets` writes by `save_to_disk`: tables in Arrow's stream format, alone or in splits.

`state.json` names the files of a set, `dataset_dict.json` the splits below which there is one each. Read by PyArrow; the library itself
is not needed, and nothing in the files can run code.

Not covered: an order or choice of rows in a separate file (older versions wrote `indices`), which is refused.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput
from sfumato.sources.listing import check_inside, entries

SUFFIX = ".arrow"
STATE, SPLITS_OF = "state.json", "dataset_dict.json"
CHOSEN = ("_indices_files", "_indices_data_files")
"""Keys under which older versions stored a choice of rows."""


@dataclass(frozen=True)
class ArrowTable:
    """A file in Arrow's stream format, with the part of `pyarrow.parquet.ParquetFile` that a reader of pictures needs."""

    path: Path
    schema_arrow: Any

    @property
    def rows(self) -> int:
        """Rows in all of it; no picture is decoded."""
        return sum(batch.num_rows for batch in self._batches())

    def iter_batches(self, columns: Sequence[str], batch_size: int) -> Iterator[Any]:
        """These columns in batches of at most `batch_size` rows."""
        for batch in self._batches():
            chosen = batch.select(list(columns))
            for start in range(0, batch.num_rows, batch_size):
                yield chosen.slice(start, batch_size)

    def _batches(self) -> Iterator[Any]:
        import pyarrow

        with pyarrow.OSFile(str(self.path)) as file, pyarrow.ipc.open_stream(file) as stream:
            yield from stream


def opened_stream(path: Path) -> ArrowTable:
    """A file with its schema read."""
    import pyarrow

    with pyarrow.OSFile(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
        return ArrowTable(path, stream.schema)


def saved_tables(folder: Path) -> list[tuple[str, Path]]:
    """The files of such a folder in order, each with the name of its split, or none; an empty list for another folder."""
    there = {entry.name: entry for entry in entries(folder)}
    for name in (STATE, SPLITS_OF):
        if name in there:
            check_inside(there[name], folder)
    if SPLITS_OF in there:
        splits = [str(name) for name in listed(folder / SPLITS_OF, "splits")]
        missing = [name for name in splits if name not in there or not (folder / name / STATE).is_file()]
        if missing:
            raise _strange(folder / SPLITS_OF, f"names the split {missing[0]!r}, which is not there")
        for name in splits:
            check_inside(there[name], folder)
        return [(name, path) for name in splits for path in files_of(folder / name, folder)]
    return [("", path) for path in files_of(folder, folder)] if STATE in there else []


def files_of(folder: Path, root: Path) -> list[Path]:
    """The files that the state of one set names, in its order."""
    if any(listed(folder / STATE, key) for key in CHOSEN):
        raise _strange(folder / STATE, "keeps a choice of rows apart; save it anew by a newer version")
    names = [str(one.get("filename")) for one in listed(folder / STATE, "_data_files") if isinstance(one, dict)]
    there = {entry.name: entry for entry in entries(folder)}
    if not names or not set(names) <= set(there) or not all(name.endswith(SUFFIX) for name in names):
        raise _strange(folder / STATE, "names no tables that are there")
    for name in names:
        check_inside(there[name], root)
    return [folder / name for name in names]


def listed(path: Path, key: str) -> list[Any]:
    """A list in a file of JSON; empty where it has none of that name."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        values = stored.get(key) or []
    except (OSError, ValueError, AttributeError):
        raise _strange(path, "cannot be read as JSON") from None
    if not isinstance(values, list):
        raise _strange(path, f"has no list {key!r}")
    return values


def _strange(path: Path, what: str) -> BadInput:
    way = "save the data set again by save_to_disk"
    return BadInput(f"{str(path)!r} {what}: {way}", nameless=f"has a {path.name} that {what}: {way}")
