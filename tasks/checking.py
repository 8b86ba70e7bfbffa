"""What is looked at before anything is trained: the private images, and whether the budget bears the plan."""

from collections.abc import Sequence

from artifacts import contents, witness
from artifacts.kinds import PublicImages
from sfumato.errors import Refused
from sfumato.privacy.door import PrivateSet, check_in
from sfumato.privacy.events import AnyEvent
from sfumato.privacy.ledger import Ledger
from tasks.asking import Terms, access
from tasks.making import RunContext
from tasks.where import where


def check_private(
    private: PrivateSet,
    terms: Terms,
    context: RunContext,
    images: PublicImages | None = None,
    new_version: bool = False,
) -> PrivateSet:
    """Decode the whole private set, compare it with what the ledger knows under its name, and refuse what cannot work.

    Public `images` among which there are private ones are refused too; an audit, which trains on no others than its run
    did, gives none. Returns the set with the version that the ledger counts.
    """
    purpose = "check that every image can be read" + (" and that none is among the public ones" if images else "")
    public = contents.load_images(where().store().folder(images)) if images else None
    with where().ledger() as ledger:
        seen_elsewhere(ledger, private.source)
        asked = access(ledger, private, terms, "check", purpose, [images] if images else [], context, "0")
        check_in(asked, public, new_version=new_version)
        return private.model_copy(update={"version": ledger.version(private.name)})


def seen_elsewhere(ledger: Ledger, source: str) -> None:
    """Refuse a ledger that lacks a head which a run of this home holds, or which lies beside the private images."""
    texts = [*witness.texts_in_runs(where().runs), *witness.texts_beside(source)]
    ledger.check_heads(ledger.known_from(texts))


def over_budget(private: PrivateSet, events: Sequence[AnyEvent], terms: Terms) -> str:
    """Why the budget does not bear these events, or nothing."""
    with where().ledger() as ledger:
        try:
            ledger.check_budget(private.name, events, terms.relation, terms.delta)
        except Refused as refusal:
            return str(refusal)
    return ""
