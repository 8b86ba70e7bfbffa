"""The private half of a run: every payment but the drawing's, in the order in which the budget must bear them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from artifacts.references import (
    CentralSums,
    ClassCounts,
    ClassMoments,
    EmbeddingSums,
    PhaseOneModel,
    PublicImages,
    PublicMoments,
    Ref,
    TunedModel,
)
from flows.members import train_members
from flows.public_half import train_backbone
from sfumato.config import FineTuning
from sfumato.methods.plan import (
    SHARED_STAGES,
    STAGE_CENTRAL,
    STAGE_COUNTS,
    STAGE_DRAWING,
    STAGE_EMBEDDING,
    STAGE_JUDGE,
    STAGE_MATCHING,
    STAGE_MOMENTS,
    STAGE_PHASE_ONE,
    STAGE_RATES,
    STAGE_TRAINING,
    STAGE_TUNING,
    STAGE_VOTES,
    UNCLAIMED,
    Embedding,
    Evolution,
    PhaseOne,
    Plan,
)
from sfumato.privacy.accounting.events import (
    AnyEvent,
    DiscreteHistogram,
    Gaussian,
    MomentEvents,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from sfumato.settings import Settings
from tasks import (
    central,
    embedding,
    evolution,
    private,
    rates,
)
from tasks.inputs import Inputs, Judging, PrivateParts, PublicParts
from tasks.runtime.caching import Stage
from tasks.runtime.run import Journal
from tasks.terms import Order, Terms

P = ParamSpec("P")
Kind = TypeVar("Kind", bound=Ref)

BASELINE = "plain DP-SGD"
"""Name of the set that is trained by DP-SGD alone and judged beside the run's own."""


def after(plan: Plan, stage: str) -> tuple[AnyEvent, ...]:
    """The events that a run pays for after a shared stage: those of the shared stages behind it, and the method's own."""
    paid = SHARED_STAGES[: SHARED_STAGES.index(stage) + 1]
    return tuple(spend.event for spend in plan.spends if spend.stage not in paid)


def count(plan: Plan, order: Order, journal: Journal) -> ClassCounts | None:
    """The noisy class counts, where the plan has them; reused by every run with the same noise."""
    if not plan.events(STAGE_COUNTS):
        return None
    event, order = plan.event_of(DiscreteHistogram, STAGE_COUNTS), order.following(*after(plan, STAGE_COUNTS))
    return journal.stage(private.count_classes, paid=True)(order, event, plan.facts.classes)


def train_judge(settings: Settings, plan: Plan, images: PublicImages, order: Order, journal: Journal) -> Judging | None:
    """The judge that labels, chooses or guides drawn images, where the plan has one; reused by every run with the same training."""
    if not plan.judge:
        return None
    backbone = train_backbone(settings, images, journal)
    event, order = plan.event_of(Gaussian, STAGE_JUDGE), order.following(*after(plan, STAGE_JUDGE))
    judge = journal.stage(private.train_judge, paid=True)(order, event, backbone, plan.judge, plan.facts)
    return Judging(backbone=backbone, judge=judge)


def sum_features(
    settings: Settings, plan: Plan, parts: PublicParts, order: Order, journal: Journal
) -> EmbeddingSums | None:
    """The noisy mean embeddings that drawn images are moved to, where the plan has them; reused by every run with the same noise."""
    if not plan.matching:
        return None
    event, order = plan.event_of(Gaussian, STAGE_MATCHING), order.following(*after(plan, STAGE_MATCHING))
    return journal.stage(embedding.sum_features, paid=True)(
        order, event, plan.facts, parts.autoencoder, plan.matching, settings.seed
    )


def pay(settings: Settings, plan: Plan, parts: PublicParts, order: Order, journal: Journal) -> PrivateParts:
    """The private half but for the drawing: votes, a first phase, training with or without protection, as the plan has them.

    An order for a comparison pays nothing, and its results are INTERNAL.
    """
    frame = Frame(journal, paid=not order.terms.comparison, note=note_of(order))
    moments = align(plan, parts, order, frame)
    inputs = Inputs(settings=settings, facts=plan.facts, public=parts, moments=moments)
    if plan.plain:
        event = plan.event_of(Uncertified, STAGE_TRAINING)
        tuned = frame.stage(private.train_plainly)(order, event, plan.plain, inputs)
        return PrivateParts(tuned=tuned, moments=moments)
    if plan.members:
        return train_members(plan.members, order, inputs, journal).model_copy(update={"moments": moments})
    sums = sum_up(plan, parts, order, frame)
    votes = None
    if plan.votes:
        rest = plan.events(STAGE_TUNING) + plan.events(STAGE_RATES) + plan.events(STAGE_DRAWING)
        ballot = plan.event_of(DiscreteHistogram, STAGE_VOTES)
        votes = frame.stage(private.take_votes)(order.following(*rest), ballot, inputs)
    if plan.evolution:
        return PrivateParts(tuned=evolve(plan, plan.evolution, order, inputs, frame), moments=moments)
    if plan.embedding:
        tuned = embed(plan.embedding, plan.event_of(Gaussian, STAGE_EMBEDDING), order, inputs, frame)
        return PrivateParts(tuned=tuned, moments=moments)
    if not plan.fine_tuning:
        return PrivateParts(votes=votes, moments=moments)
    started = begin(plan, plan.phase_one, order, inputs, frame) if plan.phase_one else None
    inputs = inputs.model_copy(update={"votes": votes, "started": started})
    if sums and plan.central:
        query, groups = queried_centrally(plan), plan.fine_tuning.trainable
        warm = frame.stage(central.warm_up)(
            inputs, sums, measured_of(parts), query, plan.central, groups, order.machine
        )
        inputs = inputs.model_copy(update={"warm": warm})
    return PrivateParts(votes=votes, tuned=tune(plan, plan.fine_tuning, order, inputs, frame), moments=moments)


@dataclass(frozen=True)
class Frame:
    """The journal of a private half's stages."""

    journal: Journal
    paid: bool
    note: str

    def stage(self, stage: Stage[P, Kind], note: str = "") -> Callable[P, Kind]:
        """As `Journal.stage`."""
        return self.journal.stage(stage, paid=self.paid, note=" ".join(filter(None, (self.note, note))))


def tune(plan: Plan, how: FineTuning, order: Order, inputs: Inputs, frame: Frame) -> TunedModel:
    """The denoiser after DP-SGD; of several learning rates that of the most votes, where each training is a stage, and paid, by itself."""
    events = plan.events_of(SubsampledGaussian, STAGE_TUNING)
    if not how.rates:
        return frame.stage(private.fine_tune)(order, events[0], inputs)
    ballot, models = plan.event_of(DiscreteHistogram, STAGE_RATES), list[TunedModel]()
    for number, (factor, event) in enumerate(zip(how.rates, events, strict=True), 1):
        settings = inputs.settings.model_copy(update={"fine_tuning": how.at(factor)})
        own, rest = inputs.model_copy(update={"settings": settings}), order.following(*events[number:], ballot)
        models.append(frame.stage(private.fine_tune, f"{factor:g} times the rates")(rest, event, own))
    votes = frame.stage(rates.vote_for_rate)(order, ballot, inputs, tuple(models))
    return frame.stage(rates.choose_rate)(votes, tuple(models), how.rates)


def note_of(order: Order) -> str:
    """The note that distinguishes the stages of an audit or a comparison from those of the run."""
    return "canaries" if order.canaries else BASELINE if order.terms.comparison else ""


def evolve(plan: Plan, how: Evolution, order: Order, inputs: Inputs, frame: Frame) -> TunedModel:
    """Rounds of votes for drawn candidates, and the denoiser that learns from those with votes."""
    events, machine = plan.events_of(DiscreteHistogram, STAGE_VOTES), order.machine
    candidates, votes = frame.stage(evolution.populate)(inputs, how, machine), None
    for number, event in enumerate(events):
        if votes:
            candidates = frame.stage(evolution.vary)(inputs, candidates, votes, how, number, machine)
        rest = order.following(*events[number + 1 :])
        votes = frame.stage(evolution.vote)(rest, event, inputs, candidates, how)
    if votes is None:
        raise ValueError("the plan has an evolution without a round of votes")
    return frame.stage(evolution.distil)(inputs, candidates, votes, how, machine)


def embed(how: Embedding, event: Gaussian, order: Order, inputs: Inputs, frame: Frame) -> TunedModel:
    """The noisy sums of private features, and the generator that learns from them."""
    sums = frame.stage(embedding.embed)(order, event, inputs, how)
    return frame.stage(embedding.fit)(inputs, sums, how, order.machine)


def align(plan: Plan, parts: PublicParts, order: Order, frame: Frame) -> ClassMoments | None:
    """The moments of the private classes, where the plan has them; reused by every run with the same noise."""
    if not plan.moments:
        return None
    return frame.stage(private.take_moments)(
        order.following(*after(plan, STAGE_MOMENTS)),
        MomentEvents.of(plan.events(STAGE_MOMENTS)),
        plan.moments,
        plan.facts.classes,
        measured_of(parts),
        parts.autoencoder,
    )


def sum_up(plan: Plan, parts: PublicParts, order: Order, frame: Frame) -> CentralSums | None:
    """The noisy sums behind central images, where the plan has them; reused by every run with the same noise."""
    if not plan.central:
        return None
    return frame.stage(central.sum_up)(
        order.following(*after(plan, STAGE_CENTRAL)),
        queried_centrally(plan),
        plan.facts.classes,
        measured_of(parts),
        parts.autoencoder,
    )


def queried_centrally(plan: Plan) -> Gaussian | SubsampledGaussian:
    """The event of the plan's central images."""
    event = plan.event(STAGE_CENTRAL)
    if not isinstance(event, Gaussian | SubsampledGaussian):
        raise ValueError(f"central images are no {event.kind}")
    return event


def measured_of(parts: PublicParts) -> PublicMoments:
    """The reference of the public images, which a plan with moments or central images has measured."""
    if parts.moments is None:
        raise ValueError("the plan compares with the public images: measure the public images first")
    return parts.moments


def begin(plan: Plan, phase: PhaseOne, order: Order, inputs: Inputs, frame: Frame) -> PhaseOneModel:
    """The first phase, on copies that are noised once where the plan says so."""
    order = order.following(*plan.events(STAGE_TUNING), *plan.events(STAGE_RATES))
    if not phase.noised_once:
        leak = plan.event_of(Uncertified, STAGE_PHASE_ONE)
        return frame.stage(private.train_phase_one)(order, phase, inputs, leak)
    event = plan.event_of(NoisedRecords, STAGE_PHASE_ONE)
    noised = frame.stage(private.noise_once)(
        order, event, plan.facts.records, inputs.public.autoencoder, inputs.moments
    )
    # The claim belongs to the whole run, and would keep another from reusing what was trained on these copies.
    return frame.stage(private.train_phase_one)(order.unclaimed(), phase, inputs, noised)


def terms(plan: Plan, comparison: bool = False) -> Terms:
    """The terms in which the stages of a plan pay."""
    claim = None if comparison or plan.claim == UNCLAIMED else plan.claim.model_dump(mode="json")
    return Terms(
        relation=plan.privacy.relation,
        delta=plan.privacy.delta,
        claim=claim,
        comparison=comparison,
        reason=plan.reason,
    )
