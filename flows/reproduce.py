"""Carries out rows of the papers' inventory, one after the other, each run through the flow that every run takes.

A row's result is written when its last line ends, and the page after every row, so that an interruption loses one row's report and no
finished stage.
"""

from dataclasses import dataclass
from pathlib import Path

from artifacts.record import SYNTHETIC, RunRecord
from artifacts.reports.papers import LineResult, RowResult, page, save_result
from artifacts.store import write_text
from sfumato.inventory import Line, PaperRow, Size, papers
from tasks.planning import PlannedRun, Wishes
from tasks.runtime.environment import CHECKOUT, now
from tasks.runtime.machine import commit, machine_facts

RESULTS = CHECKOUT / "benchmarks" / "results" / "papers"
PAGE = CHECKOUT / "docs" / "results" / "papers.md"
FORMULA, CLAIMED = "formula", "epsilon"
"""Size of a line that trains nothing, and what a formula gives where its number is the paper's claim."""
DAY = len("2026-01-01")
HOME = "reproduce"
"""Folder in the home: what reproductions spend is no business of other runs."""


@dataclass(frozen=True)
class RowPlan:
    """A row whose runs are planned."""

    name: str
    row: PaperRow
    size: Size
    runs: tuple[PlannedRun | None, ...]
    """One for each line; None for a formula."""


@dataclass(frozen=True)
class Outputs:
    """Where results go."""

    folder: Path
    page: Path


def of_checkout() -> Outputs:
    """Where the results of this checkout lie."""
    return Outputs(RESULTS, PAGE)


def carry_out(plan: RowPlan, outputs: Outputs, *, go_on: bool = False) -> RowResult:
    """Every line of a row in turn; writes its result and the page."""
    lines = plan.row.recipe(plan.size)
    results = [
        _evaluated(plan.name, line) if run is None else _measured(plan.size, line, run, go_on=go_on)
        for line, run in zip(lines, plan.runs, strict=True)
    ]
    result = RowResult(
        row=plan.name,
        size=plan.size,
        recipe=plan.row.digest(plan.size),
        lines=tuple(results),
        measured=now()[:DAY],
        commit=commit(),
        machine=machine_facts(),
    )
    save_result(outputs.folder, result)
    write_page(outputs)
    return result


def write_page(outputs: Outputs) -> None:
    """The page from all stored results."""
    outputs.page.parent.mkdir(parents=True, exist_ok=True)
    write_text(outputs.page, page(papers(), outputs.folder))


def _evaluated(row: str, line: Line) -> LineResult:
    assert line.formula
    value = line.formula.value()
    certificate = value if line.sound else line.certificate.value() if line.certificate else None
    return LineResult(
        what=line.what,
        size=FORMULA,
        paper=line.paper,
        ours=value,
        claim=value if line.formula.gives == CLAIMED else None,
        certificate=certificate,
        command=f"sfumato reproduce {row}",
        minutes=0.0,
    )


def _measured(size: Size, line: Line, run: PlannedRun, *, go_on: bool) -> LineResult:
    from flows.synthesize import synthesize_planned

    record = synthesize_planned(run, Wishes(go_on=go_on))
    return LineResult(
        what=line.what,
        size=size,
        paper=line.paper,
        other_features=line.other_features,
        per_cent=line.per_cent,
        ours=score_of(record, line.score),
        claim=record.claim.epsilon,
        certificate=record.certificate.epsilon if record.certificate else None,
        command=line.command,
        run=record.run,
        minutes=made_in(record) / 60,
    )


def score_of(record: RunRecord, name: str) -> float | None:
    """A score of the run's own images; None where it has none."""
    value = record.metrics[SYNTHETIC].get(name)
    return None if value is None else float(value)


def made_in(record: RunRecord) -> float:
    """Seconds that its stages took when they were made, in this run or before."""
    return sum(stage.made_in for stage in record.stages)
