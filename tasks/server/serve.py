"""One Prefect server, one worker and the MLflow UI on this machine, bound to loopback: `sfumato serve`; or the worker alone (`join`).

At its start, and whenever the worker ends, it repairs the leavings of dead processes (`tasks.server.recovery`); a worker that
ends is started again. At a stop the runs end first, and save their state, then the worker, then the server.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO

from rich.console import Console

from artifacts.store import write_text
from artifacts.tracking import AS_TRAINING
from sfumato.errors import BadInput, without_passwords
from tasks.runtime.environment import CHECKOUT, LOG, SERVER_FILE, Where, answers
from tasks.runtime.heartbeat import any_at_work
from tasks.server import automations, events, recovery
from tasks.server.freezing import end_left_frozen, frozen, left_frozen
from tasks.server.timed_log import timed_log

HOST = "127.0.0.1"
PAGES = {"Prefect": "/", "MLflow": f"/#/experiments{AS_TRAINING}"}
WORKER = "worker"
LEASES = {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}
"""Turns on the GPU outlive a restart of the server, and end when their holder has died."""
ALIVE = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(automations.HEARTBEAT_SECONDS)}
"""Runs give signs of life, without which an automation calls them dead."""
HEALTH = {"PREFECT_WORKER_WEBSERVER_HOST": HOST}
"""Where a worker that joins a server elsewhere says that it is well, unless the environment names another address."""
QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Settings of MLflow's server, which only shows runs and needs no workers of its own."""
BACKEND = "MLFLOW_BACKEND_STORE_URI"
"""Tells MLflow's server its database: an address may hold a password, and every user of the machine sees the arguments of a process."""
START_SECONDS = 600
"""Seconds for a server to answer, with a slow disk and all packages to load."""
PROBE_SECONDS = 0.3
"""Seconds for a server on this machine to take a connection."""
STOP_SECONDS = 60
"""Seconds for runs to save their state, and for servers to end, before they are killed."""
TIDY_SECONDS = 300
"""Seconds between two looks for what runs left behind that were killed alone."""
SHORT_SECONDS = 30
"""Seconds that a worker must have lived to be started again."""
RUNS_AT_ONCE = 2
"""On a GPU their stages take turns; more would only hold memory. The others wait, and `sfumato status` says so."""
PR_SET_PDEATHSIG = 1
"""Linux: the signal that a process gets when its parent dies (prctl)."""
PREFECT = [sys.executable, "-m", "prefect"]


def serve(place: Where, port: int, console: Console, worker: bool = True) -> None:
    """Start all and wait; Ctrl-C or SIGTERM stops them. `BadInput` where a port is taken or a server ends.

    The worker deploys what `prefect.yaml` lists and carries out the runs that are scheduled or started in the UI.
    """
    if served := server_at(place):
        raise BadInput(
            f"sfumato serve of this home runs already ({served}), with one worker for it: stop that first, or choose another home with SFUMATO_HOME"
        )
    ports = {"Prefect": port, "MLflow": port + 1}
    for name, number in ports.items():
        if _listening(number):
            raise BadInput(f"port {number} for {name} is taken: choose another with --port")
    api = f"http://{HOST}:{port}/api"
    environment = {**os.environ, "PREFECT_UI_API_URL": api, "PREFECT_API_URL": api, **LEASES, **QUIET, **ALIVE}
    commands = {
        "Prefect": [*PREFECT, "server", "start", "--host", HOST, "--port", str(port)],
        "MLflow": [
            *[sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port + 1), "--workers", "1"],
            *["--serve-artifacts", "--artifacts-destination", (place.home / "mlflow").as_uri()],
        ],
    }
    own = {"MLflow": {BACKEND: place.tracking_uri}}
    note, started = place.home / SERVER_FILE, {}
    with timed_log(place.home / LOG) as log, _interruptible():
        site = Site(place, api, environment, log)
        try:
            for name, command in commands.items():
                if name == "MLflow":  # its own server would leave a database that is half laid out where it is killed
                    place.tracker().lay_out()
                started[name] = _start(command, environment | own.get(name, {}), log)
            _wait_for(started, ports, place)
            write_text(note, json.dumps({"api": api, "mlflow": f"http://{HOST}:{ports['MLflow']}"}))
            for name, number in ports.items():
                console.print(f"{name:<8} http://{HOST}:{number}{PAGES[name]}", highlight=False)
            _carry_out(site, started, console, worker)
        except KeyboardInterrupt:
            console.print("closing")
        finally:
            note.unlink(missing_ok=True)
            _stop(place, api, started)


def join(place: Where, api: str, console: Console) -> None:
    """Start the worker alone, for the Prefect server whose API is at `api`; Ctrl-C or SIGTERM stops it. `BadInput` where none answers.

    It deploys, repairs and stops as the one of `serve` does, and tells at `PREFECT_WORKER_WEBSERVER_PORT` whether it is well.
    """
    if not api or not answers(api):
        where = f"at PREFECT_API_URL={without_passwords(api)}" if api else "there: PREFECT_API_URL is not set"
        raise BadInput(
            f"no Prefect server answers {where}; set it to the API of one that runs (http://host:4200/api), or leave --no-servers away"
        )
    started: dict[str, subprocess.Popen[bytes]] = {}
    with timed_log(place.home / LOG) as log, _interruptible():
        site = Site(place, api, {**HEALTH, **os.environ, "PREFECT_API_URL": api, **ALIVE}, log, is_remote=True)
        try:
            console.print(f"{'Prefect':<8} {without_passwords(api)}", highlight=False)
            _carry_out(site, started, console, worker=True)
        except KeyboardInterrupt:
            console.print("closing")
        finally:
            _stop(place, api, started)


@dataclass(frozen=True)
class Site:
    """Where servers and worker run, and write."""

    place: Where
    api: str
    environment: dict[str, str]
    log: IO[bytes]
    is_remote: bool = False
    """Whether the servers are none of ours."""
    deploying: list[subprocess.Popen[bytes]] = field(default_factory=list)


def _carry_out(site: Site, started: dict[str, subprocess.Popen[bytes]], console: Console, worker: bool) -> None:
    """Make the pool and the automations, and wait for ever beside what runs; with the worker, deploy too."""
    place, api = site.place, site.api
    if left_frozen(place):
        _end_left_frozen(site, console)
    if worker:
        console.print(f"{WORKER:<8} carries out the deployments of prefect.yaml")
        recovery.make_pool(api)
        if not place.notify:
            automations.set_up(api)
    console.print(f"{'log':<8} {place.home / LOG}\nCtrl-C closes all.", highlight=False, soft_wrap=True)
    with ThreadPoolExecutor(1) as beside:
        try:
            _watch(site, started, console, beside.submit(_deploy, site) if worker else None)
        finally:
            _end(site.deploying)


def _end_left_frozen(site: Site, console: Console) -> None:
    """Finish the stop in which a `sfumato serve` was killed: end the runs, which save their state, then their frozen worker.

    They can say how they ended now that a server answers. Those that were asked to stop before are given their time, since a second signal ends them at once.
    """
    deadline = time.monotonic() + STOP_SECONDS
    while any_at_work(site.place.home) and time.monotonic() < deadline:
        time.sleep(0.5)
    with contextlib.suppress(Exception):
        recovery.end_runs(site.place, site.api, STOP_SECONDS)
    console.print(end_left_frozen(site.place), markup=False, soft_wrap=True, highlight=False)


def _watch(
    site: Site, started: dict[str, subprocess.Popen[bytes]], console: Console, deployed: "Future[None] | None"
) -> None:
    """Wait for ever; a worker that ends is started again after its leavings are repaired. None deployed: there is no worker."""
    command = [
        *[*PREFECT, "worker", "start", "--pool", recovery.POOL, "--type", "process"],
        *["--name", recovery.worker_name(), "--limit", str(RUNS_AT_ONCE)],
        *(["--with-healthcheck"] if site.is_remote else []),
    ]
    place, begun, tidied = site.place, 0.0, 0.0
    while True:
        if deployed and (WORKER not in started or started[WORKER].poll() is not None):
            if WORKER in started:
                if time.monotonic() - begun < SHORT_SECONDS:
                    raise BadInput(f"the worker ends right after its start: see {place.home / LOG}")
                console.print("the worker ended: it is started again")
            for line in recovery.mend(place, site.api):
                console.print(line, markup=False, soft_wrap=True, highlight=False)
            started[WORKER], begun = _start(command, site.environment, site.log), time.monotonic()
            tidied = begun
        if deployed and time.monotonic() - tidied > TIDY_SECONDS:
            for look in (recovery.end_leavings, events.tell_left):
                with contextlib.suppress(Exception):  # a server that is busy must not end the others
                    look(place, site.api)
            tidied = time.monotonic()
        for name, process in started.items():
            if name != WORKER and process.poll() is not None:
                raise BadInput(f"the {name} server ended: see {place.home / LOG}")
        if deployed and deployed.done():
            deployed.result()
        time.sleep(1)


def server_at(place: Where) -> str:
    """The address of the Prefect server that `sfumato serve` runs for this home; empty where none answers."""
    try:
        api = str(json.loads((place.home / SERVER_FILE).read_text(encoding="utf-8"))["api"])
        return api if _listening(int(api.rpartition(":")[2].split("/")[0])) else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _deploy(site: Site) -> None:
    """Deploy prefect.yaml, unless just that is deployed; `BadInput` where it cannot be done. Takes seconds, beside the worker."""
    place, file = site.place, CHECKOUT / "prefect.yaml"
    commands = {}
    if not recovery.is_deployed(place, site.api, file):
        commands["the deployments of prefect.yaml"] = [*PREFECT, "--no-prompt", "deploy", "--all"]
    if place.notify:
        commands["the automations for SFUMATO_NOTIFY"] = [sys.executable, "-m", "tasks.server.notifications"]
    with recovery.keeping_schedules(place, site.api, file):
        for what, command in commands.items():
            site.deploying.append(_start(command, site.environment, site.log))
            if site.deploying[-1].wait():
                raise BadInput(f"{what} could not be made: see {place.home / LOG}")
    recovery.note_deployed(place, file)
    with contextlib.suppress(Exception):  # what a budget has come to is looked at again later
        events.tell_left(place, site.api)  # now that the automations are there which hear of it


def _stop(place: Where, api: str, started: dict[str, subprocess.Popen[bytes]]) -> None:
    """End the runs, which save their state, then the worker, then, when all is told to the server, the servers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if WORKER in started:
        # No error about runs may keep the servers from being stopped.
        with frozen(place, started[WORKER]), contextlib.suppress(Exception):
            recovery.end_runs(place, api, STOP_SECONDS)
        _end([started[WORKER]])
        with contextlib.suppress(Exception):
            recovery.mend(place, api)
    _end([process for name, process in started.items() if name != WORKER])


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes, each of which passes the signal on to its children; hanging ones are killed with them."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(started: dict[str, subprocess.Popen[bytes]], ports: dict[str, int], place: Where) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all(_listening(number) for number in ports.values()):
        if time.monotonic() > deadline or any(server.poll() is not None for server in started.values()):
            raise BadInput(f"the servers did not start: see {place.home / LOG}")
        time.sleep(0.5)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Inside the block SIGTERM and a closed terminal stop as Ctrl-C does; afterwards signals have their former effect."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(command: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        stdout=log,
        stderr=log,
        cwd=CHECKOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )


def _end_with_parent() -> None:
    """In a child: end as at a stop when the parent is killed, so that its ports are free for the next start."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(PROBE_SECONDS)
        return probe.connect_ex((HOST, port)) == 0
