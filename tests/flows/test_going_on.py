"""The same command after a stop or a crash, where the budget bears exactly one run."""

import contextlib

import pytest

from flows.synthesize import run_plan
from sfumato.errors import Refused, Stopped
from sfumato.privacy.engine import dp_sgd
from tasks import private
from tasks.planning import plan_run
from tasks.runtime.checkpoints import stored_state
from tasks.runtime.environment import where
from tests.in_process import in_process
from tests.tiny import TINY

DELTA = 1e-3
RUN = [*TINY, "evaluation.baseline=false", "fine_tuning.steps=20", "privacy.epsilon=2", f"privacy.delta={DELTA}"]


@contextlib.contextmanager
def stopped_at_once(context):
    with stored_state(context) as keeper:
        keeper.stop_requested.set()
        yield keeper


class Struck(BaseException):
    """The end of a process."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    with in_process(tmp_path / "home", monkeypatch):
        budget(2.0)
        yield


def budget(epsilon):
    with where().ledger() as ledger:
        ledger.set_budget("digits", epsilon, DELTA)


def carry_out():
    return run_plan(plan_run("rapid", changes=RUN))


def spent():
    with where().ledger() as ledger:
        return ledger.total("digits").epsilon


def fail_at(monkeypatch, step):
    """The process dies as it adds the noise of this step."""
    steps, real = [], dp_sgd.add_gaussian

    def noised(*given, **named):
        steps.append(1)
        if len(steps) == step:
            raise Struck
        return real(*given, **named)

    monkeypatch.setattr(dp_sgd, "add_gaussian", noised)


def test_a_run_that_was_stopped_goes_on(home, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(private, "stored_state", stopped_at_once)
        with pytest.raises(Stopped, match="the same command goes on from there"):
            carry_out()
    assert 0 < spent() < 2
    record = carry_out()
    assert record.certificate and record.certificate.epsilon == pytest.approx(spent(), rel=1e-3) and spent() <= 2


def test_a_run_that_died_after_its_votes_goes_on(home, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(private, "load_tuning", lambda *_: (_ for _ in ()).throw(Struck))
        with pytest.raises(Struck):
            carry_out()
    assert 0 < spent() < 2
    assert carry_out().certificate and spent() <= 2


def test_steps_that_a_killed_run_took_twice_are_asked_for_alone(home, monkeypatch):
    with monkeypatch.context() as patched:
        fail_at(patched, 8)
        with pytest.raises(Struck):
            carry_out()
    before = spent()
    with pytest.raises(Refused, match="this run needs") as refused:
        carry_out()
    assert spent() <= before and "needs 2" not in str(refused.value)
    budget(3.0)
    assert carry_out().certificate and 2 < spent() <= 3
