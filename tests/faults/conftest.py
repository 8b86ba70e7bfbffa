"""Settings of the fault suite, and the table that it prints at its end."""

import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.faults.whole_runs import Tally

TALLIES: list[Tally] = []


@pytest.fixture
def tally(request):
    """A row of the table, named by the test's first line."""
    kind = getattr(request.node, "callspec", None)
    name = request.function.__doc__.splitlines()[0]
    tally = Tally(f"{name}: {kind.id}" if kind else name)
    TALLIES.append(tally)
    return tally


@pytest.fixture
def moments(request) -> int:
    """At how many moments something is killed."""
    return request.config.getoption("--moments")


class Server:
    """A Prefect server that can be killed and started again at the same address."""

    def __init__(self, home) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.home, self.process = home, None

    @property
    def api(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/api"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=self.environment, **quiet)
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{self.api}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        raise AssertionError("the Prefect server did not start")

    @property
    def environment(self) -> dict[str, str]:
        """Its own folder, whatever other tests have set."""
        import os

        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")}
        return {**environment, "PREFECT_HOME": str(self.home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}

    def kill(self) -> None:
        """kill -9."""
        if self.process:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One Prefect server for all runs that are killed."""
    one = Server(tmp_path_factory.mktemp("prefect"))
    one.start()
    yield one
    one.kill()


def pytest_terminal_summary(terminalreporter) -> None:
    """The suite's table."""
    if TALLIES:
        terminalreporter.write_line("\n| fault | tried | lost | understated |\n| --- | --- | --- | --- |")
        for row in TALLIES:
            terminalreporter.write_line(f"| {row.fault} | {row.tried} | {len(row.lost)} | {len(row.understated)} |")
