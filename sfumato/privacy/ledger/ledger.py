"""The privacy ledger: the spends of all runs on each private set, and what remains of its budget.

A spend is written three times. `reserve` records the whole planned cost, or refuses it when the budget cannot bear it;
`opened` records that the door opens, before the first private byte is read; `commit` records the events really taken. A
reservation that is never committed stands in full. Nothing takes one back; an entry by which an earlier version did, while the door was
shut, is read as that.

Promise: reservations made at once by any number of processes never overspend together, since the check and the insert
are one exclusive transaction (`sfumato.privacy.ledger.chain`). Entries are only ever appended; a ledger with a broken chain
takes no further entry and states no total.

A sum holds under one relation. A spend stated under `add_remove` is priced under `replace_one` too; one stated under
`replace_one` may show how many records there are, so that an `add_remove` sum which holds it is infinite. A budget is
checked under `replace_one` as soon as one spend is stated so.

Every head is signed by the ledger's key and noted beside it, so that a ledger which was rewritten, cut off or begun anew
is found out and pays for nothing until that is made up for (`sfumato.privacy.ledger.signing`).

Not covered: who holds that key (a head written elsewhere, by `sfumato ledger witness`, binds its owner too);
two sets, or two versions of one, that share fewer images than `sfumato.privacy.ledger.fingerprints` joins them for, and are not
joined by a person: what both cost a shared image composes; plans or numbers of steps chosen by looking at private results
(the sum composes the events as if fixed in advance).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from sfumato.config import Constants, Relation
from sfumato.errors import SHOWN_DIGITS, BadInput, Refused
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Event
from sfumato.privacy.ledger.advice import what_fits
from sfumato.privacy.ledger.balance import (
    RELATIONS,
    Budget,
    Difference,
    Overrun,
    Reservation,
    Spend,
    Total,
    allowances,
    budgets_of,
    check_change,
    check_delta,
    check_events,
    check_name,
    check_reason,
    check_set,
    constants_of,
    dumped,
    entries_by_hash,
    entry_label,
    events_of,
    in_words,
    most_taken,
    past_of,
    relation_of,
    reserved_entries,
    spends_of,
    standing,
    surely_taken,
    tally,
    title_of,
    version_of,
)
from sfumato.privacy.ledger.chain import Chain, Entry
from sfumato.privacy.ledger.decisions import DecidedLedger
from sfumato.privacy.ledger.fingerprints import Prints, key_of, stored_prints, write_joins
from sfumato.privacy.ledger.joins import PERSON, check_pair, join_history, joined_names
from sfumato.privacy.ledger.recovery import RECOVERED
from sfumato.privacy.ledger.signing import Keys
from sfumato.progress import Progress, silent

__all__ = ["Budget", "Difference", "Entry", "Ledger", "Reservation", "Spend", "Total", "entry_label"]

Kind = Literal[
    "budget", "version", "reserve", "open", "progress", "commit", "cancel", "look", "reuse", "override", "join", "differ",
    "made", "check", "decision",
]  # fmt: skip
Check = Literal["copies", "audit"]
"""The checks that samples must pass before they may leave."""
Price = Callable[[Sequence[Event], float, Relation], float]
"""(events, delta, relation) -> epsilon of their composition, infinite where there is none."""


class Ledger(DecidedLedger):
    """The ledger at a database URL, created if it is not there; every call is one transaction."""

    def __init__(self, url: str, clock: Callable[[], str], keys: Keys, price: Price = accountant.epsilon):
        """`clock` tells the time as ISO-8601 in UTC; `keys` holds the ledger's key; a `price` other than the accountant's
        shows in every entry."""
        self._price, self._chain = price, Chain(url, clock, keys)
        self._injected = "" if price is accountant.epsilon else getattr(price, "__name__", type(price).__name__)

    # The budget

    def set_budget(self, dataset: str, epsilon: float, delta: float) -> Entry:
        """Set or change what a private set may cost in all; Refused below what is spent already."""
        check_name(dataset)
        check_delta(delta)
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise BadInput(f"a budget of epsilon {epsilon} for '{dataset}' means nothing: give a number from 0 up")
        with self._chain.appending(spending=True) as (entries, write):
            total = self._total(entries, dataset, delta, None)
            if not total.epsilon <= epsilon:
                way = "set a larger one" if math.isfinite(total.epsilon) else "none bears a spend without a certificate"
                spent = f"epsilon {total.epsilon:.4g} at delta {delta:g} ({total.relation}) in {total.spends} spends"
                raise Refused(f"'{dataset}' has cost {spent}; a budget of {epsilon:.4g} is below that: {way}")
            return write(dataset, "budget", {"epsilon": float(epsilon), "delta": float(delta)})

    def budget(self, dataset: str) -> Budget | None:
        """The budget in force, or None: of those of the set and of the sets joined to it, the tightest."""
        return self.total(dataset).budget

    def check_budget(self, dataset: str, events: Iterable[Event], relation: Relation, delta: float) -> None:
        """Raise `Refused` where `reserve` would for lack of budget; nothing is written."""
        planned = check_events(events)
        if overrun := self._overrun(self._chain.entries(), dataset, planned, relation, delta):
            raise Refused(self._refusal(dataset, overrun))

    # Versions of a set

    def version(self, dataset: str) -> int:
        """The version of the set that the ledger counts, from 1."""
        return version_of(self._chain.entries(), dataset)

    def new_version(
        self, dataset: str, digest: str, *, run: str, code_version: str, prints: Prints | None = None, unit: str = ""
    ) -> Entry:
        """Write that a person declares the set changed; its budget stays the same.

        Its spends are counted afresh only where `prints`, the fingerprints of its records, were compared with those of all
        versions before and `match` none: a record in both versions has been paid for in both. Where a `unit`, such as a person, has
        several records, other records may be of the same persons, and the versions count together.
        """
        with self._chain.appending_beside(spending=True) as (entries, write, connection):
            check_change(entries, dataset, digest)
            digests = {entry.body["digest"] for entry in entries if entry.dataset == dataset and "digest" in entry.body}
            stored = stored_prints(connection)
            lost = any((entry.dataset, entry.kind) == (dataset, RECOVERED) for entry in entries)  # of records unknown
            compared = not (unit or lost) and prints is not None and all((dataset, one) in stored for one in digests)
            body = {"digest": digest, "version": version_of(entries, dataset) + 1, "compared": compared}
            entry = write(dataset, "version", {**body, "run": run, "code_version": code_version})
            if prints:
                write_joins(connection, entries, write, dataset, digest, prints)
            return entry

    # Sets that are one

    def print_key(self) -> bytes:
        """The key with which records are fingerprinted (`prints_of`); it never leaves."""
        with self._chain.beside() as connection:
            return key_of(connection)

    def has_prints(self, dataset: str, digest: str) -> bool:
        """Whether the records of this content are fingerprinted."""
        with self._chain.beside() as connection:
            return (dataset, digest) in stored_prints(connection)

    def note_records(self, dataset: str, digest: str, prints: Prints | None = None) -> list[Entry]:
        """Store the fingerprints of a set, or use the stored ones, and write the joins that follow from them."""
        with self._chain.appending_beside() as (entries, write, connection):
            check_set(entries, dataset, digest)
            prints = prints or stored_prints(connection)[dataset, digest]
            return write_joins(connection, entries, write, dataset, digest, prints)

    def join(self, dataset: str, other: str, reason: str) -> Entry:
        """Write that a person declares two sets one, in all their versions: the budgets of both bind what either costs."""
        return self._say("join", dataset, other, reason, {"by": PERSON})

    def differ(self, dataset: str, other: str, reason: str) -> Entry:
        """Write that a person declares two sets different, or the versions of one, whatever earlier entries say.

        It holds for the present versions; `join` takes it back.
        """
        return self._say("differ", dataset, other, reason, {})

    def joined(self, dataset: str) -> tuple[str, ...]:
        """Names of the other sets that count together with this one."""
        return joined_names(self._chain.entries(), dataset)

    def join_history(self, dataset: str) -> list[Entry]:
        """The entries by which this set, or one that counts with it, was joined to others or declared different."""
        return join_history(self._chain.entries(), dataset)

    def _say(self, kind: Kind, dataset: str, other: str, reason: str, more: dict[str, str]) -> Entry:
        with self._chain.appending() as (entries, write):
            check_pair(entries, dataset, other, itself=kind == "differ")
            check_reason(f"to say what '{other}' is to", dataset, reason)
            body = {"other": other, "other_version": version_of(entries, other), "reason": reason, **more}
            return write(dataset, kind, body)

    # Spends

    def reserve(
        self,
        dataset: str,
        digest: str,
        events: Iterable[Event],
        relation: Relation,
        delta: float,
        *,
        stage: str,
        purpose: str,
        run: str,
        code_version: str,
        images: int | Literal["any"],
        parents: Sequence[str] = (),
        claim: dict[str, Any] | None = None,
        insecure: bool = False,
        following: Iterable[Event] = (),
        unit: str = "",
        reason: str = "",
        noise: Mapping[str, str] | None = None,
    ) -> Reservation:
        """Write down the whole cost of a plan before its door opens, or raise Refused with nothing written.

        dataset, digest: the private set's declared name and content digest (the digest stays INTERNAL).
        events, relation, delta: the mechanisms to be run, and the terms in which their certificate is stated. State
            under `add_remove` all that holds there.
        stage, purpose: which part of the run asks, and what for, in words.
        run, code_version: who asks; retries are told apart by their entries.
        images: how many images the cost covers; "any" where a released model may draw any number.
        parents: digests of the artifacts that go in.
        claim: what the paper's own analysis gives for these settings, if it gives anything (JSON).
        insecure: a test injected the noise generator; all that follows is INTERNAL.
        following: events that the run will reserve after this one; the budget must bear them too, or nothing is paid.
        unit: what the price protects as a whole where that is a group of records, such as a person; empty for one record.
        reason: why a person wants so large an epsilon, where the settings say so.
        noise: what the noise is drawn from and how it is added: `generator` and `arithmetic`, in words.

        Many parameters: each is a field of the entry that it writes.
        """
        check_delta(delta)
        planned = check_events(events)
        if not sum(tally(planned).values()):
            raise BadInput(f"a reservation on '{dataset}' names no event: write an access without noise by look()")
        if relation not in get_args(Relation):
            raise BadInput(f"relation '{relation}' is unknown: choose one of {', '.join(get_args(Relation))}")
        if images != "any" and (isinstance(images, bool) or not isinstance(images, int) or images < 0):
            raise BadInput(f"images={images!r}: give the number of images covered, or 'any'")
        rest = (*planned, *check_events(following))
        certificate = self._certificate(planned, delta, relation)  # of this run alone: no need to hold the ledger
        body = {
            "digest": digest,
            "events": dumped(planned),
            "relation": relation,
            "delta": float(delta),
            **certificate,
            "claim": claim,
            "images": images,
            "code_version": code_version,
            "run": run,
            "stage": stage,
            "parents": list(parents),
            "purpose": purpose,
            "insecure": bool(insecure),
            **({"unit": unit} if unit else {}),
            **({"reason": reason} if reason else {}),
            **(noise or {}),
        }
        with self._chain.appending(spending=True) as (entries, write):
            check_set(entries, dataset, digest)
            overrun = self._overrun(entries, dataset, rest, relation, delta)
            if overrun is None:
                entry = write(dataset, "reserve", body)
        if overrun is not None:
            raise Refused(self._refusal(dataset, overrun))
        return Reservation(
            entry.seq,
            dataset,
            planned,
            relation,
            float(delta),
            certificate["epsilon"],
            certificate["why"],
            bool(insecure),
            entry.hash,
        )

    def opened(self, reservation: Reservation) -> Entry:
        """Write that the door opens under a reservation, before a mechanism sees the records; once only."""
        with self._chain.appending() as (entries, write):
            reserved, last = standing(entries, reservation.hash)
            if last is not None:
                raise Refused(f"{title_of(reserved)} {past_of(last)} before: reserve anew for another access")
            return write(
                reserved.dataset,
                "open",
                {"reserve": reserved.seq, "epsilon": reserved.body["epsilon"], "insecure": reserved.body["insecure"]},
            )

    def standing_open(self, reservation_hash: str, digest: str) -> Entry:
        """The reservation, if its door is open and its images have this content digest; Refused otherwise."""
        reserved, last = standing(self.entries(), reservation_hash)
        if last is None or last.kind != "open":
            raise Refused(f"{title_of(reserved)} is not open: nobody may join the work under it")
        if reserved.body["digest"] != digest:
            raise Refused(
                f"{title_of(reserved)} is for other images than this process finds: give every process the same data"
            )
        return reserved

    def commit(self, reservation: Reservation, events: Iterable[Event], *, artifact: str = "") -> Entry:
        """Write the events really taken: those reserved, or fewer of them. More is Refused, and all stays reserved.

        `artifact` is the address of what was made under it and kept before; work that was broken off names none.
        """
        taken = check_events(events)
        with self._chain.appending() as (entries, write):
            reserved, last = standing(entries, reservation.hash)
            if last is None or last.kind != "open":
                state = "was never opened" if last is None else past_of(last) + " before"
                raise Refused(f"{title_of(reserved)} {state}: only a reservation whose door is open can be committed")
            if tally(surely_taken(entries, reserved)) - tally(taken):
                raise Refused(
                    f"{title_of(reserved)} went on after more than that was done: commit no less than what its last but one "
                    "progress allowed"
                )
            excess = tally(taken) - tally(events_of(reserved))
            if excess:
                (what, times), *_ = excess.items()
                raise Refused(
                    f"{title_of(reserved)} does not cover what was done ({times} times too many: {in_words(what)}): it stands in "
                    "full, the excess is in no account, and the result must not leave"
                )
            certificate = self._certificate(taken, reserved.body["delta"], reserved.body["relation"])
            return write(
                reserved.dataset,
                "commit",
                {
                    "reserve": reserved.seq,
                    "events": dumped(taken),
                    **certificate,
                    "insecure": reserved.body["insecure"],
                    **({"artifact": artifact} if artifact else {}),
                },
            )

    def progress(self, reservation: Reservation, events: Iterable[Event]) -> Entry:
        """Write, before it happens, up to which events work under an open reservation may go before it writes again.

        If the process dies, no more than these were taken, which `settle` may then say.
        """
        allowed = check_events(events)
        with self._chain.appending() as (entries, write):
            reserved, last = standing(entries, reservation.hash)
            if last is None or last.kind != "open":
                state = "was never opened" if last is None else past_of(last) + " before"
                raise Refused(f"{title_of(reserved)} {state}: only work under an open reservation can go on")
            if tally(allowed) - tally(events_of(reserved)):
                raise Refused(f"{title_of(reserved)} does not cover what is to be done: reserve for it")
            if any(tally(before) - tally(allowed) for before in allowances(entries, reserved)):
                raise Refused(
                    f"{title_of(reserved)} was allowed more before: work that was allowed cannot be taken back"
                )
            return write(reserved.dataset, "progress", {"reserve": reserved.seq, "events": dumped(allowed)})

    def settle(self, reservation_hash: str) -> Entry | None:
        """Commit, in place of a process that died, the most that it can have taken; None where the reservation has ended already.

        A process that turns out to be alive is refused at its next `progress` or `commit`.
        """
        with self._chain.appending() as (entries, write):
            reserved, last = standing(entries, reservation_hash)
            if last is not None and last.kind != "open":
                return None
            taken = most_taken(entries, reserved)
            certificate = self._certificate(taken, reserved.body["delta"], reserved.body["relation"])
            body = {"reserve": reserved.seq, "events": dumped(taken), **certificate, "settled": True}
            return write(reserved.dataset, "commit", {**body, "insecure": reserved.body["insecure"]})

    # What costs nothing

    def look(
        self,
        dataset: str,
        digest: str | None,
        reason: str,
        *,
        stage: str,
        run: str,
        code_version: str,
        parents: Sequence[str] = (),
        constants: Constants | None = None,
    ) -> Entry:
        """Write, before it happens, an access without noise; every result of it is INTERNAL.

        Without a digest (None) the entry names no content, for a look at a set that is still being put together. `constants`
        are those that hold from here on for this version of the set.

        Many parameters: each is a field of the entry that it writes.
        """
        check_reason("a look at", dataset, reason)
        check_name(dataset)
        with self._chain.appending(spending=True) as (entries, write):
            if digest is not None:
                check_set(entries, dataset, digest)
            return write(
                dataset,
                "look",
                {
                    **({} if digest is None else {"digest": digest}),
                    **({} if constants is None else {"unprotected": constants.model_dump(mode="json")}),
                    "reason": reason,
                    "stage": stage,
                    "run": run,
                    "code_version": code_version,
                    "parents": list(parents),
                },
            )

    def reuse(
        self, dataset: str, artifact: str, *, spends: Sequence[str], stage: str, run: str, code_version: str
    ) -> Entry:
        """Write that a cached artifact, which stands on the reservations of the hashes `spends`, was used again."""
        with self._chain.appending() as (entries, write):
            reserved = reserved_entries(entries, spends, dataset)
            return write(
                dataset,
                "reuse",
                {
                    "artifact": artifact,
                    "spends": [entry.seq for entry in reserved],
                    "stage": stage,
                    "run": run,
                    "code_version": code_version,
                },
            )

    def note_made(self, artifact: str, *, entries: Sequence[str], stage: str, run: str, code_version: str) -> Entry:
        """Write that an artifact was made from others alone, which stand on the `entries` of these hashes, of one set.

        A person who can write to the store but not to the ledger can then not replace the artifact.
        """
        with self._chain.appending() as (known, write):
            stands_on = entries_by_hash(known, entries)
            datasets = sorted({entry.dataset for entry in stands_on})
            if len(datasets) != 1:
                raise BadInput(
                    f"artifact {artifact[:SHOWN_DIGITS]} stands on {len(datasets)} private sets: name those of one"
                )
            body = {"artifact": artifact, "stands_on": [entry.seq for entry in stands_on]}
            return write(datasets[0], "made", {**body, "stage": stage, "run": run, "code_version": code_version})

    def check(
        self,
        dataset: str,
        *,
        what: Check,
        artifact: str,
        finding: str,
        passed: bool,
        spends: Sequence[str],
        run: str,
        code_version: str,
    ) -> Entry:
        """Write the verdict of a check of samples, which publishing asks for: whether they repeat records, or an audit's.

        artifact: address of the samples. finding: address of what the check found (INTERNAL, as its number of copies is).
        passed: for copies, that none is unexplained; for an audit, that it does not refute what is promised. spends:
        hashes of the reservations that the samples stand on; a refuting audit holds for all that stands on one of them.
        The last verdict on an artifact counts.

        Many parameters: each is a field of the entry that it writes.
        """
        with self._chain.appending() as (entries, write):
            reserved = reserved_entries(entries, spends, dataset)
            body = {"what": what, "artifact": artifact, "finding": finding, "passed": bool(passed)}
            spent = [entry.seq for entry in reserved]
            return write(dataset, "check", {**body, "spends": spent, "run": run, "code_version": code_version})

    def override(
        self,
        dataset: str,
        reason: str,
        *,
        what: Literal["claim", "copies", "rehearsal"],
        artifact: str,
        claim: dict[str, Any] | None,
        missing: str,
        spends: Sequence[str],
        run: str,
        code_version: str,
    ) -> Entry:
        """Write that a person let an artifact leave on a claim alone, or in spite of copies; or went on after a rehearsal that failed.

        `missing` says what is not promised, or was not shown.

        Many parameters: each is a field of the entry that it writes.
        """
        check_reason("an override for", dataset, reason)
        with self._chain.appending() as (entries, write):
            reserved = reserved_entries(entries, spends, dataset)
            return write(
                dataset,
                "override",
                {
                    "what": what,
                    "reason": reason,
                    "artifact": artifact,
                    "claim": claim,
                    "missing": missing,
                    "spends": [entry.seq for entry in reserved],
                    "run": run,
                    "code_version": code_version,
                },
            )

    # Reading

    def constants(self, dataset: str) -> Constants | None:
        """The unprotected facts of the set's present version that the last run took; None where none did."""
        return constants_of(self.entries(), dataset)

    def entries(self, dataset: str | None = None) -> list[Entry]:
        """All entries in order, or those of one set; readable also when the chain is broken."""
        return [entry for entry in self._chain.unchecked_entries() if dataset in (None, entry.dataset)]

    def spends(self, dataset: str, *, all_versions: bool = False) -> list[Spend]:
        """The reservations that count, each with the events that count: committed, or else all that was reserved."""
        return spends_of(self._chain.entries(), dataset, all_versions=all_versions)

    def total(
        self,
        dataset: str,
        delta: float | None = None,
        relation: Relation | None = None,
        *,
        all_versions: bool = False,
    ) -> Total:
        """The cost of a private set so far, all spends composed.

        delta: by default the budget's, else the smallest among the spends (0 when nothing is spent).
        relation: by default `replace_one` as soon as one spend is stated so, else `add_remove`.
        all_versions: what all versions together have cost, which bounds the cost of a record that is in every one.
        """
        return self._total(self._chain.entries(), dataset, delta, relation, all_versions)

    def history(self, dataset: str, points: int, *, progress: Progress = silent) -> list[tuple[int, float]]:
        """The growth of the total: (seq, epsilon in all so far) after at most `points` of the set's spends, the last included."""
        entries = self._chain.entries()
        whole, spends = self._total(entries, dataset, None, None), spends_of(entries, dataset)
        chosen = sorted({round(n * len(spends) / points) for n in range(1, points + 1)} - {0})
        grown = []
        for done, number in enumerate(chosen):
            so_far = spends[:number]
            grown.append((so_far[-1][0].seq, self._compose(so_far, whole.delta, whole.relation)))
            progress(done + 1, len(chosen))
        return grown

    def entries_by_hash(self, hashes: Iterable[str]) -> list[Entry]:
        """The entries of these hashes, each once, in order; `BadInput` for one of another ledger."""
        return entries_by_hash(self._chain.entries(), hashes)

    def price_of(self, hashes: Sequence[str], delta: float, relation: Relation) -> float:
        """The epsilon of one release that stands on the reservations of these hashes, of one set; infinite without certificate."""
        return self.priced(hashes, delta, relation).epsilon

    def priced(self, hashes: Sequence[str], delta: float, relation: Relation) -> accountant.Priced:
        """The price of `price_of`, and the name of what computed it."""
        spends = self._standing_on(hashes, delta)
        events = [event for _, taken in spends for event in taken]
        return accountant.Priced(self._compose(spends, delta, relation), self._named(events, delta, relation))

    def curve(
        self, hashes: Sequence[str], deltas: Sequence[float], relation: Relation, *, own: float
    ) -> tuple[float, ...]:
        """The epsilon of the same release at each of these deltas, by the distribution that prices it at delta `own`."""
        spends = self._standing_on(hashes, own)
        events = [event for _, taken in spends for event in taken]
        if self._injected or relation_of(spends) not in (relation, "add_remove"):
            return tuple(self._compose(spends, delta, relation) for delta in deltas)
        return accountant.curve(events, deltas, relation, own=own)

    def events_under(self, hashes: Sequence[str]) -> tuple[Event, ...]:
        """The events of one release that stands on the reservations of these hashes, of one set, as its price counts them."""
        return tuple(event for _, taken in self._standing_on(hashes, 0.5) for event in taken)

    def _standing_on(self, hashes: Sequence[str], delta: float) -> list[Spend]:
        check_delta(delta)
        entries = self._chain.entries()
        reserved = reserved_entries(entries, hashes)
        numbers = [entry.seq for entry in reserved]
        if len({entry.dataset for entry in reserved}) > 1:
            raise BadInput(f"reservations {numbers} are of several private sets: price each set by itself")
        spends = [
            spend
            for one in reserved[:1]
            for spend in spends_of(entries, one.dataset, all_versions=True)
            if spend[0] in reserved
        ]
        if len(spends) < len(reserved):
            raise BadInput(f"one of the reservations {numbers} was cancelled: nothing can stand on it")
        return spends

    def replay(
        self, tolerance: float = 1e-6, *, price: Price | None = None, progress: Progress = silent
    ) -> list[Difference]:
        """Recompute each certificate from its entry; the ones that differ by more than `tolerance` (relative).

        `price`: another accountant's, in place of the ledger's own.
        """
        entries = self._chain.entries()
        terms = {entry.seq: entry.body for entry in entries if entry.kind in ("reserve", RECOVERED)}
        priced = [entry for entry in entries if entry.kind in ("reserve", RECOVERED, "commit")]
        differences = []
        for done, entry in enumerate(priced):
            body = terms[entry.body.get("reserve", entry.seq)]
            now = self._both(events_of(entry), body["delta"], body["relation"], price or self._price)
            pairs = [(body["relation"], entry.body["epsilon"], now[body["relation"]])]
            pairs += [(name, was, now[name]) for name, was in entry.body["both"].items() if name != pairs[0][0]]
            differences += [
                Difference(entry.seq, entry.dataset, relation, was, epsilon)
                for relation, was, epsilon in pairs
                if not _same(was, epsilon, tolerance)
            ]
            progress(done + 1, len(priced))
        return differences

    # Pricing

    def _epsilon(self, events: Sequence[Event], delta: float, relation: Relation, price: Price | None = None) -> float:
        """Price events; nothing costs nothing, and one access that cannot be certified has no finite price."""
        if not sum(tally(events).values()):
            return 0.0
        uncertified = any(event.uncertified(relation) for event in events)
        return math.inf if uncertified else float((price or self._price)(events, delta, relation))

    def _certificate(self, events: Sequence[Event], delta: float, relation: Relation) -> dict[str, Any]:
        """The fields of an entry that state its price: epsilon, or the reason for none, under both relations, and the accountant."""
        epsilons = self._both(events, delta, relation, self._price)
        reasons = [why for event in events if (why := event.uncertified(relation))]
        why = "; ".join(dict.fromkeys(reasons)) or f"the accountant finds no finite epsilon at delta {delta:g}"
        return {
            "epsilon": epsilons[relation],
            "both": epsilons,
            "why": why if epsilons[relation] is None else None,
            "accountant": self._named(events, delta, relation),
        }

    def _named(self, events: Sequence[Event], delta: float, relation: Relation) -> str:
        """The name of what computes their price."""
        if self._injected:
            return f"injected: {self._injected}"
        return accountant.priced(events, delta, relation).accountant

    def _both(
        self, events: Sequence[Event], delta: float, stated: Relation, price: Price
    ) -> dict[Relation, float | None]:
        """The epsilon of events under either relation, None where there is none."""
        both = {one: self._stated(events, delta, one, stated, price) for one in RELATIONS}
        return {one: epsilon if math.isfinite(epsilon) else None for one, epsilon in both.items()}

    def _stated(
        self, events: Sequence[Event], delta: float, relation: Relation, stated: Relation, price: Price | None = None
    ) -> float:
        """The epsilon under `relation` of events that are stated under `stated`; what holds for an exchange alone does
        not carry over to adding and removing."""
        carries_over = relation == stated or relation == "replace_one"
        return self._epsilon(events, delta, relation, price) if carries_over else math.inf

    def _compose(self, spends: Sequence[Spend], delta: float, relation: Relation) -> float:
        """Compose spends under one relation."""
        return self._stated([event for _, events in spends for event in events], delta, relation, relation_of(spends))

    def _total(
        self,
        entries: list[Entry],
        dataset: str,
        delta: float | None,
        relation: Relation | None,
        all_versions: bool = False,
    ) -> Total:
        spends = spends_of(entries, dataset, all_versions=all_versions)
        strictest, budgets = relation_of(spends), budgets_of(entries, dataset)
        spent = {one.delta: self._compose(spends, one.delta, strictest) for one in budgets.values()}
        budget = min(budgets.values(), key=lambda one: one.epsilon - spent[one.delta], default=None)
        own = budget.delta if budget else min((entry.body["delta"] for entry, _ in spends), default=0.0)
        delta, relation = own if delta is None else delta, strictest if relation is None else relation
        epsilon = spent.get(delta) if relation == strictest else None
        epsilon = self._compose(spends, delta, relation) if epsilon is None else epsilon
        left = None
        if budget and (delta, relation) == (budget.delta, strictest) and not all_versions:
            left = max(0.0, budget.epsilon - epsilon)
        return Total(epsilon, delta, relation, len(spends), left, budget)

    def _overrun(
        self, entries: list[Entry], dataset: str, planned: Sequence[Event], relation: Relation, delta: float
    ) -> Overrun | None:
        """None where the set's budget, and that of every set joined to it, bears the planned events too."""
        budgets = budgets_of(entries, dataset)
        if not budgets:
            return None
        if dataset in budgets and delta != budgets[dataset].delta:
            raise BadInput(
                f"delta {delta:g} differs from the budget of '{dataset}': use its delta, "
                f"--set privacy.delta={budgets[dataset].delta!r}"
            )
        spends = spends_of(entries, dataset)
        relation = "replace_one" if relation == "replace_one" else relation_of(spends)
        spent = [event for _, counted in spends for event in counted]
        after: dict[float, float] = {}
        for name, budget in budgets.items():
            if budget.delta not in after:
                after[budget.delta] = self._epsilon([*spent, *planned], budget.delta, relation)
            if not after[budget.delta] <= budget.epsilon:
                return Overrun(planned, spent, name, budget, relation, after[budget.delta])
        return None

    def _refusal(self, dataset: str, overrun: Overrun) -> str:
        """The refusal in words: the rest of the budget, the planned cost, and what would fit. Needs several pricings."""
        planned, spent, owner, budget, relation, after = overrun
        delta = budget.delta
        before = self._epsilon(spent, delta, relation)
        joined = "" if owner == dataset else f", which is joined to '{dataset}',"
        left = (
            f"epsilon {max(0.0, budget.epsilon - before):.4g} of {budget.epsilon:.4g} left for '{owner}'{joined} "
            f"at delta {delta:g} ({relation}); this run"
        )
        if not math.isfinite(after):
            return (
                f"{left} has no certificate ({self._certificate(planned, delta, relation)['why']}): choose a "
                "certified setting, or a private set without a budget"
            )
        ways = what_fits(
            planned,
            lambda events: self._epsilon(events, delta, relation),
            lambda events: self._epsilon([*spent, *events], delta, relation),
            budget.epsilon,
            "" if owner == dataset else f" --set privacy.delta={delta!r}",
        )
        if ways:
            return f"{left} needs {after - before:.4g}: with these settings {ways} would fit; or raise the budget"
        return (
            f"{left} needs {after - before:.4g}, and changing its largest mechanism alone is not enough: a smaller --epsilon makes all of them "
            "cheaper; or raise the budget"
        )


def _same(recorded: float | None, computed: float | None, tolerance: float) -> bool:
    if recorded is None or computed is None:
        return recorded is computed
    return math.isclose(recorded, computed, rel_tol=tolerance)
