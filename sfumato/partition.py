"""Cells of each private class that share no record: its records by the nearest of centroids that k-means finds among public images.

Which cell a record is in follows from the record, its class and what is public, so that adding or removing one touches one cell, and exchanging
one two at most: queries of several cells compose in parallel. How many records a cell has is private; whoever draws from cells shares his images out by
counts with noise, and an empty cell shows no more than these do.

Not covered: groups of records, which may lie in many cells.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.alignment import centroids_of, nearest
from sfumato.class_shares import images_of_each
from sfumato.errors import BadInput

STANDING = 2.0
"""A cell is drawn from where its noisy count is above so many times the noise."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The cells of each class, class by class."""

    centroids: Tensor
    """float64 `[k, d]`, of public images or latents."""
    classes: int
    each: int
    """Trajectories of a cell that are paid for."""
    noise: float
    """Parameter of the noise on each count."""

    @property
    def cells(self) -> int:
        """Number of cells of all classes."""
        return self.classes * len(self.centroids)

    def cells_of(self, x: Tensor, y: Tensor) -> Tensor:
        """The cell of each record x `[n, ...]` of the classes y `[n]`, each by itself: int64 `[n]`."""
        return y * len(self.centroids) + nearest(x.flatten(1), torch.zeros_like(y), self.centroids[None])

    def places(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """For `k each` points of each class: the cell of each, and the first place of its trajectory, int64 `[classes k each]` both.

        The points of a class are shared out in proportion to the noisy `counts` `[cells]` that stand out of the noise, evenly where none does. No cell
        has more trajectories than `each`: its further points are the same ones again.
        """
        kinds = len(self.centroids)
        standing = torch.where(counts > STANDING * self.noise, counts, 0).double().view(self.classes, kinds).cpu()
        standing = torch.where(standing.sum(1, keepdim=True) > 0, standing, 1.0)
        shares = standing / standing.sum(1, keepdim=True)
        numbers = torch.tensor([images_of_each(row.tolist(), kinds * self.each) for row in shares]).view(-1)
        cells = torch.repeat_interleave(torch.arange(self.cells), numbers)
        starts = (numbers.cumsum(0) - numbers)[cells]
        return cells, starts + (torch.arange(len(cells)) - starts) % self.each


def partition_of(images: Tensor, count: int, *, classes: int, each: int, noise: float, seed: int) -> Partition:
    """The partition of each of `classes` into `count` cells by public images, or latents, `[n, ...]`; `BadInput` where fewer of these differ."""
    points = images.flatten(1).cpu()
    if count > (different := len(points.unique(dim=0))):
        raise BadInput(
            f"method.clusters={count} is more than the {different} different public images that they are clusters of: use fewer, or more public images"
        )
    return Partition(centroids_of(points, count, seed), classes, each, noise)
