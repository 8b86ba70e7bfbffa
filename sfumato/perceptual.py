"""Perceptual features: what the layers of a classifier of public images make of an image, of norm 1 (Harder et al. 2023).

    phi_1(x) = e(x) / |e(x)|        phi_2(x) = e(x)^2 / |e(x)^2|, number by number

with e(x) the outputs of all layers, side by side, larger maps averaged over a grid of cells. Both at once are
[sqrt(1 - s) phi_1, sqrt(s) phi_2], of norm 1 again; s is `Embedding.squares`. Each image by itself, and differentiable down to the pixels. The
paper takes the layers of a VGG trained on ImageNet, here they are those of the public backbone. Its norms hide how bright an image is and how much
contrast and which colour it has, so that the image itself may have a share beside them (`Embedding.image`).

Not covered: the noise on sums of private features, see `sfumato.privacy.mechanisms.noisy_embedding`, which bounds every record again.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.backbone import Backbone
from sfumato.latents import PIXELS, Codec
from sfumato.methods.plan import Embedding
from sfumato.networks.backbone import BackboneNetwork


def layers(network: BackboneNetwork, images: Tensor, cells: int) -> Tensor:
    """What every block of the network puts out, side by side, `[b, d]`, for images `[b, c, h, w]`; a map with a side of more than `cells` as its
    means over so many parts of that side."""
    outputs, x = [], images.contiguous(memory_format=torch.channels_last)
    for block in network.trunk:
        x = block(x)
        height, width = (min(cells, side) for side in x.shape[2:])
        outputs.append(F.adaptive_avg_pool2d(x, (height, width)).flatten(1))
    return torch.cat(outputs, 1)


def to_norm_one(features: Tensor) -> Tensor:
    """Features `[b, d]`, each row scaled to norm 1; zeros where a row is zero or not finite, however large or small its numbers are."""
    largest = features.detach().abs().amax(1, keepdim=True)
    usable = largest.isfinite() & (largest > 0)
    scaled = torch.where(usable, features, 1.0) / largest.where(usable, 1.0)
    return torch.where(usable, scaled / scaled.norm(dim=1, keepdim=True), 0.0)


def both_moments(features: Tensor, squares: float) -> Tensor:
    """phi_1 of features e(x) `[b, d]`, or with a share of `squares` above 0 phi_1 and phi_2 of these shares: `[b, d]` or `[b, 2 d]`, of norm 1."""
    first = to_norm_one(features)
    if not squares:
        return first
    second = to_norm_one(first.square())  # the same direction as e(x)^2, and never too large a number
    return torch.cat([math.sqrt(1 - squares) * first, math.sqrt(squares) * second], 1)


def shown_by_itself(images: Tensor, cells: int) -> Tensor:
    """What images `[b, c, h, w]` in [-1, 1] show of themselves: means and mean squares over at most `cells` cells a side, `[b, 2 c cells cells]`, of
    norm 1 at most; zeros where an image is not finite."""
    usable = images.isfinite().flatten(1).all(1)[:, None, None, None]
    x = torch.where(usable, images, 0.0).clamp(-1, 1)
    grid = min(cells, x.shape[2]), min(cells, x.shape[3])
    both = torch.cat([F.adaptive_avg_pool2d(part, grid).flatten(1) for part in (x, x.square())], 1)
    return both / math.sqrt(both.shape[1])


def perceptual_features(backbone: Backbone, how: Embedding, codec: Codec = PIXELS) -> Callable[[Tensor], Tensor]:
    """From images, or latents of `codec`, `[b, c, h, w]` to perceptual features of norm 1, `[b, d]`, or `[b, 2 d]` with `how.squares` above 0; with
    `how.image` above 0 the image itself has this share of the squared norm, which is then 1 at most.

    Latents are decoded first, those of private images too: what the autoencoder loses, no drawn image has either.
    """

    def read(x: Tensor) -> Tensor:
        if not len(x):  # which group norm does not take
            return read(x.new_zeros(1, *x.shape[1:]))[:0]
        images = codec.shown(x)
        phi = both_moments(layers(backbone.network, images, how.cells), how.squares)
        if not how.image:
            return phi
        parts = math.sqrt(1 - how.image) * phi, math.sqrt(how.image) * shown_by_itself(images, how.cells)
        return torch.cat(parts, 1)

    return read
