"""Parts that several denoisers share: normalisation, time features, class rows, feature-wise modulation."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.config import ParameterGroup

TIME_PERIOD = 10_000.0
"""Longest period of the sinusoidal time features (Vaswani et al. 2017, section 3.5)."""

GROUPS = 8
"""Largest number of groups of a normalisation; fewer where the channels do not divide."""


def norm(channels: int) -> nn.GroupNorm:
    """Group normalisation with as many groups (at most `GROUPS`) as divide the channels."""
    groups = next(g for g in range(min(GROUPS, channels), 0, -1) if channels % g == 0)
    return nn.GroupNorm(groups, channels)


def time_features(t: Tensor, width: int) -> Tensor:
    """Sines and cosines of times `t` `[b]` at `width / 2` frequencies: `[b, width]`."""
    half = width // 2
    frequencies = torch.exp(-math.log(TIME_PERIOD) * torch.arange(half, device=t.device) / half)
    angles = t.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], 1)


class Condition(nn.Module):
    """Time and class as one vector `[b, width]`: a small network on the time, plus one learnt row per class.

    With an `embedding` the rows have that length, the vector carries the time alone, and `token` gives the rows.
    """

    def __init__(self, classes: int, width: int, embedding: int = 0):
        super().__init__()
        self.width, self.apart = width, embedding > 0
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.rows = nn.Embedding(classes, embedding or width)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        """Times t `[b]` and classes y `[b]` as `[b, width]`; negative classes read the null row, the mean of all rows."""
        time: Tensor = self.time(time_features(t, self.width).to(self.rows.weight.dtype))
        return time if self.apart else time + self.token(y)

    def token(self, y: Tensor) -> Tensor:
        """The rows of classes y `[b]`, `[b, embedding or width]`; of negative ones the null row."""
        return rows_of(self.rows.weight, y)


def rows_of(table: Tensor, y: Tensor) -> Tensor:
    """The rows `[b, width]` of classes y `[b]` in a table `[classes, width]`; of a negative one the mean of all rows."""
    # One product, so that the rows are used once and per-record gradients know how.
    wanted = y[:, None] == torch.arange(len(table), device=y.device)
    share = torch.where((y < 0)[:, None], 1 / len(table), wanted.to(table.dtype))
    return share @ table


ROWS = "condition.rows.weight"
"""Name of the class rows in our denoisers."""
TIME = "condition.time."
"""Prefix of the names of the network on the time."""


class Conditioned(nn.Module):
    """The common base of our denoisers (`sfumato.networks.denoiser.Denoiser`): a `Condition`, and groups by the names of parts."""

    condition: Condition

    def class_rows(self) -> Tensor:
        """`[classes, width]`."""
        return self.condition.rows.weight

    def exchange_rows(self, rows: Tensor) -> None:
        """Rows `[classes, width]` in place of its own."""
        self.condition.rows = nn.Embedding.from_pretrained(rows, freeze=False)

    def group_of(self, name: str) -> ParameterGroup:
        """The group of the parameter of this name."""
        if name == ROWS:
            return "rows"
        if name.startswith(TIME):
            return "time"
        if ".film." in name:
            return "film"
        return "attention" if ".attention." in name else "rest"


class SeededDropout(nn.Module):
    """Sets a share `rate` of the numbers to zero, and scales the others up, while it has a `seed`; without one, as it begins, the identity.

    The mask follows from the seed alone, so that a checkpointed block computes the same one again, and no global state is touched.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.seed: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        """`[...]` -> the same shape."""
        if self.seed is None:
            return x
        source = torch.Generator(x.device).manual_seed(self.seed)
        stays = torch.rand(x.shape, generator=source, device=x.device) >= self.rate
        return x * stays / (1 - self.rate)


class Film(nn.Module):
    """Feature-wise scale and shift from the condition (Perez et al. 2018), the identity at the start."""

    def __init__(self, condition: int, features: int):
        super().__init__()
        self.film = nn.Linear(condition, 2 * features)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Modulates x `[b, features, ...]` by the condition `[b, width]`."""
        both = self.film(F.silu(condition))
        scale, shift = both.view(*both.shape, *[1] * (x.dim() - 2)).chunk(2, 1)
        return x * (1 + scale) + shift
