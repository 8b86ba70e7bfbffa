"""kill -9 at any moment of the DP stage: the ledger opens, its chain holds, and it never says less than what was taken."""

import itertools
import random
import signal
import time

import pytest

from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.privacy.door import PrivateSet
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.settings import resolve
from tests.processes import PATIENCE_SECONDS, PROCESSES, Marks, Stage, die_at_statement, fine_tune
from tests.spends import KEYS, clock, ledger_at, spend

CHANGES = ["fine_tuning.steps=6", "fine_tuning.batch=128"]
"""So few and small steps that the whole stage takes about a second."""
LEAST_ROUNDS = 10
"""As many kills at least; `--moments` asks for more."""
OVERTIME = 1.1
"""Kills fall between the start and a little after the end of a whole stage."""
ROOM = 1e6
"""A budget that is checked each time and never in the way."""


@pytest.fixture(scope="module")
def stage():
    """The digits preset, with less to do."""
    settings, facts, _ = preflight(resolve("dp-sgd", "digits", changes=CHANGES))
    return Stage(settings, facts, plan_for(settings, facts))


def wait_for(what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def run_and_kill(url, marks, stage, moment):
    """Run the stage in a process of its own and kill it `moment` seconds after its start, or once a mark is there."""
    process = PROCESSES.Process(target=fine_tune, args=(url, marks, stage))
    process.start()
    if isinstance(moment, str):
        wait_for(lambda: marks.count(moment) or not process.is_alive())
    else:
        time.sleep(moment)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the stage ended by itself"


def phase(ledger, marks):
    """Where in the stage the kill fell, as ledger and marks say."""
    kinds = {entry.kind for entry in ledger.entries() if entry.body.get("run") == marks.run}
    numbers = {entry.seq for entry in ledger.entries() if entry.kind == "reserve" and entry.body["run"] == marks.run}
    if any(entry.kind == "commit" and entry.body["reserve"] in numbers for entry in ledger.entries()):
        return "after the commit"
    if marks.count("handed out"):
        return "inside the door"
    return "before the door" if not kinds else "reserved, door shut"


def check_nothing_is_understated(url, stage, every):
    """Hold a ledger opened anew against what the processes left on disk of what they did; the phase of the last kill."""
    terms, event = stage.plan.certificate, stage.event
    with Ledger(url, clock, KEYS) as ledger:
        assert ledger.verify() == []
        opened = {entry.body["reserve"] for entry in ledger.entries() if entry.kind == "open"}
        standing = {entry.body["run"]: (entry.seq, events) for entry, events in ledger.spends("digits")}
        taken = []
        for marks in every:
            if marks.count("handed out"):
                seq, events = standing[marks.run]
                assert marks.count("handed out") == 1 and seq in opened, marks.run
                assert events == (event,) and marks.count("step") <= event.steps, marks.run
                taken.append(event.model_copy(update={"steps": marks.count("step")}))
        assert all(events == (event,) for _, events in standing.values()), "a reservation does not stand in full"
        price = accountant.epsilon(taken, terms.delta, terms.relation)
        assert ledger.total("digits", terms.delta, terms.relation).epsilon >= price
        return phase(ledger, every[-1])


@pytest.mark.slow
def test_killed_at_random_moments_the_ledger_never_understates(database, url, stage, tmp_path, request):
    every, phases = [], []

    def die(moment):
        every.append(Marks(tmp_path, f"run-{len(every)}"))
        run_and_kill(url, every[-1], stage, moment)
        phases.append(check_nothing_is_understated(url, stage, every))
        return phases[-1]

    with Ledger(url, clock, KEYS) as ledger:
        ledger.set_budget("digits", ROOM, stage.plan.certificate.delta)
    # One kill in each phase for certain, however fast the machine is at that moment; and the last tells the pace.
    assert die(0.0) == "before the door"
    die("handed out")
    start = time.monotonic()
    assert die("done") == "after the commit"
    whole = time.monotonic() - start
    rounds = max(LEAST_ROUNDS, request.config.getoption("--moments"))
    moments = [OVERTIME * whole * (number + random.random()) / rounds for number in range(rounds)]
    random.shuffle(moments)
    for moment in moments:
        die(moment)
    with Ledger(url, clock, KEYS) as ledger:
        assert ledger.replay() == [] and {"before the door", "inside the door", "after the commit"} <= set(phases)
        assert len(ledger.spends("digits")) >= sum(bool(marks.count("handed out")) for marks in every) >= 2


def test_killed_before_each_statement_the_ledger_never_understates(database, tmp_path):
    private, seen = PrivateSet(name="digits", source="digits", share=0.0121), set()
    for number in itertools.count(1):
        url, marks = database.fresh(), Marks(tmp_path, f"run-{number}")
        process = PROCESSES.Process(target=die_at_statement, args=(url, marks, number, private))
        process.start()
        process.join(PATIENCE_SECONDS)
        with ledger_at(url) as ledger:
            assert ledger.verify() == [], number
            kinds = tuple(entry.kind for entry in ledger.entries())
            assert ledger.total("digits").epsilon == float("reserve" in kinds), number
            assert "open" in kinds or not marks.count("handed out"), number
            seen.add((kinds, marks.count("handed out")))
            assert spend(ledger, dataset="faces").epsilon == 1.0, "the dead process still holds the ledger"
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL, number
    in_order = [(), ("reserve",), ("reserve", "open"), ("reserve", "open", "commit")]
    assert {kinds for kinds, _ in seen} == set(in_order) and marks.count("done") and number > 15
    assert {taken for kinds, taken in seen if kinds == ("reserve", "open")} == {0, 1}
