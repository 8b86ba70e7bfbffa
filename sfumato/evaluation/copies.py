"""The copy check: distances of images to the nearest training and held-out records.

An image is a copy of a record when the two differ by at most a tenth of the spread of real pixels (`copy_distance`), the
residual after 99 % of the variance is explained; and, of a record that is nearly plain, by at most a quarter of its own contrast, since every plain image of
its colour comes near it (`copy_limits`). Held-out records, which no model saw, show how near chance comes: the check
fails as soon as a single image copies a training record and no held-out one.

Independent images do not come that near (of 360 held-out digits the nearest to a training record is at 0.24 of the spread, of
2,000 of MNIST at 0.15), so one copy is enough, and no number of images can hide it.
Limits: an image near a record by chance is a false alarm where no held-out record is similar (a blank image, where all blank
records are in the training part): look at the pair. A copy of a record that the held-out part also holds does not count.
Each image is compared with its nearest record alone, so beside a nearly plain one that is nearer a copy of another is not seen. Shifted, mirrored, recoloured or partial copies are far from their original and are not detected.

Label: INTERNAL, as a whole and number by number.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import hypergeom
from torch import Tensor

from sfumato.errors import BadInput
from sfumato.evaluation.attack_results import CopyCheck, Pair
from sfumato.evaluation.membership import nearest
from sfumato.images import WHITE

COPY_SHARE = 0.1
"""Largest difference of a copy, as a share of the spread of real pixels around their mean image: 1 - 0.1^2 = 99 % explained."""
OWN_SHARE = 0.25
"""Largest difference of a copy, as a share of the record's own contrast."""
HALF_GREY_LEVEL = 1 / WHITE
"""Half of one of 255 steps from -1 to 1: what rounding alone may change, and the least distance of a copy."""
CLOSEST = 10
"""Number of closest pairs that the check lists."""


class CopyDistances(NamedTuple):
    """Results of the copy check, with the distances that they were made of; INTERNAL."""

    check: CopyCheck
    to_train: Tensor
    """`[n]`, distance of each image to its nearest training record."""
    to_test: Tensor
    """`[n]`, the same to the nearest held-out record."""


def check_copies(images: Tensor, train: Tensor, test: Tensor) -> CopyDistances:
    """Compare images `[n, c, h, w]` in [-1, 1] with training and held-out records `[m, c, h, w]`; INTERNAL.

    Give the images as they are published, rounded to 8 bits.
    """
    to_train, record = nearest(images, train)
    to_test, other = nearest(images, test)
    limit = copy_distance(torch.cat([train, test]))
    near_train, near_test = to_train <= copy_limits(train, limit)[record], to_test <= copy_limits(test, limit)[other]
    closest = to_train.argsort(stable=True)[:CLOSEST].tolist()
    check = CopyCheck(
        images=len(images),
        train=len(train),
        test=len(test),
        copy_distance=limit,
        copies=int(near_train.sum()),
        copies_held_out=int(near_test.sum()),
        unexplained=int((near_train & ~near_test).sum()),
        nearest_train=float(((to_train < to_test).double() + (to_train == to_test).double() / 2).mean()),
        expected_train=len(train) / (len(train) + len(test)),
        p_value=_leaning(record[to_train < to_test], other[to_train > to_test], len(train), len(test)),
        median_train=float(to_train.median()),
        median_test=float(to_test.median()),
        closest=tuple(
            Pair(image=i, record=int(record[i]), distance=float(to_train[i]), held_out_distance=float(to_test[i]))
            for i in closest
        ),
    )
    return CopyDistances(check, to_train, to_test)


def copy_distance(real: Tensor) -> float:
    """The largest distance of a copy: a share of the spread of real images `[n, c, h, w]` around their mean, at least a rounding."""
    if not len(real):
        raise BadInput("no real images to compare with: give at least one")
    spread = real.double().flatten(1).var(0, correction=0).mean().sqrt()
    return max(HALF_GREY_LEVEL, COPY_SHARE * float(spread))


def copy_limits(records: Tensor, limit: float) -> Tensor:
    """The largest distance of a copy of each record `[n, c, h, w]`, `[n]`: this limit, or less where the record itself is nearly plain."""
    contrast = records.double().flatten(2).var(2, correction=0).mean(1).sqrt()
    return (OWN_SHARE * contrast).clamp(min(HALF_GREY_LEVEL, limit), limit)


def _leaning(of_train: Tensor, of_test: Tensor, train: int, test: int) -> float:
    """P[as many or more of the nearest records are training records], given how many different records are nearest to an image.

    Each real record counts once, however many images crowd around it, so that images need not be independent.
    """
    chosen, total = len(np.unique(of_train.cpu())), len(np.unique(of_train.cpu())) + len(np.unique(of_test.cpu()))
    return float(min(1.0, hypergeom.sf(chosen - 1, train + test, train, total)))
