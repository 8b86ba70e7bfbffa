"""Both UIs on this machine, bound to loopback: Prefect for runs and progress, MLflow for artifacts and scores."""

import os
import signal
import socket
import subprocess
import sys
import time

from rich.console import Console

from sfumato.errors import BadInput
from tasks.where import Where

HOST = "127.0.0.1"
START_SECONDS = 90


def serve_uis(place: Where, port: int, console: Console) -> None:
    """Start both servers and wait; Ctrl-C stops both. `BadInput` where a port is taken."""
    ports = {"Prefect": port, "MLflow": port + 1}
    for name, number in ports.items():
        if _listening(number):
            raise BadInput(f"port {number} for {name} is taken: choose another with --port")
    environment = {**os.environ, "PREFECT_UI_API_URL": f"http://{HOST}:{port}/api"}
    commands = [
        [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port), "--no-services"],
        [
            *[sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port + 1), "--workers", "1"],
            *["--backend-store-uri", place.tracking_uri, "--serve-artifacts"],
            *["--artifacts-destination", (place.home / "mlflow").as_uri()],
        ],
    ]
    log = (place.home / "ui.log").open("ab")
    servers = [
        subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True) for command in commands
    ]
    try:
        deadline = time.monotonic() + START_SECONDS
        while not all(_listening(number) for number in ports.values()):
            if time.monotonic() > deadline or any(server.poll() is not None for server in servers):
                raise BadInput(f"the UIs did not start: see {place.home / 'ui.log'}")
            time.sleep(0.5)
        for name, number in ports.items():
            console.print(f"{name:<8} http://{HOST}:{number}", highlight=False)
        console.print("Ctrl-C closes both.")
        while all(server.poll() is None for server in servers):
            time.sleep(1)
    except KeyboardInterrupt:
        console.print("closed")
    finally:
        for server in servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
        for server in servers:
            server.wait(timeout=30)


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex((HOST, port)) == 0
