"""The feature extractor h: a small network with similar features for similar images, trained contrastively.

Two views of a public image are noised to time k and denoised in one step by the frozen public denoiser before h sees
them, so that a key made from a noisy latent and a query made during sampling live in the same space (Jiang et al.
2025, Algorithm 1 and section 3.3). Where the denoiser works on an autoencoder's latents, so does h, and the views are
made of the images before. Projection head and the loss of two views are lightly's (NT-Xent, Chen et al. 2020). Beyond the
paper: views of one class count as alike (Khosla et al. 2020), and h learns for several times k at once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.diffusion.objective import normal
from sfumato.diffusion.samplers import NO_CLASS, NoisePredictor
from sfumato.diffusion.schedule import NoiseSchedule, add_noise, predicted_image
from sfumato.errors import BadInput
from sfumato.images import shape_of
from sfumato.latents import PIXELS, Codec
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper
from sfumato.retrieval.settings import Extractor
from sfumato.training import Resumable, batches, train

SMALLEST_SIDE = 2
"""Side in pixels at which the encoder stops halving."""
EMA_DECAY = 0.99
"""Decay of the moving average over the extractor's short training."""
WARM_UP_PART, FINAL_RATE = 20, 0.05
"""The learning rate rises over one part of the steps in so many, and falls to this share of its peak (`sfumato.training.warm_then_decay`)."""
FILLED = {"background": "zeros", "border": "border"}
"""What `Extractor.edge` is called by torch, for images whose background is 0."""


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


class ResNet18(nn.Module):
    """x `[b, c, h, w]` -> unit feature vectors `[b, 512]`: torchvision's ResNet-18 with a first layer for small images (Chen et al. 2020, B.9)."""

    def __init__(self, channels: int):
        super().__init__()
        try:
            from torchvision.models import resnet18
        except ImportError:
            raise BadInput("extractor.kind=resnet18 needs torchvision: `pip install torchvision`") from None
        self.body = resnet18()
        self.body.conv1 = nn.Conv2d(channels, self.body.conv1.out_channels, 3, padding=1, bias=False)
        self.body.maxpool, self.body.fc = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.normalize(self.body(x), dim=1)


def make_encoder(settings: Extractor, shape: tuple[int, int, int], *, seed: int = 0) -> nn.Module:
    """A freshly initialised encoder for images of `shape` (c, h, w) whose weights follow the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.kind == "resnet18":
            return ResNet18(shape[0])
        encoder = Encoder(shape[0], max(shape[1:]), settings.width, settings.features)
        encoder(torch.zeros(1, *shape))
        return encoder


@dataclass(frozen=True)
class OneStep:
    """The frozen public denoiser as h looks through it: from noised images to the clean ones that they denoise to in one step."""

    schedule: NoiseSchedule
    denoise: NoisePredictor
    conditional: bool = False
    """Whether it is asked for an image's class, where that is known."""

    def image(self, x: Tensor, time: int, generator: torch.Generator, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Noise images `[b, c, h, w]` of public classes y `[b]` to `time` and denoise them in one step; returns result and noise."""
        noise = normal(x, generator)
        x_t = add_noise(self.schedule, x, torch.full((len(x),), time, device=x.device), noise)
        return self.guess(x_t, time, y), noise

    def guess(self, x_t: Tensor, time: int, y: Tensor | None = None) -> Tensor:
        """The image `[b, c, h, w]` that latents at `time` denoise to in one step: what h sees."""
        t = torch.full((len(x_t),), time, device=x_t.device)
        classes = torch.full_like(t, NO_CLASS) if y is None or not self.conditional else y
        return predicted_image(self.schedule, x_t, t, self.denoise(x_t, t, classes))


@dataclass(frozen=True)
class FeatureMap:
    """From images noised to a time to their unit features: the one-step image, as h sees it."""

    one_step: OneStep
    encoder: nn.Module

    def noised(
        self, x: Tensor, time: int, generator: torch.Generator, y: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features `[b, features]` of images `[b, c, h, w]` of classes `[b]`, noised afresh, and the noise used."""
        clean, noise = self.one_step.image(x, time, generator, y)
        return self.encoder(clean), noise


def random_views(x: Tensor, settings: Extractor, generator: torch.Generator) -> Tensor:
    """Randomly moved, cropped, mirrored and coloured copies of images `[b, c, h, w]` in [-1, 1], as the settings say."""

    def uniform() -> Tensor:
        return torch.rand(len(x), generator=generator, device=x.device)

    def symmetric(limit: float) -> Tensor:
        return (2 * uniform() - 1) * limit

    angle, scale = symmetric(math.radians(settings.rotation)), 1 + symmetric(settings.scale)
    across, down = symmetric(2 * settings.shift), symmetric(2 * settings.shift)
    if settings.crop:
        share = 1 - uniform() * settings.crop
        across, down, scale = across + (1 - share) * symmetric(1), down + (1 - share) * symmetric(1), scale * share
    cos, sin = angle.cos() * scale, angle.sin() * scale
    flip = (uniform() < 0.5) * -2.0 + 1 if settings.mirror else torch.ones_like(cos)
    affine = torch.stack([torch.stack([cos * flip, -sin, across], 1), torch.stack([sin * flip, cos, down], 1)], 1)
    grid = F.affine_grid(affine, list(x.shape), align_corners=False)
    view = F.grid_sample(x + 1, grid, align_corners=False, padding_mode=FILLED[settings.edge]) - 1
    return coloured(view, settings.jitter, generator) if settings.jitter else view


def coloured(x: Tensor, jitter: float, generator: torch.Generator) -> Tensor:
    """Images `[b, c, h, w]` in [-1, 1] with brightness, contrast and each channel changed by a share of up to `jitter`."""

    def factor(channels: int) -> Tensor:
        shape = (len(x), channels, 1, 1)
        return 1 + jitter * (2 * torch.rand(shape, generator=generator, device=x.device) - 1)

    light = (x + 1) / 2 * factor(1) * factor(x.shape[1])
    mean = light.mean((1, 2, 3), keepdim=True)
    return (2 * (mean + (light - mean) * factor(1)) - 1).clamp(-1, 1)


def class_contrast(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Loss by which views `[b, d]` of one class attract each other and all others repel (Khosla et al. 2020, Eq. 2: outside the log)."""
    unit = F.normalize(features, dim=1)
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    likeness = (unit @ unit.T / temperature).masked_fill(itself, -torch.inf)
    alike = (labels[:, None] == labels[None]) & ~itself
    shares = (likeness - likeness.logsumexp(1, keepdim=True)).masked_fill(~alike, 0)
    return -(shares.sum(1) / alike.sum(1).clamp(min=1)).mean()


def train_extractor(
    settings: Extractor,
    one_step: OneStep,
    images: Tensor,
    labels: Tensor,
    *,
    times: Sequence[int],
    seed: int,
    codec: Codec = PIXELS,
    progress: Progress = silent,
    keeper: Keeper | None = None,
) -> tuple[nn.Module, list[float]]:
    """Train h on public images `[n, c, h, w]` of classes `[n]`, as the codec encodes them, for latents at each of `times`; returns it
    and its losses (Eq. 4).

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    from lightly.models.modules.heads import SimCLRProjectionHead

    generator = torch.Generator(images.device).manual_seed(seed)
    encoder = make_encoder(settings, codec.shape(shape_of(images)), seed=seed).to(images.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = SimCLRProjectionHead(settings.features, settings.features, settings.projection or settings.features).to(
            images.device
        )
    contrast = contrast_of(settings)
    feed = batches(len(images), settings.batch, torch.Generator().manual_seed(seed))

    def loss_of_step() -> Tensor:
        index = next(feed).to(images.device)
        time = (
            times[0]
            if len(times) == 1
            else times[int(torch.randint(len(times), (1,), generator=generator, device=images.device))]
        )
        with torch.no_grad():
            both, y = torch.cat([images[index], images[index]]), labels[index].repeat(2)
            seen = codec.encode(random_views(both, settings, generator))
            clean, _ = one_step.image(seen, time, generator, y)
        return contrast(head(encoder(clean)), y)

    trained, losses = train(
        nn.ModuleList([encoder, head]),
        loss_of_step,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        warm_up=settings.steps // WARM_UP_PART,
        final_rate=FINAL_RATE,
        ema_decay=EMA_DECAY,
        progress=progress,
        resumable=Resumable(keeper, feed, generator) if keeper else None,
    )
    return trained[0].eval().requires_grad_(False), losses


def contrast_of(settings: Extractor) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of projected features of two views each, `[2 b, d]`, first views first, of classes `[2 b]`."""
    if settings.contrast == "classes":
        return lambda projected, y: class_contrast(projected, y, settings.temperature)
    from lightly.loss import NTXentLoss

    pairs = NTXentLoss(temperature=settings.temperature)
    return lambda projected, y: pairs(*projected.chunk(2))
