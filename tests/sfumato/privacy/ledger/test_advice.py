"""What is advised fits, hardly anything less would, and nothing is advised where nothing fits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.privacy.accounting.events import DiscreteHistogram, Gaussian, SubsampledGaussian, Uncertified
from sfumato.privacy.ledger.advice import what_fits


def cost(events):
    return sum(getattr(e, "steps", getattr(e, "count", 0)) / e.noise_multiplier**2 for e in events)


def dp_sgd(noise=1.0, steps=100):
    return SubsampledGaussian(noise_multiplier=noise, sample_rate=0.1, steps=steps)


def advice(planned, spent=0.0, limit=10.0):
    return what_fits(planned, cost, lambda events: spent + cost(events), limit)


def test_a_smaller_epsilon_and_the_noise_that_it_means():
    assert advice([dp_sgd()]) == "--epsilon 9.95 (noise multiplier 3.17 instead of 1)"
    assert advice([dp_sgd()], spent=6.0) == "--epsilon 3.98 (noise multiplier 5.01 instead of 1)"


def test_fewer_steps_are_no_advice_as_their_noise_is_calibrated_to_the_same_epsilon():
    for planned in ([dp_sgd()], [Gaussian(noise_multiplier=0.5, count=5)]):
        assert not {"steps", "queries"} & set(advice(planned).split())


def test_the_other_events_stay_as_they_are():
    assert advice([Gaussian(noise_multiplier=0.5), dp_sgd()]).endswith("(noise multiplier 4.09 instead of 1)")
    assert advice([Gaussian(noise_multiplier=0.3), dp_sgd()]) == ""


def test_a_query_alone_is_advised_too():
    assert advice([Gaussian(noise_multiplier=0.5, count=5)]).endswith("(noise multiplier 0.708 instead of 0.5)")


def test_a_histogram_of_integers_is_advised_too():
    def dear(events):
        return sum(20 / e.noise_multiplier**2 for e in events)

    stated = what_fits([DiscreteHistogram(noise_multiplier=1.0)], dear, dear, 5.0)
    assert stated == "--epsilon 4.95 (noise multiplier 2.01 instead of 1)"


def test_what_no_noise_helps_gets_no_advice():
    assert advice([dp_sgd()], spent=10.0) == ""
    assert advice([Uncertified(reason="a leak"), dp_sgd()]) == "" and advice([]) == ""


@given(noise=st.floats(0.1, 10), steps=st.integers(1, 500), spent=st.floats(0, 9), limit=st.floats(9.5, 50))
def test_advice_always_fits(noise, steps, spent, limit):
    planned = [dp_sgd(noise, steps)]
    if spent + cost(planned) <= limit:
        return
    stated = advice(planned, spent, limit)
    more = float(stated.split("noise multiplier ")[1].split()[0])
    assert spent + steps / more**2 <= limit * (1 + 1e-9) and more <= 1.02 * math.sqrt(steps / (limit - spent))


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_that_is_spent(limit):
    assert advice([dp_sgd()], limit=limit) == ""
