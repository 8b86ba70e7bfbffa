"""A class-conditional U-Net for images of 16x16 and larger.

Residual blocks with GroupNorm and feature-wise modulation, self-attention at chosen resolutions, strided convolutions
down and nearest-neighbour up (after Ho et al. 2020, appendix B). No layer mixes records, so per-record clipping is
exact.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.errors import BadInput
from sfumato.networks.attention import Attention, SpatialTransformer
from sfumato.networks.checkpointing import block
from sfumato.networks.layers import Condition, Conditioned, Film, SeededDropout, norm
from sfumato.networks.prediction import NoisePrediction, Prediction


class ResBlock(nn.Module):
    """Two convolutions with the condition in between; changes the number of channels, keeps the sides at any dilation.

    With `resample` both of its paths halve the sides, as means of two by two, or double them by repeating, before any convolution (Brock et
    al. 2019, BigGAN; Song et al. 2021). `dropout` stands before the second convolution (Dhariwal and Nichol 2021).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        condition: int,
        dilation: int = 1,
        *,
        dropout: float = 0.0,
        resample: Literal["", "down", "up"] = "",
    ):
        super().__init__()
        self.resample = resample
        self.norm1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation)
        self.norm2 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=dilation, dilation=dilation)
        self.modulate = Film(condition, outputs)
        self.dropout = SeededDropout(dropout) if dropout else nn.Identity()
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """`[b, inputs, h, w]` -> `[b, outputs, h, w]`."""
        hidden = self.conv1(self.resampled(F.silu(self.norm1(x))))
        hidden = self.conv2(self.dropout(F.silu(self.modulate(self.norm2(hidden), condition))))
        return self.skip(self.resampled(x)) + hidden

    def resampled(self, x: Tensor) -> Tensor:
        """`[b, c, h, w]` -> `[b, c, h / 2, w / 2]`, `[b, c, 2 h, 2 w]`, or as it is."""
        if self.resample == "down":
            return F.avg_pool2d(x, 2)
        return F.interpolate(x, scale_factor=2.0, mode="nearest") if self.resample == "up" else x


class AttendedBlock(nn.Module):
    """A residual block, optionally with attention after it, which `attend` makes for a number of channels."""

    def __init__(
        self, inputs: int, outputs: int, condition: int, attend: Callable[[int], nn.Module], dropout: float = 0.0
    ):
        super().__init__()
        self.block = ResBlock(inputs, outputs, condition, dropout=dropout)
        self.attention = attend(outputs)

    def forward(self, x: Tensor, condition: Tensor, token: Tensor | None = None) -> Tensor:
        """x `[b, inputs, h, w]`, conditions `[b, condition]`, class embeddings `[b, embedding]` -> `[b, outputs, h, w]`."""
        hidden = self.block(x, condition)
        if isinstance(self.attention, SpatialTransformer):
            return self.attention(hidden, token)
        return self.attention(hidden)


class UNet(Conditioned):
    """Predicts the noise in x `[b, c, h, w]` at times t `[b]` for classes y `[b]`; returns `[b, c, h, w]`.

    `multipliers` gives the channels of each level in units of `width`; each level below the first halves the side,
    which must be divisible. `attention` lists the sides (pixels) at which positions attend to each other, in `heads` heads or in heads of
    `head_channels` each; with a `transformer` of some depth there, blocks of it, which with an `embedding` attend to the class, too.
    With `resampling` by blocks, residual blocks halve and double the sides in place of convolutions; `dropout` is that of each block.
    `BadInput` where heads do not divide the channels, or the class would reach nothing.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        width: int,
        multipliers: tuple[int, ...],
        blocks: int,
        attention: tuple[int, ...],
        condition: int,
        heads: int = 1,
        head_channels: int = 0,
        transformer: int = 0,
        embedding: int = 0,
        resampling: Literal["convolution", "block"] = "convolution",
        dropout: float = 0.0,
    ):
        """A network for images of `shape` (c, h, w).

        Many parameters: each is a size of the network, by the name of its setting.
        """
        super().__init__()
        self.checkpointed = False
        side, channels = shape[1], width
        if embedding:
            _refuse_unheard(transformer, attention, [side // 2**level for level in range(len(multipliers))])

        def attend(width: int) -> nn.Module:
            if side not in attention:
                return nn.Identity()
            count = _heads(width, heads, head_channels)
            return SpatialTransformer(width, count, transformer, embedding) if transformer else Attention(width, count)

        def change(channels: int, way: Literal["down", "up"]) -> nn.Module:
            if resampling == "block":
                return ResBlock(channels, channels, condition, dropout=dropout, resample=way)
            return nn.Conv2d(channels, channels, 3, stride=2 if way == "down" else 1, padding=1)

        self.condition = Condition(classes, condition, embedding)
        self.input = nn.Conv2d(shape[0], width, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        skips = [width]
        for level, multiplier in enumerate(multipliers):
            stages = nn.ModuleList()
            for _ in range(blocks):
                stages.append(AttendedBlock(channels, width * multiplier, condition, attend, dropout))
                channels = width * multiplier
                skips.append(channels)
            self.down.append(stages)
            last = level == len(multipliers) - 1
            self.shrink.append(nn.Identity() if last else change(channels, "down"))
            if not last:
                skips.append(channels)
                side //= 2
        self.middle = AttendedBlock(channels, channels, condition, attend, dropout)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(multipliers))):
            stages = nn.ModuleList()
            for _ in range(blocks + 1):
                stages.append(AttendedBlock(channels + skips.pop(), width * multiplier, condition, attend, dropout))
                channels = width * multiplier
            self.up.append(stages)
            self.grow.append(change(channels, "up") if level else nn.Identity())
            side *= 2
        self.norm, self.output = norm(channels), nn.Conv2d(channels, shape[0], 3, padding=1)
        nn.init.zeros_(self.output.weight)
        self.prediction: Prediction = NoisePrediction()

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """See the class."""
        condition = self.condition(t, y)
        tokens = (self.condition.token(y),) if self.condition.apart else ()
        hidden = self.input(self.prediction.scaled(x, t))
        skips = [hidden]
        for stages, shrink in zip(self.down, self.shrink, strict=True):
            for stage in stages.children():
                hidden = block(stage, hidden, condition, *tokens, checkpointed=self.checkpointed)
                skips.append(hidden)
            if isinstance(shrink, ResBlock):
                hidden = block(shrink, hidden, condition, checkpointed=self.checkpointed)
            elif not isinstance(shrink, nn.Identity):
                hidden = shrink(hidden)
            if not isinstance(shrink, nn.Identity):
                skips.append(hidden)
        hidden = block(self.middle, hidden, condition, *tokens, checkpointed=self.checkpointed)
        for stages, grow in zip(self.up, self.grow, strict=True):
            for stage in stages.children():
                both = torch.cat([hidden, skips.pop()], 1)
                hidden = block(stage, both, condition, *tokens, checkpointed=self.checkpointed)
            if isinstance(grow, ResBlock):
                hidden = block(grow, hidden, condition, checkpointed=self.checkpointed)
            elif not isinstance(grow, nn.Identity):
                hidden = grow(F.interpolate(hidden, scale_factor=2.0, mode="nearest"))
        return self.prediction(self.output(F.silu(self.norm(hidden))), x, t)


def _heads(channels: int, heads: int, head_channels: int) -> int:
    """The number of heads at a level of so many channels; `BadInput` where they do not divide."""
    by, name = (head_channels, "head_channels") if head_channels else (heads, "attention_heads")
    if channels % by:
        raise BadInput(
            f"network.{name}={by} does not divide the {channels} channels of a level that attends (network.width times one of "
            f"network.multipliers): use a divisor of {channels}"
        )
    return channels // head_channels if head_channels else heads


def _refuse_unheard(transformer: int, attention: tuple[int, ...], sides: list[int]) -> None:
    """`BadInput` where the class enters by cross-attention and nothing attends."""
    what = "network.class_input=cross_attention would reach nothing"
    if not transformer:
        raise BadInput(
            f"{what} without transformer blocks: set network.transformer=1 or more, or network.class_input=sum"
        )
    if not set(sides) & set(attention):
        raise BadInput(
            f"{what}: network.attention={list(attention)} holds none of the sides of the levels, {sides}: add one of them"
        )
