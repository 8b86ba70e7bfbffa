"""What `sfumato serve` starts ends with it, however it ends; the rest is tested in one piece (`tests/faults/test_serve.py`)."""

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from sfumato.errors import BadInput
from tasks.runtime.environment import SERVER_FILE, configure
from tasks.server import serve
from tests.examples import home_at

PARENT = """
import sys, time
from tasks.server.serve import _start
with open("/dev/null", "wb") as log:
    child = _start([sys.executable, "-c", "import time; time.sleep(600)"], {}, log)
print(child.pid, flush=True)
time.sleep(600)
"""


def lives(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be noticed as dead."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state) and not state.startswith("Z")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child that its parent died")
def test_a_child_ends_when_its_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert lives(pid)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not lives(pid)


@pytest.mark.parametrize("which", [0, 1])
def test_a_port_that_is_taken_is_named_before_anything_is_started(tmp_path, monkeypatch, which):
    monkeypatch.setattr(serve, "_start", lambda *_: pytest.fail("something was started"))
    with home_at(tmp_path / "home"), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(BadInput, match=rf"port {number} for (Prefect|MLflow) is taken: choose another with --port"):
            serve.serve(configure(), number - which, Console())


def test_a_second_server_for_one_home_is_refused_before_anything_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_start", lambda *_: pytest.fail("something was started"))
    with home_at(tmp_path / "home"), socket.socket() as served:
        place = configure()
        served.bind(("127.0.0.1", 0))
        served.listen()
        note, api = place.home / SERVER_FILE, f"http://127.0.0.1:{served.getsockname()[1]}/api"
        note.write_text(json.dumps({"api": api}))
        with pytest.raises(BadInput, match=f"runs already \\({api}\\).*SFUMATO_HOME"):
            serve.serve(place, 0, Console())
    for left in (json.dumps({"api": api}), "{", "[]", '{"api": 7}'):
        note.write_text(left)
        assert serve.server_at(place) == "", "of a server that ended"


def test_mlflow_hears_of_its_database_where_no_other_user_of_the_machine_reads_it(tmp_path, monkeypatch):
    """A password stood in the list of processes."""
    address, begun = "postgresql://keeper:a-password@127.0.0.1:1/mlflow", {}

    def start(command, environment, log):
        begun[command[2]] = command, environment
        if "mlflow" in command:
            raise KeyboardInterrupt
        return SimpleNamespace(poll=lambda: None, terminate=lambda: None, wait=lambda timeout: 0)

    monkeypatch.setattr(serve, "_start", start)
    with home_at(tmp_path / "home"), socket.socket() as free:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "sqlite:///another.db")
        free.bind(("127.0.0.1", 0))
        serve.serve(configure(), free.getsockname()[1], Console())
    assert set(begun) == {"prefect", "mlflow"}
    assert not any("a-password" in word for command, _ in begun.values() for word in command)
    from mlflow.cli import cli  # takes seconds

    command, environment = begun["mlflow"]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    server = cli.commands[command[3]].make_context("server", command[4:])  # as MLflow itself reads both
    assert server.params["backend_store_uri"] == address and server.params["serve_artifacts"] is True


def test_the_server_that_a_worker_misses_is_named_without_its_password(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "answers", lambda api: False)
    with (
        home_at(tmp_path / "home"),
        pytest.raises(BadInput, match=r"at PREFECT_API_URL=http://host:1/api\?token=\*\*\*;"),
    ):
        serve.join(configure(), "http://keeper:a-password@host:1/api?token=a-secret", Console())


def test_the_worker_carries_out_a_few_runs_at_once_however_many_wait(tmp_path, monkeypatch):
    begun = []

    def start(command, *_):
        begun.append(command)
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "_start", start)
    monkeypatch.setattr(serve.recovery, "mend", lambda *_: [])
    with home_at(tmp_path / "home"), pytest.raises(KeyboardInterrupt):
        serve._watch(serve.Site(configure(), "", {}, None), {}, Console(), Future())
    (command,) = begun
    assert command[command.index("--limit") + 1] == str(serve.RUNS_AT_ONCE) == "2"


def test_what_runs_left_that_were_killed_alone_is_ended_while_the_worker_lives(tmp_path, monkeypatch):
    looks = []

    def look(*where):
        looks.append(where)
        if len(looks) == 2:
            raise KeyboardInterrupt
        raise ValueError("the server is busy")

    monkeypatch.setattr(serve, "_start", lambda *_: SimpleNamespace(poll=lambda: None))
    monkeypatch.setattr(serve.recovery, "mend", lambda *_: [])
    monkeypatch.setattr(serve.recovery, "end_leavings", look)
    monkeypatch.setattr(serve, "TIDY_SECONDS", 0)
    with home_at(tmp_path / "home"), pytest.raises(KeyboardInterrupt):
        serve._watch(serve.Site(configure(), "api", {}, None), {}, Console(), Future())
    assert [api for _, api in looks] == ["api", "api"]


def test_a_deployment_that_fails_is_one_line_while_the_worker_is_at_work(tmp_path, monkeypatch):
    monkeypatch.setattr(
        serve, "_start", lambda *_: SimpleNamespace(poll=lambda: None, wait=lambda: 1, terminate=lambda: None)
    )
    monkeypatch.setattr(serve.recovery, "mend", lambda *_: [])
    monkeypatch.setattr(serve.recovery, "is_deployed", lambda *_: False)
    monkeypatch.setattr(serve.recovery, "keeping_schedules", lambda *_: nullcontext())
    with home_at(tmp_path / "home"), ThreadPoolExecutor(1) as beside:
        site, started = serve.Site(configure(), "", {}, None), {}
        with pytest.raises(BadInput, match="the deployments of prefect.yaml could not be made: see"):
            serve._watch(site, started, Console(), beside.submit(serve._deploy, site))
    assert serve.WORKER in started and len(site.deploying) == 1


def test_a_worker_that_joins_a_server_elsewhere_starts_nothing_else_and_says_whether_it_is_well(tmp_path, monkeypatch):
    begun = []

    def start(command, environment, _):
        begun.append((command, environment))
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "_start", start)
    monkeypatch.setattr(serve, "answers", lambda api: True)
    for name in ("mend", "make_pool", "end_runs"):
        monkeypatch.setattr(serve.recovery, name, lambda *_: [])
    monkeypatch.setattr(serve.automations, "set_up", lambda *_: None)
    monkeypatch.setattr(serve, "_deploy", lambda _: None)
    api = "http://prefect:4200/api"
    with home_at(tmp_path / "home"):
        serve.join(configure(), api, Console())
    ((command, environment),) = begun
    assert "worker" in command and "--with-healthcheck" in command
    assert environment["PREFECT_API_URL"] == api and environment["PREFECT_WORKER_WEBSERVER_HOST"] == "127.0.0.1"


@pytest.mark.parametrize(("api", "named"), [("", "is not set"), ("http://127.0.0.1:9/api", "http://127.0.0.1:9/api")])
def test_a_server_to_join_that_does_not_answer_is_named_before_anything_is_started(tmp_path, monkeypatch, api, named):
    monkeypatch.setattr(serve, "_start", lambda *_: pytest.fail("something was started"))
    with (
        home_at(tmp_path / "home"),
        pytest.raises(BadInput, match=rf"no Prefect server answers .*{named}.*--no-servers"),
    ):
        serve.join(configure(), api, Console())


def test_the_page_of_mlflow_that_is_named_opens_on_trainings():
    assert serve.PAGES["MLflow"].startswith("/#/experiments") and serve.PAGES["MLflow"].endswith(
        "workflowType=machine_learning"
    )
