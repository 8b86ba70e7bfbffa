"""Whether a person decided that a run's images may leave, and whether what would leave is what that person decided on.

The decision names the samples by their address, and what is promised of them by a digest: whoever accepts a claim afterwards, or prices
the run by another accountant, asks again. A refusal holds, whatever the settings, until somebody approves, and for other images of the same paid
model too.

Not covered: a run whose settings ask for no approval; who may write to the ledger.
"""

import hashlib
import json
from collections.abc import Collection, Sequence

from artifacts.binding import named_by
from artifacts.record import RunRecord
from sfumato.config import APPROVALS, Release
from sfumato.errors import BadInput
from sfumato.privacy.ledger.chain import Entry
from sfumato.privacy.ledger.decisions import DAY, Decision, decisions_of
from sfumato.privacy.ledger.signing import SHOWN_LETTERS, fingerprint
from sfumato.privacy.ledger.vetoes import DECISION, REFUSED

NONE, _, SIGNED = APPROVALS


def digests_of(record: RunRecord, accepting: Collection[str] = ()) -> dict[str, str]:
    """What a decision is about: the address of the samples, and a digest of all that is promised of them.

    `accepting` are the kinds of acceptance that are about to be written.
    """
    promise = {
        "label": record.label,
        "certificate": record.certificate.model_dump(mode="json") if record.certificate else None,
        "claim": record.claim.model_dump(mode="json"),
        "accepted": sorted({*accepting, *(one.kind for one in record.overrides)}),
    }
    text = json.dumps(promise, sort_keys=True)
    return {"samples": record.samples_artifact, "promise": hashlib.sha256(text.encode()).hexdigest()}


def counts(decision: Decision, terms: Release) -> bool:
    """Whether a decision counts: a refusal always, an approval by its kind and, where the terms name approvers, by its key."""
    if decision.decision == REFUSED:
        return True
    if not decision.is_signed:
        return terms.approval != SIGNED
    return not terms.approvers or decision.public_key in terms.approvers


def check(record: RunRecord, terms: Release, accepting: Collection[str] = ()) -> Decision | None:
    """The decision by which a run's images leave, None where there is none and none is needed; `BadInput` where they must not."""
    counting = [one for one in record.decisions if counts(one, terms)]
    last, ways = counting[-1] if counting else None, ways_of(record.run)
    if last and last.decision == REFUSED:
        raise BadInput(f"run {record.run} was {last.in_words()}; nothing of it leaves before somebody approves: {ways}")
    present = last is not None and last.digests == digests_of(record, accepting)
    if terms.approval == NONE:
        return last if present else None
    if last is None:
        raise BadInput(
            f"run {record.run} needs an approval (release.approval={terms.approval}) and has {_lacking(record, terms)}: {ways}"
        )
    if not present:
        raise BadInput(
            f"what {last.name} approved on {last.time[:DAY]} is not what would leave: images or promise of run {record.run} changed "
            f"since: {ways}"
        )
    if last.licence != terms.licence:
        raise BadInput(
            f"run {record.run} was approved under {last.licence}, not under {terms.licence}: give --licence {last.licence}, or ask "
            f"again: {ways}"
        )
    return last


def refuse_kin(record: RunRecord, known: Sequence[Entry]) -> None:
    """`BadInput` where a person last refused another run that stands on the same paid readings, as another edition of one model does: unless somebody
    approves one of the two, this one does not leave either. `known` are all entries of the ledger, whose copy check names what samples stand on."""
    decided = {one.body["run"]: one.body["artifact"] for one in known if one.kind == DECISION}
    for run, samples in decided.items():
        last = decisions_of(known, run, samples)[-1]
        paid = {number for one in named_by(known, "check", samples) for number in one.body["spends"]}
        if run != record.run and last.decision == REFUSED and paid & set(record.entries):
            raise BadInput(
                f"run {record.run} draws from what run {run} paid for, which was {last.in_words()}; nothing of it leaves before somebody approves "
                f"either: {ways_of(record.run)}"
            )


def ways_of(run: str) -> str:
    """How to come by an approval."""
    return f"sfumato request-release {run}, or sfumato approve {run} --key FILE"


def _lacking(record: RunRecord, terms: Release) -> str:
    """The reason why no approval counts."""
    if not record.decisions:
        return "none"
    last = record.decisions[-1]
    if not last.is_signed:
        return f"only one by {last.name} that was typed, not signed"
    return f"only one by {last.name}, whose key {fingerprint(last.public_key)[:SHOWN_LETTERS]} is none of release.approvers"
