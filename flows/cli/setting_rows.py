"""Every setting of a section as a row: its path, its value as a person would write it, what it means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # a command that lists no settings takes none of them
    from sfumato.config import Section


class SettingRow(NamedTuple):
    """A setting as a person reads it."""

    path: str
    value: str
    """As a person would write it."""
    meaning: str


class SettingPlace(NamedTuple):
    """Where a setting stands."""

    path: str
    section: Section
    field: str
    """In the section."""


def listed(section: Section, *path: str) -> Iterator[SettingRow]:
    """Every setting below a section as a person reads it."""
    from sfumato.settings import written

    for place in each(section, *path):
        value = written(getattr(place.section, place.field))
        yield SettingRow(place.path, value, meaning(place.section, place.field))


def each(section: Section, *path: str) -> Iterator[SettingPlace]:
    """Every setting below a section, and where it stands."""
    from sfumato.config import Section

    for name, field in type(section).model_fields.items():
        value: Any = getattr(section, name)
        if isinstance(value, Section):
            yield from each(value, *path, name)
        else:
            yield SettingPlace(".".join((*path, field.alias or name)), section, name)


def meaning(section: Section, field: str) -> str:
    """The description of a field, on one line."""
    return " ".join((type(section).model_fields[field].description or "").split())
