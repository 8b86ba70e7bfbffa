"""Long ledgers: our own composition against dp-accounting, against finer dots of its own, and the laws it must obey."""

import math
from itertools import pairwise

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from sfumato.privacy.accounting import pld
from sfumato.privacy.accounting.gdp import gdp_epsilon
from sfumato.privacy.accounting.pld import NO_NOISE_MU, Cells, Step, _read_epsilon, grid_epsilon, unsampled_epsilon

DELTA = 1e-5
RELATIONS = ("add_remove", "replace_one")
relations = st.sampled_from(RELATIONS)


def mix(number, noises, rates, steps, seed=0):
    """`number` steps, no two alike, log-uniform between the given ends."""
    draw = np.random.default_rng(seed).uniform
    ends = [(math.log(low), math.log(high)) for low, high in (noises, rates, steps)]
    return [
        Step(*(1 / math.exp(draw(*ends[0])), math.exp(draw(*ends[1])), round(math.exp(draw(*ends[2])))))
        for _ in range(number)
    ]


MIXES = {
    "weekly runs": [Step(1 / (8 + 0.01 * week), 0.02, 500) for week in range(100)],
    "many rates": mix(100, (0.8, 10.0), (1e-4, 0.05), (1, 1000)),
    "rare large losses": mix(70, (0.3, 0.6), (1e-4, 1e-3), (1, 50)),
    "long runs": mix(100, (5.0, 50.0), (1e-4, 1e-3), (1e5, 1e6)),
    "single steps": mix(100, (0.3, 5.0), (1e-4, 0.1), (1, 1)),
    "few": mix(5, (0.7, 5.0), (1e-3, 0.5), (1, 1000)),
}


def finer(monkeypatch):
    """Ten times less of everything that makes the answer larger."""
    monkeypatch.setattr(pld, "EXCESS", {few: share / 25 for few, share in pld.EXCESS.items()})
    monkeypatch.setattr(pld, "WIDEST_DOTS", {few: width / 10 for few, width in pld.WIDEST_DOTS.items()})
    monkeypatch.setattr(pld, "MAX_DOTS", 10 * pld.MAX_DOTS)
    monkeypatch.setattr(pld, "WORK", 100 * pld.WORK)
    monkeypatch.setattr(pld, "CELLS", 4 * pld.CELLS)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", MIXES)
def test_finer_dots_only_lower_the_answer_a_little(name, relation, monkeypatch):
    coarse = grid_epsilon([0.1], MIXES[name], DELTA, relation)
    finer(monkeypatch)
    fine = grid_epsilon([0.1], MIXES[name], DELTA, relation)
    assert fine <= coarse <= fine * 1.002


@pytest.mark.parametrize("relation", RELATIONS)
def test_agrees_with_dp_accounting_on_thirty_different_entries(relation):
    """Its grids only raise the answer, too: by less than .1 % at an interval of 2e-4 (a share of the cost of a step)."""
    steps = mix(30, (1.0, 10.0), (1e-3, 0.1), (1, 100), seed=1)
    names = dp_accounting.NeighboringRelation
    reference = PLDAccountant(
        names.REPLACE_ONE if relation == "replace_one" else names.ADD_OR_REMOVE_ONE, value_discretization_interval=2e-4
    )
    for mu, rate, count in steps:
        reference.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1 / mu)), count)
    reference.compose(dp_accounting.GaussianDpEvent(5.0))
    exact = reference.get_epsilon(DELTA)
    assert exact * 0.999 <= grid_epsilon([0.2], steps, DELTA, relation) <= exact * 1.001


@pytest.mark.parametrize(
    ("noise", "steps", "entries"), [(50.0, 1, 200), (1e3, 1000, 200), (1e4, 10**6, 50), (1e3, 10**6, 1)]
)
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_never_below_the_exact_gaussian(noise, steps, entries, delta):
    """Rates next to 1 go through the Fourier sums; their exact price is known."""
    many = [Step((1 + 1e-4 * i) / noise, 1 - 1e-13, steps) for i in range(entries)]
    exact = unsampled_epsilon([], many, delta, "add_remove")
    for pair in pld._PAIRS["add_remove"]:  # without the cap at the exact price
        result = pld._pair_epsilon(pair, 0.0, many, delta)
        assert exact * (1 - 1e-9) <= result <= exact * 1.01


some = st.lists(
    st.tuples(st.floats(-1.5, 0.5), st.floats(-4, 0), st.integers(1, 10_000)).map(
        lambda drawn: Step(10 ** drawn[0], 10 ** drawn[1], drawn[2])
    ),
    min_size=1,
    max_size=6,
)


@given(steps=some, more=some, whole=st.floats(0, 1), relation=relations, delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
@settings(max_examples=40, deadline=None)
def test_more_never_costs_less(steps, more, whole, relation, delta):
    """But for what dots and haze of the shorter list added to it."""
    before = grid_epsilon([], steps, delta, relation)
    assert grid_epsilon([], [*steps, *more], delta, relation) >= before * (1 - 1e-3)
    assert grid_epsilon([whole], steps, delta, relation) >= before * (1 - 1e-3)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_long_ledger_grows_entry_by_entry(relation):
    steps = mix(75, (1.0, 20.0), (1e-4, 0.1), (1, 1000), seed=2)
    costs = [grid_epsilon([], steps[:number], DELTA, relation) for number in range(55, 76)]
    assert all(after >= before * (1 - 1e-5) for before, after in pairwise(costs))


@pytest.mark.parametrize("relation", RELATIONS)
def test_order_and_wording_do_not_matter(relation):
    steps = MIXES["many rates"]
    together = grid_epsilon([0.5, 0.1], steps, DELTA, relation)
    assert grid_epsilon([0.5, 0.1], steps[::-1], DELTA, relation) == together
    halves = [Step(mu, rate, half) for mu, rate, count in steps for half in (count // 2, count - count // 2)]
    assert grid_epsilon([0.5, 0.1], halves, DELTA, relation) == together
    # Rate 1 is a Gaussian.
    assert grid_epsilon([0.3, 0.4], steps, DELTA, relation) == grid_epsilon(
        [0.3], [*steps, Step(0.4, 1.0, 1)], DELTA, relation
    )
    whole = grid_epsilon([], [Step(0.1, 1.0, 4), Step(0.3, 1.0, 1)], DELTA, relation)
    assert whole == pytest.approx(gdp_epsilon((2 if relation == "replace_one" else 1) * math.sqrt(0.13), DELTA))


@pytest.mark.parametrize("relation", RELATIONS)
def test_thousands_of_long_runs_stay_finite_and_tight(relation):
    steps = mix(3000, (20.0, 200.0), (1e-4, 1e-3), (1e5, 1e6))
    result = grid_epsilon([], steps, DELTA, relation)
    # So many small losses are a Gaussian: per step, the spread is rate^2 (e^(mu^2) - 1), four times that for an exchange.
    factor = 4 if relation == "replace_one" else 1
    limit = gdp_epsilon(math.sqrt(factor * math.fsum(c * q * q * math.expm1(mu * mu) for mu, q, c in steps)), DELTA)
    assert result == pytest.approx(limit, rel=0.01)
    assert result <= grid_epsilon([], steps, 1e-8, relation) < 3 * result


@pytest.mark.parametrize("relation", RELATIONS)
def test_steps_without_noise_among_others(relation):
    steps = MIXES["few"]
    alone = grid_epsilon([], steps, DELTA, relation)
    silent = Step(NO_NOISE_MU, 1e-8, 100)  # shows a record with probability 1e-6
    assert alone <= grid_epsilon([], [*steps, silent], DELTA, relation) <= alone * 1.05
    assert grid_epsilon([], [*steps, silent._replace(repeats=2000)], DELTA, relation) == math.inf
    assert grid_epsilon([], [silent], DELTA, relation) < 1e-5
    assert grid_epsilon([NO_NOISE_MU], steps, DELTA, relation) <= unsampled_epsilon(
        [NO_NOISE_MU], steps, DELTA, relation
    )


def test_no_allowance_left():
    assert grid_epsilon([], [Step(1.0, 0.01, 10)], 1e-13, "add_remove") == unsampled_epsilon(
        [], [Step(1.0, 0.01, 10)], 1e-13, "add_remove"
    )


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("noise", [0.1, 0.3, 0.5, 1.0, 5.0, 50.0, 250.0])
def test_histograms_of_integers_against_dp_accounting(noise, relation):
    """Wherever their losses lie, on few points or many: never cheaper than dp-accounting by more than its own grid."""
    bound = grid_epsilon([], [], 1e-6, relation, [Cells(noise, 3)])
    one = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        noise, value_discretization_interval=1e-4 * max(bound, 0.1), use_connect_dots=True
    )
    reference = one.self_compose(6 if relation == "replace_one" else 3).get_epsilon_for_delta(1e-6)
    assert reference * (1 - 1e-3) <= bound <= reference * (1 + 2e-2 if noise < 0.5 else 1 + 1e-3)


@pytest.mark.parametrize("noise", [1e3, 1e5])
def test_histograms_with_much_noise_are_next_to_gaussian(noise):
    """Their dots are sums over many integers; together they cost what a Gaussian of the same noise would."""
    bound = grid_epsilon([], [], 1e-5, "add_remove", [Cells(noise, int(noise**2))])
    assert gdp_epsilon(1.0, 1e-5) <= bound <= gdp_epsilon(1.0, 1e-5) * (1 + 2e-3)


def test_histograms_among_others_and_without_noise():
    many = [Step(0.5 + 0.01 * i, 0.01, 3) for i in range(80)]
    alone = grid_epsilon([0.2], many, 1e-5, "add_remove")
    beside = grid_epsilon([0.2], many, 1e-5, "add_remove", [Cells(1e3, 1)])
    assert alone * (1 - 1e-3) <= beside <= alone * (1 + 1e-2)
    assert grid_epsilon([0.2], many, 1e-5, "add_remove", [Cells(2.0, 1)]) > 1.5 * alone
    assert grid_epsilon([], [], 1e-5, "add_remove", [Cells(1 / NO_NOISE_MU, 1)]) == math.inf
    assert grid_epsilon([0.3], [], 1e-5, "replace_one", [Cells(2.0, 0)]) == gdp_epsilon(0.6, 1e-5)


@pytest.mark.parametrize("top", [7.0, 1e4, 1e12])
@pytest.mark.parametrize("cells", [5, 8191, 8192, 8193, 40_000])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 2.0])
def test_epsilon_is_read_off_the_cells_block_by_block_as_with_a_filter_over_all_of_them(cells, delta, top):
    masses = np.random.default_rng(cells).random(cells) * np.geomspace(1, 1e-12, cells) / cells
    size = (top + 1) / cells
    above = np.cumsum(masses[::-1])
    weighed = lfilter([1.0], [1.0, -math.exp(-size)], masses[::-1])
    over = np.flatnonzero(above - weighed > delta)
    last = int(over[0]) - 1 if over.size else cells - 1
    expected = top - size * last + math.log(max((above[last] - delta) / weighed[last], 1e-300))
    assert _read_epsilon(masses, -1.0, top, 0.0, delta) == pytest.approx(expected, rel=1e-12)
