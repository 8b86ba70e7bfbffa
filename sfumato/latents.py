"""The denoisers' space: the images themselves, or latents of a KL autoencoder trained on public images alone.

The autoencoder learns by reconstruction, optionally also in the features of a classifier of public images, with a small weight on
its posterior's divergence from a standard normal (Rombach et al. 2022, section 3.1), and is then frozen. A record's latent is the
mean of its posterior: no randomness, and nothing of any other record. Mean and spread of the public latents are stored with the
autoencoder, so that latents have about unit variance, and every latent has a bounded norm. Not covered: a discriminator, training
on private data.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato.backbone import Backbone
from sfumato.config import Latent
from sfumato.errors import BadInput
from sfumato.held_out import positions
from sfumato.images import shape_of, to_pixels, to_unit
from sfumato.networks.autoencoder import Autoencoder, Shape, build_autoencoder, largest_norm, latent_shape
from sfumato.networks.diffusers_models import DiffusersAutoencoder
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper
from sfumato.training import Resumable, batches, half_products, train

CHUNK = 512
"""Records per batch of encoding or decoding."""
WARM_UP, FINAL_RATE, EMA_DECAY = 0.05, 0.05, 0.99
"""Share of the steps over which the learning rate rises, share of it at the last step, decay of the averaged weights."""
MEASURED = 20_000
"""Public images whose latents give mean, spread and limit, and whose squares of pixels a linear map begins with, at most."""
FLAT = 1e-6
"""Added to the spread of a channel, which may carry nothing."""
ROUNDING = 1e-6
"""Relative distance of a scaled norm below its bound, so that float32 cannot exceed it."""


@dataclass(frozen=True)
class Pixels:
    """No autoencoder: the denoisers work on the images themselves."""

    limit: float = 1.0
    """Largest absolute value of a number; predictions of clean images are clamped to it."""

    def shape(self, image: Shape) -> Shape:
        """Shape of the denoisers' inputs for images of this shape."""
        return image

    def largest_norm(self, image: Shape) -> float:
        """The l2 norm that no image of this shape exceeds."""
        return largest_norm(Latent(), image)

    def encode(self, x: Tensor) -> Tensor:
        """Images `[b, c, h, w]` in [-1, 1] as they are."""
        return x

    def decode(self, z: Tensor) -> Tensor:
        """Images `[b, c, h, w]` as they are."""
        return z

    def shown(self, z: Tensor) -> Tensor:
        """`decode` `[b, c, h, w]`, differentiable where gradients are on."""
        return z


class Shown(torch.autograd.Function):
    """Numbers held in [-1, 1]. A gradient that would take one outside back in passes, so that nothing that learns through a decoder stays
    black or white for good; one that would take it further out does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """x `[...]` held in [-1, 1]; remembers which numbers lie outside."""
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient `[...]` that passes on, 0 where it would take a number further out: descent goes against the gradient."""
        (x,) = ctx.saved_tensors
        outward = ((x > 1) & (gradient < 0)) | ((x < -1) & (gradient > 0))
        return gradient.masked_fill(outward, 0.0)


@dataclass(frozen=True)
class Latents:
    """A frozen autoencoder with the constants that bring its latents to about unit variance."""

    network: Autoencoder | DiffusersAutoencoder
    settings: Latent
    image: Shape
    """Shape of the images that it was trained on."""
    mean: Tensor
    """`[z, 1, 1]`, of the public latents, channel by channel."""
    spread: Tensor
    """`[z, 1, 1]`, their standard deviation."""
    limit: float
    """Largest absolute value of a scaled public latent; predictions of clean latents are clamped to it."""

    def shape(self, image: Shape) -> Shape:
        """Shape of the latents of images of this shape; `BadInput` where it was trained on another."""
        if image != self.image:
            mine, other = (f"{h}x{w} with {c} channel{'s' * (c > 1)}" for c, h, w in (self.image, image))
            raise BadInput(
                f"the autoencoder was trained on images of {mine}, these are {other}: train one on public images of this shape"
            )
        return latent_shape(self.settings, image)

    def largest_norm(self, image: Shape) -> float:
        """The l2 norm that no latent of images of this shape exceeds: a constant of the settings, known before any data."""
        return largest_norm(self.settings, image)

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Latents `[b, z, h', w']` of images `[b, c, h, w]` in [-1, 1]: each record by itself, with a norm of at most `largest_norm`."""
        means = torch.cat([self.network.posterior(part)[0] for part in x.split(CHUNK)])
        return within((means - self.mean) / self.spread, self.largest_norm(self.image))

    @torch.no_grad()
    def decode(self, z: Tensor) -> Tensor:
        """Images `[b, c, h, w]` in [-1, 1] of latents `[b, z, h', w']`, each by itself."""
        return self.shown(z)

    def shown(self, z: Tensor) -> Tensor:
        """`decode`, differentiable where gradients are on: images `[b, c, h, w]` in [-1, 1] of latents `[b, z, h', w']`."""
        own = z * self.spread + self.mean
        return Shown.apply(torch.cat([self.network.decoder(part) for part in own.split(CHUNK)]))


Codec = Pixels | Latents
"""Maps images to the denoisers' space, and back."""
PIXELS = Pixels()


def latents_of(codec: Codec, pixels: np.ndarray, device: torch.device | str) -> Tensor:
    """Latents `[n, z, h', w']`, on `device`, of pictures uint8 `[n, c, h, w]`.

    Encoded part by part, so that a collection in a codec's few numbers never stands in memory as floats of all its pixels.
    """
    parts = [pixels[first : first + CHUNK] for first in range(0, max(1, len(pixels)), CHUNK)]
    return torch.cat([codec.encode(to_unit(part).to(device)) for part in parts])


def within(z: Tensor, radius: float) -> Tensor:
    """Each record of z `[b, ...]` scaled down to an l2 norm of at most `radius`; shorter ones stay as they are."""
    norms = z.flatten(1).double().norm(dim=1).clamp(min=math.ulp(0.0))
    factor = torch.where(norms > radius, radius * (1 - ROUNDING) / norms, 1.0)
    return z * factor.to(z.dtype).view(-1, *[1] * (z.dim() - 1))


@dataclass(frozen=True)
class TrainedAutoencoder:
    """An autoencoder with the course of its training."""

    codec: Latents
    losses: list[float]
    held_out: Tensor
    """`[m, c, h, w]`, public images that it did not learn from."""


def train_autoencoder(
    settings: Latent,
    images: Tensor,
    *,
    seed: int,
    backbone: Backbone | None = None,
    progress: Progress = silent,
    keeper: Keeper | None = None,
) -> TrainedAutoencoder:
    """Train an autoencoder on public images `[n, c, h, w]` in [-1, 1], all but those that every public stage holds out.

    The loss of an image is the sum of its pixels' errors plus `kl_weight` times the divergence of its posterior from a
    standard normal, over the number of pixels; and, where `perceptual` is not 0, that weight times its distance from the image
    in the features of the backbone, without which that is `BadInput`.
    """
    shape = shape_of(images)
    if settings.perceptual and backbone is None:
        raise BadInput(
            f"latent.perceptual={settings.perceptual:g} compares images in the features of a backbone, and there is none: "
            "train one on the public images, or set latent.perceptual=0"
        )
    network = build_autoencoder(settings, shape, seed=seed).to(images.device)
    generator = torch.Generator(images.device).manual_seed(seed)
    learnt, withheld = (rows.to(images.device) for rows in positions(len(images), seed))
    measured = learnt[:MEASURED].split(CHUNK)
    if isinstance(network, Autoencoder):
        network.begin_linear(images[rows] for rows in measured)
    feed = batches(len(learnt), settings.batch, torch.Generator().manual_seed(seed))

    def loss_of_step() -> Tensor:
        x = images[learnt[next(feed).to(images.device)]]  # no copy of them all
        noise = torch.randn(len(x), *latent_shape(settings, shape), generator=generator, device=x.device)
        with half_products(x.device):
            again, mean, log_variance = (part.float() for part in network(x, noise))
        wrong = (again - x).abs() if settings.loss == "l1" else (again - x).square()
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).flatten(1).sum(1) / 2
        loss = (wrong.flatten(1).sum(1) + settings.kl_weight * divergence).mean() / math.prod(shape)
        if settings.perceptual and backbone:
            loss = loss + settings.perceptual * perceived(backbone, again, x).mean()
        return loss

    trained, losses = train(
        network,
        loss_of_step,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        warm_up=round(WARM_UP * settings.steps),
        final_rate=FINAL_RATE,
        ema_decay=EMA_DECAY,
        progress=progress,
        resumable=Resumable(keeper, feed, generator) if keeper else None,
    )
    codec = scaled(trained.eval().requires_grad_(False), settings, shape, (images[rows] for rows in measured))
    return TrainedAutoencoder(codec, losses, images[withheld])


def perceived(backbone: Backbone, images: Tensor, others: Tensor) -> Tensor:
    """Squared distances of images `[n, c, h, w]` from `others` in a backbone's features, `[n]`; 1 on average between two public images."""
    differences = backbone.features(images) - backbone.features(others)
    return differences.square().sum(1) / (2 * backbone.deviations.square().sum())


@torch.no_grad()
def scaled(
    network: Autoencoder | DiffusersAutoencoder, settings: Latent, image: Shape, public: Iterable[Tensor]
) -> Latents:
    """The autoencoder of images of this shape, with the constants of public ones, which come in parts `[b, c, h, w]`."""
    means = torch.cat([network.posterior(part)[0] for part in public])
    mean = means.mean((0, 2, 3))[:, None, None]
    spread = means.std((0, 2, 3), correction=0)[:, None, None] + FLAT
    limit = float(((means - mean) / spread).abs().max())
    return Latents(network, settings, image, mean, spread, limit)


def reconstruction_error(codec: Codec, images: Tensor) -> float:
    """Root mean squared difference per pixel between images `[n, c, h, w]` in [-1, 1] and their reconstructions."""
    return float((codec.decode(codec.encode(images)) - images).square().mean().sqrt())


class ReadAfter(NamedTuple):
    """Accuracy of a public classifier before and after a codec."""

    before: float
    """On the images themselves."""
    after: float
    """On their reconstructions by a codec."""


@torch.no_grad()
def read_after(codec: Codec, backbone: Backbone, images: Tensor, labels: Tensor | np.ndarray) -> ReadAfter:
    """Accuracy of the backbone on public images `[n, c, h, w]` with labels `[n]`, before and after encoding and decoding.

    For images that neither learnt from. The ratio shows how much of a class's features survives the round trip, for this classifier.
    """

    wanted = torch.as_tensor(labels).to(images.device)

    def right(shown: Tensor) -> float:
        return float((backbone.logits(shown).argmax(1) == wanted).float().mean())

    return ReadAfter(right(images), right(codec.decode(codec.encode(images))))


def pixel_spread(images: Tensor) -> float:
    """Root mean squared difference per pixel between images `[n, c, h, w]` and their mean: the error of knowing nothing."""
    return float((images - images.mean(0)).square().mean().sqrt())


def reconstructions(codec: Codec, images: Tensor, count: int) -> np.ndarray:
    """The first images `[n, c, h, w]`, each before its reconstruction: uint8 `[count, 2, c, h, w]`."""
    shown = images[:count]
    return np.stack([to_pixels(shown), to_pixels(codec.decode(codec.encode(shown)))], 1)
