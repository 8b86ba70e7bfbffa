"""The balance of a ledger's entries: the spends that count, the budget in force, the version of a private set.

Pure functions of a list of entries; prices and the database are elsewhere. A spend counts from its reservation on, with
the events that were committed, or with all that were reserved while nothing is. A person may declare that a set
changed (`version`): its spends are then counted afresh as far as no record is in both versions, and those of the versions
before still stand in the ledger. Sets and versions that are joined (`sfumato.privacy.ledger.joins`) count together, and the
budget of each of them binds.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from sfumato.config import Constants, Relation
from sfumato.errors import SHOWN_DIGITS, BadInput, Refused
from sfumato.privacy.accounting.events import AnyEvent, Event
from sfumato.privacy.ledger.chain import Entry
from sfumato.privacy.ledger.joins import joined_names, joined_versions, numbered
from sfumato.privacy.ledger.signing import canonical

Label = Literal["PUBLIC", "DP", "INTERNAL"]
RELATIONS: tuple[Relation, ...] = ("add_remove", "replace_one")

_EVENTS = TypeAdapter(tuple[AnyEvent, ...])
_PAST = {"open": "was opened", "commit": "was committed", "cancel": "was cancelled"}


@dataclass(frozen=True)
class Reservation:
    """A planned cost, written down. `epsilon` is its certificate alone; None where there is none, and `why`."""

    seq: int
    dataset: str
    events: tuple[Event, ...]
    relation: Relation
    delta: float
    epsilon: float | None
    why: str | None
    insecure: bool
    hash: str = field(repr=False)


@dataclass(frozen=True)
class Budget:
    """The most that a private set may cost, all runs together."""

    epsilon: float
    delta: float


class Overrun(NamedTuple):
    """What a budget does not bear."""

    planned: Sequence[Event]
    spent: Sequence[Event]
    owner: str
    """The set whose budget it is."""
    budget: Budget
    relation: Relation
    after: float
    """Epsilon of all together."""


@dataclass(frozen=True)
class Total:
    """The cost of a private set so far; `left` is None without a budget, or under another delta or relation."""

    epsilon: float
    delta: float
    relation: Relation
    spends: int
    left: float | None
    budget: Budget | None = None
    """The budget that `left` refers to: the tightest of the set's own and those of the sets joined to it."""


@dataclass(frozen=True)
class Difference:
    """A certificate that `replay` cannot reproduce; None stands for no certificate."""

    seq: int
    dataset: str
    relation: Relation
    recorded: float | None
    replayed: float | None


Spend = tuple[Entry, tuple[Event, ...]]
"""A `reserve` entry with the events that count: those committed, or all reserved ones while nothing is."""


def entry_label(entry: Entry) -> Label:
    """The best label of an output that stands on this entry (design section 3)."""
    if entry.kind in ("reserve", "open", "commit"):
        return "DP" if entry.body["epsilon"] is not None and not entry.body["insecure"] else "INTERNAL"
    return "INTERNAL" if entry.kind in ("look", "recovered") else "PUBLIC"


def spends_of(entries: Sequence[Entry], dataset: str, *, all_versions: bool = False) -> list[Spend]:
    """The reservations that count for a set, each with the events that count: those of its last version and of all that is
    joined to it, or of all versions of all these sets."""
    group = joined_versions(entries, dataset)
    names = {one.dataset for one in group}
    version_at = {entry.seq: version for entry, version in numbered(entries)}
    return [
        spend
        for spend in counted(entries)
        if (version := version_at[spend[0].seq]) in group or (all_versions and version.dataset in names)
    ]


def counted(entries: Sequence[Entry]) -> list[Spend]:
    """The reservations of all sets that count, and those written anew after a loss, each with the events that count."""
    ends = {entry.body["reserve"]: entry for entry in entries if entry.kind in ("commit", "cancel")}
    ended = [(entry, ends.get(entry.seq, entry)) for entry in entries if entry.kind in ("reserve", "recovered")]
    return [(entry, events_of(end)) for entry, end in ended if end.kind != "cancel"]


def relation_of(spends: Sequence[Spend]) -> Relation:
    """The relation under which all these spends can be stated together."""
    return "replace_one" if any(entry.body["relation"] == "replace_one" for entry, _ in spends) else "add_remove"


def budget_of(entries: Sequence[Entry], dataset: str) -> Budget | None:
    """The set's own budget, or None; a new version of the set has the same one."""
    budgets = [entry.body for entry in entries if (entry.dataset, entry.kind) == (dataset, "budget")]
    return Budget(budgets[-1]["epsilon"], budgets[-1]["delta"]) if budgets else None


def budgets_of(entries: Sequence[Entry], dataset: str) -> dict[str, Budget]:
    """The budgets that bind a set, by name: its own first, then those of the sets joined to it."""
    names = (dataset, *joined_names(entries, dataset))
    return {name: budget for name in names if (budget := budget_of(entries, name))}


def version_of(entries: Sequence[Entry], dataset: str) -> int:
    """The version of the set that the ledger counts: 1, and one more for each declared change."""
    return 1 + sum((entry.dataset, entry.kind) == (dataset, "version") for entry in entries)


def constants_of(entries: Sequence[Entry], dataset: str) -> Constants | None:
    """The unprotected facts that the last look at the present version of a set wrote down."""
    since = _changed_at(entries, dataset)
    noted = [
        e.body["unprotected"] for e in entries if e.dataset == dataset and e.seq > since and "unprotected" in e.body
    ]
    return Constants.model_validate(noted[-1]) if noted else None


def _changed_at(entries: Sequence[Entry], dataset: str) -> int:
    return max((e.seq for e in entries if (e.dataset, e.kind) == (dataset, "version")), default=0)


def title_of(reserved: Entry) -> str:
    """The name of a reservation in messages."""
    return f"reservation {reserved.seq} on '{reserved.dataset}'"


def past_of(entry: Entry) -> str:
    """What this entry did to its reservation, as a participle."""
    return _PAST[entry.kind]


def standing(entries: Sequence[Entry], reservation_hash: str) -> tuple[Entry, Entry | None]:
    """A reservation's own entry, found by its hash, and the latest one that opened or ended it."""
    reserved = next((entry for entry in entries if entry.hash == reservation_hash), None)
    if reserved is None:
        raise Refused("the reservation is not in this ledger: reserve in the ledger that the run uses")
    later = [entry for entry in entries if entry.kind in _PAST and entry.body["reserve"] == reserved.seq]
    return reserved, later[-1] if later else None


def allowances(entries: Sequence[Entry], reserved: Entry) -> list[tuple[Event, ...]]:
    """The events that each `progress` of a reservation allowed, in order."""
    return [events_of(e) for e in entries if e.kind == "progress" and e.body["reserve"] == reserved.seq]


def most_taken(entries: Sequence[Entry], reserved: Entry) -> tuple[Event, ...]:
    """The most that work under a reservation can have taken: its largest allowance; all that was reserved where there is
    none, or none that holds all others."""
    allowed = allowances(entries, reserved)
    largest = [one for one in allowed if not any(tally(other) - tally(one) for other in allowed)]
    return largest[-1] if largest else events_of(reserved)


def surely_taken(entries: Sequence[Entry], reserved: Entry) -> tuple[Event, ...]:
    """What was done for certain: work asks for more only when it has done what it was allowed, so it is the allowance before
    the last; nothing where there is none."""
    allowed = allowances(entries, reserved)
    before = [one for one in allowed if tally(one) != tally(allowed[-1])]
    return before[-1] if before else ()


def reserved_entries(entries: Sequence[Entry], hashes: Sequence[str], dataset: str | None = None) -> list[Entry]:
    """The `reserve` entries of these hashes in order, of one set where it is given."""
    if dataset is not None:
        check_name(dataset)
    chosen = entries_by_hash(entries, hashes)
    if strange := [entry for entry in chosen if entry.kind != "reserve" or dataset not in (None, entry.dataset)]:
        where = "" if dataset is None else f" on '{dataset}'"
        raise BadInput(f"entry {strange[0].seq} is no reservation{where}: name the reservations that it stands on")
    return chosen


def entries_by_hash(entries: Sequence[Entry], hashes: Iterable[str]) -> list[Entry]:
    """The entries of these hashes, each once, in order; `BadInput` for one of another ledger."""
    by_hash, hashes_sought = {entry.hash: entry for entry in entries}, set(hashes)
    if unknown := sorted(hashes_sought - set(by_hash)):
        raise BadInput(
            f"ledger entry {unknown[0][:SHOWN_DIGITS]} is not in this ledger: use the ledger that the run was made with"
        )
    return sorted((by_hash[digest] for digest in hashes_sought), key=lambda entry: entry.seq)


# Events, as entries hold them


def dumped(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Events as JSON values."""
    return [event.model_dump(mode="json") for event in events]


def events_of(entry: Entry) -> tuple[Event, ...]:
    """The events of a `reserve` or `commit` entry."""
    try:
        return _EVENTS.validate_python(entry.body["events"])
    except ValidationError:
        raise BadInput(f"entry {entry.seq} of the ledger names mechanisms unknown to this Sfumato: update it") from None


def tally(events: Sequence[Event]) -> Counter[str]:
    """How often each mechanism runs: {its parameters: times}."""
    times_of: Counter[str] = Counter()
    for event in events:
        parameters = event.model_dump(mode="json")
        times = [parameters.pop(name) for name in ("count", "steps") if name in parameters]
        times_of[canonical(parameters)] += math.prod(times)
    return times_of


def in_words(parameters: str) -> str:
    """One line of a tally for a person."""
    shown = json.loads(parameters)
    return f"{shown.pop('kind')} {' '.join(f'{name}={value}' for name, value in shown.items())}".strip()


# What is refused before anything is written


def check_set(entries: Sequence[Entry], dataset: str, digest: str) -> None:
    """A name means one content and a content one name, or budgets could be walked around. No digest is ever printed."""
    check_name(dataset)
    if not isinstance(digest, str) or not digest:
        raise BadInput(f"the private set '{dataset}' comes without a content digest: compute it first")
    since = _changed_at(entries, dataset)
    for entry in entries:
        if "digest" not in entry.body:
            continue
        if entry.dataset != dataset and entry.body["digest"] == digest:
            raise BadInput(f"the private set '{dataset}' is in the ledger as '{entry.dataset}': use that name")
        if entry.dataset == dataset and entry.seq >= since and entry.body["digest"] != digest:
            raise BadInput(
                f"the private set '{dataset}' changed since its last entry: bring the images back, give the set another "
                "data.name, or count this version afresh with --new-version"
            )


def check_change(entries: Sequence[Entry], dataset: str, digest: str) -> None:
    """Refuse to start a version for images that the ledger knows under this name, now or before."""
    known = [e for e in entries if e.dataset == dataset and "digest" in e.body]
    if not known:
        raise BadInput(f"the ledger knows no private set '{dataset}': leave --new-version out")
    if known[-1].body["digest"] == digest:
        raise BadInput(f"the private set '{dataset}' did not change since its last entry: leave --new-version out")
    if any(entry.body["digest"] == digest for entry in known):
        raise BadInput(
            f"these images are an earlier version of '{dataset}', whose spends cannot be counted afresh: bring the "
            "current version back"
        )
    check_set([e for e in entries if e.dataset != dataset], dataset, digest)


def check_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events that the ledger can write."""
    try:
        checked = _EVENTS.validate_python(tuple(events))
        canonical(dumped(checked))
    except ValueError as error:
        cause = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise BadInput(
            f"the ledger cannot write these events ({cause}): use those of sfumato.privacy.accounting.events"
        ) from None
    return checked


def check_name(dataset: str) -> None:
    """A name that can be printed."""
    if not isinstance(dataset, str) or not dataset.strip() or not dataset.isprintable():
        raise BadInput(f"{dataset!r} cannot name a private set: use a printable word")


def check_delta(delta: float) -> None:
    """A delta that means something."""
    if not 0 < delta < 1:
        raise BadInput(f"delta {delta} is not between 0 and 1: take less than one over the number of records")


def check_reason(what: str, dataset: str, reason: str) -> None:
    """A reason in words."""
    if not isinstance(reason, str) or not reason.strip():
        raise BadInput(f"{what} '{dataset}' needs a reason in words")
