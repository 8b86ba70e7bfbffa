"""Disks that fill up or can only be read, and a clock that jumps: one line, nothing half-written, and it goes on afterwards."""

import os
import random
import shutil
import subprocess
import sys

import pytest

from sfumato.privacy.ledger.ledger import Ledger
from tests.faults.test_kill import SMALL
from tests.faults.whole_runs import PATIENCE_SECONDS, Job
from tests.spends import KEYS, cheap, spend

ENOUGH = "400m"


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, which can be filled, grown and made read-only."""
    place = tmp_path / "disk"
    place.mkdir()
    if not shutil.which("mount") or mounted(place, "size=2m"):
        pytest.skip("no disk can be mounted here: it takes root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def mounted(place, options):
    """Mount it, or mount it anew; what went wrong."""
    again = ["-o", f"remount,{options}"] if os.path.ismount(place) else ["-t", "tmpfs", "-o", options, "tmpfs"]
    return subprocess.run(["mount", *again, str(place)], capture_output=True, text=True).stderr


def command(job):
    """`sfumato run` as a person gives it."""
    changes = (part for change in job.changes for part in ("--set", change))
    homes = {"SFUMATO_HOME": job.home, "PREFECT_HOME": job.home.parent.parent / "prefect"}
    environment = {**os.environ, **{name: str(path) for name, path in homes.items()}, "PREFECT_API_URL": job.api}
    environment["PREFECT_LOCAL_STORAGE_PATH"] = str(job.home / "results")
    line = [sys.executable, "-m", "flows", "run", "rapid", *changes]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def refused(done, *words):
    """One line, exit code 2, no traceback."""
    stated = [line for line in done.stderr.splitlines() if line.startswith("sfumato:")]
    assert done.returncode == 2 and len(stated) == 1 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert any(word in stated[0] for word in words), stated[0]


def test_full_disk(disk, server, tally):
    """disk full at several sizes"""
    job, there = Job(disk / "home", SMALL, server.api), set()
    for megabytes in (2, 4, 6):
        assert not mounted(disk, f"size={megabytes}m")
        done = command(job)
        if done.returncode:  # the larger of these disks may hold all but what is told to MLflow
            refused(done, "space", "disk")
        assert not mounted(disk, f"size={megabytes + 1}m"), "a ledger on a full disk cannot even be read"
        there = tally.inspect(job, there)
    assert not mounted(disk, f"size={ENOUGH}")
    done = command(job)
    assert done.returncode == 0, done.stderr[-2000:]
    tally.inspect(job, there)
    assert tally.passed(), (tally.lost, tally.understated)
    left = [path.name for path in (job.home / "store").iterdir()]
    assert sorted(left) == ["objects", "store.json"], "nothing half-written lies about"


def test_read_only_disk(disk, server, tally):
    """read-only store"""
    job = Job(disk / "home", SMALL, server.api)
    assert not mounted(disk, f"size={ENOUGH},ro")
    refused(command(job), "Read-only", "cannot write")
    assert not mounted(disk, f"size={ENOUGH},rw")
    assert command(job).returncode == 0
    there = tally.inspect(job, set())
    assert not mounted(disk, "ro")
    refused(command(job), "Read-only", "cannot write")
    assert not mounted(disk, "rw")
    tally.inspect(job, there)
    assert tally.passed(), (tally.lost, tally.understated)


def test_the_clock_jumps(tmp_path, tally):
    """clock jumps"""
    times = (f"{random.randint(1971, 2100)}-01-01T00:00:00Z" for _ in iter(int, 1))
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", lambda: next(times), KEYS, price=cheap) as ledger:
        ledger.set_budget("digits", 60, 1e-5)
        for _ in range(50):
            spend(ledger)
            tally.tried += 1
        assert ledger.total("digits").epsilon == 50 and ledger.verify() == [] and ledger.replay() == []
        assert [entry.seq for entry in ledger.entries()] == list(range(1, 52)), "order is by number, not by time"
