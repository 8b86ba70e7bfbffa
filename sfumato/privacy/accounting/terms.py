"""What grids compose: subsampled Gaussians and histograms of integers, each with how often it comes. Needs no numpy, unlike the grids."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

NO_NOISE_MU = 1e4
"""From here on a subsampled Gaussian counts as no noise at all. Sound (less noise never costs less); at this mu a
record that is drawn once already costs an epsilon of 5e7."""


class Step(NamedTuple):
    """`repeats` Poisson-subsampled Gaussians, mu relative to one record's norm."""

    mu: float
    rate: float
    repeats: int


class Cells(NamedTuple):
    """`repeats` histograms of integers with discrete Gaussian noise of this parameter; a record is in one cell of each."""

    noise: float
    repeats: int


def merged_cells(histograms: Iterable[Cells], times: int = 1) -> list[Cells]:
    """Equal histograms as one, each `times` as often, in an order of their own."""
    counts: dict[float, int] = defaultdict(int)
    for noise, repeats in histograms:
        counts[noise] += times * repeats
    return [Cells(noise, repeats) for noise, repeats in sorted(counts.items()) if repeats]
