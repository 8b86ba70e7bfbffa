"""Folders of WebDataset's shards: tar files in which files of one name but for the end are one record.

The picture is `NAME.png`, `.jpg` or `.jpeg`, its class the field `class` of `NAME.json`, or else the text of `NAME.cls`. Shards are read from
their beginning to their end, without being unpacked. A split is the word that the name of a shard begins with, as in
`train-00000-of-00002.tar`.

Not covered: packed shards, and groups.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from sfumato.errors import BadInput
from sfumato.sources.catalogue import NO_GROUPS, UNLABELLED, Catalogue, File, Held, Reading, SourceFacts
from sfumato.sources.embedded import split_of
from sfumato.sources.files import decoded, first_shape
from sfumato.sources.listing import check_inside, entries
from sfumato.sources.splits import splits_of_part

SUFFIX = ".tar"
PICTURES = ("png", "jpg", "jpeg")
CLASS, JSON = "cls", "json"


def shards_of(folder: Path) -> list[Path]:
    """The shards in a folder, in order; an empty list for another folder."""
    there = [entry for entry in entries(folder) if entry.name.endswith(SUFFIX) and not entry.is_dir()]
    for entry in there:
        check_inside(entry, folder)
    return [Path(entry.path) for entry in there]


def open_shards(folder: Path, reading: Reading) -> Catalogue:
    """The records of all shards in a folder; `BadInput` names the faulty one."""
    if reading.group not in ("", NO_GROUPS):
        raise BadInput(
            f"data.group={reading.group!r} is not for WebDataset's shards, which have no groups; leave it out"
        )
    shards = {path: split_of(path.name) for path in shards_of(folder)}
    chosen, has_parts = splits_of_part(set(shards.values()), reading.part)
    labels = {path: [file.label for file in records_in(path)] for path in shards}
    classes = tuple(sorted({label for each in labels.values() for label in each}))
    paths = [path for path, split in shards.items() if split in chosen]

    def files() -> Iterator[File]:
        return (file for path in paths for file in records_in(path))

    def numbered() -> Iterator[tuple[int, str]]:
        numbers = {name: number for number, name in enumerate(classes)}
        return ((numbers[label], "") for path in paths for label in labels[path])

    records = sum(len(labels[path]) for path in paths)
    if not records:
        raise BadInput(
            f"the shards in {str(folder)!r} hold no pictures ({', '.join(PICTURES)})", nameless="has no pictures"
        )
    facts = SourceFacts(str(folder), records, classes, *first_shape(files, reading))
    return Catalogue(
        facts,
        decoded(files, classes, reading.decoding.window),
        has_parts=has_parts,
        files=files,
        labels=numbered,
    )


def records_in(path: Path) -> Iterator[File]:
    """The records of a shard, one after the other."""
    try:
        with tarfile.open(path, "r:") as tar:
            name, parts = "", dict[str, bytes]()
            for entry in tar:
                if not entry.isfile():
                    continue
                place = PurePosixPath(entry.name)
                stem, _, end = place.name.partition(".")
                here = str(place.parent / stem)
                if here != name and parts:
                    yield from _record(path, name, parts)
                    parts = {}
                name = here
                content = tar.extractfile(entry)
                parts[end.lower()] = content.read() if content else b""
            yield from _record(path, name, parts)
    except (tarfile.TarError, EOFError) as fault:
        what = "a damaged shard"
        raise BadInput(
            f"{str(path)!r} is {what} ({fault}); get it again", nameless=f"holds {what}: get it again"
        ) from None


def _record(path: Path, name: str, parts: dict[str, bytes]) -> Iterator[File]:
    """The record of these files, if it has a picture."""
    picture = next((parts[end] for end in PICTURES if end in parts), None)
    if picture is not None:
        yield File(Held(f"{path}[{name}]", picture), _class_of(path, name, parts))


def _class_of(path: Path, name: str, parts: dict[str, bytes]) -> str:
    if not {JSON, CLASS} & set(parts):
        return UNLABELLED
    try:
        about = json.loads(parts.get(JSON, b"{}"))
        label = str(about["class"] if "class" in about else parts[CLASS].decode().strip())
        if label and label.isprintable():
            return label
    except (ValueError, KeyError, TypeError):
        pass
    raise BadInput(
        f"{str(path)!r} has a record {name!r} without a class that can be printed ({CLASS}, or class in {JSON}); correct it",
        nameless="has a record without a class that can be printed: correct it",
    )
