"""The stages of Private Evolution: candidates, votes for them, the next candidates, and what a denoiser learns from those with votes.

Votes alone open the private images; all else sees public parts and noisy histograms.
"""

from typing import Annotated, Any

from artifacts import serialization
from artifacts.pictures import draw_images
from artifacts.references import Candidates, CandidateVotes, TunedModel
from sfumato import evolution
from sfumato.config import NOT_HASHED, Machine
from sfumato.marks import PROTOTYPES
from sfumato.methods.plan import STAGE_VOTES, Evolution
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import DiscreteHistogram
from sfumato.retrieval import split
from tasks.inputs import Inputs, load_parts
from tasks.runtime.artifact import Draft, RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.checkpoints import stored_state
from tasks.runtime.environment import where
from tasks.runtime.narrowing import sections
from tasks.terms import Order, with_canaries

PICTURE = "candidates.png"
"""The candidates with most votes, a row for each class."""


DrawingInputs = Annotated[Inputs, sections("schedule", "network", "generation", "seed", work=PROTOTYPES)]
"""The inputs that candidates are drawn by, whatever becomes of them."""


@stage
def populate(
    context: RunContext, inputs: DrawingInputs, how: Evolution, machine: Annotated[Machine, NOT_HASHED]
) -> Candidates:
    """Draw candidates of every private class by the public model."""
    classes = inputs.facts.classes
    with draft_of(Candidates, "candidates", context, parents=inputs.refs(), images=1) as draft:
        parts, each = load_parts(draft, inputs, machine), how.candidates // len(classes)
        first = evolution.first_population(inputs.settings, parts, each, draft.show)
        serialization.save_population(draft.folder, first, classes)
    return draft.ref


@stage
def vote(
    context: RunContext,
    order: Order,
    event: DiscreteHistogram,
    inputs: DrawingInputs,
    candidates: Candidates,
    how: Evolution,
) -> CandidateVotes:
    """Let each private record vote for the candidate of its class that is nearest, and keep the noisy histogram."""
    parents, classes, title = [*inputs.refs(), candidates, *order.refs()], inputs.facts.classes, "votes for candidates"
    with draft_of(CandidateVotes, title, context, parents=parents, params=event.model_dump()) as draft:
        parts, device = load_parts(draft, inputs, order.machine), device_of(order.machine)
        backbone = inputs.public.backbone
        read = evolution.reader(serialization.load_backbone(draft.open(backbone), device) if backbone else None, how)
        population = serialization.load_population(draft.open(candidates), device)
        code = code_version(vote.fn)
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_VOTES, purpose=title, code=code, parents=parents)
            paid = mechanisms.noisy_votes(
                with_canaries(access, draft, order),
                event,
                evolution.ballot(read, parts, population),
                classes=len(classes),
                options=population.each,
                device=device,
            )
        noise = {"noise_multiplier": event.noise_multiplier}
        serialization.save(draft.folder, {"votes": paid.result}, {"classes": classes, **noise})
        draft.stands_on(paid)
    return draft.ref


@stage
def vary(
    context: RunContext,
    inputs: DrawingInputs,
    candidates: Candidates,
    votes: CandidateVotes,
    how: Evolution,
    number: int,
    machine: Annotated[Machine, NOT_HASHED],
) -> Candidates:
    """The candidates of round `number`: those with votes, and variations of them."""
    parents = [*inputs.refs(), candidates, votes]
    with draft_of(Candidates, f"candidates of round {number}", context, parents=parents) as draft:
        parts, chosen = load_parts(draft, inputs, machine), elected(draft, candidates, votes, how, machine)
        again = evolution.next_population(inputs.settings, parts, chosen, how.variation, number)
        serialization.save_population(draft.folder, again, inputs.facts.classes)
    return draft.ref


@stage
def distil(
    context: RunContext,
    inputs: DrawingInputs,
    candidates: Candidates,
    votes: CandidateVotes,
    how: Evolution,
    machine: Annotated[Machine, NOT_HASHED],
) -> TunedModel:
    """Train the public denoiser on the candidates with votes, which costs nothing more."""
    parents, settings, training = [*inputs.refs(), candidates, votes], inputs.settings, how.training
    title, params, classes = "training on candidates with votes", training.model_dump(), inputs.facts.classes
    with (
        stored_state(context) as keeper,
        draft_of(TunedModel, title, context, parents=parents, params=params, images=training.batch) as draft,
    ):
        parts, chosen = load_parts(draft, inputs, machine), elected(draft, candidates, votes, how, machine)
        best = evolution.with_most_votes(parts, chosen)
        draw_images(draft.folder / PICTURE, best, evolution.SHOWN)
        draft.files = [draft.folder / PICTURE]
        model, losses = evolution.distilled(
            parts, chosen, training, seed=settings.seed, progress=draft.show, keeper=keeper
        )
        draft.series = {"loss": split.thinned(losses)}
        serialization.save_denoiser(draft.folder, model, settings.network, parts.shape, len(classes))
    return draft.ref


def elected(
    draft: Draft[Any], candidates: Candidates, votes: CandidateVotes, how: Evolution, machine: Machine
) -> evolution.Elected:
    """Candidates, and what their votes make of them."""
    tensors, facts = serialization.load(draft.open(votes))
    population = serialization.load_population(draft.open(candidates), device_of(machine))
    return evolution.elected(population, tensors["votes"], how, noise_multiplier=facts["noise_multiplier"])
