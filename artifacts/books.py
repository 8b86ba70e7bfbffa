"""A private set in its ledger, for whoever answers for it: every access, the cost of all versions and joined sets, the ledger's head.

It holds counts, prices, days and the head, which a card tells too; purposes of looks and digests of content stay in the ledger.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

from sfumato.config import Relation, Section
from sfumato.privacy.ledger.balance import entry_label
from sfumato.privacy.ledger.chain import Entry
from sfumato.privacy.ledger.ledger import Ledger

Kind = Literal["paid", "uncertified", "look"]
DAY = len("2026-01-31")
"""Length of the day in a time as ISO-8601."""


class Accesses(Section):
    """How often private images were read in one way at one stage."""

    kind: Kind
    """With noise and a price; with noise that no certificate covers; or without noise."""
    stage: str
    own: int
    """For these samples."""
    total: int
    """By all runs on the set and the sets joined to it, in all versions."""


class Books(Section):
    """The entries of a ledger on a set, added up."""

    accesses: tuple[Accesses, ...]
    spends: int
    """Spends that count together: of this version and of all that is joined to it."""
    epsilon: float | None
    """The price of these; None where no finite one holds."""
    delta: float
    relation: Relation
    budget: float | None = None
    left: float | None = None
    versions: int = 1
    all_versions: float | None = None
    """The price of all versions together; None where there is one, or no finite price."""
    joined: tuple[str, ...] = ()
    """Sets that count with this one, since they share records."""
    code: tuple[str, ...] = ()
    """Version of the program, and digest of a stage's code, of each spend that the samples stand on."""
    paid: str = ""
    """Day of the last of these spends."""
    as_of: str = ""
    """Time of the last entry of the ledger."""
    ledger: str = ""
    head: int = 0
    """Number of the last entry."""
    head_hash: str = ""


def books_of(ledger: Ledger, dataset: str, run: str, hashes: Collection[str]) -> Books:
    """The books of a set, for samples that a run drew and that stand on the entries of these hashes."""
    entries, joined, total = ledger.entries(), ledger.joined(dataset), ledger.total(dataset)
    names = (dataset, *joined)
    under = [entry for entry in entries if entry.hash in hashes and entry.kind == "reserve"]
    versions = max(ledger.version(name) for name in names)
    everything = ledger.total(dataset, all_versions=True).epsilon if versions > 1 else math.inf
    head = ledger.signed_head()
    return Books(
        accesses=_accesses(entries, names, run, hashes),
        spends=total.spends,
        epsilon=_finite(total.epsilon),
        delta=total.delta,
        relation=total.relation,
        budget=total.budget.epsilon if total.budget else None,
        left=total.left,
        versions=versions,
        all_versions=_finite(everything),
        joined=joined,
        code=tuple(sorted({entry.body["code_version"] for entry in under})),
        paid=max((entry.body["time"][:DAY] for entry in under), default=""),
        as_of=max((entry.body["time"] for entry in entries), default=""),
        ledger=head["ledger"],
        head=head["seq"],
        head_hash=head["hash"],
    )


def _accesses(
    entries: Sequence[Entry], names: Collection[str], run: str, hashes: Collection[str]
) -> tuple[Accesses, ...]:
    """Accesses by kind and stage, in the order in which they first happened; a cancelled reservation opened no door."""
    cancelled = {entry.body["reserve"] for entry in entries if entry.kind == "cancel"}
    own, total = Counter[tuple[Kind, str]](), Counter[tuple[Kind, str]]()
    for entry in entries:
        if entry.dataset in names and entry.kind in ("reserve", "look", "recovered") and entry.seq not in cancelled:
            way = (_kind(entry), entry.body.get("stage", ""))
            total[way] += 1
            own[way] += entry.hash in hashes or entry.body.get("run") == run
    return tuple(Accesses(kind=way[0], stage=way[1], own=own[way], total=total[way]) for way in total)


def _kind(entry: Entry) -> Kind:
    if entry.kind == "look":
        return "look"
    return "paid" if entry.kind == "recovered" or entry_label(entry) == "DP" else "uncertified"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
