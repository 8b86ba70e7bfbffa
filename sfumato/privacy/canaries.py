"""Canaries: made-up images of which a fair coin decides who joins the private set of an audit.

Out of scope: what an attacker makes of them, which is `sfumato.privacy.audit`. Training knows this file alone, so that a
change of the judges costs no training twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.privacy.noise import system_generator


@dataclass(frozen=True, eq=False)
class Canaries:
    """Images made up for an audit, with the coin that says which of them join the private set."""

    pixels: np.ndarray
    """uint8 `[m, c, h, w]`."""
    labels: np.ndarray
    """int64 `[m]`."""
    included: np.ndarray
    """bool `[m]`, fair coins."""

    def __len__(self) -> int:
        return len(self.labels)

    def joined(self, classes: Sequence[str]) -> ImageSet:
        """Those whose coin fell on "joins", as they are added to the training images."""
        return ImageSet(self.pixels[self.included], self.labels[self.included], tuple(classes))


def make_canaries(
    count: int, *, shape: tuple[int, int, int], classes: int, generator: torch.Generator | None = None
) -> Canaries:
    """`count` canaries of `shape` (c, h, w): black and white noise, as far from natural images as pixels allow, random labels.

    Coins, labels and pixels come from the operating system's entropy; a test may inject a generator.
    """
    if count < 2:
        raise BadInput(f"{count} canaries are too few to guess by: ask for 2 or more, better for some hundreds")
    generator = generator or system_generator()
    pixels = torch.randint(0, 2, (count, *shape), generator=generator, dtype=torch.uint8) * 255
    labels = torch.randint(0, classes, (count,), generator=generator)
    included = torch.rand(count, generator=generator) < 0.5
    return Canaries(pixels.numpy(), labels.numpy(), included.numpy())
