"""The Prefect server inside a run, out of reach of the terminal's Ctrl-C.

Ctrl-C reaches all processes of a terminal at once. The run wants to save its state and then tell the server how it
ended; a server that has stopped before is waited for, and the run seems to hang.
"""

import contextlib
import signal
import threading

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED


def start_server() -> None:
    """Start it where no other server is named, deaf to SIGINT; Prefect ends it with the run. About ten seconds, once."""
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        return
    # The server's process gets the signal mask of the thread that starts it; this one goes on hearing Ctrl-C.
    starting = threading.Thread(target=_start, daemon=True)
    starting.start()
    starting.join()


def _start() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Where it does not start, the flow tries again and says why.
    with contextlib.suppress(Exception):
        SubprocessASGIServer().start()
