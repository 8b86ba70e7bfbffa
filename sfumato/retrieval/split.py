"""Public images in three parts: D_pre trains the denoiser, D_ref is the knowledge base, a few queries measure retrieval."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.images import ImageSet, to_unit

QUERY_SHARE = 0.1
"""Share of the reference part that is kept out of the base to measure retrieval."""
SERIES_POINTS = 200
"""Points of a training curve that are kept."""


@dataclass(frozen=True)
class PublicParts:
    """Images `[n, c, h, w]` in [-1, 1] and labels `[n]` of each part."""

    pre: tuple[Tensor, Tensor]
    reference: tuple[Tensor, Tensor]
    queries: tuple[Tensor, Tensor]
    shape: tuple[int, int, int]
    classes: int


def split_public(images: ImageSet, reference: float, seed: int, device: torch.device) -> PublicParts:
    """Deal the images by a seeded shuffle; with `reference` 0 all of them pretrain."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    x, y = to_unit(images.pixels)[order].to(device), torch.as_tensor(images.labels)[order].to(device)
    base = round(len(x) * reference * (1 - QUERY_SHARE))
    queries = round(len(x) * reference) - base
    sizes = [len(x) - base - queries, base, queries]
    pre, ref, asked = zip(x.split(sizes), y.split(sizes), strict=True)
    return PublicParts(pre, ref, asked, tuple(x.shape[1:]), len(images.classes))


def thinned(series: Sequence[float]) -> list[float]:
    """A training curve as at most `SERIES_POINTS` means of equal stretches."""
    width = max(1, -(-len(series) // SERIES_POINTS))
    return [sum(series[i : i + width]) / len(series[i : i + width]) for i in range(0, len(series), width)]
