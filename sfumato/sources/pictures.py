"""Single pictures: decoded strictly, brought to the requested shape."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from sfumato.config import window_bounds
from sfumato.errors import BadInput, one_line
from sfumato.images import WHITE
from sfumato.sources.catalogue import Held, Reading, Record
from sfumato.sources.streams import reachable, stream
from sfumato.sources.windows import Grey

DEEP = ("I;16", "I;16B", "I;16L", "I;16N")
"""Modes of grey with 16 bits."""
UNBOUNDED = ("I", "F")
"""Modes of grey whose white level is unknown."""
BITS, MEANS = 258, 262
"""Tags of a TIFF: bits of a sample, and whether 0 is black (1) or white (0)."""
WHITE_IS_ZERO = 0
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")
"""Formats that are read, whatever a file is called: none for which Pillow starts another program, as it does for PostScript."""
CORRUPT = "holds an image that is corrupt or cut off: replace or remove it"
UPRIGHT = 1
ON_THE_SIDE = (5, 6, 7, 8)
"""EXIF orientations: none to be turned, and those that exchange height and width."""


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
def opened(path: Path | Held) -> Iterator[Image.Image]:
    """A picture with its header read and its pixels not; any error inside the block names `path`."""
    try:
        # Through a file of our own: Pillow maps named TIFFs into memory, and turns those round wrongly.
        with (
            reachable(path, "image"),
            strict_pillow(),
            stream(path) as file,
            Image.open(file, formats=FORMATS) as image,
        ):
            yield image
    except (BadInput, MemoryError):
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        limit = f"{Image.MAX_IMAGE_PIXELS:,}" if Image.MAX_IMAGE_PIXELS else "the allowed number of"
        raise BadInput(
            f"the image {str(path)!r} has more than {limit} pixels; shrink or remove it",
            nameless=f"holds an image of more than {limit} pixels: shrink or remove it",
        ) from None
    except UnidentifiedImageError:
        raise BadInput(
            f"the image {str(path)!r} is corrupt or cut off (no kind of image); replace or remove it", nameless=CORRUPT
        ) from None
    except Exception as fault:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error and others
        reason = one_line(fault)
        raise BadInput(
            f"the image {str(path)!r} is corrupt or cut off ({reason}); replace or remove it", nameless=CORRUPT
        ) from None


def pixels_of(path: Path | Held) -> Grey | np.ndarray:
    """All pixels of a picture, in grey as the file holds it, or uint8 `[h, w, 3]`; checksums are verified where the format has them."""
    with opened(path) as image:
        image.verify()
    with opened(path) as image:
        channels, turn = channels_of(image, path), orientation(image)
        image.load()
        upright = image if turn == UPRIGHT else ImageOps.exif_transpose(image)
        if upright.mode in (*DEEP, *UNBOUNDED):
            return deep(np.asarray(upright), image)
        pixels = np.asarray(upright.convert("L" if channels == 1 else "RGB"))
        return Grey(pixels, "8 bits", (0, WHITE)) if channels == 1 else pixels


def deep(values: np.ndarray, image: Image.Image) -> Grey:
    """Grey values `[h, w]` of more than 8 bits, with the range that its bits declare; without one where the mode has none."""
    tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    inverted = tags.get(MEANS) == WHITE_IS_ZERO
    if image.mode in UNBOUNDED:
        return Grey(values, mode_of(image), None, inverted=inverted)
    bits = int(tags.get(BITS, (16,))[0])
    return Grey(values, f"{bits} bits", (0, 2**bits - 1), inverted=inverted)


def shape_of(path: Path | Held) -> tuple[int, int, int]:
    """Channels, height and width of a picture as it is decoded, from its header."""
    with opened(path) as image:
        return channels_of(image, path), *_upright(image)


def _upright(image: Image.Image) -> tuple[int, int]:
    """Height and width of an opened picture once it is turned."""
    on_the_side = orientation(image) in ON_THE_SIDE
    return (image.width, image.height) if on_the_side else (image.height, image.width)


def unbounded(path: Path | Held) -> str:
    """The unit of a picture whose white nobody can know, from its header; empty for others."""
    with opened(path) as image:
        return mode_of(image) if image.mode in UNBOUNDED else ""


def mode_of(image: Image.Image) -> str:
    """The mode as a unit."""
    return f"mode {image.mode!r}"


def kind_of(path: Path | Held) -> str:
    """Size of a picture as it is decoded, and its mode as it is stored, such as `640x480 RGB`, from its header."""
    with opened(path) as image:
        height, width = _upright(image)
        return f"{width}x{height} {image.mode}"


def orientation(image: Image.Image) -> int:
    """The turn that an opened picture still needs, from its header alone: a PNG's EXIF behind the pixels is ignored."""
    if image.format == "TIFF":  # turned by Pillow itself, header and all
        return UPRIGHT
    return Image.Image.getexif(image).get(ExifTags.Base.Orientation, UPRIGHT)


def channels_of(image: Image.Image, path: Path | Held) -> int:
    """1 for grey, 3 for colour and palettes; refuses what is neither."""
    if image.mode in ("1", "L", "LA", *DEEP, *UNBOUNDED):
        return 1
    if image.mode in ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"):
        return 3
    raise BadInput(
        f"the image {str(path)!r} has pixels of mode {image.mode!r}; convert it to 8 bits per channel, or to grey of 16",
        nameless=f"holds an image with pixels of mode {image.mode!r}: convert it to 8 bits per channel, or to grey of 16",
    )


def reshape(pixels: np.ndarray, size: int | None, channels: int | None) -> np.ndarray:
    """Bring `[h, w, c]` to the requested side and channels: area average when shrinking, bicubic when growing."""
    height, width, depth = pixels.shape
    recolour, resize = bool(channels) and channels != depth, bool(size) and (height, width) != (size, size)
    if not (recolour or resize):
        return pixels
    image = Image.fromarray(pixels[:, :, 0] if depth == 1 else pixels)
    if recolour:
        image = image.convert("L" if channels == 1 else "RGB")
    if resize and size:
        shrinks = size <= min(height, width)
        image = image.resize((size, size), Image.Resampling.BOX if shrinks else Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(image.height, image.width, -1)


def shaped(pixels: np.ndarray, reading: Reading) -> np.ndarray:
    """A picture `[h, w, c]` cropped, resized, recoloured and inverted as requested."""
    if reading.crop == "centre":
        height, width, _ = pixels.shape
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        pixels = pixels[top : top + side, left : left + side]
    pixels = reshape(pixels, reading.size, reading.channels)
    return WHITE - pixels if reading.invert else pixels


def check_same_unit(first: Record, record: Record, window: str) -> None:
    """Refuse two units of grey under one declared window, naming both pictures."""
    if first.unit != record.unit and window_bounds(window):
        raise BadInput(
            f"images differ in what their values are: {first.where!r} has {first.unit}, {record.where!r} has {record.unit}, and "
            f"data.window={window} means one; use auto or record",
            nameless=f"holds images of {first.unit} and of {record.unit}, and data.window={window} means one: use auto or record",
        )


def check_same_shape(first: Record, record: Record) -> None:
    """Refuse a second size or number of channels, or both, naming both pictures."""
    shapes = first.pixels.shape, record.pixels.shape
    differing, ways = [], []
    if shapes[0][:2] != shapes[1][:2]:
        differing.append(("size", *(f"{width}x{height}" for height, width, _ in shapes)))
        ways.append("data.size=<side> to resize all")
    if shapes[0][2] != shapes[1][2]:
        differing.append(("channels", *("grey" if depth == 1 else "colour" for *_, depth in shapes)))
        ways.append("data.channels=1 or data.channels=3 to convert all")
    if differing:
        what, one, other = (" and ".join(words) for words in zip(*differing, strict=True))
        way = f"pass {', and '.join(ways)}"
        raise BadInput(
            f"images differ in {what}: {first.where!r} is {one}, {record.where!r} is {other}; {way}",
            nameless=f"holds images of {one}, and of {other}: {way}",
        )
