"""Ablation pairs: the same method and settings with one part and without it, so that a difference of scores has one cause.

A part is one setting. Where the settings have it at every budget, the half without switches it off; where they have it at none, the half
with it switches it on. What cannot stand beside the part is off in both halves. Not covered: under the preset `auto` other settings follow
from the one that is changed; `also_differs` names them.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from artifacts.reports.differences import AblationPair
from flows.ablations import ABLATIONS, ALIGNED, METHOD, moments_alone
from flows.variants import Cell, RunGrid, cells_of
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import known
from sfumato.settings import written

Budgets = Callable[[str], list[Cell]]
"""A variant, planned at each budget with the first seed."""
CHOICES = "recipe.choices"
"""What the recipe chose and why: the choices themselves are settings of their own."""


def paired(names: Sequence[str], grid: RunGrid) -> RunGrid:
    """The runs of all pairs, each once: of every method in the grid and every part; without methods, of all that can have the part.

    `BadInput` for an unknown part, and for a named method that cannot have it.
    """
    for name in names:
        known("pair", name, ABLATIONS)
    budgets = functools.cache(lambda variant: cells_of(replace(grid, seeds=grid.seeds[:1]), [variant]))
    pairs = [_pair(name, variant, budgets) for name in dict.fromkeys(names) for variant in _bases(name, grid)]
    halves = dict.fromkeys(half for pair in pairs for half in (pair.without, pair.variant))
    return replace(grid, variants=list(halves), pairs=tuple(dict.fromkeys(pairs)), controls=False)


def also_differs(pairs: Sequence[AblationPair], cells: Sequence[Cell]) -> Iterator[str]:
    """The settings in which the halves of a pair differ beside the part itself, a line each pair."""
    for pair in pairs:
        setting = ABLATIONS[pair.part].setting
        one, other = (
            next(cell.run.settings for cell in cells if cell.variant == half) for half in (pair.variant, pair.without)
        )
        values, others = dict(_flat(one.model_dump(mode="json"))), dict(_flat(other.model_dump(mode="json")))
        paths = [path for path in values if path in others and values[path] != others[path]]
        paths = [path for path in paths if path not in (setting, CHOICES)]
        if setting == METHOD:
            paths = [path for path in paths if not path.startswith(("method.", "alignment."))]
        if paths:
            differing = ", ".join(f"{path} ({values[path]}; without {others[path]})" for path in paths)
            yield f"pair {pair.part} of {pair.variant}: these follow from it and differ too: {differing}"


def _bases(name: str, grid: RunGrid) -> list[str]:
    part = ABLATIONS[name]
    if not grid.variants:
        return part.borne_by()
    for variant in grid.variants:
        method = variant.split()[0] if variant.split() else ""
        known("method", method, METHODS)
        if not part.bears(METHODS[method]):
            raise BadInput(
                f"--pairs {name}: {method} cannot have it ({part.what}; {part.methods}): leave it out, or name another --method"
            )
    return list(grid.variants)


def _pair(name: str, variant: str, budgets: Budgets) -> AblationPair:
    """The two halves, with what is common to both."""
    part = ABLATIONS[name]
    for other in part.excludes:
        halves = [variant, *([] if part.beside else [placed(variant, part.setting, part.off)])]
        if any(any(_present(other, half, budgets)) for half in halves):
            variant = placed(variant, ABLATIONS[other].setting, ABLATIONS[other].off)
    for text in part.beside:
        setting, _, value = text.partition("=")
        variant = placed(variant, setting, value)
    present = _present(name, variant, budgets)
    with_part = variant if all(present) else placed(variant, part.setting, part.on)
    without = placed(variant, part.setting, part.off) if any(present) else variant
    return AblationPair(part=name, variant=with_part, without=without)


def placed(variant: str, setting: str, value: str) -> str:
    """A variant with another value of a setting; for that of the method, class moments alone and no setting of the method's own."""
    method, *own = variant.split()
    if setting == METHOD:  # which are aligned anyway
        return " ".join(
            [moments_alone(), *(text for text in own if not text.startswith("method.") and text != ALIGNED)]
        )
    settings = dict(text.partition("=")[::2] for text in own) | {setting: value}
    return " ".join([method, *(f"{name}={text}" for name, text in settings.items())])


def _present(name: str, variant: str, budgets: Budgets) -> list[bool]:
    """Whether a variant has a part, at each budget; never where its method cannot have it."""
    part = ABLATIONS[name]
    if not part.bears(METHODS[variant.split()[0]]):
        return [False]
    read = functools.partial(functools.reduce, getattr, part.setting.split("."))
    return [written(read(cell.run.settings)) != part.off for cell in budgets(variant)]


def _flat(section: dict[str, Any], *path: str) -> Iterator[tuple[str, Any]]:
    """Every value below a section, by its path."""
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, *path, name)
        else:
            yield ".".join((*path, name)), value
