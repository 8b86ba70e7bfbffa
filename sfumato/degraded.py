"""Public images made worse on purpose, to see what a method makes of poor ones."""

from dataclasses import replace

import numpy as np

from sfumato.images import WHITE, ImageSet


def degraded(images: ImageSet, deviation: float, *, seed: int) -> ImageSet:
    """The images with Gaussian noise in every pixel, of a standard `deviation` as a share of the 255 grey levels, cut to 0..255; 0 changes nothing.

    It protects nobody: its seed is public.
    """
    if not deviation:
        return images
    source = np.random.default_rng(seed)
    pixels = np.empty_like(images.pixels)
    for place, one in enumerate(images.pixels):  # one after the other: collections are large
        noise = source.standard_normal(one.shape, dtype=np.float32)
        pixels[place] = np.clip(np.rint(one + WHITE * deviation * noise), 0, WHITE)
    return replace(images, pixels=pixels)
