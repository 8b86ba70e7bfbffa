"""The book of a run: a name of its own, parents in two experiments, and a line for every stage."""

import contextlib
import os
import signal
from pathlib import PurePath
from types import SimpleNamespace

import pytest

from artifacts.references import PublicModel, TunedModel
from artifacts.tracking import REASON, Tracker
from sfumato.errors import Refused, Stopped
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.door import PrivateSet
from sfumato.settings import resolve
from tasks.runtime import run
from tasks.runtime.artifact import RunContext
from tasks.runtime.caching import Stage
from tasks.runtime.checkpoints import stored_state
from tasks.runtime.environment import configure
from tasks.runtime.run import Journal
from tests.examples import PRIVATE_PATH, home_at, keep_samples

PRIVATE = PrivateSet(name="scans", source=PRIVATE_PATH)


@pytest.fixture
def place(tmp_path):
    with home_at(tmp_path / "home"):
        yield configure()


@pytest.fixture
def reported(monkeypatch) -> list[dict]:
    """What MLflow would have been told."""
    calls = []

    def log(self, name, **facts):
        calls.append({"name": name, **facts})
        return f"run-{len(calls)}"

    monkeypatch.setattr(Tracker, "log", log)
    return calls


def begin(name="scans", **changes):
    public = f"data.public={PRIVATE_PATH}/../{PurePath(PRIVATE_PATH).name}+/elsewhere/textures+glyphs"
    places = [f"data.private={PRIVATE_PATH}", f"data.folder={PRIVATE_PATH}", public]
    settings = resolve("rapid", changes=[*places, "privacy.epsilon=3", f"data.name={name}"])
    return Journal.begin(settings, PRIVATE.model_copy(update={"name": name}))


def test_a_run_has_a_folder_whose_name_tells_what_it_is(place, reported):
    book = begin()
    stamp, rest = book.context.run[:15], book.context.run[16:]
    assert stamp.replace("-", "").isdigit() and rest == "rapid-scans-eps3"
    assert [path.name for path in place.runs.iterdir()] == [book.context.run]


def test_runs_of_the_same_second_get_names_of_their_own(place, reported, monkeypatch):
    monkeypatch.setattr(
        run, "datetime", SimpleNamespace(now=lambda zone: SimpleNamespace(strftime=lambda form: "20260101-120000"))
    )
    names = [begin().context.run for _ in range(3)]
    assert names == [f"20260101-120000-rapid-scans-eps3{number}" for number in ("", "-2", "-3")]
    assert sorted(path.name for path in place.runs.iterdir()) == sorted(names)


@pytest.mark.parametrize("name", ["ward/7", "../../outside", "a b", ".hidden", "x" * 300])
def test_a_name_in_the_ledger_cannot_lead_out_of_the_runs(place, reported, name):
    book = begin(name)
    assert [path.name for path in place.runs.iterdir()] == [book.context.run]
    assert {path.name for path in place.home.iterdir()} == {"runs", "prefect", "results", "mlflow"}


def test_it_has_a_parent_in_each_experiment_and_no_path_of_the_images_in_either(place, reported):
    book = begin()
    assert [call["label"] for call in reported] == ["PUBLIC", "INTERNAL"]
    assert book.context.parents == {"PUBLIC": "run-1", "DP": "run-1", "INTERNAL": "run-2"}
    assert PRIVATE_PATH not in repr(reported) and "ward-7" not in repr(reported)
    assert reported[0]["params"]["data"]["public"] == "public images+public images+glyphs"
    assert {call["name"] for call in reported} == {book.context.run}
    assert reported[0]["tags"]["data"] == "scans" and reported[0]["params"]["data"]["private"] == "scans"


# Stages


@pytest.fixture
def book(place, reported):
    return begin()


@pytest.fixture
def samples(place):
    """Samples that stand on one reservation and one look."""
    with place.ledger() as ledger:
        terms = {"stage": "fine_tuning", "run": "before", "code_version": "1"}
        paid = ledger.reserve(
            "scans",
            "digest",
            [Gaussian(noise_multiplier=5.0)],
            "add_remove",
            1e-5,
            purpose="train",
            images="any",
            **terms,
        )
        look = ledger.look("scans", "digest", "judge", **terms)
    ref = keep_samples(place.store(), entries={paid.hash: "DP", look.hash: "INTERNAL"})
    return ref.model_copy(update={"seconds": 9.0, "memory": 1.5, "gpu_memory": 0.5})


def pretrain(context: RunContext, seed: int = 0) -> PublicModel:
    """A stage that is never carried out."""


def fine_tune(context: RunContext, seed: int = 0) -> TunedModel:
    """Another one."""


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("paid", [True, False])
def test_a_private_result_used_again_is_written_down_and_costs_nothing(place, book, samples, monkeypatch, cached, paid):
    monkeypatch.setattr(run, "run_stage", lambda *_, **__: (samples, cached))
    with place.ledger() as ledger:
        before = ledger.total("scans")
    assert book.stage(Stage(fine_tune), paid=paid)() is samples
    with place.ledger() as ledger:
        reused = [entry for entry in ledger.entries("scans") if entry.kind == "reuse"]
        assert ledger.total("scans") == before
    assert len(reused) == (cached and paid)
    for entry in reused:
        assert entry.body["spends"] == [1] and entry.body["artifact"] == samples.digest
        assert (entry.body["stage"], entry.body["run"]) == ("fine-tune", book.context.run)


def test_every_stage_is_remembered_with_both_its_times(book, samples, monkeypatch):
    monkeypatch.setattr(run, "run_stage", lambda *_, **__: (samples, False))
    book.stage(Stage(pretrain))()
    monkeypatch.setattr(run, "run_stage", lambda *_, **__: (samples, True))
    book.stage(Stage(fine_tune))()
    assert [(line.name, line.cached, line.made_in) for line in book.stages] == [
        ("pretrain", False, 9.0),
        ("fine-tune", True, 9.0),
    ]
    assert all(0 <= line.seconds < 9 for line in book.stages)
    assert [(line.memory, line.gpu_memory) for line in book.stages] == [(1.5, 0.5)] * 2


def test_a_stage_works_on_behalf_of_its_run(book, samples, monkeypatch):
    given = {}
    monkeypatch.setattr(
        run, "run_stage", lambda call, context: (given.update(call.arguments, context=context) or samples, False)
    )
    book.stage(Stage(fine_tune))(seed=3)
    assert given == {"seed": 3, "context": book.context}


def test_ctrl_c_in_the_last_step_of_a_training_stops_the_run_when_its_result_is_stored(book, samples, monkeypatch):
    def interrupted(*_, **__):
        with stored_state(book.context):
            os.kill(os.getpid(), signal.SIGINT)
        return samples, False

    monkeypatch.setattr(run, "run_stage", interrupted)
    with pytest.raises(KeyboardInterrupt):
        book.stage(Stage(fine_tune))()
    assert [line.name for line in book.stages] == ["fine-tune"]


def test_a_stage_that_fails_leaves_no_line(book, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(run, "run_stage", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        book.stage(Stage(fine_tune))()
    assert book.stages == []


def test_while_the_ledger_refuses_a_stage_may_only_find_its_result(place, reported, monkeypatch):
    book, samples = begin(), keep_samples(place.store())
    there = []
    monkeypatch.setattr(run, "is_cached", lambda *_, **__: bool(there))
    monkeypatch.setattr(run, "run_stage", lambda *_, **__: (samples, True))
    book.refusal = "epsilon 0 of 3 left"
    with pytest.raises(Refused, match="epsilon 0 of 3 left"):
        book.stage(Stage(fine_tune))()
    there.append("in the cache")
    assert book.stage(Stage(fine_tune))() == samples


@pytest.mark.parametrize("written", [False, True])
def test_a_run_that_was_refused_leaves_a_folder_only_with_something_in_it(place, reported, written):
    book = begin()
    folder = place.runs / book.context.run
    with pytest.raises(Refused), book.until_the_end():
        if written:
            (folder / "report.md").write_text("half a run")
        raise Refused("no")
    assert folder.exists() == written


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (None, "FINISHED", ({}, {})),
        (Refused("epsilon 0 of 3 left\nmore"), "FAILED", ("Refused", "Refused: epsilon 0 of 3 left")),
        (Stopped("saved"), "KILLED", ("Stopped", "Stopped: saved")),
        (KeyboardInterrupt(), "KILLED", ("KeyboardInterrupt", "KeyboardInterrupt")),
    ],
    ids=["ended", "refused", "stopped", "interrupted"],
)
def test_mlflow_is_told_how_a_run_ended_and_the_reason_stays_inside(
    place, reported, monkeypatch, error, status, reason
):
    ends = {}
    monkeypatch.setattr(Tracker, "end", lambda self, run, status, why: ends.update({run: (status, dict(why))}))
    book = begin()
    with contextlib.suppress(Refused, Stopped, KeyboardInterrupt), book.until_the_end():
        if error:
            raise error
    shown, inside = (ends[book.context.parents[label]] for label in ("PUBLIC", "INTERNAL"))
    assert shown[0] == inside[0] == status
    assert (shown[1], inside[1]) == (reason if error is None else tuple({REASON: text} for text in reason))
