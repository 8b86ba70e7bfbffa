"""`sfumato ledger`: what each private set has cost, what it may cost, and whether the books are in order."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from artifacts.publish import folder_at, unwritable
from sfumato.errors import BadInput, Refused
from sfumato.preflight import set_named
from sfumato.privacy.ledger import Ledger
from tasks.progress import progress
from tasks.where import configure

app = typer.Typer(help="The privacy ledger: what each private set has cost.", no_args_is_help=True)
SHOWN_BREAKS = 3
"""Faults of a broken ledger that are named."""
OUT = Console()

OneSet = Annotated[
    str, typer.Argument(help="A private set: its name in the ledger, or the path or source of its images.")
]
Reason = Annotated[str, typer.Option(help="Why, in words; it stands in the ledger and in every card.")]
SetName = Annotated[str, typer.Argument(help="Name of a private set; all of them if left out.")]


@app.command("show")
def show(
    dataset: SetName = "", as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show what was reserved, spent, looked at and reused, and what is left."""
    from flows.screen import ledger_lines, ledger_object

    with configure().ledger() as ledger:
        if as_json:
            print(ledger_object(ledger, dataset))
        else:
            for part in ledger_lines(ledger, dataset):
                OUT.print(part)


@app.command("budget")
def budget(
    dataset: OneSet,
    epsilon: Annotated[float, typer.Option(help="The most that it may cost, all runs together.")],
    delta: Annotated[
        float | None,
        typer.Option(help="The delta at which that is counted; runs must use the same. Default: that of its spends."),
    ] = None,
    name: Annotated[str, typer.Option(help="The data.name of the runs on this path, where they set one.")] = "",
) -> None:
    """Set what a private set may cost; a run that would go beyond is refused before it opens an image (exit code 3)."""
    with configure().ledger() as ledger:
        found = set_named(dataset, _known(ledger))
        dataset = name or found
        delta = ledger.total(dataset).delta if delta is None else delta
        if not delta:
            raise BadInput(f"'{dataset}' has no spends yet to take a delta from: name one with --delta")
        ledger.set_budget(dataset, epsilon, delta)
        left = ledger.total(dataset).left
    OUT.print(f"'{dataset}' may cost epsilon {epsilon:g} at delta {delta:g}; {left:.4f} left", markup=False)


@app.command("join")
def join(dataset: OneSet, other: OneSet, reason: Reason) -> None:
    """Say that two private sets hold the same people or things: from now on the budget of each binds what both cost."""
    from artifacts.spending import totals
    from flows.screen import total_lines

    with configure().ledger() as ledger:
        known = _known(ledger)
        entry = ledger.join(set_named(dataset, known), set_named(other, known), reason)
        for part in total_lines(totals(ledger, entry.dataset)):
            OUT.print(part, markup=False, soft_wrap=True)


@app.command("differ")
def differ(dataset: OneSet, other: OneSet, reason: Reason) -> None:
    """Say that two private sets, or with the same name twice the versions of one, have nothing in common, whatever was found.

    From now on each counts by itself. The reason stands in the ledger and in every card: you answer for it.
    """
    from artifacts.spending import totals
    from flows.screen import total_lines

    with configure().ledger() as ledger:
        known = _known(ledger)
        entry = ledger.differ(set_named(dataset, known), set_named(other, known), reason)
        for part in total_lines(totals(ledger, entry.dataset)):
            OUT.print(part, markup=False, soft_wrap=True)


@app.command("verify")
def verify() -> None:
    """Check that no entry was edited, deleted or moved (exit code 3 where one was)."""
    with configure().ledger() as ledger:
        _whole(ledger)
        OUT.print(f"{len(ledger.entries())} entries, chain whole")


@app.command("replay")
def replay(
    slow: Annotated[
        bool, typer.Option("--slow", help="By dp-accounting alone, none of our own pricing: minutes.")
    ] = False,
) -> None:
    """Compute every certificate again from the entries and print the differences (exit code 3 where one is too small)."""
    from artifacts.card import slow_price
    from artifacts.verify_card import MARGIN

    with configure().ledger() as ledger:
        _whole(ledger)
        with progress("replay") as show:
            different = (
                ledger.replay(MARGIN - 1, price=slow_price, progress=show) if slow else ledger.replay(progress=show)
            )
        for one in different:
            OUT.print(
                f"entry {one.seq} of '{one.dataset}' ({one.relation}): recorded {one.recorded}, replayed {one.replayed}",
                markup=False,
                soft_wrap=True,
            )
        # Another accountant may find less: then the certificate says more than it must, which harms nobody.
        wrong = [
            one for one in different if not (slow and one.recorded and one.replayed and one.replayed < one.recorded)
        ]
        if wrong:
            raise Refused(
                f"{len(wrong)} certificates are not found again: another accountant version, or an entry that was forged"
            )
        priced = sum(entry.kind in ("reserve", "commit") for entry in ledger.entries())
    found = f"{len(different)} above what dp-accounting finds, none below" if different else "every one found again"
    OUT.print(f"{priced} certificates, {found}")


@app.command("export")
def export(
    dataset: OneSet,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="A new or empty folder.")] = "ledger",
) -> None:
    """Write entries, totals and a picture of the spending into a folder. INTERNAL: it says when images were looked at."""
    from artifacts.spending import export as write

    with configure().ledger() as ledger:
        dataset = set_named(dataset, _known(ledger))
        if not ledger.entries(dataset):
            raise BadInput(f"the ledger knows no private set {dataset!r} (known: {', '.join(_known(ledger))})")
        folder = folder_at(Path(to))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with progress("export") as show:
                files = write(ledger, dataset, folder, progress=show)
        except OSError as error:
            raise unwritable(error, folder) from error
    for file in files:
        OUT.print(str(file), markup=False, soft_wrap=True)


def _whole(ledger: Ledger) -> None:
    if breaks := ledger.verify():
        raise Refused(f"the ledger {ledger.url} was tampered with: {'; '.join(breaks[:SHOWN_BREAKS])}")


def _known(ledger: Ledger) -> list[str]:
    return list(dict.fromkeys(entry.dataset for entry in ledger.entries()))
