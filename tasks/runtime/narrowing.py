"""Marks on a stage's parameters that say which part of a value the stage reads.

`Stage.given` puts defaults in the place of the rest, before the key is made. So a result is reused whatever the rest is, and a flow hands over
all that it has.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sfumato.config import Section
from sfumato.settings import Settings

Whole = TypeVar("Whole")


@dataclass(frozen=True)
class Narrowed:
    """Marks a parameter of which a stage reads a part."""

    part: Callable[[Any], Any]
    """From the whole value to one that holds that part and defaults; the same again for what it returns."""


def sections(*names: str, work: str = "") -> Narrowed:
    """These sections of the settings, or of the settings in a value, and of these what `work` sees."""
    return Narrowed(functools.partial(_only, names=names, work=work))


def seen_by(work: str) -> Narrowed:
    """What this work sees of a section (`Section.seen_by`)."""
    return Narrowed(functools.partial(_seen, work=work))


def narrowed(value: Whole, marks: tuple[Any, ...]) -> Whole:
    """The part that these marks on a parameter leave of its value."""
    for mark in marks:
        if isinstance(mark, Narrowed) and value is not None:
            value = mark.part(value)
    return value


def _only(value: Any, *, names: tuple[str, ...], work: str) -> Any:
    settings = value if isinstance(value, Settings) else value.settings
    part = settings.only(*names)
    if work:
        own = {name: getattr(part, name) for name in names}
        part = part.model_copy(update={name: _seen(one, work=work) for name, one in own.items()})
    return part if isinstance(value, Settings) else value.model_copy(update={"settings": part})


def _seen(value: Any, *, work: str) -> Any:
    return value.seen_by(work) if isinstance(value, Section) else value
