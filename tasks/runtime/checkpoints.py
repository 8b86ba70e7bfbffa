"""Stores the state of a training about every minute, and turns the first Ctrl-C into a stop at a stored state.

One that comes after the last step stops the run when the result of the training is stored. A second Ctrl-C ends the work at once; of a private training the ledger then counts the current stretch of steps in full. A public
one resumes to the same weights whatever ended it.
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
from sfumato.errors import Stopped
from sfumato.resuming import TrainingState
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import where
from tasks.runtime.progress import CONSOLE

SAVE_EVERY_SECONDS = 60.0
"""Seconds between two stored states, where a twentieth of the steps (`MOST_LOST`) does not come first: the most work that is done again after a crash,
and if private paid for again."""
FIRST_STEPS = 5
"""Length of the first stretch, before the speed is known."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNALLED = 128
"""Offset from the number of a signal to the exit code of a process that it ended."""


@dataclass
class FolderKeeper:
    """A `Keeper` on a folder."""

    folder: Path
    stop_requested: threading.Event = field(default_factory=threading.Event)
    """Set when a stop is requested."""
    last: tuple[int, float] | None = None
    """Step and time at which the stretch under way began."""

    def load(self) -> TrainingState | None:
        """The last complete state."""
        state = load_state(self.folder)
        if state and (why := strange(state)):
            CONSOLE.print(f"the stored state of this training cannot be resumed: {why}")
            return None
        if state:
            CONSOLE.print(f"going on after step {state.step}")
        return state

    def save(self, state: TrainingState) -> None:
        """Store a state in place of the last one."""
        save_state(self.folder, state)

    def stretch(self, step: int) -> int:
        """The number of steps that take `SAVE_EVERY_SECONDS` at the speed of the stretch before."""
        now = time.monotonic()
        steps = FIRST_STEPS
        if self.last and step > self.last[0]:
            steps = max(1, int(SAVE_EVERY_SECONDS * (step - self.last[0]) / max(now - self.last[1], 1e-6)))
        self.last = (step, now)
        return steps

    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self.stop_requested.is_set()


def strange(state: TrainingState) -> str:
    """The reason why a stored state may not be resumed: it is another ledger's; empty where it may, or where it stands on no entry."""
    named = {*state.entries, *([state.reservation] if state.reservation else [])}
    if not named:
        return ""
    with where().ledger() as ledger:
        known = {entry.hash for entry in ledger.entries()}
    return "" if named <= known else "its ledger entries are not in this ledger"


def resumable(key: str) -> bool:
    """Whether the stage of this cache key has stored a state of this ledger, after which it goes on."""
    state = load_state(_folder(key))
    return state is not None and not strange(state)


def _folder(key: str) -> Path:
    return where().home / "states" / key


@contextlib.contextmanager
def stored_state(context: RunContext) -> Iterator[FolderKeeper]:
    """A keeper for the running stage; its state is deleted when the stage ends without an error."""
    folder = _folder(context.key or context.run)
    keeper = FolderKeeper(folder)
    with _stop_on_signals(keeper.stop_requested):
        yield keeper
    drop_state(folder)


def stop_if_late() -> None:
    """Give a signal its usual effect now where it came too late for the training to stop at a state: call when a result is stored."""
    if _LATE:
        signal.raise_signal(_LATE.pop())


_LATE: list[int] = []
"""A signal that came after its training had looked for one for the last time."""


@contextlib.contextmanager
def _stop_on_signals(requested: threading.Event) -> Iterator[None]:
    """The first signal requests a stop and decides the exit code; the next one has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    received: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        received.append(number)
        requested.set()
        CONSOLE.print("stopping after this step, which is then saved; once more stops at once")
        for one, handler in before.items():
            signal.signal(one, handler)

    for number in STOP_SIGNALS:
        signal.signal(number, ask)
    try:
        yield
    except Stopped as stop:
        stop.exit_code = SIGNALLED + received[0] if received else stop.exit_code
        raise
    else:
        _LATE[:] = received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
