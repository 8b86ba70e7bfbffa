"""Privacy loss distributions of Poisson-subsampled Gaussians by one Fourier sum: fast for many events, and pessimistic.

They serve where dp-accounting's distributions would be too slow: while calibration searches, and for ledgers with many
different mechanisms. The worst pairs are those of `sfumato.privacy.accountant`. Every step below can only raise a delta:

    dots      each step's privacy loss moves to a few values of its own, so that between two of them the masses of both
              P and Q are kept ("connect the dots", Doroshenko et al. 2022); beyond the last value it is infinite
    haze      one Gaussian mechanism more than was asked, far below the others together: with it the total has a density
              whose characteristic function is next to nothing but for the lowest frequencies
    product   the characteristic functions multiplied at these frequencies; a Gaussian's is known exactly
    window    the series has a period; Chernoff's bound on what lies above it is paid for as infinite loss
    cells     the density's mass in each cell of a fine grid, taken at the cell's upper end; delta and epsilon from these

Not covered: mechanisms other than Gaussians. Floating-point rounding is not bounded by proof but paid for by allowances
above what was measured.
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

EXCESS_PER_PART, EXCESS = 1e-6, (1e-4, 5e-4)
"""Share of the total second moment of the loss that all dots together may add to it, and the haze as much again: so much
per distinct step, within these ends. Half of that, to all of it, shows in epsilon."""

WIDEST_DOTS, WIDEST_GAP = 0.1, 0.3
"""Largest distance of dots: in standard deviations of the noise, and in privacy loss where it grows fastest."""

MAX_STEP_DOTS, MAX_WAVES = 30_000, (1_000, 10_000)
"""Dots per step, at most, and frequencies, at most: the haze thickens rather than look at more. Many dots, few waves:"""

WORK = 50_000_000
"""dots times frequencies stay below this where `MAX_WAVES` lets them."""

CELLS = 2**18
"""Cells of the window."""

RARE_SHARE = 0.25
"""Share of delta up to which rare losses are left out when scales are chosen (not from the result)."""

TAIL_SHARE = 1e-6
"""Share of delta that may be spent, over the whole composition, on losses beyond the last dots (taken as infinite), and
as much again on totals above the window."""

NO_WAVE = 1e-18
"""A characteristic function below this counts as 0: under the rounding noise."""

ROUNDING_FLOOR, ROUNDING_PER_COUNT = 1e-12, 3e-16
"""Taken off delta before epsilon is read: once, and per unit of the root of the sum of squared counts. A delta under
1e-10 is therefore priced high."""

LEAST_DEVIATION = 1e-12
"""Losses that are smaller by and large count as this when scales are chosen."""

ROUNDING_LOSS = 1e-15
"""Added to epsilon per step: dots and masses are rounded, too."""


class Step(NamedTuple):
    """`count` Poisson-subsampled Gaussians, mu relative to one record's norm."""

    mu: float
    rate: float
    count: int


class _Pair(NamedTuple):
    """Which side of the worst pair holds the record: P draws N(mu) with rate q if `up`, Q draws N(-mu) if `down`."""

    up: bool
    down: bool


class _Dots(NamedTuple):
    """The privacy losses of several steps, one after another; what is missing to 1 in a step's masses is infinite.

    Step i holds `losses[starts[i]:starts[i + 1]]` with `masses` alike; losses are relative to its own `centres[i]`.
    """

    starts: np.ndarray
    losses: np.ndarray
    masses: np.ndarray
    centres: np.ndarray
    infinite: np.ndarray
    counts: np.ndarray


_PAIRS: dict[str, tuple[_Pair, ...]] = {
    # Adding is removing read backwards; mirrored at 0 so that the loss increases with z in all three pairs.
    "add_remove": (_Pair(up=True, down=False), _Pair(up=False, down=True)),
    "replace_one": (_Pair(up=True, down=True),),
}


def unsampled_epsilon(gaussian_mus: Iterable[float], steps: Iterable[Step], delta: float, relation: Relation) -> float:
    """The exact price without sampling, which sampling never exceeds: a cap where dots had to be coarse."""
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
    counts = np.array([float(step.count) for step in steps])
    number = 1 + float(counts.sum())
    left = delta - ROUNDING_FLOOR - ROUNDING_PER_COUNT * float(np.linalg.norm(counts))
    if left <= 0:
        return math.inf
    share = min(max(EXCESS_PER_PART * len(steps), EXCESS[0]), EXCESS[1])
    sizes, squares, slopes = _moments(pair, steps, RARE_SHARE * delta / number)
    spread = max(float(counts @ squares) + mu_whole**2, LEAST_DEVIATION**2)
    deviation = math.sqrt(spread)
    # Half of what is added to the spread is added to the mean: rare large losses have a spread far above epsilon.
    growth = share * min(spread, 2 * (float(counts @ sizes) + deviation + mu_whole**2 / 2))
    dots = _dots(pair, steps, TAIL_SHARE * delta / number, 6 * growth / np.maximum(slopes, 1e-300))
    # The haze is a part of the total, which shall not lie so high that the window holds more waves than there is time for.
    waves = min(max(WORK // dots.losses.size, MAX_WAVES[0]), MAX_WAVES[1])
    lowest_wave = math.sqrt(-2 * math.log(NO_WAVE)) / (2 * math.pi * waves)
    mu = mu_whole
    while True:
        bottom, top, beyond = _window(dots, mu, TAIL_SHARE * delta, deviation)
        least = max(growth, ((top - bottom) * lowest_wave) ** 2)
        if mu * mu >= least * 0.999:
            break
        mu = math.sqrt(least)
    cells = _cells(dots, mu, bottom, top - bottom)
    never = math.fsum(dots.counts * np.log1p(-dots.infinite))
    found = _read_epsilon(cells, bottom, top, beyond - math.expm1(never), left)
    return max(0.0, found + ROUNDING_LOSS * number)


def _dots(pair: _Pair, steps: Sequence[Step], tail: float, squares: np.ndarray) -> _Dots:
    """Each step's privacy loss on values of its own, every delta at least the true one ("connect the dots").

    Between two dots, the masses a of P and b of Q go to the two ends so that both are kept: Doroshenko et al. 2022,
    Algorithm 1, in masses rather than second differences of delta, which lose digits on fine grids. What lies below the
    first is taken up to it, what lies above the last to infinity.
    `squares` is what count times the square of the distance in z may come to, for all steps together.
    """
    from scipy.special import ndtr, ndtri

    mu, rate, counts = np.transpose(steps)
    noisy = mu < NO_NOISE_MU
    low, high = np.full(mu.size, float(ndtri(tail))), np.full(mu.size, -float(ndtri(tail / 2)))
    if pair.up:
        high = np.where(tail < rate, np.maximum(high, mu - ndtri(np.minimum(tail / 2 / rate, 0.5))), high)
    # Fewest dots for a given sum of count distance^2 / square.
    shape = np.cbrt((high - low) * squares / counts)
    distance = shape * math.sqrt(1 / float((counts * shape**2 / squares)[noisy].sum())) if noisy.any() else shape
    sizes = np.clip(np.ceil((high - low) / np.minimum(distance, np.minimum(WIDEST_DOTS, WIDEST_GAP / mu))), 2, MAX_STEP_DOTS).astype(int) + 1
    sizes[~noisy] = 1
    ends = np.cumsum(sizes)
    starts = ends - sizes
    place = np.arange(ends[-1]) - np.repeat(starts, sizes)
    mu_at, rate_at = np.repeat(mu, sizes), np.repeat(rate, sizes)
    z = np.repeat(low, sizes) + place * np.repeat((high - low) / np.maximum(sizes - 1, 1), sizes)
    losses = _loss(pair, mu_at, rate_at, z)
    middle = _cell_masses(z)
    p = q = middle
    above = ndtr(-high)
    below = ndtr(low)
    if pair.up:
        p = (1 - rate_at[1:]) * middle + rate_at[1:] * _cell_masses(z - mu_at)
        above = (1 - rate) * above + rate * ndtr(mu - high)
        below = (1 - rate) * below + rate * ndtr(low - mu)
    if pair.down:
        q = (1 - rate_at[1:]) * middle + rate_at[1:] * _cell_masses(z + mu_at)
    # b e^loss <= a; where e^loss would overflow too small a value is used, which moves mass up.
    gaps = np.diff(losses)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lower = (q * np.exp(np.minimum(losses[:-1], 700.0)) - p * np.exp(-gaps)) / -np.expm1(-gaps)
    lower = np.where(gaps > 1e-15, np.clip(lower, 0.0, p), 0.0)
    inside = np.ones(z.size - 1, dtype=bool)
    inside[ends[:-1] - 1] = False
    masses = np.zeros(z.size)
    masses[:-1] += np.where(inside, lower, 0.0)
    masses[1:] += np.where(inside, p - lower, 0.0)
    masses[starts] += below
    # Without noise: the record shows with probability `rate`, else only that it was not drawn is learnt.
    losses[starts[~noisy]] = np.log1p(-rate[~noisy]) * (pair.up - pair.down)
    masses[starts[~noisy]] = 1 - rate[~noisy] * pair.up
    above = np.where(noisy, above, rate * pair.up)
    centres = np.add.reduceat(masses * losses, starts)
    losses -= np.repeat(centres, sizes)
    return _Dots(np.append(starts, z.size), losses, masses, centres, above, counts)


def _cell_masses(edges: np.ndarray) -> np.ndarray:
    """Standard normal masses between neighbours of `edges`, accurate in both tails; 0 where edges fall."""
    from scipy.special import ndtr

    tails = ndtr(-np.abs(edges))
    left, right, far, near = edges[:-1], edges[1:], tails[:-1], tails[1:]
    return np.maximum(np.where(left > 0, far - near, np.where(right < 0, near - far, 1.0 - far - near)), 0.0)


def _window(dots: _Dots, mu: float, tail: float, deviation: float) -> tuple[float, float, float]:
    """Ends of the window, and the chance (Chernoff's bound) that the total lies above it.

    In a series of that period, what lies outside comes back at the other end: from below it only adds to the cost, and
    what may lie above is paid for as infinite.
    """
    centre = float(dots.counts @ dots.centres) + mu * mu / 2
    reach = np.abs(dots.losses).max()
    orders = np.geomspace(0.25, 64, 17) / max(deviation, mu, 1e-300)
    orders = np.unique(np.minimum(orders, 600 / max(reach, 1e-300)))
    ends = []
    for sign in (1, -1):
        logs = np.square(mu * orders) / 2
        for k, order in enumerate(sign * orders):
            rest = np.add.reduceat(dots.masses * np.expm1(order * dots.losses), dots.starts[:-1]) - dots.infinite
            logs[k] += float(dots.counts @ np.log1p(np.maximum(rest, -0.5)))
        ends.append(centre + sign * float(((logs - math.log(tail)) / orders).min()))
    return ends[1], ends[0], tail


def _cells(dots: _Dots, mu: float, bottom: float, width: float) -> np.ndarray:
    """Masses of the sum of all privacy losses in the cells of the window, by its characteristic function.

    The product is next to nothing but for the lowest frequencies, the fewer the more steps have been multiplied.
    """
    from scipy.fft import irfft

    base = 2 * math.pi / width
    least = math.log(NO_WAVE)
    size = min(CELLS // 2, 1 + int(math.sqrt(-2 * least) / (mu * base)))
    waves = base * np.arange(size)
    centre = float(dots.counts @ dots.centres) + mu * mu / 2
    logs = -np.square(mu * waves) / 2 + 0j
    variances = dots.counts * np.add.reduceat(dots.masses * np.square(dots.losses), dots.starts[:-1])
    for i in np.argsort(-variances, kind="stable"):
        part = slice(dots.starts[i], dots.starts[i + 1])
        with np.errstate(divide="ignore", invalid="ignore"):
            logs += dots.counts[i] * np.log1p(_waves(dots.losses[part], dots.masses[part], base, size) - dots.infinite[i])
        alive = np.flatnonzero(logs.real > least)
        size = int(alive[-1]) + 1 if alive.size else 1
        logs = logs[:size]
    waves, cell = base * np.arange(size), width / CELLS
    logs = np.where(logs.real > least, logs, -np.inf) + 1j * waves * (bottom + cell / 2 - centre)
    spectrum = np.zeros(CELLS // 2 + 1, dtype=complex)
    spectrum[:size] = np.exp(logs) * np.sinc(waves * cell / (2 * math.pi))
    return irfft(spectrum, CELLS)


def _waves(losses: np.ndarray, masses: np.ndarray, base: float, size: int) -> np.ndarray:
    """Sum of mass (e^(-i k base loss) - 1), for k < size; e^(ab) - 1 from e^a - 1 and e^b - 1, so that small ones keep digits."""
    fine = max(1, math.isqrt(size))
    coarse = -(-size // fine)
    one = _turn(np.outer(np.arange(coarse) * (fine * base), losses)) * masses
    two = _turn(np.outer(losses, np.arange(fine) * base))
    return (one @ two + one.sum(axis=1)[:, None] + masses @ two).ravel()[:size]


def _turn(angles: np.ndarray) -> np.ndarray:
    """e^(-i angle) - 1."""
    return -2 * np.square(np.sin(angles / 2)) - 1j * np.sin(angles)


def _read_epsilon(cells: np.ndarray, bottom: float, top: float, infinite: float, delta: float) -> float:
    """The epsilon of masses at the upper ends of the window's cells, in closed form between two of them."""
    from scipy.signal import lfilter

    if infinite > delta:
        return math.inf
    cell = (top - bottom) / cells.size
    masses = np.maximum(cells[::-1], 0.0)
    above = np.cumsum(masses)
    weighed = lfilter([1.0], [1.0, -math.exp(-cell)], masses)  # sum of mass e^(loss here - loss), over losses above
    over = np.flatnonzero(above - weighed + infinite > delta)
    last = int(over[0]) - 1 if over.size else masses.size - 1
    return top - cell * last + math.log(max((above[last] + infinite - delta) / weighed[last], 1e-300))


def _loss(pair: _Pair, mu: float | np.ndarray, rate: float | np.ndarray, z: np.ndarray) -> np.ndarray:
    """Privacy loss log(P/Q) at z; increasing in z."""
    half = np.square(mu) / 2
    return (log_ratio(mu * z - half, rate) if pair.up else 0.0) - (
        log_ratio(-mu * z - half, rate) if pair.down else 0.0
    )


def _moments(pair: _Pair, steps: Sequence[Step], rare: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each step's privacy loss, the mean of its size, of its square and of the square of its slope in z.

    Without the upper end of probability `rare`: they only set scales.
    """
    from scipy.special import ndtr

    t = np.linspace(-8.0, 8.0, 65)
    weights = np.exp(-t * t / 2)
    weights /= weights.sum()
    mu, rate, _ = np.transpose(steps)[:, :, None]
    sums = np.zeros((3, len(steps)))
    for shift, share in ((0.0, 1 - rate), (mu, rate)) if pair.up else ((0.0, 1.0),):
        z = t + shift
        survival = (1 - rate) * ndtr(-z) + rate * ndtr(mu - z) if pair.up else ndtr(-z)
        kept = share * weights * ((survival > rare) & ((z < NO_NOISE_MU / 2) | (mu < NO_NOISE_MU)))
        losses = _loss(pair, mu, rate, z)
        slopes = np.gradient(losses, t, axis=1)
        sums += [(kept * of).sum(axis=1) for of in (np.abs(losses), np.square(losses), np.square(slopes))]
    return sums[0], sums[1], sums[2]
