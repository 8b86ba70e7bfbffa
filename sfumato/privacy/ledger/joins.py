"""Private sets, and versions of them, that count as one for their budgets; pure functions of the ledger's entries.

A `join` entry joins two sets, where records of one occur in the other (`sfumato.privacy.ledger.fingerprints`) or where a person
declares it; a `differ` entry, which needs a reason, parts them. A version declared without comparing its records with those
before counts together with all earlier ones, or with those from the last on that a person told apart. Joins are transitive: a set joined to one of a group is joined to all of it.

Not covered: an overlap below the threshold, or one that no fingerprint detects; an owner of the ledger who declares equal sets
different (the reason stands in the ledger and in the card).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sfumato.errors import BadInput
from sfumato.privacy.ledger.chain import OF_THE_LEDGER, Entry

RECORDS, PERSON = "records", "a person"
"""Who joined two sets: a comparison of records, or a person."""


class Version(NamedTuple):
    """A private set as it was while the ledger counted this version, from 1."""

    dataset: str
    number: int


class Numbered(NamedTuple):
    """An entry and the version that its set then had."""

    entry: Entry
    version: Version


def numbered(entries: Iterable[Entry]) -> Iterator[Numbered]:
    """Each entry with the version of its set; a `version` entry belongs to the one that it begins."""
    last: dict[str, int] = {}
    for entry in entries:
        last[entry.dataset] = last.get(entry.dataset, 1) + (entry.kind == "version")
        yield Numbered(entry, Version(entry.dataset, last[entry.dataset]))


def joined_versions(entries: Sequence[Entry], dataset: str) -> frozenset[Version]:
    """The set's present version and all that is joined to it."""
    known = {version for _, version in numbered(entries)} | {Version(dataset, 1)}
    pairs = _pairs(entries, known)
    group, reached = frozenset[Version](), {max(one for one in known if one.dataset == dataset)}
    while reached - group:
        group = group | reached
        reached = {other for pair in pairs if pair & group for other in pair}
    return group


def joined_names(entries: Sequence[Entry], dataset: str) -> tuple[str, ...]:
    """Names of the other sets that are joined to the present version of this one, in order."""
    return tuple(sorted({one.dataset for one in joined_versions(entries, dataset)} - {dataset}))


def join_history(entries: Sequence[Entry], dataset: str) -> list[Entry]:
    """The entries by which sets of this one's group were joined or parted, in order."""
    group = {dataset, *joined_names(entries, dataset)}
    return [e for e in entries if e.kind in ("join", "differ") and {e.dataset, e.body["other"]} & group]


def are_joined(entries: Sequence[Entry], one: Version, other: Version) -> bool:
    """Whether an entry joins these two, by themselves."""
    return frozenset((one, other)) in _pairs(entries, {one, other})


def are_parted(entries: Sequence[Entry], one: Version, other: Version) -> bool:
    """Whether the last entry about these two declares them different."""
    return frozenset((one, other)) in _parted(entries, {one, other})


def check_pair(entries: Sequence[Entry], one: str, other: str, *, itself: bool) -> None:
    """`BadInput` for a name that the ledger does not know, or for a set with itself unless that may be and it has versions."""
    known = {entry.dataset for entry in entries if entry.dataset != OF_THE_LEDGER}
    for name in (one, other):
        if name not in known:
            raise BadInput(
                f"the ledger knows no private set {name!r} (known: {', '.join(sorted(known)) or 'none'}): it knows a set once "
                "`sfumato check` or a run has opened it"
            )
    if one == other and not itself:
        raise BadInput(f"'{one}' is one set: name two, of which the budgets are to bind together")
    if one == other and not any((entry.dataset, entry.kind) == (one, "version") for entry in entries):
        raise BadInput(f"'{one}' has one version alone: there is nothing to tell apart; name two sets")


def _pairs(entries: Sequence[Entry], known: set[Version]) -> set[frozenset[Version]]:
    """Pairs of versions that are joined."""
    pairs: set[frozenset[Version]] = set()
    by_name: set[frozenset[str]] = set()
    since: dict[str, int] = {}  # the version before which a person declared those of a set different from each other
    for entry, version in numbered(entries):
        if entry.kind == "version" and not entry.body.get("compared"):
            first = since.get(version.dataset, 1)
            before = (Version(version.dataset, number) for number in range(first, version.number))
            pairs |= {frozenset((version, other)) for other in before}
        elif entry.kind == "join" and entry.body["by"] == PERSON:
            by_name.add(frozenset((entry.dataset, entry.body["other"])))
        elif entry.kind == "join":
            pairs.add(frozenset((version, Version(entry.body["other"], entry.body["other_version"]))))
        elif entry.kind == "differ":
            names = frozenset((entry.dataset, entry.body["other"]))
            by_name.discard(names)
            pairs = {pair for pair in pairs if frozenset(one.dataset for one in pair) != names}
            if len(names) == 1:
                since[entry.dataset] = version.number
    return pairs | {
        frozenset((a, b)) for a in known for b in known if a != b and frozenset((a.dataset, b.dataset)) in by_name
    }


def _parted(entries: Sequence[Entry], known: set[Version]) -> set[frozenset[Version]]:
    """Pairs of versions that a person declared different: those that existed at that time."""
    parted: set[frozenset[Version]] = set()
    for entry, version in numbered(entries):
        if entry.kind not in ("join", "differ"):
            continue
        names = {entry.dataset, entry.body["other"]}
        if entry.kind == "differ":
            last = {entry.dataset: version.number, entry.body["other"]: entry.body["other_version"]}
            then = {one for one in known if one.dataset in names and one.number <= last[one.dataset]}
            parted |= {frozenset((a, b)) for a in then for b in then if a != b and {a.dataset, b.dataset} == names}
        elif entry.body["by"] == PERSON:
            parted = {pair for pair in parted if {one.dataset for one in pair} != names}
    return parted
