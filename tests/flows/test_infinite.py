"""Runs without noise, at epsilon infinity, to compare with: the same recipe, INTERNAL, never published."""

import json
import math
from pathlib import Path

import pytest

from artifacts.labels import Label
from flows import audit as audit_flow
from sfumato.errors import BadInput, Refused
from sfumato.methods import METHODS
from sfumato.methods.plan import UNCLAIMED, centring, judging
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting.accountant import epsilon
from sfumato.privacy.accounting.events import DiscreteHistogram, Gaussian, NoisedRecords, SubsampledGaussian
from sfumato.settings import resolve
from tasks import rehearsal, release
from tasks.runtime import progress
from tasks.runtime.environment import where
from tests.flows.test_own_data import TINY, run

INFINITE = ["privacy.epsilon=inf", "privacy.reason=what noise costs", "data.share=0.1395"]
ITS_NOISE = {"dp-ensemble", "dppm", "empirical-denoiser"}
"""Methods whose drawing or training is nothing without its noise."""
SMALL = {
    "dp-sgd": ["alignment.kind=moments", "judge.use=weigh", "judge.steps=5", "judge.directions=8", "backbone.steps=5"],
    "dp-promise": ["central.images=1", "central.steps=3", "fine_tuning.averages=[0.5]"],
    "moments": [],
    "dp-merf": ["method.frequencies=50", "method.training.steps=5"],
    "dp-mepf": ["method.training.steps=5", "backbone.steps=5"],
    "private-evolution": ["method.candidates=100", "method.features=pixels", "method.distillation.steps=5"],
}


def planned(method, *changes):
    return plan_for(*preflight(resolve(method, changes=[*INFINITE, "evaluation.features=cnn", *changes]))[:2])


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_without_noise_certifies_nothing_or_is_refused(method):
    if method in ITS_NOISE:
        with pytest.raises(
            BadInput, match=r"privacy\.epsilon=inf has no meaning with .*choose a finite one"
        ) as refusal:
            planned(method)
        assert "\n" not in str(refusal.value)
        return
    plan = planned(method)
    assert plan.certificate is None and plan.claim == UNCLAIMED and not plan.noise_multiplier
    assert plan.lacking == "epsilon is infinite, since nothing is noised"
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan, "a record of it can be read again"


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    "event",
    [
        Gaussian(noise_multiplier=0),
        DiscreteHistogram(noise_multiplier=0),
        NoisedRecords(noise_multiplier=0),
        SubsampledGaussian(noise_multiplier=0, sample_rate=0.5, steps=1),
    ],
)
def test_no_noise_has_no_epsilon_whatever_stands_beside(event, relation):
    assert event.uncertified(relation) == "epsilon is infinite, since nothing is noised" or relation == "add_remove"
    assert epsilon([Gaussian(noise_multiplier=9.0), event], 1e-5, relation) == math.inf


def test_shares_of_an_infinite_target_are_infinite_too():
    settings = resolve("dp-sgd", changes=[*INFINITE, "judge.use=weigh", "privacy.delta=1e-5"])
    assert [spend.event.noise_multiplier for spend in judging(settings.judge, settings.privacy)] == [0]
    central = settings.central.model_copy(update={"images": 2})
    assert [spend.event.noise_multiplier for spend in centring(central, settings.privacy)] == [0]


def test_the_recipe_is_that_of_the_usual_target():
    own = ["data.private=digits", "data.public=glyphs", "evaluation.features=cnn"]
    usual, infinite = (
        preflight(resolve("dp-sgd", "auto", [*own, *target]))[0] for target in (["privacy.epsilon=10"], INFINITE[:2])
    )
    same = {"privacy": usual.privacy}
    assert infinite.model_copy(update=same) == usual


@pytest.mark.parametrize(
    "method", [name if name == "moments" else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]
)
def test_a_run_without_noise_is_judged_and_stays_internal(no_servers, quick_judges, tmp_path, method):
    record = run(method, [*INFINITE, *TINY, *SMALL[method]])
    assert record.label == Label.INTERNAL and record.certificate is None and record.claim.epsilon == math.inf
    assert record.metrics["synthetic"]["logistic"] is not None
    retained = (where().runs / record.run / "run.json").read_text()
    assert json.loads(retained, parse_constant=pytest.fail)["plan"]["privacy"]["epsilon"] == "Infinity"
    with where().ledger() as ledger:
        entries = [entry for entry in ledger.entries() if entry.kind == "reserve"]
    events = [event for entry in entries for event in entry.body["events"]]
    assert events and {event["noise_multiplier"] for event in events} == {0}
    assert json.loads(json.dumps(events)) == events
    with pytest.raises(Refused, match="INTERNAL"):
        run(method, [*INFINITE, *TINY, *SMALL[method]], str(tmp_path / "out"))
    assert not Path(tmp_path / "out").exists()


CHOOSING = ["selection.classes=6", "backbone.steps=5", "alignment.clusters=8"]
"""With classes of 20 records in 8 cells each, some of them without a covariance of their own."""
OF_RECORDS = (
    "public classes with the most votes",
    "class moments",
    "rehearsal, public model",
    "rehearsal, public samples",
)
"""Beginnings of lines that follow from private records, here without noise between."""


def test_what_a_run_without_noise_finds_stands_in_no_log_and_on_no_page(no_servers, quick_judges, monkeypatch):
    """Prefect's log and pages are shown to whoever may see that there is a run."""
    logged, pages = [], []
    monkeypatch.setattr(progress, "log_line", logged.append)
    monkeypatch.setattr(rehearsal, "create_markdown_artifact", lambda page, **about: pages.append(page))
    record = run("moments", [*INFINITE, *TINY, *CHOOSING, "rehearsal.images=20"])
    assert record.label == Label.INTERNAL
    labels = [m["label"] for _, m in where().store().ancestry(record.rehearsal_artifact)]
    assert labels[0] == Label.INTERNAL, "the public model learnt from classes that records chose without noise"
    assert [line for line in logged if line.startswith(OF_RECORDS)] == [] and not pages


def test_an_infinite_target_asks_for_a_reason():
    with pytest.raises(BadInput, match=r"privacy\.epsilon=inf is above 50.*privacy\.reason"):
        preflight(resolve("dp-sgd", changes=["privacy.epsilon=inf"]))


@pytest.mark.slow
def test_nothing_takes_a_run_without_noise_out_and_no_audit_runs_on_it(no_servers, quick_judges, tmp_path):
    record = run("moments", [*INFINITE, *TINY])
    with pytest.raises(BadInput, match="without noise.*draw what leaves with a finite one"):
        release.publish_run(record, tmp_path / "out", accept_claim="none claims")
    with pytest.raises(BadInput, match="promises nothing that an audit could refute"):
        audit_flow.audit_run(record.run)
    assert not (tmp_path / "out").exists()
