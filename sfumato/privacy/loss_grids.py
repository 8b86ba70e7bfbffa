"""Privacy loss distributions of Poisson-subsampled Gaussians on grids of our own: fast, and pessimistic.

They serve where dp-accounting's distributions would be too slow: while calibration searches, and for ledgers with many different
mechanisms. Every grid is laid by "connect the dots" (Doroshenko et al. 2022), so that each delta can only grow; the worst pairs are those of
`sfumato.privacy.accountant`. dp-accounting composes equal steps and reads delta. Not covered: mechanisms other than Gaussians.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sfumato.config import Relation
from sfumato.privacy.gdp import checked_delta, checked_relation, compose_gdp, gdp_epsilon, log_ratio

NO_NOISE_MU = 1e4
"""From here on a subsampled Gaussian counts as no noise at all. Sound (less noise never costs less); at this mu a
record that is drawn once already costs an epsilon of 5e7."""

GRID_PER_DEVIATION = 20
"""Grid points per standard deviation of one step's privacy loss, half as many with more than `MERGE_ABOVE` distinct
steps. A grid of h deviations adds about h^2/6 to the variance of the loss: 0.04 %, half of that in epsilon."""

COARSE_INTERVAL, GRID_PER_COARSE_DEVIATION = 0.2, 400
"""Where losses are so large that the interval would exceed this one, connecting the dots rounds up nearly all mass and
its error is linear in the interval: more grid points per deviation there."""

MAX_DEVIATIONS = 20_000
"""Grid points per standard deviation of the whole composition, at most: bounds memory for millions of steps."""

MIN_INTERVAL = 1e-12
"""The finest grid, for losses that are next to nothing."""

MAX_STEP_POINTS = 50_000
"""Grid points for one step, at most; beyond it the grid gets coarser, never the answer smaller."""

RARE_SHARE = 0.25
"""Share of delta up to which rare losses are left out when the scale of the grid is chosen (not from the result)."""

TAIL_SHARE = 1e-6
"""Share of delta that may be spent, over the whole composition, on losses beyond the grid (taken as infinite)."""

ROUNDING_FLOOR, ROUNDING_PER_STEP = 1e-12, 1e-16
"""Taken off delta before epsilon is read, once and per step: the rounding noise of the fast Fourier transforms, which
stayed five times below when measured against the exact Gaussian. A delta under 1e-10 is therefore priced high."""

CUT_MASS = 1e-15
"""Mass at both ends that may be cut off a composed grid, always to the pessimistic side."""

MERGE_ABOVE = 64
"""Distinct steps that are composed one by one; with more, those of nearly the same noise share the smallest of it."""

MERGE_SHARE = 2e-3
"""Growth of the total loss variance that sharing may cause, per `MERGE_ABOVE` shared noises that remain."""


class Step(NamedTuple):
    """`count` Poisson-subsampled Gaussians, mu relative to one record's norm."""

    mu: float
    rate: float
    count: int


class _Pair(NamedTuple):
    """Which side of the worst pair holds the record: P draws N(mu) with rate q if `up`, Q draws N(-mu) if `down`."""

    up: bool
    down: bool


class _Grid(NamedTuple):
    """A privacy loss on a grid: `masses[i]` at (first + i) times the interval, `infinite` at infinity."""

    first: int
    masses: np.ndarray
    infinite: float


_PAIRS: dict[str, tuple[_Pair, ...]] = {
    # Adding is removing read backwards; mirrored at 0 so that the loss increases with z in all three pairs.
    "add_remove": (_Pair(up=True, down=False), _Pair(up=False, down=True)),
    "replace_one": (_Pair(up=True, down=True),),
}


def unsampled_epsilon(gaussian_mus: Iterable[float], steps: Iterable[Step], delta: float, relation: Relation) -> float:
    """The exact price without sampling, which sampling never exceeds: a cap where a grid had to be coarse."""
    reach = 2.0 if relation == "replace_one" else 1.0
    return gdp_epsilon(reach * compose_gdp([*gaussian_mus, *(mu * math.sqrt(count) for mu, _, count in steps)]), delta)


def grid_epsilon(gaussian_mus: Iterable[float], steps: Iterable[Step], delta: float, relation: Relation) -> float:
    """PLD epsilon of Gaussians (exact among themselves) and subsampled Gaussians, mus relative to one record's norm."""
    delta, reach = checked_delta(delta), 2.0 if checked_relation(relation) == "replace_one" else 1.0
    counts: dict[tuple[float, float], int] = defaultdict(int)
    whole = list(gaussian_mus)
    for mu, rate, count in steps:
        if rate == 1:
            whole.append(mu * math.sqrt(count) if count else 0.0)
        elif mu * rate > 0 and count > 0:
            counts[min(mu, NO_NOISE_MU), rate] += count
    mu_whole = reach * compose_gdp(whole)
    # Sorted, so that the same events in another order give the same number to the last digit.
    sampled = [Step(mu, rate, count) for (mu, rate), count in sorted(counts.items(), reverse=True)]
    if not sampled:
        return gdp_epsilon(mu_whole, delta)
    no_noise = math.fsum(s.count * math.log1p(-s.rate) for s in sampled if s.mu >= NO_NOISE_MU)
    if -math.expm1(no_noise) > delta:
        return math.inf
    total = math.inf
    if mu_whole < NO_NOISE_MU:
        total = max(_pair_epsilon(pair, mu_whole, sampled, delta) for pair in _PAIRS[relation])
    if no_noise == 0:
        total = min(total, unsampled_epsilon(whole, sampled, delta, relation))
    return total


def _pair_epsilon(pair: _Pair, mu_whole: float, steps: Sequence[Step], delta: float) -> float:
    """PLD epsilon of one worst pair: one Gaussian of `mu_whole` and all `steps`, composed."""
    number = 1 + sum(step.count for step in steps)
    left = delta - ROUNDING_FLOOR - ROUNDING_PER_STEP * number
    if left <= 0:
        return math.inf
    tail = TAIL_SHARE * delta / number
    steps, spread = _merge(pair, steps, RARE_SHARE * delta / number)
    spread += mu_whole**2
    # A whole Gaussian is the sampled one with rate 1, whose pair is the same seen from either side.
    whole = [(_Pair(up=True, down=False), Step(mu_whole, 1.0, 1))] if mu_whole > 0 else []
    parts = whole + [(pair, step) for step in steps]
    deviation = math.sqrt(spread / number)
    usual = deviation / GRID_PER_DEVIATION
    fine = min(usual, max(COARSE_INTERVAL, deviation / GRID_PER_COARSE_DEVIATION))
    interval = max(
        2 * usual if len(parts) > MERGE_ABOVE else fine,
        math.sqrt(spread) / MAX_DEVIATIONS,
        max(_loss_width(part, step, tail) for part, step in parts) / MAX_STEP_POINTS,
        MIN_INTERVAL,
    )
    by_count = defaultdict(list)
    for step in steps:
        by_count[step.count].append(_discretise(pair, step, interval, tail))
    rounds = math.gcd(*by_count)
    one_round = _compose([_repeat(_compose(grids), count // rounds) for count, grids in by_count.items()])
    grid = _compose([_repeat(one_round, rounds), *(_discretise(*part, interval, tail) for part in whole)])
    return _read_epsilon(grid, interval, left)


def _read_epsilon(grid: _Grid, interval: float, delta: float) -> float:
    """The epsilon of a composed grid, by search over dp-accounting's delta (its own inverse overflows around 720)."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from scipy.optimize import brentq

    composed = DensePLDPmf(interval, grid.first, grid.masses, grid.infinite, pessimistic_estimate=True)

    def excess(eps: float) -> float:
        return math.log(max(float(composed.get_delta_for_epsilon(eps)), 1e-300)) - math.log(delta)

    if grid.infinite > delta:
        return math.inf
    if excess(0.0) <= 0:
        return 0.0
    digits = 1e-12
    root = brentq(excess, 0.0, interval * (grid.first + grid.masses.size), xtol=digits, rtol=digits)
    return root + 2 * digits * (1 + root)  # the far side of the root, where delta is met


def _compose(grids: list[_Grid]) -> _Grid:
    """Several privacy losses added up, as a balanced tree, so that a long grid meets few others."""
    from scipy.signal import fftconvolve

    while len(grids) > 1:
        paired = []
        for one, two in zip(grids[::2], grids[1::2], strict=False):
            infinite = one.infinite + two.infinite - one.infinite * two.infinite
            paired.append(_cut(_Grid(one.first + two.first, fftconvolve(one.masses, two.masses), infinite)))
        grids = paired + grids[2 * len(paired) :]
    return grids[0]


def _repeat(grid: _Grid, count: int) -> _Grid:
    """A privacy loss added up `count` times."""
    from dp_accounting.pld.common import self_convolve

    if count == 1:
        return grid
    start, masses = self_convolve(grid.masses, count, CUT_MASS)
    infinite = CUT_MASS - math.expm1(count * math.log1p(-grid.infinite))
    return _Grid(grid.first * count + start, np.asarray(masses), infinite)


def _cut(grid: _Grid) -> _Grid:
    """Without its ends of mass `CUT_MASS` / 2 each: the lower one moves up to the new start, the upper to infinity."""
    half = CUT_MASS / 2
    low = int(np.searchsorted(np.cumsum(np.maximum(grid.masses, 0.0)), half, side="right"))
    high = grid.masses.size - int(np.searchsorted(np.cumsum(np.maximum(grid.masses[::-1], 0.0)), half, side="right"))
    masses = grid.masses[low:high].copy()
    masses[0] += max(0.0, float(grid.masses[:low].sum()))
    return _Grid(grid.first + low, masses, grid.infinite + half)


def _merge(pair: _Pair, steps: Sequence[Step], rare: float) -> tuple[list[Step], float]:
    """At most about `MERGE_ABOVE` distinct noises per rate, and the total second moment of the loss.

    A step may always be priced with less noise (less noise, plus noise, is more noise). From the least noise on, steps
    share it until the second moment of the total would have grown by its allowance.
    """
    moments = _second_moments(pair, steps, rare)
    total = math.fsum(step.count * moment for step, moment in zip(steps, moments, strict=True))
    if len(steps) <= MERGE_ABOVE:
        return list(steps), total
    allowance = MERGE_SHARE * total / MERGE_ABOVE
    merged: list[Step] = []
    growth = top = 0.0
    for step, moment in sorted(zip(steps, moments, strict=True), key=lambda item: (item[0].rate, -item[0].mu)):
        growth += step.count * max(0.0, top - moment)
        if merged and step.rate == merged[-1].rate and growth <= allowance:
            merged[-1] = merged[-1]._replace(count=merged[-1].count + step.count)
        else:
            merged.append(step)
            growth, top = 0.0, moment
    return merged, total


def _discretise(pair: _Pair, step: Step, interval: float, tail: float) -> _Grid:
    """One step's privacy loss on multiples of `interval`, every delta at least the true one ("connect the dots").

    Between two grid points, the masses a of P and b of Q go to the two ends so that both are kept: Doroshenko et al.
    2022, Algorithm 1, in masses rather than second differences of delta, which lose digits on fine grids. What lies
    below the grid is taken up to its lower end, what lies above it to infinity.
    """
    rate = step.rate
    if step.mu >= NO_NOISE_MU:
        missed = math.log1p(-rate) * (pair.up - pair.down)
        first = math.floor(missed / interval)
        p_mass, q_mass = np.array([1 - rate * pair.up]), np.array([1 - rate * pair.down])
        below, above = 0.0, rate * pair.up
    else:
        low, high = _loss_range(pair, step, tail)
        first, last = math.floor(low / interval), math.ceil(high / interval)
        z = _inverse_loss(pair, step.mu, rate, interval * np.arange(first, max(last, first + 1) + 1))
        middle = _masses(z)
        up = _masses(z - step.mu) if pair.up else middle
        down = _masses(z + step.mu) if pair.down else middle
        p_masses = (1 - rate) * middle + rate * up
        below, p_mass, above = p_masses[0], p_masses[1:-1], p_masses[-1]
        q_mass = ((1 - rate) * middle + rate * down)[1:-1]
    # b e^loss <= a; where e^loss would overflow too small a value is used, which moves mass up.
    ends = np.exp(np.minimum(interval * (first + np.arange(p_mass.size)), 700.0))
    lower = np.clip((q_mass * ends - p_mass * math.exp(-interval)) / -math.expm1(-interval), 0.0, p_mass)
    probabilities = np.zeros(p_mass.size + 1)
    probabilities[:-1] += lower
    probabilities[1:] += p_mass - lower
    probabilities[0] += below
    return _Grid(first, probabilities, float(above))


def _masses(edges: np.ndarray) -> np.ndarray:
    """Standard normal masses of (-inf, e0), (e0, e1), ..., (en, inf), accurate in both tails."""
    from scipy.special import ndtr

    tails = ndtr(-np.abs(edges))
    left, right, far, near = edges[:-1], edges[1:], tails[:-1], tails[1:]
    inner = np.where(left > 0, far - near, np.where(right < 0, near - far, 1.0 - far - near))
    return np.concatenate([ndtr(edges[:1]), np.maximum(inner, 0.0), ndtr(-edges[-1:])])


def _loss_range(pair: _Pair, step: Step, tail: float) -> tuple[float, float]:
    """Lowest and highest privacy loss to tell apart: P lies outside with probability at most `tail` at each end."""
    from scipy.special import ndtri

    low, high = float(ndtri(tail)), -float(ndtri(tail / 2))
    if pair.up and tail < step.rate:
        high = max(high, step.mu - float(ndtri(tail / 2 / step.rate)))
    low, high = _loss(pair, step.mu, step.rate, np.array([low, high]))
    return float(low), float(high)


def _loss_width(pair: _Pair, step: Step, tail: float) -> float:
    low, high = (0.0, 0.0) if step.mu >= NO_NOISE_MU else _loss_range(pair, step, tail)
    return high - low


def _loss(pair: _Pair, mu: float | np.ndarray, rate: float | np.ndarray, z: np.ndarray) -> np.ndarray:
    """Privacy loss log(P/Q) at z; increasing in z."""
    half = np.square(mu) / 2
    return (log_ratio(mu * z - half, rate) if pair.up else 0.0) - (
        log_ratio(-mu * z - half, rate) if pair.down else 0.0
    )


def _inverse_loss(pair: _Pair, mu: float, rate: float, loss: np.ndarray) -> np.ndarray:
    """The z at which the privacy loss takes the given values; -inf and inf where it stays above or below them."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if pair.up and pair.down:
            # e^loss = (B + A e^y) / (B + A e^-y) with y = mu z: a quadratic, y = loss/2 + asinh(sinh(loss/2) B/A).
            size = np.abs(loss) / 2
            log_sinh = size + np.log(-np.expm1(-2 * size) / 2)
            log_s = log_sinh + math.log1p(-rate) - math.log(rate) + mu * mu / 2
            small = np.arcsinh(np.exp(np.minimum(log_s, 0.0)))
            large = np.logaddexp(np.logaddexp(0.0, 2 * log_s) / 2, log_s)
            return np.sign(loss) * (size + np.where(log_s < 0, small, large)) / mu
        sign = 1.0 if pair.up else -1.0
        if rate == 1:
            return loss / mu + sign * mu / 2
        level = sign * loss
        # level = log(1 - q + q e^x), solved for x without losing digits at small levels or overflowing at large ones.
        small = np.log1p(np.maximum(np.expm1(np.minimum(level, 1.0)) / rate, -1.0))
        large = level + np.log1p(-(1 - rate) * np.exp(-level)) - math.log(rate)
        return sign * (np.where(level < 1.0, small, large) / mu + mu / 2)


def _second_moments(pair: _Pair, steps: Sequence[Step], rare: float) -> np.ndarray:
    """Second moment of each step's privacy loss, without its upper end of probability `rare`. It only sets scales."""
    from scipy.special import ndtr

    t = np.linspace(-8.0, 8.0, 129)
    weights = np.exp(-t * t / 2)
    weights /= weights.sum()
    mu = np.array([[step.mu] for step in steps])
    rate = np.array([[step.rate] for step in steps])
    total = np.zeros(len(steps))
    for shift, share in ((0.0, 1 - rate), (mu, rate)) if pair.up else ((0.0, 1.0),):
        z = t + shift
        survival = (1 - rate) * ndtr(-z) + rate * ndtr(mu - z) if pair.up else ndtr(-z)
        kept = (survival > rare) & ((z < NO_NOISE_MU / 2) | (mu < NO_NOISE_MU))
        total += (share * weights * np.square(_loss(pair, mu, rate, z)) * kept).sum(axis=1)
    return total
