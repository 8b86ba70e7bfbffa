"""A rule of the recipe and what it picks: a value for one setting, with the reason; and which settings a person has set."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.config import Section
from sfumato.recipe.stage_costs import Declared
from sfumato.settings import Settings


@dataclass(frozen=True)
class Pick:
    """A rule's choice for one setting."""

    setting: str
    value: Any
    why: str


Rule = Callable[[Settings, Declared], Iterator[Pick]]
"""From the settings so far to further picks."""


def placed(section: Any, path: Sequence[str], value: Any) -> Any:
    """The section with one setting, possibly nested, replaced."""
    name, *rest = path
    return section.model_copy(update={name: placed(getattr(section, name), rest, value) if rest else value})


def paths_set(section: Section, *path: str) -> Iterator[str]:
    """The settings that were set explicitly, as `section.field`."""
    for name in sorted(section.model_fields_set):
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from paths_set(value, *path, name)
        else:
            yield ".".join((*path, name))
