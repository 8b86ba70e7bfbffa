"""From noise to images over any falling list of times: DDIM, DPM-Solver++(2M), ancestral sampling, PNDM, Heun with churn.

Every sampler is a function of one denoiser contract, `denoise(x, t, y) -> predicted noise`, and a list of times; it evaluates
the denoiser once per step, but for the first steps of PNDM and nearly all of Heun's (`evaluations`). "Retrieve and resume" is the same
sampler called twice with two lists. Not covered: learned variances.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import assert_never

import torch
from torch import Tensor

from sfumato.config import Generation
from sfumato.diffusion.objective import normal
from sfumato.diffusion.schedule import NoiseSchedule, predicted_image

NoisePredictor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x `[b, c, h, w]`, t `[b]`, y `[b]`) -> predicted noise `[b, c, h, w]`."""

NO_CLASS = -1
"""The class index for which a network uses its null row, the mean of its class rows."""


def guided(denoise: NoisePredictor, weight: float) -> NoisePredictor:
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
    denoise: NoisePredictor,
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

    Many parameters: each is a tensor, or a number of one formula.
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
    denoise: NoisePredictor,
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

    Many parameters: each is a tensor, or a number of one formula.
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
        decay = noise / levels(schedule, now)[1] * math.exp(-eta * length)
        x = decay * x - signal * math.expm1(-(1 + eta) * length) * ahead
        if eta > 0:
            x = x + noise * math.sqrt(-math.expm1(-2 * eta * length)) * normal(x, generator)
        before = image, length
    return x


@torch.inference_mode()
def ancestral(
    schedule: NoiseSchedule,
    denoise: NoisePredictor,
    x: Tensor,
    y: Tensor,
    times: Sequence[int],
    *,
    generator: torch.Generator,
) -> Tensor:
    """Walk `x` `[b, c, h, w]` from `times[0]` down to `times[-1]` by the reverse process (Ho et al. 2020, Algorithm 2).

    The variance of a step is that of the forward step, beta (their first choice; their other one is `ddim` with `eta` 1).
    It is exact for data of unit variance and too large for others, by as much as steps are long: made for many steps.
    """
    for now, after in itertools.pairwise(times):
        t, s = (torch.full((len(x),), time, device=x.device) for time in (now, after))
        image = predicted_image(schedule, x, t, denoise(x, t, y))
        if after == 0:
            return image
        ratio = schedule.signal(t) / schedule.signal(s)
        variance = 1 - ratio**2
        weight = schedule.signal(s) * variance / schedule.noise(t) ** 2
        mean = weight * image + ratio * schedule.noise(s) ** 2 / schedule.noise(t) ** 2 * x
        x = mean + variance.sqrt() * normal(x, generator)
    return x


WARM_UP = 3
"""Steps of PNDM that have too few before them for four-step extrapolation (Liu et al. 2022, Algorithm 2)."""
BEFORE = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12), (55 / 24, -59 / 24, 37 / 24, -9 / 24))
"""Weights of this prediction and those before it, latest first (Adams and Bashforth; the last row is Liu et al., Eq. 12)."""
WITHIN = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
"""Weights of the four predictions within a step of the warm-up (Runge and Kutta; Liu et al., Eq. 13)."""


@torch.inference_mode()
def pndm(schedule: NoiseSchedule, denoise: NoisePredictor, x: Tensor, y: Tensor, times: Sequence[int]) -> Tensor:
    """Walk `x` `[b, c, h, w]` from `times[0]` down to `times[-1]` by F-PNDM (Liu et al. 2022, Algorithm 2).

    Solves the equation that `ddim` solves, with the noise of four predictions in place of one: the last four, or in the
    first `WARM_UP` steps four within the step, which look ahead to its end and its middle. The error falls with the square
    of the number of steps or faster. Times should be evenly spaced. The step to time 0, where a denoiser cannot be asked,
    always uses the available predictions before it.
    """

    def ask(x: Tensor, time: int) -> Tensor:
        return denoise(x, torch.full((len(x),), time, device=x.device), y)

    past: list[Tensor] = []
    for now, after in itertools.pairwise(times):
        first = ask(x, now)
        past = [first, *past[:WARM_UP]]
        if len(past) > WARM_UP or after == 0:
            noise = weighed(BEFORE[len(past) - 1], past)
        else:
            middle = (now + after) // 2
            second = ask(moved(schedule, x, first, now, middle), middle)
            third = ask(moved(schedule, x, second, now, middle), middle)
            fourth = ask(moved(schedule, x, third, now, after), after)
            noise = weighed(WITHIN, (first, second, third, fourth))
        x = moved(schedule, x, noise, now, after)
    return x


LARGEST_CHURN = math.sqrt(2) - 1
"""The largest share by which a step raises the noise level, which it then at most doubles in variance (Karras et al. 2022, Algorithm 2)."""


@torch.inference_mode()
def heun(
    schedule: NoiseSchedule,
    denoise: NoisePredictor,
    x: Tensor,
    y: Tensor,
    times: Sequence[int],
    *,
    churn: float = 0.0,
    between: tuple[float, float] = (0.0, math.inf),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Walk `x` `[b, c, h, w]` from `times[0]` down to `times[-1]` by Heun's method with churn (Karras et al. 2022, Algorithm 2).

    Solves the equation that `ddim` solves, with the mean of the predictions at both ends of a step; the step to time 0, where a denoiser cannot
    be asked, takes the first alone. With `churn` each step that begins at a noise level sigma within `between` first adds noise up to (1 + gamma)
    sigma, gamma = churn / steps, and needs the generator. Sigma is relative to the signal, and what it is raised to is the nearest of the
    schedule's own: 1,000 times of an `edm` schedule are at most 2.5 % apart. Not covered: S_noise, a factor on the noise that is added.

    Many parameters: each is a tensor, or a number of one formula.
    """

    def ask(x: Tensor, time: int) -> Tensor:
        return denoise(x, torch.full((len(x),), time, device=x.device), y)

    gamma = min(churn / max(1, len(times) - 1), LARGEST_CHURN)
    for now, after in itertools.pairwise(times):
        sigma, later = sigma_of(schedule, now), now
        if gamma > 0 and between[0] <= sigma <= between[1]:
            later = max(now, time_of(schedule, (1 + gamma) * sigma))
            x = raised(schedule, x, now, later, generator)
        noise = ask(x, later)
        if after > 0:
            noise = (noise + ask(moved(schedule, x, noise, later, after), after)) / 2
        x = moved(schedule, x, noise, later, after)
    return x


def sigma_of(schedule: NoiseSchedule, time: int) -> float:
    """Noise over signal at one time above 0, sqrt((1 - alpha_bar) / alpha_bar)."""
    signal, noise = levels(schedule, time)
    return noise / signal


def time_of(schedule: NoiseSchedule, sigma: float) -> int:
    """The time, 1 to T, whose noise relative to the signal is nearest to `sigma`, as a ratio."""
    known = schedule.alpha_bar[1:].double()
    return 1 + int(((1 - known).log() - known.log() - 2 * math.log(sigma)).abs().argmin())


def raised(schedule: NoiseSchedule, x: Tensor, now: int, later: int, generator: torch.Generator | None) -> Tensor:
    """`x` `[b, c, h, w]` at time `now` with fresh noise up to time `later` >= `now`, 1 to T both: x over its signal has noise sigma, to which
    sqrt(sigma(later)^2 - sigma(now)^2) is added (Karras et al. 2022, Algorithm 2)."""
    added = math.sqrt(sigma_of(schedule, later) ** 2 - sigma_of(schedule, now) ** 2)
    return levels(schedule, later)[0] * (x / levels(schedule, now)[0] + added * normal(x, generator))


def weighed(weights: Sequence[float], parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors `[...]` of one shape, each times its weight; one of them at least."""
    return functools.reduce(operator.add, [weight * part for weight, part in zip(weights, parts, strict=True)])


def moved(schedule: NoiseSchedule, x: Tensor, noise: Tensor, now: int, after: int) -> Tensor:
    """`x` `[b, c, h, w]` at time `after` if its noise is `noise` `[b, c, h, w]` from `now` on, 1 to T (Liu et al. 2022, Eq. 11), with the image in range."""
    t, s = (torch.full((len(x),), time, device=x.device) for time in (now, after))
    image = predicted_image(schedule, x, t, noise)
    return schedule.signal(s) * image + schedule.noise(s) * (x - schedule.signal(t) * image) / schedule.noise(t)


def levels(schedule: NoiseSchedule, time: int) -> tuple[float, float]:
    """Signal and noise level, sqrt(alpha_bar) and sqrt(1 - alpha_bar), at one time."""
    level = float(schedule.alpha_bar[time])
    return math.sqrt(level), math.sqrt(1 - level)


def log_signal_to_noise(schedule: NoiseSchedule, time: int) -> float:
    """lambda = log(signal / noise) at one time above 0 (Lu et al. 2022, section 2.1)."""
    signal, noise = levels(schedule, time)
    return math.log(signal / noise)


def one_step_images(model: torch.nn.Module, schedule: NoiseSchedule, z: Tensor, y: Tensor) -> Tensor:
    """Images or latents `[b, c, h, w]` within the schedule's limit of the classes y `[b]` by a one-step generator, from noise z of that shape.

    The generator is a network with the inputs of a denoiser, asked once at the largest time.
    """
    t = torch.full((len(z),), schedule.timesteps, device=z.device)
    return schedule.limit * model(z, t, y).tanh()


def solve(
    generation: Generation,
    schedule: NoiseSchedule,
    denoise: NoisePredictor,
    x: Tensor,
    y: Tensor,
    times: Sequence[int],
    *,
    generator: torch.Generator,
) -> Tensor:
    """Walk `x` `[b, c, h, w]` along `times` by the solver that the settings name.

    Many parameters: each is a tensor, or a number of one formula.
    """
    if generation.solver == "dpm++":
        return dpm_solver(schedule, denoise, x, y, times, eta=generation.eta, generator=generator)
    if generation.solver == "ddpm":
        return ancestral(schedule, denoise, x, y, times, generator=generator)
    if generation.solver == "pndm":
        return pndm(schedule, denoise, x, y, times)
    if generation.solver == "heun":
        between = generation.churn_from, generation.churn_to
        return heun(schedule, denoise, x, y, times, churn=generation.churn, between=between, generator=generator)
    if generation.solver == "ddim":
        return ddim(schedule, denoise, x, y, times, eta=generation.eta, generator=generator)
    assert_never(generation.solver)


def evaluations(generation: Generation, times: Sequence[int]) -> int:
    """Number of denoiser evaluations of `solve` along `times`, guidance not counted."""
    steps = len(times) - 1
    if generation.solver == "heun":
        return steps + sum(time > 0 for time in times[1:])
    looking_ahead = min(WARM_UP, sum(time > 0 for time in times[1:])) if generation.solver == "pndm" else 0
    return steps + (len(WITHIN) - 1) * looking_ahead
