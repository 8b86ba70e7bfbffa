"""Public images in three parts: D_pre trains the denoiser, D_ref is the knowledge base, a few queries measure retrieval.

The queries are the images that `sfumato.held_out.held_out(images, seed) -> (learnt, withheld)` withholds from every public stage:
all other training on public images uses `learnt` of the same seed. The parts hold the denoisers' inputs: images, or their latents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.held_out import positions
from sfumato.images import ImageSet, to_unit
from sfumato.latents import PIXELS, Codec, latents_of

SERIES_POINTS = 200
"""Largest number of points of a stored training curve."""


@dataclass(frozen=True)
class PublicSplit:
    """Images or latents `[n, c, h, w]` and labels `[n]` of each part."""

    pre: tuple[Tensor, Tensor]
    reference: tuple[Tensor, Tensor]
    queries: tuple[Tensor, Tensor]
    reference_images: Tensor
    """The reference part in pixels, in [-1, 1]."""
    shape: tuple[int, int, int]
    """Shape of one image or latent."""
    classes: int
    codec: Codec


def split_public(
    images: ImageSet, reference: float, seed: int, device: torch.device, codec: Codec = PIXELS
) -> PublicSplit:
    """Split the images, encoded by the codec; `reference` is D_ref's share of those to learn from, and with 0 all pretrain.

    `BadInput` for a codec trained on images of another shape.
    """
    shape = codec.shape(images.pixels.shape[1:])
    learnt, held_out = positions(len(images), seed)
    order = torch.cat([learnt, held_out])
    x, y = images.pixels[order.numpy()], torch.as_tensor(images.labels)[order].to(device)
    base = round(len(learnt) * reference)
    sizes = [len(learnt) - base, base, len(held_out)]
    pre, ref, public_labels = zip(latents_of(codec, x, device).split(sizes), y.split(sizes), strict=True)
    seen = to_unit(x[sizes[0] : sizes[0] + base]).to(device)
    return PublicSplit(pre, ref, public_labels, seen, shape, len(images.classes), codec)


def thinned(series: Sequence[float]) -> list[float]:
    """A training curve as at most `SERIES_POINTS` means of equal stretches."""
    width = max(1, -(-len(series) // SERIES_POINTS))
    return [sum(series[i : i + width]) / len(series[i : i + width]) for i in range(0, len(series), width)]
