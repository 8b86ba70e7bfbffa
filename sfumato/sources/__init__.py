"""Image collections: described without opening a picture, loaded with every fault named, split by the record itself.

A source is `digits` (scikit-learn's), `glyphs` (see `sfumato.glyphs`), a data set by name (`sfumato.sources.named`), a
folder of class folders, a folder of IDX files, an NPZ file, or for public images several of these as `a+b`. `describe`
reads names and headers alone; `load` decodes.

Not covered: pixels of more than 8 bits (refused), transparency (ignored), EXIF orientation (ignored), frames after the
first, and a check whether two sources hold copies of the same pictures (`same_source` knows names and places alone).
"""

import hashlib
from pathlib import Path

import numpy as np

from sfumato.config import Crop
from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.sources.built_in import ALPHABETS, open_digits, open_glyphs
from sfumato.sources.catalogue import Catalogue, Facts, Part, Record, Request
from sfumato.sources.folders import open_class_folders
from sfumato.sources.identity import (
    absolute,
    existing,
    fingerprint,
    held_out_by_hash,
    needs_folder,
    parts_of,
    prefixes,
    same_source,
)
from sfumato.sources.idx import holds_idx, open_idx
from sfumato.sources.mixture import mix
from sfumato.sources.named import NAMED, open_named
from sfumato.sources.npz import open_npz
from sfumato.sources.pictures import check_same_shape, shaped

__all__ = [
    "ALPHABETS",
    "Facts",
    "Part",
    "absolute",
    "describe",
    "fingerprint",
    "held_out_by_hash",
    "load",
    "needs_folder",
    "parts_of",
    "require_classes",
    "same_source",
    "source_digest",
]


def describe(
    source: str | Path,
    *,
    part: Part = "train",
    size: int | None = None,
    channels: int | None = None,
    crop: Crop = "none",
    held_out: float = 0.2,
    folder: str = "",
    glyphs_per_class: int = 400,
    characters: str | None = None,
    shares: tuple[float, ...] = (),
) -> Facts:
    """Records, classes and shape of a part of a source, from names and headers alone; arguments as in `load`.

    A data set by name that is not there is fetched now, or refused.
    """
    asked = Request(
        part=part,
        size=size,
        channels=channels,
        crop=crop,
        held_out=held_out,
        folder=folder,
        glyphs_per_class=glyphs_per_class,
        characters=characters,
        shares=shares,
    )
    catalogue = open_source(source, asked)
    facts, records = catalogue.facts, catalogue.facts.records
    if not catalogue.has_parts and part != "all":
        kept = round(records * held_out)
        records = kept if part == "test" else records - kept
    return Facts(str(source), records, facts.classes, *asked.shape(facts))


def load(
    source: str | Path,
    *,
    part: Part = "train",
    size: int | None = None,
    channels: int | None = None,
    crop: Crop = "none",
    invert: bool = False,
    held_out: float = 0.2,
    folder: str = "",
    glyphs_per_class: int = 400,
    characters: str | None = None,
    shares: tuple[float, ...] = (),
    seed: int = 0,
) -> ImageSet:
    """Decode a part of a source, as `[n, c, h, w]` pictures of one size.

    `crop="centre"` takes the largest square from the middle, `size` then stretches every picture to that many pixels
    square, `channels` turns all grey (1) or into colour (3); None or 0 keeps them. `invert` turns the grey levels round,
    so that dark ink on paper stands beside light ink. `held_out` is the share kept for testing where the source has no
    test part, `folder` where data sets by name lie. The other arguments are for glyphs (`characters` are all letters
    unless given) and for mixtures (`shares`, see `sfumato.sources.mixture.mix`).
    """
    asked = Request(
        part=part,
        size=size,
        channels=channels,
        crop=crop,
        invert=invert,
        held_out=held_out,
        folder=folder,
        glyphs_per_class=glyphs_per_class,
        characters=characters,
        shares=shares,
        seed=seed,
    )
    catalogue = open_source(source, asked)
    classes, by_hash = catalogue.facts.classes, part != "all" and not catalogue.has_parts
    pixels: list[np.ndarray] = []
    labels: list[int] = []
    first: Record | None = None
    for record in catalogue.records():
        # The split looks at the picture as stored, so that asking for another size moves no record to the other side.
        if by_hash and held_out_by_hash(record.pixels, classes[record.label], held_out) != (part == "test"):
            continue
        record = record._replace(pixels=shaped(record.pixels, asked))
        first = first or record
        check_same_shape(first, record)
        pixels.append(record.pixels)
        labels.append(record.label)
    if not pixels:
        raise BadInput(
            f"the {part} part of {str(source)!r} holds none of its {catalogue.facts.records} records;"
            f" change data.held_out={held_out} or add images"
        )
    stacked = np.ascontiguousarray(np.stack(pixels).transpose(0, 3, 1, 2))
    return ImageSet(stacked, np.array(labels, dtype=np.int64), classes)


def source_digest(source: str | Path, *, folder: str = "") -> str:
    """SHA-256 of everything a source holds, as stored: shape, pixels and class name of every record, in any order.

    Decodes every record, so a damaged one is found (`BadInput` names it). Resizing, splitting and file names do not change it.
    """
    catalogue = open_source(source, Request(part="all", folder=folder))
    names = catalogue.facts.classes
    each = sorted(
        hashlib.sha256(repr((r.pixels.shape, names[r.label])).encode() + r.pixels.tobytes()).digest()
        for r in catalogue.records()
    )
    return hashlib.sha256(b"".join(each)).hexdigest()


def require_classes(facts: Facts, at_least: int = 2) -> None:
    """Refuse a source with fewer classes than the caller can work with."""
    if len(facts.classes) < at_least:
        raise BadInput(
            f"{facts.source!r} holds {len(facts.classes)} class ({', '.join(map(repr, facts.classes))}),"
            f" at least {at_least} are needed; sort the images into {at_least} or more class folders"
        )


def open_source(source: str | Path, asked: Request) -> Catalogue:
    """Recognise a source and read its names and headers."""
    parts = parts_of(source)
    if len(parts) > 1:
        return mix({name: open_one(part, asked) for name, part in zip(prefixes(parts), parts, strict=True)}, asked)
    if asked.shares:
        raise BadInput(
            f"data.shares={list(asked.shares)} is for a mixture, but {str(source)!r} is one source; leave it out"
        )
    return open_one(parts[0], asked)


def open_one(source: str, asked: Request) -> Catalogue:
    """A source that is no mixture."""
    if source == "digits":
        return open_digits(asked.part)
    if source == "glyphs":
        return open_glyphs(asked)
    if source in NAMED:
        return open_named(source, asked.folder, asked.part)
    place = existing(source)
    if not place.is_dir():
        return open_npz(place)
    return open_idx(place, asked.part) if holds_idx(place) else open_class_folders(place)
