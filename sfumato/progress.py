"""Callbacks that report the progress of long work."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


def silent(done: int, total: int) -> None:
    """A progress callback that shows nothing."""


def in_percent(progress: Progress) -> Progress:
    """The callback that hears whole percents alone, for work whose number of steps tells of private records; a speed is then of percents too."""
    return lambda done, total: progress(100 * done // max(1, total), 100)


def part_of(progress: Progress, number: int, parts: int) -> Progress:
    """The callback for part `number`, counted from 0, of work in so many parts that take as long each."""
    return lambda done, total: progress(number * total + done, parts * total)


def parts_of(progress: Progress, steps: Sequence[int]) -> Iterator[Progress]:
    """The callbacks for pieces of work of so many steps each, which are counted as one piece."""

    def counted_from(offset: int) -> Progress:
        return lambda done, _: progress(offset + done, sum(steps))

    return (counted_from(sum(steps[:number])) for number in range(len(steps)))


def counted(items: Iterable[Item], progress: Progress, total: int) -> Iterator[Item]:
    """The items one after the other; each is reported when the next is asked for."""
    for done, item in enumerate(items, 1):
        yield item
        progress(done, total)
