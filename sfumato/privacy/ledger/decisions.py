"""A person's decision on whether a run's images may leave, as it stands in the ledger and in the card.

A decision names what was decided on by digests, so that it holds for nothing else. One that was typed into a form says "name as typed,
not verified"; one that is signed holds an Ed25519 signature (RFC 8032) over all its other fields, which anyone can check who has the
approver's public key.

Not covered: who sat at the keyboard; who else holds the key.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import BaseModel, ConfigDict

from sfumato.errors import BadInput
from sfumato.privacy.ledger.chain import Chain, Entry
from sfumato.privacy.ledger.recovery import SignedLedger
from sfumato.privacy.ledger.signing import SHOWN_LETTERS, Signer, fingerprint, is_signed_value, signed
from sfumato.privacy.ledger.vetoes import DECISION

Verdict = Literal["approved", "refused"]
APPROVED: Literal["approved"] = "approved"
TYPED = "name as typed, not verified"
DAY = len("2026-01-31")
"""Length of the day in a time as ISO-8601."""
NEW_KEY = "openssl genpkey -algorithm ed25519 -out approver.pem"
"""A command that makes a key."""


class Decision(BaseModel):
    """What a person decided on a release."""

    model_config = ConfigDict(frozen=True)

    run: str
    digests: dict[str, str]
    """What was decided on, by name."""
    decision: Verdict
    name: str
    role: str
    reason: str
    licence: str
    """The licence under which the images may leave."""
    time: str
    """As ISO-8601 in UTC."""
    public_key: str = ""
    """The approver's, base64 of 32 bytes; empty where it was typed."""
    signature: str = ""
    """Over all other fields in canonical JSON; empty where it was typed."""

    @property
    def is_signed(self) -> bool:
        """Whether its key signed these very fields."""
        return bool(self.public_key) and is_signed_value(self.model_dump(), self.public_key)

    def signed_by(self, approver: Signer) -> "Decision":
        """The decision with the approver's key and signature."""
        return Decision.model_validate(signed({**self.model_dump(), "public_key": approver.public_key}, approver))

    def in_words(self) -> str:
        """The decision as a sentence without its end."""
        how = f"signed by key {fingerprint(self.public_key)[:SHOWN_LETTERS]}" if self.is_signed else TYPED
        return f"{self.decision} on {self.time[:DAY]} by {self.name}, {self.role} ({how}): {self.reason}"


class DecidedLedger(SignedLedger):
    """The part of a ledger that keeps decisions."""

    _chain: Chain

    def decide(self, dataset: str, decision: Decision, *, artifact: str, code_version: str) -> Entry:
        """Write a decision on the samples at an address; `BadInput` for one whose signature does not hold."""
        if decision.signature and not decision.is_signed:
            raise BadInput(
                f"the decision of {decision.name} on run {decision.run} was changed after it was signed: sign it again"
            )
        with self._chain.appending() as (_, write):
            return write(
                dataset, DECISION, {**decision.model_dump(), "artifact": artifact, "code_version": code_version}
            )


def decisions_of(entries: Sequence[Entry], run: str, artifact: str) -> tuple[Decision, ...]:
    """The decisions on a run or on the samples at an address, in order; a signature counts once, so that none can be played back."""
    mine = [
        one for one in entries if one.kind == DECISION and (one.body["run"] == run or one.body["artifact"] == artifact)
    ]
    first = {one.body["signature"] or one.hash: one for one in reversed(mine)}
    return tuple(_decision(one.body) for one in mine if first[one.body["signature"] or one.hash] is one)


def approver_of(path: Path) -> Signer:
    """The approver's key from a file in PEM; `BadInput` where there is none that can be read."""
    way_out = f"give the approver's own Ed25519 key by --key FILE; {NEW_KEY} makes one"
    try:
        private = load_pem_private_key(path.expanduser().read_bytes(), password=None)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        cause = getattr(error, "strerror", None) or "it holds no key in PEM that can be read without a password"
        raise BadInput(f"the key {path} cannot be read ({cause}): {way_out}") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise BadInput(f"the key {path} is no Ed25519 key: {way_out}")
    return Signer(private)


def _decision(body: Mapping[str, Any]) -> Decision:
    return Decision.model_validate({name: body[name] for name in Decision.model_fields})
