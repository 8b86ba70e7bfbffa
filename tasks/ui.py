"""Both UIs on this machine, bound to loopback: Prefect for runs and progress, MLflow for artifacts and scores."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import IO

from rich.console import Console

from artifacts.store import write_text
from sfumato.errors import BadInput
from tasks.caching import GPU
from tasks.where import CHECKOUT, SERVER_FILE, Where

HOST = "127.0.0.1"
PAGES = {"Prefect": "/", "MLflow": "/#/experiments"}
LEASES = {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}
"""Turns on the GPU outlive a restart of the server, and end when their holder has died."""
START_SECONDS = 90
POOL = "sfumato"
"""Name of the work pool in prefect.yaml."""


def serve_uis(place: Where, port: int, console: Console, worker: bool = False) -> None:
    """Start both servers and wait; Ctrl-C stops them. `BadInput` where a port is taken.

    With `worker`, also deploy what `prefect.yaml` lists and carry out the runs that are scheduled or started in the UI.
    """
    ports = {"Prefect": port, "MLflow": port + 1}
    for name, number in ports.items():
        if _listening(number):
            raise BadInput(f"port {number} for {name} is taken: choose another with --port")
    environment = {**os.environ, "PREFECT_UI_API_URL": f"http://{HOST}:{port}/api", **LEASES}
    commands = [
        [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)],
        [
            *[sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port + 1), "--workers", "1"],
            *["--backend-store-uri", place.tracking_uri, "--serve-artifacts"],
            *["--artifacts-destination", (place.home / "mlflow").as_uri()],
        ],
    ]
    log = (place.home / "ui.log").open("ab")
    note = place.home / SERVER_FILE
    servers = [_start(command, environment, log) for command in commands]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not all(_listening(number) for number in ports.values()):
            if time.monotonic() > deadline or any(server.poll() is not None for server in servers):
                raise BadInput(f"the UIs did not start: see {place.home / 'ui.log'}")
            time.sleep(0.5)
        for name, number in ports.items():
            console.print(f"{name:<8} http://{HOST}:{number}{PAGES[name]}", highlight=False)
        write_text(note, json.dumps({"api": f"http://{HOST}:{port}/api"}))
        if worker:
            environment |= {"PREFECT_API_URL": f"http://{HOST}:{port}/api"}
            prefect = [sys.executable, "-m", "prefect"]
            deploy = [*prefect, "--no-prompt", "deploy", "--all"]
            pool = [*prefect, "work-pool", "create", POOL, "--type", "process", "--overwrite"]
            turn = [*prefect, "concurrency-limit", "create", GPU, "1"]
            for command in (turn, pool, deploy):
                if subprocess.run(command, env=environment, stdout=log, stderr=log, cwd=CHECKOUT).returncode:
                    raise BadInput(f"the deployments of prefect.yaml could not be made: see {place.home / 'ui.log'}")
            servers.append(_start([*prefect, "worker", "start", "--pool", POOL, "--type", "process"], environment, log))
            console.print(f"{'worker':<8} carries out the deployments of prefect.yaml")
        console.print("Ctrl-C closes all.")
        while all(server.poll() is None for server in servers):
            time.sleep(1)
    except KeyboardInterrupt:
        console.print("closed")
    finally:
        note.unlink(missing_ok=True)
        for server in servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
        for server in servers:
            server.wait(timeout=30)


def _start(command: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen:
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=CHECKOUT, start_new_session=True)


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex((HOST, port)) == 0
