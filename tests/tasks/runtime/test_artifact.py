"""The frame of a stage: its result is kept whole and described, or nothing is; a device that is not there is named."""

import pytest
import torch

from artifacts.references import PublicModel, TunedModel
from artifacts.tracking import Tracker
from sfumato.config import Machine
from sfumato.errors import BadInput
from sfumato.privacy.accounting.events import Gaussian
from tasks.runtime import memory, progress
from tasks.runtime.artifact import RunContext, device_of, draft_of, on_gpu, one_thread
from tasks.runtime.environment import configure
from tests.examples import home_at, reserve

CONTEXT = RunContext(run="run-1", parents={"PUBLIC": "shown", "DP": "shown", "INTERNAL": "hidden"})


@pytest.fixture
def place(tmp_path):
    with home_at(tmp_path / "home"):
        yield configure()


@pytest.fixture
def reported(monkeypatch) -> list[dict]:
    """What MLflow would have been told."""
    calls = []
    monkeypatch.setattr(Tracker, "log", lambda self, name, **facts: calls.append({"name": name, **facts}) or "told-1")
    return calls


def make(entries=(), parents=(), kind=PublicModel):
    with draft_of(kind, "a stage", CONTEXT, parents=parents, params={"steps": 3}) as draft:
        (draft.folder / "facts.json").write_text("content")
        draft.entries = dict(entries)
        draft.metrics, draft.series = {"images": 4.0}, {"loss": [1.0, 0.5]}
        draft.show(7, 10)
        draft.files = [draft.folder / "facts.json"]
    return draft.ref


def test_the_result_is_kept_and_told_with_its_files_in_the_store(place, reported):
    with place.ledger() as ledger:
        reserve(ledger, [Gaussian(noise_multiplier=1.0)])
        paid = reserve(ledger, [Gaussian(noise_multiplier=1.0)])
    ref = make({paid.hash: "DP"})
    assert place.store().intact(ref) and ref.label == "DP" and ref.tracked == "told-1"
    assert place.store().manifest(ref)["summary"] == {"images": 4.0}
    (call,) = reported
    assert (call["name"], call["label"], call["parent"], call["params"]) == ("a stage", "DP", "shown", {"steps": 3})
    assert call["series"] == {"loss": [1.0, 0.5]} and set(call["metrics"]) == {"images", "seconds", "steps"}
    assert call["metrics"]["steps"] == call["steps"] == 7 and call["inputs"] == []
    assert call["files"] == [], "a picture of what was paid for waits for the gate"
    assert call["tags"] == {"artifact": ref.digest, "ledger_entries": str(paid.seq)}


def test_the_largest_memory_of_a_stage_goes_with_its_result_and_into_no_log(place, reported, monkeypatch):
    monkeypatch.setattr(memory, "peaks", lambda: {"memory": 1.25, "gpu_memory": 0.5})
    ref = make()
    assert (ref.memory, ref.gpu_memory) == (1.25, 0.5) and "memory" not in reported[0]["metrics"]


def test_an_internal_result_is_told_to_the_internal_parent(place, reported):
    with place.ledger() as ledger:
        look = ledger.look("scans", "d1gest", "a test", stage="a stage", run="run-1", code_version="1")
    tainted = make({look.hash: "INTERNAL"})
    child = make(parents=[tainted], kind=TunedModel)
    assert child.label == "INTERNAL" and [call["parent"] for call in reported] == ["hidden", "hidden"]
    assert [call["label"] for call in reported] == ["INTERNAL", "INTERNAL"]
    assert reported[1]["inputs"] == [("PublicModel", tainted.digest)]


@pytest.mark.parametrize("label", ["PUBLIC", "INTERNAL"])
def test_a_line_on_what_stays_inside_is_on_the_screen_and_in_no_log(place, reported, label, monkeypatch, capsys):
    logged = []
    monkeypatch.setattr(progress, "log_line", logged.append)
    with place.ledger() as ledger:
        look = ledger.look("scans", "d1gest", "a test", stage="a stage", run="run-1", code_version="1")
    entries = {look.hash: "INTERNAL"} if label == "INTERNAL" else {}
    with draft_of(PublicModel, "a stage", CONTEXT) as draft:
        draft.entries, draft.lines = entries, ["three [red] records"]
        assert not logged, "a result that is not stored yet is told to nobody"
    assert "three [red] records" in capsys.readouterr().err
    assert logged == ([] if label == "INTERNAL" else ["three [red] records"])


@pytest.mark.parametrize("label", ["PUBLIC", "INTERNAL"])
def test_what_stays_inside_or_is_public_is_shown_at_once(place, reported, label):
    with place.ledger() as ledger:
        look = ledger.look("scans", "d1gest", "a test", stage="a stage", run="run-1", code_version="1")
    ref = make({look.hash: "INTERNAL"} if label == "INTERNAL" else {})
    (call,) = reported
    assert (
        call["label"] == label
        and call["files"] == [place.store().folder(ref) / "facts.json"]
        and call["files"][0].is_file()
    )


def test_a_stage_that_fails_is_neither_kept_nor_told(place, reported):
    with pytest.raises(RuntimeError, match="out of memory"), draft_of(PublicModel, "a stage", CONTEXT) as draft:
        (draft.folder / "facts.json").write_text("half")
        raise RuntimeError("out of memory")
    assert reported == [] and list((place.home / "store" / "objects").iterdir()) == []


def test_a_result_is_not_lost_because_mlflow_went_away(place, monkeypatch, capsys):
    def gone(*_, **__):
        raise ConnectionError("no answer\nat all")

    monkeypatch.setattr(Tracker, "log", gone)
    with place.ledger() as ledger:
        reserve(ledger, [Gaussian(noise_multiplier=1.0)])
        paid = reserve(ledger, [Gaussian(noise_multiplier=1.0)])
    ref = make({paid.hash: "DP"})
    assert place.store().intact(ref) and ref.tracked == ""
    reported = " ".join(capsys.readouterr().err.split())
    assert "a stage" in reported and "MLflow" in reported and "ConnectionError" in reported


def test_an_input_that_is_damaged_is_not_read(place, reported):
    ref = make()
    (place.store().root / "objects" / ref.digest / "facts.json").write_text("other")
    with (
        pytest.raises(BadInput, match=ref.digest[:12]),
        draft_of(TunedModel, "a stage", CONTEXT, parents=[ref]) as draft,
    ):
        draft.open(ref)


@pytest.mark.parametrize("name", ["gpu7", "", "cuda:x", "cuda:99"])
def test_a_device_that_is_not_there_is_named(name):
    with pytest.raises(BadInput, match=rf"^machine\.device='{name}'[^\n]*cpu[^\n]*$"):
        device_of(Machine(device=name))


@pytest.mark.parametrize(
    ("gpus", "requested", "expected"),
    [(0, "auto", "cpu"), (1, "auto", "cuda"), (1, "cuda", "cuda"), (2, "cuda:1", "cuda:1"), (4, "cpu", "cpu")],
)
def test_a_device_that_is_there_is_taken(monkeypatch, gpus, requested, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert device_of(Machine(device=requested)) == torch.device(expected)
    assert on_gpu(Machine(device=requested)) == (expected != "cpu")


def test_threads_are_set_where_they_are_asked_for():
    before = torch.get_num_threads()
    try:
        device_of(Machine(device="cpu", threads=2))
        assert torch.get_num_threads() == 2
        device_of(Machine(device="cpu"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_is_timed_runs_on_one_thread_and_the_others_come_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(BadInput), one_thread():
            assert torch.get_num_threads() == 1
            raise BadInput("stops")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
