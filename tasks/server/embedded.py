"""The Prefect server of a run: a process of its own that lives as long as the run, whatever signal reaches all processes at once.

It starts while the run is planned, and the run itself loads none of its code. At its end the run saves its state and then reports to
the server; if the server had stopped before, the run would wait and seem to hang. Ctrl-C in a terminal reaches the server too, which
ignores it. SIGTERM, which service managers and torchrun send to all, ends it; it is started again at the same port. And when the run
is killed, its server must not stay behind.
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from sfumato.errors import BadInput, without_passwords
from tasks.runtime.environment import answers, nobody_listens, use_server

HOST = "127.0.0.1"
SERVER = [
    "-m",
    "uvicorn",
    "--factory",
    "prefect.server.api.server:create_app",
    "--log-level",
    "error",
    "--lifespan",
    "on",
]
"""Command line of Python that serves Prefect's API."""
EPHEMERAL = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
"""Settings by which Prefect serves neither pages nor schedules."""
TRIES = 3
"""Ports on which a server may fail to start."""
PATIENCE_SECONDS, SILENT_SECONDS = 600.0, 45.0
"""Seconds that a server may take to answer, which on a machine with much to do are many; and those after which a line says so."""
POLL_SECONDS, STOP_SECONDS = 0.1, 5.0
GRACE_SECONDS = 1.0
"""Seconds that a run at its own end may outlive its server."""


def start_server() -> None:
    """Start the server where no other is named, and wait until it answers. Takes seconds, once."""
    begin_server().wait()


class Answering(threading.Event):
    """Set once the server answers, or has failed."""

    is_late = False
    """Whether it was given up while its process still started."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, and say so where it takes long; `BadInput` where it was given up."""
        if timeout is None and not super().wait(SILENT_SECONDS):
            print("Prefect's server is slow to start, as on a busy machine; waiting", file=sys.stderr, flush=True)
        answers = super().wait(timeout)
        if self.is_late:
            raise BadInput(
                f"Prefect's server did not answer within {PATIENCE_SECONDS:g} s, as on a machine with too much to do: give the same command "
                "again when there is less"
            )
        return answers


def begin_server() -> Answering:
    """Start the server without waiting: the event is set once it answers, or has failed. A command plans its run in the meantime.

    `BadInput` where `PREFECT_API_URL` names a server that is not there.
    """
    from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED, get_current_settings

    settings = get_current_settings()
    if (api := PREFECT_API_URL.value()) and nobody_listens(api):
        raise BadInput(
            f"no Prefect server listens at PREFECT_API_URL={without_passwords(api)}: start it (`sfumato serve`), or unset PREFECT_API_URL, and the run starts its own"
        )
    server = Server({**os.environ, **EPHEMERAL, **settings.to_environment_variables(exclude_unset=True)})
    if api or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        server.answering.set()
    else:
        atexit.register(server.end)
        threading.Thread(target=_keep, args=(server, PATIENCE_SECONDS), daemon=True).start()
    return server.answering


class Server:
    """The process of a server: one at a time, and none any more once the run ends."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.answering = Answering()
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._over, self._turn = threading.Event(), threading.Lock()

    def start(self, port: int, patience: float) -> subprocess.Popen[bytes] | None:
        """The process once it answers at `port`; None where it ends before, takes longer than `patience` seconds, or the run ends."""
        command = [sys.executable, *SERVER, "--host", HOST, "--port", str(port)]
        with self._turn:
            if self._over.is_set():
                return None
            process = self._process = subprocess.Popen(command, env=self._environment)
        _end_with_us(process.pid)
        deadline = time.monotonic() + patience
        while process.poll() is None and not self._over.is_set():
            if answers(api_at(port)):
                return process
            if time.monotonic() > deadline:
                self.answering.is_late = True
                process.kill()
            time.sleep(POLL_SECONDS)
        return None

    def is_over(self, seconds: float) -> bool:
        """Whether the run ends within `seconds`."""
        return self._over.wait(seconds)

    def end(self) -> None:
        """End the process. One that still starts is not waited for: it ends by itself once its database is laid out."""
        with self._turn:
            self._over.set()
        if not self._process:
            return
        self._process.terminate()
        if self.answering.is_set():
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _keep(server: Server, patience: float) -> None:
    """Start the server, point Prefect at it, and start it again whenever it ends before the run does."""
    # The server's process gets the signal mask of the thread that starts it; the main thread goes on hearing Ctrl-C.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Where it does not start, Prefect tries again at its first call and says why.
    with contextlib.suppress(OSError):
        for _ in range(TRIES):
            port = _free_port()
            if (process := server.start(port, patience)) or server.answering.is_late:
                break
        if process:
            _OWN.add(api_at(port))
            use_server(api_at(port))
        server.answering.set()
        while process:
            process.wait()
            process = None if server.is_over(GRACE_SECONDS) else server.start(port, patience)
    server.answering.set()


@contextlib.contextmanager
def without_signs_of_life() -> Iterator[None]:
    """Let a flow tell its own server nothing of being alive: that server ends with it, and nobody watches there.

    Prefect waits up to a second at the end of each flow for the thread that tells it.
    """
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    changes = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None} if is_own(PREFECT_API_URL.value() or "") else {}
    with temporary_settings(changes):
        yield


def is_own(api: str) -> bool:
    """Whether the server at this address is one that this process started, and that ends with it."""
    return api in _OWN


_OWN: set[str] = set()
"""Addresses of servers that this process started."""


def api_at(port: int) -> str:
    """The address of Prefect's API on this machine."""
    return f"http://{HOST}:{port}/api"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def _end_with_us(pid: int) -> None:
    """End a process when this one has ended, however it ended: the pipe between the two breaks then. One that goes on all the same is killed."""
    ending = f"kill {pid} 2> {os.devnull} && sleep {STOP_SECONDS:g} && kill -9 {pid} 2> {os.devnull}"
    watching = ["sh", "-c", f"read -r _; {ending}"]
    _WATCHING.append(subprocess.Popen(watching, stdin=subprocess.PIPE, start_new_session=True))


_WATCHING: list[subprocess.Popen[bytes]] = []
