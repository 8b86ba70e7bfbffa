"""The flow that sets methods, budgets and settings side by side, on the same data and over several seeds."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from artifacts.comparison import Comparison, row_of
from artifacts.record import RunRecord
from flows.synthesize import run_plan
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.methods.plan import Plan
from sfumato.preflight import plan_for, preflight
from sfumato.settings import DEFAULT_METHOD, DEFAULT_PRESET, Settings, resolve
from tasks.comparing import comparing, conclude
from tasks.making import device_of
from tasks.progress import CONSOLE
from tasks.where import configure

ALONE = "evaluation.baseline=false"
"""A comparison trains no baseline inside its runs: it holds one as a variant where it is asked to."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    variant: str
    epsilon: float
    settings: Settings
    plan: Plan


@flow(name="compare", flow_run_name="compare-{preset}", persist_result=False, validate_parameters=True)
def compare(
    variants: list[str] | None = None,
    preset: str = DEFAULT_PRESET,
    epsilons: list[float] | None = None,
    seeds: list[int] | None = None,
    changes: list[str] | None = None,
    title: str = "compare",
) -> Comparison:
    """Run every variant at every budget with every seed, and lay the results side by side.

    Args:
        variants: Methods, each followed by settings of its own, for example `rapid method.k=0.3`; empty takes all methods.
        preset: Named settings to start from.
        epsilons: Target epsilons; empty takes that of the settings.
        seeds: Seeds of the public stages.
        changes: Further settings of all runs as `section.field=value`.
        title: What the comparison is called.
    """
    configure()
    cells = planned(variants or list(METHODS), preset, epsilons or [], seeds or [0], changes or [])
    with comparing(f"{title}-{preset}") as (name, parents):
        records: list[RunRecord] = []
        for number, cell in enumerate(cells):
            CONSOLE.print(
                f"run {number + 1} of {len(cells)}: {cell.variant} at epsilon {cell.epsilon:g}, seed {cell.settings.seed}"
            )
            later = tuple(spend.event for other in cells[number + 1 :] for spend in other.plan.spends)
            records.append(
                run_plan(cell.settings, cell.plan, preset=preset, publish_to="", following=later, above=parents)
            )
        rows = [
            row_of(variant, epsilon, [record for cell, record in zip(cells, records, strict=True)
                                      if (cell.variant, cell.epsilon) == (variant, epsilon)])
            for variant, epsilon in dict.fromkeys((cell.variant, cell.epsilon) for cell in cells)
        ]  # fmt: skip
        found = conclude(name, parents, rows)
    create_markdown_artifact(f"{title}: {len(cells)} runs; INTERNAL, in {found.folder}", key="comparison")
    return found


def planned(
    variants: Sequence[str], preset: str, epsilons: Sequence[float], seeds: Sequence[int], changes: Sequence[str]
) -> list[Cell]:
    """All runs, checked and planned before the first of them begins."""
    if len(set(variants)) < len(variants):
        raise BadInput(f"variants {', '.join(variants)}: one is there twice; give each once")
    cells = []
    targets = [f"privacy.epsilon={epsilon}" for epsilon in epsilons] or [""]
    for variant, target, seed in itertools.product(variants, targets, seeds):
        method, *own = variant.split()
        given = [*changes, *own, *filter(None, [target]), f"seed={seed}", ALONE]
        settings, facts, _ = preflight(resolve(method, preset, given))
        device_of(settings.machine)
        cells.append(Cell(variant, settings.privacy.epsilon, settings, plan_for(settings, facts)))
    return cells


def sweep_variants(over: Sequence[str], method: str = DEFAULT_METHOD) -> list[str]:
    """`field=v1,v2` each -> variants of `method` with one field changed at a time."""
    variants = []
    for axis in over:
        field, equals, values = axis.partition("=")
        if not equals or not field or not values:
            raise BadInput(
                f"--over {axis!r} is not of the form section.field=value,value: for example method.k=0.3,0.5,0.8"
            )
        variants += [f"{method} {field}={value}" for value in values.split(",")]
    return list(dict.fromkeys(variants))
