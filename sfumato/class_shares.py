"""The number of drawn images of each class: equal, declared by the custodian, or in proportion to noisy counts of private records.

Declared shares count as public knowledge: nothing here protects them. Queried shares come from counts that a mechanism released
with noise (`sfumato.privacy.mechanisms.noisy_counts`), so that their use here is post-processing.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from sfumato.config import Generation
from sfumato.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LISTED = 10
"""Most classes that a message lists."""
DECIMALS = 12
"""Decimals of declared shares, so that the same proportions give the same shares, however they are written."""
ROUNDING = 1e-9
"""Distance from an integer that rounding explains."""


class ClassShares(BaseModel):
    """The distribution of a run's images over its classes, where it is not even; may be published with them."""

    model_config = ConfigDict(frozen=True)

    source: str
    """Origin of the shares, in words."""
    shares: dict[str, float]
    """Share of the images by class; they sum to 1."""
    counts: dict[str, int | float] = {}
    """Noisy number of records of each class, integers as the mechanism released them; empty for declared shares. Runs of earlier versions
    had fractions."""

    def rows(self, images: int) -> list[list[str]]:
        """A row for each class: its name, its share, its images of so many, and the count where there is one."""
        each = images_of_each(tuple(self.shares.values()), images)
        return [
            [name, f"{share:.2%}", str(number), *([str(self.counts[name])] if self.counts else [])]
            for (name, share), number in zip(self.shares.items(), each, strict=True)
        ]


def class_shares(generation: Generation, classes: Sequence[str], noisy: "Tensor | None" = None) -> ClassShares | None:
    """The shares of `shares_of`, for a report; None where every class gets equally many images. `noisy` `[classes]` are the counts that were paid
    for, where there are any."""
    if generation.classes == "uniform":
        return None
    source = (
        "Declared by the custodian, who vouches that they are public knowledge; the certificate does not protect them."
        if noisy is None
        else f"The private records of each class, counted with discrete Gaussian noise of parameter {generation.count_noise:g}, which is paid for."
    )
    counts = {} if noisy is None else dict(zip(classes, noisy.tolist(), strict=True))
    return ClassShares(
        source=source, shares=dict(zip(classes, shares_of(generation, classes, noisy), strict=True)), counts=counts
    )


def with_shares(generation: Generation, classes: Sequence[str]) -> Generation:
    """The settings with shares by class name, in order, that sum to 1; `BadInput` for impossible shares."""
    shares = generation.shares
    if generation.classes != "declared":
        if shares:
            raise BadInput(
                f"generation.shares is for generation.classes=declared, and that is {generation.classes}: set it, or leave the shares out"
            )
        if generation.classes == "queried" and generation.largest_share * len(classes) < 1 - ROUNDING:
            raise BadInput(
                f"generation.largest_share={generation.largest_share:g} of each of {len(classes)} classes is not all of the images: use "
                f"{1 / len(classes):.3g} or more"
            )
        return generation
    by_name: dict[str, float] = {}
    for name, share in shares.items():
        place = _place(name, classes, "generation.shares")
        if classes[place] in by_name:
            raise BadInput(
                f"generation.shares names the class {classes[place]!r} twice: by its name and by its position"
            )
        by_name[classes[place]] = share
    if not (total := sum(by_name.values())):
        raise BadInput(
            "generation.classes=declared needs generation.shares with one above 0, for example "
            f"--set 'generation.shares={{{classes[0]}: 3, {classes[-1]}: 1}}'"
        )
    return generation.model_copy(
        update={"shares": {name: round(by_name.get(name, 0.0) / total, DECIMALS) for name in classes}}
    )


def _place(name: str, classes: Sequence[str], where: str) -> int:
    if name in classes:
        return classes.index(name)
    if name.isdecimal() and int(name) < len(classes):
        return int(name)
    known = ", ".join(classes[:LISTED]) + (f" and {len(classes) - LISTED} more" if classes[LISTED:] else "")
    raise BadInput(f"{where} names the class {name!r}, which is not there: use {known}, or a position from 0 on")


def shares_of(generation: Generation, classes: Sequence[str], noisy: "Tensor | None" = None) -> tuple[float, ...]:
    """The share of each class, summing to 1, by settings from `with_shares`; none where every class gets equally many images.

    `noisy` int64 `[classes]` are counts with noise, where they were queried: negative ones count as 0, and where none is positive
    every class gets the same share.
    """
    import numpy as np

    if generation.classes == "uniform":
        return ()
    if generation.classes == "declared":
        return tuple(generation.shares[name] for name in classes)
    if noisy is None:
        raise ValueError("generation.classes=queried: give the counts")
    counts = noisy.double().clamp(min=0).numpy()
    counts = counts if counts.sum() else np.ones(len(classes))
    return tuple(float(share) for share in _capped(counts / counts.sum(), generation.largest_share))


def _capped(shares: "np.ndarray", largest: float) -> "np.ndarray":
    """Shares of which none is above `largest`: what is cut goes to the others in proportion, evenly where these have none."""
    import numpy as np

    full = np.zeros(len(shares), dtype=bool)
    while (over := ~full & (shares > largest * (1 + ROUNDING))).any():
        full |= over
        rest = np.where(full, 0.0, shares)
        rest = rest if rest.sum() else (~full).astype(float)
        left = 1 - largest * full.sum()
        shares = np.where(full, largest, rest / (rest.sum() or 1.0) * left)
    return shares


def shares_among(shares: Sequence[float], classes: Sequence[str], chosen: Sequence[str | int]) -> tuple[float, ...]:
    """The shares of the `chosen` classes alone, by name or position: in proportion as before, evenly where they had none.

    `BadInput` for a class that is not there, by the name `classes`.
    """
    import numpy as np

    every = {str(place): place for place in range(len(classes))}
    places = {
        every[str(one)] if isinstance(one, int) and str(one) in every else _place(str(one), classes, "classes")
        for one in chosen
    }
    left = np.array([(shares[place] if shares else 1.0) if place in places else 0.0 for place in range(len(classes))])
    if not left.sum():
        left = np.array([float(place in places) for place in range(len(classes))])
    return tuple(float(share) for share in left / left.sum())


def images_of_each(shares: Sequence[float], count: int) -> list[int]:
    """The number of images of each class by shares that sum to 1, by largest remainders; the first classes win ties.

    A class whose share is less than an image may get none.
    """
    import numpy as np

    quotas = np.asarray(shares, dtype=np.float64) * count
    whole = np.floor(quotas + ROUNDING)
    left = count - int(whole.sum())
    for place in np.argsort(-(quotas - whole), kind="stable")[:left]:
        whole[place] += 1
    return [int(images) for images in whole]


def wanted_classes(shares: Sequence[float], classes: int, count: int) -> "Tensor":
    """The class of each of `count` images, in order of class, int64 `[count]`; evenly where there are no shares."""
    import torch

    if not shares:
        return torch.arange(count) * classes // count
    return torch.repeat_interleave(torch.arange(classes), torch.tensor(images_of_each(shares, count)))


def numbers_of_each(shares: Sequence[float], classes: int, count: int) -> list[int]:
    """The number of images of each class among the `count` of `wanted_classes`."""
    return wanted_classes(shares, classes, count).bincount(minlength=classes).tolist()


def most_of_one(generation: Generation, classes: int) -> int:
    """The largest number of images that one class can get, known before anything is counted."""
    if generation.classes == "declared":
        return max(images_of_each(tuple(generation.shares.values()), generation.images))
    if generation.classes == "queried":
        return math.ceil(generation.largest_share * generation.images - ROUNDING)
    return -(-generation.images // classes)


def number_of_classes(count: int) -> str:
    """So many classes, in words."""
    return "1 class" if count == 1 else f"{count} classes"
