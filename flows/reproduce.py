"""Carries out rows of the papers' inventory, one after the other, each run through the flow that every run takes.

A row's result is written when its last line ends, and the page after every row, so that an interruption loses one row's report and no
finished stage.
"""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from artifacts.record import SYNTHETIC, RunRecord
from artifacts.reports.papers import PICTURES, LineResult, RowResult, page, save_result
from artifacts.store import write_text
from sfumato.image_folder import png_of
from sfumato.inventory import SECONDS, Line, PaperRow, Size, Stops, papers
from tasks.planning import PlannedRun, Wishes
from tasks.runtime.environment import CHECKOUT, now
from tasks.runtime.machine import commit, machine_facts

RESULTS = CHECKOUT / "benchmarks" / "results" / "papers"
PAGE = CHECKOUT / "docs" / "results" / "papers.md"
FORMULA, CLAIMED = "formula", "epsilon"
"""Size of a line that trains nothing, and what a formula gives where its number is the paper's claim."""
DAY = len("2026-01-01")
CONTINUED, EACH = 4, 10
"""Noised images in a picture of continuations, and how many go on from each."""
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

    @property
    def pictures(self) -> Path:
        """The folder of pictures, beside the page."""
        return self.page.parent / PICTURES


def of_checkout() -> Outputs:
    """Where the results of this checkout lie."""
    return Outputs(RESULTS, PAGE)


def carry_out(plan: RowPlan, outputs: Outputs, *, go_on: bool = False) -> RowResult:
    """Every line of a row in turn; writes its result and the page."""
    lines = plan.row.recipe(plan.size)
    results = [
        _evaluated(plan.name, line) if run is None else _measured(plan, number, outputs, go_on=go_on)
        for number, (line, run) in enumerate(zip(lines, plan.runs, strict=True))
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


def _measured(plan: RowPlan, number: int, outputs: Outputs, *, go_on: bool) -> LineResult:
    from flows.synthesize import synthesize_planned

    line, run = plan.row.recipe(plan.size)[number], plan.runs[number]
    assert run
    record = synthesize_planned(run, Wishes(go_on=go_on))
    picture = ""
    if plan.row.pictures != "none":
        of_lines = [one.command for one in plan.row.recipe(plan.size)]
        first = of_lines.index(line.command)  # lines of one run share its picture
        picture = f"{plan.name}-{plan.size}-{first + 1}.png"
        outputs.pictures.mkdir(parents=True, exist_ok=True)
        if number == first or not (outputs.pictures / picture).exists():
            _draw(plan.row, record, outputs.pictures / picture)
    return LineResult(
        what=line.what,
        size=plan.size,
        paper=line.paper,
        other_features=line.other_features,
        per_cent=line.per_cent,
        ours=score_of(record, line.score),
        claim=record.claim.epsilon,
        certificate=record.certificate.epsilon if record.certificate else None,
        command=line.command,
        run=record.run,
        picture=picture,
        minutes=made_in(record) / 60,
    )


def _draw(row: PaperRow, record: RunRecord, to: Path) -> None:
    """The picture of a run that a row wants: its samples, continuations, which cost nothing more, or a look at where sampling stops."""
    if row.pictures == "samples":
        with Image.open(record.samples) as samples:
            to.write_bytes(png_of(samples))
        return
    if row.stops:
        to.write_bytes(png_of(_stopped(record, row.stops)))
        return
    from sfumato.continuations import continued
    from tasks.more_images import model_of

    shown = continued(model_of(record), CONTINUED * EACH, EACH, seed=record.settings["seed"])
    to.write_bytes(png_of(shown.picture()))


def _stopped(record: RunRecord, stops: Stops) -> Image.Image:
    """Sampling by the private records themselves and by the run's network. Not private; the inventory names public sets alone."""
    from flows.audit import audited_settings
    from flows.private_half import terms
    from sfumato.preflight import private_set
    from tasks.checks import check_private
    from tasks.runtime.artifact import RunContext
    from tasks.stopped_sampling import stopped_sampling
    from tasks.terms import Order

    settings, context = audited_settings(record, []), RunContext(run=record.run, parents=record.tracking)
    order = Order(private=private_set(settings), terms=terms(record.plan, comparison=True), machine=settings.machine)
    order = order.model_copy(update={"private": check_private(order, context)})
    return stopped_sampling(record, settings, order, context, stops)


def score_of(record: RunRecord, name: str) -> float | None:
    """A score of the run's own images, or seconds of a stage; None where it has none."""
    if name.startswith(SECONDS):
        times = [stage.made_in for stage in record.stages if stage.name == name.removeprefix(SECONDS)]
        return times[0] if times else None
    value = record.metrics[SYNTHETIC].get(name)
    return None if value is None else float(value)


def made_in(record: RunRecord) -> float:
    """Seconds that its stages took when they were made, in this run or before."""
    return sum(stage.made_in for stage in record.stages)
