"""A decision holds for what it names, under the key that signed it, and once."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.errors import BadInput
from sfumato.privacy.ledger.decisions import Decision, decisions_of
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.ledger.signing import Keys, Signer

SAMPLES = "a" * 64
DECISION = Decision(
    run="run-1",
    digests={"samples": SAMPLES, "promise": "b" * 64},
    decision="approved",
    name="A. Jones",
    role="officer",
    reason="as agreed",
    licence="MIT",
    time="2026-01-31T10:00:00+00:00",
)
WRITTEN = {"artifact": SAMPLES, "code_version": "1"}


@pytest.fixture
def ledger(tmp_path):
    with Ledger(
        f"sqlite:///{tmp_path / 'ledger.db'}", lambda: "2026-01-31T10:00:00+00:00", Keys(tmp_path / "keys")
    ) as it:
        yield it


@pytest.mark.parametrize("field", [name for name in Decision.model_fields if name not in ("public_key", "signature")])
def test_a_signature_covers_every_field(field):
    signed = DECISION.signed_by(Signer(Ed25519PrivateKey.generate()))
    other = {"digests": {"samples": "c" * 64}, "decision": "refused"}.get(field, "other")
    assert signed.is_signed and not signed.model_copy(update={field: other}).is_signed


def test_without_a_signature_a_decision_says_that_it_was_typed():
    assert not DECISION.is_signed
    assert DECISION.in_words() == "approved on 2026-01-31 by A. Jones, officer (name as typed, not verified): as agreed"
    stolen = DECISION.model_copy(update={"public_key": Signer(Ed25519PrivateKey.generate()).public_key})
    assert "not verified" in stolen.in_words(), "a key that signed nothing proves nothing"


def test_a_ledger_keeps_decisions_in_order_and_takes_no_forged_one(ledger):
    signed = DECISION.signed_by(Signer(Ed25519PrivateKey.generate()))
    refused = DECISION.model_copy(update={"decision": "refused"})
    with pytest.raises(BadInput, match="was changed after it was signed"):
        ledger.decide("scans", signed.model_copy(update={"licence": "CC0-1.0"}), **WRITTEN)
    for one in (signed, refused):
        ledger.decide("scans", one, **WRITTEN)
    assert decisions_of(ledger.entries(), "run-1", "-") == (signed, refused)
    assert decisions_of(ledger.entries(), "another", SAMPLES) == (signed, refused)
    assert decisions_of(ledger.entries(), "another", "-") == ()
    assert ledger.verify() == []


def test_a_decision_that_is_written_a_second_later_is_still_the_signed_one(tmp_path):
    later = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", lambda: "2026-01-31T10:00:01+00:00", Keys(tmp_path / "keys"))
    with later as ledger:
        ledger.decide("scans", DECISION.signed_by(Signer(Ed25519PrivateKey.generate())), **WRITTEN)
        (written,) = decisions_of(ledger.entries(), "run-1", "-")
    assert written.is_signed and written.time == DECISION.time


def test_an_approval_cannot_be_played_back_after_a_refusal(ledger):
    approver = Signer(Ed25519PrivateKey.generate())
    approved = DECISION.signed_by(approver)
    refused = DECISION.model_copy(update={"decision": "refused"}).signed_by(approver)
    for one in (approved, refused, approved):
        ledger.decide("scans", one, **WRITTEN)
    assert decisions_of(ledger.entries(), "run-1", SAMPLES) == (approved, refused)
