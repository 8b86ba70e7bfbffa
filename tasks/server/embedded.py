"""The Prefect server inside a run: it lives as long as the run, whatever signal reaches all processes at once.

At its end the run saves its state and then reports to the server; if the server had stopped before, the run would wait and seem
to hang. Ctrl-C in a terminal reaches the server too, which ignores it. SIGTERM, which service managers and torchrun send to all,
ends it; it is started again at the same port. And when the run is killed, its server must not stay behind.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import threading

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED

GRACE_SECONDS = 1.0
"""Seconds that a run at its own end may outlive its server."""


def start_server() -> None:
    """Start the server where no other is named, with SIGINT ignored; Prefect ends it with the run. Takes seconds, once."""
    begin_server().wait()


def begin_server() -> threading.Event:
    """Start the server without waiting: the event is set once it answers, or has failed. A command loads its flow in the meantime."""
    started = threading.Event()
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        started.set()
    else:
        threading.Thread(target=_keep, args=(started,), daemon=True).start()
    return started


def _keep(started: threading.Event) -> None:
    """Start the server, and again whenever it ends before the run does."""
    # The server's process gets the signal mask of the thread that starts it; the main thread goes on hearing Ctrl-C.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    server, over = SubprocessASGIServer(), threading.Event()
    # Where it does not start, the flow tries again and says why.
    with contextlib.suppress(Exception):
        while not over.wait(0):
            server.start()
            process = server.server_process
            started.set()
            if process is None:
                break
            _end_with_us(process.pid)
            atexit.register(over.set)  # heard before Prefect's own, which ends the server
            process.wait()
            over.wait(GRACE_SECONDS)
            server.running = False
    started.set()


def _end_with_us(pid: int) -> None:
    """End a process when this one has ended, however it ended: the pipe between the two breaks then."""
    watching = ["sh", "-c", f"read -r _; kill {pid} 2> {os.devnull}"]
    _WATCHING.append(subprocess.Popen(watching, stdin=subprocess.PIPE, start_new_session=True))


_WATCHING: list[subprocess.Popen[bytes]] = []
