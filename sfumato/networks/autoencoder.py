"""Small convolutional KL autoencoders: images to a normal distribution over latents, and latents back to images.

`kl`: after Rombach et al. 2022 (appendix G) without their discriminator. Every level after the first halves the side.
`patch`: the same behind a pixel unshuffle, which turns squares of pixels into channels, so that no residual block works
at full size; the decoder is the mirror, but for one more convolution of few channels at full size, which evens the seams
between patches. `linear` lays a linear map beside either half, which begins at the principal components of the public images' squares
(`begin_linear`): layers normalise, so that the convolutions alone learn the level and the colour of an image late. They normalise by groups of
channels, so one record's latent is a function of that record alone. Not covered: training, and the scale of the latents (`sfumato.latents`).
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.config import Latent
from sfumato.errors import BadInput
from sfumato.networks import diffusers_models
from sfumato.networks.attention import Attention
from sfumato.networks.diffusers_models import DiffusersAutoencoder
from sfumato.networks.layers import norm

LOG_VARIANCE = (-30.0, 20.0)
"""Range of the posterior's log variances; their exponentials stay finite."""
SMALLEST_SIDE = 2
"""Smallest side of a latent: a single position, normalised by groups of channels, carries hardly anything."""

FLAT_DIRECTION = 1e-6
"""Least variance of a principal component, of pixels from -1 to 1: by its root a latent is divided."""
FIRST_LOG_VARIANCE = -4.0
"""Log variance of the posterior where the linear maps begin: little noise on latents of variance 1, so that the decoder sees them from the first step on."""


SEAMS = 8
"""Channels at full size of the decoder of patches, before its last convolution."""

PATCHES = Latent(kind="patch", multipliers=(1,), width=48, loss="l2", batch=32, learning_rate=6e-3)
"""Settings of patches of any size: small steps of few images, which reduce the error several times faster than large ones, and
squared errors."""
ANCHORS: dict[tuple[int, int], Latent] = {
    (28, 1): PATCHES.model_copy(update={"patch": 4, "channels": 2, "steps": 3500}),
    (32, 3): PATCHES.model_copy(update={"patch": 4, "channels": 6, "linear": True, "steps": 4000}),
    (64, 3): PATCHES.model_copy(update={"patch": 4, "channels": 4, "linear": True, "steps": 2000}),
    (128, 3): PATCHES.model_copy(update={"patch": 8, "channels": 8, "linear": True, "steps": 2000}),
}
"""Side and colours of an image to the autoencoder that serves it on a CPU.

Measured on one busy core, root mean squared errors per pixel from -1 to 1: 28 grey, 40 CPU ms a step, 4,000 steps: .063 on public
images that were held out, .077 on MNIST, of which a CNN then reads .9912 (.9927 before). 32 in colour, 45 CPU ms a step, 2,500
steps to four channels: .104 (to six, 4,000 steps: .081) on held-out training images of Tiny ImageNet, .149 on its validation images (their mean: .52). The others were not
trained; a step costs in proportion to the positions, about four times as much at 16x16 as at 8x8.
"""

Shape = tuple[int, int, int]
"""Channels, height and width."""


def latent_shape(settings: Latent, image: Shape) -> Shape:
    """Shape of the denoisers' inputs for images of shape `image`: the images' own where `kind` is none.

    Raises `BadInput` where the image does not halve as often as the settings say, with the sizes that fit.
    """
    if settings.kind == "none":
        return image
    (_, height, width), halvings, patch = image, len(settings.multipliers) - 1, patch_of(settings)
    factor = patch * 2**halvings
    if fits(image, factor):
        return settings.channels, height // factor, width // factor
    raise BadInput(_misfit(settings, image))


def patch_of(settings: Latent) -> int:
    """Side of the squares of pixels that become channels before the first convolution; 1 where it sees pixels."""
    return settings.patch if settings.kind == "patch" else 1


def fits(image: Shape, factor: int) -> bool:
    """Whether both sides of an image divide by `factor` and leave a latent of at least `SMALLEST_SIDE`."""
    _, height, width = image
    return not (height % factor or width % factor) and min(height, width) >= factor * SMALLEST_SIDE


def _misfit(settings: Latent, image: Shape) -> str:
    """The misfit, and the patches and halvings that would fit, as one line."""
    (_, height, width), halvings, patch = image, len(settings.multipliers) - 1, patch_of(settings)
    if settings.config:
        near = max(SMALLEST_SIDE, height // 2**halvings) * 2**halvings
        return f"the autoencoder of latent.from halves images {halvings} times, which {height}x{width} pixels do not allow: use data.size={near}"
    patches = range(2, patch + 1) if settings.kind == "patch" else (1,)
    ways = [(p, n) for p in reversed(patches) for n in range(halvings + 1) if p * 2**n > 1]
    sizes = []
    for p, n in ways:
        if fits(image, p * 2**n) and (p, n) != (patch, halvings):
            patched = f"latent.patch={p}, " if settings.kind == "patch" else ""
            sizes.append(f"latents of {height // p // 2**n}x{width // p // 2**n} ({patched}{_multipliers(n + 1)})")
    factor = patch * 2**halvings
    side = max(SMALLEST_SIDE, height // factor) * factor
    reason = f"latent.multipliers={list(settings.multipliers)} halves the image {halvings} times"
    if settings.kind == "patch":
        times = (
            f" and multipliers={list(settings.multipliers)} halves what is left {halvings} times" if halvings else ""
        )
        reason = f"latent.patch={patch} makes one position of {patch}x{patch} pixels{times}"
    return (
        f"{reason}, which {height}x{width} pixels do not allow: "
        f"use {' or '.join(sizes) or 'latent.kind=none'}, or data.size={side}"
    )


def _multipliers(count: int) -> str:
    return f"{count} multiplier{'s' * (count > 1)}"


def largest_norm(settings: Latent, image: Shape) -> float:
    """The l2 norm that no record exceeds as the denoisers see it: known from settings and image shape, before any data.

    sqrt(c h w) for images, whose pixels lie in [-1, 1]; `latent.bound` times that for latents (`sfumato.latents.within`).
    """
    return math.sqrt(math.prod(latent_shape(settings, image))) * (1.0 if settings.kind == "none" else settings.bound)


class Residual(nn.Module):
    """Two convolutions added to their input; may change the number of channels."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.body = nn.Sequential(
            *(norm(inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)),
            *(norm(outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """`[b, inputs, h, w]` -> `[b, outputs, h, w]`."""
        return self.skip(x) + self.body(x)


class Autoencoder(nn.Module):
    """Encoder and decoder for images of one shape."""

    def __init__(self, settings: Latent, image: Shape):
        super().__init__()
        latent, widths = latent_shape(settings, image), [settings.width * m for m in settings.multipliers]
        patch = patch_of(settings)
        seen = image[0] * patch**2
        self.encoder: nn.Module = nn.Sequential(
            *([_Gather(patch)] if patch > 1 else []),
            nn.Conv2d(seen, widths[0], 3, padding=1),
            *_levels(settings, image[1] // patch, widths, up=False),
            *(Residual(widths[-1], widths[-1]), norm(widths[-1]), nn.SiLU()),
            nn.Conv2d(widths[-1], 2 * latent[0], 3, padding=1),
        )
        self.decoder: nn.Module = nn.Sequential(
            *(nn.Conv2d(latent[0], widths[-1], 3, padding=1), Residual(widths[-1], widths[-1])),
            *_levels(settings, latent[1], widths[::-1], up=True),
            *(norm(widths[0]), nn.SiLU(), *_last(widths[0], image[0], patch)),
        )
        if settings.linear:
            side = image[1] // latent[1]
            self.encoder = _Beside(_Gather(side), 2 * latent[0], image[0] * side**2, self.encoder)
            self.decoder = _Beside(_Spread(side), image[0] * side**2, latent[0], self.decoder)

    @torch.no_grad()
    def begin_linear(self, images: Iterable[Tensor]) -> None:
        """Begin as the principal components of the squares of public images, which come in parts `[b, c, h, w]`, scaled to variance 1,
        to which the convolutions add nothing yet; without linear maps, leave all as it is."""
        into, out = self.encoder, self.decoder
        if not isinstance(into, _Beside) or not isinstance(out, _Beside):
            return
        total = torch.zeros(out.linear.out_channels, dtype=torch.float64, device=out.linear.weight.device)
        products, count = torch.zeros_like(total).diag(), 0
        for part in images:
            squares = into.layout(part).movedim(1, -1).flatten(0, -2).double()
            total, products, count = total + squares.sum(0), products + squares.T @ squares, count + len(squares)
        mean = total / count
        values, vectors = torch.linalg.eigh(products / count - mean.outer(mean))
        channels = out.linear.in_channels
        roots, widest = values.clamp(min=FLAT_DIRECTION).sqrt().flip(0)[:channels], vectors.flip(1)[:, :channels]
        encoding, decoding = mean.new_zeros(2 * channels, len(mean)), mean.new_zeros(len(mean), channels)
        encoding[: len(roots)], decoding[:, : len(roots)] = (widest / roots).T, widest * roots
        bias = -encoding @ mean
        bias[channels:] = FIRST_LOG_VARIANCE
        into.begin(encoding, bias)
        out.begin(decoding, mean)

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance, both `[b, z, h', w']`, of the latents of images x `[b, c, h, w]`."""
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return mean, log_variance.clamp(*LOG_VARIANCE)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction of x from a latent drawn with `noise` `[b, z, h', w']`, and the posterior's mean and log variance."""
        mean, log_variance = self.posterior(x)
        return self.decoder(mean + (log_variance / 2).exp() * noise), mean, log_variance


def _last(width: int, channels: int, patch: int) -> list[nn.Module]:
    """From the decoder's last features to `channels` colours, `patch` times as high and as wide."""
    if patch == 1:
        return [nn.Conv2d(width, channels, 3, padding=1)]
    wide = nn.Conv2d(width, SEAMS * patch**2, 1)
    return [wide, _Spread(patch), nn.SiLU(), nn.Conv2d(SEAMS, channels, 3, padding=1)]


def _levels(settings: Latent, side: int, widths: list[int], *, up: bool) -> list[nn.Module]:
    """Residual blocks of each level, with attention at the chosen sides, and a change of side between levels."""
    layers: list[nn.Module] = []
    channels = widths[0]
    for level, width in enumerate(widths):
        if level:
            layers.append(_Grow(channels) if up else nn.Conv2d(channels, channels, 3, stride=2, padding=1))
            side = 2 * side if up else side // 2
        for _ in range(settings.blocks):
            layers += [Residual(channels, width), *([Attention(width)] if side in settings.attention else [])]
            channels = width
    return layers


class _Grow(nn.Module):
    """Doubles the side: nearest neighbour, then a convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """`[b, channels, h, w]` -> `[b, channels, 2h, 2w]`."""
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class _Gather(nn.Module):
    """Squares of pixels become channels, as in `nn.PixelUnshuffle`, which leaves the shape of no records as it is."""

    def __init__(self, patch: int):
        super().__init__()
        self.patch = patch

    def forward(self, x: Tensor) -> Tensor:
        """`[b, c, h, w]` -> `[b, c p², h / p, w / p]`."""
        (b, c, h, w), p = x.shape, self.patch
        return x.reshape(b, c, h // p, p, w // p, p).permute(0, 1, 3, 5, 2, 4).reshape(b, c * p * p, h // p, w // p)


class _Spread(nn.Module):
    """The inverse of `_Gather`."""

    def __init__(self, patch: int):
        super().__init__()
        self.patch = patch

    def forward(self, x: Tensor) -> Tensor:
        """`[b, c p², h, w]` -> `[b, c, h p, w p]`."""
        (b, c, h, w), p = x.shape, self.patch
        return x.reshape(b, c // p**2, p, p, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, c // p**2, h * p, w * p)


class _Beside(nn.Module):
    """A linear map between squares of pixels and latents beside other layers: the sum of what both make of their input."""

    def __init__(self, layout: _Gather | _Spread, outputs: int, inputs: int, other: nn.Module):
        super().__init__()
        self.layout, self.linear, self.other = layout, nn.Conv2d(inputs, outputs, 1), other

    def forward(self, x: Tensor) -> Tensor:
        """`[b, c, h, w]` -> `[b, outputs, h', w']`."""
        gathers = isinstance(self.layout, _Gather)
        return (self.linear(self.layout(x)) if gathers else self.layout(self.linear(x))) + self.other(x)

    def begin(self, weight: Tensor, bias: Tensor) -> None:
        """Be this map, `[outputs, inputs]` and `[outputs]`, and let the other layers' last convolution add nothing yet."""
        for parameter, values in zip(self.linear.parameters(), (weight[..., None, None], bias), strict=True):
            parameter.copy_(values)
        *_, last = (layer for layer in self.other.modules() if isinstance(layer, nn.Conv2d))
        for parameter in last.parameters():
            parameter.zero_()


def build_autoencoder(settings: Latent, image: Shape, *, seed: int = 0) -> Autoencoder | DiffusersAutoencoder:
    """A freshly initialised autoencoder for images of shape `image` (c, h, w); the initial weights follow the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.config:
            return diffusers_models.build_autoencoder(settings, image)
        return Autoencoder(settings, image)
