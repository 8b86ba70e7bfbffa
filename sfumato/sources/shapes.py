"""Public images without a download, for private ones in colour or half tones: shapes of random form, colour and texture.

An image is a ground with a light across it. Shapes are laid on it one over the other, as fallen leaves are: ellipses, boxes and wavy blobs,
some with a smaller one inside. Last comes a texture, rougher or smoother. Such images show no thing there is, but their edges, sizes and
colours follow laws that most images share, so that what learns from them knows how images look before it sees a real one (Baradad et al.
2021 train features on dead leaves, Tang et al. 2023 begin private training with them). A class is a way of laying shapes
out: `objects` is one large thing near the middle, `leaves` cover all, `grains` are small and many.

Not covered: bit-for-bit equality between machines (a seed fixes the images on one machine).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato.errors import BadInput
from sfumato.images import WHITE, ImageSet

SMALLEST = 8
"""Smallest side of an image, pixels."""
CHUNK = 256
"""Images drawn at once; small enough for the cache."""

TONES = (-0.2, 1.2)
"""Range of a ground's grey level before it is cut off at 0, black, and 1, white: of many real images the ground is one of the two."""
TINT = 0.1
"""Spread of a ground's channels around its grey level: most real images are dull."""
CONTRAST = (0.05, 0.45)
"""Range of the spread of an image's shapes around its ground."""
COLOURED = 0.3
"""Share of a shape's or a texture's difference from the ground that each channel has by itself; the rest is light or dark."""
LIGHT = 0.12
"""Spread of the light's slope across half an image, or across the radius of a shape."""
ROUGHNESS = (1.25, 2.5)
"""Range of the power by which a texture's amplitude falls with the frequency; that of photographs, edges included, is near 1."""
HARDNESS = (4.0, 40.0)
"""Range of a radius over the width of its edge."""
FINEST_EDGE = 0.5
"""Least width of an edge, pixels; sharper ones would make steps."""
FINEST_RADIUS = 1.5
"""Least radius across a shape, pixels; smaller ones would be specks, of which an autoencoder keeps nothing."""
WAVES = (2, 3, 5)
"""Waves around the rim of a blob."""
CORE = (0.3, 0.7)
"""Range of the radius of an inner shape, as a share of the outer one's."""
ECCENTRIC = 0.15
"""Spread of an inner shape's centre around the outer one's, as a share of the radius."""


@dataclass(frozen=True)
class Arrangement:
    """A class of images: how many shapes, how large, how formed. Lengths are shares of half the image's side."""

    shapes: tuple[int, int]
    """Fewest and most."""
    radius: tuple[float, float]
    spread: float
    """How far from the middle their centres may lie."""
    slim: float
    """Least width over length."""
    powers: tuple[float, ...] = (2.0,)
    """Exponents of the superellipses that they may be: 2 is an ellipse, a large one a box."""
    wavy: float = 0.0
    """Spread of the waves around a rim, as a share of the radius."""
    inside: float = 0.0
    """Share of the shapes that have a smaller one inside."""
    texture: float = 0.05
    """Largest amplitude of the texture."""
    alike: float = 0.0
    """Share of a shape's colour that it has in common with the others of its image."""
    often_small: bool = False
    """Whether radii follow a power law, as those of leaves at all distances do; otherwise all are as frequent."""


ARRANGEMENTS: Mapping[str, Arrangement] = MappingProxyType(
    {
        "leaves": Arrangement((14, 24), (0.12, 0.9), 1.1, 0.4, powers=(2.0, 8.0), wavy=0.1, often_small=True),
        "objects": Arrangement((1, 2), (0.35, 0.95), 0.25, 0.6, powers=(2.0, 4.0), wavy=0.15, inside=0.9, alike=0.5),
        "scenes": Arrangement((3, 6), (0.3, 1.0), 0.9, 0.3, powers=(2.0, 8.0), wavy=0.15, inside=0.3),
        "groups": Arrangement((4, 8), (0.2, 0.4), 0.95, 0.7, wavy=0.1, inside=0.8, alike=0.85),
        "grains": Arrangement((12, 20), (0.08, 0.16), 1.0, 0.7, alike=0.85),
        "strokes": Arrangement((3, 9), (0.4, 1.2), 0.8, 0.12, powers=(4.0,), alike=0.8),
        "clouds": Arrangement((0, 2), (0.5, 1.2), 0.9, 0.5, wavy=0.2, texture=0.3),
        "tissue": Arrangement((6, 12), (0.2, 0.5), 1.1, 0.4, wavy=0.3, inside=0.5, texture=0.2, alike=0.6),
    }
)


class Palette(NamedTuple):
    """What the shapes of an image have in common, for each image: colours `[n, 3]`, contrast and hardness `[n, 1]`."""

    ground: Tensor
    shared: Tensor
    contrast: Tensor
    hardness: Tensor

    def of(self, chosen: Tensor) -> "Palette":
        """That of the images at `chosen`, positions int64 `[m]` or a mask bool `[n]`."""
        return Palette(*(one[chosen] for one in self))


def render_shapes(per_class: int, size: int, seed: int) -> ImageSet:
    """`per_class` images of each class of `ARRANGEMENTS`, in their order; `[n, 3, size, size]`."""
    check_request(per_class, size)
    pixels = []
    for arrangement, rng in zip(
        ARRANGEMENTS.values(), np.random.default_rng(seed).spawn(len(ARRANGEMENTS)), strict=True
    ):
        for first in range(0, per_class, CHUNK):
            drawn = draw(arrangement, min(CHUNK, per_class - first), size, rng)
            pixels.append(drawn.clamp(0, 1).mul(WHITE).round().to(torch.uint8))
    return ImageSet(torch.cat(pixels).numpy(), np.repeat(np.arange(len(ARRANGEMENTS)), per_class), tuple(ARRANGEMENTS))


def check_request(per_class: int, size: int) -> None:
    """Refuse images too few or too small."""
    if per_class < 1:
        raise BadInput(f"shapes_per_class={per_class} draws nothing; use 1 or more")
    if size < SMALLEST:
        raise BadInput(f"shapes of {size}x{size} pixels cannot be told apart; use data.size={SMALLEST} or more")


def draw(arrangement: Arrangement, images: int, size: int, rng: np.random.Generator) -> Tensor:
    """Images of one class, `[images, 3, size, size]`, of which few values lie outside of 0..1."""
    ground = (even(rng, TONES, images) + normal(rng, TINT, images, 3)).clamp(0, 1)
    contrast = even(rng, CONTRAST, images)
    palette = Palette(ground, difference(rng, contrast), contrast, even(rng, HARDNESS, images))
    pixels = with_light(rng, ground, grid(size).expand(images, 2, size, size))
    counts = torch.from_numpy(rng.integers(*arrangement.shapes, endpoint=True, size=images))
    for layer in range(arrangement.shapes[1]):
        there = counts > layer
        pixels[there] = with_shape(arrangement, pixels[there], palette.of(there), rng)
    return pixels + texture(rng, images, size) * even(rng, (0, arrangement.texture), images)[..., None, None]


def with_shape(arrangement: Arrangement, pixels: Tensor, palette: Palette, rng: np.random.Generator) -> Tensor:
    """Each image `[n, 3, size, size]` with one more shape on it, and in some a smaller one inside that."""
    images, size = len(pixels), pixels.shape[-1]
    place, radius = placed(arrangement, images, size, rng)
    own = arrangement.alike * palette.shared + (1 - arrangement.alike) * difference(rng, palette.contrast)
    colour = reflected(palette.ground + own)
    pixels = pixels + cover(outline(arrangement, place, rng), radius, palette) * (
        with_light(rng, colour, place) - pixels
    )
    core, inner = even(rng, CORE, images), torch.from_numpy(rng.random(images) < arrangement.inside)
    place = (place - normal(rng, ECCENTRIC, images, 2)[..., None, None]) / core[..., None, None]
    covered = cover(place.square().sum(1, keepdim=True).sqrt(), radius * core, palette) * inner[:, None, None, None]
    other = reflected(colour + difference(rng, palette.contrast))
    return pixels + covered * (with_light(rng, other, place) - pixels)


def placed(arrangement: Arrangement, images: int, size: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Where pixels lie seen from a shape, in its radii along and across it `[n, 2, h, w]`, and its smallest radius in pixels `[n, 1]`."""
    low, high = arrangement.radius
    quantile = torch.from_numpy(rng.random((images, 1))).float()
    radius = low + quantile * (high - low)
    if arrangement.often_small:
        radius = (low**-2 + quantile * (high**-2 - low**-2)) ** -0.5  # radii r as frequent as r^-3
    radius = radius.clamp(min=FINEST_RADIUS * 2 / size)
    slim, angle = even(rng, (arrangement.slim, 1), images), even(rng, (0, torch.pi), images)[..., None]
    centre = torch.from_numpy(rng.uniform(-arrangement.spread, arrangement.spread, (images, 2))).float()[
        ..., None, None
    ]
    x, y = (grid(size) - centre).unbind(1)
    along = (x * angle.cos() + y * angle.sin()) / radius[..., None]
    width = (radius * slim).clamp(min=FINEST_RADIUS * 2 / size)
    across = (y * angle.cos() - x * angle.sin()) / width[..., None]
    return torch.stack([along, across], 1), width * size / 2


def outline(arrangement: Arrangement, place: Tensor, rng: np.random.Generator) -> Tensor:
    """How far from the centre a pixel lies, 1 at the rim; `[n, 1, h, w]`."""
    power = float(rng.choice(arrangement.powers))
    far = place.abs().pow(power).sum(1, keepdim=True).pow(1 / power)
    if arrangement.wavy:
        around = torch.atan2(place[:, 1:], place[:, :1])
        for waves in WAVES:
            height = normal(rng, arrangement.wavy / len(WAVES) ** 0.5, len(place), 1)[..., None, None]
            far = far * (
                1 + height * (waves * around + even(rng, (0, 2 * torch.pi), len(place))[..., None, None]).cos()
            )
    return far


def cover(far: Tensor, radius: Tensor, palette: Palette) -> Tensor:
    """How much of each pixel a shape covers, 0 to 1, `[n, 1, h, w]`, by its outline `far` `[n, 1, h, w]` and its radius in pixels `[n, 1]`."""
    hardness = torch.minimum(palette.hardness, radius / FINEST_EDGE)
    return torch.sigmoid((1 - far) * hardness[..., None, None])


def with_light(rng: np.random.Generator, colour: Tensor, place: Tensor) -> Tensor:
    """Colours `[n, 3]` spread out under a light that falls across; `[n, 3, h, w]`."""
    slope = normal(rng, LIGHT, len(colour), 2)[..., None, None]
    return colour[..., None, None] + (slope * place.clamp(-1, 1)).sum(1, keepdim=True)


def difference(rng: np.random.Generator, contrast: Tensor) -> Tensor:
    """Differences of colours `[n, 3]`: mostly of all channels together."""
    return contrast * dulled(normal(rng, 1, len(contrast), 4))


def reflected(colours: Tensor) -> Tensor:
    """Colours `[...]` beyond black, 0, and white, 1, as far on this side of them, so that what lies on a black ground is seen."""
    return 1 - (1 - colours.abs()).abs()


def dulled(values: Tensor) -> Tensor:
    """Four numbers as three channels `[n, 3, ...]` that have most in common."""
    return (1 - COLOURED) * values[:, :1] + COLOURED * values[:, 1:]


def texture(rng: np.random.Generator, images: int, size: int) -> Tensor:
    """Noise whose amplitude falls with the frequency, of about unit variance; `[n, 3, size, size]`."""
    frequency = (torch.fft.fftfreq(size)[:, None] ** 2 + torch.fft.rfftfreq(size) ** 2).sqrt() * size
    frequency[0, 0] = torch.inf  # no constant part
    white = torch.fft.rfft2(normal(rng, 1, images, 4, size, size))
    field = torch.fft.irfft2(white / frequency ** even(rng, ROUGHNESS, images)[..., None, None], s=(size, size))
    return dulled(field / field.std((-1, -2), keepdim=True))


def grid(size: int) -> Tensor:
    """Where the pixels of an image lie, -1 to 1 along each side; `[2, size, size]`."""
    line = (torch.arange(size) + 0.5) * 2 / size - 1
    return torch.stack(torch.meshgrid(line, line, indexing="xy"))


def even(rng: np.random.Generator, limits: tuple[float, float], images: int) -> Tensor:
    """Numbers between two limits, all as frequent; `[images, 1]`."""
    return torch.from_numpy(rng.uniform(*limits, (images, 1))).float()


def normal(rng: np.random.Generator, spread: float, *shape: int) -> Tensor:
    """Normal numbers around 0 with the standard deviation `spread`, float32 `[*shape]`."""
    return torch.from_numpy(rng.normal(0, spread, shape)).float()
