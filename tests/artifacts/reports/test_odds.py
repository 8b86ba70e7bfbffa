"""Odds from deltas: what a (10, 1e-5) Gaussian really allows, and what its epsilon alone would."""

import math

import pytest

from artifacts.reports.odds import best_guess, best_guess_by, percent
from sfumato.privacy.accounting.accountant import delta_at_zero, gdp_epsilon
from sfumato.privacy.accounting.events import Gaussian

MU = 2.0004456204305803
"""Of the Gaussian that is (10, 1e-5)-differentially private."""


def test_a_gaussian_at_epsilon_10_is_guessed_84_percent_and_not_almost_always():
    assert gdp_epsilon(MU, 1e-5) == pytest.approx(10, abs=1e-9)
    curve = delta_at_zero([Gaussian(noise_multiplier=1 / MU)], "add_remove", own=1e-5)
    assert best_guess(curve.delta) == pytest.approx(0.5 + math.erf(MU / math.sqrt(8)) / 2, rel=1e-12)
    assert curve.accountant == "closed-form GDP" and percent(best_guess(curve.delta)) == "84.2 %"
    assert percent(best_guess_by(10, 1e-5), up=False) == "99.995 %"


@pytest.mark.parametrize(
    ("epsilon", "delta", "share"), [(0, 0, 0.5), (0, 0.2, 0.6), (math.log(3), 0, 0.75), (math.inf, 0, 1)]
)
def test_one_epsilon_with_its_delta_bounds_guesses_too(epsilon, delta, share):
    assert best_guess_by(epsilon, delta) == pytest.approx(share)


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.5, "50.0 %"), (0.8413, "84.2 %"), (0.99995460, "99.996 %"), (0.999, "99.9 %"), (1.0, "100 %")],
)
def test_percent_is_rounded_up_and_is_100_only_where_it_is_so(share, shown):
    assert percent(share) == shown
