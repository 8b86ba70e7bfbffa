"""A class-conditional U-Net for images of 16x16 and larger.

Residual blocks with GroupNorm and feature-wise modulation, self-attention at chosen resolutions, strided convolutions
down and nearest-neighbour up (after Ho et al. 2020, appendix B). No layer mixes records, so per-record clipping is
exact.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.checkpointing import block
from sfumato.networks.layers import Condition, Conditioned, Film
from sfumato.networks.prediction import NoisePrediction, Prediction

GROUPS = 8
"""Largest number of groups of a normalisation; fewer where the channels do not divide."""


def norm(channels: int) -> nn.GroupNorm:
    """Group normalisation with as many groups (at most `GROUPS`) as divide the channels."""
    groups = next(g for g in range(min(GROUPS, channels), 0, -1) if channels % g == 0)
    return nn.GroupNorm(groups, channels)


class ResBlock(nn.Module):
    """Two convolutions with the condition in between; changes the number of channels, keeps the sides at any dilation."""

    def __init__(self, inputs: int, outputs: int, condition: int, dilation: int = 1):
        super().__init__()
        self.norm1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation)
        self.norm2 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=dilation, dilation=dilation)
        self.modulate = Film(condition, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """`[b, inputs, h, w]` -> `[b, outputs, h, w]`."""
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = self.conv2(F.silu(self.modulate(self.norm2(hidden), condition)))
        return self.skip(x) + hidden


class Attention(nn.Module):
    """Single-head self-attention over positions, added to its input."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = norm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        """`[b, channels, h, w]` -> the same shape."""
        rows = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = self.qkv(rows).chunk(3, 2)
        # Spelt out, because the fused attention has no rule for per-record gradients.
        mixed = (query @ key.transpose(1, 2) / query.shape[2] ** 0.5).softmax(2) @ value
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


class AttendedBlock(nn.Module):
    """A residual block, optionally with attention after it."""

    def __init__(self, inputs: int, outputs: int, condition: int, attend: bool):
        super().__init__()
        self.block = ResBlock(inputs, outputs, condition)
        self.attention = Attention(outputs) if attend else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """`[b, inputs, h, w]` -> `[b, outputs, h, w]`."""
        return self.attention(self.block(x, condition))


class UNet(Conditioned):
    """Predicts the noise in x `[b, c, h, w]` at times t `[b]` for classes y `[b]`; returns `[b, c, h, w]`.

    `multipliers` gives the channels of each level in units of `width`; each level below the first halves the side,
    which must be divisible. `attention` lists the sides (pixels) at which positions attend to each other.
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
    ):
        """A network for images of `shape` (c, h, w).

        Many parameters: each is a size of the network, by the name of its setting.
        """
        super().__init__()
        self.checkpointed = False
        side, channels = shape[1], width
        self.condition = Condition(classes, condition)
        self.input = nn.Conv2d(shape[0], width, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        skips = [width]
        for level, multiplier in enumerate(multipliers):
            stages = nn.ModuleList()
            for _ in range(blocks):
                stages.append(AttendedBlock(channels, width * multiplier, condition, side in attention))
                channels = width * multiplier
                skips.append(channels)
            self.down.append(stages)
            last = level == len(multipliers) - 1
            self.shrink.append(nn.Identity() if last else nn.Conv2d(channels, channels, 3, stride=2, padding=1))
            if not last:
                skips.append(channels)
                side //= 2
        self.middle = AttendedBlock(channels, channels, condition, side in attention)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(multipliers))):
            stages = nn.ModuleList()
            for _ in range(blocks + 1):
                stages.append(AttendedBlock(channels + skips.pop(), width * multiplier, condition, side in attention))
                channels = width * multiplier
            self.up.append(stages)
            self.grow.append(nn.Conv2d(channels, channels, 3, padding=1) if level else nn.Identity())
            side *= 2
        self.norm, self.output = norm(channels), nn.Conv2d(channels, shape[0], 3, padding=1)
        nn.init.zeros_(self.output.weight)
        self.prediction: Prediction = NoisePrediction()

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """See the class."""
        condition = self.condition(t, y)
        hidden = self.input(self.prediction.scaled(x, t))
        skips = [hidden]
        for stages, shrink in zip(self.down, self.shrink, strict=True):
            for stage in stages.children():
                hidden = block(stage, hidden, condition, checkpointed=self.checkpointed)
                skips.append(hidden)
            if not isinstance(shrink, nn.Identity):
                hidden = shrink(hidden)
                skips.append(hidden)
        hidden = block(self.middle, hidden, condition, checkpointed=self.checkpointed)
        for stages, grow in zip(self.up, self.grow, strict=True):
            for stage in stages.children():
                both = torch.cat([hidden, skips.pop()], 1)
                hidden = block(stage, both, condition, checkpointed=self.checkpointed)
            if not isinstance(grow, nn.Identity):
                hidden = grow(F.interpolate(hidden, scale_factor=2.0, mode="nearest"))
        return self.prediction(self.output(F.silu(self.norm(hidden))), x, t)
