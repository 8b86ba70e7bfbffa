"""A worker that stays frozen because its `sfumato serve` was killed is seen and ended; one whose `sfumato serve` lives is left to it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from flows.cli import serve as command
from tasks.runtime.environment import configure
from tasks.runtime.heartbeat import sign
from tasks.runtime.locks import turn
from tasks.server import freezing, serve
from tasks.server.freezing import FILE, end_left_frozen, frozen, left_frozen
from tests.examples import home_at
from tests.tasks.server.test_serve import lives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
KILLED = """
import subprocess, sys, time
from tasks.runtime.environment import configure
from tasks.server.freezing import frozen
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
with frozen(configure(), worker):
    print(worker.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path):
    with home_at(tmp_path / "home"):
        yield configure()


@pytest.fixture
def left(place) -> Iterator[int]:
    """The number of a worker that is frozen, and whose parent was killed."""
    parent = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    number = int(parent.stdout.readline())
    assert left_frozen(place) is None and end_left_frozen(place) == "", "its parent sees to it"
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while left_frozen(place) is None and time.monotonic() < deadline:  # it hears SIGSTOP when it has its turn
        time.sleep(0.01)
    yield number
    if lives(number):
        os.kill(number, signal.SIGKILL)


def test_a_frozen_worker_is_ended_by_the_next_start_when_no_run_saves_any_more(place, left, monkeypatch):
    assert left_frozen(place) == left and lives(left)
    shown = Console(record=True, width=400)
    monkeypatch.setattr(serve, "_watch", lambda *_: None)
    stopped = []
    monkeypatch.setattr(serve.recovery, "end_runs", lambda *of: stopped.append(of))
    with turn(place.home, sign("saving"), ""):
        site = serve.Site(place, "", {}, None)
        waiting = threading.Thread(target=serve._carry_out, args=(site, {}, shown, False))
        waiting.start()
        time.sleep(1)
        assert lives(left), "a run writes into its pipe"
    waiting.join(60)
    assert stopped == [(place, "", serve.STOP_SECONDS)], "one that was not asked to stop before"
    assert not lives(left) and f"frozen (process {left}): it was ended" in shown.export_text()
    assert end_left_frozen(place) == "" and not (place.home / FILE).exists()


def test_status_says_so_and_ends_nothing(place, left, monkeypatch, capsys):
    monkeypatch.setattr(command, "OUT", Console(width=400))
    command.status()
    assert f"worker  process {left} is left of a `sfumato serve` that was killed" in capsys.readouterr().out
    assert lives(left)


def test_what_has_its_number_now_is_left_alone(place, left):
    note = json.loads((place.home / FILE).read_text())
    for other in ({**note, "began": "1"}, {**note, "number": os.getpid()}, {**note, "more": 1}, []):
        (place.home / FILE).write_text(json.dumps(other))
        assert left_frozen(place) is None and end_left_frozen(place) == "" and lives(left)


def test_inside_the_block_a_worker_is_frozen_and_afterwards_goes_on(place):
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with frozen(place, worker):
            deadline = time.monotonic() + 60
            while freezing.process_of(worker.pid).state != freezing.STOPPED and time.monotonic() < deadline:
                time.sleep(0.01)
            assert freezing.process_of(worker.pid).state == freezing.STOPPED and (place.home / FILE).exists()
        assert not (place.home / FILE).exists()
        worker.terminate()
        assert worker.wait(60) == -signal.SIGTERM
    finally:
        worker.kill()
