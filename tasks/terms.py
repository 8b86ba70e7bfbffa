"""In which terms a stage asks for access to private images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from artifacts import serialization
from artifacts.references import CanaryImages, Ref
from sfumato.config import NOT_HASHED, Machine, Relation, Section
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger.ledger import Ledger
from tasks.runtime.artifact import Draft, RunContext


class Terms(Section):
    """In which terms a stage pays, and what for."""

    relation: Relation
    delta: float
    claim: dict[str, Any] | None = None
    comparison: bool = False
    """Serves an INTERNAL comparison: a look, which costs nothing and never leaves."""
    reason: Annotated[str, NOT_HASHED] = ""
    """Why so large an epsilon is wanted, where it is; written into the ledger."""
    following: Annotated[tuple[AnyEvent, ...], NOT_HASHED] = ()
    """What later stages of the run will pay; the budget must bear it too."""


class Order(Section):
    """What every stage is given that opens private images: which, in which terms, and where it works."""

    private: PrivateSet
    terms: Terms
    machine: Annotated[Machine, NOT_HASHED]
    canaries: CanaryImages | None = None
    """Made-up images that join the training images, in an audit."""

    def following(self, *events: AnyEvent) -> "Order":
        """The same, where the budget must also bear what later stages will pay."""
        return self._in(following=events)

    def unclaimed(self) -> "Order":
        """The same without the claim, which is of one run and would keep others from finding what is made."""
        return self._in(claim=None)

    def released(self) -> "Order":
        """The same for what serves a run and its comparison alike."""
        return self._in(comparison=False)

    def refs(self) -> list[Ref]:
        """What of it lies in the store."""
        return [self.canaries] if self.canaries else []

    def _in(self, **changes: Any) -> "Order":
        return self.model_copy(update={"terms": self.terms.model_copy(update=changes)})

    def access(
        self, ledger: Ledger, context: RunContext, *, stage: str, purpose: str, code: str, parents: Sequence[Ref] = ()
    ) -> Access:
        """What a stage asks of the door; `code` is the version of what stands behind it."""
        return Access(
            ledger=ledger,
            private=self.private,
            run=context.run,
            stage=stage,
            purpose=purpose,
            code_version=code,
            relation=self.terms.relation,
            delta=self.terms.delta,
            parents=tuple(ref.digest for ref in parents),
            claim=self.terms.claim,
            reason=self.terms.reason,
            comparison=self.terms.comparison,
            following=self.terms.following,
        )


def with_canaries(asked: Access, draft: Draft[Any], order: Order) -> Access:
    """The access with the canaries that join the training images, in an audit."""
    if not order.canaries:
        return asked
    return replace(asked, canaries=serialization.load_canaries(draft.open(order.canaries))[1])
