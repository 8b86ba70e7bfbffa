"""Units of privacy: single records, or groups of records, such as all images of a person.

A mechanism samples units and bounds the contribution of each, so adding or removing one, with all its records, changes a sum by
no more than one record would: a training step draws a few records of a unit at random and clips the gradient of their mean; in
a histogram one random record of a unit counts for all. The size of a unit therefore does not change the price.

Not covered: a person whose records lie in several groups, who is protected as so many units are.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato.diffusion.objective import Corrupt, Examples
from sfumato.images import ImageSet
from sfumato.privacy.noise import Source


@dataclass(frozen=True)
class Units:
    """The records, of n, that make up each of u units."""

    order: Tensor
    """`[n]`, positions of the records, unit after unit."""
    first: Tensor
    """`[u]`, where each unit begins in `order`."""
    size: Tensor
    """`[u]`, records of each unit, 1 or more."""
    each: int
    """Records of a unit that a step looks at; 1 where all units are single records."""

    def __len__(self) -> int:
        return len(self.size)

    def pick(self, index: Tensor, source: Source) -> Tensor:
        """`each` records of each of the units at `index` `[b]`, spread evenly over its own from a random start: `[b, each]`.

        All of a unit's records are equally likely, and a record comes twice only where a unit has fewer than `each`.
        """
        if self.each == 1 and len(self.order) == len(self):
            return self.order[self.first[index]][:, None]
        size = self.size[index][:, None]
        # a start below `size`, in parts of 1 / each of a record's width: whole numbers, so that none is likelier by a rounding
        start = source.below(size).to(size.device)
        place = (torch.arange(self.each, device=size.device) * size + start) // self.each
        return self.order[self.first[index][:, None] + place]


def single_records(records: int, device: torch.device | str = "cpu") -> Units:
    """Each of so many records is a unit."""
    places = torch.arange(records, device=device)
    return Units(places, places, torch.ones_like(places), 1)


def units_of(images: ImageSet, *, each: int, device: torch.device | str = "cpu") -> Units:
    """The groups of a set, of which a step looks at `each` records, or its single records where it has no groups."""
    if images.groups is None:
        return single_records(len(images), device)
    order = np.argsort(images.groups, kind="stable")
    _, size = np.unique(images.groups, return_counts=True)
    places, first, sizes = (torch.as_tensor(part, device=device) for part in (order, np.cumsum(size) - size, size))
    return Units(places, first, sizes, each)


def every_few(images: ImageSet, part: slice) -> ImageSet:
    """The units at the places `part`, such as every second one, with all their records `[n, c, h, w]`: what one of several processes takes."""
    if images.groups is None:
        return images.subset(part)
    names, which = np.unique(images.groups, return_inverse=True)
    return images.subset(np.isin(which, np.arange(len(names))[part]))


def speakers(images: ImageSet, source: Source) -> tuple[Tensor, Tensor]:
    """One record of each unit, all of its records equally likely, `[u]`, and the unit of each record, `[n]`."""
    units = units_of(images, each=1)
    return units.pick(torch.arange(len(units)), source)[:, 0], owners(images)


def owners(images: ImageSet) -> Tensor:
    """The unit of each record, int64 `[n]`, from 0 on."""
    if images.groups is None:
        return torch.arange(len(images))
    return torch.from_numpy(np.unique(images.groups, return_inverse=True)[1])


def one_of_each(images: ImageSet, source: Source) -> ImageSet:
    """One record of each group, all of its records equally likely; all images where there are no groups."""
    if images.groups is None:
        return images
    units = units_of(images, each=1)
    return images.subset(units.pick(torch.arange(len(units)), source)[:, 0].numpy())


def unit_examples(
    units: Units, index: Tensor, x: Tensor, y: Tensor, corrupt: Corrupt, source: Source, pairs: torch.Generator
) -> Examples:
    """Noised copies of the units at `index`; the copies of all picked records of a unit count as those of one record.

    x `[n, ...]` and y `[n]` are the records. The loss of a unit is then the mean over these records. `pairs` draws how they are
    noised, `source` who is picked.

    Many parameters: each is a tensor, or a number of one formula.
    """
    picked = units.pick(index, source)
    examples = corrupt(x[picked.flatten()], y[picked.flatten()], pairs)
    return examples.map(lambda field: field.unflatten(0, picked.shape).flatten(1, 2))


def one_by_one(images: ImageSet) -> ImageSet:
    """The images, for a mechanism that can protect single records alone."""
    if images.groups is not None:
        raise ValueError("this mechanism knows no groups: the plan should have been refused")
    return images
