"""What an event costs under each relation, by its own words and closed forms."""

import math

import numpy as np
import pytest

from sfumato.privacy.accounting.accountant import epsilon, gdp_epsilon
from sfumato.privacy.accounting.events import Gaussian, Histogram, NoisedRecords

DELTA = 1e-5


@pytest.mark.parametrize("noise", [0.7, 3.0, 40.0])
@pytest.mark.parametrize(("relation", "apart"), [("add_remove", 1.0), ("replace_one", math.sqrt(2))])
def test_a_histogram_costs_an_exchange_the_distance_of_two_corners(relation, apart, noise):
    """A record adds a corner of the simplex, 0 and 1; without one the counts are what they were."""
    corners = np.eye(4)
    moved = [corner - other for corner in corners for other in (corners if relation == "replace_one" else [0.0])]
    assert max(float(np.linalg.norm(each)) for each in moved) == pytest.approx(apart)
    event = Histogram(noise_multiplier=noise)
    assert epsilon([event], DELTA, relation) == pytest.approx(gdp_epsilon(apart / noise, DELTA), rel=1e-9)
    beside = [event, Gaussian(noise_multiplier=2.0, count=3)]
    of_gaussian = (2.0 if relation == "replace_one" else 1.0) * math.sqrt(3) / 2.0
    both = gdp_epsilon(math.hypot(apart / noise, of_gaussian), DELTA)
    assert epsilon(beside, DELTA, relation) == pytest.approx(both, rel=1e-9)


@pytest.mark.parametrize("noise", [0.7, 3.0, 40.0])
def test_noised_records_cost_an_exchange_two_norms_and_nobody_certifies_a_removal(noise):
    event = NoisedRecords(noise_multiplier=noise)
    assert event.uncertified("replace_one") == ""
    assert epsilon([event], DELTA, "replace_one") == pytest.approx(gdp_epsilon(2 / noise, DELTA), rel=1e-9)
    assert "show how many there are" in event.uncertified("add_remove")
    assert epsilon([event], DELTA, "add_remove") == math.inf
    assert epsilon([Gaussian(noise_multiplier=50.0), event], DELTA, "add_remove") == math.inf


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("kind", [Gaussian, Histogram, NoisedRecords])
def test_noise_of_0_hides_nobody(kind, relation):
    event = kind(noise_multiplier=0.0)
    assert "nothing is noised" in event.uncertified(relation) and epsilon([event], DELTA, relation) == math.inf
