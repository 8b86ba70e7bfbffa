"""What a classifier of public images tells apart: their classes, or where these are all one, how each image was turned.

Telling turns apart teaches features without a label (Gidaris et al. 2018): whoever can say which side of a picture is up has learnt what is
in it.

Not covered: pictures that look the same when turned, from which nothing is learnt so.
"""

import numpy as np

from sfumato.images import ImageSet

QUARTERS, HALVES = (0, 1, 2, 3), (0, 2)
"""Quarter turns that are told apart, and those of images that are not square."""


def told_apart(images: ImageSet) -> ImageSet:
    """The images with something to tell apart: as they are where they are of several classes, else each turned once, in turn."""
    if len(images.classes) > 1:
        return images
    turns = turns_of(images.pixels.shape[2], images.pixels.shape[3])
    which = np.arange(len(images)) % len(turns)
    pixels = images.pixels.copy()
    for place, quarters in enumerate(turns):
        pixels[which == place] = np.rot90(images.pixels[which == place], quarters, (2, 3))
    return ImageSet(pixels, which.astype(np.int64), tuple(f"turned by {90 * quarters}" for quarters in turns))


def turns_of(height: int, width: int) -> tuple[int, ...]:
    """The quarter turns of images of these sides that keep their shape."""
    return QUARTERS if height == width else HALVES


def name_told_apart(source: str, classes: int, shape: tuple[int, int, int]) -> tuple[str, int]:
    """What public images of that name are called where a classifier has learnt from them, and how many kinds it tells apart."""
    return (source, classes) if classes > 1 else (f"turns of {source}", len(turns_of(*shape[1:])))
