"""In which terms a stage asks for access to private images."""

from collections.abc import Sequence
from dataclasses import replace

from artifacts import serialization
from artifacts.references import CanaryImages, Ref
from sfumato.config import Relation, Section
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger.ledger import Ledger
from tasks.runtime.artifact import Draft, RunContext


class Terms(Section):
    """In which terms a stage pays, and what for."""

    relation: Relation
    delta: float
    claim: dict | None = None
    comparison: bool = False
    """Serves an INTERNAL comparison: a look, which costs nothing and never leaves."""
    reason: str = ""
    """Why so large an epsilon is wanted, where it is; written into the ledger. Not part of a cache key."""
    following: tuple[AnyEvent, ...] = ()
    """What later stages of the run will pay; the budget must bear it too. Not part of a cache key."""


def with_canaries(asked: Access, draft: Draft, canaries: CanaryImages | None) -> Access:
    """The access with the canaries that join the training images, in an audit."""
    return replace(asked, canaries=serialization.load_canaries(draft.open(canaries))[1]) if canaries else asked


def access(
    ledger: Ledger,
    private: PrivateSet,
    terms: Terms,
    stage_name: str,
    purpose: str,
    parents: Sequence[Ref],
    context: RunContext,
    code: str,
) -> Access:
    """What a stage asks of the door."""
    return Access(
        ledger=ledger,
        private=private,
        run=context.run,
        stage=stage_name,
        purpose=purpose,
        code_version=code,
        relation=terms.relation,
        delta=terms.delta,
        parents=tuple(ref.digest for ref in parents),
        claim=terms.claim,
        reason=terms.reason,
        comparison=terms.comparison,
        following=terms.following,
    )
