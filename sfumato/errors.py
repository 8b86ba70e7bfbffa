"""The two ways Sfumato says no: the input is wrong (exit code 2), or the ledger refuses (exit code 3).

Both carry one line that names the culprit, its value and the way out, so that the command line prints the message and
nothing else.
"""


class BadInput(ValueError):
    """A person's mistake: a path, a setting or an image that cannot be used. Exit code 2."""

    exit_code = 2


class Refused(RuntimeError):
    """A door that stays shut: the budget is spent, or the artifact may not leave. Exit code 3."""

    exit_code = 3
