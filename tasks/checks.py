"""Checks before any training: the private images, and whether the budget bears the plan."""

import contextlib
import json
from collections.abc import Sequence

from artifacts import serialization, witness
from artifacts.approval import NONE
from artifacts.packaging import require_licence
from artifacts.references import PublicImages
from sfumato import sources
from sfumato.class_shares import number_of_classes
from sfumato.config import Constants
from sfumato.errors import BadInput, Refused
from sfumato.methods.plan import Plan
from sfumato.own_releases import refuse_own
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.privacy.door import PrivateSet, check_in
from sfumato.privacy.ledger.chain import is_there
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.settings import Settings, release_of
from sfumato.sources import Reading
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import where
from tasks.terms import Order, Terms

SHOWN = 8
"""Letters of a ledger's id in a warning."""


def check_private(
    order: Order,
    context: RunContext,
    images: PublicImages | None = None,
    new_version: bool = False,
    constants: Constants | None = None,
) -> PrivateSet:
    """Decode the whole private set, compare it with the ledger's entries under its name, and refuse a set that cannot work.

    It also refuses public `images` that hold copies of private ones; an audit, which trains on its run's images, gives none. The
    ledger stores `constants` for this run and later ones. Returns the set with the version that the ledger counts.
    """
    purpose = "check that every image can be read" + (" and that none is among the public ones" if images else "")
    public = serialization.load_images(where().store().folder(images)) if images else None
    with where().ledger() as ledger:
        seen_elsewhere(ledger, order.private.source)
        parents = [images] if images else []
        access = order.access(ledger, context, stage="check", purpose=purpose, code="0", parents=parents)
        check_in(access, public, new_version=new_version, constants=constants)
        return order.private.model_copy(update={"version": ledger.version(order.private.name)})


def refuse_publishing(plan: Plan, settings: Settings) -> None:
    """`Refused`, before anything is made or paid for, where the plan's images could not be published; `BadInput` without a licence for
    them, or where somebody must approve them first."""
    if plan.certificate is None:
        raise Refused(
            f"--publish: the images of {plan.method} with these settings will be INTERNAL, and nothing was begun ({plan.lacking}); run without it "
            'and then, if someone answers for the claim, sfumato publish --accept-claim "REASON"'
        )
    terms = release_of(settings.what())
    require_licence(terms)
    if terms.approval != NONE:
        raise BadInput(
            f"--publish: nobody can have approved images that are not drawn yet (release.approval={terms.approval}): run without it, then "
            "sfumato request-release, and sfumato publish"
        )


def seen_elsewhere(ledger: Ledger, source: str) -> None:
    """Refuse a ledger that lacks a head which a run of this home holds, or which lies beside the private images."""
    texts = [*witness.texts_in_runs(where().runs), *witness.texts_beside(source)]
    ledger.check_heads(ledger.known_from(texts))


def counted_elsewhere(name: str, source: str) -> tuple[str, ...]:
    """A warning, which leaves with the images, where another ledger has noted beside the private ones that it counts them too."""
    place, noted = where(), set[str]()
    for text in witness.texts_beside(source):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            noted.add(str(json.loads(text)["ledger"]))
    if noted and is_there(place.ledger_url):
        with place.ledger() as ledger:
            noted -= ledger.ids()
    if not noted:
        return ()
    ledgers = " and ".join(one[:SHOWN] for one in sorted(noted))
    counts = f"another ledger ({ledgers}) has" if len(noted) == 1 else f"other ledgers ({ledgers}) have"
    return (f"{counts} counted the images of '{name}' too: no total and no budget here holds what they cost there",)


def other_units(name: str, unit: str) -> tuple[str, ...]:
    """A warning, which leaves with the images, where earlier spends of a private set protect something else than this run will: one total holds both."""
    place = where()
    if not is_there(place.ledger_url):
        return ()
    with place.ledger() as ledger:
        sets = {name, *ledger.joined(name)}
        paid = {
            str(entry.body.get("unit", ""))
            for entry in ledger.entries()
            if entry.kind == "reserve" and entry.dataset in sets
        }
    others = [f"one {one}" if one else "one image" for one in sorted(paid - {unit})]
    if not others:
        return ()
    return (
        f"earlier spends of '{name}' protect {' and '.join(others)}, and this run protects {f'one {unit}' if unit else 'one image'}: the total and the budget add both prices, which says "
        "too little for whoever has several images",
    )


def known_constants(name: str) -> Constants | None:
    """The constants of a private set in the ledger; None where there is no ledger, or it holds none."""
    place = where()
    if not is_there(place.ledger_url):
        return None
    with place.ledger() as ledger:
        return ledger.constants(name)


def counted_with(name: str) -> tuple[str, ...]:
    """The sets that the ledger counts together with a private set; none where there is no ledger."""
    place = where()
    if not is_there(place.ledger_url):
        return ()
    with place.ledger() as ledger:
        return ledger.joined(name)


def refuse_own_releases(settings: Settings) -> None:
    """`BadInput` where the run's own private set, or one that the ledger counts together with it, is behind the public side; checked again once
    the records are read, which may be what joins the two."""
    refuse_own(settings, [settings.data.name, *counted_with(settings.data.name)])


def unlike_known(name: str, source: str, reading: Reading) -> str:
    """How a source differs from the set that the ledger knows under this name, for the eyes of the person who runs this; empty where it does not, or
    where that cannot be told from names alone. `BadInput`, which names no file, where a source that is known cannot be read."""
    known = known_constants(name)
    there = (
        sources.unnamed(
            source, f"the private data (data.private) {source!r}", lambda: sources.describe(source, reading)
        ).whole
        if known
        else None
    )
    if (
        not known
        or not there
        or (there.parts, there.images, there.classes) == (known.parts, known.images, known.classes)
    ):
        return ""
    counts = [f"{one.images:,} images in {number_of_classes(len(one.classes))}" for one in (known, there)]
    return f"{name!r} stands in the ledger with {counts[0]}, and {source} holds {counts[1]}"


def agreed_delta(name: str) -> float | None:
    """The delta of the budget that binds a private set; None where none does."""
    place = where()
    if not is_there(place.ledger_url):
        return None
    with place.ledger() as ledger:
        budget = ledger.budget(name)
        return budget.delta if budget else None


def over_budget(private: PrivateSet, events: Sequence[AnyEvent], terms: Terms) -> str:
    """The reason why the budget does not bear these events; empty where it does."""
    with where().ledger() as ledger:
        try:
            ledger.check_budget(private.name, events, terms.relation, terms.delta)
        except Refused as refusal:
            return str(refusal)
    return ""
