"""The part of the public images that no public stage learns from: neither autoencoder, classifiers, denoiser, extractor nor knowledge base.

It is chosen once for all of them, by the seed of the run alone, so that every network trained on public images can be measured on
public images that it has not seen. `held_out(images, seed)` gives both parts, `positions(count, seed)` their positions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sfumato.images import ImageSet

SHARE, MOST = 0.1, 2000
"""Share of the public images that is held out, and their largest number: a distance between two halves of a thousand images each is
stable, and more would be lost to training."""


class HeldOut(NamedTuple):
    """The public images, in two parts."""

    learnt: ImageSet
    """The images that public stages may learn from."""
    withheld: ImageSet
    """The images that no public stage learns from."""


def positions(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Positions of the part to learn from and of the part held out, both shuffled: int64 `[n]` and `[m]`, all of `range(count)` together.

    At least one image is held out, but none of a single one.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    withheld = min(MOST, max(round(count * SHARE), int(count > 1)))
    return order[withheld:], order[:withheld]


def held_out(images: ImageSet, seed: int) -> HeldOut:
    """The public images to learn from, and those held out from every public stage of the runs with this seed."""
    learnt, withheld = positions(len(images), seed)
    return HeldOut(images.subset(learnt.numpy()), images.subset(withheld.numpy()))
