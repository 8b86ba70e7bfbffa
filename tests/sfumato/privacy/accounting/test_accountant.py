"""The accountant against checked numbers, a slow oracle, dp-accounting's own accountant, and the laws it must obey."""

import math
import re
import subprocess
import sys
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, norm

from sfumato.errors import BadInput
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.accountant import (
    NOISE_RANGE,
    Priced,
    cached_prices,
    calibrate,
    calibrate_noise,
    compose_gdp,
    dp_sgd_epsilon,
    epsilon,
    gdp_delta,
    gdp_epsilon,
    poisson_clt,
    priced,
    subsampled_gaussian_closeness,
    subsampled_gaussian_clt,
    subsampled_gaussian_epsilon,
)
from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Event,
    Gaussian,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from tests.vectors import DELTA, VECTORS, facts

RELATIONS = ("add_remove", "replace_one")
OPACUS_PRV, OPACUS_RDP = 10.416, 11.332  # the cross-check of vector 000-P3


def dp_sgd(noise, rate, steps):
    return SubsampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps)


# ------------------------------------------------------------------------------------------------- checked numbers


def test_gdp_vectors():
    inputs, expected, near = facts("gdp-1")
    assert gdp_delta(inputs["mu"], inputs["eps"]) == near(expected["delta"])
    for name in ("gdp-2", "gdp-4"):
        inputs, expected, near = facts(name)
        assert gdp_epsilon(inputs["mu"], inputs["delta"]) == near(expected["eps"])
    inputs, expected, near = facts("gdp-3")
    mu = compose_gdp(inputs["mus"])
    assert mu == near(expected["mu"])
    assert gdp_epsilon(mu, inputs["delta"]) == near(expected["eps"])
    inputs, expected, near = facts("001-P4")
    assert gdp_epsilon(expected["mu"], inputs["delta"]) == near(expected["eps"])


def test_every_checked_number_is_used():
    """Each vector is asked for by its id in a test, here or beside the method that it belongs to."""
    tests = Path(__file__).parents[2].rglob("test_*.py")
    used = {name for path in tests for name in re.findall(r'"(gdp-\d+|\d{3}-P\d+)"', path.read_text(encoding="utf-8"))}
    assert used == set(VECTORS)


def alpha_bar(inputs):
    beta = np.linspace(inputs["beta_start"], inputs["beta_end"], inputs["T"])
    return float(np.cumprod(1 - beta)[inputs["S"] - 1])


def test_dp_sgd_by_accountant_and_relation():
    inputs, expected, near = facts("000-P3")
    run = inputs["sigma"], inputs["q"], inputs["steps"], inputs["delta"]
    assert dp_sgd_epsilon(*run) == near(expected["pld_add_remove"])
    assert dp_sgd_epsilon(*run, relation="replace_one") == near(expected["pld_replace_one"])
    assert dp_sgd_epsilon(*run, accountant="clt") == near(expected["clt"])
    assert dp_sgd_epsilon(*run, accountant="prv") == near(OPACUS_PRV)
    assert dp_sgd_epsilon(*run, accountant="rdp") == near(OPACUS_RDP)


def test_phase_one_images_released_one_by_one():
    """Vector 000-P4: a record is noised and shown in k of N batches, k binomial: delta is the mixture of k-fold GDP."""
    inputs, expected, near = facts("000-P4")
    level = alpha_bar(inputs)
    mu, repeats, rate = 2 * math.sqrt(inputs["d"] * level / (1 - level)), inputs["N"], inputs["p"]
    shown = range(1, 60)

    def delta(eps):
        return sum(binom.pmf(k, repeats, rate) * gdp_delta(math.sqrt(k) * mu, eps) for k in shown)

    exact = brentq(lambda eps: delta(eps) - inputs["delta"], 0, 50)
    assert exact == near(expected["eps_replace_one_alpha_S"])
    assert gdp_epsilon(poisson_clt([mu], rate, repeats), inputs["delta"]) == near(expected["paper_claim_eps"])


def test_delta_floor_of_steps_without_noise():
    inputs, expected, near = facts("000-P4")
    rate, repeats = inputs["p"], inputs["N"]
    floor = -math.expm1(repeats * math.log1p(-rate))
    assert floor == near(expected["add_remove_delta_floor"])
    for relation in RELATIONS:
        for mu in (math.inf, 1e9):
            run = [mu], rate
            assert subsampled_gaussian_epsilon(*run, inputs["delta"], repeats, relation) == math.inf
            assert subsampled_gaussian_epsilon(*run, floor - 1e-6, repeats, relation) == math.inf
            # Above the floor only "the record was never drawn" is left to be learnt: factor (1 - p)^-N at most.
            assert subsampled_gaussian_epsilon(*run, floor + 1e-6, repeats, relation) <= -repeats * math.log1p(-rate)
    # With noise, however little, the true number is finite, and it is no use.
    assert 1e5 < subsampled_gaussian_epsilon([1e3], rate, inputs["delta"], repeats) < math.inf


@pytest.mark.parametrize("name", ["002-P2", "002-P3"])
def test_rapid_noise(name):
    inputs, expected, near = facts(name)
    noise = calibrate_noise(inputs["target_eps"], inputs["delta"], inputs["q"], inputs["steps"])
    assert noise == near(expected["sigma"])
    run = expected["sigma"], inputs["q"], inputs["steps"], inputs["delta"]
    assert dp_sgd_epsilon(*run) == near(inputs["target_eps"])
    assert dp_sgd_epsilon(*run, accountant="clt") == near(expected["eps_clt"])
    assert dp_sgd_epsilon(*run, relation="replace_one") == near(expected["eps_pld_replace_one"])


# ------------------------------------------------------------------------------------------------------ slow oracle


def densities(mu, rate, relation):
    """The worst pairs as densities, every direction, written out once more."""

    def mixture(centre):
        return lambda z: (1 - rate) * norm.pdf(z) + rate * norm.pdf(z - centre)

    if relation == "replace_one":
        return [(mixture(mu), mixture(-mu))]
    return [(mixture(mu), norm.pdf), (norm.pdf, mixture(mu))]


def one_step_delta(mu, rate, eps, relation):
    """Delta of one step: adaptive quadrature of (P - e^eps Q)+, the larger of the directions."""

    def excess(z, p, q):
        return max(0.0, p(z) - math.exp(eps) * q(z))

    cuts = list(pairwise(np.linspace(-mu - 10, mu + 10, 40)))
    return max(
        sum(quad(excess, *cut, args=pair, epsabs=1e-12)[0] for cut in cuts) for pair in densities(mu, rate, relation)
    )


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("mu", "rate", "delta"), [(1.0, 0.5, 1e-5), (2.5, 0.01, 1e-4), (0.3, 0.9, 1e-3), (4.0, 1e-3, 1e-5)]
)
def test_one_step_against_the_oracle(mu, rate, delta, relation):
    certified = subsampled_gaussian_epsilon([mu], rate, delta, relation=relation)
    assert one_step_delta(mu, rate, certified, relation) <= delta * (1 + 1e-6)
    assert one_step_delta(mu, rate, certified * 0.998, relation) > delta


@pytest.mark.parametrize("relation", RELATIONS)
def test_two_different_steps_against_the_oracle(relation):
    """Two steps and one Gaussian, by brute force over a grid of outcomes."""
    one, two, whole, delta = (1.0, 0.3), (2.0, 0.05), 0.8, 1e-4
    events = [dp_sgd(1 / one[0], one[1], 1), dp_sgd(1 / two[0], two[1], 1), Gaussian(noise_multiplier=1 / whole)]
    z = np.linspace(-13, 13, 1301)
    widths = np.full(z.size, z[1] - z[0])
    reach = 2 * whole if relation == "replace_one" else whole
    exact = 0.0
    for first, second in zip(densities(*one, relation), densities(*two, relation), strict=True):
        masses, losses = np.ones(1), np.zeros(1)
        for p, q in (first, second):
            masses = np.outer(masses, p(z) * widths).ravel()
            losses = np.add.outer(losses, np.log(p(z)) - np.log(q(z))).ravel()
        # The Gaussian in closed form, each outcome (loss l, mass m) leaving it epsilon - l to cover.
        masses, losses = np.histogram(losses, 4000, weights=masses)[0], np.histogram_bin_edges(losses, 4000)
        losses = (losses[1:] + losses[:-1]) / 2

        def excess(eps, masses=masses, losses=losses):
            left = eps - losses
            y = left / reach - reach / 2
            return float(masses @ (norm.cdf(-y) - np.exp(left + norm.logcdf(-y - reach))) - delta)

        exact = max(exact, brentq(excess, 0, 40))
    assert epsilon(events, delta, relation) == pytest.approx(exact, rel=1e-3)


def test_opposite_records_are_the_worst_pair_of_an_exchange():
    """No other two directions, in the plane, cost more than +mu against -mu (the module's docstring has the reason)."""
    mu, rate = 1.5, 0.2
    side = np.linspace(-9, 9, 361)
    x, y = np.meshgrid(side, side)
    cell = (side[1] - side[0]) ** 2

    def mixture(length, angle):
        a, b = mu * length * math.cos(angle), mu * length * math.sin(angle)
        return (1 - rate) * norm.pdf(x) * norm.pdf(y) + rate * norm.pdf(x - a) * norm.pdf(y - b)

    for eps in (0.0, 0.5, 2.0):
        delta = [
            float(np.maximum(0, mixture(*v) - math.exp(eps) * mixture(*w)).sum() * cell)
            for v, w in [
                ((1, 0), (1, math.pi)),
                ((1, 0), (1, 2.0)),
                ((1, 0), (0.5, math.pi)),
                ((1, 0), (0, 0)),
                ((0.9, 0), (1, 3)),
            ]
        ]
        assert delta[0] == max(delta)


# ------------------------------------------------------------------------------------- against dp-accounting itself


def reference_epsilon(events, delta, relation):
    """The same events through dp-accounting's PLDAccountant, its own grids and all."""
    names = {"add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace_one": NeighboringRelation.REPLACE_ONE}
    reference = pld_privacy_accountant.PLDAccountant(names[relation], value_discretization_interval=1e-3)
    for event in events:
        gaussian = dp_event.GaussianDpEvent(event.noise_multiplier)
        if isinstance(event, Gaussian):
            reference.compose(gaussian, event.count)
        else:
            reference.compose(dp_event.PoissonSampledDpEvent(event.sample_rate, gaussian), event.steps)
    return reference.get_epsilon(delta)


MIXED = [
    [dp_sgd(1.0, 0.1, 50)],
    [dp_sgd(0.7, 0.5, 20)],
    [dp_sgd(1.5, 0.05, 200), Gaussian(noise_multiplier=4.0, count=3)],
    [dp_sgd(0.8, 0.02, 100), dp_sgd(2.0, 0.3, 40), dp_sgd(0.6, 0.01, 10)],
]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("events", MIXED)
def test_agrees_with_dp_accounting(events, relation):
    assert epsilon(events, DELTA, relation) == pytest.approx(reference_epsilon(events, DELTA, relation), rel=2e-3)


# ------------------------------------------------------------------------------------------- histograms of integers


def exact_discrete_epsilon(noise, cells, delta):
    """Of `cells` composed discrete Gaussians moved by 1: their noises add up to an integer that tells all, summed directly."""
    reach = math.ceil(14 * noise) + 2
    mass = np.exp(-np.square(np.arange(-reach, reach + 1) / noise) / 2)
    total = np.ones(1)
    for _ in range(cells):
        total = np.convolve(total, mass / mass.sum())
    losses = (np.arange(-cells * reach, cells * reach + 1) + cells / 2) / noise**2
    return brentq(lambda eps: total @ np.maximum(0, -np.expm1(np.minimum(eps - losses, 0))) - delta, 0, losses[-1])


def histogram(noise):
    return DiscreteHistogram(noise_multiplier=noise)


@pytest.mark.parametrize(("relation", "cells"), [("add_remove", 1), ("replace_one", 2)])
@pytest.mark.parametrize("noise", [0.3, 0.5, 1.0, 2.3, 10.0, 120.0])
def test_a_histogram_of_integers_by_direct_summation(noise, relation, cells):
    for delta in (DELTA, 1e-9):
        exact = exact_discrete_epsilon(noise, cells, delta)
        assert exact * (1 - 1e-9) <= epsilon([histogram(noise)], delta, relation) <= exact * (1 + 2e-3)
    # Three of them are as many more dimensions.
    together = epsilon([histogram(noise)] * 3, DELTA, relation)
    assert together == pytest.approx(exact_discrete_epsilon(noise, 3 * cells, DELTA), rel=1e-3)


def test_a_histogram_of_integers_may_cost_more_than_a_gaussian_of_its_noise():
    assert epsilon([histogram(2.5)], DELTA) < gdp_epsilon(0.4, DELTA) * 0.995
    assert epsilon([histogram(2.0)], DELTA) > gdp_epsilon(0.5, DELTA) * 1.005


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_histogram_beside_everything_else_against_dp_accounting(relation):
    interval, names = 1e-3, {"add_remove": "ADD_OR_REMOVE_ONE", "replace_one": "REPLACE_ONE"}
    events = [histogram(3.0), dp_sgd(1.2, 0.05, 100), Gaussian(noise_multiplier=4.0), histogram(5.0)]
    options = {"value_discretization_interval": interval, "neighboring_relation": NeighboringRelation[names[relation]]}
    total = pld.from_gaussian_mechanism(1.2, sampling_prob=0.05, **options).self_compose(100)
    total = total.compose(pld.from_gaussian_mechanism(4.0, **options))
    for noise in (3.0, 5.0):
        one = pld.from_discrete_gaussian_mechanism(noise, value_discretization_interval=interval, use_connect_dots=True)
        total = total.compose(one.self_compose(2 if relation == "replace_one" else 1))
    assert epsilon(events, DELTA, relation) == pytest.approx(total.get_epsilon_for_delta(DELTA), rel=1e-3)


def test_calibration_beside_a_histogram_and_of_one():
    def plan(noise):
        return [histogram(4.0), dp_sgd(noise, 0.01, 500)]

    noise = calibrate(2.0, DELTA, plan, "replace_one")
    assert 2.0 * (1 - 1e-3) <= epsilon(plan(noise), DELTA, "replace_one") <= 2.0
    noise = calibrate(0.01, DELTA, lambda noise: [histogram(noise)])
    assert 0.01 * (1 - 1e-3) <= epsilon([histogram(noise)], DELTA) <= 0.01
    with pytest.raises(BadInput, match="out of reach"):
        calibrate(1.0, DELTA, lambda noise: [histogram(0.5), dp_sgd(noise, 0.01, 500)])


# ------------------------------------------------------------------------------------------------ who computed it


@pytest.mark.parametrize(
    ("events", "name"),
    [
        ([], "closed-form GDP"),
        ([Gaussian(noise_multiplier=1.0, count=9), NoisedRecords(noise_multiplier=2.0)], "closed-form GDP"),
        ([dp_sgd(2.0, 1.0, 9)], "closed-form GDP"),
        ([dp_sgd(1.0, 0.1, 50)], f"dp-accounting {version('dp-accounting')} PLD"),
        ([histogram(2.0), Gaussian(noise_multiplier=3.0)], f"dp-accounting {version('dp-accounting')} PLD"),
        ([dp_sgd(1.0 + 0.1 * i, 0.1, 5) for i in range(9)], "Sfumato grids"),
        ([dp_sgd(40.0, 0.001, 5)], "Sfumato grids"),
        ([dp_sgd(0.5, 0.9, 200)], "Sfumato grids"),
        ([Uncertified(reason="test")], "none"),
    ],
)
def test_each_price_names_what_computed_it(events, name):
    result = priced(events, DELTA, "replace_one")
    assert result.accountant == name
    assert result.epsilon == epsilon(events, DELTA, "replace_one")


# ------------------------------------------------------------------------------------------------------------- laws


@given(mu=st.floats(-6, 4).map(lambda x: 10**x), delta=st.floats(-12, -0.1).map(lambda x: 10**x))
@settings(max_examples=200, deadline=None)
def test_gdp_there_and_back(mu, delta):
    eps = gdp_epsilon(mu, delta)
    assert math.isfinite(eps) and eps >= 0
    if eps > 0:
        assert gdp_delta(mu, eps) == pytest.approx(delta, rel=1e-6)
    else:
        assert gdp_delta(mu, 0.0) <= delta


def test_gdp_ends():
    assert gdp_delta(0.0, 0.0) == 0.0 and gdp_delta(math.inf, 5.0) == 1.0 and gdp_delta(1.0, math.inf) == 0.0
    assert gdp_delta(1e-6, 0.0) == pytest.approx(1e-6 / math.sqrt(2 * math.pi), rel=1e-8)
    assert gdp_delta(1e4, 5e7) == pytest.approx(0.5, rel=1e-3)
    assert gdp_epsilon(0.0, DELTA) == 0.0 and gdp_epsilon(1e-6, DELTA) == 0.0
    assert gdp_epsilon(1e200, DELTA) == gdp_epsilon(math.inf, DELTA) == math.inf
    assert compose_gdp([]) == 0.0


def test_limit_formulas_do_not_overflow():
    assert math.isfinite(poisson_clt([37.0], 1e-3, 10))
    assert poisson_clt([40.0], 1e-3) == math.inf
    assert poisson_clt([1e-160, 0.0], 0.5, 4) == pytest.approx(1e-160)
    assert poisson_clt([], 0.5) == subsampled_gaussian_clt([], 0.5) == subsampled_gaussian_clt([0.0, 0.0], 0.5) == 0.0
    assert subsampled_gaussian_clt([1e-30], 0.25, 9) == pytest.approx(
        subsampled_gaussian_clt([1e-6], 0.25, 9) * 1e-24, rel=1e-3
    )
    for mu in (1e3, 1e90):
        assert subsampled_gaussian_clt([mu], 1e-4, 10_000) == pytest.approx(2.0, rel=1e-2)


def slow_moments(mu, rate):
    """kl, kappa_2 and kappa_3 of C_p(G_mu) by their definitions (Dong et al. 2022, section 3.2), over the levels of a test."""
    fixed = norm.cdf(-mu / 2)
    middle = rate * fixed + (1 - rate) * (1 - fixed)

    def loss(level):
        return math.log(rate * math.exp(-mu * norm.ppf(level) - mu * mu / 2) + 1 - rate)

    def integral(of):
        """Over [0, x*], where log|f'| is the loss, and over [f(x*), 1], where the inverse has its negative at f'."""
        edges = [0.0, *(fixed * 10.0**-k for k in range(12, 0, -1)), fixed]
        first = sum(quad(lambda a: of(loss(a)), *ends, epsabs=0, epsrel=1e-9)[0] for ends in pairwise(edges))
        third = sum(
            quad(lambda a: of(-loss(a)) * math.exp(loss(a)), *ends, epsabs=0, epsrel=1e-9)[0]
            for ends in pairwise(edges)
        )
        return first + third + of(0.0) * (middle - fixed)

    kl = -integral(lambda of: of)
    return kl, integral(lambda of: of**2), integral(lambda of: abs(of + kl) ** 3)


@pytest.mark.parametrize(("mus", "rate", "repeats"), [([0.3], 0.5, 7), ([1.0, 1.0, 0.2], 0.1, 40), ([2.5], 0.01, 300)])
def test_the_distance_from_the_limit_by_its_definition(mus, rate, repeats):
    kl, kappa, third = np.transpose([slow_moments(mu, rate) for mu in mus])
    close = subsampled_gaussian_closeness(mus, rate, repeats)
    assert close.kappa_3 == pytest.approx(repeats * third.sum(), rel=1e-5)
    gamma = 0.56 * repeats * third.sum() / (repeats * (kappa - kl**2).sum()) ** 1.5
    assert close.gamma == pytest.approx(gamma, rel=1e-5) and close.holds == (gamma < 0.5)


def test_a_plain_gaussian_has_the_moments_of_a_normal():
    """At rate 1 the loss is N(mu^2 / 2, mu^2), whose third absolute central moment is mu^3 sqrt(8 / pi)."""
    close = subsampled_gaussian_closeness([0.5, 2.0], 1.0, 3)
    assert close.kappa_3 == pytest.approx(3 * (0.5**3 + 2.0**3) * math.sqrt(8 / math.pi), rel=1e-8)


def test_more_and_smaller_steps_lie_nearer_to_the_limit():
    """As the square root of their number; and one record that is drawn and shown is far from it at any size of mu."""
    one, four = (subsampled_gaussian_closeness([0.5], 0.01, repeats) for repeats in (100, 400))
    assert one.gamma == pytest.approx(2 * four.gamma) and four.kappa_3 == pytest.approx(4 * one.kappa_3)
    shown = [subsampled_gaussian_closeness([mu], 2e-5, 10_000) for mu in (258.0, 1e50, 1e100)]
    assert all(close.gamma == pytest.approx(0.56 / math.sqrt(0.2), rel=2e-3) and not close.holds for close in shown)
    assert shown[0].kappa_3 > 1e12 and shown[2].kappa_3 == math.inf
    assert subsampled_gaussian_closeness([], 0.5) == subsampled_gaussian_closeness([0.0], 0.5) == (0.0, 0.0)
    assert math.isfinite(subsampled_gaussian_closeness([1e-120], 0.5).gamma)


noises, rates = st.floats(0.6, 5.0), st.floats(0.001, 1.0)
relations = st.sampled_from(RELATIONS)


@given(noise=noises, rate=rates, steps=st.integers(1, 300), relation=relations)
@settings(max_examples=6, deadline=None)
def test_what_costs_more_costs_more(noise, rate, steps, relation):
    base = dp_sgd_epsilon(noise, rate, steps, DELTA, relation)
    slack = 1e-3 * base + 1e-6  # the grid moves with the parameters
    assert dp_sgd_epsilon(noise * 1.1, rate, steps, DELTA, relation) <= base + slack
    assert dp_sgd_epsilon(noise, rate * 0.9, steps, DELTA, relation) <= base + slack
    assert base <= dp_sgd_epsilon(noise, rate, steps + 1, DELTA, relation) + slack
    assert dp_sgd_epsilon(noise, rate, steps, DELTA * 2, relation) <= base + slack
    assert (
        dp_sgd_epsilon(noise, rate, steps, DELTA, "add_remove")
        <= dp_sgd_epsilon(noise, rate, steps, DELTA, "replace_one") + slack
    )
    assert base <= gdp_epsilon((2 if relation == "replace_one" else 1) * math.sqrt(steps) / noise, DELTA) + slack


@given(data=st.data(), relation=relations)
@settings(max_examples=5, deadline=None)
def test_order_does_not_matter(data, relation):
    events = [*MIXED[2], *MIXED[3], dp_sgd(1.5, 0.05, 7)]
    shuffled = data.draw(st.permutations(events))
    assert epsilon(shuffled, DELTA, relation) == epsilon(events, DELTA, relation)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_same_thing_said_otherwise(relation):
    together = epsilon([dp_sgd(1.25, 0.2, 30)], DELTA, relation)
    assert epsilon([dp_sgd(1.25, 0.2, 1)] * 30, DELTA, relation) == together
    assert dp_sgd_epsilon(1.25, 0.2, 30, DELTA, relation) == together
    assert subsampled_gaussian_epsilon([0.8] * 3, 0.2, DELTA, 10, relation) == together
    # Rate 1 is no sampling, and Gaussians alone are exact.
    mu = (2 if relation == "replace_one" else 1) * math.sqrt(9 / 4 + 2)
    both = [dp_sgd(2.0, 1.0, 9), Gaussian(noise_multiplier=1.0, count=2)]
    assert epsilon(both, DELTA, relation) == gdp_epsilon(mu, DELTA)


def test_nothing_costs_nothing_and_uncertified_everything():
    nothing = [dp_sgd(1.0, 0.1, 0), Gaussian(noise_multiplier=1.0, count=0)]
    for relation in RELATIONS:
        assert epsilon([], DELTA, relation) == epsilon(nothing, DELTA, relation) == 0.0
        assert epsilon([*MIXED[0], Uncertified(reason="test")], DELTA, relation) == math.inf
    for name in ("pld", "prv", "rdp", "clt"):
        assert dp_sgd_epsilon(1.0, 0.1, 0, DELTA, accountant=name) == 0.0
    assert subsampled_gaussian_epsilon([0.0], 0.1, DELTA) == subsampled_gaussian_epsilon([], 0.1, DELTA) == 0.0
    assert subsampled_gaussian_epsilon([1.0], 1e-7, DELTA) == 0.0


@pytest.mark.parametrize(("noise", "steps", "delta"), [(1.0, 1, 1e-10), (30.0, 1000, 1e-9), (300.0, 100_000, 1e-8)])
def test_rounding_noise_is_paid_for(noise, steps, delta):
    """A rate next to 1 goes through the grids; it must not come out below the exact Gaussian."""
    exact = gdp_epsilon(math.sqrt(steps) / noise, delta)
    assert exact * (1 - 1e-6) <= dp_sgd_epsilon(noise, 1 - 1e-13, steps, delta) <= exact


@pytest.mark.parametrize("relation", RELATIONS)
def test_extremes_are_answered(relation):
    huge = epsilon([dp_sgd(0.05, 0.3, 400), Gaussian(noise_multiplier=0.02)], DELTA, relation)
    assert 1e3 < huge < math.inf
    assert 0 < dp_sgd_epsilon(1e4, 1e-4, 10**6, 1e-9, relation) < 1e-2
    assert 0 <= dp_sgd_epsilon(1e8, 1e-8, 10, DELTA, relation) < 1e-9
    assert subsampled_gaussian_epsilon([500.0, 0.1], 1e-3, DELTA, 100, relation) > 1e5
    assert 0 < dp_sgd_epsilon(1.0, 0.5, 10, 1e-14, relation) < math.inf
    assert epsilon([Gaussian(noise_multiplier=1e-200), dp_sgd(1.0, 0.1, 1)], DELTA, relation) == math.inf
    assert 5e15 < epsilon([Gaussian(noise_multiplier=1e-8), dp_sgd(1.0, 0.1, 1)], DELTA, relation) < math.inf


# ------------------------------------------------------------------------------------------------------ calibration


@given(
    target=st.floats(-1.5, 1.3).map(lambda x: 10**x),
    rate=st.floats(0.002, 1.0),
    steps=st.integers(1, 2000),
    relation=relations,
)
@settings(max_examples=10, deadline=None)
def test_calibration_never_exceeds_and_comes_close(target, rate, steps, relation):
    noise = calibrate_noise(target, DELTA, rate, steps, relation)
    spent = dp_sgd_epsilon(noise, rate, steps, DELTA, relation)
    floor_met = noise == NOISE_RANGE[0]
    assert spent <= target
    assert (
        floor_met
        or spent >= target * 0.998
        or dp_sgd_epsilon(noise * (1 - 1e-6), rate, steps, DELTA, relation) > target
    )


@pytest.mark.parametrize("noise", [1.0, 1.234567, 0.000123456789, 999999.5, 98765432.1, 1.00000000001, 0.3])
def test_a_calibrated_noise_is_rounded_up_so_that_the_last_bits_of_a_float_plan_no_other_run(noise):
    up = accountant._rounded_up(noise)
    assert noise <= up <= noise * (1 + 1e-5) and float(f"{up:.5e}") == up == accountant._rounded_up(up)
    beside = math.nextafter(accountant._rounded_up(noise) * (1 - 1e-9), 0)
    assert accountant._rounded_up(beside) == up


def test_calibration_beside_a_fixed_part():
    fixed = Gaussian(noise_multiplier=3.0)
    noise = calibrate(3.0, DELTA, lambda noise: [fixed, dp_sgd(noise, 0.05, 300)])
    assert 3.0 * 0.999 <= epsilon([fixed, dp_sgd(noise, 0.05, 300)], DELTA) <= 3.0
    with pytest.raises(BadInput, match=r"epsilon = 1 is out of reach.*raise epsilon"):
        calibrate(1.0, DELTA, lambda noise: [fixed, dp_sgd(noise, 0.05, 300)])
    with pytest.raises(BadInput, match="out of reach"):
        calibrate(1.0, DELTA, lambda noise: [Uncertified(reason="test")])


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("share", [0.8, 0.99])
def test_an_answer_that_costs_more_than_the_quick_grids_say_is_raised_until_it_certifies(monkeypatch, share, relation):
    quick = accountant._by_grids
    monkeypatch.setattr(accountant, "_by_grids", lambda *terms: share * quick(*terms))
    noise = calibrate_noise(3.0, DELTA, 0.1, 100, relation)
    assert 0.85 * 3.0 < dp_sgd_epsilon(noise, 0.1, 100, DELTA, relation) <= 3.0


def test_calibration_of_what_is_free_takes_the_least_noise():
    assert calibrate_noise(1.0, DELTA, 1e-9, 10) == NOISE_RANGE[0]
    assert calibrate_noise(1.0, DELTA, 0.1, 0) == NOISE_RANGE[0]


# -------------------------------------------------------------------------------------------------------- bad input


def test_an_enormous_mu_has_an_enormous_epsilon_at_any_delta():
    for delta in (0.3, 60**-1.1, 1e-5, 1e-12):
        for mu in (1e10, 7.7e15, 1e40):
            assert gdp_epsilon(mu, delta) == pytest.approx(mu * mu / 2, rel=1e-5)


class Unheard(Event):
    """An event that the accountant was never told about."""


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (lambda: gdp_epsilon(1.0, 0.0), "delta = 0.0"),
        (lambda: gdp_epsilon(1.0, 1.0), "delta = 1.0"),
        (lambda: gdp_epsilon(-1.0, 0.1), "mu = -1.0"),
        (lambda: gdp_delta(1.0, -0.1), "epsilon = -0.1"),
        (lambda: gdp_delta(math.nan, 0.1), "mu = nan"),
        (lambda: epsilon([], math.nan), "delta = nan"),
        (lambda: epsilon([], DELTA, "swap"), "relation = 'swap'"),
        (lambda: epsilon([Unheard()], DELTA), "Unheard"),
        (lambda: dp_sgd_epsilon(0.0, 0.1, 1, DELTA), "noise_multiplier = 0.0"),
        (lambda: dp_sgd_epsilon(1.0, 0.0, 1, DELTA), "sample_rate = 0.0"),
        (lambda: dp_sgd_epsilon(1.0, 1.5, 1, DELTA), "sample_rate = 1.5"),
        (lambda: dp_sgd_epsilon(1.0, 0.5, -1, DELTA), "steps = -1"),
        (lambda: dp_sgd_epsilon(1.0, 0.5, 1, DELTA, accountant="guess"), "accountant = 'guess'"),
        (lambda: dp_sgd_epsilon(1.0, 0.5, 1, DELTA, "replace_one", "prv"), "accountant = 'prv'.*use 'pld'"),
        (lambda: subsampled_gaussian_epsilon([1.0, -2.0], 0.5, DELTA), "mus = -2.0"),
        (lambda: subsampled_gaussian_epsilon([1.0], 0.5, DELTA, 1.5), "repeats = 1.5"),
        (lambda: subsampled_gaussian_clt([math.inf], 0.5), "mus up to inf"),
        (lambda: subsampled_gaussian_closeness([math.inf], 0.5), "mus up to inf"),
        (lambda: subsampled_gaussian_closeness([1.0], 0.0), "sample_rate = 0.0"),
        (lambda: calibrate_noise(0.0, DELTA, 0.1, 10), "epsilon = 0.0"),
        (lambda: calibrate_noise(math.inf, DELTA, 0.1, 10), "epsilon = inf"),
        (lambda: calibrate_noise(1.0, 2.0, 0.1, 10), "delta = 2.0"),
    ],
)
def test_bad_input_is_named(call, culprit):
    with pytest.raises(BadInput, match=culprit) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_quiet_import():
    heavy = "{'torch', 'opacus', 'dp_accounting', 'scipy', 'mlflow', 'prefect'}"
    code = f"import sys, sfumato.privacy.accounting.accountant; print({heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


def test_kept_prices_serve_where_they_are_asked_for_and_nowhere_else():
    events, prices = [SubsampledGaussian(noise_multiplier=2, sample_rate=0.1, steps=50)], {}
    true = priced(events, 1e-5)
    with cached_prices(prices):
        assert priced(events, 1e-5) == true
        (name,) = prices
        prices[name] = Priced(0.25, "kept")
        assert priced(events, 1e-5) == Priced(0.25, "kept")
        others = [priced(events, 1e-4), priced(events, 1e-5, "replace_one"), priced(events * 2, 1e-5)]
        assert "kept" not in {other.accountant for other in others} and len(prices) == 4
    assert priced(events, 1e-5) == true, "who binds computes"


# --- a curve ----------------------------------------------------------------------------------------------------------

DELTAS = (1e-9, 1e-6, 1e-3, 1e-2)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_one_distribution_answers_every_delta_of_a_curve_as_each_would_be_priced(relation, monkeypatch):
    events = [
        DiscreteHistogram(noise_multiplier=6.0),
        SubsampledGaussian(noise_multiplier=2.7, sample_rate=0.5, steps=90),
    ]
    each = [epsilon(events, delta, relation) for delta in DELTAS]
    own = epsilon(events, DELTA, relation)
    monkeypatch.setattr(accountant, "_direct", lambda *_: pytest.fail("composed again"))
    *at_deltas, at_own = accountant.curve(events, [*DELTAS, DELTA], relation, own=DELTA)
    assert at_deltas == pytest.approx(each, rel=2e-4) and at_own == own


@pytest.mark.parametrize(
    "events",
    [
        [],
        [Gaussian(noise_multiplier=2.0, count=3)],
        [Uncertified(reason="no noise"), Gaussian(noise_multiplier=2.0)],
        [SubsampledGaussian(noise_multiplier=1 + 0.1 * number, sample_rate=0.01, steps=10) for number in range(12)],
    ],
)
def test_a_curve_of_what_dp_accounting_does_not_serve_is_priced_delta_by_delta(events):
    assert accountant.curve(events, DELTAS, "add_remove", own=DELTA) == tuple(epsilon(events, one) for one in DELTAS)


# Delta at epsilon 0: the distance of the worst pair, which odds come from


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("noises", [(2.0,), (3.0, 0.7), (40.0,)])
def test_of_gaussians_the_delta_at_epsilon_0_is_exact(noises, relation):
    mu = math.hypot(*(1 / noise for noise in noises)) * (2 if relation == "replace_one" else 1)
    events = [Gaussian(noise_multiplier=noise) for noise in noises]
    at_zero = accountant.delta_at_zero(events, relation, own=1e-5)
    assert at_zero == (pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-12), accountant.CLOSED_FORM)


@pytest.mark.parametrize("own_grids", [False, True])
def test_of_one_sampled_step_it_is_the_rate_times_the_gaussians_and_never_below(own_grids, monkeypatch):
    if own_grids:
        monkeypatch.setattr(accountant, "_is_direct", lambda *_: False)
    accountant._at_zero.cache_clear()
    at_zero = accountant.delta_at_zero(
        [SubsampledGaussian(noise_multiplier=0.8, sample_rate=0.3, steps=1)], "add_remove", own=1e-5
    )
    exact = 0.3 * math.erf(1 / 0.8 / math.sqrt(8))
    assert exact <= at_zero.delta <= exact * 1.002
    assert at_zero.accountant == (accountant.OWN_GRIDS if own_grids else accountant.dp_accounting_name())
    accountant._at_zero.cache_clear()


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_own_grids_give_hardly_more_than_dp_accounting(relation, monkeypatch):
    events = [
        SubsampledGaussian(noise_multiplier=2.5, sample_rate=0.5, steps=150),
        DiscreteHistogram(noise_multiplier=6.0),
        Gaussian(noise_multiplier=6.0),
    ]
    direct = accountant.delta_at_zero(events, relation, own=1e-5)
    monkeypatch.setattr(accountant, "_is_direct", lambda *_: False)
    accountant._at_zero.cache_clear()
    own = accountant.delta_at_zero(events, relation, own=1e-5)
    accountant._at_zero.cache_clear()
    assert direct.accountant != own.accountant and direct.delta <= own.delta * (1 + 1e-9) <= direct.delta * 1.001


def test_of_a_discrete_histogram_it_is_the_mass_at_one_integer():
    weights = [math.exp(-(n**2) / 2 / 3.0**2) for n in range(-60, 61)]
    exact = max(weights) / sum(weights)  # two of them, one apart, differ by their largest mass
    at_zero = accountant.delta_at_zero([DiscreteHistogram(noise_multiplier=3.0)], "add_remove", own=1e-5)
    assert exact <= at_zero.delta * (1 + 1e-9) <= exact * 1.005


def test_no_events_tell_nothing_and_one_that_cannot_be_certified_everything():
    assert accountant.delta_at_zero([], "add_remove", own=1e-5).delta == 0
    worst = accountant.delta_at_zero([Uncertified(reason="a test")], "add_remove", own=1e-5)
    assert worst == (1.0, accountant.NOBODY)


def test_it_lies_between_what_the_curve_allows_at_other_deltas():
    """Any (epsilon, delta) bounds it by (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), and it is at least the delta of any epsilon."""
    events, deltas = [SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=500)], (1e-6, 1e-4, 1e-2)
    at_zero = accountant.delta_at_zero(events, "add_remove", own=1e-5).delta
    for delta, spent in zip(deltas, accountant.curve(events, deltas, "add_remove", own=1e-5), strict=True):
        assert delta <= at_zero <= (math.expm1(spent) + 2 * delta) / (math.exp(spent) + 1) * 1.001
