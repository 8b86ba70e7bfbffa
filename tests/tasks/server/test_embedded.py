"""The server of a run starts beside it, comes again when it ends, and goes with it. A stand-in answers in place of Prefect's, which takes seconds."""

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sfumato.errors import BadInput
from tasks.runtime.environment import answers
from tasks.server import embedded
from tasks.server.embedded import HOST, api_at
from tests.tasks.server.test_serve import lives

PATIENCE_SECONDS = 60
STAND_IN = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Health).serve_forever()
"""
LOADED = """
import sys
import flows.synthesize, tasks.server.embedded
print([name for name in sys.modules if name.startswith(("prefect.server", "uvicorn", "fastapi"))])
"""


def soon(holds) -> bool:
    """Whether it holds before patience ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (there := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(there)


@pytest.fixture
def addresses(monkeypatch):
    """Where Prefect was pointed to."""
    addresses: list[str] = []
    monkeypatch.setattr(embedded, "use_server", addresses.append)
    return addresses


@pytest.fixture
def keep(addresses, monkeypatch):
    """A way to keep a server of this program running in the background; it ends with the test."""
    servers = []

    def keep(program: str) -> embedded.Server:
        monkeypatch.setattr(embedded, "SERVER", ["-c", program])
        monkeypatch.setattr(embedded, "GRACE_SECONDS", 0.2)
        server = embedded.Server(dict(os.environ))
        servers.append(server)
        threading.Thread(target=embedded._keep, args=(server, PATIENCE_SECONDS), daemon=True).start()
        return server

    yield keep
    for server in servers:
        server.end()


def test_a_server_that_ends_before_its_run_is_started_again_at_the_same_address(keep, addresses):
    server = keep(STAND_IN)
    assert server.answering.wait(PATIENCE_SECONDS) and len(addresses) == 1 and answers(addresses[0])
    first = server._process
    first.terminate()
    assert soon(lambda: server._process is not first and answers(addresses[0])) and len(addresses) == 1


def test_a_server_goes_with_its_run_and_does_not_come_again(keep, addresses):
    server = keep(STAND_IN)
    assert server.answering.wait(PATIENCE_SECONDS)
    process = server._process
    server.end()
    assert not lives(process.pid) and server.start(1, PATIENCE_SECONDS) is None and server._process is process
    assert not answers(addresses[0])


def test_a_run_that_ends_while_its_server_starts_does_not_wait_for_it(keep):
    server = keep("import time; time.sleep(600)")
    assert soon(lambda: server._process)
    server.end()
    assert soon(lambda: not lives(server._process.pid)) and server.answering.wait(PATIENCE_SECONDS)


def test_a_server_that_does_not_heed_is_killed_after_a_run_that_was_killed():
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as server:
        server.stdout.readline()
        run = f"import os; from tasks.server import embedded; embedded.STOP_SECONDS = 0.5; embedded._end_with_us({server.pid}); os.kill(os.getpid(), 9)"
        subprocess.run([sys.executable, "-c", run])
        assert server.wait(10) == -signal.SIGKILL


def test_where_no_server_starts_prefect_is_left_as_it_is(keep, addresses):
    server = keep("raise SystemExit(1)")
    assert server.answering.wait(PATIENCE_SECONDS) and addresses == []


def test_a_server_that_takes_too_long_is_given_up_in_one_line(keep, addresses, monkeypatch, capfd):
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(embedded, "SILENT_SECONDS", 0.1)
    server = keep("import time; time.sleep(600)")
    with pytest.raises(BadInput, match="did not answer within .* give the same command again") as refusal:
        server.answering.wait()
    assert "\n" not in str(refusal.value) and addresses == [] and not lives(server._process.pid)
    assert "slow to start" in capfd.readouterr().err


@pytest.mark.parametrize("own", [True, False])
def test_a_flow_tells_a_server_of_others_that_it_lives_and_its_own_nothing(own, monkeypatch):
    """The thread that tells it sleeps for a second at a time, and the end of the flow waits for it."""
    from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

    monkeypatch.setattr(embedded, "_OWN", {api_at(1)} if own else {api_at(2)})
    with temporary_settings({PREFECT_API_URL: api_at(1)}):
        usual = get_current_settings().flows.heartbeat_frequency
        with embedded.without_signs_of_life():
            assert get_current_settings().flows.heartbeat_frequency == (None if own else usual) and usual
            assert PREFECT_API_URL.value() == api_at(1)


def test_the_server_that_a_run_starts_is_its_own(keep, addresses, monkeypatch):
    monkeypatch.setattr(embedded, "_OWN", set())
    keep(STAND_IN)
    assert soon(lambda: addresses) and set(addresses) == embedded._OWN


def test_a_server_that_is_named_is_used_and_missed_at_once_where_nothing_listens(monkeypatch):
    monkeypatch.setattr(embedded, "_keep", lambda *_: pytest.fail("a server was started"))
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with HTTPServer((HOST, 0), AsksForAPassword) as there:
        threading.Thread(target=there.handle_request, daemon=True).start()
        with temporary_settings({PREFECT_API_URL: api_at(there.server_port)}):
            assert embedded.begin_server().is_set(), "what asks for a password is a server"
    with (
        temporary_settings({PREFECT_API_URL: api_at(there.server_port)}),
        pytest.raises(
            BadInput, match=rf"no Prefect server listens at PREFECT_API_URL=.*:{there.server_port}/api: start"
        ),
    ):
        embedded.begin_server()


class AsksForAPassword(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(401)

    def log_message(self, *_):
        """Nothing on the screen."""


def test_a_run_loads_none_of_the_servers_code():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
