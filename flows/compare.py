"""The flow that sets methods, budgets and settings side by side, on the same data and over several seeds."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from artifacts.record import RunRecord
from artifacts.reports.comparison import Comparison, row_of
from artifacts.reports.differences import PairRow, row_of_pair
from flows.pairs import paired
from flows.private_half import terms
from flows.synthesize import run_plan
from flows.variants import Cell, RunGrid, planned, variants_of
from sfumato.methods import METHODS
from sfumato.preflight import private_set
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.settings import preset_for
from tasks.checks import counted_with, over_budget
from tasks.comparison import comparing, conclude
from tasks.planning import Wishes
from tasks.runtime.environment import configure
from tasks.runtime.heartbeat import attended, named
from tasks.runtime.parallel import alone, among_others, side_by_side
from tasks.runtime.progress import CONSOLE


@flow(name="compare", flow_run_name=named("{title}"), persist_result=False, validate_parameters=True)
@attended
def compare(
    variants: list[str] | None = None,
    preset: str = "",
    epsilons: list[float] | None = None,
    seeds: list[int] | None = None,
    changes: list[str] | None = None,
    title: str = "compare",
    axes: dict[str, dict[str, str]] | None = None,
    pairs: list[str] | None = None,
    go_on: bool = False,
) -> Comparison:
    """Run every variant at every budget with every seed, and lay the results side by side.

    Args:
        variants: Methods, each followed by settings of its own, for example `rapid method.k=0.3`; empty takes all methods, and the
            controls for what they take beside.
        preset: Named settings to start from; empty takes `digits` for the embedded digits and `auto` for other data.
        epsilons: Target epsilons; empty takes that of the settings.
        seeds: Seeds of the public stages.
        changes: Further settings of all runs as `section.field=value`.
        title: What the comparison is called.
        axes: What a sweep varies, in place of variants: setting, value as it is shown, variant.
        pairs: Parts that are taken out, one at a time (`flows.pairs.ABLATIONS`): each variant runs with and without.
        go_on: Pay even where the rehearsal with public images fails; ledger, report and card say so.
    """
    configure()
    wanted = variants_of(axes or {}) or variants or ([] if pairs else list(METHODS))
    grid = RunGrid(
        wanted, preset, epsilons or (), seeds or (0,), changes or (), title, axes or {}, controls=not (axes or variants)
    )
    grid = paired(pairs, grid) if pairs else grid
    return compare_cells(grid, planned(grid), go_on=go_on)


def compare_planned(grid: RunGrid, cells: Sequence[Cell], *, go_on: bool = False) -> Comparison:
    """Compare runs that were planned in this process."""

    @flow(name="compare", flow_run_name=named("{title}"), persist_result=False)
    @attended
    def as_planned(
        title: str, variants: list[str], preset: str, epsilons: list[float], seeds: list[int], changes: list[str]
    ) -> Comparison:
        return compare_cells(grid, cells, go_on=go_on)

    targets, seeds, changes = list(grid.epsilons), list(grid.seeds), list(grid.changes)
    return as_planned(grid.title, list(grid.variants), grid.preset, targets, seeds, changes)


def compare_cells(grid: RunGrid, cells: Sequence[Cell], *, go_on: bool) -> Comparison:
    """Carry out all runs, and compare their results."""
    with comparing(f"{grid.title}-{preset_for(grid.preset, grid.changes)}") as (name, parents):
        machine = cells[0].run.settings.machine
        if not alone(machine, len(cells)) and borne(cells):
            pieces = [functools.partial(run_cell, cell, parents, go_on=go_on) for cell in cells]
            records = side_by_side(f"{len(cells)} runs", machine, pieces)
        else:
            records = in_turn(cells, parents, go_on=go_on)
        rows = [
            row_of(variant, epsilon, [record for cell, record in zip(cells, records, strict=True)
                                      if (cell.variant, cell.epsilon) == (variant, epsilon)])
            for variant, epsilon in dict.fromkeys((cell.variant, cell.epsilon) for cell in cells)
        ]  # fmt: skip
        comparison = conclude(name, parents, rows, axes=grid.axes, pairs=differences(grid, cells, records))
    create_markdown_artifact(f"{grid.title}: {len(cells)} runs; INTERNAL, in {comparison.folder}", key="comparison")
    return comparison


def differences(grid: RunGrid, cells: Sequence[Cell], records: Sequence[RunRecord]) -> list[PairRow]:
    """Every pair at every budget, its halves matched seed by seed."""
    by_cell = {
        (cell.variant, cell.epsilon, cell.run.settings.seed): record
        for cell, record in zip(cells, records, strict=True)
    }
    rows = []
    for pair in grid.pairs:
        for epsilon in dict.fromkeys(cell.epsilon for cell in cells if cell.variant == pair.variant):
            halves = [
                (by_cell[pair.variant, epsilon, seed], by_cell[pair.without, epsilon, seed]) for seed in grid.seeds
            ]
            rows.append(row_of_pair(pair, epsilon, halves))
    return rows


def in_turn(cells: Sequence[Cell], above: Mapping[str, str], *, go_on: bool = False) -> list[RunRecord]:
    """One run after another; the budget must bear those that come after each."""
    records = []
    for number, cell in enumerate(cells):
        CONSOLE.print(
            f"run {number + 1} of {len(cells)}: {cell.variant} at epsilon {cell.epsilon:g}, seed {cell.run.settings.seed}"
        )
        later = tuple(paid_with(cell, cells[number + 1 :]))
        records.append(run_plan(cell.run, Wishes(following=later, above=above, go_on=go_on)))
    return records


def run_cell(cell: Cell, above: Mapping[str, str], *, go_on: bool = False) -> RunRecord:
    """One run among others; the budget bears them all."""
    settings = cell.run.settings
    settings = settings.model_copy(update={"machine": among_others(settings.machine)})
    return run_plan(replace(cell.run, settings=settings), Wishes(above=above, go_on=go_on))


def borne(cells: Sequence[Cell]) -> bool:
    """Whether every budget bears all runs together; otherwise they run one after another."""
    by_set = {private_set(cell.run.settings).name: cell for cell in cells}
    return not any(
        over_budget(private_set(cell.run.settings), paid_with(cell, cells), terms(cell.run.plan))
        for cell in by_set.values()
    )


def paid_with(cell: Cell, others: Sequence[Cell]) -> list[AnyEvent]:
    """What other runs pay for the private set of this one, or for one that counts together with it."""
    name = private_set(cell.run.settings).name
    together = {name, *counted_with(name)}
    return [
        spend.event
        for other in others
        if private_set(other.run.settings).name in together
        for spend in other.run.plan.spends
    ]
