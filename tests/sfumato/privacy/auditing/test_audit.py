"""The one-run audit: the formula against a slow oracle and known values, and its promise on simulated mechanisms."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.special import expit

from sfumato.errors import BadInput
from sfumato.evaluation.copies import check_copies
from sfumato.evaluation.membership import membership
from sfumato.privacy.auditing.audit import GUESS_SHARES, chance, epsilon_lower_bound, refuted_epsilon
from sfumato.privacy.auditing.findings import Audit, Bound

WHOLE = (1.0,)
"""Guess every coin."""


def coins(count, *, seed=0):
    return np.random.default_rng(seed).random(count) < 0.5


def responses(included, epsilon, rng):
    """Randomised response on each coin: exactly epsilon-DP, and nothing is more telling."""
    honest = rng.random(len(included)) < expit(epsilon)
    reported = np.where(honest, included, ~included)
    return reported + rng.random(len(included)) / 2


def slow_chance(canaries, guesses, correct, q, delta):
    """Theorem 5.2 in exact fractions, straight from its text."""
    weight = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]

    def at_least(v):
        return sum(weight[max(v, 0) :])

    most = max((at_least(correct - i) - at_least(correct)) / i for i in range(1, canaries + 1))
    return min(1, at_least(correct) + 2 * canaries * delta * most)


# The bound


@settings(max_examples=60, deadline=None)
@given(
    canaries=some.integers(2, 24),
    data=some.data(),
    odds=some.fractions(1, 20, max_denominator=8),
    delta=some.sampled_from([Fraction(0), Fraction(1, 1000), Fraction(1, 48)]),
)
def test_the_chance_is_the_theorems(canaries, data, odds, delta):
    guesses = data.draw(some.integers(1, canaries))
    correct = data.draw(some.integers(0, guesses))
    expected = slow_chance(canaries, guesses, correct, odds / (1 + odds), delta)
    result = chance(canaries, guesses, correct, math.log(odds), delta=float(delta))
    assert result == pytest.approx(float(expected), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("delta", [0, 1e-4, 1 / 200])
@pytest.mark.parametrize(("guesses", "correct"), [(100, 100), (100, 75), (40, 30), (10, 9), (100, 1)])
def test_the_chance_grows_with_epsilon_so_that_there_is_one_crossing(guesses, correct, delta):
    values = [chance(100, guesses, correct, e, delta=delta) for e in np.linspace(0, 25, 200)]
    assert (np.diff(values) >= -1e-12).all() and values[-1] == pytest.approx(1)


@pytest.mark.parametrize("guesses", [10, 100, 500])
def test_all_right_without_delta_is_a_closed_form(guesses):
    q = 0.05 ** (1 / guesses)
    included = coins(guesses)
    included[: guesses // 2], included[guesses // 2 :] = False, True
    bound = epsilon_lower_bound(np.arange(guesses), included, delta=0, guess_shares=WHOLE)
    assert bound.epsilon == pytest.approx(math.log(q / (1 - q)), abs=1e-5)
    assert (bound.guesses, bound.correct, bound.canaries) == (guesses, guesses, guesses)
    assert bound.attainable == bound.epsilon


def test_the_bound_is_where_the_chance_meets_the_level():
    result = refuted_epsilon(100, 50, 45, delta=1e-4, level=0.05)
    assert chance(100, 50, 45, result, delta=1e-4) == pytest.approx(0.05, abs=1e-5)
    assert refuted_epsilon(100, 50, 25, delta=0, level=0.05) == 0
    assert refuted_epsilon(100, 50, 45, delta=1e-3, level=0.05) < result, "delta costs"


def test_several_numbers_of_guesses_cost_a_bonferroni_correction():
    scores, included = np.arange(200), np.arange(200) >= 100
    q = (0.05 / len(GUESS_SHARES)) ** (1 / 200)
    assert epsilon_lower_bound(scores, included, delta=0).epsilon == pytest.approx(math.log(q / (1 - q)), abs=1e-5)


def test_abstaining_helps_where_only_the_extremes_are_sure():
    rng, included = np.random.default_rng(0), coins(1000)
    included[:100] = np.arange(100) < 50
    scores = rng.random(1000)
    scores[:100] += np.where(included[:100], 5, -5)
    bound = epsilon_lower_bound(scores, included, delta=0)
    whole = epsilon_lower_bound(scores, included, delta=0, guess_shares=WHOLE)
    assert bound.guesses == 100 and bound.correct == 100 and bound.epsilon > 2.9 > 1 > whole.epsilon
    assert bound.attainable > bound.epsilon


# Its promise


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("shares", [WHOLE, GUESS_SHARES])
def test_the_bound_lies_below_the_true_epsilon_in_95_of_100_audits(epsilon, shares):
    rng, above = np.random.default_rng(7), 0
    for _ in range(200):
        included = rng.random(100) < 0.5
        above += (
            epsilon_lower_bound(responses(included, epsilon, rng), included, delta=0, guess_shares=shares).epsilon
            > epsilon
        )
    assert above <= 18, "10 expected at most; 18 or more has a chance of 1 %"


def test_with_every_coin_guessed_the_bound_comes_close():
    included = coins(20_000)
    scores = responses(included, 1.0, np.random.default_rng(1))
    assert 0.9 < epsilon_lower_bound(scores, included, delta=0, guess_shares=WHOLE).epsilon < 1.0


def test_random_scores_refute_nothing():
    rng = np.random.default_rng(3)
    result = [epsilon_lower_bound(rng.random(200), coins(200, seed=i), delta=1e-5).epsilon for i in range(40)]
    assert sum(value == 0 for value in result) >= 37


def test_a_mechanism_that_fails_with_chance_delta_is_allowed_for():
    """With chance delta per canary its coin is shown: (0, delta)-DP, so no epsilon above 0 may be shown too often."""
    rng, above = np.random.default_rng(5), 0
    for _ in range(100):
        included = rng.random(100) < 0.5
        shown = rng.random(100) < 1 / 250
        scores = rng.random(100) + shown * np.where(included, 10, -10)
        above += epsilon_lower_bound(scores, included, delta=1 / 250).epsilon > 0
    assert above <= 5


def test_ties_are_broken_without_a_look_at_the_coins():
    included = np.arange(10) % 2 == 0
    bound = epsilon_lower_bound(np.zeros(10), included, delta=0, guess_shares=WHOLE)
    assert (bound.guesses, bound.correct, bound.epsilon) == (10, 2 + 2, 0), (
        "of positions 0-4 two stayed out, of 5-9 two joined"
    )


@pytest.mark.parametrize(
    ("scores", "included", "changes", "words"),
    [
        (np.zeros(1), coins(1), {}, "1 canaries are too few"),
        (np.zeros(5), coins(4), {}, "give \\[m\\] numbers"),
        (np.zeros(4), np.zeros(4), {}, "booleans"),
        (np.array([1, np.nan, 0]), coins(3), {}, "NaN or infinite"),
        (np.zeros(4), coins(4), {"delta": 1.0}, "delta=1.0"),
        (np.zeros(4), coins(4), {"confidence": 1.0}, "confidence=1.0"),
        (np.zeros(4), coins(4), {"guess_shares": ()}, "at least one"),
        (np.zeros(4), coins(4), {"guess_shares": (0.5, 1.5)}, "at most 1"),
        (np.zeros(400), coins(400), {"delta": 0.002}, "use 250 or fewer"),
    ],
)
def test_what_concludes_nothing_is_refused(scores, included, changes, words):
    with pytest.raises(BadInput, match=words):
        epsilon_lower_bound(scores, included, **({"delta": 0.0} | changes))


# The whole


def audit(**changes):
    images = torch.randn(20, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    fields = {
        "run": "run-1", "certificate": 1.0, "claim": 0.5, "delta": 1e-5,
        "bound": epsilon_lower_bound(np.arange(100), np.arange(100) >= 50, delta=1e-5),
        "canary_attack": membership("canaries", np.arange(50) + 50, np.arange(50)),
        "memberships": (membership("a", np.arange(10), np.arange(10)),),
        "copies": check_copies(images, images[:10] + 2, images[10:] - 2)[0],
    }  # fmt: skip
    return Audit(**(fields | changes))


def test_an_audit_survives_json_and_refutes_a_certificate_below_its_bound():
    result = audit()
    assert Audit.model_validate_json(result.model_dump_json()) == result
    assert result.bound.epsilon > 2.5 and result.refuted and not result.passed
    assert not audit(certificate=5.0).refuted and audit(certificate=5.0).passed
    assert audit(certificate=None).refuted, "then the claim is what would be answered for"
    assert not audit(certificate=None, claim=None).refuted and not audit(bound=None).refuted


def test_an_audit_without_a_copy_check_or_with_a_copy_clears_nothing():
    assert not audit(certificate=5.0, copies=None).passed
    copied = audit().copies.model_copy(update={"copies": 1, "unexplained": 1})
    assert not audit(certificate=5.0, copies=copied).passed


def test_values_refuse_nonsense():
    with pytest.raises(ValueError, match="epsilon"):
        Bound(epsilon=math.nan, delta=0, confidence=0.95, canaries=2, guesses=2, correct=2, attainable=1)
    with pytest.raises(ValueError, match="surprise"):
        audit(surprise=1)
