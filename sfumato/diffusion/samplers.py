"""From noise to images over any falling list of times: DDIM and DPM-Solver++(2M), deterministic or stochastic.

Every sampler is a function of one denoiser contract, `denoise(x, t, y) -> predicted noise`, and a list of times; it asks
the denoiser once for each step. "Retrieve and resume" is the same sampler called twice with two lists. Not covered:
solvers of higher order.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sfumato.config import Generation
from sfumato.diffusion.objective import normal
from sfumato.diffusion.schedule import NoiseSchedule, predicted_image

Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x `[b, c, h, w]`, t `[b]`, y `[b]`) -> predicted noise `[b, c, h, w]`."""

NO_CLASS = -1
"""The class index that asks a network for its null row, the mean of its class rows."""


def guided(denoise: Denoiser, weight: float) -> Denoiser:
    """Classifier-free guidance: (1 + w) times the wanted class's prediction minus w times the null row's.

    Post-processing of the released weights (Ho and Salimans 2022, Eq. 6, with the mean of the class rows as null row).
    """
    if weight == 0:
        return denoise

    def predict(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        wanted, null = denoise(
            torch.cat([x, x]), torch.cat([t, t]), torch.cat([y, y.new_full(y.shape, NO_CLASS)])
        ).chunk(2)
        return (1 + weight) * wanted - weight * null

    return predict


@torch.inference_mode()
def ddim(
    schedule: NoiseSchedule,
    denoise: Denoiser,
    x: Tensor,
    y: Tensor,
    times: Sequence[int],
    *,
    eta: float = 0.0,
    generator: torch.Generator,
) -> Tensor:
    """Walk `x` `[b, c, h, w]` from `times[0]` down to `times[-1]` (Song et al. 2021, Eq. 12 and 16).

    `eta` 0 is deterministic, 1 has the variance of ancestral sampling. Ends at the image in [-1, 1] when the last time
    is 0.
    """
    for now, after in itertools.pairwise(times):
        t, s = (torch.full((len(x),), time, device=x.device) for time in (now, after))
        image = predicted_image(schedule, x, t, denoise(x, t, y))
        noise = (x - schedule.signal(t) * image) / schedule.noise(t)
        spread = (
            eta * schedule.noise(s) / schedule.noise(t) * (1 - (schedule.signal(t) / schedule.signal(s)) ** 2).sqrt()
        )
        x = schedule.signal(s) * image + (schedule.noise(s) ** 2 - spread**2).clamp(min=0).sqrt() * noise
        if eta > 0:
            x = x + spread * normal(x, generator)
    return x


@torch.inference_mode()
def dpm_solver(
    schedule: NoiseSchedule,
    denoise: Denoiser,
    x: Tensor,
    y: Tensor,
    times: Sequence[int],
    *,
    eta: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Walk `x` `[b, c, h, w]` from `times[0]` down to `times[-1]` by DPM-Solver++(2M) (Lu et al. 2022, Algorithm 2).

    Solves the equation that `ddim` solves, but predicts from the last two clean images how they go on changing: at `eta`
    0 the error falls with the square of the number of steps. `eta` 1 is the stochastic SDE-DPM-Solver++(2M) of the same
    paper, and needs the generator. The first step of a list, which has none before it, and the step to time 0, which is
    infinitely long in log signal-to-noise, are of first order and at `eta` 0 and 1 those of `ddim`.
    """
    before: tuple[Tensor, float] | None = None
    for now, after in itertools.pairwise(times):
        t = torch.full((len(x),), now, device=x.device)
        image = predicted_image(schedule, x, t, denoise(x, t, y))
        if after == 0:
            return image
        length = log_signal_to_noise(schedule, after) - log_signal_to_noise(schedule, now)
        ahead = image
        if before:
            last, last_length = before
            ahead = image + length / (2 * last_length) * (image - last)
        signal, noise = levels(schedule, after)
        kept = noise / levels(schedule, now)[1] * math.exp(-eta * length)
        x = kept * x - signal * math.expm1(-(1 + eta) * length) * ahead
        if eta > 0:
            x = x + noise * math.sqrt(-math.expm1(-2 * eta * length)) * normal(x, generator)
        before = image, length
    return x


def levels(schedule: NoiseSchedule, time: int) -> tuple[float, float]:
    """Signal and noise level, sqrt(alpha_bar) and sqrt(1 - alpha_bar), at one time."""
    level = float(schedule.alpha_bar[time])
    return math.sqrt(level), math.sqrt(1 - level)


def log_signal_to_noise(schedule: NoiseSchedule, time: int) -> float:
    """lambda = log(signal / noise) at one time above 0 (Lu et al. 2022, section 2.1)."""
    signal, noise = levels(schedule, time)
    return math.log(signal / noise)


def solve(
    generation: Generation,
    schedule: NoiseSchedule,
    denoise: Denoiser,
    x: Tensor,
    y: Tensor,
    times: Sequence[int],
    *,
    generator: torch.Generator,
) -> Tensor:
    """Walk `x` `[b, c, h, w]` along `times` by the solver that the settings name; one evaluation for each step."""
    if generation.solver == "dpm++":
        return dpm_solver(schedule, denoise, x, y, times, eta=generation.eta, generator=generator)
    return ddim(schedule, denoise, x, y, times, eta=generation.eta, generator=generator)
