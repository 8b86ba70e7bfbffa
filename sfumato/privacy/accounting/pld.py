"""Privacy loss distributions of Poisson-subsampled and discrete Gaussians by one Fourier sum: fast for many events, and pessimistic.

They serve where dp-accounting's distributions would be too slow: while calibration searches, and for ledgers with many
different mechanisms. The worst pairs are those of `sfumato.privacy.accounting.accountant`. Every step below can only raise a delta:

    dots      each step's privacy loss moves to a few values of its own, so that between two of them the masses of both
              P and Q are kept ("connect the dots", Doroshenko et al. 2022); beyond the last value it is infinite
    haze      one additional Gaussian mechanism, far below the others together: with it the total has a density
              whose characteristic function is next to nothing but for the lowest frequencies
    product   the characteristic functions multiplied at these frequencies; a Gaussian's is known exactly
    window    the series has a period; Chernoff's bound on what lies above it is paid for as infinite loss
    cells     the density's mass in each cell of a fine grid, taken at the cell's upper end; delta and epsilon from these

A discrete Gaussian has its dots where its losses are, at the integers; with much noise, at every few of them.

Not covered: mechanisms other than these. Floating-point rounding is not bounded by proof but paid for by allowances
above what was measured.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sfumato.config import Relation
from sfumato.privacy.accounting.gdp import (
    checked_delta,
    checked_relation,
    compose_gdp,
    gdp_delta,
    gdp_epsilon,
    log_ratio,
)
from sfumato.privacy.accounting.terms import NO_NOISE_MU, Cells, Step, merged_cells

FEW = 64
"""Up to this many distinct steps there is time for more dots."""

EXCESS = {True: 1e-4, False: 5e-4}
"""Few or not: share of the loss's spread that all dots together may add to it, and the haze as much again. Half of that,
to all of it, shows in epsilon."""

WIDEST_DOTS, WIDEST_GAP = {True: 0.02, False: 0.1}, 0.3
"""Largest distance of dots: in standard deviations of the noise, for few steps and for many, and in privacy loss where it grows fastest."""

DISCRETE_GAP = 0.01
"""Largest distance of a discrete Gaussian's dots as a share of its noise; where 1 is more than that, its dots are exact."""

MAX_STEP_DOTS, MAX_DOTS, LEAST_STEP_DOTS = 4_000, 400_000, 300
"""Largest number of dots per step and in all; a step has at least the third number."""

MAX_WAVES, WORK = (1_000, 10_000), 50_000_000
"""Frequencies, at most: so many that dots times frequencies stay below `WORK`, within these ends. With more to look at,
the haze thickens."""

SERIAL_WORK = 30_000
"""Multiplications in one product of matrices: too few for BLAS to start threads, which cost more than they bring."""

CELLS, BLOCK = 2**18, 2**13
"""Cells of the window, and of the block of it that is read at once."""

RARE_SHARE = 0.25
"""Share of delta up to which rare losses are left out when scales are chosen (not from the result)."""

TAIL_SHARES, THICK = (1e-6, 1e-2), 10
"""Share of delta that may be spent, over the whole composition, on losses beyond the last dots (taken as infinite), and
as much again on totals above the window. The second is tried too where very rare, very large losses make the window so
wide that the square of the haze is `THICK` times what it should be; the smaller answer holds."""

NO_MASS = 1e-100
"""Masses below this are taken as infinite loss: arithmetic on next to nothing is slow."""

NO_WAVE = 1e-18
"""A characteristic function below this counts as 0: under the rounding noise."""

ROUNDING_FLOOR, ROUNDING_PER_COUNT = 1e-12, 1e-17
"""Taken off delta before epsilon is read: once, and times the root of the sum of squared counts, as the rounding noise
of the Fourier sums grows. Measured where the total has no mass left, the noise of a whole window stayed ten times below.
A delta under 1e-10 is therefore priced high."""

LEAST_DEVIATION = 1e-12
"""Smallest deviation of the losses by which scales are chosen."""

ROUNDING_LOSS = 1e-14
"""Added to epsilon per step: dots and masses are rounded, too."""

SPREAD_OF_GAP = 6
"""A dot's distance d adds about d^2 / 6 to the square of a loss, when the mass between two dots is spread evenly."""

HAZE_SETTLED, HAZE_NEARLY = 0.999, 1.01
"""The haze is thick enough at this share of the needed square, and needless at up to this multiple of what a Gaussian in the list is already."""

LARGEST_EXPONENT = 700.0
"""Largest exponent whose power of e is a float; a smaller value there moves mass up."""

LEAST_GAP = 1e-15
"""Difference of losses below which two dots are one: rounding alone tells them apart."""

TINY = 1e-300
"""Stands for a divisor, or an argument of a logarithm, that may be 0."""

FAR_INTEGERS = 40
"""Deviations of the integers beyond the last dots whose masses are summed: what lies farther out has none as a float."""

MIDPOINT = 24
"""Divisor of the first correction of a sum by the midpoint rule (Euler and Maclaurin): a 24th of the change in slope."""

LARGEST_ORDER, USUAL_ORDER, DOWNHILL = 600, 5, 0.6
"""Orders of Chernoff's bound: the largest, times the largest loss, whose power of e is a float with room to spare; that with which the search
for the best begins, times the deviation; and the factor of a step of that search, either way."""

SCALE_NODES, SCALE_ENDS = 65, 8.0
"""Points, and the deviations from the mean between which they lie, of the rough integrals by which scales are chosen."""


class _Pair(NamedTuple):
    """The side of the worst pair that holds the record: P draws N(mu) with rate q if `up`, Q draws N(-mu) if `down`."""

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


def grid_epsilon(
    gaussian_mus: Iterable[float],
    steps: Iterable[Step],
    delta: float,
    relation: Relation,
    histograms: Iterable[Cells] = (),
) -> float:
    """PLD epsilon of Gaussians (exact among themselves), subsampled Gaussians, mus relative to one record's norm, and
    histograms of integers."""
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
    # An exchange moves two cells, each by 1: two mechanisms in one dimension.
    counted = merged_cells(histograms, 2 if relation == "replace_one" else 1)
    if not sampled and not counted:
        return gdp_epsilon(mu_whole, delta)
    if any(noise * NO_NOISE_MU <= 1 for noise, _ in counted):
        return math.inf
    no_noise = math.fsum(s.repeats * math.log1p(-s.rate) for s in sampled if s.mu >= NO_NOISE_MU)
    if -math.expm1(no_noise) > delta:
        return math.inf
    total = math.inf
    if mu_whole < NO_NOISE_MU:
        # A discrete Gaussian exchanged is itself; only sampling tells the two pairs apart.
        pairs = _PAIRS[relation] if sampled else _PAIRS[relation][:1]
        total = max(_pair_epsilon(pair, mu_whole, sampled, delta, counted) for pair in pairs)
    if no_noise == 0 and not counted:
        total = min(total, unsampled_epsilon(whole, sampled, delta, relation))
    return total


def grid_delta_at_zero(
    gaussian_mus: Iterable[float],
    steps: Iterable[Step],
    relation: Relation,
    histograms: Iterable[Cells] = (),
    *,
    about: float,
) -> float:
    """PLD delta at epsilon 0 of what `grid_epsilon` prices, which is the total variation distance of the worst pair; at most 1.

    Either pair has the same distance, read from either side, so that one serves. Windows are those for a delta `about` this.
    """
    reach = {"add_remove": 1.0, "replace_one": 2.0}[checked_relation(relation)]
    steps, histograms = list(steps), merged_cells(histograms, 2 if relation == "replace_one" else 1)
    mu_whole = reach * compose_gdp([*gaussian_mus, *(mu * math.sqrt(count) for mu, rate, count in steps if rate == 1)])
    sampled = sorted((step for step in steps if step.rate < 1 and step.mu > 0 and step.repeats), reverse=True)
    if not sampled and not histograms:
        return gdp_delta(mu_whole, 0.0)
    silent = mu_whole >= NO_NOISE_MU or any(step.mu >= NO_NOISE_MU for step in sampled)
    if silent or any(noise * NO_NOISE_MU <= 1 for noise, _ in histograms):
        return 1.0
    counts = _counts(sampled, histograms)
    spare = _rounding(counts) + ROUNDING_LOSS * (1 + float(counts.sum()))
    totals = _totals(_PAIRS[relation][0], mu_whole, sampled, checked_delta(about), histograms)
    return min(1.0, *(_delta_at_zero(*total) + spare for total in totals))


def _delta_at_zero(cells: np.ndarray, bottom: float, top: float, infinite: float) -> float:
    """The sum of mass (1 - e^-loss) over losses above 0, at the upper ends of the window's cells."""
    losses = bottom + (top - bottom) / cells.size * np.arange(1, cells.size + 1)
    return float(np.maximum(cells, 0.0) @ -np.expm1(-np.maximum(losses, 0.0))) + infinite


def _pair_epsilon(
    pair: _Pair, mu_whole: float, steps: Sequence[Step], delta: float, histograms: Sequence[Cells] = ()
) -> float:
    """PLD epsilon of one worst pair: one Gaussian of `mu_whole`, all `steps` and discrete Gaussians, composed."""
    counts = _counts(steps, histograms)
    delta_left = delta - _rounding(counts)
    if delta_left <= 0:
        return math.inf
    epsilon = math.inf
    for total in _totals(pair, mu_whole, steps, delta, histograms):
        epsilon = min(epsilon, _read_epsilon(*total, delta_left))
    return max(0.0, epsilon + ROUNDING_LOSS * (1 + float(counts.sum())))


def _counts(steps: Sequence[Step], histograms: Sequence[Cells]) -> np.ndarray:
    """How often each of them happens, `[steps + histograms]`."""
    return np.array([float(repeats) for *_, repeats in (*steps, *histograms)])


def _rounding(counts: np.ndarray) -> float:
    """The part of delta that is set aside for the rounding of the Fourier sums."""
    return ROUNDING_FLOOR + ROUNDING_PER_COUNT * float(np.linalg.norm(counts))


class _Total(NamedTuple):
    """The privacy loss of all together: masses at the upper ends of the window's cells, and what is infinite."""

    cells: np.ndarray
    bottom: float
    top: float
    infinite: float


def _totals(
    pair: _Pair, mu_whole: float, steps: Sequence[Step], delta: float, histograms: Sequence[Cells] = ()
) -> Iterator[_Total]:
    """One sound total, or two of which either may be the tighter, on windows for answers around `delta`."""
    counts = _counts(steps, histograms)
    number = 1 + float(counts.sum())
    sizes, squares, slopes = _moments(pair, steps, RARE_SHARE * delta / number) if steps else np.zeros((3, 0))
    discrete = [_discrete_dots(noise, TAIL_SHARES[0] * delta / number) for noise, _ in histograms]
    sizes = np.append(sizes, [masses @ np.abs(losses) for losses, masses, _ in discrete])
    squares = np.append(squares, [masses @ np.square(losses) for losses, masses, _ in discrete])
    spread = max(float(counts @ squares) + mu_whole**2, LEAST_DEVIATION**2)
    deviation = math.sqrt(spread)
    # Half of what is added to the spread is added to the mean: rare large losses have a spread far above epsilon.
    mean = float(counts @ sizes) + mu_whole**2 / 2
    growth = EXCESS[len(steps) <= FEW] * min(spread, 2 * (mean + deviation))
    for tail in (share * delta for share in TAIL_SHARES):
        dots = _joined(
            _dots(pair, steps, tail / number, SPREAD_OF_GAP * growth / np.maximum(slopes, TINY)) if steps else None,
            [(*_discrete_dots(noise, tail / number), count) for noise, count in histograms],
        )
        # The haze is part of the total, whose window may hold no more waves than there is time for.
        waves = min(max(WORK // dots.losses.size, MAX_WAVES[0]), MAX_WAVES[1])
        lowest = math.sqrt(-2 * math.log(NO_WAVE)) / (2 * math.pi * waves)
        mu, needed = mu_whole, math.inf
        while mu * mu < HAZE_SETTLED * needed:
            mu = mu if needed == math.inf else math.sqrt(needed)
            bottom, top = _window(dots, mu, tail, deviation)
            needed = max(growth, ((top - bottom) * lowest) ** 2)
        cells = _cells(dots, mu, bottom, top - bottom)
        never = math.fsum(dots.counts * np.log1p(-dots.infinite))
        yield _Total(cells, bottom, top, tail - math.expm1(never))
        if mu * mu <= max(THICK * growth, HAZE_NEARLY * mu_whole**2):
            break


def _dots(pair: _Pair, steps: Sequence[Step], tail: float, squares: np.ndarray) -> _Dots:
    """Each step's privacy loss on values of its own, every delta at least the true one ("connect the dots").

    Between two dots, the masses a of P and b of Q go to the two ends so that both are kept: Doroshenko et al. 2022,
    Algorithm 1, in masses rather than second differences of delta, which lose digits on fine grids. What lies below the
    first is taken up to it, what lies above the last to infinity.

    `squares`: a step's dots may lie sqrt(square / count) apart in z, were it alone.
    """
    from scipy.special import ndtr, ndtri

    mu, rate, counts = np.array(steps).T
    noisy = mu < NO_NOISE_MU
    low, high = np.full(mu.size, float(ndtri(tail))), np.full(mu.size, -float(ndtri(tail / 2)))
    if pair.up:
        high = np.where(tail < rate, np.maximum(high, mu - ndtri(np.minimum(tail / 2 / rate, 0.5))), high)
    # The fewest dots with which count distance^2 / squares comes to 1 in all.
    shape = np.cbrt((high - low) * squares / counts)
    distance = shape / math.sqrt(float((counts * shape**2 / squares).sum()))
    distance = np.minimum(distance, np.minimum(WIDEST_DOTS[mu.size <= FEW], WIDEST_GAP / mu))
    most = min(MAX_STEP_DOTS, max(MAX_DOTS // mu.size, LEAST_STEP_DOTS))
    sizes = np.where(noisy, np.clip(np.ceil((high - low) / distance), 2, most), 0).astype(int) + 1
    ends = np.cumsum(sizes)
    starts = ends - sizes
    place = np.arange(ends[-1]) - np.repeat(starts, sizes)
    mu_at, rate_at = np.repeat(mu, sizes), np.repeat(rate, sizes)
    z = np.repeat(low, sizes) + place * np.repeat((high - low) / np.maximum(sizes - 1, 1), sizes)
    losses = _loss(pair, mu_at, rate_at, z)
    middle, above, below = _cell_masses(z), ndtr(-high), ndtr(low)
    p = q = middle
    if pair.up:
        p = (1 - rate_at[1:]) * middle + rate_at[1:] * _cell_masses(z - mu_at)
        above = (1 - rate) * above + rate * ndtr(mu - high)
        below = (1 - rate) * below + rate * ndtr(low - mu)
    if pair.down:
        q = (1 - rate_at[1:]) * middle + rate_at[1:] * _cell_masses(z + mu_at)
    # b e^loss <= a; where e^loss would overflow too small a value is used, which moves mass up.
    gaps = np.diff(losses)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lower = (q * np.exp(np.minimum(losses[:-1], LARGEST_EXPONENT)) - p * np.exp(-gaps)) / -np.expm1(-gaps)
    lower = np.where(gaps > LEAST_GAP, np.clip(lower, 0.0, p), 0.0)
    inside = np.ones(z.size - 1, dtype=bool)
    inside[ends[:-1] - 1] = False
    masses = np.zeros(z.size)
    masses[:-1] += np.where(inside, lower, 0.0)
    masses[1:] += np.where(inside, p - lower, 0.0)
    masses[starts] += below
    # Without noise: the record shows with probability `rate`, else only that it was not drawn is learnt.
    losses[starts[~noisy]] = np.log1p(-rate[~noisy]) * (pair.up - pair.down)
    masses[starts[~noisy]] = 1 - rate[~noisy] * pair.up
    infinite = np.where(noisy, above, rate * pair.up) + z.size * NO_MASS
    masses[masses < NO_MASS] = 0.0
    centres = np.add.reduceat(masses * losses, starts)
    losses -= np.repeat(centres, sizes)
    return _Dots(np.append(starts, z.size), losses, masses, centres, infinite, counts)


def _discrete_dots(noise: float, tail: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Losses, masses of P, and what is infinite, of one discrete Gaussian of this parameter whose mean moves by 1.

    P is the noise n itself, Q the noise less 1, so that the loss is (n + 1/2) / noise^2. Dots lie at all integers, or at
    every few where the noise is large; then the masses of P and Q between two of them are kept, as in `_dots`.
    """
    from scipy.special import ndtr, ndtri

    gap = max(1, int(DISCRETE_GAP * noise))
    reach = gap * math.ceil((-float(ndtri(tail / 4)) * noise + 2) / gap)
    n = np.arange(-reach, reach + 1, gap, dtype=float)
    losses = (n + 0.5) / noise**2
    if gap == 1:
        whole = np.exp(-np.square(np.arange(-reach - math.ceil(FAR_INTEGERS * noise), -reach) / noise) / 2)
        masses = np.exp(-np.square(n / noise) / 2)
        total = masses.sum() + 2 * whole.sum()
        masses, outside = masses / total, float(whole.sum() / total)
        masses[0] += outside
    else:
        # Sums over integers by the midpoint rule with its first correction (Euler and Maclaurin); the next is below
        # (n / noise^2)^4 / 800 of a sum, 1e-8 at ten times the noise and next to nothing where the masses are.
        edges = n + 0.5
        p, q = _lattice_masses(edges, noise), _lattice_masses(edges + 1, noise)
        gaps = np.diff(losses)
        lower = np.clip((q * np.exp(losses[:-1]) - p * np.exp(-gaps)) / -np.expm1(-gaps), 0.0, p)
        masses = np.append(lower, 0.0) + np.append(0.0, p - lower)
        outside = float(ndtr(-edges[-1] / noise))
        masses[0] += float(ndtr(edges[0] / noise))
    infinite = outside + n.size * NO_MASS
    masses[masses < NO_MASS] = 0.0
    return losses, masses, infinite


def _lattice_masses(edges: np.ndarray, noise: float) -> np.ndarray:
    """Masses of a wide discrete Gaussian at the integers between neighbours of `edges`, which are halves."""
    slopes = -edges / noise**3 * np.exp(-np.square(edges / noise) / 2) / math.sqrt(2 * math.pi)
    return np.maximum(_cell_masses(edges / noise) - np.diff(slopes) / MIDPOINT, 0.0)


def _joined(dots: _Dots | None, more: Sequence[tuple[np.ndarray, np.ndarray, float, int]]) -> _Dots:
    """Append the dots of other mechanisms, each as (losses, masses, infinite, count), to those of the steps."""
    if not more and dots is not None:
        return dots
    centres = [float(masses @ losses) for losses, masses, _, _ in more]
    first = dots or _Dots(np.zeros(1, dtype=int), *(np.zeros(0) for _ in range(5)))
    return _Dots(
        np.append(first.starts, first.starts[-1] + np.cumsum([losses.size for losses, *_ in more])),
        np.concatenate([first.losses, *(one[0] - centre for one, centre in zip(more, centres, strict=True))]),
        np.concatenate([first.masses, *(one[1] for one in more)]),
        np.append(first.centres, centres),
        np.append(first.infinite, [one[2] for one in more]),
        np.append(first.counts, [float(one[3]) for one in more]),
    )


def _cell_masses(edges: np.ndarray) -> np.ndarray:
    """Standard normal masses between neighbours of `edges`, accurate in both tails; 0 where edges fall."""
    from scipy.special import ndtr

    tails = ndtr(-np.abs(edges))
    left, right, far, near = edges[:-1], edges[1:], tails[:-1], tails[1:]
    return np.maximum(np.where(left > 0, far - near, np.where(right < 0, near - far, 1.0 - far - near)), 0.0)


def _window(dots: _Dots, mu: float, tail: float, deviation: float) -> tuple[float, float]:
    """Ends of the window; the total lies above it, or below it, with a chance of at most `tail` (Chernoff's bound).

    A series of that period wraps mass outside the window to its other end: mass from below only adds to the cost, and mass
    from above is charged as infinite loss.
    """
    centre = float(dots.counts @ dots.centres) + mu * mu / 2
    steepest = LARGEST_ORDER / max(float(np.abs(dots.losses).max()), deviation)

    def reach(order: float) -> float:
        """The largest distance of the total from its centre, in the direction of the sign of `order`."""
        means = np.add.reduceat(dots.masses * np.expm1(order * dots.losses), dots.starts[:-1]) - dots.infinite
        logs = float(dots.counts @ np.log1p(np.maximum(means, -0.5))) + (order * mu) ** 2 / 2
        return (logs - math.log(tail)) / abs(order)

    ends = []
    for sign in (-1, 1):
        # The bound has one valley: downhill from a usual order, in either direction.
        order = min(USUAL_ORDER / max(deviation, mu), steepest)
        distance = reach(sign * order)
        for factor in (DOWNHILL, 1 / DOWNHILL):
            while (order * factor <= steepest) and (further := reach(sign * order * factor)) < distance:
                order, distance = order * factor, further
        ends.append(centre + sign * distance)
    return ends[0], ends[1]


def _cells(dots: _Dots, mu: float, bottom: float, width: float) -> np.ndarray:
    """Masses of the sum of all privacy losses in the cells of the window, by its characteristic function.

    The product is next to nothing but for the lowest frequencies, the fewer the more steps have been multiplied.
    """
    base = 2 * math.pi / width
    least = math.log(NO_WAVE)
    size = min(CELLS // 2, 1 + int(math.sqrt(-2 * least) / (mu * base)))
    waves = base * np.arange(size)
    centre = float(dots.counts @ dots.centres) + mu * mu / 2
    logs = -np.square(mu * waves) / 2 + 0j
    variances = dots.counts * np.add.reduceat(dots.masses * np.square(dots.losses), dots.starts[:-1])
    for i in np.argsort(-variances, kind="stable"):
        part = slice(dots.starts[i], dots.starts[i + 1])
        values = _waves(dots.losses[part], dots.masses[part], base, size) - dots.infinite[i]
        with np.errstate(invalid="ignore"):  # a frequency at which nothing is left is out below
            logs += dots.counts[i] * _log1p(values)
        alive = np.flatnonzero(logs.real > least)
        size = int(alive[-1]) + 1 if alive.size else 1
        logs = logs[:size]
    waves, cell = base * np.arange(size), width / CELLS
    logs = np.where(logs.real > least, logs, -np.inf) + 1j * waves * (bottom + cell / 2 - centre)
    spectrum = np.zeros(CELLS // 2 + 1, dtype=complex)
    spectrum[:size] = np.exp(logs) * np.sinc(waves * cell / (2 * math.pi))
    return np.fft.irfft(spectrum, CELLS)


def _waves(losses: np.ndarray, masses: np.ndarray, base: float, size: int) -> np.ndarray:
    """Sum of mass (e^(-i k base loss) - 1), for k < size, in two digits of k."""
    fine = math.isqrt(size)
    low = _turns(base * losses, fine)
    high = _turns(fine * base * losses, -(-size // fine)) * masses
    # (x + 1) (y + 1) - 1 from x and y: small numbers keep their digits.
    total = high.sum(axis=1)[:, None] + (low * masses).sum(axis=1)
    some = max(SERIAL_WORK // total.size, 1)
    for start in range(0, losses.size, some):
        total += high[:, start : start + some] @ low[:, start : start + some].T
    return total.ravel()[:size]


def _turns(angles: np.ndarray, number: int) -> np.ndarray:
    """e^(-i k angle) - 1, [k, angle], for k < number."""
    table = np.zeros((number, angles.size), dtype=complex)
    done = 1
    while done < number:
        angle = done * angles
        turn = -2 * np.square(np.sin(angle / 2)) - 1j * np.sin(angle)
        new = table[done : 2 * done]
        np.multiply(table[: len(new)], 1 + turn, out=new)
        new += turn
        done *= 2
    return table


def _log1p(values: np.ndarray) -> np.ndarray:
    """log(1 + z) of complex numbers, also where z is small (numpy's own loses the digits there)."""
    growth = values.real * (2 + values.real) + np.square(values.imag)
    with np.errstate(divide="ignore", invalid="ignore"):
        real = np.where(np.abs(growth) < 0.5, np.log1p(growth) / 2, np.log(np.abs(1 + values)))
    return real + 1j * np.arctan2(values.imag, 1 + values.real)


def _read_epsilon(cells: np.ndarray, bottom: float, top: float, infinite: float, delta: float) -> float:
    """The epsilon of masses at the upper ends of the window's cells, in closed form between two of them."""
    if infinite > delta:
        return math.inf
    cell = (top - bottom) / cells.size
    masses = np.maximum(cells[::-1], 0.0)
    above = np.cumsum(masses)
    weighed = 0.0  # sum of mass e^(loss here - loss), over losses above
    ages = np.exp(-cell * np.arange(1.0, BLOCK + 1))
    for start in range(0, masses.size, BLOCK):
        rows = masses[start : start + BLOCK]
        # Of `reach` masses up to each, then of twice as many: nothing overflows, however wide the cells.
        sums, reach = rows.copy(), 1
        while reach < rows.size and ages[reach - 1]:
            sums[reach:] += ages[reach - 1] * sums[:-reach]
            reach *= 2
        sums += weighed * ages[: rows.size]
        over = np.flatnonzero(above[start : start + BLOCK] - sums + infinite > delta)
        last = start + (int(over[0]) if over.size else rows.size) - 1
        weighed = float(sums[last - start]) if last >= start else weighed
        if over.size:
            break
    return top - cell * last + math.log(max((above[last] + infinite - delta) / weighed, TINY))


def _loss(pair: _Pair, mu: float | np.ndarray, rate: float | np.ndarray, z: np.ndarray) -> np.ndarray:
    """Privacy loss log(P/Q) at z; increasing in z."""
    half = np.square(mu) / 2
    return np.asarray(log_ratio(mu * z - half, rate) if pair.up else 0.0) - (
        log_ratio(-mu * z - half, rate) if pair.down else 0.0
    )


def _moments(pair: _Pair, steps: Sequence[Step], rare: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The means of each step's absolute privacy loss, of its square and of its squared slope in z, `[steps]` each.

    The upper end of probability `rare` is left out, since these means only set scales.
    """
    from scipy.special import ndtr

    t = np.linspace(-SCALE_ENDS, SCALE_ENDS, SCALE_NODES)
    weights = np.exp(-t * t / 2)
    weights /= weights.sum()
    mu, rate, _ = np.array(steps).T[:, :, None]
    sums = np.zeros((3, len(steps)))
    for shift, share in ((0.0, 1 - rate), (mu, rate)) if pair.up else ((0.0, 1.0),):
        z = t + shift
        survival = (1 - rate) * ndtr(-z) + rate * ndtr(mu - z) if pair.up else ndtr(-z)
        mass = share * weights * ((survival > rare) & ((z < NO_NOISE_MU / 2) | (mu < NO_NOISE_MU)))
        losses = _loss(pair, mu, rate, z)
        slopes = np.gradient(losses, t, axis=1)
        sums += [(mass * of).sum(axis=1) for of in (np.abs(losses), np.square(losses), np.square(slopes))]
    return sums[0], sums[1], sums[2]
