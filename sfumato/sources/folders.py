"""Folders of pictures, in class folders or listed by a table, whole or in splits."""

import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from sfumato.errors import BadInput
from sfumato.sources import dicom, tables
from sfumato.sources.catalogue import NO_GROUPS, PATIENT, UNLABELLED, VOLUME, Catalogue, File, Reading
from sfumato.sources.files import of_files
from sfumato.sources.listing import SUFFIXES, check_inside, class_names, entries, is_flat, is_picture, picture_files
from sfumato.sources.splits import SPLITS, splits_of_part


def open_image_folder(folder: Path, reading: Reading) -> Catalogue:
    """A folder of class folders, or with a table called `metadata`; either also below `train` and `test` (or `validation`).

    Where there are all three, `validation` is in the part `all` only.
    """
    splits = split_folders(folder)
    listed = {name: folder_files(place, folder, reading) for name, place in (splits or {"": folder}).items()}
    classes = tuple(sorted({file.label for files, _ in listed.values() for file in files}))
    if UNLABELLED in classes and len(classes) > 1:
        what = f"has splits with labels and splits without (class {UNLABELLED!r})"
        raise BadInput(
            f"{str(folder)!r} {what}; sort all into class folders, or none",
            nameless=f"{what}: sort all into class folders, or none",
        )
    chosen, has_parts = splits_of_part(listed, reading.part)
    files = [file for name in chosen for file in listed[name][0]]
    grouped = all(has_groups for _, has_groups in listed.values())
    return of_files(str(folder), files, classes, reading, has_parts=has_parts, grouped=grouped)


def split_folders(folder: Path) -> dict[str, Path]:
    """The folders of the splits by name, where a folder holds `train` and no folder that is not a split; else none."""
    folders = {entry.name: folder / entry.name for entry in entries(folder) if entry.is_dir()}
    named = {name: next((folders[word] for word in words if word in folders), None) for name, words in SPLITS.items()}
    if not named["train"] or len(folders) != sum(place is not None for place in named.values()):
        return {}
    for entry in entries(folder):
        check_inside(entry, folder)
    return {name: place for name, place in named.items() if place}


def folder_files(folder: Path, root: Path, reading: Reading) -> tuple[list[File], bool]:
    """The files of a folder without splits, and whether they have groups; links may not lead out of `root`."""
    if table := tables.metadata_of(folder):
        return tables.table_files(table, reading.columns, reading.group, root=root)
    if reading.group not in ("", NO_GROUPS, VOLUME, *GROUPINGS):
        known = ", ".join(GROUPINGS)
        raise BadInput(
            f"data.group={reading.group!r} is no way to group class folders; use {known}, or a table with a group column"
        )
    grouping = GROUPINGS.get(reading.group)
    groups_alone = grouping is by_folder and not reading.decoding.labels
    names = ("",) if groups_alone or is_flat(folder) else class_names(folder)
    empty = bool(reading.classes)
    if not grouping:
        pictures = [(path, name, "") for name in names for path in picture_files(folder, name, empty=empty)]
    else:
        pictures = [(path, name, group) for name in names for path, group in grouping(folder, name, empty)]
    return [File(path, name or UNLABELLED, group) for path, name, group in pictures], bool(grouping)


def overlooked(folder: Path, read: Collection[Path]) -> str:
    """What lies in a folder and is not among the files that are `read`, in words without a name; empty where that is all. Hidden files do not count."""
    used, loose, others = {os.path.abspath(path) for path in read}, 0, Counter[str]()
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith(".") or os.path.join(os.path.abspath(place), name) in used:
                continue
            if name.lower().endswith(SUFFIXES):
                loose += 1
            elif Path(name).stem != tables.METADATA and Path(name).suffix.lower() not in BESIDE:
                others[Path(name).suffix.lower() or "without an ending"] += 1
    parts = (
        [f"{loose:,} {'picture that lies' if loose == 1 else 'pictures that lie'} beside or below the class folders"]
        if loose
        else []
    )
    parts += [
        f"{count:,} {'file' if count == 1 else 'files'} {ending}" for ending, count in others.most_common(MOST_ENDINGS)
    ]
    return ", ".join(parts)


BESIDE = (".md", ".db", ".ini")
"""Endings of files that collections carry along, and that nobody takes for records."""
MOST_ENDINGS = 4
"""Kinds of files that are named."""


def by_folder(root: Path, name: str, empty: bool) -> list[tuple[Path, str]]:
    """The pictures of a class with the folder that each lies in: `class/group/picture`, or without a class `group/picture`."""
    loose = [entry.path for entry in entries(root / name) if is_picture(entry)]
    if loose:
        raise BadInput(
            f"{loose[0]!r} lies in no folder of a group, as data.group=folder has it; move it into one",
            nameless="holds images in no folder of a group, as data.group=folder has them (class/group/picture): sort all into such folders, or use another data.group",
        )
    within = class_names(root / name) if entries(root / name) or not empty else ()
    for entry in entries(root / name):
        check_inside(entry, root)
    return [(path, group) for group in within for path in picture_files(root, str(Path(name, group)), empty=empty)]


def by_prefix(root: Path, name: str, empty: bool) -> list[tuple[Path, str]]:
    """The pictures of a class with the prefix of their names, up to the first underscore."""
    split_names = [(path, path.name.partition("_")) for path in picture_files(root, name, empty=empty)]
    for path, (group, mark, _) in split_names:
        if not (group and mark):
            raise BadInput(
                f"{str(path)!r} does not begin with a group and '_', as data.group=prefix has it; rename it",
                nameless="holds images whose names do not begin with a group and '_', as data.group=prefix has them: rename them, or use another data.group",
            )
    return [(path, group) for path, (group, _, _) in split_names]


def by_patient(root: Path, name: str, empty: bool) -> list[tuple[Path, str]]:
    """The pictures of a class with the person in the header of each, as a hash."""
    return [(path, dicom.patient(path)) for path in picture_files(root, name, empty=empty)]


FOLDER = "folder"
GROUPINGS = {FOLDER: by_folder, "prefix": by_prefix, PATIENT: by_patient}
"""Ways to group the pictures of class folders, by the value of `data.group`."""
