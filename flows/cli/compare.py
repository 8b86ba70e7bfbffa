"""The commands `sfumato compare` and `sfumato sweep`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from flows.ablations import ABLATIONS, described
from flows.cli.options import OUT, GoOn, PresetName, Yes
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_METHOD, SWEEPS, names
from tasks.runtime.environment import configure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from artifacts.reports.comparison import Comparison
    from flows.variants import Cell, RunGrid
    from sfumato.config import Relation

WIDE = 120
"""Width in characters from which the screen shows all scores of a comparison; the report always has them."""
FIRST = ("frechet", "readable", "cnn")
"""The scores that narrower screens show."""

Epsilons = Annotated[str, typer.Option(help="Target epsilons, as 1,3,10; empty takes that of the settings.")]
Seeds = Annotated[str, typer.Option(help="Seeds of the public stages, as 0,1,2.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Change a setting of all runs, or several."),
]


def compare(
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="'NAME [SECTION.FIELD=VALUE ...]'",
            help=f"A method, with settings of its own, preset=NAME among them; repeatable. Default: all of {', '.join(METHODS)}, "
            "and where one takes votes, the control that takes them too.",
        ),
    ] = None,
    preset: PresetName = "",
    epsilons: Epsilons = "",
    pairs: Annotated[
        str,
        typer.Option(
            metavar="PART,PART,...",
            help="Run each method with and without a part, on the same seeds, and show the differences with their intervals. Parts: "
            f"{described()}.",
        ),
    ] = "",
    seeds: Seeds = "0,1,2",
    changes: Changes = None,
    go_on: GoOn = False,
    yes: Yes = False,
) -> None:
    """Set methods side by side at the same budgets: one table, one picture, one trade-off plot. INTERNAL.

    Every run spends, and the budget of the private set must bear their sum. Public stages are made once. Number of runs, time and
    epsilon in all are shown first, and a terminal is asked; without one it goes on, so that a schedule does.

    Example: sfumato compare --method rapid --method 'dp-sgd fine_tuning.draws=8' --epsilons 1,10

    What votes and Eq. 5 bring RAPID: sfumato compare --method rapid --pairs votes,eq5 --seeds 0,1,2
    """
    from flows.pairs import paired
    from flows.variants import RunGrid

    targets, starts, parts = _targets(epsilons), _seeds(seeds), _parts(pairs)
    every = variants or ([] if parts else list(METHODS))
    grid = RunGrid(every, preset, targets, starts, changes or [], controls=not variants)
    _carry_out(paired(parts, grid) if parts else grid, go_on=go_on, yes=yes)


def sweep(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help=f"A paper's ablations: {', '.join(names(SWEEPS))}; with --over, a method."),
    ] = "",
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.FIELD=V1,V2,...", help="What to vary, one setting at a time; repeatable."),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            "--preset", help="Named settings to start from. Default: the sweep's own; with --over as for a run."
        ),
    ] = "",
    epsilons: Epsilons = "",
    seeds: Seeds = "0",
    changes: Changes = None,
    go_on: GoOn = False,
    yes: Yes = False,
) -> None:
    """Vary settings one at a time, and show scores against values: table, picture, samples. INTERNAL; every run spends.

    The ablations of a paper, in small: sfumato sweep rapid

    Your own: sfumato sweep rapid --over method.k=0.5,0.65,0.8 --over fine_tuning.batch=64,256
    """
    from flows.variants import RunGrid, named_sweep, sweep_over, variants_of

    configure()
    if not over and not name:
        raise BadInput(
            f"nothing to vary: name a sweep ({', '.join(names(SWEEPS))}), or use --over section.field=value,value"
        )
    chosen = sweep_over(over, name or DEFAULT_METHOD) if over else named_sweep(name)
    all_changes, title = [*chosen.changes, *(changes or [])], f"sweep-{name or DEFAULT_METHOD}"
    axes = chosen.axes
    grid = RunGrid(
        variants_of(axes),
        preset or chosen.preset,
        _targets(epsilons),
        _seeds(seeds),
        all_changes,
        title=title,
        axes=axes,
    )
    _carry_out(grid, go_on=go_on, yes=yes)


def _carry_out(grid: "RunGrid", *, go_on: bool, yes: bool) -> None:
    from flows.pairs import also_differs
    from flows.variants import planned

    place = configure()
    cells = planned(grid)
    place.store()
    targets = ",".join(f"{epsilon:g}" for epsilon in grid.epsilons) or "of the settings"
    seeds = ",".join(map(str, grid.seeds))
    number = len(grid.pairs)
    pairs = f" in {number} pair{'s' * (number > 1)}" if number else ""
    OUT.print(f"{len(cells)} runs: {len(grid.variants)} variants{pairs}, epsilon {targets}, seeds {seeds}")
    for line in (*also_differs(grid.pairs, cells), *forecast(cells)):
        OUT.print(line, soft_wrap=True, markup=False, highlight=False)
    if not yes and sys.stdin.isatty() and not typer.confirm("Begin?"):
        OUT.print("nothing was begun")
        return
    from tasks.server.embedded import begin_server

    answering = begin_server()
    from flows.compare import compare_planned

    answering.wait()
    show(compare_planned(grid, cells, go_on=go_on))


def forecast(cells: "Sequence[Cell]") -> "Iterator[str]":
    """Upper bounds of the time of all runs on this machine and of their cost for each private set, a line each."""
    from sfumato.recipe.estimate import estimate
    from tasks.runtime.artifact import on_gpu, one_thread

    firsts = {cell.variant: cell for cell in reversed(cells)}
    with one_thread():
        expected = {
            variant: estimate(cell.run.settings, cell.run.plan, gpu=on_gpu(cell.run.settings.machine))
            for variant, cell in firsts.items()
        }
    public_halves = {(cell.variant, cell.run.settings.seed) for cell in cells}
    minutes = sum(expected[cell.variant].minutes - expected[cell.variant].public_minutes for cell in cells)
    minutes += sum(expected[variant].public_minutes for variant, _ in public_halves)
    yield f"time: about {minutes:.0f} min at most, stages in the cache not deducted"
    for name in dict.fromkeys(cell.run.settings.data.name for cell in cells):
        yield f"cost: {priced_together(name, [cell for cell in cells if cell.run.settings.data.name == name])}"


def priced_together(name: str, cells: "Sequence[Cell]") -> str:
    """Upper bound of the joint cost of runs on one private set: at the smallest of their deltas, and under replace_one where any of them
    is stated so."""
    from sfumato.privacy.accounting.accountant import epsilon

    relations = {cell.run.plan.privacy.relation for cell in cells}
    relation: Relation = "replace_one" if "replace_one" in relations else "add_remove"
    delta = min(cell.run.plan.privacy.delta for cell in cells)
    events = [spend.event for cell in cells for spend in cell.run.plan.spends]
    certified = [event for event in events if not event.uncertified(relation)]
    bare = sum(any(spend.event.uncertified(relation) for spend in cell.run.plan.spends) for cell in cells)
    price = f"epsilon {epsilon(certified, delta, relation):.3f} at most for '{name}' (delta {delta:.3g}, {relation})"
    return price + (f", and {bare} runs without a certificate" if bare else "")


def show(comparison: "Comparison") -> None:
    """Print the table and the places of the other files."""
    from artifacts.reports.comparison import PICTURES, REPORT, certified, lines, standing
    from artifacts.reports.differences import PAIRS
    from artifacts.reports.in_short import SCORES

    scores = SCORES if OUT.width >= WIDE else {key: SCORES[key] for key in FIRST}
    shown = Table(
        title="Scores against private images: INTERNAL",
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        leading=1,
    )
    for column in comparison.heads:
        shown.add_column(column, overflow="fold")
    for column in ("epsilon", "claim", "certificate", *scores.values()):
        shown.add_column(column, justify="right", width=max(7, *map(len, column.split())))
    for own, row in lines(comparison):
        values = (str(row.scores[key]) for key in scores)
        named = [escape(name).replace(" ", "\n") for name in own]
        named[-1] += f"\n[dim]{standing(row)}[/dim]"
        shown.add_row(
            *named,
            f"{row.target:g}",
            f"{row.claim:.3g}",
            certified(row),
            *values,
        )
    OUT.print(shown)
    if comparison.pairs:
        show_pairs(comparison)
    drawn = [("differences", PAIRS)] if comparison.pairs else []
    for name, file in (("INTERNAL report", REPORT), *drawn, ("scores", comparison.plot), ("picture", PICTURES)):
        OUT.print(f"{name:<16} {comparison.folder}/{file}", soft_wrap=True, highlight=False, markup=False)


def show_pairs(comparison: "Comparison") -> None:
    """Print the differences of all pairs, and what their intervals hold."""
    from artifacts.reports.differences import SHARED, basis, heads
    from artifacts.reports.in_short import SCORES

    keys = list(SCORES if OUT.width >= WIDE else FIRST)
    shown = Table(
        title="With a part minus without it: INTERNAL",
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        leading=1,
    )
    for column in ("part", "variant", "epsilon", *heads(keys)):
        shown.add_column(column, overflow="fold", justify="left" if column in ("part", "variant") else "right")
    for row in comparison.pairs:
        values = (str(row.scores[key]).replace(" (", "\n(") for key in keys)
        halves = f"{row.pair.variant}\n[dim]without: {escape(row.pair.without)}[/dim]"
        shown.add_row(row.pair.part, halves, f"{row.target:g}", *values)
    OUT.print(shown)
    OUT.print(f"{basis(comparison.pairs)} {SHARED}", markup=False, highlight=False)


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if text and not parts:
        raise BadInput(f"--pairs {text!r} names no part: write one or several of {', '.join(ABLATIONS)}")
    return parts


def _targets(text: str) -> list[float]:
    return _numbers("--epsilons", text, float)


def _seeds(text: str) -> list[int]:
    return _numbers("--seeds", text, int) or [0]


def _numbers(option: str, text: str, kind: type) -> list:
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise BadInput(f"{option} {text!r} is not a list of numbers: write them as 1,3,10") from None
