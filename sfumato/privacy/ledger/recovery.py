"""Restores a ledger that lacks entries, by signed entries from what is known of it elsewhere.

A statement is a signed head together with all spends, budgets and joins up to it; every run stores one in its folder. Missing spends
are written again from statements and from copies of the ledger (`recovered`, one entry for each spend, which counts in totals
and budgets), and one entry names the heads that are made up for: `recovery` where all that they stood for is known, `loss`
with a person's reason where it is not. What said no, an audit or a person, says so again (`sfumato.privacy.ledger.vetoes`), and a budget that was lowered is
low again.

Not covered: a reservation that was cancelled after its statement is written again, and counts; an artifact that stood on a lost
entry stays bound to that entry, and is made again.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sfumato.config import Relation
from sfumato.errors import BadInput, Refused
from sfumato.privacy.accounting.events import Event
from sfumato.privacy.ledger.balance import budget_of, check_events, check_reason, counted, dumped, events_of, tally
from sfumato.privacy.ledger.chain import LOSS, OF_THE_LEDGER, RECOVERY, REKEYED, Chain, Entry, present
from sfumato.privacy.ledger.joins import PERSON, joined_names
from sfumato.privacy.ledger.signing import Head, is_signed_value, missing_heads
from sfumato.privacy.ledger.vetoes import lost_vetoes, original, vetoed_anew, vetoes_of

RECOVERED = "recovered"
COUNTED_TOGETHER = "they counted together before entries of this ledger were lost"
"""The reason of a join that is written again."""
NOTED = ("migrate", REKEYED, RECOVERY, LOSS, RECOVERED)
"""Kinds of entries that a card shows because they say how far a ledger's totals can be relied on."""
TERMS = (
    "relation",
    "delta",
    "insecure",
    "images",
    "run",
    "stage",
    "purpose",
    "code_version",
    "unit",
    "generator",
    "arithmetic",
)
"""Fields of a reservation that are written again."""


@dataclass(frozen=True)
class Known:
    """The content of a ledger as known from elsewhere: heads, the spends that count and the budgets."""

    heads: tuple[Head, ...]
    spends: tuple[Mapping[str, Any], ...]
    """Each with `seq`, `hash`, `dataset`, `events` and the terms of its reservation."""
    budgets: Mapping[str, Mapping[str, float]]
    joins: tuple[tuple[str, str], ...]
    """Pairs of sets that counted together, whoever said so."""
    complete: bool
    """Whether it holds everything that counts up to the last head; a card holds the spends of one release alone."""
    vetoes: tuple[Mapping[str, Any], ...] = ()
    """Audits that refuted and refusals by persons, each with `hash`, `dataset`, `kind`, `body` and `on`, the hashes of the spends it is about."""


class SignedLedger:
    """The part of a ledger that keeps its entries signed and complete; `Ledger` adds prices, budgets and spends."""

    _chain: Chain
    _certificate: Callable[[Sequence[Event], float, Relation], dict[str, Any]]
    """The fields of an entry that state the price of events, at a delta under a relation."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Its address, without a password."""
        return self._chain.url

    def close(self) -> None:
        """Let go of the database; nothing is pending, every entry is on disk when its call returns."""
        self._chain.close()

    def verify(self) -> list[str]:
        """All that is wrong with the chain of entries, one line each; empty when nothing was edited, deleted, moved, cut off,
        or signed by somebody else."""
        return self._chain.breaks()

    def signed_head(self) -> dict[str, Any]:
        """The state of this ledger in one line: its id, number and hash of the last entry, public key, and the signature.

        `seq` is 0 and `hash` empty before the first entry. Refused where the chain is broken.
        """
        return self._chain.signed_head()

    def sign(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The value with the field `signature`, by which the ledger's key covers every other field in canonical JSON."""
        return self._chain.sign(value)

    def lacks(self, heads: Sequence[Head] = ()) -> list[Head]:
        """The heads seen before, and those among `heads`, that this ledger neither holds nor makes up for, the latest first."""
        return self._chain.lacks(heads)

    def whole_entries(self) -> list[Entry]:
        """All entries in order, of one reading; `Refused` where this ledger lacks one that was seen before, since its totals, checks and decisions
        may then be outdated, or where its chain is broken."""
        return self._chain.whole_entries()

    def check_heads(self, sources: Sequence["Known"]) -> None:
        """Refused where this ledger lacks a head that one of these knows; they are seen from then on."""
        self._chain.see([head for source in sources for head in source.heads])

    def statement(self) -> dict[str, Any]:
        """The signed head, with all spends and budgets up to it under the same signature: what `recover` reads. INTERNAL."""
        return self.sign(statement(self.signed_head(), self._chain.entries()))

    def ids(self) -> set[str]:
        """The ids of this ledger, and of others that lay at its place."""
        return self._chain.names()

    def known_from(self, texts: Iterable[str]) -> "list[Known]":
        """The content of statements and cards of this ledger that its key signed; other texts are ignored."""
        keys, names = self._chain.keys_known(), self.ids()
        return [known for text in texts if (known := known_from(text, keys, names))]

    def known_from_copy(self, other: "SignedLedger") -> "Known":
        """The content of a copy of this ledger; `BadInput` for another ledger, Refused unless it is whole and signed."""
        if not self.ids() & other.ids():
            raise BadInput(f"{other.url} is no copy of the ledger {self.url}: it has another id")
        if breaks := other._chain.breaks(own=True):
            raise Refused(f"the ledger {other.url} was tampered with: {breaks[0]}")
        return known_of(other._chain.entries())

    def recover(self, sources: Sequence["Known"], reason: str = "") -> list[Entry]:
        """Write what this ledger lacks, and `sources` know, as entries of this one; a `reason` declares the rest lost.

        Spends count again, budgets hold again where there is none or a larger one, what said no says so again, and sets that counted together do so again.
        Refused where something stays unknown and no reason is given; nothing is written then.
        """
        check_sources(sources)
        seen = self._chain.seen()
        with self._chain.appending_beside(recovering=True) as (entries, write, _):
            lost = missing_heads([*seen, *(head for one in sources for head in one.heads)], present(entries))
            if not lost:
                raise BadInput(f"the ledger {self.url} lacks nothing that was seen: there is nothing to recover")
            spends, before = lost_spends(entries, sources), len(entries)
            kind, body = made_up(lost, unknown_heads(lost, seen, sources), len(spends), reason)
            write(OF_THE_LEDGER, kind, body)
            for one in spends:
                anew = written_anew(one)
                price = self._certificate(check_events(anew["events"]), anew["delta"], anew["relation"])
                write(one["dataset"], RECOVERED, {**anew, **price})
            for veto in lost_vetoes(entries, (one for source in sources for one in source.vetoes)):
                write(veto["dataset"], veto["kind"], vetoed_anew(veto, entries))
            for name, budget in budgets_known(sources, {head.hash for head in lost}).items():
                if (now := budget_of(entries, name)) is None or budget["epsilon"] < now.epsilon:
                    write(name, "budget", budget)
            for name, other in dict.fromkeys(pair for source in sources for pair in source.joins):
                if other not in joined_names(entries, name):
                    write(name, "join", {"other": other, "other_version": 1, "reason": COUNTED_TOGETHER, "by": PERSON})
            return entries[before:]

    def new_key(self, reason: str) -> Entry:
        """Go on under a new key, since the one so far is lost; the entry says why. `BadInput` where it is not lost."""
        check_reason("a new key for", self.url, reason)
        return self._chain.new_key(reason)

    def spends_under(self, hashes: Iterable[str]) -> list[dict[str, Any]]:
        """The spends among the entries of these hashes, as a card holds them so that they can be written anew."""
        return spends_under(self._chain.entries(), hashes)

    def notes(self, dataset: str) -> list[dict[str, Any]]:
        """Notes on the ledger itself for a card on this set: migrated, another key, recovered, entries lost."""
        return notes_of(self._chain.entries(), dataset)


def known_of(entries: Sequence[Entry]) -> Known:
    """The content of a copy of a ledger."""
    names = dict.fromkeys(entry.dataset for entry in entries if entry.kind == "budget")
    sets = {entry.dataset for entry in entries} - {OF_THE_LEDGER}
    budgets = {name: budget for name in names if (budget := budget_of(entries, name))}
    return Known(
        heads=tuple(Head(entry.seq, entry.hash, entry.previous) for entry in entries),
        spends=tuple(_spend_terms(entry, events) for entry, events in counted(entries)),
        budgets={name: {"epsilon": budget.epsilon, "delta": budget.delta} for name, budget in budgets.items()},
        joins=tuple((name, other) for name in sorted(sets) for other in joined_names(entries, name) if name < other),
        complete=True,
        vetoes=vetoes_of(entries),
    )


def statement(head: Mapping[str, Any], entries: Sequence[Entry]) -> dict[str, Any]:
    """The statement of a ledger with these entries and this head, to be signed."""
    known = known_of(entries)
    return {
        **head,
        "ledger_spends": list(known.spends),
        "budgets": dict(known.budgets),
        "joins": [list(pair) for pair in known.joins],
        "vetoes": list(known.vetoes),
    }


def spends_under(entries: Sequence[Entry], hashes: Iterable[str]) -> list[dict[str, Any]]:
    """The spends among the entries of these hashes, as a card holds them so that they can be written anew."""
    under = set(hashes)
    return [_spend_terms(entry, events) for entry, events in counted(entries) if entry.hash in under]


def known_from(text: str, keys: Iterable[str], names: Iterable[str]) -> Known | None:
    """The content of a statement or a card of a ledger with one of these ids, if one of these keys signed it; None for any other
    text. A card may hold a head alone."""
    try:
        value = json.loads(text)
        if not any(is_signed_value(value, key) for key in keys):
            return None
        head = value if "seq" in value else value["head"]
        if head["ledger"] not in names:
            return None
        spends = value.get("ledger_spends", [])
        heads = (Head(int(head["seq"]), str(head["hash"])),)
        joins = tuple((str(name), str(other)) for name, other in value.get("joins", []))
        vetoes = value.get("vetoes", [])
        known = Known(heads, tuple(spends), value.get("budgets", {}), joins, "budgets" in value, tuple(vetoes))
        is_whole = all({"seq", "hash", "dataset", "events", "relation", "delta"} <= set(one) for one in spends)
        return (
            known if is_whole and all({"hash", "dataset", "kind", "body", "on"} <= set(one) for one in vetoes) else None
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def lost_spends(entries: Sequence[Entry], sources: Sequence[Known]) -> list[Mapping[str, Any]]:
    """The spends in the sources that do not count in this ledger to the same amount, each from the latest source."""
    here = {entry.hash: events for entry, events in counted(entries)}
    here |= {entry.body["was_hash"]: events_of(entry) for entry in entries if entry.kind == RECOVERED}
    latest: dict[str, Mapping[str, Any]] = {}
    for source in sorted(sources, key=lambda one: (one.complete, max(one.heads, default=Head(0, "")))):
        latest |= {one["hash"]: one for one in source.spends}
    return [one for one in latest.values() if one["hash"] not in here or tally(_events(one)) - tally(here[one["hash"]])]


def unknown_heads(lost: Sequence[Head], noted: Sequence[Head], sources: Sequence[Known]) -> list[Head]:
    """The lost heads that no source covers: a source covers a head if it is a copy that holds it, or a statement made there or later."""
    before = {head.hash: head.previous for head in noted}
    reached = {head.hash for source in sources if source.complete for head in source.heads}
    for one in list(reached):
        while (one := before.get(one, "")) and one not in reached:
            reached.add(one)
    return [head for head in lost if head.hash not in reached]


def made_up(lost: Sequence[Head], unknown: Sequence[Head], spends: int, reason: str) -> tuple[str, dict[str, Any]]:
    """Kind and body of the entry that makes up for lost heads; `Refused` where some are unknown and no reason is given."""
    if unknown and not reason.strip():
        raise Refused(
            f"{len(unknown)} of {len(lost)} entries that the ledger lacks are known by their heads alone (up to entry "
            f"{unknown[0].seq}): give a copy that holds them with --from, or declare them lost with --declare-loss REASON"
        )
    body: dict[str, Any] = {"covers": [[head.seq, head.hash] for head in sorted(lost)], "spends": spends}
    return (LOSS, {**body, "reason": reason, "unknown": len(unknown)}) if unknown else (RECOVERY, body)


def written_anew(spend: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the entry by which a lost spend counts again, without its price."""
    terms = {name: spend[name] for name in TERMS if name in spend}
    return {**terms, "events": spend["events"], "was": spend["seq"], "was_hash": spend["hash"]}


def budgets_known(sources: Sequence[Known], lost: Collection[str]) -> dict[str, dict[str, float]]:
    """The smallest budget of each set among the sources that know heads which were `lost`; what others know, the ledger has seen since."""
    smallest: dict[str, dict[str, float]] = {}
    newer = [source for source in sources if any(head.hash in lost for head in source.heads)]
    for name, budget in (item for source in newer for item in source.budgets.items()):
        if name not in smallest or budget["epsilon"] < smallest[name]["epsilon"]:
            smallest[name] = {"epsilon": float(budget["epsilon"]), "delta": float(budget["delta"])}
    return smallest


def notes_of(entries: Sequence[Entry], dataset: str) -> list[dict[str, Any]]:
    """Notes for a card on this set on a ledger that was migrated, got another key, was recovered, or lost entries."""
    return [entry.public() for entry in entries if entry.kind in NOTED and entry.dataset in (OF_THE_LEDGER, dataset)]


def check_sources(sources: Sequence[Known]) -> None:
    """`BadInput` for spends in events that this Sfumato does not know."""
    for source in sources:
        for one in source.spends:
            if not isinstance(one["dataset"], str) or not one["dataset"]:
                raise BadInput(f"spend {one['seq']} of a statement names no private set: leave that file out")
            _events(one)


def _events(spend: Mapping[str, Any]) -> tuple[Event, ...]:
    return events_of(Entry(spend["seq"], spend["dataset"], RECOVERED, dict(spend), "", spend["hash"]))


def _spend_terms(entry: Entry, events: Sequence[Event]) -> dict[str, Any]:
    terms = {name: entry.body[name] for name in TERMS if name in entry.body}
    where = {"seq": entry.body.get("was", entry.seq), "hash": original(entry)}
    return {**where, "dataset": entry.dataset, **terms, "events": dumped(events)}
