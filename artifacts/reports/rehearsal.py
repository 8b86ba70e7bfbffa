"""A rehearsal in words: on the screen, in Prefect, in the report, and in the line that stops a run."""

from collections.abc import Iterator
from pathlib import Path

from artifacts import serialization
from artifacts.reports.page import PageSection, Picture, Text
from artifacts.store import Store
from sfumato.config import RehearsalSettings
from sfumato.errors import SHOWN_DIGITS, BadInput
from sfumato.rehearsal import FEWEST
from sfumato.rehearsal_findings import RehearsalFindings, RetrievalFindings
from sfumato.retrieval.choice import retrieves

REHEARSAL = "rehearsal.png"
PUBLIC_ALONE, CHOSEN = "public images alone", "public images that private records chose by paid votes"
SHOWS = "What the public half can do: made from {origin}."
NEAR_CHANCE = 2.0
"""Times chance below which retrieval hardly tells classes apart."""


def findings_of(store: Store, digest: str) -> RehearsalFindings:
    """The numbers of a rehearsal in the store."""
    return RehearsalFindings.model_validate(serialization.load(store.folder(digest))[1])


def lines(findings: RehearsalFindings, wanted: RehearsalSettings) -> Iterator[tuple[str, str]]:
    """The three numbers, each under its name, with its threshold."""
    if not findings.model:
        yield (
            "public model",
            "there is none to draw from here, so that the autoencoder alone is tested; one that learns from what private records vote for is rehearsed after their votes",
        )
    elif findings.nearness is None:
        yield (
            "public samples",
            f"not measured: {findings.held_out} public images are held out, {2 * FEWEST} are needed: give more public images",
        )
    else:
        yield (
            "public samples",
            f"{findings.nearness:.2f} of the way from public images (0) to a Gaussian's draws (1), to be below {wanted.nearer:g} "
            f"(Frechet distances to {findings.images} held-out images: samples {findings.samples:.3g}, other public images "
            f"{findings.real:.3g}, Gaussian {findings.gaussian:.3g})",
        )
    if findings.error is not None:
        survives = (
            f"{findings.survives:.1%} of what a classifier reads survives, to be {wanted.survives:.0%} or more; "
            if findings.survives is not None
            else "the classifier reads too little to tell what survives; "
        )
        yield (
            "autoencoder",
            f"{survives}right before {findings.read:.1%}, after {findings.read_after:.1%}; error {findings.error:.3f} a pixel (mean image "
            f"{findings.spread:.3f})",
        )
    yield from (("retrieval", text) for text in retrieval_lines(findings))


def retrieval_lines(findings: RehearsalFindings) -> Iterator[str]:
    """Retrieval at each time that was measured, and what came of it."""
    for one in findings.by_time:
        yield (
            f"at k = {one.share:g} T a held-out query finds its class first {one.first:.1%} of the time (chance {one.chance:.1%}, likelihood "
            f"reference {one.reference:.1%}: {verdict(one)}) and among five {one.five:.1%} (chance {one.chance_five:.1%}). Asked for its own "
            f"class, as the paper measures it, {one.labelled_first:.1%} and {one.labelled_five:.1%}; but pure noise, asked for a class, "
            f"finds it {one.echo:.1%} of the time, by echo alone"
        )
    if findings.by_time and findings.query_time == 0:
        yield "near chance at every k: trajectories are taken at random, and the walk from T to k is skipped"
    elif len(findings.by_time) > 1:
        chosen = next(one.share for one in findings.by_time if one.time == findings.query_time)
        yield f"k = {chosen:g} T is the largest at which it works"
    elif not findings.by_time and findings.retrieval is not None:  # of an earlier version
        yield f"{findings.retrieval:.1%} of held-out queries find a key of their class; chance {findings.chance or 0:.1%}"
    elif not findings.by_time and findings.query_time == 0:
        yield "none: trajectories are taken at random"


def verdict(one: RetrievalFindings) -> str:
    """Accuracy beside chance, in words."""
    echoes = one.first == one.labelled_first and one.first > NEAR_CHANCE * one.chance
    if echoes and one.echo > one.first / 2:
        return "an echo of the label that it was asked for"
    if retrieves(one.first, one.chance):
        return "it works"
    if one.first > NEAR_CHANCE * one.chance:
        return "above chance, and mostly wrong"
    reason = "" if retrieves(one.reference, one.chance) else ", where a noised image hardly holds its class"
    return f"near chance: nothing to retrieve by{reason}"


def origin(chosen: bool) -> str:
    """What a rehearsal was made from: public images, or those that private records have `chosen` of them."""
    return CHOSEN if chosen else PUBLIC_ALONE


def section(findings: RehearsalFindings, wanted: RehearsalSettings, *, chosen: bool, failed: str = "") -> PageSection:
    """The rehearsal on a page, of public images that were `chosen` by votes or not, `failed` where a person went on in spite of it."""
    texts = [Text(f"{text}.", f"{name.capitalize()}.") for name, text in lines(findings, wanted)]
    warned = [Text(failed, "Failed.")] if failed else []
    return PageSection("Rehearsal", [*warned, *texts, Picture(REHEARSAL, SHOWS.format(origin=origin(chosen)))])


def rehearsal_of(store: Store, samples: str, rehearsal: str) -> RehearsalFindings | None:
    """The numbers of the rehearsal at this address, after a check that it is an ancestor of the samples; None without an address.

    `BadInput` for any other artifact, which an edited record could name.
    """
    if not rehearsal:
        return None
    manifest = store.manifest(rehearsal)
    family = {digest for digest, _ in store.ancestry(samples)}
    known = {"PublicClassifier", "PublicBackbone"}
    strange = [one for one in manifest["parents"] if one not in family and store.manifest(one)["kind"] not in known]
    if manifest["kind"] != "Rehearsal" or strange:
        raise BadInput(
            f"{rehearsal[:SHOWN_DIGITS]} is no rehearsal of what the samples {samples[:SHOWN_DIGITS]} were made of: run again"
        )
    return findings_of(store, rehearsal)


def picture(store: Store, digest: str) -> Path:
    """The picture of a rehearsal."""
    return store.folder(digest) / REHEARSAL
