"""Several learning rates from beginning to end: one is absurd, the votes find it out, and a second run pays nothing."""

import pytest

from artifacts.labels import Label
from flows import audit as audit_flow
from flows.private_half import BASELINE
from flows.synthesize import run_plan
from sfumato.methods.plan import STAGE_RATES, STAGE_TUNING
from tasks import private, rates
from tasks.runtime.environment import where
from tests.flows.journal import made, planned
from tests.flows.test_own_data import TINY, redrawn, run, scans  # noqa: F401 (fixture)

pytestmark = pytest.mark.usefixtures("quick_judges")
ABSURD = ["fine_tuning.rates=[1000,1]", "pretraining.steps=300", "fine_tuning.warm_up=1"]


@pytest.mark.slow
def test_an_absurd_rate_gets_no_votes_and_all_that_was_tried_is_paid_for_once(no_servers, tmp_path, scans):  # noqa: F811
    requested = [f"data.private={scans}", *TINY, *ABSURD, "fine_tuning.rates_share=.2", "fine_tuning.averages=[0.5]"]
    record = run("dp-sgd", requested, f"file://{tmp_path}/out")
    assert record.label == Label.DP and 9.8 < record.certificate.epsilon <= 10
    with where().ledger() as ledger:
        reserved = [entry for entry in ledger.entries() if entry.kind == "reserve"]
        assert [entry.body["stage"] for entry in reserved] == ["fine_tuning", "fine_tuning", "rates"]
        assert {entry.body["unit"] for entry in reserved} == {"person"}
        assert record.certificate.entries == tuple(entry.seq for entry in reserved), (
            "the model that lost is paid for too"
        )
        assert record.certificate.epsilon == pytest.approx(ledger.total("scans.npz").epsilon, rel=1e-6)
        assert ledger.verify() == ledger.replay() == []
    winner = record.rates
    assert winner["rate"] == 1 and winner["votes_for_1"] > winner["votes_for_1000"]
    assert sum(winner.values()) - 1 == pytest.approx(record.plan.facts.records, abs=25), "each person votes once"
    report = (tmp_path / "out" / "report.html").read_text()
    assert "2 models were trained, at 1000, 1 times the learning rates of the settings" in report
    assert "The images are of the model at 1 times" in report
    assert redrawn(tmp_path / "out", record.samples_artifact, 60), "the chosen model is the released one"
    assert "moving average 0.5" in record.metrics, "its further averages are those of the winner"

    models = [(m["kind"], m["label"]) for _, m in where().store().ancestry(record.samples_artifact)]
    assert models.count(("TunedModel", Label.DP)) == 2 and models.count(("ChosenModel", Label.DP)) == 1
    assert ("RateVotes", Label.DP) in models
    again = run("dp-sgd", [*requested, "generation.edition=1"])
    cached = {stage.name: stage.cached for stage in again.stages}
    names = [name for name in cached if name.startswith(("fine-tune", "vote-for", "choose"))]
    assert len(names) == 4 and all(cached[name] for name in names)
    with where().ledger() as ledger:
        assert len([entry for entry in ledger.entries() if entry.kind == "reserve"]) == len(reserved)

    audit = audit_flow.audit_run.fn(record.run, 40).audit
    assert "class votes" in [fit.what for fit in audit.fits] and audit.bound.canaries == 40 and not audit.refuted


@pytest.mark.parametrize("method", ["dp-promise", "dp-sgd", "rapid"])
def test_each_rate_is_a_stage_of_its_own_and_the_budget_bears_what_is_still_to_come(book, method):
    twice = planned(method, "fine_tuning.rates=[0.5,2]", "method.votes=true" if method == "rapid" else "seed=0")
    run_plan(twice)
    plan, usual = twice.plan, twice.settings.fine_tuning
    tunings = [one for one in book.of(private.fine_tune) if one.note != BASELINE]
    (voted,), (chosen,) = book.of(rates.vote_for_rate), book.of(rates.choose_rate)
    assert [one.given.inputs.settings.fine_tuning for one in tunings] == [usual.at(0.5), usual.at(2.0)]
    assert [one.given.event for one in tunings] == list(plan.events(STAGE_TUNING)) and all(one.paid for one in tunings)
    (ballot,) = plan.events(STAGE_RATES)
    following = [one.given.order.terms.following for one in (*tunings, voted)]
    assert following == [(plan.events(STAGE_TUNING)[1], ballot), (ballot,), ()] and voted.given.event == ballot
    addresses = [made(book, one) for one in tunings]
    assert (
        [model.digest for model in voted.given.models] == [model.digest for model in chosen.given.models] == addresses
    )
    assert chosen.given.votes.digest == made(book, voted) and chosen.given.factors == (0.5, 2.0)
    for one in book.of(private.take_votes):
        assert one.given.order.terms.following == (*plan.events(STAGE_TUNING), ballot)
    others = [one.given.inputs.settings.fine_tuning.rates for one in book.of(private.fine_tune) if one.note == BASELINE]
    assert others == [()] * len(others), "plain DP-SGD is compared with, at one rate"
