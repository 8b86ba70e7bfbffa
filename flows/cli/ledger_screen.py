"""The ledger on the command line."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from artifacts.reports.spending import cost, statement, totals, what
from sfumato.privacy.ledger.chain import OF_THE_LEDGER
from sfumato.privacy.ledger.ledger import Ledger

MINUTES = 16
"""Characters of a time in ISO-8601, up to the minutes."""


def ledger_lines(ledger: Ledger, dataset: str) -> Iterator[RenderableType]:
    """Totals of one private set, or of all, and then their entries."""
    entries = ledger.entries(dataset or None)
    if not entries:
        yield "the ledger holds nothing yet"
        return
    names = list(dict.fromkeys(entry.dataset for entry in entries))
    for name in names:
        if name != OF_THE_LEDGER:
            yield f"[bold]{escape(name)}[/]"
            yield from total_lines(totals(ledger, name))
    for name in names:
        title = f"private set '{name}'" if name != OF_THE_LEDGER else "the ledger itself"
        table = Table(title=escape(title), title_justify="left")
        for column in ("#", "time (UTC)", "kind"):
            table.add_column(column, justify="right" if column == "#" else "left", no_wrap=True)
        for column in ("run", "what", "epsilon"):
            table.add_column(column, justify="right" if column == "epsilon" else "left", overflow="fold")
        for entry in entries:
            if entry.dataset == name:
                body = entry.public()
                when = str(body.get("time", "")).replace("T", " ")[:MINUTES]
                row = (str(entry.seq), when, entry.kind, body.get("run", ""), what(body), cost(body))
                table.add_row(*map(escape, row))
        yield table


def total_lines(totals: dict[str, Any]) -> Iterator[str]:
    """Lines on the total cost of a set, under both relations, and over its versions."""
    budget = (
        f"{totals['left']:.4f} left of {totals['budget']['epsilon']:g}"
        if totals["left"] is not None
        else "no budget set"
    )
    yield (
        f"spent in all: epsilon {_shown(totals['epsilon'])} at delta {totals['delta']:.3g} ({totals['relation']}), "
        f"{totals['spends']} spends; {budget}"
        if totals["spends"]
        else f"nothing spent so far; {budget}"
    )
    if "joined" in totals:
        yield f"this counts together with {names_of(totals['joined'])}: what a record in all of them has cost composes"
    for relation, epsilon in totals.get("both", {}).items():
        if relation != totals["relation"]:
            yield f"the same under {relation}: epsilon {_shown(epsilon)}"
    if "all_versions" in totals:
        yield (
            f"this is version {totals['version']} of the set; a record in all of them has cost epsilon "
            f"{_shown(totals['all_versions'])}"
        )


def budget_line(ledger: Ledger, dataset: str) -> str:
    """The budget that binds a run on a private set, and what is left of it."""
    total, joined = ledger.total(dataset), ledger.joined(dataset)
    spent = f"{total.spends} spends so far" if total.spends else "nothing spent so far"
    together = f", together with {names_of(joined)}" if joined else ""
    if total.budget is None:
        return f"no budget binds '{dataset}'{together}; {spent} (set one: sfumato ledger budget)"
    return (
        f"epsilon {total.left:.4g} left of {total.budget.epsilon:g} at delta {total.budget.delta:g} for '{dataset}'{together}; "
        f"{spent}"
    )


def names_of(sets: Sequence[str]) -> str:
    """Names of private sets in a sentence."""
    return ", ".join(f"'{name}'" for name in sets)


def _shown(epsilon: float | None) -> str:
    return "infinite (no certificate)" if epsilon is None else f"{epsilon:.4f}"


def ledger_object(ledger: Ledger, dataset: str) -> str:
    """Entries and totals as one JSON object."""
    return json.dumps(statement(ledger, dataset), indent=1)
