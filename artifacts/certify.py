"""What samples may promise, worked out from the store and the ledger alone, and what a person accepted in its place.

The record of a run is a file that anyone may edit; label, entries and epsilon are therefore found again before anything
leaves. A person may let samples leave on the paper's claim, or in spite of the copy check; both are ledger entries first.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from artifacts.kinds import Ref
from artifacts.labels import Label
from artifacts.record import Override, RunRecord, records
from artifacts.store import Store
from sfumato.errors import BadInput, Refused
from sfumato.methods.plan import Certificate
from sfumato.privacy.ledger import Entry, Ledger

SAME = 1e-6
"""Relative difference up to which two epsilons are the same number."""


def certificate_of(store: Store, ledger: Ledger, samples: Ref | str, terms: Certificate | None) -> Certificate | None:
    """The certificate of an artifact with label DP: what all the spends that it stands on cost together, each named.

    `terms` gives delta, relation and the number of images; None for any other label, and where the plan promised none. What is
    protected as a whole, an image or a group, is what the entries say; `BadInput` where they do not agree.
    """
    if terms is None or store.manifest(samples)["label"] != Label.DP:
        return None
    hashes = store.entries(samples)
    spent = ledger.priced(hashes, terms.delta, terms.relation)
    found = ledger.found(hashes)
    entries, units = tuple(entry.seq for entry in found), {entry.body.get("unit", "") for entry in found}
    if len(units) != 1:
        told = " and ".join(sorted(f"one {unit or 'image'}" for unit in units))
        raise BadInput(
            f"entries {', '.join(map(str, entries))} protect {told}, which no one certificate says: run again"
        )
    return terms.protecting(units.pop()).model_copy(
        update={"epsilon": spent.epsilon, "accountant": spent.accountant, "entries": entries}
    )


def spends_of(store: Store, ledger: Ledger, artifact: Ref | str) -> list[str]:
    """The hashes of the reservations, among all entries, that an artifact stands on."""
    return [entry.hash for entry in ledger.found(store.entries(artifact)) if entry.kind == "reserve"]


def numbers_of(store: Store, ledger: Ledger, artifact: Ref | str) -> list[int]:
    """The numbers, for people, of every ledger entry that went into an artifact; `BadInput` for one of another ledger."""
    return [entry.seq for entry in ledger.found(store.entries(artifact))]


CURVE_DELTAS = tuple(10.0**-n for n in range(9, 1, -1))
"""Deltas at which the epsilon of a certificate's spends is told beside its own."""


def curve_of(
    store: Store, ledger: Ledger, samples: Ref | str, certificate: Certificate | None
) -> tuple[tuple[float, float], ...]:
    """Delta and epsilon of a certificate's spends at those deltas and its own, in order; empty where there is none."""
    if certificate is None or not certificate.entries:
        return ()
    hashes = store.entries(samples)
    priced = {d: ledger.price_of(hashes, d, certificate.relation) for d in CURVE_DELTAS}
    points = {**priced, certificate.delta: certificate.epsilon}
    return tuple((delta, epsilon) for delta, epsilon in sorted(points.items()) if math.isfinite(epsilon))


def missing(store: Store, ledger: Ledger, samples: Ref | str) -> str:
    """Why an INTERNAL artifact has no certificate: each ledger entry that made it so, in words."""
    entries = {entry.hash: entry for entry in ledger.entries()}
    stained = {
        name for _, m in store.ancestry(samples) for name, label in m["entries"].items() if label == Label.INTERNAL
    }
    known = sorted((entries[name] for name in stained if name in entries), key=lambda entry: entry.seq)
    strange = sorted(stained - set(entries))
    told = [f"entry {entry.seq}: {_stain(entry)}" for entry in known]
    return "; ".join([*told, *(f"entry {name[:12]}: not in this ledger" for name in strange)])


def _stain(entry: Entry) -> str:
    if entry.kind == "look":
        return f"private images were looked at without noise ({entry.body['reason']})"
    return "its noise was fixed by a test" if entry.body["insecure"] else entry.body["why"]


def confirmed(store: Store, ledger: Ledger, record: RunRecord) -> RunRecord:
    """The record, if store and ledger say the same as it does; `BadInput` where it was changed."""
    label, entries = (
        store.manifest(record.samples_artifact)["label"],
        numbers_of(store, ledger, record.samples_artifact),
    )
    found = certificate_of(store, ledger, record.samples_artifact, record.plan.certificate)
    same = _same(record.certificate, found)
    if not (label == record.label and entries == record.entries and same):
        raise BadInput(
            f"the record of run {record.run} does not say what store and ledger say (label {label}, entries {entries}, epsilon "
            f"{found.epsilon if found else None}): it was changed; run again"
        )
    written = {entry.seq: entry for entry in ledger.entries() if entry.kind == "override"}
    for override in record.overrides:
        entry = written.get(override.entry)
        if (
            entry is None
            or entry.body["artifact"] != record.samples_artifact
            or entry.body["reason"] != override.reason
        ):
            raise BadInput(
                f"override {override.entry} in the record of run {record.run} is not in the ledger: run again"
            )
    return record


def _same(told: Certificate | None, found: Certificate | None) -> bool:
    if told is None or found is None:
        return told is found
    close = math.isclose(told.epsilon, found.epsilon, rel_tol=SAME)
    return close and told == found.model_copy(update={"epsilon": told.epsilon})


def accepted(
    store: Store, ledger: Ledger, record: RunRecord, *, claim: str = "", copies: str = "", code_version: str
) -> RunRecord:
    """The record with what a person accepts, each reason written into the ledger first; `BadInput` for what needs none."""
    asked: list[tuple[Literal["claim", "copies"], str, str]] = []
    if claim:
        if record.label != Label.INTERNAL:
            raise BadInput(
                f"run {record.run} has label {record.label}: there is no claim to accept, leave --accept-claim out"
            )
        asked.append(("claim", claim, missing(store, ledger, record.samples_artifact)))
    if copies:
        if record.copies is None or record.copies.passed:
            raise BadInput(f"the copy check of run {record.run} found nothing to accept: leave --accept-copies out")
        asked.append(("copies", copies, f"{record.copies.unexplained} images repeat training records"))
    for kind, reason, lacking in asked:
        entry = ledger.override(
            record.settings["data"]["name"],
            reason,
            artifact=record.samples_artifact,
            claim=record.claim.model_dump(mode="json") if kind == "claim" else None,
            missing=lacking,
            spends=spends_of(store, ledger, record.samples_artifact),
            run=record.run,
            code_version=code_version,
        )
        override = Override(kind=kind, reason=reason, missing=lacking, entry=entry.seq)
        record = record.model_copy(update={"overrides": (*record.overrides, override)})
    return record


def check_audits(runs: Path, record: RunRecord) -> None:
    """`Refused` where an audit of this run, or of one that stands on the same spends, refuted the certificate."""
    for other in (record, *_relatives(records(runs), record)):
        if other.audit is not None and other.audit.refuted:
            raise Refused(
                f"the audit of run {other.run} refutes its promise: {other.audit.reason}; nothing made of the same spends may leave. "
                "Find the fault, or audit it again"
            )


def _relatives(known: Iterable[RunRecord], record: RunRecord) -> list[RunRecord]:
    return [other for other in known if other.run != record.run and set(other.entries) & set(record.entries)]
