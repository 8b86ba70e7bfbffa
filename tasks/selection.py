"""The stages that choose public classes, or whole sources of a mixture: the votes of private records, and the images of the winners.

The votes alone open the private images; what learns from the winners depends on them and is labelled so.
"""

from dataclasses import dataclass

from artifacts import serialization
from artifacts.references import ChosenImages, ClassVotes, PublicBackbone, PublicImages
from sfumato import selection
from sfumato.methods.plan import STAGE_SELECTION
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import DiscreteHistogram
from tasks.runtime.artifact import RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import where
from tasks.runtime.progress import CONSOLE
from tasks.terms import SharedOrder, with_canaries

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
    of: tuple[int, ...] = ()
    """The source of each public class, where the options are sources."""


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
    return _voted(context, order, backbone, election, code_version(vote.fn))


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
    election = Election(event, classes, len(set(of)), "votes for public sources", of)
    return _voted(context, order, backbone, election, code_version(vote_for_sources.fn))


def _voted(
    context: RunContext, order: SharedOrder, backbone: PublicBackbone, election: Election, code: str
) -> ClassVotes:
    """Ask the private records, and store the noisy histogram."""
    parents, title, event = [backbone, *order.refs()], election.title, election.event
    with draft_of(ClassVotes, title, context, parents=parents, params=event.model_dump()) as draft:
        device = device_of(order.machine)
        reader = serialization.load_backbone(draft.open(backbone), device)
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_SELECTION, purpose=title, code=code, parents=parents)
            paid = mechanisms.noisy_votes(
                with_canaries(access, draft, order),
                event,
                selection.ballot(reader, election.of),
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
        CONSOLE.print(line, soft_wrap=True, markup=False, highlight=False)
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
        CONSOLE.print(line, soft_wrap=True, markup=False, highlight=False)
    return draft.ref
