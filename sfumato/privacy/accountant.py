"""What privacy events cost: from events (or plain numbers) to epsilon, and from epsilon to the noise that earns it.

Certificates are privacy loss distributions (PLD): for each event the worst pair of output distributions is known in
closed form; dp-accounting lays its privacy loss on a grid in such a way that every delta can only grow ("connect the
dots", Doroshenko et al. 2022), composes the grids and reads epsilon off. Where a list is too long or too costly for that,
and while calibration searches, our own faster grids of the same kind stand in; tests hold the two against each other.
Lists of plain Gaussian mechanisms need no grid: they compose exactly under Gaussian differential privacy (GDP, Dong et al.
2022).

The worst pairs, in units of the noise (mu = 1 / noise_multiplier, q = sample rate, N(m) = unit normal around m):

    add_remove    (1-q) N(0) + q N(mu)  against  N(0), and the same pair exchanged; epsilon is the larger of the two
    replace_one   (1-q) N(0) + q N(mu)  against  (1-q) N(0) + q N(-mu), which exchanged is itself

Replace-one is two records of norm one on opposite sides, so that a Gaussian without sampling costs 2 mu. No other two
records v, w cost more: for epsilon >= 0 the divergence is q H(N(v) || (1-b) N(0) + b N(w)) (Balle et al. 2018, Theorem
2), a convex function, with mixed second derivatives >= 0, of two log-normal likelihood ratios, hence increasing in each
entry of their covariance (Kahane's inequality); these are |v|^2, |v-w|^2 and <v, v-w>, all largest at w = -v, |v| = 1.
It is also the pair that dp-accounting uses for REPLACE_ONE of a Poisson-sampled Gaussian.

Not covered: sampling other than Poisson, and how random the noise generator really is. The central-limit formulas
(`subsampled_gaussian_clt`, `poisson_clt`) restate what papers claim; they under-report and certify nothing.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from sfumato.errors import BadInput
from sfumato.privacy.events import Event, Gaussian, Relation, SubsampledGaussian, Uncertified

Accountant = Literal["pld", "prv", "rdp", "clt"]
"""`pld` certifies; `prv` and `rdp` (Opacus) are there to compare; `clt` is what papers claim and under-reports."""

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

DIRECT_DISTINCT, DIRECT_EPSILON, DIRECT_DELTA = 8, (0.05, 60.0), 1e-9
"""Where dp-accounting's own distributions serve: at most so many distinct sampled steps, an epsilon in this range, a delta of at
least this. Elsewhere (long ledgers, huge or tiny costs) they are slow or coarse, and our grids stand in."""

FINEST_INTERVAL, INTERVAL_SHARE = 1e-4, 1e-4
"""dp-accounting's grid for those, as a share of epsilon: pessimistic by less than 3e-4 at epsilon 10."""

MERGE_ABOVE = 64
"""Distinct steps that are composed one by one; with more, those of nearly the same noise share the smallest of it."""

MERGE_SHARE = 2e-3
"""Growth of the total loss variance that sharing may cause, per `MERGE_ABOVE` shared noises that remain."""

CALIBRATION_SLACK = 1e-3
"""Calibration stops when the total lies within this share below the target."""

NOISE_RANGE = (1 / NO_NOISE_MU, 1e9)
"""Noise multipliers between which calibration searches: from none at all to more than any query could want."""

PRV_EPSILON_ERROR = 5e-3
"""Additive error that Opacus' PRV accountant is asked for; its answer is the upper end."""


# ------------------------------------------------------------------------------------------------- Gaussian, exactly


def gdp_delta(mu: float, epsilon: float) -> float:
    """The delta of a mu-GDP mechanism at `epsilon`: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

    `mu` >= 0, `epsilon` >= 0. Dong et al. 2022, Corollary 1; Balle and Wang 2018, Theorem 8. Written with Mills' ratio,
    in which e^eps cancels, so that nothing overflows.
    """
    mu = _mu("mu", mu)
    if math.isnan(epsilon) or epsilon < 0:
        raise BadInput(f"epsilon = {epsilon}: must be 0 or more")
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    return _gdp_delta_at(mu, epsilon / mu - mu / 2)


def gdp_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-DP; 0 where delta covers it all. `mu` >= 0.

    The inverse of `gdp_delta`, same source. `math.inf` only where mu^2/2 itself exceeds a float.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    mu, delta = _mu("mu", mu), _delta(delta)
    if mu * mu == math.inf:
        return math.inf
    if mu == 0 or _gdp_delta_at(mu, -mu / 2) <= delta:
        return 0.0
    # With y = eps/mu - mu/2: delta(y) <= Phi(-y) bounds y above; below -40 delta is 1 to the last digit.
    low, high = max(-mu / 2, -40.0), -float(ndtri(delta))
    digits = 4 * float(np.finfo(float).eps)
    y = brentq(lambda y: _gdp_delta_at(mu, y) - delta, low, high, xtol=digits, rtol=digits, maxiter=1000)
    return max(0.0, mu * (y + mu / 2))


def compose_gdp(mus: Iterable[float]) -> float:
    """The mu of Gaussian mechanisms used together: the root of the sum of squares. Dong et al. 2022, Corollary 2."""
    return math.hypot(*(_mu("mu", mu) for mu in mus))


def _gdp_delta_at(mu: float, y: float) -> float:
    """delta of mu-GDP at epsilon = mu (y + mu/2): Phi(-y) - phi(y) R(y + mu) with Mills' ratio R, y + mu > 0."""
    from scipy.special import erfcx, ndtr

    half_pi = math.sqrt(math.pi / 2)
    density = math.exp(-y * y / 2) / math.sqrt(2 * math.pi)
    far = half_pi * float(erfcx((y + mu) / math.sqrt(2)))
    if y < 0:
        return min(1.0, max(0.0, float(ndtr(-y)) - density * far))
    return density * max(0.0, half_pi * float(erfcx(y / math.sqrt(2))) - far)


# ------------------------------------------------------------------------------------------------ what papers claim


def subsampled_gaussian_clt(mus: Iterable[float], sample_rate: float, repeats: int = 1) -> float:
    """The mu that f-DP's central limit theorem gives to subsampled Gaussians with noise of their own. A claim only.

    2 K / s with K = repeats sum_i kl(C_p(G_mu_i)), s^2 = repeats sum_i kappa_2(C_p(G_mu_i)): Lemma A.1 of "How private
    is diffusion-based sampling?" (Dong et al. 2022, Theorem 3.5 and Lemma 5.5). `mus` >= 0 finite, one entry per step;
    the whole list is done `repeats` times.

    Under-reports, grossly where one step's mu is well above 1: there it tends to 2 sqrt(p repeats) however large the
    mus grow. `subsampled_gaussian_epsilon` is the sound number.
    """
    mus, rate = _mus(mus, sample_rate, repeats, top=1e100)
    if not mus.size or not repeats:
        return 0.0
    scale = float(mus.max())
    if scale == 0:
        return 0.0
    distinct, counts = np.unique(mus, return_counts=True)
    kl, kappa = np.transpose([_clt_moments(float(mu), rate, scale) for mu in distinct])
    return 2 * math.sqrt(repeats) * float(counts @ kl) / math.sqrt(float(counts @ kappa))


def poisson_clt(mus: Iterable[float], sample_rate: float, repeats: int = 1) -> float:
    """The mu that dp-promise and much of the DP-SGD literature report. A claim only.

    p sqrt(repeats sum_i (e^(mu_i^2) - 1)): dp-promise, Theorem 2; Bu et al. 2020, Section 3. Not the number of
    `subsampled_gaussian_clt`, which follows another statement of the limit theorem; both under-report at small sample
    rates or large mus. `math.inf` only where the true value exceeds a float.
    """
    from scipy.special import logsumexp

    mus, rate = _mus(mus, sample_rate, repeats, top=math.inf)
    mus = mus[mus > 0]
    if not mus.size or not repeats:
        return 0.0
    with np.errstate(over="ignore"):
        squares = mus * mus
    # log(e^s - 1) is log s for small s, in which form nothing underflows.
    terms = np.where(squares < 1e-8, 2 * np.log(mus), squares + np.log(-np.expm1(-np.maximum(squares, 1e-8))))
    log_mu = math.log(rate) + (math.log(repeats) + float(logsumexp(terms))) / 2
    return math.exp(log_mu) if log_mu < math.log(np.finfo(float).max) else math.inf


def _clt_moments(mu: float, rate: float, scale: float) -> tuple[float, float]:
    """kl / scale^2 and kappa_2 / scale^4 of C_p(G_mu) (Lemma A.1), by Gauss-Legendre panels over x >= mu/2."""
    if mu == 0:
        return 0.0, 0.0
    nodes, weights = np.polynomial.legendre.leggauss(16)
    # u = x - mu, so that large mu keeps its digits. The densities vanish beyond [-40, 12]; panels of width 1/4 resolve
    # them and, wherever they do not vanish, the bend of Z, whose width is 1/mu.
    edges = np.arange(max(-mu / 2, -40.0), 12.0, 0.25)
    u = (edges[:, None] + 0.125 * (1 + nodes)).ravel()
    weights = np.tile(0.125 * weights, edges.size)
    exponent = mu * (u + mu / 2)
    z = _log_ratio(exponent, rate) / scale / scale
    here = np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    origin = here * np.exp(-exponent)
    gap = here * -np.expm1(-exponent)
    kl = rate * float(weights @ (z * gap))
    kappa = float(weights @ (z * z * (rate * here + (2 - rate) * origin)))
    return kl, kappa


# ------------------------------------------------------------------------------------------------------ certificates


def epsilon(events: Sequence[Event], delta: float, relation: Relation = "add_remove") -> float:
    """What `events` cost together: the epsilon at `delta` under `relation`, by PLD; never below the true value.

    Order does not matter. No events, or none that happens, cost 0; an `Uncertified` event costs `math.inf`. Plain
    Gaussians alone are exact. Under `replace_one` the worst pair of a Gaussian lies +1 / -1 apart: the noise
    multiplier is relative to one record's norm, and an exchange moves the query by two of them.

    How tight: as a rule within 0.1 % of the true value for up to `MERGE_ABOVE` distinct events, a few times that for a
    thousand (noises that lie close share the smallest) or tens of millions of steps. Delta under 1e-10 is priced high.
    """
    return _price(events, delta, relation)


def subsampled_gaussian_epsilon(
    mus: Iterable[float], sample_rate: float, delta: float, repeats: int = 1, relation: Relation = "add_remove"
) -> float:
    """The sound epsilon of Poisson-subsampled Gaussians with noise of their own (multiplier 1/mu each), by PLD.

    `mus` >= 0, one entry per step, `math.inf` for a step without noise; the whole list is done `repeats` times. mu is
    relative to one record's norm; under `replace_one` the worst pair lies 2 mu apart.

    `math.inf` where nothing finite holds: r steps without noise (mu >= `NO_NOISE_MU` counts as that) show a record with
    probability 1 - (1 - sample_rate)^r, and no delta below it can be had.
    """
    mus, rate = _mus(mus, sample_rate, repeats, top=math.inf)
    return _certify([], [_Step(float(mu), rate, repeats) for mu in mus], delta, relation)


def dp_sgd_epsilon(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    relation: Relation = "add_remove",
    accountant: Accountant = "pld",
) -> float:
    """The epsilon of DP-SGD: `steps` Poisson-subsampled Gaussians of one noise and one rate.

    `pld` certifies, under both relations. `prv` and `rdp` are Opacus' and `clt` is the formula of Bu et al. 2020; these
    know `add_remove` alone, and `clt` under-reports. `replace_one` means that each record contributes norm <= clip,
    worst pair +clip / -clip.
    """
    noise, rate = _positive("noise_multiplier", noise_multiplier), _rate(sample_rate)
    delta, steps, relation = _delta(delta), _count("steps", steps), _relation(relation)
    if accountant not in get_args(Accountant):
        raise BadInput(f"accountant = {accountant!r}: choose one of {', '.join(get_args(Accountant))}")
    if accountant == "pld":
        return _certify([], [_Step(1 / noise, rate, steps)], delta, relation)
    if relation != "add_remove":
        raise BadInput(f"accountant = {accountant!r} knows the relation add_remove alone, not {relation}: use 'pld'")
    if steps == 0:
        return 0.0
    if accountant == "clt":
        return gdp_epsilon(poisson_clt([1 / noise], rate, steps), delta)
    from opacus.accountants import PRVAccountant, RDPAccountant

    opacus = PRVAccountant() if accountant == "prv" else RDPAccountant()
    opacus.history = [(noise, rate, steps)]
    options = {"eps_error": PRV_EPSILON_ERROR} if accountant == "prv" else {}
    return float(opacus.get_epsilon(delta, **options))


def accountant_name() -> str:
    """Who certifies, with its version, as the ledger writes it."""
    from importlib.metadata import version

    return f"dp-accounting {version('dp-accounting')} PLD"


# ------------------------------------------------------------------------------------------------------- calibration


def calibrate_noise(
    epsilon: float, delta: float, sample_rate: float, steps: int, relation: Relation = "add_remove"
) -> float:
    """The smallest noise multiplier with which DP-SGD costs at most `epsilon`, by PLD; see `calibrate`."""
    rate, steps = _rate(sample_rate), _count("steps", steps)
    return calibrate(
        epsilon,
        delta,
        lambda noise: [SubsampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps)],
        relation,
    )


def calibrate(
    epsilon: float, delta: float, event_of_noise: Callable[[float], Sequence[Event]], relation: Relation = "add_remove"
) -> float:
    """The smallest noise multiplier at which `event_of_noise` costs at most `epsilon` in total, by PLD.

    The cost must fall as the noise grows. The total at the answer, as `epsilon` computes it, is never above the target
    and within 0.1 % below it, unless the cost jumps over that band or not even the lower end of `NOISE_RANGE` costs so
    much. `BadInput` where no noise is enough, because other events in the list cost too much by themselves.
    """
    target = _positive("epsilon", epsilon)
    delta, relation = _delta(delta), _relation(relation)
    if target == math.inf:
        raise BadInput("epsilon = inf: give a finite target; with none, no noise is needed")

    def cost(noise: float) -> float:
        return _price(event_of_noise(noise), delta, relation, _by_grid)

    low, high, cost_low, cost_high = _bracket(cost, target)
    # Both axes in logarithms, where cost over noise is close to a straight line: regula falsi with the Illinois rule
    # (a kept end loses half its weight), and a bisection whenever that stalls.
    aim = math.log(target) + math.log1p(-CALIBRATION_SLACK / 2)
    gap_low, gap_high = _log(cost_low) - aim, _log(cost_high) - aim
    kept, turn = 0, 0
    while cost_high < target * (1 - CALIBRATION_SLACK) and high > low * (1 + 1e-9):
        turn += 1
        share = gap_low / (gap_low - gap_high) if turn % 4 else 0.5
        middle = low * (high / low) ** min(max(share, 1e-3), 1 - 1e-3)
        cost_middle = cost(middle)
        gap = _log(cost_middle) - aim
        if cost_middle > target:
            low, gap_low, gap_high = middle, gap, gap_high / 2 if kept == -1 else gap_high
            kept = -1
        else:
            high, cost_high, gap_high, gap_low = middle, cost_middle, gap, gap_low / 2 if kept == 1 else gap_low
            kept = 1
    # The search asks the quick grids; the answer must also hold by the accountant that certifies.
    while (exact := _price(event_of_noise(high), delta, relation)) > target:
        high *= max(exact / target, 1 + CALIBRATION_SLACK)
    return high


def _bracket(cost: Callable[[float], float], target: float) -> tuple[float, float, float, float]:
    """Two noises around the target, and their costs: (too little, enough, cost > target, cost <= target)."""
    smallest, largest = NOISE_RANGE
    noise, here, factor = 1.0, cost(1.0), 2.0
    if here > target:
        while here > target:
            if noise >= largest:
                raise BadInput(
                    f"epsilon = {target:g} is out of reach: even with noise {largest:g} the total is {here:.6g}, spent "
                    "by events that this noise does not touch; raise epsilon or delta, or plan fewer of those events"
                )
            low, cost_low = noise, here
            noise, factor = min(noise * factor, largest), factor**2
            here = cost(noise)
        return low, noise, cost_low, here
    while here <= target:
        high, cost_high = noise, here
        if noise <= smallest:
            return smallest, smallest, here, here
        noise, factor = max(noise / factor, smallest), factor**2
        here = cost(noise)
    return noise, high, here, cost_high


def _log(cost: float) -> float:
    """log of a cost, held finite at both ends (0 and infinity are costs too)."""
    return math.log(min(max(cost, 1e-12), 1e12))


# --------------------------------------------------------------------------------------- privacy loss distributions


class _Step(NamedTuple):
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


def _price(
    events: Sequence[Event], delta: float, relation: Relation, certify: Callable[..., float] | None = None
) -> float:
    """The body of `epsilon`, under a name that no argument hides."""
    delta, relation = _delta(delta), _relation(relation)
    gaussian_mus, steps, certified = [], [], True
    for event in events:
        match event:
            case Uncertified():
                certified = False
            case Gaussian():
                gaussian_mus.append(math.sqrt(event.count) / event.noise_multiplier)
            case SubsampledGaussian():
                steps.append(_Step(1 / event.noise_multiplier, event.sample_rate, event.steps))
            case _:
                raise BadInput(f"event {event!r}: the accountant has no worst pair for it; use `Uncertified`")
    return (certify or _certify)(gaussian_mus, steps, delta, relation) if certified else math.inf


def _certify(gaussian_mus: Iterable[float], steps: Iterable[_Step], delta: float, relation: Relation) -> float:
    """PLD epsilon of Gaussians and subsampled Gaussians, mus relative to one record's norm; remembers what it was asked."""
    counts: dict[tuple[float, float], int] = defaultdict(int)
    for step in steps:
        counts[step.mu, step.rate] += step.count
    grouped = tuple(_Step(mu, rate, count) for (mu, rate), count in sorted(counts.items(), reverse=True) if count and mu)
    return _certified(tuple(sorted(gaussian_mus)), grouped, _delta(delta), _relation(relation))


@functools.lru_cache(maxsize=256)
def _certified(gaussian_mus: tuple[float, ...], steps: tuple[_Step, ...], delta: float, relation: Relation) -> float:
    """dp-accounting's own distributions where the list is short and the answer of everyday size, else our grids."""
    bound = _by_grid(gaussian_mus, steps, delta, relation)
    sampled = [step for step in steps if step.rate < 1]
    everyday = DIRECT_EPSILON[0] <= bound <= DIRECT_EPSILON[1] and delta >= DIRECT_DELTA
    if not everyday or not 0 < len(sampled) <= DIRECT_DISTINCT:
        return bound
    return _direct(gaussian_mus, steps, delta, relation, bound)


def _direct(
    gaussian_mus: Iterable[float], steps: Iterable[_Step], delta: float, relation: Relation, bound: float
) -> float:
    """The same by dp-accounting's `PLDAccountant` from end to end; `bound` is about the answer and sets the interval."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    neighbours = dp_accounting.NeighboringRelation
    accountant = PLDAccountant(
        neighbours.REPLACE_ONE if relation == "replace_one" else neighbours.ADD_OR_REMOVE_ONE,
        value_discretization_interval=max(FINEST_INTERVAL, INTERVAL_SHARE * bound),
    )
    events = [(dp_accounting.GaussianDpEvent(1 / mu), 1.0, 1) for mu in gaussian_mus if mu]
    events += [(dp_accounting.GaussianDpEvent(1 / mu), rate, count) for mu, rate, count in steps]
    for gaussian, rate, count in events:
        step = dp_accounting.PoissonSampledDpEvent(rate, gaussian) if rate < 1 else gaussian
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, count))
    return min(float(accountant.get_epsilon(delta)), _unsampled(gaussian_mus, steps, delta, relation))


def _unsampled(gaussian_mus: Iterable[float], steps: Iterable[_Step], delta: float, relation: Relation) -> float:
    """The exact price without sampling, which sampling never exceeds: a cap where a grid had to be coarse."""
    reach = 2.0 if relation == "replace_one" else 1.0
    return gdp_epsilon(reach * compose_gdp([*gaussian_mus, *(mu * math.sqrt(count) for mu, _, count in steps)]), delta)


def _by_grid(gaussian_mus: Iterable[float], steps: Iterable[_Step], delta: float, relation: Relation) -> float:
    """PLD epsilon of Gaussians (exact among themselves) and subsampled Gaussians, mus relative to one record's norm."""
    delta, reach = _delta(delta), 2.0 if _relation(relation) == "replace_one" else 1.0
    counts: dict[tuple[float, float], int] = defaultdict(int)
    whole = list(gaussian_mus)
    for mu, rate, count in steps:
        if rate == 1:
            whole.append(mu * math.sqrt(count) if count else 0.0)
        elif mu * rate > 0 and count > 0:
            counts[min(mu, NO_NOISE_MU), rate] += count
    mu_whole = reach * compose_gdp(whole)
    # Sorted, so that the same events in another order give the same number to the last digit.
    sampled = [_Step(mu, rate, count) for (mu, rate), count in sorted(counts.items(), reverse=True)]
    if not sampled:
        return gdp_epsilon(mu_whole, delta)
    no_noise = math.fsum(s.count * math.log1p(-s.rate) for s in sampled if s.mu >= NO_NOISE_MU)
    if -math.expm1(no_noise) > delta:
        return math.inf
    total = math.inf
    if mu_whole < NO_NOISE_MU:
        total = max(_pair_epsilon(pair, mu_whole, sampled, delta) for pair in _PAIRS[relation])
    if no_noise == 0:
        total = min(total, _unsampled(whole, sampled, delta, relation))
    return total


def _pair_epsilon(pair: _Pair, mu_whole: float, steps: Sequence[_Step], delta: float) -> float:
    """PLD epsilon of one worst pair: one Gaussian of `mu_whole` and all `steps`, composed."""
    number = 1 + sum(step.count for step in steps)
    left = delta - ROUNDING_FLOOR - ROUNDING_PER_STEP * number
    if left <= 0:
        return math.inf
    tail = TAIL_SHARE * delta / number
    steps, spread = _merge(pair, steps, RARE_SHARE * delta / number)
    spread += mu_whole**2
    # A whole Gaussian is the sampled one with rate 1, whose pair is the same seen from either side.
    whole = [(_Pair(up=True, down=False), _Step(mu_whole, 1.0, 1))] if mu_whole > 0 else []
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


def _merge(pair: _Pair, steps: Sequence[_Step], rare: float) -> tuple[list[_Step], float]:
    """At most about `MERGE_ABOVE` distinct noises per rate, and the total second moment of the loss.

    A step may always be priced with less noise (less noise, plus noise, is more noise). From the least noise on, steps
    share it until the second moment of the total would have grown by its allowance.
    """
    moments = _second_moments(pair, steps, rare)
    total = math.fsum(step.count * moment for step, moment in zip(steps, moments, strict=True))
    if len(steps) <= MERGE_ABOVE:
        return list(steps), total
    allowance = MERGE_SHARE * total / MERGE_ABOVE
    merged: list[_Step] = []
    growth = top = 0.0
    for step, moment in sorted(zip(steps, moments, strict=True), key=lambda item: (item[0].rate, -item[0].mu)):
        growth += step.count * max(0.0, top - moment)
        if merged and step.rate == merged[-1].rate and growth <= allowance:
            merged[-1] = merged[-1]._replace(count=merged[-1].count + step.count)
        else:
            merged.append(step)
            growth, top = 0.0, moment
    return merged, total


def _discretise(pair: _Pair, step: _Step, interval: float, tail: float) -> _Grid:
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


def _loss_range(pair: _Pair, step: _Step, tail: float) -> tuple[float, float]:
    """Lowest and highest privacy loss to tell apart: P lies outside with probability at most `tail` at each end."""
    from scipy.special import ndtri

    low, high = float(ndtri(tail)), -float(ndtri(tail / 2))
    if pair.up and tail < step.rate:
        high = max(high, step.mu - float(ndtri(tail / 2 / step.rate)))
    low, high = _loss(pair, step.mu, step.rate, np.array([low, high]))
    return float(low), float(high)


def _loss_width(pair: _Pair, step: _Step, tail: float) -> float:
    low, high = (0.0, 0.0) if step.mu >= NO_NOISE_MU else _loss_range(pair, step, tail)
    return high - low


def _log_ratio(exponent: np.ndarray, rate: float | np.ndarray) -> np.ndarray:
    """log((1 - q) + q e^x): the log density ratio of the mixture to N(0), at x = mu z - mu^2/2."""
    with np.errstate(divide="ignore"):
        # The first keeps the digits of small results, the second cannot overflow and serves q near 1.
        near = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
        far = np.logaddexp(np.log1p(-np.asarray(rate, dtype=float)), np.log(rate) + exponent)
    return np.where((exponent < 1.0) & ((exponent > -1.0) | (np.asarray(rate) < 0.5)), near, far)


def _loss(pair: _Pair, mu: float | np.ndarray, rate: float | np.ndarray, z: np.ndarray) -> np.ndarray:
    """Privacy loss log(P/Q) at z; increasing in z."""
    half = np.square(mu) / 2
    return (_log_ratio(mu * z - half, rate) if pair.up else 0.0) - (
        _log_ratio(-mu * z - half, rate) if pair.down else 0.0
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


def _second_moments(pair: _Pair, steps: Sequence[_Step], rare: float) -> np.ndarray:
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


# -------------------------------------------------------------------------------------------------------- the inputs


def _mu(name: str, mu: float) -> float:
    if not mu >= 0:
        raise BadInput(f"{name} = {mu}: must be 0 or more")
    return float(mu)


def _mus(mus: Iterable[float], sample_rate: float, repeats: int, *, top: float) -> tuple[np.ndarray, float]:
    values = np.array([_mu("mus", mu) for mu in mus], dtype=float)
    if values.size and values.max() > top:
        raise BadInput(f"mus up to {values.max():g}: the limit formula needs noise in every step (mu <= {top:g})")
    _count("repeats", repeats)
    return values, _rate(sample_rate)


def _delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise BadInput(f"delta = {delta}: must lie between 0 and 1, both excluded")
    return float(delta)


def _rate(sample_rate: float) -> float:
    if not 0 < sample_rate <= 1:
        raise BadInput(f"sample_rate = {sample_rate}: must be above 0 and at most 1")
    return float(sample_rate)


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise BadInput(f"{name} = {value}: must be above 0")
    return float(value)


def _count(name: str, value: int) -> int:
    if not (value >= 0 and float(value).is_integer()):
        raise BadInput(f"{name} = {value}: must be a whole number, 0 or more")
    return int(value)


def _relation(relation: Relation) -> Relation:
    if relation not in get_args(Relation):
        raise BadInput(f"relation = {relation!r}: choose one of {', '.join(get_args(Relation))}")
    return relation
