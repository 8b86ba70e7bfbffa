"""The command `sfumato reproduce`: the tables and figures of the papers, measured here."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from flows.cli.options import HOUR, OUT, GoOn, Yes, warn
from sfumato.errors import BadInput, Refused
from sfumato.inventory import FOLDER, Paper, PaperRow, Size, chosen, papers, row_name
from sfumato.named_settings import names
from tasks.runtime.environment import configure, home_below, where

if TYPE_CHECKING:
    from flows.reproduce import Outputs, RowPlan


def reproduce(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER|ROW]...",
            help=f"A paper ({', '.join(names(FOLDER))}), or a row as --list names it; repeatable. Default: all.",
        ),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="The sizes for two cores; this is the default.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The papers' own sizes, for a GPU.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show every row and its state, and run nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure rows anew whose results stand.")] = False,
    go_on: GoOn = False,
    yes: Yes = False,
) -> None:
    """Measure the tables and figures of the five papers here, and write docs/results/papers.md. Every run spends.

    Rows run one after the other in a home of their own (`reproduce` in the home); each row's result is written as it ends, and the
    same command goes on with those that have none.

    Example: sfumato reproduce rapid --small
    """
    every = papers()
    rows = chosen(wanted or [], every)
    if small and full:
        raise BadInput("--small and --full exclude each other: take one")
    if listing:
        _show_rows(rows, every)
        return
    from flows.reproduce import HOME, of_checkout

    home_below(HOME)
    configure()
    outputs = of_checkout()
    size: Size = "full" if full else "small"
    left = _left(rows, size, outputs, again=again)
    plans = _planned(left, size)
    if not plans:
        _end(left, sum(bool(row.recipe(size)) for row in rows.values()), outputs)
        return
    _show_plan(plans)
    _agree(plans, size, yes=yes)
    _carry_out(plans, outputs, go_on=go_on)


def _left(rows: Mapping[str, PaperRow], size: Size, outputs: "Outputs", *, again: bool) -> dict[str, PaperRow]:
    """The rows with a recipe of this size, without those whose results stand."""
    from artifacts.reports.papers import standing_result

    able = {name: row for name, row in rows.items() if row.recipe(size)}
    if rows and not able:
        reasons = "; ".join(f"{name}: {row.lacking or 'no recipe'}" for name, row in list(rows.items())[:3])
        raise BadInput(
            f"none of these rows can be had at --{size} ({reasons}): sfumato reproduce --list shows what can"
        )
    standing = [] if again else [name for name, row in able.items() if standing_result(outputs.folder, name, row, size)]
    if standing:
        OUT.print(f"measured already: {len(standing)} of {len(able)} rows (--again measures them anew)")
    return {name: row for name, row in able.items() if name not in standing}


def _planned(rows: Mapping[str, PaperRow], size: Size) -> "list[RowPlan]":
    """Every run planned before the first begins; a row whose data are not there, or that cannot be planned, is left out and named."""
    from artifacts.reports.papers import planned as planned_cost
    from flows.reproduce import RowPlan
    from tasks.planning import PlannedRun, plan_run

    plans, known_runs = [], dict[tuple[str, ...], PlannedRun]()
    for name, row in rows.items():
        runs: list[PlannedRun | None] = []
        try:
            for line in row.recipe(size):
                key = (line.method, line.preset, *line.changes)
                if line.method and key not in known_runs:
                    known_runs[key] = plan_run(line.method, line.preset, line.changes_in(str(where().data)))
                runs.append(known_runs[key] if line.method else None)
        except BadInput as error:
            warn(f"{name} is left out{planned_cost(row, size)}: {error}")
            continue
        plans.append(RowPlan(name, row, size, tuple(runs)))
    return plans


def _end(left: Mapping[str, PaperRow], able: int, outputs: "Outputs") -> None:
    """Where nothing runs: the page anew if all rows are measured, and as it is if some are left out; `BadInput` if all that were asked for are."""
    from flows.reproduce import write_page

    if left and len(left) == able:
        raise BadInput(
            f"nothing was measured, and {str(outputs.page)!r} stays as it is: no row that was asked for can be planned here. "
            "sfumato reproduce --list shows the others"
        )
    if not left:
        write_page(outputs)
    state = f"{outputs.page} {'stays as it is' if left else 'is written anew'}"
    OUT.print(f"nothing to run; {state}", soft_wrap=True, highlight=False, markup=False)


def _show_plan(plans: "Sequence[RowPlan]") -> None:
    for plan in plans:
        runs = sum(run is not None for run in plan.runs)
        formulas = len(plan.runs) - runs
        parts = [
            f"{runs} runs{_expected([plan])}" if runs else "",
            f"{formulas} formulas" if formulas else "",
        ]
        OUT.print(f"{plan.name:<32} {', '.join(filter(None, parts))}", highlight=False)
    runs = sum(run is not None for plan in plans for run in plan.runs)
    OUT.print(
        f"{len(plans)} rows, {runs} runs{_expected(plans)}",
        highlight=False,
    )


def _expected(plans: "Sequence[RowPlan]") -> str:
    from artifacts.reports.papers import gpu_hours

    minutes = sum(plan.row.minutes(plan.size) for plan in plans)
    hours = sum(plan.row.hours for plan in plans if plan.size == "full")
    small = f", about {time_of(minutes)} on two cores" if minutes else ""
    return f"{small}, about {gpu_hours(hours)}" if hours else small


def _agree(plans: "Sequence[RowPlan]", size: Size, *, yes: bool) -> None:
    """Ask a person; without a GPU the papers' sizes need a plain yes."""
    runs = [run for plan in plans for run in plan.runs if run]
    if not runs or yes:
        return
    if size == "full" and not _has_gpu(plans):
        minutes = _estimated(plans)
        raise BadInput(
            f"--full without a GPU: {len(runs)} runs would take about {time_of(minutes)} here; take --small, or --yes to go on"
        )
    if sys.stdin.isatty() and not typer.confirm("Begin?"):
        OUT.print("nothing was begun")
        raise typer.Exit


def _estimated(plans: "Sequence[RowPlan]") -> float:
    """Minutes of all runs on this machine, each made once, from a few timed steps."""
    from sfumato.recipe.estimate import estimate
    from tasks.runtime.artifact import on_gpu, one_thread

    runs = {id(run): run for plan in plans for run in plan.runs if run}
    with one_thread():
        return sum(estimate(run.settings, run.plan, gpu=on_gpu(run.settings.machine)).minutes for run in runs.values())


def _has_gpu(plans: "Sequence[RowPlan]") -> bool:
    from tasks.runtime.artifact import on_gpu

    return all(on_gpu(run.settings.machine) for plan in plans for run in plan.runs if run)


def _carry_out(plans: "Sequence[RowPlan]", outputs: "Outputs", *, go_on: bool) -> None:
    from flows.reproduce import carry_out
    from tasks.server.embedded import begin_server

    answering, refused = begin_server() if any(run for plan in plans for run in plan.runs) else None, []
    for number, plan in enumerate(plans, 1):
        OUT.print(f"row {number} of {len(plans)}: {plan.name}", highlight=False)
        if answering:
            answering.wait()
        try:
            carry_out(plan, outputs, go_on=go_on)
        except Refused as refusal:
            warn(f"{plan.name} has no result: {refusal}")
            refused.append(plan.name)
    OUT.print(f"page {outputs.page}", soft_wrap=True, highlight=False, markup=False)
    if refused:
        raise Refused(f"{len(refused)} rows were refused and have no result: {', '.join(refused)}")


def _show_rows(rows: Mapping[str, PaperRow], every: Mapping[str, Paper]) -> None:
    """Every row: what it shows, its time, its state."""
    from artifacts.reports.papers import state
    from flows.reproduce import of_checkout

    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0), leading=0)
    for column in ("row", "what", "small", "full", "state"):
        shown.add_column(column, overflow="fold")
    for paper_name, paper in every.items():
        for key, row in paper.rows.items():
            name = row_name(paper_name, key)
            if name in rows:
                times = [_time_of_recipe(row, size) for size in ("small", "full")]
                shown.add_row(
                    *map(escape, (name, f"{row.place}: {row.shows}", *times, state(of_checkout().folder, name, row)))
                )
    OUT.print(shown)


def _time_of_recipe(row: PaperRow, size: Size) -> str:
    from artifacts.reports.papers import gpu_hours

    lines = row.recipe(size)
    if not lines:
        return "-"
    if not any(line.method for line in lines):
        return "seconds"
    return gpu_hours(row.hours) if size == "full" else time_of(row.minutes(size))


def time_of(minutes: float) -> str:
    """Minutes or hours, as a person says them."""
    return f"{minutes:.0f} min" if minutes < 2 * HOUR else f"{minutes / HOUR:.0f} h"
