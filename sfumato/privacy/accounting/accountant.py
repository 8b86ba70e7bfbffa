"""The price of privacy events: from events (or plain numbers) to epsilon, and from epsilon to the noise for it.

Certificates are privacy loss distributions (PLD): for each event the worst pair of output distributions is known in
closed form; dp-accounting lays its privacy loss on a grid in such a way that every delta can only grow ("connect the
dots", Doroshenko et al. 2022), composes the grids and reads epsilon off. Where a list is too long or too costly for
that, and while calibration searches, our own faster grids of the same kind stand in; tests hold the two against each
other. Lists of plain Gaussian mechanisms need no grid: they compose exactly under Gaussian differential privacy (GDP,
Dong et al. 2022).

The worst pairs, in units of the noise (mu = 1 / noise_multiplier, q = sample rate, N(m) = unit normal around m):

    add_remove    (1-q) N(0) + q N(mu)  against  N(0), and the same pair exchanged; epsilon is the larger of the two
    replace_one   (1-q) N(0) + q N(mu)  against  (1-q) N(0) + q N(-mu), which exchanged is itself

A histogram of integers is one discrete Gaussian whose mean moves by 1, and under replace-one two of them: they have no
closed form, and what they cost is not what a Gaussian of the same noise costs, though close to it.

Replace-one is two records of norm one on opposite sides, so that a Gaussian without sampling costs 2 mu. No other two
records v, w cost more: for epsilon >= 0 the divergence is q H(N(v) || (1-b) N(0) + b N(w)) (Balle et al. 2018, Theorem
2), a convex function, with mixed second derivatives >= 0, of two log-normal likelihood ratios, hence increasing in each
entry of their covariance (Kahane's inequality); these are |v|^2, |v-w|^2 and <v, v-w>, all largest at w = -v, |v| = 1.
It is also the pair that dp-accounting uses for REPLACE_ONE of a Poisson-sampled Gaussian.

Not covered: sampling other than Poisson, and how random the noise generator really is. The central-limit formulas
(`subsampled_gaussian_clt`, `poisson_clt`) restate what papers claim; they under-report and certify nothing.
"""

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextvars import ContextVar
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal, NamedTuple, get_args

from sfumato.config import Relation
from sfumato.errors import BadInput, OutOfReach
from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Event,
    Gaussian,
    Histogram,
    NoisedRecords,
    SubsampledGaussian,
)
from sfumato.privacy.accounting.gdp import (
    checked_count,
    checked_delta,
    checked_mus,
    checked_positive,
    checked_rate,
    checked_relation,
    compose_gdp,
    gdp_delta,
    gdp_epsilon,
    poisson_clt,
    subsampled_gaussian_closeness,
    subsampled_gaussian_clt,
)
from sfumato.privacy.accounting.terms import NO_NOISE_MU, Cells, Step, merged_cells

__all__ = [
    "Priced",
    "calibrate",
    "calibrate_noise",
    "compose_gdp",
    "dp_sgd_epsilon",
    "epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "poisson_clt",
    "priced",
    "subsampled_gaussian_closeness",
    "subsampled_gaussian_clt",
    "subsampled_gaussian_epsilon",
]

Accountant = Literal["pld", "prv", "rdp", "clt"]
"""`pld` certifies; `prv` and `rdp` (Opacus) are there to compare; `clt` is what papers claim and under-reports."""

DIRECT_DISTINCT, DIRECT_EPSILON, DIRECT_DELTA, DIRECT_CELLS_NOISE = 8, (0.05, 60.0), 1e-9, 1e4
"""Where dp-accounting's own distributions serve: at most so many distinct sampled steps and histograms of integers, an
epsilon in this range, a delta of at least this, histograms with at most this noise. Elsewhere (long ledgers, huge or tiny
costs) they are slow or coarse, and our grids stand in."""

FINEST_INTERVAL, INTERVAL_SHARE = 1e-4, 1e-4
"""dp-accounting's grid for those, as a share of epsilon: pessimistic by less than 3e-4 at epsilon 10."""

DIRECT_ROUNDING = 1e-9
"""Share by which a delta read from dp-accounting is raised. Where its grid loses nothing (one step at epsilon 0), the rounding
of its sums alone decides on which side of the truth it lies, and that differs from processor to processor."""

CALIBRATION_SLACK = 1e-3
"""Calibration stops when the total lies within this share below the target."""
NARROW = 1e-9
"""Relative width of the bracket at which calibration stops too, where the cost jumps over that share."""
BISECT_EVERY = 4
"""Every so many turns the bracket is halved, whatever the secant says, so that no shape of the cost stalls the search."""
LEAST_MOVE = 1e-3
"""Smallest share of the bracket by which a turn moves one of its ends."""
COSTS = (1e-12, 1e12)
"""Costs between which logarithms are taken: a cost may be 0 or infinite."""
DIGITS = 6
"""Significant digits of a calibrated noise: machines that round the last bits of a float in other ways plan the same run, and find it in the cache."""

NOISE_RANGE = (1 / NO_NOISE_MU, 1e9)
"""Noise multipliers between which calibration searches: from none at all to more than any query needs."""

PRV_EPSILON_ERROR = 5e-3
"""Additive error requested of Opacus' PRV accountant, of whose answer the upper end is used."""


CLOSED_FORM, OWN_GRIDS, NOBODY = "closed-form GDP", "Sfumato grids", "none"
"""Names of what computed a price, other than dp-accounting: the exact formula for Gaussians, our own distributions, and nothing
where no epsilon holds."""


class Priced(NamedTuple):
    """An epsilon and the name of what computed it."""

    epsilon: float
    accountant: str


class AtZero(NamedTuple):
    """The delta at which epsilon is 0, and the name of what computed it."""

    delta: float
    accountant: str


def dp_accounting_name() -> str:
    """dp-accounting's privacy loss distributions, with the version installed."""
    from importlib.metadata import version

    return f"dp-accounting {version('dp-accounting')} PLD"


def _opacus_name(accountant: str) -> str:
    from importlib.metadata import version

    return f"Opacus {version('opacus')} {accountant}"


_cache: ContextVar[MutableMapping[str, Priced] | None] = ContextVar("cache", default=None)


@contextlib.contextmanager
def cached_prices(prices: MutableMapping[str, Priced]) -> Iterator[None]:
    """Inside the block, look a price up in `prices` before computing it, and store what was computed there.

    Only for screens, which bind nobody; whatever reserves, pays, publishes, replays or writes a card computes its price. A key names the
    mechanisms, delta, relation and dp-accounting's version. A cache that outlives the process must keep prices of other code apart.
    """
    token = _cache.set(prices)
    try:
        yield
    finally:
        _cache.reset(token)


def _cached(name: str, compute: Callable[[], Priced]) -> Priced:
    """The price of this name from the cache, if there is one, else as computed."""
    prices = _cache.get()
    if prices is None:
        return compute()
    if name not in prices:
        prices[name] = compute()
    return prices[name]


# ------------------------------------------------------------------------------------------------------ certificates


def priced(events: Sequence[Event], delta: float, relation: Relation = "add_remove") -> Priced:
    """The price of `events` together, as of `epsilon`, and the name of what computed it."""
    delta, relation = checked_delta(delta), checked_relation(relation)
    if any(event.uncertified(relation) for event in events):
        return Priced(math.inf, NOBODY)
    return _certify(*_lists(events, relation), delta, relation)


def epsilon(events: Sequence[Event], delta: float, relation: Relation = "add_remove") -> float:
    """The price of `events` together: the epsilon at `delta` under `relation`, by PLD; never below the true value.

    Order does not matter. No events, or none that happens, cost 0; one for which no epsilon holds (`Uncertified`, or
    `NoisedRecords` under `add_remove`) makes it `math.inf`. Plain Gaussians alone are exact. Under `replace_one` the worst pair of a Gaussian lies +1 / -1 apart: the noise
    multiplier is relative to one record's norm, and an exchange moves the query by two of them.

    How tight: as a rule within 0.1 % of the true value, a thousand different events included. A delta under 1e-10 is
    priced high.
    """
    return priced(events, delta, relation).epsilon


def curve(events: Sequence[Event], deltas: Sequence[float], relation: Relation, *, own: float) -> tuple[float, ...]:
    """The epsilon at each of `deltas`, where one distribution answers all, on the grid that prices the events at delta `own`.

    Sound at every delta and as tight as `epsilon` at `own`; at others a grid of their own could be finer. Where dp-accounting's
    distributions do not serve, each delta is priced by itself.
    """
    relation = checked_relation(relation)
    if not events:
        return tuple(0.0 for _ in deltas)
    if any(event.uncertified(relation) for event in events):
        return tuple(math.inf for _ in deltas)
    merged = _merged(*_lists(events, relation))
    computed = _curve(*merged, tuple(checked_delta(delta) for delta in deltas), relation, checked_delta(own))
    return computed or tuple(epsilon(events, delta, relation) for delta in deltas)


@functools.lru_cache(maxsize=64)
def _curve(
    mus: tuple[float, ...],
    steps: tuple[Step, ...],
    histograms: tuple[Cells, ...],
    deltas: tuple[float, ...],
    relation: Relation,
    own: float,
) -> tuple[float, ...]:
    """The epsilon at each delta by one of dp-accounting's distributions; empty where these do not serve."""
    from sfumato.privacy.accounting.pld import grid_epsilon, unsampled_epsilon

    bound = grid_epsilon(mus, steps, own, relation, histograms)
    if not _is_direct(steps, histograms, min(own, *deltas), bound):
        return ()
    loss = _distribution(mus, steps, histograms, relation, max(FINEST_INTERVAL, INTERVAL_SHARE * bound))

    def at(delta: float) -> float:
        closed = math.inf if histograms else unsampled_epsilon(mus, steps, delta, relation)
        return min(closed, float(loss.get_epsilon_for_delta(delta)))

    return tuple(at(delta) for delta in deltas)


def delta_at_zero(events: Sequence[Event], relation: Relation, *, own: float) -> AtZero:
    """The delta of `events` together at epsilon 0, never below the true value: whoever knows all else, and at even odds has to say
    whether a record took part, is right at most (1 + delta) / 2 of the time.

    It is the total variation distance of the worst pair, on the grid that prices the events at delta `own`. 1 where no epsilon
    holds. Plain Gaussians alone are exact.
    """
    relation, own = checked_relation(relation), checked_delta(own)
    if any(event.uncertified(relation) for event in events):
        return AtZero(1.0, NOBODY)
    return _at_zero(*_merged(*_lists(events, relation)), relation, own)


@functools.lru_cache(maxsize=64)
def _at_zero(
    mus: tuple[float, ...], steps: tuple[Step, ...], histograms: tuple[Cells, ...], relation: Relation, own: float
) -> AtZero:
    from sfumato.privacy.accounting.pld import grid_delta_at_zero, grid_epsilon

    bound = grid_epsilon(mus, steps, own, relation, histograms)
    if bound == math.inf:
        return AtZero(1.0, NOBODY)
    reach = 2.0 if relation == "replace_one" else 1.0
    whole = [*mus, *(mu * math.sqrt(count) for mu, _, count in steps)]
    closed = AtZero(1.0 if histograms else gdp_delta(reach * compose_gdp(whole), 0.0), CLOSED_FORM)
    if not histograms and all(step.rate == 1 for step in steps):
        return closed
    if _is_direct(steps, histograms, own, bound):
        loss = _distribution(mus, steps, histograms, relation, max(FINEST_INTERVAL, INTERVAL_SHARE * bound))
        raised = float(loss.get_delta_for_epsilon(0.0)) * (1 + DIRECT_ROUNDING)
        computed = AtZero(min(1.0, raised), dp_accounting_name())
    else:
        computed = AtZero(grid_delta_at_zero(mus, steps, relation, histograms, about=own), OWN_GRIDS)
    return min(computed, closed)


def subsampled_gaussian_epsilon(
    mus: Iterable[float], sample_rate: float, delta: float, repeats: int = 1, relation: Relation = "add_remove"
) -> float:
    """The sound epsilon of Poisson-subsampled Gaussians with noise of their own (multiplier 1/mu each), by PLD.

    `mus` >= 0, one entry per step, `math.inf` for a step without noise; the whole list is done `repeats` times. mu is
    relative to one record's norm; under `replace_one` the worst pair lies 2 mu apart.

    `math.inf` where nothing finite holds: r steps without noise (mu >= `NO_NOISE_MU` counts as that) show a record with
    probability 1 - (1 - sample_rate)^r, and no delta below it can be had.
    """
    mus, rate = checked_mus(mus, sample_rate, repeats, top=math.inf)
    return _certify([], [Step(float(mu), rate, repeats) for mu in mus], [], delta, relation).epsilon


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
    noise, rate = checked_positive("noise_multiplier", noise_multiplier), checked_rate(sample_rate)
    delta, steps, relation = checked_delta(delta), checked_count("steps", steps), checked_relation(relation)
    if accountant not in get_args(Accountant):
        raise BadInput(f"accountant = {accountant!r}: choose one of {', '.join(get_args(Accountant))}")
    if accountant == "pld":
        return _certify([], [Step(1 / noise, rate, steps)], [], delta, relation).epsilon
    if relation != "add_remove":
        raise BadInput(f"accountant = {accountant!r} knows the relation add_remove alone, not {relation}: use 'pld'")
    if steps == 0:
        return 0.0
    if accountant == "clt":
        return gdp_epsilon(poisson_clt([1 / noise], rate, steps), delta)
    name = _opacus_name(accountant)
    return _cached(
        f"{name} {(noise, rate, steps, delta)!r}",
        lambda: Priced(_by_opacus(noise, rate, steps, delta, accountant == "prv"), name),
    ).epsilon


@functools.lru_cache(maxsize=1000)
def _by_opacus(noise: float, rate: float, steps: int, delta: float, prv: bool) -> float:
    from opacus.accountants import PRVAccountant, RDPAccountant

    opacus = PRVAccountant() if prv else RDPAccountant()
    opacus.history = [(noise, rate, steps)]
    return float(opacus.get_epsilon(delta, **({"eps_error": PRV_EPSILON_ERROR} if prv else {})))


# ------------------------------------------------------------------------------------------------------- calibration


def calibrate_noise(
    epsilon: float, delta: float, sample_rate: float, steps: int, relation: Relation = "add_remove"
) -> float:
    """The smallest noise multiplier with which DP-SGD costs at most `epsilon`, by PLD; see `calibrate`."""
    rate, steps = checked_rate(sample_rate), checked_count("steps", steps)
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
    much. `OutOfReach` where no noise is enough, because other events in the list cost too much by themselves.
    """
    target = checked_positive("epsilon", epsilon)
    delta, relation = checked_delta(delta), checked_relation(relation)
    if target == math.inf:
        raise BadInput("epsilon = inf: give a finite target; with none, no noise is needed")

    def cost(noise: float) -> float:
        events = event_of_noise(noise)
        if any(event.uncertified(relation) for event in events):
            return math.inf
        gaussian_mus, steps, histograms = _lists(events, relation)
        return _by_grids(tuple(gaussian_mus), tuple(steps), tuple(histograms), delta, relation)

    low, high, cost_low, cost_high = _bracket(cost, target)
    # Both axes in logarithms, where cost over noise is close to a straight line: regula falsi with the Illinois rule
    # (a kept end loses half its weight), and a bisection whenever that stalls.
    aim = math.log(target) + math.log1p(-CALIBRATION_SLACK / 2)
    gap_low, gap_high = _log(cost_low) - aim, _log(cost_high) - aim
    last_moved, turn = 0, 0
    while cost_high < target * (1 - CALIBRATION_SLACK) and high > low * (1 + NARROW):
        turn += 1
        share = gap_low / (gap_low - gap_high) if turn % BISECT_EVERY else 0.5
        middle = low * (high / low) ** min(max(share, LEAST_MOVE), 1 - LEAST_MOVE)
        cost_middle = cost(middle)
        gap = _log(cost_middle) - aim
        if cost_middle > target:
            low, gap_low, gap_high = middle, gap, gap_high / 2 if last_moved == -1 else gap_high
            last_moved = -1
        else:
            high, cost_high, gap_high, gap_low = middle, cost_middle, gap, gap_low / 2 if last_moved == 1 else gap_low
            last_moved = 1
    # The search asks the quick grids; the answer must also hold by the accountant that certifies.
    noise = _rounded_up(high)
    while (exact := priced(event_of_noise(noise), delta, relation).epsilon) > target:
        noise = _rounded_up(noise * max(exact / target, 1 + CALIBRATION_SLACK))
    return noise


def _rounded_up(noise: float) -> float:
    """The next number of `DIGITS` significant digits, which costs no more."""
    exponent = DIGITS - 1 - math.floor(math.log10(noise))
    up = Decimal(repr(float(noise))).scaleb(exponent).to_integral_value(ROUND_CEILING).scaleb(-exponent)
    return float(up)


class _Bracket(NamedTuple):
    """Two noises around a target, and what they cost."""

    low: float
    """Too little noise, unless the least there is suffices."""
    high: float
    """Enough."""
    cost_low: float
    cost_high: float


def _bracket(cost: Callable[[float], float], target: float) -> _Bracket:
    """Two noises of which one costs more than the target and one does not."""
    smallest, largest = NOISE_RANGE
    noise, here, factor = 1.0, cost(1.0), 2.0
    if here > target:
        while here > target:
            if noise >= largest:
                raise OutOfReach(
                    f"epsilon = {target:g} is out of reach: even with noise {largest:g} the total is {here:.6g}, spent "
                    "by events that this noise does not touch; raise epsilon or delta, or plan fewer of those events"
                )
            low, cost_low = noise, here
            noise, factor = min(noise * factor, largest), factor**2
            here = cost(noise)
        return _Bracket(low, noise, cost_low, here)
    while here <= target:
        high, cost_high = noise, here
        if noise <= smallest:
            return _Bracket(smallest, smallest, here, here)
        noise, factor = max(noise / factor, smallest), factor**2
        here = cost(noise)
    return _Bracket(noise, high, here, cost_high)


def _log(cost: float) -> float:
    """log of a cost, held finite at both ends (0 and infinity are costs too)."""
    least, most = COSTS
    return math.log(min(max(cost, least), most))


def _lists(events: Sequence[Event], relation: Relation) -> tuple[list[float], list[Step], list[Cells]]:
    """Events that can be certified as the mus of Gaussians, sampled steps and histograms of integers."""
    gaussian_mus: list[float] = []
    steps: list[Step] = []
    histograms: list[Cells] = []
    for event in events:
        match event:
            case Gaussian():
                gaussian_mus.append(math.sqrt(event.count) / event.noise_multiplier)
            case Histogram():
                # Every mu is of one record's norm and doubled for an exchange, which moves a histogram by sqrt(2) alone.
                apart = math.sqrt(2) / 2 if relation == "replace_one" else 1.0
                gaussian_mus.append(apart / event.noise_multiplier)
            case DiscreteHistogram():
                histograms.append(Cells(event.noise_multiplier, 1))
            case NoisedRecords():
                gaussian_mus.append(1 / event.noise_multiplier)
            case SubsampledGaussian():
                steps.append(Step(1 / event.noise_multiplier, event.sample_rate, event.steps))
            case _:
                raise BadInput(f"event {event!r}: the accountant has no worst pair for it; use `Uncertified`")
    return gaussian_mus, steps, histograms


def _certify(
    gaussian_mus: Iterable[float],
    steps: Iterable[Step],
    histograms: Iterable[Cells],
    delta: float,
    relation: Relation,
) -> Priced:
    """Price Gaussians and subsampled Gaussians, mus relative to one record's norm, and histograms of integers, with a cache."""
    terms = (*_merged(gaussian_mus, steps, histograms), checked_delta(delta), checked_relation(relation))
    return _cached(f"{dp_accounting_name()} {terms!r}", lambda: _certified(*terms))


def _merged(
    gaussian_mus: Iterable[float], steps: Iterable[Step], histograms: Iterable[Cells]
) -> tuple[tuple[float, ...], tuple[Step, ...], tuple[Cells, ...]]:
    """The same with equal ones counted, in an order that does not depend on theirs."""
    counts: dict[tuple[float, float], int] = defaultdict(int)
    for step in steps:
        counts[step.mu, step.rate] += step.repeats
    grouped = tuple(Step(mu, rate, count) for (mu, rate), count in sorted(counts.items(), reverse=True) if count and mu)
    return tuple(sorted(gaussian_mus)), grouped, tuple(merged_cells(histograms))


@functools.lru_cache(maxsize=1024)
def _by_grids(
    gaussian_mus: tuple[float, ...],
    steps: tuple[Step, ...],
    histograms: tuple[Cells, ...],
    delta: float,
    relation: Relation,
) -> float:
    """`grid_epsilon`, remembered: plans of like settings try the same noises."""
    from sfumato.privacy.accounting.pld import grid_epsilon

    return grid_epsilon(gaussian_mus, steps, delta, relation, histograms)


@functools.lru_cache(maxsize=256)
def _certified(
    gaussian_mus: tuple[float, ...],
    steps: tuple[Step, ...],
    histograms: tuple[Cells, ...],
    delta: float,
    relation: Relation,
) -> Priced:
    """dp-accounting's own distributions where the list is short and the answer of everyday size, else our grids; and the
    closed form where nothing is sampled or counted in integers, or where sampling is as dear as none."""
    from sfumato.privacy.accounting.pld import grid_epsilon, unsampled_epsilon

    bound = grid_epsilon(gaussian_mus, steps, delta, relation, histograms)
    distinct = sum(step.rate < 1 for step in steps) + len(histograms)
    direct = _is_direct(steps, histograms, delta, bound)
    computed = _direct(gaussian_mus, steps, histograms, delta, relation, bound) if direct else bound
    closed = math.inf if histograms else unsampled_epsilon(gaussian_mus, steps, delta, relation)
    if computed == math.inf:
        return Priced(computed, NOBODY)
    if closed <= computed or not distinct:
        return Priced(min(closed, computed), CLOSED_FORM)
    return Priced(computed, dp_accounting_name() if direct else OWN_GRIDS)


def _is_direct(steps: tuple[Step, ...], histograms: tuple[Cells, ...], delta: float, bound: float) -> bool:
    """Whether dp-accounting's own distributions serve."""
    distinct = sum(step.rate < 1 for step in steps) + len(histograms)
    everyday = DIRECT_EPSILON[0] <= bound <= DIRECT_EPSILON[1] and delta >= DIRECT_DELTA
    narrow = all(noise <= DIRECT_CELLS_NOISE for noise, _ in histograms)
    return everyday and narrow and 0 < distinct <= DIRECT_DISTINCT


def _direct(
    gaussian_mus: tuple[float, ...],
    steps: tuple[Step, ...],
    histograms: tuple[Cells, ...],
    delta: float,
    relation: Relation,
    bound: float,
) -> float:
    """Compute the same price with dp-accounting's distributions alone; `bound`, a rough answer, sets the interval."""
    interval = max(FINEST_INTERVAL, INTERVAL_SHARE * bound)
    return float(_distribution(gaussian_mus, steps, histograms, relation, interval).get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=8)
def _distribution(
    gaussian_mus: tuple[float, ...],
    steps: tuple[Step, ...],
    histograms: tuple[Cells, ...],
    relation: Relation,
    interval: float,
) -> Any:
    """dp-accounting's distribution of the privacy loss of all together, on a grid of this interval."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    exchanged = relation == "replace_one"
    total, whole, counted = pld.identity(value_discretization_interval=interval), list(gaussian_mus), list(histograms)
    for mu, rate, count in steps:
        if rate == 1:
            whole.append(mu * math.sqrt(count))
            continue
        step = pld.from_gaussian_mechanism(
            1 / mu,
            value_discretization_interval=interval,
            sampling_prob=rate,
            neighboring_relation=NeighboringRelation.REPLACE_ONE
            if exchanged
            else NeighboringRelation.ADD_OR_REMOVE_ONE,
        )
        total = total.compose(step.self_compose(count))
    for noise, count in counted:
        cell = pld.from_discrete_gaussian_mechanism(
            noise, value_discretization_interval=interval, use_connect_dots=True
        )
        total = total.compose(cell.self_compose(2 * count if exchanged else count))
    if mu := (2 if exchanged else 1) * compose_gdp(whole):
        total = total.compose(pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval))
    return total
