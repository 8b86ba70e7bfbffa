"""Sfumato's errors: the input is wrong (exit code 2), the ledger refuses (exit code 3), a person stopped the work (130).

Each carries one line that names the culprit, its value and the way out, so that the command line prints the message and nothing
else.
"""

import re
from collections.abc import Sequence
from typing import Any

LOGIN = re.compile(r"//[^/\s]*@|//[^/:@\s]*:(?!\d+/)[^@\s]*@")
"""User and password in an address, which may hold @, or a slash where a user and no port stands before it."""
SECRET_OPTION = re.compile(
    r"([?&][^?&=\s]*(?:password|passwd|passphrase|pwd|secret|token|(?:api|access)[-_]?key)[^?&=\s]*=)[^&\s]*",
    re.IGNORECASE,
)
"""A secret among the options of an address, behind its name and up to the next option."""
HIDDEN = "***"
"""Stands for such a secret, as SQLAlchemy shows a password."""
ONE_LINE, FIRST_LINE = 100, 200
"""Most letters that a message takes over of what a decoder says of a file, and of what a service or its library says: it must stay one line in which the
way out can be seen."""
SHOWN_NAMES = 8
"""Names of classes that a message shows."""
SHOWN_DIGITS = 12
"""Digits of an artifact's address, or of a ledger entry's hash, that a message shows: enough to find the one that is meant."""


class BadInput(ValueError):
    """A person's mistake: a path, a setting or an image that cannot be used. Exit code 2."""

    exit_code = 2

    def __init__(self, message: str = "", *, nameless: str = ""):
        """`nameless` is the same message for private images, which may name no file, row or group."""
        super().__init__(message)
        self.nameless = nameless


class OutOfReach(BadInput):
    """A target epsilon that no noise reaches, because other events cost more by themselves."""


class Unnamed(BadInput):
    """A private file that cannot be used, in a line that names no file, which might hold the name of a patient.

    `internal` is the line with the name; a caller that knows the home stores it there and says where.
    """

    def __init__(self, message: str = "", internal: str = ""):
        """`internal` must not leave."""
        super().__init__(message)
        self.internal = internal


def in_full(error: BadInput) -> str:
    """The line of an error with the name of its private file; INTERNAL, for people who may see the collection."""
    return (error.internal if isinstance(error, Unnamed) else "") or str(error)


class Refused(RuntimeError):
    """A door that stays shut: the budget is spent, or the artifact may not leave. Exit code 3."""

    exit_code = 3


class Stopped(RuntimeError):
    """A person, or the machine, asked the work to stop; it was saved first. Exit code 130, as shells have it."""

    exit_code = 130

    def __init__(self, message: str, events: tuple[Any, ...] = ()):
        """`events` are the privacy events that really happened."""
        super().__init__(message)
        self.events = events


def one_line(error: BaseException) -> str:
    """The beginning of what a decoder says, in one line; the kind of error where it says nothing."""
    return " ".join(str(error).split())[:ONE_LINE] or type(error).__name__


def first_names(names: Sequence[str]) -> str:
    """The first of these names in quotes, and how many more there are."""
    more = f" and {len(names) - SHOWN_NAMES} more" if names[SHOWN_NAMES:] else ""
    return ", ".join(map(repr, names[:SHOWN_NAMES])) + more


def without_passwords(text: str) -> str:
    """An address, or a message with one, without the user and the password before its host, and without secrets among its options."""
    return LOGIN.sub("//", without_secret_options(text))  # in this order, since a secret may hold an @


def without_secret_options(text: str) -> str:
    """The same with the secrets among its options alone taken out (`?password=...`); their names stay."""
    return SECRET_OPTION.sub(rf"\1{HIDDEN}", text)


def first_line(error: BaseException) -> str:
    """The beginning of the first line of what a service or another library says; the kind of error where it says nothing."""
    return next(iter(str(error).strip().splitlines()), "")[:FIRST_LINE] or type(error).__name__
