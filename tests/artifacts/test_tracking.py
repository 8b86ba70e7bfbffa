"""What MLflow is told, and in which of the two experiments."""

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from artifacts import tracking
from artifacts.labels import Label
from artifacts.tracking import (
    INTERNAL,
    REASON,
    RELEASED,
    SHAREABLE,
    WITHHELD,
    Tracker,
    experiment_of,
    flattened,
    page_of,
)
from sfumato.errors import BadInput
from tasks.runtime.environment import CHECKOUT


@pytest.fixture(scope="module")
def tracker(tmp_path_factory) -> Tracker:
    """One MLflow database for all of these: its tables take seconds to make."""
    folder = tmp_path_factory.mktemp("tracking")
    return Tracker(f"sqlite:///{folder / 'mlflow.db'}", folder / "files")


def experiment_name(tracker, run):
    client = tracker.client()
    return client.get_experiment(client.get_run(run).info.experiment_id).name


@pytest.mark.parametrize(
    ("label", "name"),
    [
        (Label.PUBLIC, SHAREABLE),
        (Label.DP, SHAREABLE),
        (Label.INTERNAL, INTERNAL),
        ("INTERNAL", INTERNAL),
        ("DP", SHAREABLE),
    ],
)
def test_internal_things_go_to_an_experiment_of_their_own(tracker, label, name):
    assert experiment_of(label) == name
    run = tracker.log("stage", label=label)
    assert experiment_name(tracker, run) == name
    assert tracker.client().get_run(run).data.tags["label"] == str(label)


def test_nothing_internal_is_in_the_experiment_that_may_be_shown(tracker, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    tracker.log("judge", label=Label.INTERNAL, metrics={"synthetic/cnn": 0.7}, files=[tmp_path / "secret.txt"])
    client = tracker.client()
    shown = client.search_runs([client.get_experiment_by_name(SHAREABLE).experiment_id])
    assert not [run for run in shown if run.data.tags["label"] == "INTERNAL" or "synthetic/cnn" in run.data.metrics]
    assert not list((tracker.files / SHAREABLE).rglob("secret.txt"))
    assert len(list((tracker.files / INTERNAL).rglob("secret.txt"))) == 1


def test_a_stage_is_a_child_of_its_run(tracker):
    parent = tracker.log("run", label="DP", tags={"method": "rapid"})
    child = tracker.log("pretrain", label="PUBLIC", parent=parent)
    client = tracker.client()
    assert client.get_run(child).data.tags["mlflow.parentRunId"] == parent
    assert "mlflow.parentRunId" not in client.get_run(parent).data.tags
    assert client.get_run(child).info.run_name == "pretrain" and client.get_run(child).info.status == "FINISHED"
    assert client.get_run(parent).data.tags["method"] == client.get_run(child).data.tags["method"] == "rapid"
    assert client.get_run(child).data.tags["label"] == "PUBLIC", "what is its own stays"


def test_settings_are_flattened_to_names_and_text(tracker):
    params = {
        "data": {"name": "scans", "empty": ""},
        "method": {"extractor": {"steps": 4}},
        "trainable": ["rows"],
        "seed": 0,
        "votes": True,
        "claim": None,
        "long": "x" * 900,
    }
    run = tracker.log("run", label="DP", params=params)
    assert tracker.client().get_run(run).data.params == {
        "data.name": "scans",
        "data.empty": "",
        "method.extractor.steps": "4",
        "trainable": '["rows"]',
        "seed": "0",
        "votes": "true",
        "claim": "null",
        "long": "x" * 500,
    }
    assert flattened({"a": {"b": {"c": 1}}}) == {"a.b.c": "1"}


def test_no_setting_is_lost_however_many_there_are(tracker):
    many = {f"p{number}": number for number in range(230)}
    assert tracker.client().get_run(tracker.log("run", label="DP", params=many)).data.params == flattened(many)


def test_a_series_has_its_steps_and_no_point_is_lost(tracker):
    values = [1 / (step + 1) for step in range(1500)]
    run = tracker.log("pretrain", label="PUBLIC", metrics={"images": 3}, series={"loss": values})
    history = tracker.client().get_metric_history(run, "loss")
    assert sorted((point.step, point.value) for point in history) == list(enumerate(values))
    assert tracker.client().get_run(run).data.metrics["images"] == 3.0


def test_a_thinned_series_ends_at_the_last_step(tracker):
    run = tracker.log("pretrain", label="PUBLIC", series={"loss": [4.0, 3.0, 2.0, 1.0]}, steps=6000)
    points = sorted((point.step, point.value) for point in tracker.client().get_metric_history(run, "loss"))
    assert points == [(1500, 4.0), (3000, 3.0), (4500, 2.0), (6000, 1.0)]


def test_a_run_goes_on_until_it_ends_and_says_why(tracker):
    run = tracker.log("run", label="DP", ended=False)
    client = tracker.client()
    assert client.get_run(run).info.status == "RUNNING" and client.get_run(run).info.end_time is None
    tracker.end(run, "FAILED", {REASON: "Refused"})
    failed = client.get_run(run)
    assert failed.info.status == "FAILED" and failed.data.tags[REASON] == "Refused"
    ended = failed.info.end_time
    tracker.log("run", label="DP", run=run, metrics={"epsilon": 1.0})
    again = client.get_run(run).info
    assert (again.status, again.end_time) == ("FAILED", ended), "what is said later does not change when it ended"


def test_a_stage_lasts_as_long_as_its_work(tracker):
    info = tracker.client().get_run(tracker.log("stage", label="DP", seconds=90)).info
    assert 90_000 <= info.end_time - info.start_time < 150_000


def test_inputs_have_a_digest_and_a_private_set_has_none(tracker):
    digest = "0123456789abcdef" * 4
    run = tracker.log("run", label="DP", inputs=[("PublicImages", digest), ("scans", "")])
    result = {one.dataset.name: one.dataset.digest for one in tracker.client().get_run(run).inputs.dataset_inputs}
    assert result == {"PublicImages": digest[:32], "scans": WITHHELD}
    tracker.log("run", label="DP", run=run, inputs=[("PublicImages", digest)])
    assert len(tracker.client().get_run(run).inputs.dataset_inputs) == 2


def test_a_released_model_is_a_version_with_its_certificate_and_nothing_pickled(tracker, tmp_path):
    folder = tmp_path / "model-of-mine"
    folder.mkdir()
    (folder / "tensors.safetensors").write_bytes(b"weights")
    run = tracker.log("run", label="DP")
    versions = []
    for epsilon in ("9.5", "3.0"):
        stated = {"tags": {"epsilon": epsilon, "label": "DP"}, "note": "a sentence"}
        versions.append(tracker.release("scans-rapid", folder, run=run, **stated))
    assert versions == ["1", "1"], "a run that is published again keeps its version"
    other = tracker.log("another run", label="DP")
    assert tracker.release("scans-rapid", folder, run=other, tags={}, note="") == "2"
    assert tracker.release("scans-rapid", folder, run=run, **stated) == "1", "what was handed over last is `released`"
    result = tracker.client().get_model_version_by_alias("scans-rapid", RELEASED)
    assert (str(result.version), result.tags, result.description) == (
        "1",
        {"epsilon": "3.0", "label": "DP"},
        "a sentence",
    )
    assert [path.path for path in tracker.client().list_artifacts(run, "model")] == ["model/tensors.safetensors"]
    assert result.source.endswith(f"{run}/artifacts/model") and result.run_id == run
    for name, other in (("scans-rapid", "another run"), ("no such model", run)):
        tracker.withdraw(name, run=other)
    assert tracker.client().get_model_version_by_alias("scans-rapid", RELEASED).version == result.version
    tracker.withdraw("scans-rapid", run=run)
    assert not tracker.client().get_registered_model("scans-rapid").aliases


def test_a_number_that_is_none_does_not_stop_a_run(tracker):
    run = tracker.log("stage", label="DP", metrics={"loss": math.nan, "epsilon": math.inf})
    assert math.isnan(tracker.client().get_run(run).data.metrics["loss"])


def test_more_can_be_said_of_a_run_that_is_there(tracker, tmp_path):
    (tmp_path / "tables").mkdir()
    for name in ("report.html", "tables/time.csv"):
        (tmp_path / name).write_text("# report")
    run = tracker.log("run", label="PUBLIC", params={"seed": 1})
    more = {"tags": {"method": "rapid"}, "metrics": {"epsilon": 9.5}}
    for _ in range(2):  # a run that is published is told of again
        files = [tmp_path / "report.html", tmp_path / "tables"]
        assert tracker.log("run", label="DP", run=run, **more, files=files) == run
    result = tracker.client().get_run(run)
    assert (result.data.params, result.data.metrics) == ({"seed": "1"}, {"epsilon": 9.5})
    assert (result.data.tags["label"], result.data.tags["method"]) == ("DP", "rapid")
    assert [path.path for path in tracker.client().list_artifacts(run)] == ["report.html", "tables"]
    assert list((tracker.files / SHAREABLE).rglob("tables/time.csv"))


@pytest.mark.parametrize("uri", ["nonsense", "sqlite:///{}/garbage.db", "sqlite:////proc/nowhere/mlflow.db"])
def test_a_tracking_place_that_cannot_be_used_is_one_line(tmp_path, uri):
    (tmp_path / "garbage.db").write_text("not a database " * 50)
    uri = uri.format(tmp_path)
    with pytest.raises(BadInput, match=rf"^MLflow at {uri} cannot be used [^\n]*MLFLOW_TRACKING_URI$"):
        Tracker(uri, tmp_path / "files").log("run", label="DP")


def test_a_server_that_does_not_answer_is_one_line_without_its_password(tmp_path, monkeypatch):
    def unreachable(self):
        raise ConnectionError("no answer from http://user:secret@host:5000\nand more\nlines")

    monkeypatch.setattr(Tracker, "client", unreachable)
    with pytest.raises(BadInput, match=r"^MLflow at http://host:5000 [^\n]*no answer[^\n]*$") as caught:
        Tracker("http://user:secret@host:5000", tmp_path).log("run", label="DP")
    assert "secret" not in str(caught.value)
    assert int(os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) <= 3


def test_an_address_with_a_password_among_its_options_is_shown_without_it(tmp_path, monkeypatch):
    """It stood in the message, once of ours and once of what MLflow says."""
    uri = "postgresql://host/mlflow?user=keeper&password=a-secret&sslmode=require"

    def unreachable(self):
        raise ConnectionError(f"no answer from {uri}")

    monkeypatch.setattr(Tracker, "client", unreachable)
    with pytest.raises(BadInput, match=r"^MLflow at postgresql://host/mlflow\?user=keeper") as caught:
        Tracker(uri, tmp_path).check()
    assert "secret" not in str(caught.value) and str(caught.value).count("sslmode=require") == 2


def test_a_server_that_is_gone_is_one_line_before_mlflow_tries_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mlflow.MlflowClient", lambda **_: pytest.fail("MLflow was asked"))
    monkeypatch.setattr(tracking, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address, why in ((f"127.0.0.1:{silent.getsockname()[1]}", "timed out"), ("127.0.0.1:9", "refused")):
            tracker = Tracker(f"http://me:secret@{address}", tmp_path / "files")
            for ask in (tracker.check, lambda tracker=tracker: tracker.log("run", label="DP")):
                with pytest.raises(BadInput, match=rf"^MLflow at http://{address} cannot be used \([^\n]*{why}\): set"):
                    ask()


def test_a_database_that_is_there_is_used_as_it_is_and_a_broken_one_is_one_line(tracker, tmp_path, monkeypatch):
    tracker.client()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mlflow", None)  # to import it is an error
        tracker.lay_out()
        with pytest.raises(BadInput, match="^MLflow at sqlite:///[^\n]*set MLFLOW_TRACKING_URI$"):
            Tracker(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "files").lay_out()
    (tmp_path / "mlflow.db").write_text("not a database " * 50)
    with pytest.raises(BadInput, match="^MLflow at sqlite:///[^\n]*not a database[^\n]*$"):
        Tracker(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "files").lay_out()


@pytest.mark.parametrize("status", [200, 401, 404])
def test_whatever_answers_is_a_server(status):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.handle_request, daemon=True).start()
    tracking.require_answer(f"http://127.0.0.1:{server.server_port}")
    server.server_close()


def test_an_experiment_is_made_once_and_says_what_may_be_done_with_it(tracker):
    notes = {
        name: tracker.client().get_experiment(tracker.experiment(name)).tags["mlflow.note.content"]
        for name in (SHAREABLE, INTERNAL)
    }
    assert notes[SHAREABLE].startswith("What may be shown") and notes[INTERNAL].startswith("INTERNAL: do not share")
    assert tracker.experiment(SHAREABLE) == tracker.experiment(SHAREABLE) != tracker.experiment(INTERNAL)


@pytest.mark.parametrize("uri", ["http://tracking:5000", "https://me:secret@tracking"])
def test_a_server_elsewhere_gets_the_files_too(tmp_path, monkeypatch, uri):
    class Client:
        places = ()

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name, artifact_location=None, tags=None):
            self.places += (artifact_location,)
            return "1"

    client = Client()
    monkeypatch.setattr(Tracker, "client", lambda self: client)
    assert Tracker(uri, tmp_path / "files").experiment(SHAREABLE) == "1"
    assert client.places == (None,), "the server's own place, which a folder of this machine is not"
    assert not (tmp_path / "files").exists()


def test_the_page_of_a_run_is_known_where_someone_answers_for_it(tracker):
    run = tracker.log("run", label="DP")
    experiment = tracker.client().get_experiment_by_name(SHAREABLE).experiment_id
    assert page_of(tracker.uri, run).endswith(f"/#/experiments/{experiment}/runs/{run}?workflowType=machine_learning")
    assert page_of(tracker.uri, "0" * 32) == ""


def test_the_page_of_a_run_holds_no_password(tracker, monkeypatch):
    import mlflow

    client, run = tracker.client(), tracker.log("run", label="DP")
    monkeypatch.setattr(mlflow, "MlflowClient", lambda tracking_uri: client)
    assert page_of("https://me:secret@host:5000/", run).startswith("https://host:5000/#/experiments/")


def test_where_nobody_answers_there_is_no_page(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert page_of("http://127.0.0.1:9", "0" * 32) == ""


KILLED = """
import itertools, os, signal, sys
from pathlib import Path
import sqlalchemy as sa
from artifacts.tracking import Tracker
numbers = itertools.count(1)
def die(*_):
    if next(numbers) == 60:
        os.kill(os.getpid(), signal.SIGKILL)
sa.event.listen(sa.Engine, "before_cursor_execute", die)
folder = Path(sys.argv[1])
Tracker(f"sqlite:///{folder / 'mlflow.db'}", folder / "files").client()
"""


@pytest.mark.slow
def test_a_database_that_was_killed_while_it_was_laid_out_is_laid_out_anew(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=CHECKOUT)
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "mlflow.db").exists()
    tracker = Tracker(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "files")
    assert experiment_name(tracker, tracker.log("stage", label="DP")) == SHAREABLE
    assert [path.name for path in tmp_path.glob("mlflow.db*")] == ["mlflow.db"]


def test_a_copied_home_keeps_its_files_in_itself_and_leaves_the_old_one_alone(tracker, tmp_path):
    """Runs and models of before are found in the copy, and what is logged there goes there; also once the old one is gone."""
    (tmp_path / "one.txt").write_text("one")
    run = tracker.log("before", label="DP", files=[tmp_path / "one.txt"])
    tracker.release("scans-rapid", tmp_path, run=run, tags={}, note="")
    old = tracker.files.parent
    shutil.copytree(old, tmp_path / "copy")
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    copy = Tracker(f"sqlite:///{tmp_path / 'copy' / 'mlflow.db'}", tmp_path / "copy" / tracker.files.name)
    later = copy.log("after", label="DP", files=[tmp_path / "one.txt"])
    client = copy.client()
    for result in (run, later):
        assert client.get_run(result).info.artifact_uri.startswith(copy.files.as_uri())
        assert client.list_artifacts(result)[0].path in ("model", "one.txt")
    assert client.get_model_version_by_alias("scans-rapid", RELEASED).source.startswith(copy.files.as_uri())
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    assert tracker.client().get_run(run).info.artifact_uri.startswith(tracker.files.as_uri())


def test_what_is_internal_cannot_be_added_to_a_run_that_may_be_shown(tracker):
    shown = tracker.log("shown", label="DP")
    with pytest.raises(BadInput, match="is not in the experiment 'sfumato-internal'"):
        tracker.log("judge", label="INTERNAL", run=shown, metrics={"cnn": 0.5})
