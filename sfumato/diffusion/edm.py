"""Diffusion by noise level instead of time (Karras et al. 2022): x = x_0 + sigma noise, for a network that knows times.

A network trained on q(x_t | x_0) = N(sqrt(ab) x_0, (1 - ab) I) serves here too: x / sqrt(1 + sigma^2) has the signal and
the noise of the time at which (1 - ab) / ab = sigma^2. Not covered: levels beyond those of its times, where the first or
the last of them stands in.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sfumato.diffusion.objective import Draws, normal
from sfumato.diffusion.samplers import NoisePredictor, time_of
from sfumato.diffusion.schedule import NoiseSchedule

ImageDenoiser = Callable[[Tensor, float], Tensor]
"""(x `[b, c, h, w]`, its noise level) -> the clean images that are expected."""


def clean_image(schedule: NoiseSchedule, denoise: NoisePredictor, x: Tensor, y: Tensor, sigma: float) -> Tensor:
    """The network's estimate of x_0 from `x` `[b, c, h, w]` at noise level `sigma` > 0, within the schedule's limit.

    Karras et al. 2022, Table 1, "VP": D(x) = x - sigma F(x / sqrt(1 + sigma^2)), F the predicted noise.
    """
    t = torch.full((len(x),), time_of(schedule, sigma), device=x.device)
    noise = denoise(x / math.sqrt(1 + sigma**2), t, y)
    return (x - sigma * noise).clamp(-schedule.limit, schedule.limit)


def noisy_step(x: Tensor, image: Tensor, sigma: float, after: float, generator: Draws) -> Tensor:
    """`x` at noise level `after` < `sigma`, given the clean `image` that is expected (Anonymous 2025, Eq. 1); all `[b, c, h, w]`."""
    pull = 2 * (sigma - after) / sigma
    return (1 - pull) * x + pull * image + math.sqrt(2 * sigma * (sigma - after)) * normal(x, generator)


def step_noise(sigma: float, after: float) -> float:
    """Standard deviation of the noise in `noisy_step`, relative to its `image`: sqrt(sigma^3 / (2 (sigma - after)))."""
    return math.sqrt(sigma**3 / (2 * (sigma - after)))


@torch.inference_mode()
def stopped_at(
    denoise: ImageDenoiser, like: Tensor, levels: Sequence[float], stops: Sequence[int], *, seed: int
) -> Tensor:
    """Where sampling from `levels[0]` on is at the places `stops` of the levels, from 1 on: as many noisy images as `like` `[b, c, h, w]` for each, in the
    order of the levels, `[stops, b, c, h, w]`. The same `seed` gives the same noise to every denoiser."""
    generator = torch.Generator(like.device).manual_seed(seed)
    x, reached = levels[0] * normal(like, generator), []
    for place, (sigma, after) in enumerate(itertools.pairwise(levels), 1):
        x = noisy_step(x, denoise(x, sigma), sigma, after, generator)
        if place in stops:
            reached.append(x)
    return torch.stack(reached)
