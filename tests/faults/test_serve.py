"""`sfumato serve` as a custodian has it: nobody at the keyboard, a schedule, a budget, and processes that die."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleUpdate, DeploymentUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from rich.console import Console

from artifacts.record import records
from flows.cli import serve
from tasks.runtime.environment import SERVER_FILE, Where, configure
from tasks.runtime.heartbeat import sign_of
from tasks.server.recovery import DEPLOYED_CODE, GONE
from tests.examples import home_at

PATIENCE_SECONDS = 1800
"""How long anything may take on a machine that is busy with other things; on an idle one all takes about a minute."""
BUDGET, DELTA = 5.0, 1e-3
"""Two editions of epsilon 3 cost 4.62 together, three would cost 5.99."""
TINY = {
    "data": {"share": 0.1395, "glyphs_per_class": 20},
    "privacy": {"epsilon": 3, "delta": DELTA},
    "network": {"width": 32},
    "pretraining": {"steps": 20},
    "generation": {"images": 20},
    "rehearsal": {"images": 20, "nearer": 1e9, "survives": 0},
    "evaluation": {"images": 20, "baseline": False, "resamples": 20},
}
LONG = {**TINY, "privacy": {"epsilon": 1, "delta": DELTA}, "pretraining": {"steps": 1_000_000}}
LONG_PRIVATE = {**TINY, "privacy": {"epsilon": 0.2, "delta": DELTA}, "fine_tuning": {"steps": 20_000}}
"""Both fit into what two editions leave of the budget."""


@dataclass(frozen=True)
class Served:
    """A server with its worker, and what it posted."""

    process: subprocess.Popen
    place: Where
    client: SyncPrefectClient
    notices: list[str]

    def deployment(self, name: str) -> Any:
        """A deployment of prefect.yaml."""
        return self.client.read_deployment_by_name(f"synthesize/{name}")

    def runs_of(self, name: str) -> list[FlowRun]:
        """Its runs that have ended, in order."""
        identity = self.deployment(name).id
        result = [run for run in self.client.read_flow_runs() if run.deployment_id == identity and run.state.is_final()]
        return sorted(result, key=lambda run: run.end_time)

    def run(self, identity: object) -> FlowRun:
        """A run as the server knows it."""
        return self.client.read_flow_run(identity)


def until(result: Callable[[], Any], served: Served | None = None) -> Any:
    """Wait for something, and say what the log holds where it does not come."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if value := result():
            return value
        time.sleep(0.5)
    log = (served.place.home / "serve.log").read_text()[-3000:] if served else ""
    pytest.fail(f"waited {PATIENCE_SECONDS} s\n{log}")


@contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """A webhook on loopback: its port, and what was posted to it."""
    posted: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing: pytest shows what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, posted
    server.shutdown()


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    """`sfumato serve` on a home of its own, as another process."""
    with home_at(tmp_path_factory.mktemp("served")) as home, listening() as (hook, notices):
        place = configure()
        with place.ledger() as ledger:
            ledger.set_budget("digits", BUDGET, DELTA)
        port = 20_000 + os.getpid() % 20_000
        quick = {
            "SFUMATO_NOTIFY": f"http://127.0.0.1:{hook}/",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
            "PREFECT_SERVER_SERVICES_TRIGGERS_READ_REPLICA_SLEEP_TIME": "0",
        }
        command = [sys.executable, "-m", "flows", "serve", "--port", str(port)]
        with (home / "out").open("wb") as out:
            process = subprocess.Popen(command, env={**os.environ, **quick}, stdout=out, stderr=out)
        try:
            until(lambda: process.poll() is not None or (home / DEPLOYED_CODE).exists())
            assert process.poll() is None, (home / "out").read_text()
            with SyncPrefectClient(json.loads((home / SERVER_FILE).read_text())["api"]) as client:
                yield Served(process, place, client, notices)
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def test_a_schedule_publishes_within_the_budget_and_then_refuses(served):
    schedule = IntervalSchedule(interval=timedelta(seconds=20))
    parameters = {"settings": TINY, "publish_to": ".", "another_edition": True}
    weekly = served.deployment("empirical-denoiser").id
    fires = [DeploymentScheduleUpdate(schedule=schedule, active=True)]
    served.client.update_deployment(weekly, DeploymentUpdate(parameters=parameters, schedules=fires))
    try:
        first, second, third = until(
            lambda: (result := served.runs_of("empirical-denoiser"))[2:] and result[:3], served
        )
    finally:  # what follows is not to wait behind more of them
        served.client.update_deployment(weekly, DeploymentUpdate(schedules=[]))
        for run in served.client.read_flow_runs():
            if run.deployment_id == weekly and run.state.is_scheduled():
                served.client.delete_flow_run(run.id)
    assert first.state.is_completed() and second.state.is_completed() and first.auto_scheduled
    made = [record for record in records(served.place.runs) if record.published]
    assert [record.settings["generation"]["edition"] for record in made] == [1, 2]
    assert [record.run for record in made] == [first.name, second.name]
    assert first.name.endswith("-empirical-denoiser-digits-eps3-edition1"), "method, data, epsilon"
    assert made[0].samples_artifact != made[1].samples_artifact
    assert all(len(list(Path(record.published).glob("data/train/*/*.png"))) == 20 for record in made)
    assert (third.state.type.value, third.state.name) == ("FAILED", "Refused")
    assert re.match(r"epsilon 0\.37\d\d of 5 left for 'digits'", third.state.message)
    assert "\n" not in third.state.message and "Traceback" not in third.state.message
    with served.place.ledger() as ledger:
        total = ledger.total("digits")
        assert (total.spends, total.epsilon) == (2, pytest.approx(4.62, abs=0.01))
        assert ledger.verify() == []


def test_whoever_is_to_be_told_of_a_failure_is_told_why(served):
    # Prefect tells nothing of runs that a schedule made within five minutes of their time before a quarter of an hour has passed.
    served.client.create_flow_run_from_deployment(
        served.deployment("empirical-denoiser").id,
        parameters={"settings": TINY, "another_edition": True},
        tags=["auto-scheduled"],
    )
    reported = until(lambda: [text for text in served.notices if "Refused" in text], served)
    assert "edition3: Refused. " in reported[0] and "'digits'" in reported[0]
    assert reported[0].startswith("empirical-denoiser: 2")
    nearly = r"the budget of 'digits' is nearly spent: epsilon 4\.62\d of 5, 0\.37\d\d left"
    until(lambda: [text for text in served.notices if re.fullmatch(nearly, text)], served)


def test_a_schedule_that_is_refused_sets_its_automation_off(served):
    wanted = {"filter": {"event": {"name": ["prefect.automation.triggered"]}}}

    def set_off() -> set[str]:
        events = served.client.request("POST", "/events/filter", json=wanted).json()["events"]
        return {one["resource"]["prefect.resource.name"] for one in events}

    until(lambda: {"sfumato-refused-schedule", "sfumato-budget"} <= set_off(), served)


def test_what_a_killed_worker_left_behind_is_repaired_and_the_next_run_is_carried_out(served):
    deployment = served.deployment("rapid").id
    run = served.client.create_flow_run_from_deployment(deployment, parameters={"settings": LONG})
    sign = sign_of(served.place.home, run.id)
    until(lambda: sign.exists() and sign.read_text(), served)
    stages = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))

    def at_work() -> bool:
        state = served.run(run.id).state
        assert not state.is_final(), f"{state.name}: {state.message}"
        return any(one.state.is_running() for one in served.client.read_task_runs(flow_run_filter=stages))

    until(at_work, served)
    (worker,) = subprocess.check_output(
        ["pgrep", "-P", str(served.process.pid), "-f", "worker start"], text=True
    ).split()
    os.kill(int(worker), signal.SIGKILL)
    os.kill(int(sign.read_text()), signal.SIGKILL)
    until(lambda: served.run(run.id).state.is_final(), served)
    state = served.run(run.id).state
    assert (state.name, state.message) == ("Crashed", GONE)
    until(lambda: not sign.exists(), served)  # the state is mended first
    assert not any(one.state.is_running() for one in served.client.read_task_runs(flow_run_filter=stages))
    until(lambda: [text for text in served.notices if "Crashed" in text], served)
    bad = {**TINY, "method": {"k": 0.3, "v": 0.4}}
    again = served.client.create_flow_run_from_deployment(deployment, parameters={"settings": bad})
    until(lambda: served.run(again.id).state.is_final(), served)
    state = served.run(again.id).state
    assert state.name == "BadInput" and "method.v=0.4" in state.message, "the new worker is at work"


def test_one_screen_says_how_things_are(served, monkeypatch, capsys):
    monkeypatch.setattr(serve, "OUT", Console(width=400))
    serve.status()
    shown = capsys.readouterr().out
    assert "server  http://127.0.0.1" in shown and "budget  'digits': epsilon 4.6" in shown
    assert "Refused: " in shown and f"Crashed: {GONE}" in shown and "BadInput: " in shown
    assert shown.count("DP, epsilon 2.9") == 2


def of_tuning(served):
    """The reservation for DP fine-tuning, and what ended it."""
    with served.place.ledger() as ledger:
        entries = ledger.entries("digits")
    reserved = [one for one in entries if (one.kind, one.body.get("stage")) == ("reserve", "fine_tuning")]
    return reserved, [
        one for one in entries if one.kind == "commit" and one.body["reserve"] in {r.seq for r in reserved}
    ]


def test_a_stop_saves_what_is_paid_for_and_ends_all_and_the_screen_says_that_the_server_is_down(
    served, monkeypatch, capsys
):
    run = served.client.create_flow_run_from_deployment(
        served.deployment("dp-sgd").id, parameters={"settings": LONG_PRIVATE}
    )
    sign = sign_of(served.place.home, run.id)
    pid = int(until(lambda: sign.exists() and sign.read_text(), served))
    until(lambda: of_tuning(served)[0], served)
    served.process.terminate()
    assert served.process.wait(PATIENCE_SECONDS) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    ((stopped,),) = of_tuning(served)[1:]
    assert stopped.body["epsilon"] < 0.19, "the steps that were taken, and not all that was reserved"
    left = subprocess.run(["pgrep", "-f", str(served.place.home)], capture_output=True, text=True).stdout
    assert left == "" and not (served.place.home / SERVER_FILE).exists()
    monkeypatch.setattr(serve, "OUT", Console(width=400))
    serve.status()
    assert "server  down" in capsys.readouterr().out
