"""A rehearsal in words: on the screen, in Prefect, in the report, and in the line that stops a run."""

from collections.abc import Iterator
from pathlib import Path

from artifacts import serialization
from artifacts.reports.page import PageSection, Picture, Text
from artifacts.store import Store
from sfumato.config import RehearsalSettings
from sfumato.errors import BadInput
from sfumato.findings import RehearsalFindings
from sfumato.rehearsal import FEWEST

REHEARSAL = "rehearsal.png"
SHOWS = "What the public half can do: made from public images alone."
NEAR_CHANCE = 2.0
"""Times chance below which retrieval hardly tells classes apart."""


def findings_of(store: Store, digest: str) -> RehearsalFindings:
    """The numbers of a rehearsal in the store."""
    return RehearsalFindings.model_validate(serialization.load(store.folder(digest))[1])


def lines(found: RehearsalFindings, wanted: RehearsalSettings) -> Iterator[tuple[str, str]]:
    """The three numbers, each under its name, with what they would have to be."""
    if not found.model:
        yield "public model", "there is none to draw from, so that the autoencoder alone can be tested"
    elif found.nearness is None:
        yield (
            "public samples",
            f"not measured: {found.held_out} public images are held out, {2 * FEWEST} are needed: give more public images",
        )
    else:
        yield (
            "public samples",
            f"{found.nearness:.2f} of the way from public images (0) to a Gaussian's draws (1), to be below {wanted.nearer:g} "
            f"(Frechet distances to {found.images} held-out images: samples {found.samples:.3g}, other public images "
            f"{found.real:.3g}, Gaussian {found.gaussian:.3g})",
        )
    if found.error is not None:
        survives = (
            f"{found.survives:.1%} of what a classifier reads survives, to be {wanted.survives:.0%} or more; "
            if found.survives is not None
            else "the classifier reads too little to tell what survives; "
        )
        yield (
            "autoencoder",
            f"{survives}right before {found.read:.1%}, after {found.read_after:.1%}; error {found.error:.3f} a pixel (mean image "
            f"{found.spread:.3f})",
        )
    if found.retrieval is not None and found.chance is not None:
        able = "above chance" if found.retrieval > NEAR_CHANCE * found.chance else "near chance: nothing to retrieve by"
        yield (
            "retrieval",
            f"{found.retrieval:.1%} of held-out queries find a key of their class; chance {found.chance:.1%} ({able})",
        )


def section(found: RehearsalFindings, wanted: RehearsalSettings, failed: str = "") -> PageSection:
    """The rehearsal on a page, `failed` where a person went on in spite of it."""
    told = [Text(f"{text}.", f"{name.capitalize()}.") for name, text in lines(found, wanted)]
    warned = [Text(failed, "Failed.")] if failed else []
    return PageSection("Rehearsal", [*warned, *told, Picture(REHEARSAL, SHOWS)])


def rehearsal_of(store: Store, samples: str, rehearsal: str) -> RehearsalFindings | None:
    """The numbers of the rehearsal at this address, once it is clear that it is one of what the samples were made of; None for no address.

    `BadInput` for anything else, which a record could name.
    """
    if not rehearsal:
        return None
    manifest = store.manifest(rehearsal)
    family = {digest for digest, _ in store.ancestry(samples)}
    known = {"PublicClassifier", "PublicBackbone"}
    strange = [one for one in manifest["parents"] if one not in family and store.manifest(one)["kind"] not in known]
    if manifest["kind"] != "Rehearsal" or strange:
        raise BadInput(f"{rehearsal[:12]} is no rehearsal of what the samples {samples[:12]} were made of: run again")
    return findings_of(store, rehearsal)


def picture(store: Store, digest: str) -> Path:
    """The picture of a rehearsal."""
    return store.folder(digest) / REHEARSAL
