"""One command in several processes that torchrun started: the first carries it out, the others help it to train.

When the first has reserved for DP fine-tuning and opened its door, it sends the others the stage's arguments and the reservation;
each loads the same models from the store and goes through the door itself. Only the first handles a stop: it stores the state and
dismisses the others.

Not covered: all other stages, which the first process carries out alone; several machines, which need the same store, data
and ledger on each and were not tested; processes on GPUs of their own.
"""

import functools
import signal
from collections.abc import Callable
from typing import Protocol, Self

from sfumato.errors import BadInput, Stopped
from sfumato.privacy.engine.distributed import Parted, Team, join, leave
from tasks.runtime.checkpoints import STOP_SIGNALS
from tasks.runtime.environment import where


class Job(Protocol):
    """The job that the others receive."""

    def under(self, reservation: str) -> Self:
        """The same under a reservation."""

    def model_dump_json(self) -> str:
        """As text."""


@functools.cache
def team() -> Team:
    """The processes of this command; the first call waits for them all."""
    return join(where().rank, where().processes)


def helpers_of(job: Job) -> Callable[[str], Team | None]:
    """From a reservation to the team that trains under it, after sending it the job; None for a process alone."""

    def gather(reservation: str) -> Team | None:
        if where().processes == 1:
            return None
        team().tell(job.under(reservation).model_dump_json())
        return team()

    return gather


def with_helpers(command: Callable[[], None], help_with: Callable[[str], None]) -> None:
    """Carry the command out; in a further process of it, help with one job after another until the first has ended."""
    place = where()
    if place.processes == 1:
        return command()
    met: Team | None = None
    try:
        met = team()
        if place.rank:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            while text := team().tell():
                help_with(text)
        else:
            command()
    except Parted as parted:
        raise Stopped(str(parted)) from parted
    finally:
        if met and not place.rank:
            met.farewell()
        leave()


def refuse_company(what: str) -> None:
    """`BadInput` where several processes carry one command out."""
    if where().processes > 1:
        raise BadInput(
            f"{what} does not go with torchrun, which started {where().processes} processes: use one of the two"
        )
