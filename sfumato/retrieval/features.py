"""The feature extractor h: a small network with similar features for similar images, trained contrastively.

Two views of a public image are noised to time k and denoised in one step by the frozen public denoiser before h sees
them, so that a key made from a noisy latent and a query made during sampling live in the same space (Jiang et al.
2025, Algorithm 1 and section 3.3). Where the denoiser works on an autoencoder's latents, so does h, and the views are
made of the images before. Loss and projection head are lightly's (NT-Xent, Chen et al. 2020).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.config import Extractor
from sfumato.diffusion.objective import normal
from sfumato.diffusion.samplers import NO_CLASS, NoisePredictor
from sfumato.diffusion.schedule import NoiseSchedule, add_noise, predicted_image
from sfumato.images import shape_of
from sfumato.latents import PIXELS, Codec
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper
from sfumato.training import Resumable, batches, train

SMALLEST_SIDE = 2
"""Side in pixels at which the encoder stops halving."""
EMA_DECAY = 0.99
"""Decay of the moving average over the extractor's short training."""


class Encoder(nn.Module):
    """x `[b, c, h, w]` -> unit feature vectors `[b, features]`; halves the side with every layer until it is at most 2."""

    def __init__(self, channels: int, side: int, width: int, features: int):
        super().__init__()
        layers: list[nn.Module] = []
        while side > SMALLEST_SIDE:
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.SiLU()]
            channels, width, side = width, 2 * width, (side + 1) // 2
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(features))

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.normalize(self.body(x), dim=1)


def make_encoder(settings: Extractor, shape: tuple[int, int, int], *, seed: int = 0) -> Encoder:
    """A freshly initialised encoder for images of `shape` (c, h, w) whose weights follow the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(shape[0], max(shape[1:]), settings.width, settings.features)
        encoder(torch.zeros(1, *shape))
        return encoder


def one_step_image(
    schedule: NoiseSchedule, denoise: NoisePredictor, x: Tensor, time: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Noise images `[b, c, h, w]` to `time` and denoise them in one step; returns the result and the noise used."""
    noise = normal(x, generator)
    x_t = add_noise(schedule, x, torch.full((len(x),), time, device=x.device), noise)
    return clean_guess(schedule, denoise, x_t, time), noise


def clean_guess(schedule: NoiseSchedule, denoise: NoisePredictor, x_t: Tensor, time: int) -> Tensor:
    """The image `[b, c, h, w]` that latents at `time` denoise to in one step, without a class: what h sees."""
    t = torch.full((len(x_t),), time, device=x_t.device)
    return predicted_image(schedule, x_t, t, denoise(x_t, t, torch.full_like(t, NO_CLASS)))


def random_views(x: Tensor, settings: Extractor, generator: torch.Generator) -> Tensor:
    """Randomly rotated, scaled and shifted copies of images `[b, c, h, w]` in [-1, 1]; what moves in is background (-1)."""

    def symmetric(limit: float) -> Tensor:
        return (2 * torch.rand(len(x), generator=generator, device=x.device) - 1) * limit

    angle, scale = symmetric(math.radians(settings.rotation)), 1 + symmetric(settings.scale)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    across, down = symmetric(2 * settings.shift), symmetric(2 * settings.shift)
    affine = torch.stack([torch.stack([cos, -sin, across], 1), torch.stack([sin, cos, down], 1)], 1)
    grid = F.affine_grid(affine, list(x.shape), align_corners=False)
    return F.grid_sample(x + 1, grid, align_corners=False) - 1


def train_extractor(
    settings: Extractor,
    schedule: NoiseSchedule,
    denoise: NoisePredictor,
    images: Tensor,
    *,
    time: int,
    seed: int,
    codec: Codec = PIXELS,
    progress: Progress = silent,
    keeper: Keeper | None = None,
) -> tuple[nn.Module, list[float]]:
    """Train h on public images `[n, c, h, w]`, as the codec encodes them, for latents at `time` = k; returns it and its losses (Eq. 4).

    Many parameters: each is a tensor, or a number of one formula.
    """
    from lightly.loss import NTXentLoss
    from lightly.models.modules.heads import SimCLRProjectionHead

    generator = torch.Generator(images.device).manual_seed(seed)
    encoder = make_encoder(settings, codec.shape(shape_of(images)), seed=seed).to(images.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = SimCLRProjectionHead(settings.features, settings.features, settings.features).to(images.device)
    contrast = NTXentLoss(temperature=settings.temperature)
    feed = batches(len(images), settings.batch, torch.Generator().manual_seed(seed))

    def loss_of_step() -> Tensor:
        index = next(feed).to(images.device)
        with torch.no_grad():
            both = torch.cat([images[index], images[index]])
            seen = codec.encode(random_views(both, settings, generator))
            clean, _ = one_step_image(schedule, denoise, seen, time, generator)
        one, two = head(encoder(clean)).chunk(2)
        return contrast(one, two)

    trained, losses = train(
        nn.ModuleList([encoder, head]),
        loss_of_step,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        warm_up=settings.steps // 20,
        final_rate=0.05,
        ema_decay=EMA_DECAY,
        progress=progress,
        resumable=Resumable(keeper, feed, generator) if keeper else None,
    )
    return trained[0].eval().requires_grad_(False), losses
