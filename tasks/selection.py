"""The stages that choose public classes, whole sources of a mixture, or clusters of images: the votes of private records, and the images of the winners.

The votes alone open the private images; what learns from the winners depends on them and is labelled so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from artifacts import serialization
from artifacts.references import ChosenImages, ClassVotes, PublicBackbone, PublicClusters, PublicImages, Ref
from sfumato import clusters as looking_alike
from sfumato import selection, sources
from sfumato.config import Data
from sfumato.images import ImageSet
from sfumato.marks import PUBLIC_IMAGES
from sfumato.methods.plan import STAGE_SELECTION
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import DiscreteHistogram
from sfumato.progress import silent
from tasks.inputs import ClusterSearch
from tasks.public import read_public
from tasks.runtime.artifact import Draft, RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import where
from tasks.runtime.narrowing import seen_by
from tasks.terms import SharedOrder, with_canaries

NONE_STANDS_OUT = "no cluster of public images stands out of the noise on the votes, so that all"
"""Said where votes chose nothing."""
EVERY_CLASS = "all"
"""Name of the one row of votes in which classes are not told apart."""
MOST_NAMED = 20
"""Public classes that a line on the screen names."""


@dataclass(frozen=True)
class Election:
    """What private records vote for."""

    event: DiscreteHistogram
    """Its noise and price."""
    classes: tuple[str, ...]
    """The private classes, each with votes of its own."""
    options: int
    """How many there are to choose from."""
    title: str
    """What the ledger and the screen call it."""


@stage
def vote(
    context: RunContext,
    order: SharedOrder,
    event: DiscreteHistogram,
    classes: tuple[str, ...],
    options: int,
    backbone: PublicBackbone,
) -> ClassVotes:
    """Let each private record vote for the public class that the backbone takes it for, and store the noisy histogram."""
    election = Election(event, classes, options, "votes for public classes")
    return _voted(context, order, backbone, election, _classified(backbone, order), code_version(vote.fn))


@stage
def vote_for_sources(
    context: RunContext,
    order: SharedOrder,
    event: DiscreteHistogram,
    classes: tuple[str, ...],
    of: tuple[int, ...],
    backbone: PublicBackbone,
) -> ClassVotes:
    """Let each private record vote for the public source, `of` each public class, that it is nearest to, and store the noisy histogram."""
    election = Election(event, classes, len(set(of)), "votes for public sources")
    return _voted(
        context, order, backbone, election, _classified(backbone, order, of), code_version(vote_for_sources.fn)
    )


@stage
def vote_for_clusters(
    context: RunContext, order: SharedOrder, event: DiscreteHistogram, count: int, clusters: PublicClusters
) -> ClassVotes:
    """Let each private record, of whichever class, vote for the cluster of public images that it looks most like, and store the noisy histogram."""

    def ballot(draft: Draft[ClassVotes]) -> selection.Ballot:
        return looking_alike.ballot(serialization.load(draft.open(clusters))[0]["centroids"])

    election = Election(event, (EVERY_CLASS,), count, "votes for clusters of public images")
    return _voted(context, order, clusters, election, ballot, code_version(vote_for_clusters.fn))


def _classified(
    backbone: PublicBackbone, order: SharedOrder, of: tuple[int, ...] = ()
) -> Callable[[Draft[ClassVotes]], selection.Ballot]:
    """The ballot by what a backbone takes records for."""

    def ballot(draft: Draft[ClassVotes]) -> selection.Ballot:
        reader = serialization.load_backbone(draft.open(backbone), device_of(order.machine))
        return selection.ballot(reader, of)

    return ballot


def _voted(
    context: RunContext,
    order: SharedOrder,
    behind: Ref,
    election: Election,
    ballot_of: Callable[[Draft[ClassVotes]], selection.Ballot],
    code: str,
) -> ClassVotes:
    """Ask the private records, and store the noisy histogram."""
    parents, title, event = [behind, *order.refs()], election.title, election.event
    with draft_of(ClassVotes, title, context, parents=parents, params=event.model_dump()) as draft:
        device = device_of(order.machine)
        ballot = ballot_of(draft)
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_SELECTION, purpose=title, code=code, parents=parents)
            paid = mechanisms.noisy_votes(
                with_canaries(access, draft, order),
                event,
                ballot,
                classes=len(election.classes),
                options=election.options,
                device=device,
            )
        serialization.save(draft.folder, {"votes": paid.result}, {"classes": election.classes})
        draft.stands_on(paid)
    return draft.ref


@stage
def choose(context: RunContext, images: PublicImages, votes: ClassVotes, count: int, seed: int) -> ChosenImages:
    """The images of the public classes with the most votes, which costs nothing more; noisy votes and their winners may be shown."""
    with draft_of(
        ChosenImages, "chosen public images", context, parents=[images, votes], params={"classes": count}
    ) as draft:
        winners = selection.elected(serialization.load(draft.open(votes))[0]["votes"], count)
        chosen = selection.chosen(serialization.load_images(draft.open(images)), winners, seed)
        serialization.save_images(draft.folder, chosen)
        draft.metrics = {"images": len(chosen), "classes": len(chosen.classes)}
        more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
        line = f"public classes with the most votes: {', '.join(chosen.classes[:MOST_NAMED])}{more} ({len(chosen):,} images)"
        draft.lines = [line]
    return draft.ref


@stage
def choose_sources(
    context: RunContext, images: PublicImages, votes: ClassVotes, of: tuple[int, ...], count: int, seed: int
) -> ChosenImages:
    """The images of the public sources with the most votes, their classes joined into as many as the smallest source has."""
    params = {"sources": count}
    with draft_of(ChosenImages, "chosen public images", context, parents=[images, votes], params=params) as draft:
        tally = serialization.load(draft.open(votes))[0]["votes"]
        winners = selection.preferred(tally, count)
        numbers = [number for number, source in enumerate(of) if source in winners]
        chosen = selection.chosen(serialization.load_images(draft.open(images)), numbers, seed)
        joined = selection.joined(chosen, [of[number] for number in numbers], selection.fewest(of))
        serialization.save_images(draft.folder, joined)
        draft.metrics = {"images": len(joined), "classes": len(joined.classes)}
        names = sorted({name.partition(":")[0] for name in chosen.classes})
        shares = (tally.sum(0).clamp(min=0)[winners].sum() / tally.sum(0).clamp(min=0).sum().clamp(min=1)).item()
        line = f"public source with the most votes: {', '.join(names)} ({shares:.0%} of them; {len(joined):,} images)"
        draft.lines = [line]
    return draft.ref


@stage
def find_clusters(context: RunContext, images: PublicImages, count: int, seed: int) -> PublicClusters:
    """Part the public images into clusters that look alike."""
    params = {"clusters": count}
    with draft_of(PublicClusters, "clusters of public images", context, parents=[images], params=params) as draft:
        public = serialization.load_images(draft.open(images))
        centroids = looking_alike.centroids_of(looking_alike.looks_of(public), count, seed)
        serialization.save(draft.folder, {"centroids": centroids}, {})
    return draft.ref


@stage
def choose_clusters(
    context: RunContext,
    search: ClusterSearch,
    data: Annotated[Data, seen_by(PUBLIC_IMAGES)],
    size: int,
    seed: int,
) -> ChosenImages:
    """As many public images as there are, or fewer, of the clusters that stand out of the noise, in the proportion of their votes; of drawn sources
    more are drawn until there are enough. All public images where no cluster stands out."""
    parents, params = (
        [search.images, search.clusters, search.votes],
        search.model_dump(exclude={"images", "clusters", "votes"}),
    )
    with draft_of(ChosenImages, "chosen public images", context, parents=parents, params=params) as draft:
        (tally,) = serialization.load(draft.open(search.votes))[0]["votes"]
        centroids = serialization.load(draft.open(search.clusters))[0]["centroids"]
        public = serialization.load_images(draft.open(search.images))
        further = search.candidates // len(public) if sources.is_drawn(data.public) else 0
        won = looking_alike.winners(tally, search.noise, search.threshold)

        def drawn(number: int) -> ImageSet:
            draft.show(number, further)
            return read_public(data, size, seed + number, silent)

        alike = looking_alike.gathered(public, map(drawn, range(1, further + 1)), centroids, won, seed)
        chosen = looking_alike.of_kinds(alike, search.kinds)
        serialization.save_images(draft.folder, chosen)
        winning = int((won > 0).sum())
        draft.metrics = {"images": len(chosen), "classes": len(chosen.classes), "clusters": winning}
        stands = f"{winning} of {len(won):,} clusters of public images stand out of the noise"
        line = f"{stands} ({len(chosen):,} images)" if winning else f"{NONE_STANDS_OUT} {len(chosen):,} are kept"
        draft.lines = [line]
    return draft.ref
