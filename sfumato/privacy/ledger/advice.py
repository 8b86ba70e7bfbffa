"""Advice for a plan that exceeds its budget: how many fewer steps, or how much more noise, would fit.

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
    counter = {SubsampledGaussian: "steps", Gaussian: "count"}.get(type(chosen), "")

    def changed(field: str, value: float) -> list[Event]:
        new = chosen.model_copy(update={field: value})
        return [new if event is chosen else event for event in planned]

    def fits(field: str, value: float) -> bool:
        return with_spent(changed(field, value)) <= limit

    ways = []
    times = _most(getattr(chosen, counter), lambda value: fits(counter, value)) if counter else 0
    if times:
        ways.append(f"{times} of {getattr(chosen, counter)} {'steps' if counter == 'steps' else 'queries'}")
    if noise := _least(chosen.noise_multiplier, lambda value: fits("noise_multiplier", value)):
        shorter = alone(changed("noise_multiplier", noise))
        ways.append(
            f"noise multiplier {noise:g} instead of {chosen.noise_multiplier:.4g} (--epsilon {_floor(shorter):g}{also})"
        )
    return ", or ".join(ways)


def _most(top: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 0 to `top` - 1 that fits; 0 where not even one does."""
    low, high = 0, top
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


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
