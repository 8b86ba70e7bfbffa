"""The terms in which a stage requests access to private images."""

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
from tasks.runtime.narrowing import Narrowed


class Terms(Section):
    """The terms in which a stage pays, and its purpose."""

    relation: Relation
    delta: float
    claim: dict[str, Any] | None = None
    comparison: bool = False
    """Serves an INTERNAL comparison: a look, which costs nothing and never leaves."""
    reason: Annotated[str, NOT_HASHED] = ""
    """The reason for a very large epsilon, where there is one; written into the ledger."""
    following: Annotated[tuple[AnyEvent, ...], NOT_HASHED] = ()
    """Events that later stages of the run will pay; the budget must bear them too."""


class Order(Section):
    """The argument of every stage that opens private images: which images, in which terms, and on which machine."""

    private: PrivateSet
    terms: Terms
    machine: Annotated[Machine, NOT_HASHED]
    canaries: CanaryImages | None = None
    """Made-up images that join the training images, in an audit."""

    def following(self, *events: AnyEvent) -> "Order":
        """The same order, where the budget must also bear what later stages will pay."""
        return self._in(following=events)

    def unclaimed(self) -> "Order":
        """The same order without the claim, which belongs to one run and would keep others from reusing the result."""
        return self._in(claim=None)

    def released(self) -> "Order":
        """The same order for an artifact that serves a run and its comparison alike."""
        return self._in(comparison=False)

    def refs(self) -> list[Ref]:
        """Its references to the store."""
        return [self.canaries] if self.canaries else []

    def _in(self, **changes: Any) -> "Order":
        return self.model_copy(update={"terms": self.terms.model_copy(update=changes)})

    def access(
        self, ledger: Ledger, context: RunContext, *, stage: str, purpose: str, code: str, parents: Sequence[Ref] = ()
    ) -> Access:
        """The access that a stage requests from the door; `code` is the version of its code."""
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


SharedOrder = Annotated[Order, Narrowed(Order.unclaimed)]
"""The order of a stage whose result every run with the same noise reuses."""
FreeOrder = Annotated[Order, Narrowed(Order.unclaimed), Narrowed(Order.released)]
"""The order of a stage that pays nothing, whose result a run and its comparison reuse alike."""


def with_canaries(access: Access, draft: Draft[Any], order: Order) -> Access:
    """The access with the canaries that join the training images, in an audit."""
    if not order.canaries:
        return access
    return replace(access, canaries=serialization.load_canaries(draft.open(order.canaries))[1])
