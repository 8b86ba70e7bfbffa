"""Several learning rates: every training and the votes are priced together and paid as planned, and the winner follows the votes."""

import itertools
from dataclasses import replace

import pytest
import torch

from sfumato import rates, sources
from sfumato.errors import BadInput
from sfumato.images import to_unit
from sfumato.methods import METHODS
from sfumato.methods.algorithm import begun
from sfumato.methods.plan import STAGE_RATES, STAGE_TUNING, UNCLAIMED
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import DiscreteHistogram, SubsampledGaussian
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.settings import resolve
from tests.spends import KEYS

THREE = "fine_tuning.rates=[0.5,1,2]"
DP_SGD = ["fine_tuning.trainable=[film,time,rest]", "method.mechanism=dp_sgd"]
TRYING = {"dp-promise": [], "dp-sgd": [], "rapid": ["method.votes=true"], "dppm": DP_SGD}
"""Methods that train by DP-SGD, with the settings under which they do."""
IDLE = sorted(set(METHODS) - set(TRYING))


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


def planned(method, *changes):
    settings, facts, _ = preflight(resolve(method, changes=[*TRYING.get(method, []), *changes]))
    return plan_for(settings, facts)


@pytest.mark.parametrize("method", TRYING)
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_all_trainings_and_the_votes_are_in_one_certificate(method, relation):
    terms = ["privacy.epsilon=3", f"privacy.relation={relation}"]
    plan, once = planned(method, THREE, *terms), planned(method, *terms)
    trainings, (votes,) = plan.events(STAGE_TUNING), plan.events(STAGE_RATES)
    steps = SubsampledGaussian(
        noise_multiplier=plan.noise_multiplier, sample_rate=once.fine_tuning.sample_rate, steps=once.fine_tuning.steps
    )
    assert trainings == (steps,) * 3 and plan.noise_multiplier > 1.5 * once.noise_multiplier
    assert isinstance(votes, DiscreteHistogram)
    assert accountant.epsilon([votes], plan.privacy.delta, relation) == pytest.approx(0.15, rel=0.01)
    others = [spend.event for spend in plan.spends if spend.stage not in (STAGE_TUNING, STAGE_RATES)]
    by_hand = [*others, steps.model_copy(update={"steps": 3 * steps.steps}), votes]
    priced = accountant.epsilon(by_hand, plan.privacy.delta, relation)
    assert plan.certificate.epsilon == pytest.approx(priced, rel=1e-3) and 2.97 <= plan.certificate.epsilon <= 3
    assert not once.events(STAGE_RATES) and once.fine_tuning.trainings == 1
    assert all(f"at {factor} times the rates" in str(plan) for factor in ("0.5", "1", "2"))


def test_the_claim_counts_all_trainings():
    plan = planned("dp-sgd", THREE)
    own = METHODS["dp-sgd"].claim(
        plan.noise_multiplier, plan.fine_tuning.sample_rate, 3 * plan.fine_tuning.steps, plan.privacy.delta
    )
    assert plan.claim == own != UNCLAIMED


@pytest.mark.parametrize("method", TRYING)
def test_the_planned_cost_is_what_is_spent(method, world, access_to, ledger):
    small = [] if method == "dppm" else ["privacy.epsilon=3"]
    tiny = world(method, *TRYING[method], THREE, *small)
    parts, entries = tiny.pay(access_to(ledger))
    spends = ledger.spends("digits")
    stages = [entry.body["stage"] for entry, _ in spends]
    assert stages[-4:] == [STAGE_TUNING] * 3 + [STAGE_RATES] and set(entries.values()) == {"DP"}
    assert [event for _, events in spends for event in events] == [spend.event for spend in tiny.plan.spends]
    total = ledger.total("digits", tiny.plan.privacy.delta, tiny.plan.privacy.relation)
    assert total.epsilon == pytest.approx(tiny.plan.certificate.epsilon, rel=1e-9) and parts.tuned is not None


def digits(count=40):
    images = sources.load("digits", sources.Reading(part="train")).subset(slice(count))
    return to_unit(images.pixels), torch.from_numpy(images.labels)


@pytest.mark.parametrize("changes", [[], ["latent.kind=kl", "latent.width=4", "latent.steps=20", "latent.batch=32"]])
@pytest.mark.parametrize("method", ["dp-promise", "dp-sgd", "rapid"])
def test_a_vote_follows_from_its_record_alone_and_a_model_that_knows_nothing_gets_none(method, changes, world):
    tiny = world(method, *TRYING[method], *changes)
    parts = replace(tiny.parts, winners=torch.zeros(10, dtype=torch.long))
    good, _ = begun(tiny.method, tiny.settings, parts)
    lost, broken = (begun(tiny.method, tiny.settings, parts)[0] for _ in range(2))
    with torch.no_grad():
        for weights in lost.parameters():
            weights.mul_(5)
        for weights in broken.parameters():
            weights.fill_(torch.nan)
    x, y = digits()
    vote = rates.ballot(tiny.settings, parts, [broken, lost, good])
    chosen = vote(x, y)
    assert chosen.dtype == torch.int64 and (chosen == 2).double().mean() > 0.9 and not (chosen == 0).any()
    assert torch.equal(vote(x[:0], y[:0]), chosen[:0])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(vote(x[order], y[order]), chosen[order]), "neither neighbours nor the place in a batch count"
    assert torch.equal(vote(x[7:8], y[7:8]), chosen[7:8])


def test_the_model_with_the_most_votes_wins():
    assert rates.elected(torch.tensor([[-3, 900, 537]])) == 1 and rates.elected(torch.tensor([[4, 4]])) == 0


@pytest.mark.parametrize("method", [*IDLE, "dppm"])
def test_a_method_that_trains_nothing_by_dp_sgd_has_no_rate_to_choose(method):
    settings, facts, _ = preflight(resolve(method, changes=[THREE]))
    with pytest.raises(BadInput, match=r"fine_tuning\.rates=\[0\.5,1,2\]: .*trains nothing by DP-SGD") as refusal:
        plan_for(settings, facts)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("[1]", "is one candidate"),
        ("[1,2,1.0]", "names a candidate twice"),
        ("[1,2,3,4,5]", "at most 4"),
        ("[1,0]", "greater than 0"),
        ("[1,-2]", "greater than 0"),
        ("[1,.inf]", "finite"),
    ],
)
def test_candidates_that_leave_no_choice_are_refused_in_one_line(value, says):
    with pytest.raises(BadInput, match=rf"fine_tuning\.rates.*{says}") as refusal:
        planned("dp-sgd", f"fine_tuning.rates={value}")
    assert "\n" not in str(refusal.value)


def test_a_candidate_is_trained_as_if_it_were_alone():
    """So that a rate tried before under the same noise is found again, whatever stood beside it."""
    usual = resolve("dp-sgd").fine_tuning
    tried = resolve("dp-sgd", changes=[THREE]).fine_tuning
    assert tried.at(1.0) == usual and tried.at(2.0).rate_rows == 2 * usual.rate_rows
    assert tried.at(2.0).rate_other == 2 * usual.rate_other and tried.at(2.0).rates == ()
