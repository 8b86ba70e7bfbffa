"""Pictures of images, large enough to see: samples, real ones beside them, and each sample beside its nearest public image.

A pixel is a square of whole size, and an image has `SIDE` pixels a side or more on a page, however small it is.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from sfumato.drawing import places_of, some_of_each
from sfumato.images import ImageSet, grid, save_png

SIDE = 64
"""Least side of an image as it is shown."""
PAGE = 1120
"""Width of a page; a wider picture would be shown smaller than it is."""
MOST_COLUMNS = 12
"""Largest number of images of each class."""
PAIRS, MOST_CLASSES = 6, 20
"""Pairs of each class in the picture of nearest public images, and its largest number of classes."""
APART = 10
"""Pixels between two pairs."""


def scale_of(side: int) -> int:
    """Factor by which an image of this side is enlarged."""
    return -(-SIDE // side)


def columns_of(images: ImageSet) -> int:
    """Number of images of each class that fit beside each other on a page, at most those available."""
    height, width = images.pixels.shape[2:]
    fitting = (PAGE - 2) // (width * scale_of(min(height, width)) + 2)
    return max(1, min(fitting, MOST_COLUMNS, len(images) // max(1, len(images.classes))))


def draw_images(path: Path, images: ImageSet, columns: int) -> None:
    """Some images of each class, one class a row."""
    save_png(path, grid(some_of_each(images, columns), columns, scale_of(min(images.pixels.shape[2:]))))


def of_each(images: ImageSet) -> ImageSet:
    """The images in a picture of pairs: some of each class, for at most `MOST_CLASSES` classes."""
    places = [places_of(images, label, PAIRS) for label in range(len(images.classes))]
    return images.subset(np.concatenate([row for row in places if len(row)][:MOST_CLASSES]))


def draw_pairs(path: Path, images: ImageSet, nearest: np.ndarray) -> None:
    """Each image left of the one that is nearest to it, uint8 `[n, c, h, w]` in the same order, one class a row."""
    scale = scale_of(min(images.pixels.shape[2:]))
    rows = [np.flatnonzero(images.labels == label) for label in np.unique(images.labels)]
    pairs = [[grid(np.stack([images.pixels[i], nearest[i]]), 2, scale) for i in row] for row in rows]
    first = pairs[0][0]
    wide = (first.width + APART) * max(map(len, pairs)) - APART
    page = Image.new(first.mode, (wide, first.height * len(pairs)), "white")
    for down, row in enumerate(pairs):
        for across, pair in enumerate(row):
            page.paste(pair, (across * (first.width + APART), down * first.height))
    save_png(path, page)
