"""A certificate as odds: how often the best guess about one record is right.

An attacker knows all other records and all that leaves, and a fair coin decided whether the record took part (or which of two
did). Nobody then guesses right more often than (1 + delta(0)) / 2 of the time, where delta(0) is the delta of the privacy curve at
epsilon 0 (Wasserman and Zhou 2010; Kairouz et al. 2015). Not covered: what the attacker knows beforehand; at other odds the
numbers are others.
"""

import math

PERCENT = 100
SHOWN_PARTS = 1e3
"""Parts of a unit in which an epsilon is shown: three decimals."""
ROUNDING = 1e-12
"""Share of a number that may be rounding noise."""
LARGEST_EXPONENT = 700.0
"""Largest exponent whose power of e is a float; there the odds are 1 to the last digit."""
DECIMALS = range(1, 13)
"""Decimals of a percentage, as few as keep it below 100."""


def rounded_up(epsilon: float) -> str:
    """A price with three decimals, never below it, so that no two places show one spend as two numbers."""
    return (
        f"{math.ceil(epsilon * SHOWN_PARTS * (1 - ROUNDING)) / SHOWN_PARTS:.3f}"
        if math.isfinite(epsilon)
        else f"{epsilon}"
    )


def rounded_down(left: float) -> str:
    """The rest of a budget with three decimals, never above it."""
    return f"{max(0.0, math.floor(left * SHOWN_PARTS) / SHOWN_PARTS):.3f}"


def best_guess(delta_at_zero: float) -> float:
    """The largest share of right guesses, from the delta at epsilon 0."""
    return (1 + delta_at_zero) / 2


def best_guess_by(epsilon: float, delta: float) -> float:
    """The same from one epsilon and its delta alone: 1 - (1 - delta) / (1 + e^epsilon), at least what the curve says."""
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, LARGEST_EXPONENT)))


def percent(share: float, *, up: bool = True) -> str:
    """A share in percent, rounded up unless told otherwise, with as many decimals as it takes not to round up to 100."""
    for decimals in DECIMALS if share < 1 else ():
        scale = 10.0**decimals
        above = math.ceil(share * PERCENT * scale * (1 - ROUNDING)) / scale
        if above < PERCENT:
            value = above if up else math.floor(share * PERCENT * scale) / scale
            return f"{value:.{decimals}f} %"
    return f"{PERCENT} %"
