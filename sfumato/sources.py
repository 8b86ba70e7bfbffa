"""Image collections: described without opening a picture, loaded with every fault named, split by the record itself.

A source is `digits` (scikit-learn's), `glyphs` (see `sfumato.glyphs`), a folder of class folders, or a folder of IDX
files as MNIST is published (LeCun et al. 1998). `describe` reads names and headers alone; `load` decodes.

Not covered: pixels of more than 8 bits (refused), transparency (ignored), EXIF orientation (ignored), frames after the
first, and a check whether two folders hold copies of the same pictures.
"""

import gzip
import hashlib
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageFile

from sfumato.errors import BadInput
from sfumato.images import ImageSet

Part = Literal["train", "test", "all"]
"""`train` is trained on, `test` is kept for evaluation, `all` is both (public sources)."""

BUILT_IN = ("digits", "glyphs")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")

DIGITS_RECORDS, DIGITS_TEST, DIGITS_SIDE, DIGITS_LEVELS = 1797, 360, 8, 16
"""scikit-learn's digits: records, the fixed number held out, side in pixels, grey levels 0..16."""
GLYPHS_SIDE = 8
"""Side of glyphs when no size is asked for: that of the digits, which they are the public side of."""

IDX_IMAGES, IDX_LABELS = 0x0803, 0x0801
"""Magic numbers: unsigned bytes in three dimensions, and in one."""
IDX_NAMES = {"train": "train-", "test": "t10k-", "all": ""}
"""How file names begin; the empty beginning is a set without a test part."""


@dataclass(frozen=True)
class Facts:
    """What is known of a source before any picture is decoded."""

    source: str
    records: int
    """Records in the asked part; the expected number where the part is split off by hash (see `held_out_by_hash`)."""
    classes: tuple[str, ...]
    channels: int
    height: int
    width: int
    """Of the asked size; else of the first picture, and `load` refuses a folder that mixes sizes."""


class Record(NamedTuple):
    """One decoded picture before resizing."""

    where: str
    """The file, or the place in it, for messages."""
    pixels: np.ndarray
    """uint8 `[h, w, c]`."""
    label: int


@dataclass(frozen=True)
class Catalogue:
    """A source opened as far as names and headers: `describe` reads it, `load` goes on to `records`."""

    facts: Facts
    records: Callable[[], Iterable[Record]]
    """Decodes one record after the other."""
    has_parts: bool
    """The source says itself which records are for testing; otherwise the hash decides."""


# --- the two entries --------------------------------------------------------------------------------------------------


def describe(
    source: str | Path,
    *,
    part: Part = "train",
    size: int | None = None,
    channels: int | None = None,
    held_out: float = 0.2,
    glyphs_per_class: int = 400,
    characters: str | None = None,
) -> Facts:
    """Records, classes and shape of a part of a source, from names and headers alone; arguments as in `load`."""
    check_request(part, size, channels, held_out)
    catalogue = open_source(source, part, size, glyphs_per_class, characters, seed=0)
    facts, records = catalogue.facts, catalogue.facts.records
    if not catalogue.has_parts and part != "all":
        kept = round(records * held_out)
        records = kept if part == "test" else records - kept
    return Facts(
        str(source), records, facts.classes, channels or facts.channels, size or facts.height, size or facts.width
    )


def load(
    source: str | Path,
    *,
    part: Part = "train",
    size: int | None = None,
    channels: int | None = None,
    held_out: float = 0.2,
    glyphs_per_class: int = 400,
    characters: str | None = None,
    seed: int = 0,
) -> ImageSet:
    """Decode a part of a source, as `[n, c, h, w]` pictures of one size.

    `size` stretches every picture to that many pixels square, `channels` turns all grey (1) or into colour (3); None or
    0 keeps them. `held_out` is the share kept for testing where the source has no test part. The last three arguments
    are for `glyphs` alone; `characters` are `LETTERS` unless given.
    """
    check_request(part, size, channels, held_out)
    catalogue = open_source(source, part, size, glyphs_per_class, characters, seed)
    classes, by_hash = catalogue.facts.classes, part != "all" and not catalogue.has_parts
    pixels: list[np.ndarray] = []
    labels: list[int] = []
    first: Record | None = None
    for record in catalogue.records():
        # The split looks at the picture as stored, so that asking for another size moves no record to the other side.
        if by_hash and held_out_by_hash(record.pixels, classes[record.label], held_out) != (part == "test"):
            continue
        record = record._replace(pixels=reshape(record.pixels, size, channels))
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


def open_source(
    source: str | Path, part: Part, size: int | None, glyphs_per_class: int, characters: str | None, seed: int
) -> Catalogue:
    """Recognise a source and read its names and headers."""
    if source == "digits":
        return open_digits(part)
    if source == "glyphs":
        return open_glyphs(size or GLYPHS_SIDE, glyphs_per_class, characters, seed)
    folder = existing_folder(source)
    if any("idx3-ubyte" in entry.name for entry in entries(folder)):
        return open_idx(folder, part)
    return open_class_folders(folder)


def check_request(part: str, size: int | None, channels: int | None, held_out: float) -> None:
    """Refuse settings that no source could satisfy."""
    if part not in ("train", "test", "all"):
        raise BadInput(f"part={part!r} is not a part of a source; use 'train', 'test' or 'all'")
    if size is not None and size < 0:
        raise BadInput(f"data.size={size} is negative; give a side in pixels, or 0 to keep the images as they are")
    if channels not in (None, 0, 1, 3):
        raise BadInput(f"data.channels={channels} is not possible; use 1 (grey), 3 (colour) or 0 (as they are)")
    if not 0 < held_out < 1:
        raise BadInput(f"data.held_out={held_out} is no share; use a number above 0 and below 1")


def require_classes(facts: Facts, at_least: int = 2) -> None:
    """Refuse a source with fewer classes than the caller can work with."""
    if len(facts.classes) < at_least:
        raise BadInput(
            f"{facts.source!r} holds {len(facts.classes)} class ({', '.join(map(repr, facts.classes))}),"
            f" at least {at_least} are needed; sort the images into {at_least} or more class folders"
        )


def same_source(a: str | Path, b: str | Path) -> bool:
    """Whether two sources are the same built-in name, the same folder, or one inside the other, links followed.

    Not covered: copies of a folder, which are different sources that hold the same pictures.
    """
    if str(a) in BUILT_IN or str(b) in BUILT_IN:
        return str(a) == str(b)
    one, two = Path(os.path.realpath(a)), Path(os.path.realpath(b))
    if one.is_relative_to(two) or two.is_relative_to(one):
        return True
    return any(same_inode(one, folder) for folder in (two, *two.parents)) or any(
        same_inode(two, folder) for folder in one.parents
    )


def same_inode(a: Path, b: Path) -> bool:
    """Whether both exist and are one directory under two names (a bind mount, a file system that ignores case)."""
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


# --- which side a record is on ----------------------------------------------------------------------------------------


def held_out_by_hash(pixels: np.ndarray, name: str, share: float) -> bool:
    """Whether a record, `[h, w, c]` uint8 of the class `name`, is kept for testing; True for about `share` of records.

    The answer depends on the record's own bytes and on nothing else: no key, no position, no count. So a record never
    changes side when others come or go, and data sets that differ in one record have training parts that differ in at
    most that one: the neighbours that the privacy statement is about. Equal records land on the same side.
    """
    digest = hashlib.blake2b(repr((pixels.shape, name)).encode(), digest_size=8)
    digest.update(np.ascontiguousarray(pixels))
    return int.from_bytes(digest.digest(), "big") < share * 2**64


# --- built-in sources -------------------------------------------------------------------------------------------------


def open_digits(part: Part) -> Catalogue:
    """scikit-learn's bundled handwritten digits (Alpaydin and Kaynak 1998), 8x8, with a fixed stratified test part."""
    counts = {"train": DIGITS_RECORDS - DIGITS_TEST, "test": DIGITS_TEST, "all": DIGITS_RECORDS}
    facts = Facts("digits", counts[part], tuple("0123456789"), 1, DIGITS_SIDE, DIGITS_SIDE)

    def records() -> Iterator[Record]:
        from sklearn.datasets import load_digits  # here, since a run on other data need not wait for scikit-learn
        from sklearn.model_selection import train_test_split

        counts, labels = load_digits(return_X_y=True)
        pixels = np.round(counts * 255 / DIGITS_LEVELS).astype(np.uint8).reshape(-1, DIGITS_SIDE, DIGITS_SIDE, 1)
        train, test = train_test_split(np.arange(len(labels)), test_size=DIGITS_TEST, stratify=labels, random_state=0)
        for i in {"train": train, "test": test, "all": np.arange(len(labels))}[part]:
            yield Record(f"digits[{i}]", pixels[i], int(labels[i]))

    return Catalogue(facts, records, has_parts=True)


def open_glyphs(size: int, per_class: int, characters: str | None, seed: int) -> Catalogue:
    """Letters rendered from matplotlib's fonts: drawn at `size`, not resized to it."""
    from sfumato import glyphs  # here, since glyphs are made of ImageSet, and to leave matplotlib alone until needed

    characters = glyphs.LETTERS if characters is None else characters
    glyphs.check_request(characters, per_class, size)
    facts = Facts("glyphs", per_class * len(characters), tuple(characters), 1, size, size)

    def records() -> Iterator[Record]:
        drawn = glyphs.render_glyphs(characters, per_class, size, seed)
        for i, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
            yield Record(f"glyphs[{i}]", pixels.transpose(1, 2, 0), int(label))

    return Catalogue(facts, records, has_parts=False)


# --- folders of class folders -----------------------------------------------------------------------------------------


def open_class_folders(folder: Path) -> Catalogue:
    """A folder of class folders: names are listed, the first file's header gives the shape."""
    names = class_names(folder)
    files = [(path, label) for label, name in enumerate(names) for path in picture_files(folder, name)]
    with opened(files[0][0]) as image:
        shape = (channels_of(image, files[0][0]), image.height, image.width)
    facts = Facts(str(folder), len(files), names, *shape)

    def records() -> Iterator[Record]:
        for path, label in files:
            yield Record(str(path), decode(path), label)

    return Catalogue(facts, records, has_parts=False)


def existing_folder(source: str | Path) -> Path:
    """The folder of that name, or the reason why there is none."""
    folder = Path(source)
    known = f"give {' or '.join(BUILT_IN)}, a folder of class folders, or a folder with IDX files"
    if not os.path.lexists(source):
        raise BadInput(f"the data source {str(source)!r} does not exist; {known}")
    if not folder.is_dir():
        raise BadInput(f"the data source {str(source)!r} is not a folder; {known}")
    return folder


def entries(folder: Path) -> list[os.DirEntry]:
    """What lies in a folder, sorted by name, without hidden files; links may not lead out of the source."""
    try:
        with os.scandir(folder) as found:
            return sorted((e for e in found if not e.name.startswith(".")), key=lambda e: e.name)
    except PermissionError:
        raise BadInput(f"the folder {str(folder)!r} may not be read; grant this user read permission") from None


def check_inside(entry: os.DirEntry, root: Path) -> None:
    """Refuse a link that leads out of the source: a data set must not pull in other files of the machine."""
    if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(os.path.realpath(root)):
        raise BadInput(
            f"{entry.path!r} is a link to {os.path.realpath(entry.path)!r}, and paths from data files cannot leave"
            " their folder; copy the images in, or remove the link"
        )


def class_names(folder: Path) -> tuple[str, ...]:
    """Sorted names of the class folders."""
    found = entries(folder)
    names = []
    for entry in found:
        check_inside(entry, folder)
        if entry.is_dir():
            names.append(entry.name)
    if not names and any(is_picture(entry) for entry in found):
        raise BadInput(f"{str(folder)!r} holds images but no class folders; move them into one folder per class")
    if not names:
        raise BadInput(f"the folder {str(folder)!r} holds no images; add them, one folder per class")
    strange = [name for name in names if not name.isprintable()]
    if strange:
        raise BadInput(f"the class folder {strange[0]!r} of {str(folder)!r} has unprintable characters; rename it")
    return tuple(names)


def picture_files(root: Path, name: str) -> list[Path]:
    """Sorted picture files of one class."""
    found = [entry for entry in entries(root / name) if is_picture(entry)]
    for entry in found:
        check_inside(entry, root)
    if not found:
        raise BadInput(
            f"the class folder {str(root / name)!r} holds no images ({', '.join(SUFFIXES)}); add some or remove it"
        )
    return [Path(entry.path) for entry in found]


def is_picture(entry: os.DirEntry) -> bool:
    """Whether an entry is a file named like a picture; a broken link is one too, so that opening it says so."""
    broken = entry.is_symlink() and not os.path.exists(entry.path)
    return entry.name.lower().endswith(SUFFIXES) and (entry.is_file() or broken)


# --- single pictures --------------------------------------------------------------------------------------------------


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Pillow with its leniency off: half a picture, or one far too large, is an error whatever was set before."""
    lenient = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """A picture with its header read and its pixels not; whatever goes wrong inside is said of `path`."""
    try:
        with strict_pillow(), Image.open(path) as image:
            yield image
    except (BadInput, MemoryError):
        raise
    except PermissionError:
        raise BadInput(f"the image {str(path)!r} may not be read; grant this user read permission") from None
    except FileNotFoundError:
        raise BadInput(f"the image {str(path)!r} is a broken link or was removed; remove the link") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        limit = f"{Image.MAX_IMAGE_PIXELS:,}" if Image.MAX_IMAGE_PIXELS else "the allowed number of"
        raise BadInput(f"the image {str(path)!r} has more than {limit} pixels; shrink or remove it") from None
    except Exception as fault:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error and others
        reason = " ".join(str(fault).split())[:100] or type(fault).__name__
        raise BadInput(f"the image {str(path)!r} is corrupt or cut off ({reason}); replace or remove it") from None


def decode(path: Path) -> np.ndarray:
    """All pixels of a picture, uint8 `[h, w, 1 or 3]`; checksums are verified where the format has them."""
    with opened(path) as image:
        image.verify()
    with opened(path) as image:
        mode = "L" if channels_of(image, path) == 1 else "RGB"
        image.load()
        return np.asarray(image.convert(mode)).reshape(image.height, image.width, -1)


def channels_of(image: Image.Image, path: Path) -> int:
    """1 for grey, 3 for colour and palettes; refuses more than 8 bits, which conversion would cut off in silence."""
    if image.mode in ("1", "L", "LA"):
        return 1
    if image.mode in ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"):
        return 3
    raise BadInput(f"the image {str(path)!r} has pixels of mode {image.mode!r}; convert it to 8 bits per channel")


def reshape(pixels: np.ndarray, size: int | None, channels: int | None) -> np.ndarray:
    """Bring `[h, w, c]` to the asked side and channels: area average when shrinking, bicubic when growing."""
    height, width, depth = pixels.shape
    recolour, resize = bool(channels) and channels != depth, bool(size) and (height, width) != (size, size)
    if not (recolour or resize):
        return pixels
    image = Image.fromarray(pixels[:, :, 0] if depth == 1 else pixels)
    if recolour:
        image = image.convert("L" if channels == 1 else "RGB")
    if resize:
        shrinks = size <= min(height, width)
        image = image.resize((size, size), Image.Resampling.BOX if shrinks else Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(image.height, image.width, -1)


def check_same_shape(first: Record, record: Record) -> None:
    """Refuse a second size or number of channels, naming both pictures."""
    (height, width, depth), (other_height, other_width, other_depth) = first.pixels.shape, record.pixels.shape
    if (height, width) != (other_height, other_width):
        raise BadInput(
            f"images differ in size: {first.where!r} is {width}x{height}, {record.where!r} is"
            f" {other_width}x{other_height}; pass data.size=<side> to resize all"
        )
    if depth != other_depth:
        kind = {1: "grey", 3: "colour"}
        raise BadInput(
            f"images differ in channels: {first.where!r} is {kind[depth]}, {record.where!r} is {kind[other_depth]};"
            " pass data.channels=1 or data.channels=3 to convert all"
        )


# --- IDX files --------------------------------------------------------------------------------------------------------


def open_idx(folder: Path, part: Part) -> Catalogue:
    """A folder of IDX files: headers of the pictures, and the labels, which name the classes."""
    train, test, whole = (idx_pair(folder, IDX_NAMES[p]) for p in ("train", "test", "all"))
    if not (train or whole):
        files = "train-images-idx3-ubyte and train-labels-idx1-ubyte"
        raise BadInput(f"{str(folder)!r} has no training images; add {files}, packed (.gz) or not")
    present = [pair for pair in (train or whole, test) if pair]
    values = [read_idx(labels, IDX_LABELS) for _, labels in present]
    headers = [idx_header(images, IDX_IMAGES) for images, _ in present]
    for (images, labels), header, found in zip(present, headers, values, strict=True):
        if header[0] != len(found):
            raise BadInput(
                f"{str(images)!r} holds {header[0]} images but {str(labels)!r} {len(found)} labels; get both again"
            )
    codes, names = idx_classes(folder, values)
    chosen = {"train": [0], "test": [len(present) - 1], "all": range(len(present))}[part]
    count = sum(headers[i][0] for i in chosen)
    _, height, width = headers[chosen[0]]
    if not count * height * width:
        shape = f"{count} images of {width}x{height}"
        raise BadInput(f"{str(present[chosen[0]][0])!r} holds {shape}; get the file again")

    def records() -> Iterator[Record]:
        for i in chosen:
            path = present[i][0]
            labels = np.searchsorted(codes, values[i])
            for at, (pixels, label) in enumerate(zip(read_idx(path, IDX_IMAGES), labels, strict=True)):
                yield Record(f"{path}[{at}]", pixels[:, :, None], int(label))

    return Catalogue(Facts(str(folder), count, names, 1, height, width), records, has_parts=bool(test))


def idx_pair(folder: Path, beginning: str) -> tuple[Path, Path] | None:
    """Image and label file whose names begin so, packed or not; None if there are no such images."""
    listing = {entry.name: entry for entry in entries(folder)}

    def find(kind: str, dimensions: int) -> Path | None:
        for name in (f"{beginning}{kind}{mark}idx{dimensions}-ubyte{end}" for mark in "-." for end in ("", ".gz")):
            if name in listing:
                check_inside(listing[name], folder)
                return folder / name
        return None

    images, labels = find("images", 3), find("labels", 1)
    if images and not labels:
        raise BadInput(f"{str(images)!r} has no labels beside it; add {beginning}labels-idx1-ubyte[.gz]")
    return (images, labels) if images and labels else None


def idx_classes(folder: Path, values: list[np.ndarray]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Label values in rising order and their names: lines of `classes.txt` where there is one, else the values."""
    codes = np.unique(np.concatenate(values))
    listing = {entry.name: entry for entry in entries(folder)}
    if "classes.txt" not in listing:
        return codes, tuple(str(code) for code in codes)
    check_inside(listing["classes.txt"], folder)
    path = folder / "classes.txt"
    try:
        names = tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        raise BadInput(f"{str(path)!r} cannot be read as UTF-8 text; write one class name per line") from None
    if len(set(names)) != len(names) or not all(name.isprintable() and name for name in names):
        raise BadInput(f"{str(path)!r} repeats a name or has an empty or unprintable one; write one name per line")
    if len(codes) and codes[-1] >= len(names):
        raise BadInput(f"{str(path)!r} names {len(names)} classes, labels go up to {codes[-1]}; add the missing names")
    return np.arange(len(names)), names


@contextmanager
def opened_idx(path: Path) -> Iterator[BinaryIO]:
    """An IDX file, unpacked on the way; whatever goes wrong inside is said of `path`."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except PermissionError:
        raise BadInput(f"the file {str(path)!r} may not be read; grant this user read permission") from None
    except (OSError, EOFError, zlib.error) as fault:
        reason = " ".join(str(fault).split())[:100]
        raise BadInput(f"the file {str(path)!r} is corrupt or cut off ({reason}); get it again") from None


def idx_header(path: Path, magic: int) -> tuple[int, ...]:
    """Lengths of the dimensions of an IDX file, from its first bytes."""
    dimensions = magic & 0xFF
    with opened_idx(path) as file:
        head = file.read(4 + 4 * dimensions)
    if len(head) >= 4 and head[:4] != magic.to_bytes(4, "big"):
        kind = "images" if magic == IDX_IMAGES else "labels"
        raise BadInput(
            f"the file {str(path)!r} begins with {head[:4].hex()}, but IDX {kind} begin with {magic:08x}; get it again"
        )
    if len(head) < 4 + 4 * dimensions:
        raise BadInput(f"the file {str(path)!r} is cut off after {len(head)} bytes; get it again")
    return tuple(int.from_bytes(head[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))


def read_idx(path: Path, magic: int) -> np.ndarray:
    """The uint8 array of an IDX file."""
    lengths = idx_header(path, magic)
    wanted = int(np.prod([int(n) for n in lengths], dtype=object))
    body = bytearray()
    with opened_idx(path) as file:
        file.read(4 + 4 * len(lengths))
        # In pieces, and one byte beyond: a header that promises terabytes must not reserve them.
        while len(body) <= wanted and (piece := file.read(min(1 << 22, wanted + 1 - len(body)))):
            body += piece
    if len(body) != wanted:
        found = f"only {len(body):,}" if len(body) < wanted else "more"
        raise BadInput(f"the file {str(path)!r} promises {wanted:,} bytes and holds {found}; get it again")
    return np.frombuffer(bytes(body), np.uint8).reshape(lengths)


# --- identity ---


def source_digest(source: str | Path) -> str:
    """SHA-256 of everything a source holds, as stored: shape, pixels and class name of every record, in any order.

    Decodes every record, so a damaged one is found (`BadInput` names it). Resizing, splitting and file names do not change it.
    """
    catalogue = open_source(source, "all", None, 1, None, seed=0)
    names = catalogue.facts.classes
    each = sorted(
        hashlib.sha256(repr((r.pixels.shape, names[r.label])).encode() + r.pixels.tobytes()).digest()
        for r in catalogue.records()
    )
    return hashlib.sha256(b"".join(each)).hexdigest()
