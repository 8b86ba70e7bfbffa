"""Sampling by Hamiltonian dynamics, as DPPM draws (Liu et al. 2024, Algorithm 2): leapfrog steps that become shorter.

In iteration m of M, momentum is drawn anew, N leapfrog steps of length step_size (M / m)^2 are taken, and a Metropolis
test accepts or undoes them. The test needs the change of the log density, of which a network knows the gradient alone, and the
paper does not say how it is computed: here it is the integral of the score along the path, by the trapezoid rule at the points
where the score is evaluated anyway. That is exact for a Gaussian, and elsewhere has the error of the leapfrog steps themselves:
second order in the step, as large as what the test looks at (`benchmarks/dppm.py` measures it).
The energy gained is then step^2 / 8 times |score|^2 at the start less |score|^2 at the end, for any field: the test demands little
where a network is not the gradient of a density. Where the log density itself is known (`Dynamics.log_density`), the test takes that.

The paper prints the steps with the gradient of an energy, and elsewhere calls the same network the score; here it is
the score, so momentum goes up along it. Not covered: momenta with a mass; a kinetic energy other than |p|^2 / 2, which
the paper keeps whatever momenta are drawn from. Of these only `gaussian` leaves the density as it is.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato.config import Hamiltonian
from sfumato.diffusion.objective import normal
from sfumato.diffusion.score_matching import Score


class Dynamics(NamedTuple):
    """What an iteration moves by."""

    score: Score
    step: float
    """Length of a leapfrog step."""
    log_density: Callable[[Tensor], Tensor] | None = None
    """Of u `[b, ...]`, `[b]`, up to a constant, where it is known; else the score is integrated."""


def momentum(kind: str, like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent momenta of mean square 1, of the shape `[b, ...]` of `like` (Liu et al. 2024, section 5.3).

    `rayleigh` is the length of a Gaussian in two dimensions, to which we give a random sign: without one, all images would
    be pushed the same way.
    """
    if kind == "gaussian":
        return normal(like, generator)
    uniform = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
    if kind == "uniform":
        return math.sqrt(3) * (2 * uniform - 1)
    sign = 1 - 2 * torch.randint(2, like.shape, generator=generator, device=like.device)
    return sign * (-torch.log1p(-uniform)).sqrt()


class Leap(NamedTuple):
    """The end of leapfrog steps."""

    x: Tensor
    """`[b, ...]`, where they end."""
    p: Tensor
    """`[b, ...]`, the momentum there."""
    grown: Tensor
    """`[b]`, by how much the log density grew."""


def leapfrog(score: Score, x: Tensor, p: Tensor, *, step: float, steps: int) -> Leap:
    """`steps` leapfrog steps of length `step` from x with momentum p, both `[b, ...]`.

    Liu et al. 2024, Eq. 8. Reversible: from the end with the momentum turned round the same steps lead back.
    """
    force, grown = score(x), torch.zeros(len(x), device=x.device, dtype=x.dtype)
    for _ in range(steps):
        half = p + step / 2 * force
        x = x + step * half
        ahead = score(x)
        grown = grown + (step / 2 * (force + ahead) * half).flatten(1).sum(1)
        p = half + step / 2 * ahead
        force = ahead
    return Leap(x, p, grown)


def kinetic(p: Tensor) -> Tensor:
    """|p|^2 / 2 of each record, `[b]`."""
    return p.flatten(1).square().sum(1) / 2


def walked(settings: Hamiltonian, at: Callable[[float], Dynamics], x: Tensor, *, generator: torch.Generator) -> Tensor:
    """`x` `[b, ...]` after all iterations (Algorithm 2); `at` gives what moves iteration m for (M / m)^2.

    Each iteration evaluates the score N + 1 times, and a log density twice.
    """
    for iteration in range(1, settings.iterations + 1):
        moves = at((settings.iterations / iteration) ** 2)
        p = momentum(settings.momentum, x, generator)
        end = leapfrog(moves.score, x, p, step=moves.step, steps=settings.steps)
        grown = moves.log_density(end.x) - moves.log_density(x) if moves.log_density else end.grown
        gain = grown + kinetic(p) - kinetic(end.p)
        luck = torch.rand(len(x), generator=generator, device=x.device).log()
        # A step that is too long ends at infinity or NaN, and is never accepted.
        accepted = (luck < gain) if settings.metropolis else end.x.flatten(1).isfinite().all(1)
        x = torch.where(accepted.view(-1, *[1] * (x.dim() - 1)), end.x, x)
    return x
