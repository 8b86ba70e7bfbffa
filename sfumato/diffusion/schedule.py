"""The noise schedule: `alpha_bar[t]`, the signal level at diffusion time t, and how often training draws each time.

Times are 1-based: `alpha_bar[0]` is 1 (the clean image), `alpha_bar[t]` the product of (1 - beta) up to t, so that
q(x_t | x) = N(sqrt(alpha_bar[t]) x, (1 - alpha_bar[t]) I) (Ho et al. 2020, Eq. 4). Karras et al. 2022 add noise sigma to an image
that is not scaled down; over sqrt(1 + sigma^2) that is x_t with alpha_bar = 1 / (1 + sigma^2), so that their noise levels are a schedule
like any other. Not covered: learned variances.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato.config import Schedule


@dataclass(frozen=True)
class NoiseSchedule:
    """Signal levels of all diffusion times."""

    alpha_bar: Tensor
    """`[timesteps + 1]`, float32, falling from 1 towards 0."""
    limit: float = 1.0
    """Largest absolute value of a clean image or latent; predictions of it are clamped to this."""
    law: Tensor | None = None
    """`[timesteps]`, float64: the probability with which training draws each time from 1 on; None where all have the same."""

    @property
    def timesteps(self) -> int:
        """The largest diffusion time T."""
        return len(self.alpha_bar) - 1

    def signal(self, t: Tensor) -> Tensor:
        """sqrt(alpha_bar[t]) as `[b, 1, 1, 1]` for times `t` `[b]`."""
        return self._level(t).sqrt()

    def noise(self, t: Tensor) -> Tensor:
        """sqrt(1 - alpha_bar[t]) as `[b, 1, 1, 1]` for times `t` `[b]`."""
        return (1 - self._level(t)).sqrt()

    def _level(self, t: Tensor) -> Tensor:
        return self.alpha_bar.to(t.device)[t].view(-1, 1, 1, 1)


def signal_levels(settings: Schedule) -> np.ndarray:
    """alpha_bar of all times, float64 `[timesteps + 1]`: `linear` (Ho et al. 2020), `cosine` (Nichol and Dhariwal 2021, Eq. 17),
    `scaled_linear`, whose betas are linear in their roots (Rombach et al. 2022), or `edm` (Karras et al. 2022, Eq. 5).

    For the formulas of privacy, in which float32 loses digits: 1 - alpha_bar[1] keeps three of them.
    """
    if settings.kind == "edm":
        roots = np.linspace(
            settings.sigma_min ** (1 / settings.rho), settings.sigma_max ** (1 / settings.rho), settings.timesteps
        )
        return np.concatenate([[1.0], 1 / (1 + roots ** (2 * settings.rho))])
    if settings.kind == "linear":
        beta = np.linspace(settings.beta_start, settings.beta_end, settings.timesteps)
    elif settings.kind == "scaled_linear":
        beta = np.linspace(settings.beta_start**0.5, settings.beta_end**0.5, settings.timesteps) ** 2
    else:
        grid = (np.arange(settings.timesteps + 1) / settings.timesteps + settings.cosine_offset) / (
            1 + settings.cosine_offset
        )
        level = np.cos(grid * np.pi / 2) ** 2
        beta = np.minimum(1 - level[1:] / level[:-1], settings.beta_max)
    return np.concatenate([[1.0], np.cumprod(1 - beta)])


def make_schedule(settings: Schedule, limit: float = 1.0) -> NoiseSchedule:
    """The schedule that the settings name, as the networks use it, for clean values in [-limit, limit]."""
    levels = signal_levels(settings)
    law = None if settings.law == "uniform" else lognormal_law(levels, settings.law_mean, settings.law_spread)
    return NoiseSchedule(torch.as_tensor(levels, dtype=torch.float32), limit, law)


def lognormal_law(levels: np.ndarray, mean: float, spread: float) -> Tensor:
    """The probability of each time, float64 `[timesteps]`, with which ln sigma is N(mean, spread^2) (Karras et al. 2022, Table 1, "Noise distribution").

    sigma^2 = (1 - alpha_bar) / alpha_bar for the alpha_bar `levels` `[timesteps + 1]`. A time stands for the logarithms that are nearer to its
    own than to another's, the first and the last for all beyond them. No probability is 0, so that any of the times can be trained alone.
    """
    known = torch.as_tensor(levels[1:], dtype=torch.float64)
    logarithms = (torch.log1p(-known) - known.log()) / 2
    middles = (logarithms[1:] + logarithms[:-1]) / 2
    below = torch.special.ndtr((middles - mean) / spread)
    law = torch.diff(below, prepend=below.new_zeros(1), append=below.new_ones(1)).clamp(
        min=torch.finfo(below.dtype).tiny
    )
    return law / law.sum()


def mixture_law(timesteps: int, bounds: Sequence[int], shares: Sequence[float]) -> Tensor:
    """The probability of each time, float64 `[timesteps]`, by a mixture of uniform laws (Ghalebikesabi et al. 2023, "modified timestep sampling").

    The times above `bounds[i]` up to `bounds[i + 1]`, rising from 0 to `timesteps` at most, share `shares[i]` of the sum evenly; all others have 0.
    """
    law = torch.zeros(timesteps, dtype=torch.float64)
    for above, last, share in zip(bounds, bounds[1:], shares, strict=False):
        law[above:last] = share / (last - above)
    return law / law.sum()


def training_times(
    schedule: NoiseSchedule, count: int, low: int, high: int, generator: torch.Generator, device: torch.device
) -> Tensor:
    """`[count]` times of low..high, both included, drawn by the schedule's law: uniformly where it has none.

    Many parameters: each is a tensor, or a number of one formula.
    """
    if schedule.law is None:
        return torch.randint(low, high + 1, (count,), generator=generator, device=device)
    law = schedule.law[low - 1 : high].to(device)
    return low + torch.multinomial(law, count, replacement=True, generator=generator)


def add_noise(schedule: NoiseSchedule, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """x_t for images `x` `[b, c, h, w]`, times `t` `[b]` and standard normal `noise` `[b, c, h, w]`."""
    return schedule.signal(t) * x + schedule.noise(t) * noise


def predicted_image(schedule: NoiseSchedule, x_t: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """The clean image that `x_t` and the predicted `noise` imply, clamped to the schedule's limit (all `[b, c, h, w]`)."""
    return ((x_t - schedule.noise(t) * noise) / schedule.signal(t)).clamp(-schedule.limit, schedule.limit)


def time_grid(start: int, stop: int, steps: int) -> Sequence[int]:
    """`steps + 1` falling times from `start` to `stop`, as evenly spaced as integers allow and without repeats."""
    grid = np.unique(np.linspace(stop, start, steps + 1).round().astype(int))
    return [int(t) for t in grid[::-1]]
