"""Private Evolution: rounds of votes are priced together, and what cannot be drawn or voted for is refused first."""

import pytest

from sfumato.errors import BadInput
from sfumato.methods import private_evolution
from sfumato.methods.plan import ANY_NUMBER, STAGE_VOTES
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.settings import resolve


def planned(*changes):
    settings, facts, _ = preflight(resolve("private-evolution", "digits", changes))
    return plan_for(settings, facts)


def test_rounds_share_the_budget_as_one_mechanism_of_less_noise():
    one, four = planned("privacy.epsilon=1"), planned("privacy.epsilon=1", "method.rounds=4")
    assert four.noise_multiplier == pytest.approx(2 * one.noise_multiplier, rel=0.05), "the root of the rounds"
    assert len(four.events(STAGE_VOTES)) == 4 and four.certificate.images == ANY_NUMBER
    for plan in (one, four):
        priced = accountant.epsilon([spend.event for spend in plan.spends], plan.privacy.delta, plan.privacy.relation)
        assert plan.certificate.epsilon == pytest.approx(priced, rel=1e-9) and 0.99 <= priced <= 1
    assert one.claim.epsilon == pytest.approx(one.certificate.epsilon, rel=0.05)


def test_the_claim_is_that_of_a_gaussian_of_all_rounds():
    whole = private_evolution.claim(2.0, 4, 1e-5).epsilon
    assert whole == pytest.approx(private_evolution.claim(1.0, 1, 1e-5).epsilon, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "method.candidates=19",
            r"method.candidates=19 gives 10 classes fewer than 2 each: use --set method.candidates=1000",
        ),
        ("pretraining.steps=0", "pretraining.steps=0 leaves no public model to draw candidates"),
    ],
)
def test_what_leaves_nothing_to_vote_for_is_refused_in_one_line(change, says):
    with pytest.raises(BadInput, match=says) as refusal:
        planned(change)
    assert "\n" not in str(refusal.value)
