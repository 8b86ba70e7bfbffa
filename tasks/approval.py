"""Asking for a decision on whether a run's images may leave, and writing it down."""

from collections.abc import Mapping
from dataclasses import dataclass

from artifacts import gate
from artifacts.approval import digests_of
from artifacts.packaging import require_licence
from artifacts.record import RunRecord, load_record
from sfumato import __version__
from sfumato.config import Release
from sfumato.errors import BadInput
from sfumato.privacy.ledger.decisions import APPROVED, Decision, Verdict
from sfumato.privacy.ledger.signing import SHOWN_LETTERS, Signer
from sfumato.settings import release_of
from tasks.release import accepted
from tasks.reporting import write_up
from tasks.runtime.environment import now, where


@dataclass(frozen=True)
class Ruling:
    """What a person decided."""

    decision: Verdict
    name: str
    role: str
    reason: str
    licence: str
    """As SPDX writes it; may be empty for a refusal."""


def releasable(record: RunRecord, accept_claim: str = "", accept_copies: str = "") -> RunRecord:
    """The record as the gate releases it: what a decision is about. `Refused` or `BadInput` where nothing may leave, whoever approves.

    A reason to accept something is written into the ledger first, so that the decision covers it.
    """
    place = where()
    with place.ledger() as ledger:
        return accepted(place.store(), ledger, record, claim=accept_claim, copies=accept_copies)


def decide(
    record: RunRecord, ruling: Ruling, approver: Signer | None = None, *, shown: Mapping[str, str] | None = None
) -> Decision:
    """Write a decision on a run's images into the ledger, the run's record and its reports; with an `approver`'s key it is signed.

    `BadInput` where what would leave is no longer what was `shown` to whoever decided, by its digests.
    """
    place = where()
    if ruling.decision == APPROVED:
        require_licence(Release(licence=ruling.licence))
    approvers = release_of(record.settings).approvers
    if approver and approvers and approver.public_key not in approvers:
        raise BadInput(
            f"the key {approver.fingerprint[:SHOWN_LETTERS]} is none of release.approvers of run {record.run}: sign with one of these"
        )
    released = releasable(record)
    if shown is not None and digests_of(released) != shown:
        raise BadInput("what would leave has changed since this form was made: look at it again, and decide anew")
    decision = Decision(
        run=record.run,
        digests=digests_of(released),
        decision=ruling.decision,
        name=ruling.name.strip(),
        role=ruling.role.strip(),
        reason=ruling.reason.strip(),
        licence=ruling.licence,
        time=now(),
    )
    decision = decision.signed_by(approver) if approver else decision
    with place.ledger() as ledger:
        ledger.decide(
            released.settings["data"]["name"], decision, artifact=record.samples_artifact, code_version=__version__
        )
        released = gate.passed(place.store(), ledger, record)
    now_there = load_record(place.runs, record.run)  # an audit, or publishing, may have ended since
    write_up(now_there.model_copy(update={"decisions": released.decisions, "overrides": released.overrides}))
    return decision
