"""NPZ files: `images`, and as a rule `labels`, and where they are needed `range`, `classes` and `groups`; nothing in them can run code.

In splits, as MedMNIST has them (Yang et al. 2023), there are `train_images`, `train_labels`, `test_images`, `val_images`
and so on instead, and `train_groups` where there are groups; `range` and `classes` are of the whole file.
`images` is `[n, h, w]` or `[n, h, w, 1 or 3]`, uint8, or other numbers (16 bits, floats) together with `range`, the two values that
stand for black and white; they are rounded to 256 levels. `labels` is integer `[n]` or `[n, 1]`. `classes` are names for the labels 0, 1,
...; without it the classes are the label values. Without `labels` all images are one class. `groups` is `[n]`, whole numbers or texts, equal for images that belong
together, to one person for example; another array may stand in for it (`data.group`).
"""

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from sfumato.errors import BadInput, one_line
from sfumato.images import WHITE
from sfumato.sources.catalogue import GROUP, NO_GROUPS, UNLABELLED, Catalogue, Reading, Record, SourceFacts
from sfumato.sources.splits import SPLITS, splits_of_part

GROUPS = ("groups", GROUP)
"""Default arrays of the groups."""


@dataclass(frozen=True)
class Series:
    """The arrays of one split, or of a file without splits."""

    images: str
    """Name of the array."""
    shape: tuple[int, ...]
    kind: np.dtype
    low: float
    high: float
    """The values that stand for black and white."""
    labels: np.ndarray
    """Whole numbers `[n]`."""
    groups: list[str]
    """Name of each image's group; none where there are no groups."""
    unlabelled: bool
    """There is no array of labels."""

    @property
    def channels(self) -> int:
        """1 or 3."""
        return self.shape[3] if len(self.shape) == 4 else 1


def open_npz(path: Path, reading: Reading) -> Catalogue:
    """An NPZ file, in splits or not: the headers of the images, the labels, and the groups as `Data.group` has them."""
    with opened_npz(path) as archive:
        splits = {split: series(archive, first, reading.group, path) for split, first in splits_of(archive).items()}
        names = array(archive, "classes", path) if "classes.npy" in archive.namelist() else None
    chosen, has_parts = splits_of_part(splits, reading.part)
    chosen_splits = [splits[split] for split in chosen]
    if len({bool(one.groups) for one in splits.values()}) > 1:
        raise BadInput(f"only some splits of {str(path)!r} have groups; name them for all, or use data.group=none")
    if len({one.unlabelled for one in splits.values()}) > 1:
        raise BadInput(f"only some splits of {str(path)!r} have labels; add them to all, or to none")
    codes, classes = class_names(np.concatenate([one.labels for one in splits.values()]), names, path)
    if next(iter(splits.values())).unlabelled and names is None:
        classes = (UNLABELLED,)

    def labels() -> Iterator[tuple[int, str]]:
        for one in chosen_splits:
            own = one.groups or [""] * len(one.labels)
            yield from zip(np.searchsorted(codes, one.labels).tolist(), own, strict=True)

    def records() -> Iterator[Record]:
        each = labels()
        for one in chosen_splits:
            with opened_npz(path) as archive:
                images = array(archive, one.images, path)
            where = f"{path}[{one.images}][{{}}]" if has_parts else f"{path}[{{}}]"
            for at, pixels in enumerate(images):
                if one.kind != np.uint8:
                    pixels = levels(pixels, one.low, one.high, where.format(at))
                label, group = next(each)
                yield Record(where.format(at), pixels.reshape(*one.shape[1:3], one.channels), label, group)

    first, groups = chosen_splits[0], {name for one in chosen_splits for name in one.groups}
    count = sum(one.shape[0] for one in chosen_splits)
    facts = SourceFacts(str(path), count, classes, first.channels, first.shape[1], first.shape[2], len(groups) or None)
    return Catalogue(facts, records, has_parts=has_parts, labels=labels)


def splits_of(archive: zipfile.ZipFile) -> dict[str, str]:
    """Prefix of the names of the arrays of each split; empty for a file without splits."""
    present = archive.namelist()
    if "images.npy" in present:
        return {"": ""}
    words = {split: [word for word in names if f"{word}_images.npy" in present] for split, names in SPLITS.items()}
    beginnings = {split: f"{names[0]}_" for split, names in words.items() if names}
    return beginnings if "train" in beginnings else {"": ""}


def series(archive: zipfile.ZipFile, first: str, group: str, path: Path) -> Series:
    """The arrays whose names begin with `first`, of which the images are not read."""
    shape, kind = header(archive, f"{first}images", path)
    unlabelled = f"{first}labels.npy" not in archive.namelist()
    labels = np.zeros(shape[0] if shape else 0, np.int64) if unlabelled else array(archive, f"{first}labels", path)
    low, high = value_range(archive, f"{first}images", kind, path)
    groups = group_names(archive, first, group, shape[0] if shape else 0, path)
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)) or not math.prod(shape):
        raise BadInput(
            f"'{first}images' in {str(path)!r} has the shape {list(shape)}; use [n, h, w] or [n, h, w, 1 or 3]"
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(
            f"'{first}labels' in {str(path)!r} is {labels.dtype} {list(labels.shape)}; use whole numbers, one for each image"
        )
    if len(labels) != shape[0]:
        raise BadInput(
            f"{str(path)!r} holds {shape[0]} {first}images but {len(labels)} {first}labels; make them equally many"
        )
    return Series(f"{first}images", shape, kind, low, high, labels, groups, unlabelled)


@contextmanager
def opened_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; any error inside the block names `path`."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except BadInput:
        raise
    except PermissionError:
        raise BadInput(f"the file {str(path)!r} may not be read; grant this user read permission") from None
    except KeyError as fault:
        raise BadInput(f"{str(path)!r} {fault.args[0]}; save it by numpy.savez(path, images=..., labels=...)") from None
    except (OSError, EOFError, zlib.error, ValueError, SyntaxError, RuntimeError, zipfile.BadZipFile) as fault:
        reason = one_line(fault)
        raise BadInput(f"the file {str(path)!r} is corrupt or cut off ({reason}); make it again") from None


class OpenedArray(NamedTuple):
    """An array of an archive whose header was read."""

    file: IO[bytes]
    """Behind the header: the numbers."""
    shape: tuple[int, ...]
    kind: np.dtype


@contextmanager
def member(archive: zipfile.ZipFile, name: str, path: Path) -> Iterator[OpenedArray]:
    """One array of the archive, opened; nothing that would be unpickled."""
    if f"{name}.npy" not in archive.namelist():
        raise KeyError(f"holds no array {name!r}")
    with archive.open(f"{name}.npy") as file:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, kind = read[np.lib.format.read_magic(file)](file)
        if kind.hasobject:
            raise BadInput(f"{name!r} in {str(path)!r} holds Python objects, which are never read; save plain numbers")
        if fortran and len(shape) > 1:
            raise BadInput(f"{name!r} in {str(path)!r} is in column order; save numpy.ascontiguousarray of it")
        if archive.getinfo(f"{name}.npy").file_size - file.tell() != math.prod(shape) * kind.itemsize:
            raise ValueError(f"{name!r} is not as long as its header says")
        yield OpenedArray(file, shape, kind)


def header(archive: zipfile.ZipFile, name: str, path: Path) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of an array, from its header."""
    with member(archive, name, path) as (_, shape, kind):
        return shape, kind


def array(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    """A whole array, of the shape `[...]` and type that its header says; its checksum is verified."""
    with member(archive, name, path) as (file, shape, kind):
        return np.frombuffer(file.read(), kind).reshape(shape)


def value_range(archive: zipfile.ZipFile, images: str, kind: np.dtype, path: Path) -> tuple[float, float]:
    """The values that stand for black and white."""
    if kind == np.uint8:
        return 0.0, float(WHITE)
    if kind.kind not in "iuf":
        raise BadInput(
            f"{images!r} in {str(path)!r} is {kind}; use uint8, or other numbers with an array 'range' of two values"
        )
    if "range.npy" not in archive.namelist():
        raise BadInput(
            f"{images!r} in {str(path)!r} is {kind} of unknown range; add range=[low, high], the values of black and white"
        )
    ends = array(archive, "range", path)
    if ends.shape != (2,) or ends.dtype.kind not in "iuf" or not float(ends[0]) < float(ends[1]) < math.inf:
        raise BadInput(f"'range' in {str(path)!r} is {str(ends.tolist())[:40]}; use two finite numbers, low < high")
    return float(ends[0]), float(ends[1])


def levels(pixels: np.ndarray, low: float, high: float, where: str) -> np.ndarray:
    """Numbers in [low, high] as uint8, rounded to the nearest of 256 levels."""
    if not (pixels.min() >= low and pixels.max() <= high):  # not a number fails too
        raise BadInput(
            f"the image {where!r} has values from {pixels.min():g} to {pixels.max():g}, outside its range"
            f" [{low:g}, {high:g}]; correct one of them",
            nameless=f"holds an image with values outside its range [{low:g}, {high:g}]: correct one of them",
        )
    return np.round((pixels.astype(np.float64) - low) / (high - low) * WHITE).astype(np.uint8)


def class_names(labels: np.ndarray, names: np.ndarray | None, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Label values in rising order, `[classes]`, and their names; `BadInput` where labels `[n]` go beyond the `names`, or a name is no good."""
    codes = np.unique(labels)
    if names is None:
        return codes, tuple(str(code) for code in codes.tolist())
    if names.ndim != 1 or names.dtype.kind != "U":
        raise BadInput(f"'classes' in {str(path)!r} is {names.dtype} {list(names.shape)}; use one list of texts")
    classes = tuple(str(name) for name in names)
    if len(set(classes)) != len(classes) or not all(name.isprintable() and name for name in classes):
        raise BadInput(f"'classes' in {str(path)!r} repeats a name or has an empty or unprintable one; name each once")
    if codes[0] < 0 or codes[-1] >= len(classes):
        raise BadInput(
            f"'classes' in {str(path)!r} names {len(classes)} classes, labels run from {codes[0]} to {codes[-1]};"
            " name the labels from 0 on",
            nameless=f"has labels beyond the {len(classes)} that 'classes' names: name the labels from 0 on",
        )
    return np.arange(len(classes)), classes


def group_names(archive: zipfile.ZipFile, first: str, group: str, count: int, path: Path) -> list[str]:
    """The group of each of `count` images by the array that `group` names, or the usual one; none where there are no groups."""
    usual = [name for name in GROUPS if f"{first}{name}.npy" in archive.namelist()]
    name = usual[0] if usual and group in ("", *GROUPS) else group
    if name in ("", NO_GROUPS):
        return []
    name = first + name
    if f"{name}.npy" not in archive.namelist():
        raise BadInput(
            f"{str(path)!r} has no array {name!r}, as data.group={group} has it; save numpy.savez(path, images=..., labels=..., {name}=...)"
        )
    stored = array(archive, name, path)
    if stored.ndim != 1 or stored.dtype.kind not in "iuU" or len(stored) != count:
        raise BadInput(
            f"{name!r} in {str(path)!r} is {stored.dtype} {list(stored.shape)}; use whole numbers or texts, one for each of {count} images"
        )
    names = [str(one) for one in stored.tolist()]
    if not all(one and one.isprintable() for one in names):
        raise BadInput(f"{name!r} in {str(path)!r} has an empty or unprintable name; name the group of every image")
    return names
