"""kill -9 at random moments, of the run and of the server that it talks to; then the same command again."""

import itertools
import random
import time

from tests.faults.whole_runs import Job, finished, killed, started
from tests.tiny import TINY

LAYING_OUT_SECONDS = 5.0
"""Within so long, Prefect's database is half laid out: on an idle machine it takes that long, on a busy one longer."""
SMALL = [*TINY, "evaluation.baseline=false", "evaluation.images=20", "evaluation.resamples=20"]


def attempts(tmp_path, api):
    """Jobs with seeds of their own, so that none finds what another one has made."""
    for seed in itertools.count(1):
        yield Job(tmp_path / f"home-{seed}", [*SMALL, f"seed={seed}"], api)


def interrupted(jobs, moments, tally, strike):
    """Start a job, `strike` at a random moment, look, and again until all moments are over; the last job ends in peace.

    Only a run that was still at work when its moment came counts as tried.
    """
    job = next(jobs)
    seconds = finished(job)  # which only shows how long one takes
    tally.look(job, set())
    job, there = next(jobs), set()
    while tally.tried < moments:
        with started(job) as process:
            process.join(random.uniform(0, seconds))
            if process.is_alive():
                tally.tried += 1
                strike(process)
            else:
                assert process.exitcode == 0, f"the run ended with {process.exitcode} before it was struck"
        there = tally.look(job, there)
        if job.marks.count("done"):
            job, there = next(jobs), set()
    finished(job)
    tally.look(job, there)
    assert tally.passed(), (tally.lost, tally.understated)
    with job.ledger as ledger:
        assert ledger.total("digits").epsilon > 9, "what was paid for stands there"


def test_kill_the_run(tmp_path, server, moments, tally):
    """kill -9 of a run at a random moment"""
    interrupted(attempts(tmp_path, server.api), moments, tally, killed)


def test_kill_the_server(tmp_path, server, moments, tally):
    """kill -9 of the Prefect server under a run at a random moment"""

    def strike(process):
        server.kill()
        time.sleep(1)
        server.start()
        process.join(60)

    interrupted(attempts(tmp_path, server.api), max(1, moments // 10), tally, strike)


def test_kill_while_prefect_lays_out_its_database(tmp_path, moments, tally):
    """kill -9 of a run while Prefect lays out its database in a new home"""
    for number in range(max(1, moments // 20)):
        job = Job(tmp_path / f"home-{number}", [*SMALL, f"seed={number}"])
        database = job.home / "prefect" / "prefect.db"
        with started(job) as process:
            while not database.exists():
                assert process.is_alive()
                time.sleep(0.02)
            process.join(random.uniform(0, LAYING_OUT_SECONDS))
            assert process.is_alive()
            killed(process)
        there = tally.inspect(job, set())
        finished(job)
        tally.look(job, there)
    assert tally.passed(), (tally.lost, tally.understated)
