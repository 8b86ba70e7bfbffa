"""The certificate of samples, computed from the store and the ledger alone, and what a person accepted in its place.

The record of a run is a file that anyone may edit; label, entries and epsilon are therefore computed again before anything
leaves. A person may let samples leave on the paper's claim, or in spite of the copy check; both are ledger entries first.
"""

import math
from typing import Literal

from artifacts.labels import Label
from artifacts.record import RunRecord
from artifacts.references import Ref
from artifacts.store import Store
from sfumato.errors import SHOWN_DIGITS, BadInput
from sfumato.methods.plan import ANY_NUMBER, Certificate
from sfumato.privacy.accounting import accountant
from sfumato.privacy.ledger.ledger import Entry, Ledger


def certificate_of(store: Store, ledger: Ledger, samples: Ref | str) -> Certificate | None:
    """The certificate of an artifact with label DP: the cost of all the spends that it stands on, with their entries.

    Delta, relation, unit (an image or a group) and number of images covered (the smallest) come from the entries; `BadInput` where
    they do not agree. None for any other label.
    """
    if store.label_of(samples) != Label.DP:
        return None
    hashes = store.entries(samples)
    stood_on = ledger.entries_by_hash(hashes)
    entries, bodies = tuple(entry.seq for entry in stood_on), [entry.body for entry in stood_on]
    units = {body.get("unit", "") for body in bodies}
    terms = {(body["relation"], body["delta"]) for body in bodies if "relation" in body}
    if len(units) != 1 or len(terms) != 1:
        protected = " and ".join(sorted(f"one {unit or 'image'}" for unit in units))
        promised = " and ".join(sorted(f"{relation} at delta {delta:g}" for relation, delta in terms))
        raise BadInput(
            f"entries {', '.join(map(str, entries))} protect {protected} under {promised}, which no single certificate can state: run again"
        )
    ((relation, delta),) = terms
    spent = ledger.priced(hashes, delta, relation)
    drawn = [body["images"] for body in bodies if body["images"] != ANY_NUMBER]
    return Certificate(
        epsilon=spent.epsilon,
        delta=delta,
        relation=relation,
        accountant=spent.accountant,
        images=min(drawn, default=ANY_NUMBER),
        entries=entries,
    ).protecting(units.pop())


def spends_of(store: Store, ledger: Ledger, artifact: Ref | str) -> list[str]:
    """The hashes of the reservations, among all entries, that an artifact stands on."""
    return [entry.hash for entry in ledger.entries_by_hash(store.entries(artifact)) if entry.kind == "reserve"]


def numbers_of(store: Store, ledger: Ledger, artifact: Ref | str) -> list[int]:
    """The numbers, for people, of every ledger entry that went into an artifact; `BadInput` for one of another ledger."""
    return [entry.seq for entry in ledger.entries_by_hash(store.entries(artifact))]


CURVE_DELTAS = tuple(10.0**-n for n in range(9, 1, -1))
"""Further deltas at which the epsilon of a certificate's spends is stated."""


def curve_of(
    store: Store, ledger: Ledger, samples: Ref | str, certificate: Certificate | None
) -> tuple[tuple[float, float], ...]:
    """Delta and epsilon of a certificate's spends at those deltas and its own, in order; empty where there is none."""
    if certificate is None or not certificate.entries:
        return ()
    hashes = store.entries(samples)
    epsilons = ledger.curve(hashes, CURVE_DELTAS, certificate.relation, own=certificate.delta)
    points = {**dict(zip(CURVE_DELTAS, epsilons, strict=True)), certificate.delta: certificate.epsilon}
    return tuple((delta, epsilon) for delta, epsilon in sorted(points.items()) if math.isfinite(epsilon))


def at_zero_of(
    store: Store, ledger: Ledger, samples: Ref | str, certificate: Certificate | None
) -> accountant.AtZero | None:
    """The delta of a certificate's spends at epsilon 0; None where there is no certificate."""
    if certificate is None or not certificate.entries:
        return None
    events = ledger.events_under(store.entries(samples))
    return accountant.delta_at_zero(events, certificate.relation, own=certificate.delta)


def missing(store: Store, ledger: Ledger, samples: Ref | str) -> str:
    """The reasons why an INTERNAL artifact has no certificate: each ledger entry that made it INTERNAL, in words."""
    entries = {entry.hash: entry for entry in ledger.entries()}
    stained = {
        name for _, m in store.ancestry(samples) for name, label in m["entries"].items() if label == Label.INTERNAL
    }
    known = sorted((entries[name] for name in stained if name in entries), key=lambda entry: entry.seq)
    strange = sorted(stained - set(entries))
    stains = [f"entry {entry.seq}: {_stain(entry)}" for entry in known]
    return "; ".join([*stains, *(f"entry {name[:SHOWN_DIGITS]}: not in this ledger" for name in strange)])


def _stain(entry: Entry) -> str:
    if entry.kind == "look":
        return f"private images were looked at without noise ({entry.body['reason']})"
    return "its noise was fixed by a test" if entry.body["insecure"] else entry.body["why"]


def accept(
    store: Store,
    ledger: Ledger,
    record: RunRecord,
    *,
    claim: str = "",
    copies: str = "",
    copied: bool,
    code_version: str,
) -> None:
    """Write into the ledger what a person accepts, with each reason; `BadInput` where nothing needs acceptance.

    `record` comes from the gate (`artifacts.gate`), `copied` says whether the copy check reported copies.

    Many parameters: each is a part of what a person accepts, and goes into one entry.
    """
    overrides: list[tuple[Literal["claim", "copies"], str, str]] = []
    if claim:
        if record.label != Label.INTERNAL:
            raise BadInput(
                f"run {record.run} has label {record.label}: there is no claim to accept, leave --accept-claim out"
            )
        if record.claim.epsilon == math.inf:
            raise BadInput(
                f"run {record.run} is without noise (privacy.epsilon=inf), and nobody claims privacy for it: draw what leaves with a finite one"
            )
        overrides.append(("claim", claim, missing(store, ledger, record.samples_artifact)))
    if copies:
        if not copied:
            raise BadInput(f"the copy check of run {record.run} found nothing to accept: leave --accept-copies out")
        overrides.append(("copies", copies, "some images repeat training records"))
    for kind, reason, lacking in overrides:
        ledger.override(
            record.settings["data"]["name"],
            reason,
            what=kind,
            artifact=record.samples_artifact,
            claim=record.claim.model_dump(mode="json") if kind == "claim" else None,
            missing=lacking,
            spends=spends_of(store, ledger, record.samples_artifact),
            run=record.run,
            code_version=code_version,
        )
