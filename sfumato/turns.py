"""The classes that a classifier of public images learns: their own, or where all are of one class, how each image was turned.

Classifying turns teaches features without labels (Gidaris et al. 2018): a network that recognises which side of a picture is up has
learnt its content.

Not covered: pictures that look the same when turned, which teach nothing.
"""

import numpy as np

from sfumato.images import ImageSet

QUARTERS, HALVES = (0, 1, 2, 3), (0, 2)
"""Quarter turns that serve as classes, for square images and for others."""


def turned_if_one_class(images: ImageSet) -> ImageSet:
    """The images unchanged where they are of several classes, else each turned by one of the turns, in order, with the turns as classes."""
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


def training_name(source: str, classes: int, shape: tuple[int, int, int]) -> tuple[str, int]:
    """The name of public images in the scores of a classifier that learnt from them, and its number of classes."""
    return (source, classes) if classes > 1 else (f"turns of {source}", len(turns_of(*shape[1:])))
