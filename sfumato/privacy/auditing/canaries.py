"""Canaries: made-up images of which a fair coin decides who joins the private set of an audit.

Where a group of images is the unit, a canary is a whole group: a single image would test a weaker promise than the certificate
makes, and would miss an engine that gives a group more weight the more images it has.

Out of scope: the attack, which is `sfumato.privacy.auditing.audit`. Training imports only this file, so that a change of the attack
does not invalidate trained models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sfumato.errors import BadInput
from sfumato.images import WHITE, ImageSet
from sfumato.privacy.noise import Source, system_source


@dataclass(frozen=True, eq=False)
class Canaries:
    """Images made up for an audit, with the coin that says which of them join the private set."""

    pixels: np.ndarray
    """uint8 `[m * each, c, h, w]`, canary after canary."""
    labels: np.ndarray
    """int64 `[m * each]`."""
    included: np.ndarray
    """bool `[m]`, fair coins."""

    def __len__(self) -> int:
        return len(self.included)

    @property
    def each(self) -> int:
        """Images of a canary."""
        return len(self.labels) // len(self.included)

    def joined(self, classes: Sequence[str]) -> ImageSet:
        """The canaries whose coin says "joins", as images to add to the training part; grouped where a canary has several images."""
        chosen = self.included.repeat(self.each)
        groups = np.arange(len(self)).repeat(self.each)[chosen] if self.each > 1 else None
        return ImageSet(self.pixels[chosen], self.labels[chosen], tuple(classes), groups)


def make_canaries(
    count: int, *, shape: tuple[int, int, int], classes: int, each: int = 1, source: Source | None = None
) -> Canaries:
    """`count` canaries of `shape` (c, h, w): black and white noise, as far from natural images as pixels allow, random labels.

    A canary has `each` images of one label.

    Coins, labels and pixels come from the operating system's entropy; a test may inject a source.
    """
    if count < 2:
        raise BadInput(f"{count} canaries are too few to guess by: ask for 2 or more, better for some hundreds")
    source = source or system_source()
    pixels = source.coins((count * each, *shape), 0.5).to(torch.uint8) * WHITE
    labels = source.below(torch.full((count,), classes))
    included = source.coins((count,), 0.5)
    return Canaries(pixels.numpy(), labels.numpy().repeat(each), included.numpy())


MOST_EACH = 16
"""Largest number of images of a canary, so that an audit takes no longer than its run."""


def images_each(records: int, images: int) -> int:
    """The number of images of a canary where groups are the unit: the mean size of a group, at least two and at most `MOST_EACH`."""
    return min(MOST_EACH, max(2, -(-images // records)))
