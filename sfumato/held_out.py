"""The part of the public images that nothing public learns from: neither autoencoder, classifiers, denoiser, extractor nor knowledge base.

It is chosen once for all of them, by the seed of the run alone, so that whatever was learnt from public images can be
measured on public images that none of it has seen. `held_out(images, seed)` gives both parts, `positions(count, seed)` where
they lie.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sfumato.images import ImageSet

SHARE, MOST = 0.1, 2000
"""Share of the public images that is held out, and how many at most: a distance between two halves of a thousand images each
is steady, and more would be lost to training."""


class HeldOut(NamedTuple):
    """The public images, in two parts."""

    learnt: ImageSet
    """What public stages may learn from."""
    kept: ImageSet
    """What none of them does."""


def positions(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Positions of the part to learn from and of the part held out, both shuffled: int64, all of `range(count)` together.

    One image of two is held out at least, and none of a single one.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    kept = min(MOST, max(round(count * SHARE), int(count > 1)))
    return order[kept:], order[:kept]


def held_out(images: ImageSet, seed: int) -> HeldOut:
    """The public images to learn from, and those held out from every public stage of the runs with this seed."""
    learnt, kept = positions(len(images), seed)
    return HeldOut(images.subset(learnt.numpy()), images.subset(kept.numpy()))
