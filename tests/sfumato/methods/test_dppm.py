"""DPPM's randomised response against the checked numbers and exact fractions, and the certificate that there is not."""

import math
from fractions import Fraction

import pytest

from sfumato.errors import BadInput
from sfumato.methods import dppm
from sfumato.privacy import accountant
from tests.vectors import facts


@pytest.mark.parametrize("name", ["004-P1", "004-P2"])
def test_the_checked_probabilities(name):
    inputs, expected, near = facts(name)
    keep, other = dppm.response_probabilities(inputs["eps"], inputs["k"])
    assert (keep, other) == (near(expected["p_keep"]), near(expected["p_other"]))


@pytest.mark.parametrize("k", [2, 3, 5, 10, 20, 1000])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 0.1, 1.0, 5.0, 20.0, 100.0])
def test_eq_6_in_exact_fractions(epsilon, k):
    grown = Fraction(math.exp(epsilon))
    keep, other = dppm.response_probabilities(epsilon, k)
    assert keep == pytest.approx(float(grown / (grown + k - 1)), rel=1e-12)
    assert other == pytest.approx(float(1 / (grown + k - 1)), rel=1e-12)
    assert keep + (k - 1) * other == pytest.approx(1, rel=1e-12)
    assert type(keep) is type(other) is float


def test_nothing_overflows():
    assert dppm.response_probabilities(700.0, 5) == pytest.approx((1.0, math.exp(-700)))
    for huge in (1e4, 1e300, math.inf):
        assert dppm.response_probabilities(huge, 5) == (1.0, 0.0)


def test_the_claim_is_the_epsilon_of_the_response():
    for epsilon in (1, 10.0):
        keep, other = dppm.response_probabilities(epsilon, 10)
        assert dppm.claim(epsilon).epsilon == pytest.approx(math.log(keep / other), rel=1e-12)
    assert "Theorem 1" in dppm.claim(1.0).source


def test_there_is_no_certificate():
    inputs, expected, _ = facts("004-P3")
    assert not expected["certified"] and expected["eps_training_data"] == "infinity"
    assert dppm.claim(inputs["eps"]).epsilon == inputs["eps"]
    for relation in ("add_remove", "replace_one"):
        assert accountant.epsilon([dppm.EVENT], 1e-5, relation) == math.inf
    assert "without looking at the data" in dppm.EVENT.reason


def test_the_number_of_the_promise():
    inputs, _, _ = facts("004-P1")
    assert f"{dppm.response_probabilities(inputs['eps'], inputs['k'])[0]:.3f}" in dppm.PROMISE


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (lambda: dppm.response_probabilities(-0.1, 5), "epsilon = -0.1: must be 0 or more"),
        (lambda: dppm.response_probabilities(math.nan, 5), "epsilon = nan"),
        (lambda: dppm.response_probabilities(1.0, 1), "k = 1: must be 2 or more"),
        (lambda: dppm.response_probabilities(1.0, 2.5), "k = 2.5"),
        (lambda: dppm.claim(-1.0), "epsilon = -1.0"),
    ],
)
def test_bad_input_is_named_in_one_line(call, culprit):
    with pytest.raises(BadInput, match=culprit) as refusal:
        call()
    assert "\n" not in str(refusal.value)
