"""The first signal asks for a stop, the second stops; states are kept every minute and dropped when the stage is done."""

import os
import signal

import pytest
import torch

from artifacts.states import save_state
from sfumato.resuming import TrainingState
from tasks.runtime import checkpoints as module
from tasks.runtime.artifact import RunContext
from tasks.runtime.checkpoints import FolderKeeper, stop_if_late, stored_state
from tasks.runtime.environment import configure
from tests.examples import home_at

CONTEXT = RunContext(run="run-1", parents={}, key="a-key")


@pytest.fixture
def place(tmp_path):
    with home_at(tmp_path / "home"):
        yield configure()


def keep(place, step=2):
    save_state(place.home / "states" / "a-key", TrainingState(step, {"weight/a": torch.zeros(1)}))


def test_what_was_kept_is_found_again_and_dropped_at_the_end(place):
    keep(place)
    with pytest.raises(RuntimeError), stored_state(CONTEXT) as keeper:
        assert keeper.load().step == 2
        raise RuntimeError("not yet done")
    with stored_state(CONTEXT) as keeper:
        assert keeper.load().step == 2
    assert list((place.home / "states").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_is_as_before(place, number):
    before = signal.getsignal(number)
    heard = []
    signal.signal(number, lambda *_: heard.append("stopped at once"))
    try:
        with stored_state(CONTEXT) as keeper:
            assert not keeper.stopping()
            os.kill(os.getpid(), number)
            assert keeper.stopping() and heard == []
            os.kill(os.getpid(), number)
            assert heard == ["stopped at once"]
        os.kill(os.getpid(), number)
        assert len(heard) == 2
        stop_if_late()
    finally:
        signal.signal(number, before)


def test_a_signal_after_the_last_look_stops_what_comes_next(place):
    stop_if_late()
    keep(place)
    with stored_state(CONTEXT) as keeper:
        os.kill(os.getpid(), signal.SIGINT)
        assert keeper.stopping()
    assert list((place.home / "states").iterdir()) == [], "the work is done, and its result can be stored"
    with pytest.raises(KeyboardInterrupt):
        stop_if_late()
    stop_if_late()


def test_a_stretch_lasts_about_a_minute(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    keeper = FolderKeeper(tmp_path)
    assert keeper.stretch(0) == module.FIRST_STEPS
    now[0] = 10.0
    assert keeper.stretch(5) == 30
    now[0] = 1000.0
    assert keeper.stretch(6) == 1
