"""Callbacks that report the progress of long work."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


def silent(done: int, total: int) -> None:
    """A progress callback that shows nothing."""
