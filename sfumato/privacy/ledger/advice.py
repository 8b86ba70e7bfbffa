"""Advice for a plan that exceeds its budget: the epsilon that would fit, and the noise that it means. Fewer steps alone would not help: their noise is
calibrated to the same epsilon.

The search uses the accountant itself and rounds to the safe side. Not covered: changes to the other events of the plan.
"""

import math
from collections.abc import Callable, Sequence

from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Event,
    Gaussian,
    Histogram,
    SubsampledGaussian,
    Uncertified,
)

DIGITS = 3
"""Significant digits of the advised noise."""
MOST_NOISE = 1e6
"""Noise multiplier beyond which nothing is advised."""
CLOSE = 1.005
"""The search for the noise stops when its bracket is this narrow, as a ratio."""
CHANGEABLE: tuple[type[SubsampledGaussian | Gaussian | DiscreteHistogram | Histogram], ...] = (
    SubsampledGaussian,
    Gaussian,
    DiscreteHistogram,
    Histogram,
)
"""Mechanisms whose size may be changed, the first one first."""

Cost = Callable[[Sequence[Event]], float]
"""Events -> epsilon of their composition with all that is spent already."""


def what_fits(planned: Sequence[Event], alone: Cost, with_spent: Cost, limit: float, also: str = "") -> str:
    """The change to `planned` that keeps the total within `limit`, in words; empty where none does.

    It changes the largest event: DP-SGD where the plan has it, else the last query. `alone` prices the plan by itself, which is
    what --epsilon means, with what else it takes (`also`) to be counted so.
    """
    changeable = next(
        (same for kind in CHANGEABLE if (same := [event for event in planned if isinstance(event, kind)])), []
    )
    if not changeable or any(isinstance(event, Uncertified) for event in planned):
        return ""
    chosen = changeable[-1]

    def changed(noise: float) -> list[Event]:
        new = chosen.model_copy(update={"noise_multiplier": noise})
        return [new if event is chosen else event for event in planned]

    noise = _least(chosen.noise_multiplier, lambda value: with_spent(changed(value)) <= limit)
    if not noise:
        return ""
    epsilon = _floor(alone(changed(noise)))
    return f"--epsilon {epsilon:g}{also} (noise multiplier {noise:g} instead of {chosen.noise_multiplier:.4g})"


def _least(start: float, fits: Callable[[float], bool]) -> float | None:
    """About the smallest noise above `start` that fits, with few digits, rounded up; None up to `MOST_NOISE`."""
    low, high = start, 2 * start
    while not fits(high):
        if high > MOST_NOISE:
            return None
        low, high = high, 4 * high
    while high > low * CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return -_floor(-high)


def _floor(value: float) -> float:
    """The next number down with few significant digits."""
    if not math.isfinite(value) or value == 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - DIGITS)
    return round(math.floor(value / unit * (1 + 1e-12)) * unit, 12)
