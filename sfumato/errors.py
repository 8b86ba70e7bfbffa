"""The ways Sfumato says no: the input is wrong (exit code 2), the ledger refuses (exit code 3), a person stopped it (130).

Both carry one line that names the culprit, its value and the way out, so that the command line prints the message and
nothing else.
"""

from typing import Any


class BadInput(ValueError):
    """A person's mistake: a path, a setting or an image that cannot be used. Exit code 2."""

    exit_code = 2

    def __init__(self, message: str = "", *, told: str = ""):
        """`told` says the same of private images, where no file, row or group may be named."""
        super().__init__(message)
        self.told = told


class Unnamed(BadInput):
    """A private file that cannot be used, in a line that names none: what leaves a room may hold no name of a patient.

    `internal` is the line that does; whoever knows the home keeps it there and says where.
    """

    def __init__(self, message: str = "", internal: str = ""):
        """`internal` must not leave."""
        super().__init__(message)
        self.internal = internal


def in_full(error: BadInput) -> str:
    """The line of an error with the private file that it is about; INTERNAL, for whoever may see the collection."""
    return (error.internal if isinstance(error, Unnamed) else "") or str(error)


class Refused(RuntimeError):
    """A door that stays shut: the budget is spent, or the artifact may not leave. Exit code 3."""

    exit_code = 3


class Stopped(RuntimeError):
    """A person, or the machine, asked the work to stop; it was saved first. Exit code 130, as shells have it."""

    exit_code = 130

    def __init__(self, message: str, taken: tuple[Any, ...] = ()):
        """`taken` are the privacy events that really happened."""
        super().__init__(message)
        self.taken = taken
