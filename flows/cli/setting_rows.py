"""Every setting of a section as a row: its path, its value as a person would write it, what it means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a command that lists no settings takes none of them
    from sfumato.config import Section


def listed(section: Section, *path: str) -> Iterator[tuple[str, str, str]]:
    """Every setting below a section: its path, its value as a person would write it, its description."""
    from sfumato.settings import written

    for place, owner, field in each(section, *path):
        yield place, written(getattr(owner, field)), meaning(owner, field)


def each(section: Section, *path: str) -> Iterator[tuple[str, Section, str]]:
    """Every setting below a section: its path, the section that has it, its field there."""
    from sfumato.config import Section

    for name, field in type(section).model_fields.items():
        value: Any = getattr(section, name)
        if isinstance(value, Section):
            yield from each(value, *path, name)
        else:
            yield ".".join((*path, field.alias or name)), section, name


def meaning(section: Section, field: str) -> str:
    """The description of a field, on one line."""
    return " ".join((type(section).model_fields[field].description or "").split())
