"""Folders of pictures, in class folders or listed by a table, whole or in splits."""

from pathlib import Path

from sfumato.errors import BadInput
from sfumato.sources import dicom, tables
from sfumato.sources.catalogue import NO_GROUPS, PATIENT, VOLUME, Catalogue, File, Request
from sfumato.sources.files import of_files
from sfumato.sources.listing import check_inside, class_names, entries, is_picture, picture_files
from sfumato.sources.splits import SPLITS, parts_asked


def open_image_folder(folder: Path, asked: Request) -> Catalogue:
    """A folder of class folders, or with a table called `metadata`; either also below `train` and `test` (or `validation`).

    Where there are all three, `validation` is in the part `all` only.
    """
    splits = split_folders(folder)
    listed = {name: folder_files(place, folder, asked) for name, place in (splits or {"": folder}).items()}
    classes = tuple(sorted({file.label for files, _ in listed.values() for file in files}))
    chosen, has_parts = parts_asked(listed, asked.part)
    files = [file for name in chosen for file in listed[name][0]]
    grouped = all(found for _, found in listed.values())
    return of_files(str(folder), files, classes, asked, has_parts=has_parts, grouped=grouped)


def split_folders(folder: Path) -> dict[str, Path]:
    """The folders of the splits by name, where a folder holds `train` and no folder that is not a split; else none."""
    found = {entry.name: folder / entry.name for entry in entries(folder) if entry.is_dir()}
    named = {name: next((found[word] for word in words if word in found), None) for name, words in SPLITS.items()}
    if not named["train"] or len(found) != sum(place is not None for place in named.values()):
        return {}
    for entry in entries(folder):
        check_inside(entry, folder)
    return {name: place for name, place in named.items() if place}


def folder_files(folder: Path, root: Path, asked: Request) -> tuple[list[File], bool]:
    """The files of a folder that no splits are below, and whether they have groups; links may not lead out of `root`."""
    if table := tables.metadata_of(folder):
        return tables.table_files(table, asked.columns, asked.group, root=root)
    if asked.group not in ("", NO_GROUPS, VOLUME, *GROUPINGS):
        known = ", ".join(GROUPINGS)
        raise BadInput(
            f"data.group={asked.group!r} is no way to group class folders; use {known}, or a table with a group column"
        )
    grouping = GROUPINGS.get(asked.group)
    names = class_names(folder)
    empty = bool(asked.classes)
    if not grouping:
        return [File(path, name) for name in names for path in picture_files(folder, name, empty=empty)], False
    return [File(path, name, group) for name in names for path, group in grouping(folder, name, empty)], True


def by_folder(root: Path, name: str, empty: bool) -> list[tuple[Path, str]]:
    """The pictures of a class with the folder that each lies in: `class/group/picture`."""
    loose = [entry.path for entry in entries(root / name) if is_picture(entry)]
    if loose:
        raise BadInput(f"{loose[0]!r} lies in no folder of a group, as data.group=folder has it; move it into one")
    within = class_names(root / name) if entries(root / name) or not empty else ()
    for entry in entries(root / name):
        check_inside(entry, root)
    return [(path, group) for group in within for path in picture_files(root, f"{name}/{group}", empty=empty)]


def by_prefix(root: Path, name: str, empty: bool) -> list[tuple[Path, str]]:
    """The pictures of a class with what their names begin with, up to the first underscore."""
    found = [(path, path.name.partition("_")) for path in picture_files(root, name, empty=empty)]
    for path, (group, mark, _) in found:
        if not (group and mark):
            raise BadInput(f"{str(path)!r} does not begin with a group and '_', as data.group=prefix has it; rename it")
    return [(path, group) for path, (group, _, _) in found]


def by_patient(root: Path, name: str, empty: bool) -> list[tuple[Path, str]]:
    """The pictures of a class with the person in the header of each, as a hash."""
    return [(path, dicom.patient(path)) for path in picture_files(root, name, empty=empty)]


GROUPINGS = {"folder": by_folder, "prefix": by_prefix, PATIENT: by_patient}
"""How class folders tell which pictures belong together, by the value of `data.group`."""
