"""The flow: from private images to a synthetic set with its privacy statement.

It reads like the paper: plan, public pretraining, contrastive extractor, knowledge base, rehearsal, (votes,) DP fine-tuning,
generation, evaluation, report, and publishing where asked. It branches on what the plan holds, never on a method's
name.

From Python: `from flows.synthesize import synthesize`, in a process that has not imported Prefect before; the home is made then.
"""
# ruff: noqa: E402

from tasks.runtime.environment import configure

configure()  # Prefect reads its settings when it is imported, and would otherwise store results where no other run finds them

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from artifacts.publish import below, destination
from artifacts.record import SYNTHETIC, UNTOLD, RunRecord, run_folder
from artifacts.references import (
    CentralSums,
    ClassCounts,
    ClassMoments,
    EmbeddingSums,
    PhaseOneModel,
    PublicBackbone,
    PublicClassifier,
    PublicImages,
    PublicMoments,
    Ref,
    Rehearsal,
    Samples,
    TunedModel,
)
from artifacts.reports.rehearsal import REHEARSAL
from flows.members import distilled, train_members
from sfumato import sources
from sfumato.config import FineTuning, Network
from sfumato.evaluation.effort import FEW
from sfumato.judge import to_draw
from sfumato.marks import (
    COMPARING,
    EXTRACTOR,
    JUDGE_TRAINING,
    MEASURING,
    PROTOTYPES,
    PUBLIC_IMAGES,
    PUBLIC_MODEL_ALONE,
    REHEARSING,
    SUMMING,
)
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
    STAGE_SELECTION,
    STAGE_TRAINING,
    STAGE_TUNING,
    STAGE_VOTES,
    UNCLAIMED,
    Embedding,
    Evolution,
    PhaseOne,
    Plan,
)
from sfumato.named_settings import DEFAULT_METHOD
from sfumato.preflight import brought_to, private_set, public_name
from sfumato.privacy.accounting.events import (
    AnyEvent,
    DiscreteHistogram,
    Gaussian,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from sfumato.settings import Settings
from sfumato.stage_costs import has_public_model, needs_backbone
from tasks import (
    audit,
    central,
    checks,
    embedding,
    evolution,
    pretrained,
    private,
    public,
    rates,
    rehearsal,
    release,
    selection,
)
from tasks.editions import next_edition
from tasks.inputs import FeatureSpaces, Inputs, Judging, PrivateParts, PublicParts, RunDescription, TrainingSet, Wanted
from tasks.planning import RUN_FOLDER, PlannedRun, Wishes, plan_comparison, plan_run
from tasks.record import Finished, baseline_settings, close, pages_of
from tasks.release import JudgedSets
from tasks.runtime.caching import Stage
from tasks.runtime.environment import where
from tasks.runtime.heartbeat import attended, named
from tasks.runtime.run import Journal
from tasks.server.embedded import without_signs_of_life
from tasks.server.events import tell_spent
from tasks.terms import Order, Terms

P = ParamSpec("P")
Kind = TypeVar("Kind", bound=Ref)

PUBLIC_ONLY, BASELINE = "public model alone", "plain DP-SGD"
"""Names of the sets that are judged beside the run's own."""
UNMATCHED = "before matching"
"""Name of the set of images that have not moved to the mean embeddings of their classes."""
AS_DRAWN, AGREEING = "as drawn", "agreeing"
"""Names of those beside what a judge made of them: everything that was drawn, and what the judge gives the class that it was drawn for."""
PUBLISHED = "published"
"""Folder in that of a run, for `RUN_FOLDER`."""


@flow(name="synthesize", flow_run_name=named("{method}"), persist_result=False, validate_parameters=True)
@attended
def synthesize(
    method: str = DEFAULT_METHOD,
    preset: str = "",
    changes: list[str] | None = None,
    publish_to: str = "",
    new_version: bool = False,
    go_on: bool = False,
) -> RunRecord:
    """Turn private images into a synthetic set.

    Args:
        method: Which method to run, for example `rapid`.
        preset: Named settings to start from; empty takes `digits` for the embedded digits and `auto` for other data.
        changes: Further settings as `section.field=value`, for example `privacy.epsilon=3`.
        publish_to: Folder or URL to publish to; `.` takes the folder of the run, empty keeps the result in the store. Needs
            `release.licence` in the settings.
        new_version: The private set changed since its last entry in the ledger: count what it costs afresh.
        go_on: Pay even where the rehearsal with public images fails; ledger, report and card say so.
    """
    return run_changed(
        method, preset, changes or [], Wishes(publish_to=publish_to, new_version=new_version, go_on=go_on)
    )


def synthesize_planned(run: PlannedRun, wishes: Wishes) -> RunRecord:
    """Carry out a run that was planned in this process: nothing is planned or priced again."""

    @flow(name="synthesize", flow_run_name=named("{method}"), persist_result=False)
    @attended
    def as_planned(
        method: str, preset: str, changes: list[str], publish_to: str, new_version: bool, go_on: bool
    ) -> RunRecord:
        return run_plan(run, wishes)

    given = run.method, run.preset, list(run.changes), wishes.publish_to, wishes.new_version, wishes.go_on
    with without_signs_of_life():
        return as_planned(*given)


def run_changed(method: str, preset: str, changes: Sequence[str], wishes: Wishes) -> RunRecord:
    """Plan and carry out a method with settings as a person gives them."""
    configure()
    planned = plan_run(method, preset, changes, new_version=wishes.new_version)
    with next_edition(planned) if wishes.another else nullcontext(planned) as run:
        return run_plan(run, wishes)


def run_plan(run: PlannedRun, wishes: Wishes = Wishes()) -> RunRecord:
    """Carry a plan out, stage by stage."""
    if wishes.publish_to:
        checks.refuse_publishing(run.plan, run.settings)
    book = Journal.begin(run.settings, private_set(run.settings), wishes.above)
    if wishes.another and wishes.publish_to not in ("", RUN_FOLDER):
        wishes = replace(wishes, publish_to=below(wishes.publish_to, book.context.run))
    if wishes.publish_to not in ("", RUN_FOLDER):
        destination(wishes.publish_to, run.settings.data.private)
    with book.until_the_end():
        return _carry_out(run, wishes, book)


def _carry_out(run: PlannedRun, wishes: Wishes, book: Journal) -> RunRecord:
    settings, plan, publish_to = run.settings, run.plan, wishes.publish_to
    public_images = load_images(settings, plan, book)
    order = Order(private=book.private, terms=terms(plan), machine=settings.machine)
    secret = checks.check_private(order, book.context, public_images, wishes.new_version, plan.facts.whole)
    checks.refuse_own_releases(settings)
    order = order.model_copy(update={"private": secret})
    # With too little budget left, the run may reuse paid results, and begins nothing else.
    book.refusal = checks.over_budget(secret, [*(spend.event for spend in plan.spends), *wishes.following], terms(plan))
    shown = select(settings, plan, encode(settings, public_images, book), order, book, wishes.go_on)
    parts = prepare(settings, plan, shown, book)
    classifier = train_eyes(settings, public_images, book)
    rehearsed = rehearse(settings, parts, shown, classifier, book)
    agree(settings, rehearsed, book, wishes.go_on, paid_before(plan))
    counts = count(plan, order, book)
    judge = train_judge(settings, plan, public_images, order, book)
    sums = sum_features(settings, plan, parts, order, book)
    besides = {"counts": counts, "judge": judge, "matching": sums}
    trained = pay(settings, plan, parts, order, book).model_copy(update=besides)
    drawing = Drawing(run=run, parts=parts, trained=trained, order=order, book=book)
    samples, beside = draw(drawing)
    beside |= draw_averages(drawing) | draw_unmatched(drawing)
    book.refusal = ""

    look = order.model_copy(update={"terms": terms(plan, comparison=True)})
    judged = JudgedSets(
        sets={SYNTHETIC: samples} | beside | compare(settings, plan, parts, look, book, counts),
        briefly=(PUBLIC_ONLY, *beside),
    )
    eyes = FeatureSpaces(
        classifier=classifier if settings.evaluation.features == "cnn" else None,
        autoencoder=parts.autoencoder,
        backbone=backbone_of(settings, public_images, judge, book),
    )
    nearest = book.stage(release.find_nearest)(samples, public_images, eyes, settings.machine)
    scores = book.stage(release.evaluate)(look, judged, eyes, plan.facts, settings.evaluation, settings.seed)
    copies = book.stage(audit.check_copies)(look, samples)
    made = Finished(
        public=parts,
        samples=samples,
        scores=scores,
        copies=copies,
        nearest=nearest,
        counts=counts,
        moments=trained.moments,
        tuned=trained.tuned,
        rehearsal=rehearsed,
    )
    record = close(run, book, made)
    tell_spent(record)
    if publish_to:
        record = release.publish_run(record, run_folder(record) / PUBLISHED if publish_to == RUN_FOLDER else publish_to)
    show_in_ui(record)
    return record


def show_in_ui(record: RunRecord) -> None:
    """The report that may leave as a Markdown artifact of the flow run (made in every run, cached stages or not), linked to MLflow."""
    page = release.report_for_prefect(record, pages_of(record))
    with release.telling(record, "Prefect"):
        create_markdown_artifact(page, key="report", description=record.run)


def load_images(settings: Settings, plan: Plan, book: Journal) -> PublicImages:
    """The public images, with which the private ones are compared before anything is trained."""
    data = settings.data
    size, channels = brought_to(plan.facts.shape)
    content = sources.fingerprint(data.public, folder=data.folder)
    side = data.seen_by(PUBLIC_IMAGES).model_copy(update={"channels": channels})
    return book.stage(public.load_public)(side, size, settings.seed, content)


def encode(settings: Settings, images: PublicImages, book: Journal) -> TrainingSet:
    """The public images as the denoisers will see them: through an autoencoder, where the settings want one."""
    seed, machine, coder = settings.seed, settings.machine, None
    if settings.latent.kind != "none":
        backbone = train_backbone(settings, images, book) if settings.latent.perceptual else None
        if settings.latent.from_:
            own_scale = bool(settings.network.from_)
            coder = book.stage(pretrained.load_autoencoder)(images, settings.latent, own_scale, seed, machine)
        else:
            coder = book.stage(public.train_autoencoder)(images, settings.latent, seed, machine, backbone)
    return TrainingSet(images=images, autoencoder=coder, seed=seed, machine=machine)


def select(settings: Settings, plan: Plan, shown: TrainingSet, order: Order, book: Journal, go_on: bool) -> TrainingSet:
    """What the public denoiser learns from: all public images, or those of the classes that private records vote for.

    The autoencoder is rehearsed before the votes are paid for; what has learnt from the winners is rehearsed before anything else is.
    """
    if not plan.facts.selected:
        return shown
    backbone = train_backbone(settings, shown.images, book)
    if shown.autoencoder:
        eyes = train_eyes(settings, shown.images, book)
        agree(settings, rehearse(settings, None, shown, eyes, book), book, go_on)
    order = order.unclaimed().following(*after(plan, STAGE_SELECTION))
    event, facts = plan.event_of(DiscreteHistogram, STAGE_SELECTION), plan.facts
    votes = book.stage(selection.vote, paid=True)(order, event, facts.classes, facts.public_classes, backbone)
    chosen = book.stage(selection.choose)(shown.images, votes, facts.selected, settings.seed)
    return shown.model_copy(update={"images": chosen, "whole": shown.images})


def prepare(settings: Settings, plan: Plan, shown: TrainingSet, book: Journal) -> PublicParts:
    """The public half after the autoencoder: denoiser, and where the plan retrieves, extractor and knowledge base."""
    schedule, coder = settings.schedule, shown.autoencoder
    reference = plan.retrieval.reference if plan.retrieval else 0.0
    network: Network = settings.network
    model = book.stage(pretrained.load_denoiser)(shown, schedule, network) if network.from_ else None
    if model is None or settings.pretraining.steps:
        model = book.stage(public.pretrain)(shown, schedule, network, settings.pretraining, reference, model)
    moments = book.stage(public.measure)(shown, plan.measured.seen_by(MEASURING)) if plan.measured else None
    own = book.stage(public.train_start)(shown, schedule, plan.own_start) if plan.own_start else None
    if plan.retrieval is None:
        needed = shown.images if plan.public_images or plan.images_of_ballot else None
        compared = plan.evolution and plan.evolution.features == "backbone"
        summed = plan.embedding and plan.embedding.features == "perceptual"
        backbone = train_backbone(settings, shown.every, book) if compared or summed else None
        return PublicParts(model=model, autoencoder=coder, images=needed, moments=moments, backbone=backbone, own=own)
    extractor = None
    if plan.retrieval.time:
        # The extractor does not depend on the settings of the base, and is reused where these alone change.
        extractor = book.stage(public.train_extractor)(shown, model, schedule, plan.retrieval.seen_by(EXTRACTOR))
    base = book.stage(public.build_knowledge_base)(shown, model, extractor, schedule, plan.retrieval)
    return PublicParts(model=model, autoencoder=coder, extractor=extractor, base=base, moments=moments)


def train_eyes(settings: Settings, images: PublicImages, book: Journal) -> PublicClassifier:
    """The CNN of public images alone in whose features the rehearsal, and by default the scores, compare images.

    Paid stages do not depend on it, so that scores in other features cost nothing.
    """
    source = public_name(settings.data)
    return book.stage(public.train_classifier)(images, source, settings.seed, settings.machine)


def backbone_of(
    settings: Settings, images: PublicImages, judge: Judging | None, book: Journal
) -> PublicBackbone | None:
    """The public backbone, in whose features images are compared too, where the run has trained one."""
    if judge:
        return judge.backbone
    return train_backbone(settings, images, book) if needs_backbone(settings) else None


def rehearse(
    settings: Settings, parts: PublicParts | None, shown: TrainingSet, eyes: PublicClassifier, book: Journal
) -> Rehearsal:
    """Test the public half, or without `parts` the autoencoder alone, on public images that no stage learnt from; independent of the number of
    images and of the edition."""
    if shown.whole:  # classes are numbered anew
        eyes = train_eyes(settings, shown.images, book)
    return book.stage(public.rehearse)(
        shown,
        parts.model if parts and has_public_model(settings) else None,
        parts.base if parts else None,
        eyes,
        settings.schedule,
        settings.generation.seen_by(REHEARSING).model_copy(update={"images": settings.rehearsal.images}),
    )


def paid_before(plan: Plan) -> str:
    """What a run has spent when its public half is made."""
    return "the votes for public classes alone were" if plan.facts.selected else "nothing was"


def agree(settings: Settings, rehearsed: Rehearsal, book: Journal, go_on: bool, paid: str = "nothing was") -> None:
    """Show the rehearsal; `Refused` where it misses a threshold, unless a person goes on, which is then written to the ledger.

    `paid` is what was spent before.
    """
    picture = where().runs / book.context.run / REHEARSAL
    worse = rehearsal.show(rehearsed, settings.rehearsal, picture)
    if worse and not go_on:
        raise rehearsal.refusal(worse, picture, paid)
    if worse:
        rehearsal.note_that_it_goes_on(rehearsed, worse, book.private, book.context.run)


def count(plan: Plan, order: Order, book: Journal) -> ClassCounts | None:
    """The noisy class counts, where the plan has them; reused by every run with the same noise."""
    if not plan.events(STAGE_COUNTS):
        return None
    event, unclaimed = plan.event_of(DiscreteHistogram, STAGE_COUNTS), order.unclaimed()
    unclaimed = unclaimed.following(*after(plan, STAGE_COUNTS))
    return book.stage(private.count_classes, paid=True)(unclaimed, event, plan.facts.classes)


def after(plan: Plan, stage: str) -> tuple[AnyEvent, ...]:
    """The events that a run pays for after a shared stage: those of the shared stages behind it, and the method's own."""
    paid = SHARED_STAGES[: SHARED_STAGES.index(stage) + 1]
    return tuple(spend.event for spend in plan.spends if spend.stage not in paid)


def train_backbone(settings: Settings, images: PublicImages, book: Journal) -> PublicBackbone:
    """The backbone of the public images; reused by every run with the same settings of it."""
    return book.stage(public.train_backbone)(images, settings.backbone, settings.seed, settings.machine)


def train_judge(settings: Settings, plan: Plan, images: PublicImages, order: Order, book: Journal) -> Judging | None:
    """The judge that labels, chooses or guides drawn images, where the plan has one; reused by every run with the same training."""
    if not plan.judge:
        return None
    backbone = train_backbone(settings, images, book)
    # Its use does not change it, and must not keep another run from reusing it.
    recipe = plan.judge.seen_by(JUDGE_TRAINING)
    event, unclaimed = plan.event_of(Gaussian, STAGE_JUDGE), order.unclaimed().following(*after(plan, STAGE_JUDGE))
    judge = book.stage(private.train_judge, paid=True)(unclaimed, event, backbone, recipe, plan.facts)
    return Judging(backbone=backbone, judge=judge)


def sum_features(
    settings: Settings, plan: Plan, parts: PublicParts, order: Order, book: Journal
) -> EmbeddingSums | None:
    """The noisy mean embeddings that drawn images are moved to, where the plan has them; reused by every run with the same noise."""
    if not plan.matching:
        return None
    event, how = plan.event_of(Gaussian, STAGE_MATCHING), plan.matching.seen_by(SUMMING)
    order = order.unclaimed().following(*after(plan, STAGE_MATCHING))
    return book.stage(embedding.sum_features, paid=True)(
        order, event, plan.facts, parts.autoencoder, how, settings.seed
    )


def pay(settings: Settings, plan: Plan, parts: PublicParts, order: Order, book: Journal) -> PrivateParts:
    """The private half but for the drawing: votes, a first phase, training with or without protection, as the plan has them.

    An order for a comparison pays nothing, and its results are INTERNAL.
    """
    frame = Frame(book, paid=not order.terms.comparison, note=note_of(order))
    moments = align(plan, parts, order, frame)
    recipe = settings.only("schedule", "network", "method", "fine_tuning")
    inputs = Inputs(settings=recipe, facts=plan.facts, public=parts, moments=moments)
    if plan.plain:
        own = settings.only("privacy", "schedule", "network", "method", "seed")
        event, own_inputs = plan.event_of(Uncertified, STAGE_TRAINING), inputs.model_copy(update={"settings": own})
        tuned = frame.stage(private.train_plainly)(order, event, plan.plain, own_inputs)
        return PrivateParts(tuned=tuned, moments=moments)
    if plan.members:
        own, shown = settings.only("schedule", "network", "seed"), parts.model_copy(update={"images": None})
        shards = inputs.model_copy(update={"settings": own, "public": shown})
        return train_members(plan.members, order, shards, book).model_copy(update={"moments": moments})
    sums = sum_up(plan, parts, order, frame)
    votes = None
    if plan.votes:
        rest = plan.events(STAGE_TUNING) + plan.events(STAGE_RATES) + plan.events(STAGE_DRAWING)
        ballot = plan.event_of(DiscreteHistogram, STAGE_VOTES)
        votes = frame.stage(private.take_votes)(order.following(*rest), ballot, inputs)
    if plan.evolution:
        own = settings.only("schedule", "network", "generation", "seed")
        own = own.model_copy(update={"generation": settings.generation.seen_by(PROTOTYPES)})
        drawing = inputs.model_copy(update={"settings": own})
        tuned = evolve(plan, plan.evolution, order, drawing, frame)
        return PrivateParts(tuned=tuned, moments=moments)
    if plan.embedding:
        summed, learnt = settings.only("schedule", "seed"), settings.only("schedule", "network", "method", "seed")
        given = [inputs.model_copy(update={"settings": own}) for own in (summed, learnt)]
        tuned = embed(plan.embedding, plan.event_of(Gaussian, STAGE_EMBEDDING), order, (given[0], given[1]), frame)
        return PrivateParts(tuned=tuned, moments=moments)
    if not plan.fine_tuning:
        return PrivateParts(votes=votes, moments=moments)
    started = None
    if plan.phase_one:
        begun = inputs.model_copy(update={"settings": settings.only("schedule", "network", "seed")})
        started = begin(plan, plan.phase_one, order, begun, frame)
    inputs = inputs.model_copy(update={"votes": votes, "started": started})
    if sums and plan.central:
        seen = inputs.model_copy(update={"settings": settings.only("schedule", "network", "method", "seed")})
        query, groups = queried_centrally(plan), plan.fine_tuning.trainable
        warm = frame.stage(central.warm_up)(seen, sums, measured_of(parts), query, plan.central, groups, order.machine)
        inputs = inputs.model_copy(update={"warm": warm})
    return PrivateParts(votes=votes, tuned=tune(plan, plan.fine_tuning, order, inputs, frame), moments=moments)


@dataclass(frozen=True)
class Frame:
    """The journal of a private half's stages."""

    book: Journal
    paid: bool
    note: str

    def stage(self, stage: Stage[P, Kind], note: str = "") -> Callable[P, Kind]:
        """As `Journal.stage`."""
        return self.book.stage(stage, paid=self.paid, note=" ".join(filter(None, (self.note, note))))


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


def embed(how: Embedding, event: Gaussian, order: Order, inputs: tuple[Inputs, Inputs], frame: Frame) -> TunedModel:
    """The noisy sums of private features, and the generator that learns from them; inputs of the one stage and of the other."""
    sums = frame.stage(embedding.embed)(order, event, inputs[0], how.seen_by(SUMMING))
    return frame.stage(embedding.fit)(inputs[1], sums, how, order.machine)


def align(plan: Plan, parts: PublicParts, order: Order, frame: Frame) -> ClassMoments | None:
    """The moments of the private classes, where the plan has them; reused by every run with the same noise."""
    if not plan.events(STAGE_MOMENTS):
        return None
    counts, (means, covariances) = (
        plan.event_of(DiscreteHistogram, STAGE_MOMENTS),
        plan.events_of(Gaussian, STAGE_MOMENTS),
    )
    return frame.stage(private.take_moments)(
        order.unclaimed().following(*after(plan, STAGE_MOMENTS)),
        (counts, means, covariances),
        plan.facts.classes,
        measured_of(parts),
        parts.autoencoder,
    )


def sum_up(plan: Plan, parts: PublicParts, order: Order, frame: Frame) -> CentralSums | None:
    """The noisy sums behind central images, where the plan has them; reused by every run with the same noise."""
    if not plan.central:
        return None
    return frame.stage(central.sum_up)(
        order.unclaimed().following(*after(plan, STAGE_CENTRAL)),
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
    # The claim belongs to the whole run and would keep another run from reusing these copies and the models trained on them.
    order, event = order.unclaimed(), plan.event_of(NoisedRecords, STAGE_PHASE_ONE)
    noised = frame.stage(private.noise_once)(
        order, event, plan.facts.records, inputs.public.autoencoder, inputs.moments
    )
    return frame.stage(private.train_phase_one)(order, phase, inputs, noised)


@dataclass(frozen=True)
class Drawing:
    """What the images of a run are drawn from, and in which terms."""

    run: PlannedRun
    parts: PublicParts
    trained: PrivateParts
    order: Order
    book: Journal


def draw(drawing: Drawing) -> tuple[Samples, dict[str, Samples]]:
    """The run's images, and the sets to compare them with, by name, where a judge changed them."""
    settings, plan, trained, book = drawing.run.settings, drawing.run.plan, drawing.trained, drawing.book
    description = RunDescription(settings=public_settings(settings), plan=plan)
    judge, machine = trained.judge, settings.machine
    wanted = Wanted(
        generation=settings.generation, facts=plan.facts, images=settings.generation.images, counts=trained.counts
    )
    if not judge or not plan.judge:
        return draw_unjudged(drawing, wanted.images, description), {}
    use, images = plan.judge.use, to_draw(plan.judge, wanted.images)
    if use == "guide":
        drawn = draw_unjudged(drawing, images, description, judge)
    else:
        drawn = draw_unjudged(drawing, images, None)
    agreeing = book.stage(release.judge_images, note=AGREEING)(drawn, judge, wanted, "agreeing", machine)
    beside = {AGREEING: agreeing} if release.comparable(agreeing) else {}
    if use == "guide" or use == "none":
        return drawn, beside
    samples = book.stage(release.judge_images, paid=True, note=use)(drawn, judge, wanted, use, machine, description)
    return samples, {AS_DRAWN: drawn} | beside


def draw_unjudged(
    drawing: Drawing, images: int, description: RunDescription | None, guide: Judging | None = None
) -> Samples:
    """Images drawn from the trained models, or by a sampler that pays for each of them; a judge may guide the first."""
    plan, trained, order, book = drawing.run.plan, drawing.trained, drawing.order, drawing.book
    settings, inputs = drawing.run.settings, drawn_from(drawing, guided=guide is not None)
    recipe = inputs.settings
    counts = trained.counts
    if events := plan.events(STAGE_DRAWING):
        if not plan.prototypes:
            wanted = Wanted(generation=recipe.generation, facts=plan.facts, images=images, counts=counts)
            return book.stage(release.generate_privately, paid=True)(
                order, events, inputs, wanted, description=description
            )
        before = before_drawing(recipe)
        wanted = Wanted(generation=before.generation, facts=plan.facts, images=plan.prototypes)
        prototypes = book.stage(release.generate_privately, paid=True, note="prototypes")(
            order, events, inputs.model_copy(update={"settings": before}), wanted, prototypes=True
        )
        public_models = inputs.public.model_copy(update={"images": None})
        inputs = inputs.model_copy(
            update={"prototypes": prototypes, "members": (), "heads": None, "public": public_models}
        )
    book.refusal = ""  # paid models may draw again
    if plan.distillation:
        inputs = distilled(plan.distillation, inputs, settings, book)
    return book.stage(release.generate, paid=True)(inputs, images, settings.machine, counts, guide, description)


def drawn_from(drawing: Drawing, *, guided: bool = False) -> Inputs:
    """What images are drawn from; the settings hold the judge where one guides."""
    plan, trained, parts = drawing.run.plan, drawing.trained, drawing.parts
    return Inputs(
        settings=drawing.run.settings.only(
            "schedule",
            "method",
            "generation",
            "seed",
            *(["judge"] if guided else []),
            *(["matching"] if plan.matching else []),
        ),
        facts=plan.facts,
        public=parts.model_copy(update={"images": None}) if plan.images_of_ballot else parts,
        votes=trained.votes,
        tuned=trained.tuned,
        members=trained.members,
        heads=trained.heads,
        moments=trained.moments,
        matching=trained.matching,
    )


def draw_unmatched(drawing: Drawing) -> dict[str, Samples]:
    """Some images as they are before they move to the mean embeddings of their classes, to be scored beside them."""
    settings, plan = drawing.run.settings, drawing.run.plan
    if not plan.matching:
        return {}
    images = min(settings.evaluation.images, settings.generation.images, FEW)
    without = replace(drawing, trained=drawing.trained.model_copy(update={"matching": None}))
    draw_these = drawing.book.stage(release.generate, note=UNMATCHED)
    return {UNMATCHED: draw_these(drawn_from(without), images, settings.machine, drawing.trained.counts)}


def draw_averages(drawing: Drawing) -> dict[str, Samples]:
    """The sets that further moving averages of the trained model draw, by name, to be scored beside the run's own."""
    settings, plan, tuned = drawing.run.settings, drawing.run.plan, drawing.trained.tuned
    if not plan.fine_tuning or not tuned:
        return {}
    images, inputs = min(settings.evaluation.images, settings.generation.images), drawn_from(drawing)
    names = {decay: f"moving average {decay:g}" for decay in plan.fine_tuning.averages}
    return {
        name: drawing.book.stage(release.generate, note=name)(
            inputs.model_copy(update={"average": decay}), images, settings.machine, drawing.trained.counts
        )
        for decay, name in names.items()
    }


def public_settings(settings: Settings) -> dict[str, Any]:
    """The settings that may be shown: the name of the data alone, and no seed."""
    shown = {name: value for name, value in settings.what().items() if name not in UNTOLD}
    return {**shown, "data": {"name": private_set(settings).name}}


def before_drawing(settings: Settings) -> Settings:
    """The settings that concern prototypes, so that another number of images is drawn from the same ones."""
    return settings.model_copy(update={x: getattr(settings, x).seen_by(PROTOTYPES) for x in ("generation", "method")})


def compare(
    settings: Settings,
    plan: Plan,
    parts: PublicParts,
    look: Order,
    book: Journal,
    counts: ClassCounts | None = None,
) -> dict[str, Samples]:
    """The sets of the public model alone, where one learnt, and, where the settings want it, of plain DP-SGD at the same budget; the latter
    is INTERNAL.

    The public model knows none of the private classes; it draws equally many images for each.
    """
    # All editions are compared with the same sets.
    first = settings.generation.seen_by(COMPARING)
    settings = settings.model_copy(update={"generation": first})
    images, machine = min(settings.evaluation.images, first.images), settings.machine
    plain = settings.model_copy(update={"generation": first.seen_by(PUBLIC_MODEL_ALONE)}).only(
        "schedule", "generation", "seed"
    )
    alone = PublicParts(model=parts.model, autoencoder=parts.autoencoder)
    inputs = Inputs(settings=plain, facts=plan.facts, public=alone)
    sets = {}
    if has_public_model(settings):
        sets[PUBLIC_ONLY] = book.stage(release.generate, note=PUBLIC_ONLY)(inputs, min(images, FEW), machine)
    if other := baseline_settings(settings):
        trained = pay(other, plan_comparison(other, plan.facts), alone, look, book)
        recipe = other.only("schedule", "method", "generation", "seed")
        inputs = inputs.model_copy(update={"settings": recipe, "tuned": trained.tuned})
        sets[BASELINE] = book.stage(release.generate, note=BASELINE)(inputs, images, machine, counts)
    return sets


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
