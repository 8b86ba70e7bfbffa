"""The forms of a published set: class folders of PNG files, Parquet with these files inside, WebDataset's shards.

All lie below `data/`, where no other picture is, and hold the same bytes of each picture (`sfumato.image_folder`). Folders have names of their own;
the other forms hold the names of the classes as they are.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.image_folder import DATA, SPLIT, SetImage, shown_names, write_folders

SHARD_BYTES = 256 * 2**20
"""Bytes of pictures after which a new file of Parquet, or shard, begins."""
ROWS = 1000
"""Rows in a group of Parquet, the least that a reader holds in memory at once."""


class Form(NamedTuple):
    """A form of a published set."""

    glob: str
    """The files that hold pictures, from the folder on."""
    write: Callable[[Path, Iterable[SetImage], Sequence[str]], None]


def write_parquet(folder: Path, pictures: Iterable[SetImage], classes: Sequence[str]) -> None:
    """`data/train-00000-of-00001.parquet` with the columns `image`, `label` and, where a judge sorted, `drawn`."""
    import pyarrow
    from pyarrow import parquet

    binary, text, whole = pyarrow.binary(), pyarrow.string(), pyarrow.int64()
    kind = pyarrow.struct([("bytes", binary), ("path", text)])
    parts: list[Path] = []
    for shard in shards(pictures):
        columns: dict[str, Any] = {
            "image": pyarrow.array([{"bytes": one.png, "path": f"{one.name}.png"} for one in shard], kind),
            "label": pyarrow.array([one.label for one in shard], whole),
        }
        if shard[0].drawn is not None:
            columns["drawn"] = pyarrow.array([one.drawn for one in shard], whole)
        features = {name: {**feature, "_type": kind} for name, (kind, feature) in features_of(columns, classes).items()}
        about = {"huggingface": json.dumps({"info": {"features": features}})}
        parts.append(_part(folder, len(parts)))
        parquet.write_table(pyarrow.table(columns).replace_schema_metadata(about), parts[-1], row_group_size=ROWS)
    _numbered(parts, ".parquet")


def features_of(columns: Iterable[str], classes: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The columns as `datasets` calls their kinds, with what it says of each."""
    names = {"names": shown_names(classes)}
    return {name: ("Image", {}) if name == "image" else ("ClassLabel", names) for name in columns}


def write_shards(folder: Path, pictures: Iterable[SetImage], classes: Sequence[str]) -> None:
    """`data/train-00000-of-00001.tar`, in which each picture is `NUMBER.png`, its label `NUMBER.cls` and its class `NUMBER.json`."""
    names, parts = shown_names(classes), list[Path]()
    for shard in shards(pictures):
        parts.append(_part(folder, len(parts)))
        with tarfile.open(parts[-1], "w", format=tarfile.USTAR_FORMAT) as tar:
            for one in shard:
                about = {"class": names[one.label]} | ({} if one.drawn is None else {"drawn": names[one.drawn]})
                for end, content in (
                    ("cls", str(one.label).encode()),
                    ("json", json.dumps(about).encode()),
                    ("png", one.png),
                ):
                    entry = tarfile.TarInfo(f"{one.name}.{end}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    _numbered(parts, ".tar")


def shards(pictures: Iterable[SetImage]) -> Iterator[list[SetImage]]:
    """The pictures in lists of `SHARD_BYTES` at most, or of one."""
    shard: list[SetImage] = []
    size = 0
    for one in pictures:
        if shard and size + len(one.png) > SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(one)
        size += len(one.png)
    if shard:
        yield shard


def _part(folder: Path, number: int) -> Path:
    (folder / DATA).mkdir(exist_ok=True)
    return folder / DATA / str(number)


def _numbered(parts: Sequence[Path], suffix: str) -> None:
    """Give files the names that Hugging Face knows, once it is known how many there are."""
    for number, part in enumerate(parts):
        part.rename(part.with_name(f"{SPLIT}-{number:05d}-of-{len(parts):05d}{suffix}"))


FORMS: dict[str, Form] = {
    "folder": Form(f"{DATA}/{SPLIT}/*/*.png", write_folders),
    "parquet": Form(f"{DATA}/{SPLIT}-*.parquet", write_parquet),
    "webdataset": Form(f"{DATA}/{SPLIT}-*.tar", write_shards),
}
"""The forms by the value of `release.form`."""
