"""From settings to a denoiser."""

import math

import torch
from torch import Tensor, nn

from sfumato.config import Network
from sfumato.errors import BadInput
from sfumato.networks.diffusers_models import build_denoiser
from sfumato.networks.mlp import PixelMlp
from sfumato.networks.prediction import predicting
from sfumato.networks.refinenet import RefineNet
from sfumato.networks.transformer import Transformer
from sfumato.networks.unet import UNet

UNET_FROM = 16
"""Smallest side in pixels for which `auto` chooses the U-Net."""
WIDTHS = {"mlp": 192, "unet": 32, "refinenet": 32, "dit": 128}
"""Default widths."""
SINGLE = 8
"""Largest side at which the transformer by default takes every position by itself."""
PER_POSITION = 4
"""Divisor of a transformer's width: sines and cosines of row and column."""


def resolved(settings: Network, side: int) -> Network:
    """The settings with `auto` and the default width filled in for images of `side` pixels."""
    kind = settings.kind if settings.kind != "auto" else "unet" if side >= UNET_FROM else "mlp"
    return settings.model_copy(update={"kind": kind, "width": settings.width or WIDTHS[kind]})


def build(
    settings: Network, shape: tuple[int, int, int], classes: int, *, seed: int = 0, alpha_bar: Tensor | None = None
) -> nn.Module:
    """A freshly initialised denoiser for images or latents of `shape` (c, h, w); the initial weights follow the seed.

    `alpha_bar` `[T + 1]`, the signal levels of the schedule, is needed where the network predicts the velocity. Raises
    `BadInput` where the shape does not fit the network's levels.
    """
    settings = resolved(settings, shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (build_denoiser if settings.config else BUILDERS[settings.kind])(settings, shape, classes)
    return predicting(model, settings, alpha_bar)


def _mlp(settings: Network, shape: tuple[int, int, int], classes: int) -> nn.Module:
    return PixelMlp(shape, classes, width=settings.width, blocks=settings.blocks, condition=settings.condition)


def _refinenet(settings: Network, shape: tuple[int, int, int], classes: int) -> nn.Module:
    return RefineNet(
        shape,
        classes,
        width=settings.width,
        multipliers=settings.multipliers,
        blocks=settings.blocks,
        condition=settings.condition,
        refine=settings.refine,
    )


def _unet(settings: Network, shape: tuple[int, int, int], classes: int) -> nn.Module:
    factor = 2 ** (len(settings.multipliers) - 1)
    if shape[1] % factor or shape[2] % factor:
        fitting = max(1, shape[1] // factor) * factor
        raise BadInput(
            f"network.multipliers={list(settings.multipliers)} halves its input {len(settings.multipliers) - 1} times, "
            f"which {shape[1]}x{shape[2]} do not allow: use fewer levels, or in pixels data.size={fitting}"
        )
    return UNet(
        shape,
        classes,
        width=settings.width,
        multipliers=settings.multipliers,
        blocks=settings.blocks,
        attention=settings.attention,
        condition=settings.condition,
        heads=settings.attention_heads,
        head_channels=settings.head_channels,
        transformer=settings.transformer,
        embedding=(settings.embedding or settings.condition) if settings.class_input == "cross_attention" else 0,
        resampling=settings.resampling,
        dropout=settings.dropout,
    )


def _transformer(settings: Network, shape: tuple[int, int, int], classes: int) -> nn.Module:
    width, heads, sides = settings.width, settings.heads, shape[1:]
    patch = settings.patch or 1 + (max(sides) > SINGLE and not any(side % 2 for side in sides))
    if any(side % patch for side in sides):
        fitting = ", ".join(str(side) for side in range(1, min(sides) + 1) if not (sides[0] % side or sides[1] % side))
        raise BadInput(f"network.patch={patch} does not divide {sides[0]}x{sides[1]}: use one of {fitting}")
    if width % math.lcm(heads, PER_POSITION):
        step = math.lcm(heads, PER_POSITION)
        raise BadInput(
            f"network.width={width} cannot be shared by network.heads={heads}: use a multiple of {step}, such as {-(-width // step) * step}"
        )
    return Transformer(
        shape, classes, width=width, blocks=settings.blocks, heads=heads, patch=patch, condition=settings.condition
    )


BUILDERS = {"mlp": _mlp, "unet": _unet, "refinenet": _refinenet, "dit": _transformer}
"""From settings of each kind to a network."""
