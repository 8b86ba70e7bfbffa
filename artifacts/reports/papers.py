"""The page that sets the papers' tables and figures beside what this program measured, from stored results, one file a row.

Scores were measured against private images. They may stand on the page because the inventory names public benchmark sets alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from artifacts.store import write_text
from sfumato.errors import BadInput
from sfumato.inventory import Paper, PaperRow, Size, row_name

SIZES: tuple[Size, ...] = ("small", "full")
ENDINGS: Mapping[Size, str] = {"small": ".json", "full": "-full.json"}
PICTURES = "papers"
"""Folder of the pictures, beside the page."""
OTHER_FEATURES = "other features"
NO_CERTIFICATE = "none"
HEADS = (
    *("row", "what was run", "size", "the paper", "ours", "claim", "certificate", "command", "minutes"),
)  # fmt: skip
MANY_HOURS = 10
"""Hours from which on their tenths are not shown."""
FIGURES = 4
"""Significant figures of a number on the page."""
INTRODUCTION = """# The papers, measured here

One row for each table and figure of the five papers. `sfumato reproduce` runs what can be run, keeps a file for each row in `benchmarks/results/papers/`
and writes this page from all of them; nothing on it is typed in. `sfumato reproduce --list` shows the same rows with their state.

*The paper*: its own number; "{other}" marks a Frechet distance in features that are not at hand, which compares with none of ours. *Claim*: the epsilon of the
paper's own analysis. *Certificate*: what a sound accountant says of the same settings, or none. *Formula*: nothing was trained; the program's own formula
was evaluated at the paper's settings; the ensemble's certificates hold where one record changes one member. The small runs are on scikit-learn's 8x8 digits, with letters rendered from fonts as public images, where
a row names no other data, one seed: they show the shape of a table and not its size. Recipes were tuned on these very digits ([quality](quality.md)), and on no other private set. *Picture*: images of
the run itself; the papers' own are not at hand. *Planned*: GPU hours are the program's own estimate for one H200, of all runs of the row, each from nothing, on data sets of the published
sizes (`benchmarks/planned.py`).

*Frechet distances* of ours are in the features of one small CNN for each pair of sets, which learns its public images alone: the rendered letters for the digits, letters and Omniglot for
MNIST, the other classes of Tiny ImageNet for the photographs, Tiny ImageNet in grey for the X-rays ([how to read them](quality.md#how-to-read-these-tables)).

*RAPID with the paper's k, v and neighbour, without votes*: on the digits the rest is ours, an MLP in pixels with class rows,
half of the records a step at four times each, guidance 0.5 and DDIM that adds noise (eta 1).
"""


class LineResult(BaseModel):
    """One number, beside the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    what: str
    size: str
    """`formula`, or the size of the run."""
    paper: float | None
    other_features: bool = False
    per_cent: bool = False
    ours: float | None
    """None where the run has no such score."""
    claim: float | None
    certificate: float | None
    command: str
    run: str = ""
    """Its name in the home of reproductions."""
    picture: str = ""
    """File of a picture of its images, beside the page in `PICTURES`; empty where the row has none."""
    minutes: float


class RowResult(BaseModel):
    """What was measured for a row at one size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: str
    size: Size
    recipe: str
    """Digest of the lines that were carried out."""
    lines: tuple[LineResult, ...]
    measured: str
    """Day."""
    commit: str
    machine: dict[str, str | int | float]


def result_file(folder: Path, row: str, size: Size) -> Path:
    """The place of a row's result."""
    return folder / f"{row}{ENDINGS[size]}"


def save_result(folder: Path, result: RowResult) -> None:
    """Write a result in full or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(result_file(folder, result.row, result.size), result.model_dump_json(indent=1) + "\n")


def load_result(folder: Path, row: str, size: Size) -> RowResult | None:
    """A row's result; None where there is none, `BadInput` for a file that cannot be read."""
    path = result_file(folder, row, size)
    if not path.is_file():
        return None
    try:
        return RowResult.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError:
        raise BadInput(f"{str(path)!r} is no result of a row: remove it, and it is measured again") from None


def standing_result(folder: Path, name: str, row: PaperRow, size: Size) -> RowResult | None:
    """The result of a row, if it is one of the lines that the inventory has now."""
    result = load_result(folder, name, size)
    return result if result and result.recipe == row.digest(size) else None


def state(folder: Path, name: str, row: PaperRow) -> str:
    """Whether a row is measured, waits, or cannot be had, and why."""
    parts = []
    for size in SIZES:
        if row.recipe(size):
            result = standing_result(folder, name, row, size)
            parts.append(f"{size} measured {result.measured}" if result else f"{size} not run{planned(row, size)}")
    return "; ".join([*parts, *([row.lacking] if row.lacking else [])])


def planned(row: PaperRow, size: Size) -> str:
    """What a row at the paper's size is planned to cost, after a comma; empty for a small one."""
    if size == "small" or not row.hours:
        return ""
    return f", {gpu_hours(row.hours)} planned"


def gpu_hours(hours: float) -> str:
    """Hours on a GPU, as a person says them."""
    return f"{hours:,.0f} GPU hours" if hours >= MANY_HOURS else f"{hours:.1f} GPU hours"


def page(papers: Mapping[str, Paper], folder: Path) -> str:
    """The page, from the inventory and the stored results alone."""
    parts = [INTRODUCTION.format(other=OTHER_FEATURES)]
    for name, paper in papers.items():
        parts += [f"## {paper.title} ({paper.source})\n", "\n".join(_table(name, paper, folder)), ""]
        parts += list(_quoted(paper))
        parts += list(_provenance(name, paper, folder))
    return "\n".join(parts).rstrip("\n") + "\n"


def _table(name: str, paper: Paper, folder: Path) -> Iterator[str]:
    yield _joined(HEADS)
    yield _joined(["---"] * len(HEADS))
    for key, row in paper.rows.items():
        first = f"**{row.place}** {row.shows}" + (f". Here: {row.stand_in}" if row.stand_in else "")
        for result in _results(row_name(name, key), row, folder):
            for line in result.lines:
                yield _joined([first, *_cells(line)])
                first = ""
        rest = _rest(row_name(name, key), row, folder)
        if rest or row.reports:
            yield _joined([first, rest, "", row.reports, "", "", "", "", ""])


def _quoted(paper: Paper) -> Iterator[str]:
    """Methods that the paper compares with and that are not built."""
    if not paper.quoted:
        return
    heads = ("quoted, not built", "what it does", *paper.quoted[0].numbers)
    rows = [heads, ["---"] * len(heads), *([one.method, one.idea, *one.numbers.values()] for one in paper.quoted)]
    yield "\n".join([f"{paper.quoted_why}\n", *map(_joined, rows), ""])


def _results(name: str, row: PaperRow, folder: Path) -> Iterator[RowResult]:
    for size in SIZES:
        if result := standing_result(folder, name, row, size):
            yield result


def _rest(name: str, row: PaperRow, folder: Path) -> str:
    """What of a row is not measured, with its reason."""
    waiting = [size for size in SIZES if row.recipe(size) and not standing_result(folder, name, row, size)]
    parts = [f"{size} not run{planned(row, size)}: `sfumato reproduce {name} --{size}`" for size in waiting]
    return "; ".join([*parts, *([row.lacking] if row.lacking else [])])


def _cells(line: LineResult) -> list[str]:
    paper = "" if line.paper is None else f"{shown(line.paper)}{' %' if line.per_cent else ''}"
    if line.other_features and paper:
        paper += f" ({OTHER_FEATURES})"
    ours = "-" if line.ours is None else shown(100 * line.ours if line.per_cent else line.ours)
    ours += " %" if line.per_cent and line.ours is not None else ""
    claim = "" if line.claim is None else shown(line.claim)
    uncertified = NO_CERTIFICATE if line.claim is not None else ""
    certificate = uncertified if line.certificate is None else shown(line.certificate)
    minutes = f"{line.minutes:.1f}" if line.run else ""
    what = f"{line.what} ([picture]({PICTURES}/{line.picture}))" if line.picture else line.what
    return [what, line.size, paper, ours, claim, certificate, f"`{line.command}`", minutes]


def _provenance(name: str, paper: Paper, folder: Path) -> Iterator[str]:
    """When, from which commit and on what, a line for all rows that agree."""
    origins: dict[str, list[str]] = {}
    for key, row in paper.rows.items():
        for result in _results(row_name(name, key), row, folder):
            machine = result.machine
            facts = f"measured {result.measured} ({result.commit}), {machine['cores']} cores, torch {machine['torch']}"
            origins.setdefault(facts, []).append(row.place)
    for facts, places in origins.items():
        yield f"*{', '.join(dict.fromkeys(places))}: {facts}.*\n"


def shown(value: float) -> str:
    """A number with at most four significant figures, in full where it is whole and short."""
    if math.isinf(value):
        return "infinite"
    if value == int(value) and abs(value) < 10**6:
        return f"{int(value):,}"
    if abs(value) >= 10**FIGURES:
        return f"{value:,.0f}"
    return f"{value:.{FIGURES}g}"


def _joined(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
