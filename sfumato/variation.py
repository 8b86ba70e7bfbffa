"""Variation: each drawn image turned, slanted, scaled and shifted a little at random, as writing varies by hand and photographs by camera.

What a method draws lies near what its noisy statistics say of a class, and varies less than the private images do; a classifier that learns from
it sees too few of the ways in which one thing may look. Small affine maps, whose law is public, bring some of them back. They are
post-processing: they cost no epsilon, and any number of images stays covered.

Not covered: mirrored images, which are another character, and of a chest another person.
"""

import torch
from torch import Tensor

from sfumato.backbone import affine
from sfumato.config import BackboneSettings
from sfumato.latents import Codec

SCALE, SHIFT = 0.8, 0.2
"""Largest relative change of size, and largest shift as a share of the side, for each radian of the largest angle."""


@torch.inference_mode()
def varied(codec: Codec, images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Images `[n, c, h, w]` in [-1, 1], each under an affine map of its own, with angles of `amount` radians at most; as they are at 0.

    Where methods draw latents, the images go through the autoencoder once more, which takes the blur of the interpolation away.
    """
    if not amount:
        return images
    how = BackboneSettings(
        rotation=amount,
        shear=amount,
        scale=SCALE * amount,
        shift=SHIFT * amount,
        edge="border" if images.shape[1] == 1 else "reflection",
    )
    return codec.decode(codec.encode(affine(images, how, generator)))
