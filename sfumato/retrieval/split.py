"""Public images in three parts: D_pre trains the denoiser, D_ref is the knowledge base, a few queries measure retrieval.

What is dealt is what the denoisers see: the images, or their latents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.images import ImageSet, to_unit
from sfumato.latents import PIXELS, Codec

QUERY_SHARE = 0.1
"""Share of the reference part that is kept out of the base to measure retrieval."""
SERIES_POINTS = 200
"""Points of a training curve that are kept."""


@dataclass(frozen=True)
class PublicParts:
    """Images or latents `[n, c, h, w]` and labels `[n]` of each part."""

    pre: tuple[Tensor, Tensor]
    reference: tuple[Tensor, Tensor]
    queries: tuple[Tensor, Tensor]
    reference_images: Tensor
    """The reference part in pixels, in [-1, 1]."""
    shape: tuple[int, int, int]
    """Of one image or latent."""
    classes: int
    codec: Codec


def split_public(
    images: ImageSet, reference: float, seed: int, device: torch.device, codec: Codec = PIXELS
) -> PublicParts:
    """Deal the images, encoded by the codec, by a seeded shuffle; with `reference` 0 all of them pretrain.

    `BadInput` for a codec trained on images of another shape.
    """
    shape = codec.shape(images.pixels.shape[1:])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    x, y = to_unit(images.pixels)[order].to(device), torch.as_tensor(images.labels)[order].to(device)
    base = round(len(x) * reference * (1 - QUERY_SHARE))
    queries = round(len(x) * reference) - base
    sizes = [len(x) - base - queries, base, queries]
    pre, ref, asked = zip(codec.encode(x).split(sizes), y.split(sizes), strict=True)
    return PublicParts(pre, ref, asked, x.split(sizes)[1], shape, len(images.classes), codec)


def thinned(series: Sequence[float]) -> list[float]:
    """A training curve as at most `SERIES_POINTS` means of equal stretches."""
    width = max(1, -(-len(series) // SERIES_POINTS))
    return [sum(series[i : i + width]) / len(series[i : i + width]) for i in range(0, len(series), width)]
