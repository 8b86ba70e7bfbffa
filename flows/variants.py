"""The runs of a comparison or a sweep: all planned and checked before the first of them begins.

A variant is a method's name and settings of its own, for example `rapid method.k=0.3`; `preset=NAME` among them selects
another preset than the rest. The axes of a sweep are setting -> value as it is shown -> variant.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from artifacts.reports.differences import AblationPair
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_METHOD, known, sweeps
from sfumato.preflight import one_extractor
from tasks.planning import PlannedRun, plan_run

ALONE = "evaluation.baseline=false"
"""A comparison trains no baseline inside its runs: it can hold one as a variant."""
PRESET = "preset="
Axes = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    variant: str
    run: PlannedRun

    @property
    def epsilon(self) -> float:
        """The target."""
        return self.run.settings.privacy.epsilon


@dataclass(frozen=True)
class RunGrid:
    """The runs of a comparison: every variant at every budget with every seed."""

    variants: Sequence[str]
    preset: str = ""
    epsilons: Sequence[float] = ()
    """Targets; empty takes that of the settings."""
    seeds: Sequence[int] = (0,)
    changes: Sequence[str] = ()
    """Settings of all runs."""
    title: str = "compare"
    axes: Axes = field(default_factory=dict)
    """The axes of a sweep."""
    pairs: tuple[AblationPair, ...] = ()
    """Pairs of variants whose scores are subtracted (`flows.pairs`)."""
    controls: bool = False
    """Whether the controls of methods join, where one of the runs takes votes: they show what votes do by themselves."""


@dataclass(frozen=True)
class Sweep:
    """The axes of a sweep, and the settings of all its runs."""

    axes: Axes
    preset: str = ""
    changes: tuple[str, ...] = ()


def planned(grid: RunGrid) -> list[Cell]:
    """All runs, checked and planned before the first of them begins."""
    variants = grid.variants
    if len(set(variants)) < len(variants):
        raise BadInput(f"variants {', '.join(variants)}: one is there twice; give each once")
    if len(set(grid.seeds)) < len(grid.seeds):
        raise BadInput(
            f"seeds {', '.join(map(str, grid.seeds))}: one is there twice and would count as two runs; give each once"
        )
    if not all(variant.split() for variant in variants):
        raise BadInput("--method '' names no method: write a method's name, and settings of its own after it")
    cells = cells_of(grid, variants)
    if grid.controls and any(cell.run.plan.votes for cell in cells):
        cells += cells_of(grid, [variant for variant in controls() if variant not in variants])
    one_extractor((cell.run.settings, cell.run.plan.facts) for cell in cells)
    return cells


def controls() -> list[str]:
    """The variants that methods declare as controls."""
    return [" ".join([name, *method.controls]) for name, method in METHODS.items() if method.controls]


def cells_of(grid: RunGrid, variants: Sequence[str]) -> list[Cell]:
    """Every variant at every budget with every seed, planned."""
    cells = []
    targets = [f"privacy.epsilon={epsilon}" for epsilon in grid.epsilons] or [""]
    for variant, target, seed in itertools.product(variants, targets, grid.seeds):
        method, *own = variant.split()
        start = next((text.removeprefix(PRESET) for text in own if text.startswith(PRESET)), grid.preset)
        own = [text for text in own if not text.startswith(PRESET)]
        all_changes = [*grid.changes, *own, *filter(None, [target]), f"seed={seed}", ALONE]
        cells.append(Cell(variant, plan_run(method, start, all_changes)))
    return cells


def sweep_over(over: Sequence[str], method: str = DEFAULT_METHOD) -> Sweep:
    """`field=v1,v2` each -> a sweep of `method` that changes one field at a time."""
    axes: Axes = {}
    for axis in over:
        field, equals, values = axis.partition("=")
        if not equals or not field or not values:
            raise BadInput(
                f"--over {axis!r} is not of the form section.field=value,value: for example method.k=0.5,0.65,0.8"
            )
        axes.setdefault(field, {}).update(_variants(method, field, values.split(",")))
    return Sweep(axes)


def named_sweep(name: str) -> Sweep:
    """A named sweep; `BadInput` for an unknown name."""
    known("sweep", name, written := sweeps())
    sweep = written[name]
    axes: Axes = {
        setting: dict(values) if isinstance(values, Mapping) else _variants(sweep["method"], setting, values)
        for setting, values in sweep["axes"].items()
    }
    changes = tuple(f"{section}={json.dumps(diff)}" for section, diff in sweep.get("settings", {}).items())
    return Sweep(axes, sweep["preset"], changes)


def variants_of(axes: Axes) -> list[str]:
    """All variants, each once."""
    return list(dict.fromkeys(variant for values in axes.values() for variant in values.values()))


def _variants(method: str, field: str, values: Sequence[Any]) -> dict[str, str]:
    texts = [value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for value in values]
    return {text: f"{method} {field}={text}" for text in texts}
