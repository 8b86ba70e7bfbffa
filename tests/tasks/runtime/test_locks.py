"""A GPU is held by one stage at a time, the CPU by as many as like; equal stages wait for each other."""

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from sfumato.errors import BadInput
from sfumato.privacy.ledger.chain import queueing
from sfumato.privacy.ledger.ledger import Ledger
from tasks.runtime import locks
from tasks.runtime.environment import Where
from tasks.runtime.locks import holding, turn, turn_everywhere
from tests.spends import KEYS, clock


def taken(path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_device_is_held_for_the_stage_and_given_back_even_when_it_fails(tmp_path):
    with holding(torch.device("cuda"), tmp_path):
        assert taken(tmp_path / "locks" / "cuda-0")
        with holding(torch.device("cuda:1"), tmp_path):
            assert taken(tmp_path / "locks" / "cuda-1")
    assert not taken(tmp_path / "locks" / "cuda-0")
    with pytest.raises(RuntimeError, match="out of memory"), holding(torch.device("cuda:0"), tmp_path):
        raise RuntimeError("out of memory")
    assert not taken(tmp_path / "locks" / "cuda-0") and not taken(tmp_path / "locks" / "cuda-1")


def test_the_cpu_needs_no_turn(tmp_path):
    with holding(torch.device("cpu"), tmp_path), holding(torch.device("cpu"), tmp_path / "nowhere"):
        assert list(tmp_path.iterdir()) == []


HOLDER = """
import sys, time
from pathlib import Path
from tasks.runtime.locks import turn
with turn(Path(sys.argv[1]), "key", ""):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_waits_and_a_dead_holder_gives_its_turn_back(tmp_path, capsys):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n" and taken(tmp_path / "locks" / "key")
    holder.kill()
    holder.wait()
    started = time.monotonic()
    with turn(tmp_path, "key", "waiting"):
        assert taken(tmp_path / "locks" / "key") and time.monotonic() - started < 30


def test_a_lock_whose_file_was_removed_while_somebody_waited_is_taken_anew(tmp_path, monkeypatch):
    flock, path = fcntl.flock, tmp_path / "locks" / "key"

    def removed_first(file, how) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with turn(tmp_path, "key", "waiting"):
        assert taken(path), "by a file that others see"
    assert not taken(path)


# Several machines: homes of their own, one ledger on PostgreSQL, one store

MACHINE = """
import os, sys, time
from types import SimpleNamespace
from artifacts.references import TunedModel
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.ledger.ledger import entry_label
from tasks.runtime import caching
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import where

EVENT = Gaussian(noise_multiplier=5.0)

def fine_tune(context: RunContext, number: int) -> TunedModel:
    return number

class Task:
    # a Prefect task as far as it is asked here, which pays like a private stage and then takes its time
    def __call__(self, context, number, return_state):
        with where().ledger() as ledger:
            ticket = ledger.reserve("scans", "d1gest", [EVENT], "add_remove", 1e-5, stage="fine_tuning", purpose="a test",
                                    run=sys.argv[1], code_version="1", images="any")
            label = entry_label(ledger.opened(ticket))
            print("paid", flush=True)
            while sys.argv[2] and not os.path.exists(sys.argv[2]):
                time.sleep(0.1)
            store = where().store()
            with store.writing() as folder:
                (folder / "weights.json").write_text("weights")
                ref = store.keep(TunedModel, folder, entries={ticket.hash: label})
            ledger.commit(ticket, [EVENT], artifact=ref.digest)
        return SimpleNamespace(result=lambda: ref, name="Completed")

caching.is_here = lambda stage, key: False  # nothing in this machine's own cache
stage = caching.stage(fine_tune)
stage.__dict__["task"] = Task()
ref, cached = caching.run_stage(stage.given(7), RunContext(run=sys.argv[1], parents={}))
print("cached" if cached else "made", ref.digest, flush=True)
"""


PATIENCE_SECONDS = 300


def start(tmp_path, name, ledger, until=""):
    """Another machine that wants the same stage, and is at work on it until a file is there."""
    places = {
        "SFUMATO_HOME": str(tmp_path / name),
        "SFUMATO_LEDGER": ledger,
        "SFUMATO_STORE": f"file://{tmp_path}/share",
    }
    (tmp_path / name).mkdir()
    script = tmp_path / name / "machine.py"
    script.write_text(MACHINE)  # a key needs the code of its stage, so it must have a file
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, str(script), name, str(until)], env={**os.environ, **places, "COLUMNS": "200"}, **pipes
    )


def waits(machine):
    """Returns once it says that it waits for another machine."""
    return any("waiting for fine-tune of another run, on another machine" in line for line in machine.stderr)


def reserved(url):
    with Ledger(url, clock, KEYS) as ledger:
        return [entry.body["run"] for entry in ledger.entries() if entry.kind == "reserve"]


def test_of_two_machines_the_second_waits_and_finds_what_the_first_has_paid_for(tmp_path, postgres_url):
    one = start(tmp_path, "one", postgres_url, until=tmp_path / "go")
    assert one.stdout.readline() == "paid\n"
    two = start(tmp_path, "two", postgres_url)
    assert waits(two) and reserved(postgres_url) == ["one"]
    (tmp_path / "go").touch()
    (made, _), (result, _) = answers = [machine.communicate(timeout=PATIENCE_SECONDS) for machine in (one, two)]
    assert [machine.returncode for machine in (one, two)] == [0, 0], answers
    assert made.split()[0] == "made" and result.split()[0] == "cached" and made.split()[1] == result.split()[1]
    assert reserved(postgres_url) == ["one"]
    assert (tmp_path / "two" / "store" / "objects" / result.split()[1] / "weights.json").is_file()


def test_a_machine_that_dies_gives_its_turn_to_the_next_which_pays_for_itself(tmp_path, postgres_url):
    one = start(tmp_path, "one", postgres_url, until=tmp_path / "never")
    assert one.stdout.readline() == "paid\n"
    two = start(tmp_path, "two", postgres_url)
    assert waits(two)
    one.kill()
    one.communicate()
    stated, _ = two.communicate(timeout=PATIENCE_SECONDS)
    assert stated.split()[:2] == ["paid", "made"] and reserved(postgres_url) == ["one", "two"]


def test_names_are_held_one_by_one_beside_the_ledger_itself(postgres_url):
    waited = []
    with Ledger(postgres_url, clock, KEYS) as ledger, queueing(postgres_url, "one", lambda: waited.append("one")):
        ledger.set_budget("scans", 3.0, 1e-5)
        with queueing(postgres_url, "two", lambda: waited.append("two")):
            assert waited == []
        with pytest.raises(RuntimeError, match="fails"), queueing(postgres_url, "two", lambda: waited.append("two")):
            raise RuntimeError("a stage fails")
    with queueing(postgres_url, "one", lambda: waited.append("one")):
        assert waited == [], "given back, also by what failed"


def test_a_ledger_that_is_away_is_one_line(postgres_server, postgres_url):
    postgres_server.stop()
    with pytest.raises(BadInput, match="cannot be used"), queueing(postgres_url, "one", lambda: None):
        pass


def test_without_a_server_or_a_store_nobody_waits_for_other_machines(tmp_path, monkeypatch):
    requested = []

    @contextlib.contextmanager
    def listening(url, name, waiting):
        requested.append((url, name))
        yield

    monkeypatch.setattr(locks, "queueing", listening)
    place = Where(home=tmp_path, ledger_url="postgresql://host/ledger", tracking_uri="", data=tmp_path, keys=KEYS)
    with turn_everywhere(place, "key", ""):
        assert requested == [] and taken(tmp_path / "locks" / "key")
    with turn_everywhere(replace(place, shared_store="s3://bucket"), "key", ""):
        assert requested == [("postgresql://host/ledger", "key")] and taken(tmp_path / "locks" / "key")
    with queueing(f"sqlite:///{tmp_path}/ledger.db", "key", lambda: requested.append("waiting")):
        assert len(requested) == 1 and not (tmp_path / "ledger.db").exists()
