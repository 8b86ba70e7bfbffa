"""The ledger as files for a person: entries and totals as JSON, and a picture of the spending.

They hold no digest of content, but times and purposes of looks at the images, so the label is INTERNAL.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.reports.page import table
from artifacts.store import synced, write_text
from sfumato.privacy.ledger.balance import RELATIONS
from sfumato.privacy.ledger.chain import OF_THE_LEDGER
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.progress import Progress, silent

ENTRIES, SPENDING, PAGE = "ledger.json", "spending.png", "ledger.md"
POINTS = 40
"""Largest number of totals computed for the picture."""
INCHES, DOTS, BAR = (7.2, 3.6), 120, 0.5


def statement(ledger: Ledger, dataset: str = "") -> dict[str, Any]:
    """Entries and totals of one private set, or of all, as JSON values; an infinite total is None."""
    entries = ledger.entries(dataset or None)
    names = [name for name in dict.fromkeys(entry.dataset for entry in entries) if name != OF_THE_LEDGER]
    return {"entries": [entry.public() for entry in entries], "totals": {name: totals(ledger, name) for name in names}}


def totals(ledger: Ledger, dataset: str) -> dict[str, Any]:
    """The cost of a set and those joined to it: in the budget's terms, under both relations, and over all versions."""
    total, version, joined = ledger.total(dataset), ledger.version(dataset), ledger.joined(dataset)
    budget = total.budget
    amounts = {key: _finite(getattr(total, key)) for key in ("epsilon", "delta", "relation", "spends", "left")}
    if total.spends:
        amounts["both"] = {one: _finite(ledger.total(dataset, total.delta, one).epsilon) for one in RELATIONS}
    amounts["budget"] = None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta}
    amounts["version"] = version
    if joined:
        amounts["joined"] = list(joined)
    if version > 1:
        amounts["all_versions"] = _finite(ledger.total(dataset, all_versions=True).epsilon)
    return amounts


def export(ledger: Ledger, dataset: str, folder: Path, *, progress: Progress = silent) -> list[Path]:
    """Write the three files of a private set into a folder and return them."""
    content = statement(ledger, dataset)
    draw(folder / SPENDING, ledger, dataset, progress=progress)
    write_text(folder / ENTRIES, json.dumps(content, indent=1))
    write_text(folder / PAGE, page(content, dataset))
    return [folder / name for name in (PAGE, ENTRIES, SPENDING)]


def page(content: dict[str, Any], dataset: str) -> str:
    """The ledger of a set in Markdown."""
    amounts = content["totals"].get(dataset, {})
    facts = [f"- {name}: {value}" for name, value in amounts.items()]
    entries = table(*entry_rows(content["entries"]))
    return "\n".join([f"# Ledger of '{dataset}'", "", *facts, "", entries, "", f"![spending]({SPENDING})", ""])


def entry_rows(entries: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Entries as a table: its head, and a row for each."""
    rows = [
        [entry["seq"], entry["time"], entry["kind"], entry.get("run", ""), what(entry), cost(entry)]
        for entry in entries
    ]
    return ["#", "time", "kind", "run", "what", "epsilon"], rows


def what(entry: Mapping[str, Any]) -> str:
    """The subject of an entry, in a few words."""
    if entry["kind"] == "budget":
        return f"epsilon {entry['epsilon']:g} at delta {entry['delta']:.3g}"
    if entry["kind"] == "migrate":
        return f"heads are signed from entry {entry['signed_from']} on"
    if entry["kind"] == "recovered":
        return f"entry {entry['was']}, which was lost, counts again"
    if entry["kind"] in ("recovery", "loss"):
        unknown = f"; {entry['unknown']} entries unknown: {entry['reason']}" if "unknown" in entry else ""
        return f"makes up for entries that were lost, {entry['spends']} spends known{unknown}"
    if entry["kind"] == "version":
        return f"version {entry['version']}: the images changed"
    if entry["kind"] == "join":
        return f"one with '{entry['other']}': {entry.get('reason', 'they share records')}"
    if entry["kind"] == "differ":
        return f"not one with '{entry['other']}': {entry['reason']}"
    return entry.get("purpose") or entry.get("reason") or (f"of entry {entry['reserve']}" if "reserve" in entry else "")


def cost(entry: Mapping[str, Any]) -> str:
    """The price that an entry states, as text."""
    if entry["kind"] not in ("reserve", "commit", "recovered"):
        return ""
    return "none" if entry["epsilon"] is None else f"{entry['epsilon']:.4f}"


def draw(path: Path, ledger: Ledger, dataset: str, *, progress: Progress = silent) -> None:
    """Each spend alone as a bar, all so far as a line, the budget above."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    spends, total = ledger.spends(dataset), ledger.total(dataset)
    budget = total.budget
    grown = ledger.history(dataset, POINTS, progress=progress)
    figure, axes = plt.subplots(figsize=INCHES)
    places = {entry.seq: number for number, (entry, _) in enumerate(spends, 1)}
    alone = [(places[entry.seq], entry.body["epsilon"]) for entry, _ in spends]
    known = [(place, epsilon) for place, epsilon in alone if epsilon is not None]
    at, heights = [place for place, _ in known], [epsilon for _, epsilon in known]
    axes.bar(at, heights, width=BAR, color="#9bb8d3", label="one spend as reserved")
    # Another run may have paid since the spends were read: the next picture shows that.
    sums = [(places[seq], epsilon) for seq, epsilon in grown if seq in places and math.isfinite(epsilon)]
    if sums:
        axes.step(*zip(*sums, strict=True), where="post", color="#1f4e79", marker="o", markersize=3, label="all so far")
    for place in [place for place, epsilon in alone if epsilon is None]:
        axes.axvline(place, color="#b03a2e", linestyle=":", label="no certificate")
    if budget:
        axes.axhline(budget.epsilon, color="#b03a2e", label="budget")
    axes.set_xlabel("spends, in order")
    axes.set_ylabel("epsilon")
    axes.locator_params("x", integer=True)
    bound = f" of {budget.epsilon:g}" if budget else ""
    axes.set_title(
        f"{dataset}: epsilon {total.epsilon:.4g}{bound} at delta {total.delta:.3g} ({total.relation})", fontsize=10
    )
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        axes.legend(unique.values(), unique.keys(), fontsize=8, frameon=False)
    figure.tight_layout()
    draft = path.with_suffix(".new.png")
    figure.savefig(draft, dpi=DOTS)
    plt.close(figure)
    synced(draft)
    draft.replace(path)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
