"""The forms of a published set: class folders of PNG files, Parquet with these files inside, WebDataset's shards.

All lie below `data/`, where no other picture is, and hold the same bytes of each picture. Folders are named so that Hugging Face's
`datasets` takes none for a split, and file systems that know no upper case keep them apart; the other forms hold the names of the classes
as they are.
"""

import csv
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from artifacts.marking import ImageSigner, png_of
from sfumato.images import ImageSet, picture

DATA, SPLIT, LABELS = "data", "train", "labels.csv"
NAME_DIGITS = 6
"""Digits of a published picture's name."""
NAME_LENGTH = 60
"""Longest folder name in characters, but for what keeps it from being a split; file systems take 255 bytes."""
SHARD_BYTES = 256 * 2**20
"""Bytes of pictures after which a new file of Parquet, or shard, begins."""
ROWS = 1000
"""Rows in a group of Parquet, the least that a reader holds in memory at once."""
SPLIT_WORDS = "validation|valid|val|dev|testing|test|evaluation|eval"
"""Words that `datasets` takes for a split other than `train` wherever they stand alone in the name of a folder."""
SPLIT_IN_NAME = re.compile(rf"(?:(?<=[-._ 0-9])|^)(?=(?:{SPLIT_WORDS})(?:[-._ 0-9]|$))")
TAKEN = ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)))
"""Names that Windows keeps for itself."""


class SetImage(NamedTuple):
    """A picture of a published set."""

    name: str
    """Its number, with as many digits as all others."""
    png: bytes
    label: int
    """The class that counts, as a position in the classes of the set."""
    drawn: int | None
    """The class that it was drawn for, where a judge changed or chose it."""


class Form(NamedTuple):
    """A form of a published set."""

    glob: str
    """The files that hold pictures, from the folder on."""
    write: Callable[[Path, Iterable[SetImage], Sequence[str]], None]


def pictures_of(images: ImageSet, drawn: np.ndarray | None, signer: ImageSigner | None) -> Iterator[SetImage]:
    """The pictures of a set one after the other, marked as synthetic, and signed where there is a signer."""
    for number, (pixels, label) in enumerate(zip(images.pixels, images.labels.tolist(), strict=True)):
        png = png_of(picture(pixels))
        own = None if drawn is None else int(drawn[number])
        yield SetImage(f"{number:0{NAME_DIGITS}d}", signer.signed(png) if signer else png, label, own)


def write_folders(folder: Path, pictures: Iterable[SetImage], classes: Sequence[str]) -> None:
    """`data/train/CLASS/NUMBER.png`, and a table `labels.csv` beside `data`."""
    names = folder_names(classes)
    (folder / DATA / SPLIT).mkdir(parents=True)
    with (folder / LABELS).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        for first, one in zip(count(), pictures, strict=False):
            if not first:
                rows.writerow(["file", "label", "class", *([] if one.drawn is None else ["drawn"])])
            path = folder / DATA / SPLIT / names[one.label] / f"{one.name}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(one.png)
            drawn = [] if one.drawn is None else [classes[one.drawn]]
            rows.writerow([path.relative_to(folder).as_posix(), one.label, classes[one.label], *drawn])


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


def shown_names(classes: Sequence[str]) -> list[str]:
    """The names of the classes, where one cannot be printed that of its folder."""
    return [
        name if name and name.isprintable() else safe for name, safe in zip(classes, folder_names(classes), strict=True)
    ]


def folder_names(classes: Sequence[str]) -> list[str]:
    """A folder name of its own for each class, different from all others in more than capitals."""
    names: list[str] = []
    taken: set[str] = set()
    for safe in map(folder_name, classes):
        numbered = (f"{safe}-{i}" for i in count(2))
        free = next(name for name in chain([safe], numbered) if name.casefold() not in taken)
        taken.add(free.casefold())
        names.append(free)
    return names


def folder_name(name: str) -> str:
    """A class name as a folder name: one that `datasets` neither overlooks, as it does hidden folders, nor takes for a split."""
    safe = safe_name(name).rstrip(".")
    safe = f"_{safe.lstrip('_')}" if safe.startswith("__") else safe or "class"
    safe = f"class={safe}" if safe.split(".")[0].casefold() in TAKEN else safe
    return SPLIT_IN_NAME.sub("class=", safe)


def safe_name(name: str) -> str:
    """A name as one part of a path: letters, digits, dot, dash and underscore; never one that leaves its folder."""
    clean = re.sub(r"[^\w.\-]+", "_", name).lstrip(".")
    return clean[:NAME_LENGTH] or "class"
