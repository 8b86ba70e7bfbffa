"""Keeps the state of a DP training about every minute, and turns the first Ctrl-C into a stop at a kept state.

A second Ctrl-C ends the work at once; then the ledger counts the stretch of steps that was under way in full.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from artifacts.states import drop_state, load_state, save_state
from sfumato.privacy.engine.resuming import TrainingState
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import where
from tasks.runtime.progress import CONSOLE

KEPT_EVERY_SECONDS = 60.0
"""How much work is done again, and paid for again, at most after a crash."""
FIRST_STEPS = 5
"""Length of the first stretch, before the speed is known."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class FolderKeeper:
    """A `Keeper` on a folder."""

    folder: Path
    asked: threading.Event = field(default_factory=threading.Event)
    """Set when someone asks the work to stop."""
    last: tuple[int, float] | None = None
    """Step and time at which the stretch under way began."""

    def load(self) -> TrainingState | None:
        """The last state that was kept whole."""
        state = load_state(self.folder)
        if state and (why := strange(state)):
            CONSOLE.print(f"what was kept of this training is not gone on with: {why}")
            return None
        if state:
            CONSOLE.print(f"going on after step {state.step}")
        return state

    def save(self, state: TrainingState) -> None:
        """Keep a state in place of the last one."""
        save_state(self.folder, state)

    def stretch(self, step: int) -> int:
        """As many steps as take `KEPT_EVERY_SECONDS` at the speed of the stretch before."""
        now = time.monotonic()
        steps = FIRST_STEPS
        if self.last and step > self.last[0]:
            steps = max(1, int(KEPT_EVERY_SECONDS * (step - self.last[0]) / max(now - self.last[1], 1e-6)))
        self.last = (step, now)
        return steps

    def stopping(self) -> bool:
        """Whether someone asked the work to stop."""
        return self.asked.is_set()


def strange(state: TrainingState) -> str:
    """Why a kept state may not be gone on with: another ledger's; empty where it may."""
    with where().ledger() as ledger:
        known = {entry.hash for entry in ledger.entries()}
    named = {*state.entries, *([state.reservation] if state.reservation else [])}
    return "" if named <= known else "its ledger entries are not in this ledger"


@contextlib.contextmanager
def keeping(context: RunContext) -> Iterator[FolderKeeper]:
    """A keeper for the stage at work; what it kept is dropped when the stage ends without an error."""
    folder = where().home / "states" / (context.key or context.run)
    keeper = FolderKeeper(folder)
    with _asked_by_signals(keeper.asked):
        yield keeper
    drop_state(folder)


@contextlib.contextmanager
def _asked_by_signals(asked: threading.Event) -> Iterator[None]:
    """The first signal asks, the next one does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def ask(number: int, _: FrameType | None) -> None:
        asked.set()
        CONSOLE.print("stopping after this step, which is then saved; once more stops at once")
        for one, handler in before.items():
            signal.signal(one, handler)

    for number in STOP_SIGNALS:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
