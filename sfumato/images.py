"""Image collections in memory: values, tensors, digests, and pictures to look at.

`sfumato.sources` reads them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

WHITE = 255
"""The grey level of white; black is 0."""
MIDDLE = WHITE / 2
"""Grey levels from the middle, 0 in the range [-1, 1], to either end of it."""
GAP_GREY = 64
"""Grey level between the pictures of a sample grid, so that black borders show."""
LETTERS = 15
"""Height in pixels of the letters of a caption."""
ENLARGED, ENLARGED_POWER = 28, 2 / 3
"""Numerator and power of the side in `enlargement`, chosen so that 8 pixels come out seven times as large and 28 three times."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Pictures with their classes, in memory."""

    pixels: np.ndarray
    """uint8 `[n, c, h, w]`, c = 1 (grey) or 3 (colour)."""
    labels: np.ndarray
    """int64 `[n]`, positions in `classes`."""
    classes: tuple[str, ...]
    """Names, all different."""
    groups: np.ndarray | None = None
    """int64 `[n]`, equal for records that belong together; None where each record stands for itself."""

    def __post_init__(self) -> None:
        pixels, labels = self.pixels, self.labels
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
            raise ValueError(f"pixels must be uint8 [n, 1 or 3, h, w], not {pixels.dtype} {list(pixels.shape)}")
        if labels.dtype != np.int64 or labels.shape != pixels.shape[:1]:
            raise ValueError(f"labels must be int64 [{len(pixels)}], not {labels.dtype} {list(labels.shape)}")
        if self.groups is not None and (self.groups.dtype != np.int64 or self.groups.shape != labels.shape):
            raise ValueError(f"groups must be int64 [{len(pixels)}], not {self.groups.dtype} {list(self.groups.shape)}")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"class names repeat: {self.classes}")
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.classes):
            raise ValueError(f"labels run from {labels.min()} to {labels.max()} for {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: np.ndarray | slice) -> "ImageSet":
        """The records at `index` (positions int64 `[m]`, a mask bool `[n]` or a slice), with all class names kept."""
        groups = None if self.groups is None else self.groups[index]
        return ImageSet(self.pixels[index], self.labels[index], self.classes, groups)


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawn(ImageSet):
    """Images of a priced drawing with the points of its sampler from which any number may branch."""

    points: np.ndarray
    """float32 `[n, c, h, w]`, in the denoisers' space: one behind each image."""


def joined(one: ImageSet, other: ImageSet) -> ImageSet:
    """The records of both, in this order; classes are those of the first, to which the labels of both refer.

    Where the first has groups, those of the other become groups beside them, and each of its records if it has none.
    """
    pixels, labels = np.concatenate([one.pixels, other.pixels]), np.concatenate([one.labels, other.labels])
    if one.groups is None:
        if other.groups is not None:
            raise ValueError("groups cannot join images that stand for themselves")
        return ImageSet(pixels, labels, one.classes)
    free = np.setdiff1d(np.arange(len(one) + len(other)), one.groups)
    own = np.arange(len(other)) if other.groups is None else np.unique(other.groups, return_inverse=True)[1]
    return ImageSet(pixels, labels, one.classes, np.concatenate([one.groups, free[own]]))


def share_a_picture(one: ImageSet, other: ImageSet) -> bool:
    """Whether a picture is in both, pixel by pixel, as it is or with its grey levels turned round.

    Pictures of a single grey level do not count: they show nothing.
    """
    return not _pictures(one).isdisjoint(_pictures(other))


def _pictures(images: ImageSet) -> set[bytes]:
    """A digest of each picture, the same for its negative."""
    shown = (pixels for pixels in images.pixels if pixels.min() != pixels.max())
    return {hashlib.blake2b(min(p.tobytes(), (WHITE - p).tobytes()), digest_size=16).digest() for p in shown}


def shape_of(images: Tensor) -> tuple[int, int, int]:
    """Channels, height and width of images `[n, c, h, w]`."""
    channels, height, width = images.shape[1:]
    return channels, height, width


def to_unit(pixels: np.ndarray) -> Tensor:
    """Grey levels 0..255 as float32 in [-1, 1], same shape."""
    return torch.from_numpy(pixels.astype(np.float32)).div_(MIDDLE).sub_(1)  # in place: collections are large


def to_pixels(x: Tensor) -> np.ndarray:
    """Values in [-1, 1] as grey levels 0..255, clamped and rounded; uint8 of the same shape."""
    return ((x.detach().float().clamp(-1, 1) + 1) * MIDDLE).round().to(torch.uint8).cpu().numpy()


def enlargement(size: int) -> int:
    """The factor by which a picture of this side is enlarged: 7 for 8, 3 for 28, 1 from about 80 up.

    It falls with the power 2/3 of the side: small pictures need it most but should not fill the page.
    """
    return max(1, round(ENLARGED / size**ENLARGED_POWER))


def grid(images: np.ndarray, columns: int, scale: int) -> Image.Image:
    """Pictures uint8 `[n, c, h, w]` in rows of `columns`, each pixel a square of `scale`, with thin grey gaps."""
    if not len(images):
        raise ValueError("a sample grid needs at least one picture")
    count, channels, height, width = images.shape
    gap = 2 if scale > 1 else 1
    rows, tall, wide = -(-count // columns), height * scale, width * scale
    page = np.full((rows * (tall + gap) + gap, columns * (wide + gap) + gap, channels), GAP_GREY, np.uint8)
    enlarged = images.transpose(0, 2, 3, 1).repeat(scale, axis=1).repeat(scale, axis=2)
    for i, picture in enumerate(enlarged):
        top, left = gap + i // columns * (tall + gap), gap + i % columns * (wide + gap)
        page[top : top + tall, left : left + wide] = picture
    return Image.fromarray(page[:, :, 0] if channels == 1 else page)


def captioned(parts: Sequence[tuple[str, np.ndarray]], columns: int, scale: int) -> Image.Image:
    """Sample grids one above the other, each of pictures uint8 `[n, c, h, w]` under its caption."""
    pages = [(caption, grid(images, columns, scale)) for caption, images in parts]
    bar = 2 * LETTERS
    whole = Image.new(
        "RGB", (max(page.width for _, page in pages), sum(page.height + bar for _, page in pages)), "white"
    )
    pen, font, top = ImageDraw.Draw(whole), ImageFont.load_default(LETTERS), 0
    for caption, page in pages:
        pen.text((LETTERS // 3, top + bar / 2), caption, fill="black", font=font, anchor="lm")
        whole.paste(page.convert("RGB"), (0, top + bar))
        top += page.height + bar
    return whole


def picture(pixels: np.ndarray) -> Image.Image:
    """One picture from uint8 `[c, h, w]`."""
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def save_png(path: str | Path | IO[bytes], image: Image.Image) -> None:
    """Write a picture as PNG, without metadata."""
    image.save(path, format="PNG", optimize=True)


def pairs_picture(pairs: np.ndarray) -> Image.Image:
    """Pairs of images `[k, 2, c, h, w]` side by side: the first of each above the second."""
    rows = pairs.swapaxes(0, 1).reshape(-1, *pairs.shape[2:])
    return grid(rows, len(pairs), enlargement(pairs.shape[-2]))
