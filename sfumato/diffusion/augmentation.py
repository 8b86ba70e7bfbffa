"""Augmentation of records for training: each noised copy of a record is a little other picture of the same thing.

The gradients of a record's copies are averaged before they are clipped (De et al. 2022, "augmentation multiplicity"), so that a record moves the sum by
one clip at most, however its copies differ, and costs what it cost. What happens to a copy is drawn without a look at any record.

Not covered: latents, whose mirror image is not the latent of the mirrored picture.
"""

import torch
from torch import Tensor


def augmented(x: Tensor, *, mirror: bool, shift: int, generator: torch.Generator) -> Tensor:
    """Copies `[b, c, h, w]`, each by itself mirrored left to right or not, as a coin falls, and shifted by up to `shift` pixels either way across and down.

    A shift is a random crop out of the picture with a frame of its own mirror image (De et al. 2022), at most its side wide. Nothing is drawn of the
    `generator` for what is off.
    """
    if not (mirror or shift):
        return x
    down, across = (_moved(side, len(x), shift, generator, x.device) for side in x.shape[2:])
    if mirror:
        turned = torch.randint(2, (len(x), 1), generator=generator, device=x.device) == 1
        across = torch.where(turned, across.flip(1), across)
    which, channels = (torch.arange(count, device=x.device) for count in x.shape[:2])
    return x[which[:, None, None, None], channels[:, None, None], down[:, None, :, None], across[:, None, None, :]]


def _moved(side: int, many: int, shift: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """For each of so many copies the place that each pixel comes from, `[many, side]`, mirrored at either end."""
    places = torch.arange(side, device=device).expand(many, side)
    if not shift:
        return places
    places = places + torch.randint(-shift, shift + 1, (many, 1), generator=generator, device=device)
    return torch.minimum(places % (2 * side), (-1 - places) % (2 * side))
