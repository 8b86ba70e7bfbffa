"""What said no in a ledger, an audit that refuted or a person's refusal, found in what is known of entries that were lost, to be written again.

What said yes is not written again: whoever wants it asks again. Not covered: an audit that passed, or an approval, that came after a lost no and was
lost too; the no stands until somebody asks again. A refusal does not bind a sister edition where the lost entries alone said that both stand on one payment.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from sfumato.privacy.ledger.chain import Entry

DECISION, CHECK = "decision", "check"
"""Kinds of entries that hold a verdict."""
AUDIT = "audit"
REFUSED: Literal["refused"] = "refused"
Veto = Mapping[str, Any]
"""`hash`, `dataset`, `kind` and `body` of an entry that said no, and `on`, the hashes of the spends that it is about."""


def vetoes_of(entries: Sequence[Entry]) -> tuple[Veto, ...]:
    """The entries that said no and were not followed by another verdict on the same images."""
    hashes = {entry.seq: original(entry) for entry in entries}
    last: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        if entry.kind == DECISION or _is_audit(entry):
            last[entry.kind, entry.body["artifact"]] = entry
    return tuple(
        {
            "hash": original(one),
            "dataset": one.dataset,
            "kind": one.kind,
            "body": dict(one.body),
            "on": [hashes[seq] for seq in one.body.get("spends", ()) if seq in hashes],
        }
        for one in last.values()
        if (one.body["decision"] == REFUSED if one.kind == DECISION else not one.body["passed"])
    )


def original(entry: Entry) -> str:
    """The hash of an entry, or that of the lost one that it was written for."""
    return str(entry.body.get("was_hash", entry.hash))


def lost_vetoes(entries: Sequence[Entry], known: Iterable[Veto]) -> list[Veto]:
    """Those that this ledger neither holds nor has written again, each once."""
    here = {original(entry) for entry in entries}
    return list({veto["hash"]: veto for veto in known if veto["hash"] not in here}.values())


def vetoed_anew(veto: Veto, entries: Sequence[Entry]) -> dict[str, Any]:
    """The body of the entry by which a lost no holds again, about the spends as they are numbered in `entries`."""
    spends = [entry.seq for entry in entries if original(entry) in veto["on"]]
    return {**veto["body"], **({"spends": spends} if veto["kind"] == CHECK else {}), "was_hash": veto["hash"]}


def _is_audit(entry: Entry) -> bool:
    return entry.kind == CHECK and entry.body["what"] == AUDIT
