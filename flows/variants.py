"""Which runs a comparison or a sweep makes: all planned and checked before the first of them begins."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.errors import BadInput
from sfumato.methods.plan import Plan
from sfumato.preflight import one_extractor, plan_for, preflight
from sfumato.settings import DEFAULT_METHOD, Settings, resolve
from tasks.making import device_of

ALONE = "evaluation.baseline=false"
"""A comparison trains no baseline inside its runs: it holds one as a variant where it is asked to."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    variant: str
    epsilon: float
    settings: Settings
    plan: Plan


def planned(
    variants: Sequence[str],
    preset: str,
    epsilons: Sequence[float],
    seeds: Sequence[int],
    changes: Sequence[str],
    data_folder: str = "",
) -> list[Cell]:
    """All runs, checked and planned before the first of them begins; data sets by name lie in `data_folder`."""
    if len(set(variants)) < len(variants):
        raise BadInput(f"variants {', '.join(variants)}: one is there twice; give each once")
    if not all(variant.split() for variant in variants):
        raise BadInput("--method '' names no method: write a method's name, and settings of its own after it")
    cells = []
    targets = [f"privacy.epsilon={epsilon}" for epsilon in epsilons] or [""]
    for variant, target, seed in itertools.product(variants, targets, seeds):
        method, *own = variant.split()
        given = [*changes, *own, *filter(None, [target]), f"seed={seed}", ALONE]
        settings, facts, _ = preflight(resolve(method, preset, given), data_folder)
        device_of(settings.machine)
        cells.append(Cell(variant, settings.privacy.epsilon, settings, plan_for(settings, facts)))
    one_extractor((cell.settings, cell.plan.facts) for cell in cells)
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
