"""Lists folders safely: names in order, no hidden files, no link that leads out."""

import errno
import os
from pathlib import Path

from sfumato.errors import BadInput
from sfumato.sources import dicom, nifti

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
SUFFIXES = (*PICTURES, *dicom.SUFFIXES, *nifti.SUFFIXES)
FOLDERS_WITHIN = "where each is a person with the images in it, say data.group=folder, else move the images up"
"""The way out of folders within class folders."""


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name, without hidden files; links may not lead out of the source."""
    try:
        with os.scandir(folder) as listing:
            present = sorted((e for e in listing if not e.name.startswith(".")), key=lambda e: e.name)
    except PermissionError:
        raise BadInput(f"the folder {str(folder)!r} may not be read; grant this user read permission") from None
    if circle := next((entry.path for entry in present if entry.is_symlink() and _in_a_circle(entry)), None):
        raise BadInput(
            f"{circle!r} is a link that leads back to itself; remove it",
            nameless="holds a link that leads back to itself: remove it",
        )
    return present


def _in_a_circle(link: os.DirEntry[str]) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def check_inside(entry: os.DirEntry[str], root: Path) -> None:
    """Refuse a link that leads out of the source: a data set must not pull in other files of the machine."""
    if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(os.path.realpath(root)):
        raise BadInput(
            f"{entry.path!r} is a link to {os.path.realpath(entry.path)!r}, and paths from data files cannot leave"
            " their folder; copy the images in, or remove the link"
        )


def class_names(folder: Path) -> tuple[str, ...]:
    """Sorted names of the class folders."""
    listing = entries(folder)
    names = []
    for entry in listing:
        check_inside(entry, folder)
        if entry.is_dir():
            names.append(entry.name)
    if not names:
        raise BadInput(
            f"the folder {str(folder)!r} holds no images; add them, one folder per class",
            nameless="holds no images where there should be some: add them, one folder per class",
        )
    strange = [name for name in names if not name.isprintable()]
    if strange:
        raise BadInput(f"the class folder {strange[0]!r} of {str(folder)!r} has unprintable characters; rename it")
    return tuple(names)


def is_flat(folder: Path) -> bool:
    """Whether a folder holds pictures and no folders."""
    present = entries(folder)
    return any(map(is_picture, present)) and not any(entry.is_dir() for entry in present)


def picture_files(root: Path, name: str, *, empty: bool = False) -> list[Path]:
    """Sorted picture files of one class; none only where it may be `empty`."""
    present = entries(root / name)
    pictures = [entry for entry in present if is_picture(entry)]
    for entry in pictures:
        check_inside(entry, root)
    if not (pictures or empty):
        place, (class_name, *within) = f"the class folder {str(root / name)!r}", Path(name).parts
        if not within and any(entry.is_dir() for entry in present):
            raise BadInput(
                f"{place} holds folders in place of images; {FOLDERS_WITHIN}",
                nameless=f"holds folders in place of images in the class folder {class_name!r}: {FOLDERS_WITHIN}",
            )
        raise BadInput(
            f"{place} holds no images ({', '.join(SUFFIXES)}); add some or remove it",
            nameless=f"holds no images ({', '.join(SUFFIXES)}) in the class folder {class_name!r}, or in one inside: add some or remove it",
        )
    return [Path(entry.path) for entry in pictures]


def is_picture(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a file with the name of a picture, or has DICOM's mark under an unknown name; a broken link counts, so that opening
    it names the fault."""
    broken = entry.is_symlink() and not os.path.exists(entry.path)
    if not (entry.is_file() or broken):
        return False
    return entry.name.lower().endswith(SUFFIXES) or (not is_known(entry.name) and dicom.has_mark(entry.path))


def is_known(name: str) -> bool:
    """Whether the end of a name says that a file is something else; DICOM files are often called by numbers alone."""
    end = name.rpartition(".")[2]
    return end != name and end.isalpha()
