"""Data sets by name, read from the data folder and, where there is a network, put there by torchvision.

Looked for in `FOLDER/name` (IDX files, see `sfumato.sources.idx`) and where torchvision keeps the set (`FOLDER/MNIST/raw`,
`FOLDER/celeba`, ...). A download goes to a hidden folder and is moved to its place when it is whole. Handwriting is white
on black in all of them: Omniglot, which is published black on white, is turned round and boxed as MNIST's digits are.

`celeba` has the classes female and male, the attribute that most papers condition on, `celeba-hair` black, blonde and brown hair (Liu et
al. 2024) and none of the pictures with another colour or several; the validation part is in `all` only.
CIFAR-10 is published as Python pickles, which torchvision opens after comparing each with its published checksum.

Not covered: newer editions of a data set, and whether files under a name are that data set and not another one.
"""

import contextlib
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from sfumato.errors import BadInput, one_line
from sfumato.images import WHITE
from sfumato.sources.catalogue import Catalogue, Part, Record, SourceFacts
from sfumato.sources.decoding import decode
from sfumato.sources.idx import Layout, holds_idx, open_idx
from sfumato.sources.listing import check_inside, class_names, entries, picture_files
from sfumato.sources.pictures import channels_of, opened

SILENCE_SECONDS = 30.0
"""Seconds of silence after which a download is given up."""
SIDE, BOX = 28, 20
"""Side of an image and of the box that the writing fills, as in MNIST (LeCun et al. 1998)."""
CIFAR_COUNTS = {"train": 50_000, "test": 10_000, "all": 60_000}
CIFAR_SIDE = 32
CELEBA_PARTS = {"train": "0", "test": "2", "all": "012"}
"""Numbers of the parts in `list_eval_partition.txt`; 1 is for validation."""
CELEBA_ENDS = (162_770, 182_637)
"""Numbers of the last pictures for training and for validation (Liu et al. 2015), for a folder without that list."""


@dataclass(frozen=True)
class Named:
    """A data set that is located, and fetched, by its name."""

    title: str
    """The class of torchvision.datasets."""
    place: str
    """Its folder below the data folder, as torchvision has it."""
    files: str
    """The files that must lie there, in words for a person who puts them there."""
    layout: Layout | None = None
    """Layout of its IDX files; None for the sets that torchvision stores in another form."""
    options: tuple[tuple[str, str], ...] = ()
    """Further arguments of the class."""


IDX_FILES = "{train,t10k}-{images-idx3,labels-idx1}-ubyte"
ROMAN = tuple("abcdefghijklmnopqrstuvwxyz")
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CELEBA_LABELS = {
    "celeba": (("female", "male"), ("Male",)),
    "celeba-hair": (("black", "blonde", "brown"), ("Black_Hair", "Blond_Hair", "Brown_Hair")),
}
"""Name -> classes, and the attributes that they follow from: whether the one is there, or which of several, where it is one alone."""
LETTERS_LAYOUT = Layout("emnist-letters-train-", "emnist-letters-test-", ROMAN, first=1, transposed=True)
NAMED = {
    "mnist": Named("MNIST", "MNIST/raw", IDX_FILES, Layout(classes=tuple("0123456789"))),
    "fashion-mnist": Named("FashionMNIST", "FashionMNIST/raw", IDX_FILES, Layout(classes=CLOTHES)),
    "kmnist": Named("KMNIST", "KMNIST/raw", IDX_FILES, Layout(classes=KANA)),
    "emnist-letters": Named(
        "EMNIST",
        "EMNIST/raw",
        "emnist-letters-{train,test}-{images-idx3,labels-idx1}-ubyte",
        LETTERS_LAYOUT,
        (("split", "letters"),),
    ),
    "cifar10": Named("CIFAR10", "cifar-10-batches-py", "data_batch_1 to 5, test_batch and batches.meta"),
    "celeba": Named(
        "CelebA", "celeba", "img_align_celeba/*.jpg, list_attr_celeba.txt, list_eval_partition.txt and the other lists"
    ),
    "celeba-hair": Named("CelebA", "celeba", "img_align_celeba/*.jpg and list_attr_celeba.txt"),
    "omniglot": Named("Omniglot", "omniglot-py", "images_background/ALPHABET/CHARACTER/*.png"),
}
"""Name -> its place and how it is fetched."""


def locate(name: str, folder: str) -> Path | None:
    """The place of a named data set below the data folder; None where it is missing."""
    if not folder:
        return None
    own, place = Path(folder) / name, Path(folder) / NAMED[name].place
    if holds_idx(own):
        return own
    return place if place.is_dir() and entries(place) else None


def open_named(name: str, folder: str, part: Part) -> Catalogue:
    """A named data set, fetched where it is missing and there is a network."""
    place = locate(name, folder) or fetched(name, folder)
    if holds_idx(place):
        catalogue = open_idx(place, part, layout=replace(NAMED[name].layout or Layout(), named=True))
        if NAMED[name].layout and not catalogue.has_parts:
            raise BadInput(f"{str(place)!r} holds no test images of {name!r}; {way_out(name, folder)}")
        return catalogue
    if name in CELEBA_LABELS:
        return open_celeba(place, part, name)
    others = {"cifar10": open_cifar, "omniglot": open_omniglot}
    if name not in others:
        raise BadInput(f"{str(place)!r} holds no images of {name!r}; {way_out(name, folder)}")
    return others[name](place, part)


# --- what is missing --------------------------------------------------------------------------------------------------


def way_out(name: str, folder: str) -> str:
    """The way out for a data set that is missing or incomplete."""
    named = NAMED[name]
    here = f", or write ./{name} for the folder of that name here" if Path(name).is_dir() else ""
    return (
        f"put {named.files} into {str(Path(folder) / named.place)!r}, or remove that folder and try again with a network"
        f" (torchvision.datasets.{named.title} fetches it), or name another data folder by data.folder{here}"
    )


def fetched(name: str, folder: str) -> Path:
    """Fetch a data set into the data folder by torchvision; it appears there completely or not at all."""
    if not folder:
        raise BadInput(f"where {name!r} lies is not known: name the data folder by data.folder=PATH")
    named = NAMED[name]
    top = Path(named.place).parts[0]
    try:
        from torchvision import datasets  # here, since it takes seconds to import and only a download needs it

        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as parcel, patience():
            getattr(datasets, named.title)(parcel, download=True, **dict(named.options))
            try:
                (Path(parcel) / top).rename(Path(folder) / top)
            except OSError:  # another run was faster, or something else is in the way
                if locate(name, folder) is None:
                    raise
    except Exception as fault:  # whatever a network, a mirror, an archive or a full disk may bring
        reason = one_line(fault)
        missing = f"the data set {name!r} is not in {folder!r} and could not be fetched ({reason})"
        raise BadInput(f"{missing}; {way_out(name, folder)}") from None
    return Path(folder) / named.place


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Inside the block a silent network is given up, and torchvision prints nothing."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_SECONDS)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)


# --- sets that are not IDX --------------------------------------------------------------------------------------------


def open_cifar(place: Path, part: Part) -> Catalogue:
    """CIFAR-10 (Krizhevsky 2009): the facts are those of the only edition there is, the checksums say that it is that."""
    facts = SourceFacts("cifar10", CIFAR_COUNTS[part], OBJECTS, 3, CIFAR_SIDE, CIFAR_SIDE)

    def records() -> Iterator[Record]:
        from torchvision.datasets import CIFAR10

        for train in {"train": (True,), "test": (False,), "all": (True, False)}[part]:
            try:
                images = CIFAR10(place.parent, train=train)
            except (RuntimeError, OSError) as fault:
                reason = one_line(fault)
                raise BadInput(
                    f"{str(place)!r} is incomplete or damaged ({reason}); {way_out('cifar10', str(place.parent))}"
                ) from None
            side = "train" if train else "test"
            for i, (pixels, label) in enumerate(zip(images.data, images.targets, strict=True)):
                yield Record(f"cifar10 {side}[{i}]", pixels, label)

    return Catalogue(facts, records, has_parts=True)


def open_celeba(place: Path, part: Part, name: str = "celeba") -> Catalogue:
    """CelebA (Liu et al. 2015), aligned and cropped: two lists name the pictures, their parts and their attributes.

    Without the list of the parts they are those that were published, by the pictures' numbers.
    """
    pictures, attributes, partition = (place / each for each in ("img_align_celeba", ATTRIBUTES, PARTITION))
    _, names, *rows = table(attributes, name, columns=1)
    classes, wanted = CELEBA_LABELS[name]
    if not set(wanted) <= set(names) or any(len(row) != len(names) + 1 for row in rows):
        raise BadInput(f"{str(attributes)!r} is damaged; {way_out(name, str(place.parent))}")
    if partition.exists():
        parts = dict(row[:2] for row in table(partition, name, columns=2))
    else:
        parts = {row[0]: published_part(row[0]) for row in rows}
    columns = [1 + names.index(attribute) for attribute in wanted]
    labels = {row[0]: celeba_label([row[column] == "1" for column in columns]) for row in rows}
    taken = (one for one in labels if parts.get(one, "") in tuple(CELEBA_PARTS[part]))
    chosen = [(one, label) for one in taken if (label := labels[one]) is not None]
    there = {entry.name: entry for entry in entries(pictures)} if pictures.is_dir() else {}
    lacking = [one for one, _ in chosen if one not in there]
    if not chosen:
        raise BadInput(
            f"{str(attributes)!r} names no picture of {name!r} in the part {part!r}; {way_out(name, str(place.parent))}"
        )
    if lacking:
        raise BadInput(
            f"{str(pictures)!r} lacks {len(lacking)} of {len(chosen)} pictures; {way_out(name, str(place.parent))}"
        )
    for one, _ in chosen:
        check_inside(there[one], place)
    with opened(pictures / chosen[0][0]) as image:
        shape = (channels_of(image, pictures / chosen[0][0]), image.height, image.width)

    def records() -> Iterator[Record]:
        for one, label in chosen:
            yield Record(str(pictures / one), decode(pictures / one).pixels, label)

    facts = SourceFacts(name, len(chosen), classes, *shape)
    return Catalogue(facts, records, has_parts=True, labels=lambda: ((label, "") for _, label in chosen))


ATTRIBUTES, PARTITION = "list_attr_celeba.txt", "list_eval_partition.txt"
"""CelebA's lists."""


def celeba_label(there: list[bool]) -> int | None:
    """The class by which of its attributes are there: 0 or 1 for a single one, else the place of the only one, or None."""
    if len(there) == 1:
        return int(there[0])
    return there.index(True) if sum(there) == 1 else None


def published_part(picture: str) -> str:
    """The part of a picture by the number that it is called by; empty where it is called by none."""
    number = Path(picture).stem
    return str(sum(int(number) > end for end in CELEBA_ENDS)) if number.isdecimal() else ""


def table(path: Path, name: str, columns: int) -> list[list[str]]:
    """The words of each line of a list of the data set `name`, `columns` or more in each."""
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as fault:
        reason = getattr(fault, "strerror", "") or "not a text"
        raise BadInput(
            f"the list {str(path)!r} cannot be read ({reason}); {way_out(name, str(path.parent.parent))}"
        ) from None
    if len(rows) < 2 or any(len(row) < columns for row in rows):
        raise BadInput(f"the list {str(path)!r} is cut off; {way_out(name, str(path.parent.parent))}")
    return rows


def open_omniglot(place: Path, part: Part) -> Catalogue:
    """Omniglot's background set (Lake et al. 2015), one class per character; see `boxed` for how it is shown."""
    root = place / "images_background"
    if not root.is_dir():
        raise BadInput(f"{str(root)!r} is missing; {way_out('omniglot', str(place.parent))}")
    names = [f"{alphabet}/{character}" for alphabet in class_names(root) for character in class_names(root / alphabet)]
    files = [(path, label) for label, name in enumerate(names) for path in picture_files(root, name)]

    def records() -> Iterator[Record]:
        for path, label in files:
            yield Record(str(path), boxed(WHITE - decode(path).pixels), label)

    facts = SourceFacts("omniglot", len(files), tuple(names), 1, SIDE, SIDE)
    return Catalogue(facts, records, has_parts=False, labels=lambda: ((label, "") for _, label in files))


def boxed(writing: np.ndarray) -> np.ndarray:
    """White writing `[h, w, 1]` cut out, brought to a box of 20x20 and centred by mass in 28x28 (LeCun et al. 1998)."""
    rows, columns = (np.flatnonzero(writing.max((1 - axis, 2))) for axis in (0, 1))
    if not len(rows):
        return np.zeros((SIDE, SIDE, 1), np.uint8)
    cut = Image.fromarray(writing[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1, 0])
    scale = BOX / max(cut.size)
    cut = cut.resize([max(1, round(scale * side)) for side in cut.size], Image.Resampling.BOX)
    ink = np.asarray(cut).astype(float)
    middle = [(ink.sum(1 - axis) @ np.arange(ink.shape[axis])) / ink.sum() for axis in (0, 1)]
    top, left = (
        int(np.clip(round((SIDE - 1) / 2 - m), 0, SIDE - side)) for m, side in zip(middle, ink.shape, strict=True)
    )
    shown = np.zeros((SIDE, SIDE, 1), np.uint8)
    shown[top : top + ink.shape[0], left : left + ink.shape[1], 0] = np.asarray(cut)
    return shown
