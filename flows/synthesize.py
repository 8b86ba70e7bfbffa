"""The flow: from private images to a synthetic set with its privacy statement.

It reads like the paper: plan, public pretraining, contrastive extractor, knowledge base, rehearsal, (votes,) DP fine-tuning,
generation, evaluation, report, and publishing where asked. It branches on what the plan holds, never on a method's
name.

From Python: `from flows.synthesize import synthesize`, in a process that has not imported Prefect before; the home is made then.
"""
# ruff: noqa: E402

from tasks.runtime.environment import configure

configure()  # Prefect reads its settings when it is imported, and would otherwise store results where no other run finds them

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from artifacts.publish import below, destination
from artifacts.record import SYNTHETIC, UNTOLD, RunRecord, run_folder
from artifacts.references import (
    ChosenImages,
    ClassCounts,
    PublicImages,
    Rehearsal,
    Samples,
)
from artifacts.reports.in_short import statement
from artifacts.reports.rehearsal import REHEARSAL
from flows.members import distilled
from flows.private_half import BASELINE, after, count, pay, sum_features, terms, train_judge
from flows.public_half import (
    backbone_of,
    encode,
    load_images,
    prepare,
    read_as,
    rehearse,
    train_backbone,
    train_eyes,
    without_noise,
)
from sfumato.config import Matching
from sfumato.evaluation.effort import FEW
from sfumato.judge import to_draw
from sfumato.marks import (
    COMPARING,
    PROTOTYPES,
    PUBLIC_MODEL_ALONE,
)
from sfumato.methods.plan import (
    STAGE_DRAWING,
    STAGE_SELECTION,
    Plan,
)
from sfumato.named_settings import DEFAULT_METHOD
from sfumato.preflight import private_set
from sfumato.privacy.accounting.events import AnyEvent, DiscreteHistogram
from sfumato.privacy.door import PrivateSet
from sfumato.recipe.stage_costs import has_public_model
from sfumato.settings import Settings
from tasks import (
    audit,
    checks,
    evaluation,
    generation,
    rehearsal,
    release,
    reporting,
    selection,
)
from tasks.editions import next_edition
from tasks.evaluation import JudgedSets
from tasks.inputs import (
    ClusterSearch,
    FeatureSpaces,
    Inputs,
    Judging,
    PrivateParts,
    PublicParts,
    RunDescription,
    TrainingSet,
    Wanted,
)
from tasks.planning import RUN_FOLDER, PlannedRun, Wishes, plan_comparison, plan_run
from tasks.record import Finished, baseline_settings, conclude, pages_of
from tasks.runtime.environment import where
from tasks.runtime.heartbeat import attended, named
from tasks.runtime.progress import log_line
from tasks.runtime.run import Journal
from tasks.server.embedded import without_signs_of_life
from tasks.server.events import tell_spent
from tasks.terms import Order, Terms

PUBLIC_ONLY = "public model alone"
"""Name of the set of the public model's images, which is judged beside the run's own."""
UNMATCHED = "before matching"
"""Name of the set of images that have not moved to the mean embeddings of their classes."""
AS_DRAWN, AGREEING = "as drawn", "agreeing"
"""Names of those beside what a judge made of them: everything that was drawn, and what the judge gives the class that it was drawn for."""
GUIDE: Final = "guide"
"""The use of a judge that steers the drawing itself."""
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
        new_version: The private set changed since its last entry in the ledger: begin a version of its own. Records that an earlier version
            holds too count together with what that cost, and versions of a set of persons always do.
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
    journal = Journal.begin(run.settings, private_set(run.settings), wishes.above)
    with journal.until_the_end():
        if wishes.another and wishes.publish_to not in ("", RUN_FOLDER):
            wishes = replace(wishes, publish_to=below(wishes.publish_to, journal.context.run))
        if wishes.publish_to not in ("", RUN_FOLDER):
            destination(wishes.publish_to, run.settings.data.private)
        return _carry_out(run, wishes, journal)


def _carry_out(run: PlannedRun, wishes: Wishes, journal: Journal) -> RunRecord:
    settings, plan, publish_to = run.settings, run.plan, wishes.publish_to
    promise = plan.certificate.sentence() if plan.certificate else "no certificate"
    log_line(f"planned before any private image is opened: {promise}")
    public_images = load_images(settings, plan, journal)
    order = Order(private=journal.private, terms=terms(plan), machine=settings.machine)
    clean = without_noise(settings, plan, public_images, journal)
    secret = checks.check_private(order, journal.context, clean, wishes.new_version, plan.facts.whole)
    checks.refuse_own_releases(settings)
    order = order.model_copy(update={"private": secret})
    bears = Bearing(secret, terms(plan), wishes.following)
    # With too little budget left, the run may reuse paid results and go on from stored states, and begins nothing else.
    journal.refusal = bears.refusal([spend.event for spend in plan.spends])
    journal.refused_after = bears.after
    shown = select(settings, plan, public_images, order, journal, wishes.go_on)
    parts = prepare(settings, plan, shown, journal)
    classifier = train_eyes(settings, public_images, journal)
    rehearsed = rehearse(settings, parts, shown, classifier, journal)
    agree(settings, rehearsed, journal, wishes.go_on, paid_before(plan))
    counts = count(plan, order, journal)
    judge = train_judge(settings, plan, public_images, order, journal)
    sums = sum_features(settings, plan, parts, order, journal)
    besides = {"counts": counts, "judge": judge, "matching": sums}
    trained = pay(settings, plan, parts, order, journal).model_copy(update=besides)
    drawing = Drawing(run=run, parts=parts, trained=trained, order=order, journal=journal)
    inputs = settle_points(drawing)
    samples, beside = draw(drawing, inputs)
    beside |= draw_averages(drawing) | draw_unmatched(drawing, inputs)
    journal.refusal = ""

    look = order.model_copy(update={"terms": terms(plan, comparison=True)})
    judged = JudgedSets(
        sets={SYNTHETIC: samples} | beside | compare(settings, plan, parts, look, journal, counts),
        briefly=(PUBLIC_ONLY, *beside),
    )
    eyes = FeatureSpaces(
        classifier=classifier if settings.evaluation.features == "cnn" else None,
        autoencoder=parts.autoencoder,
        backbone=backbone_of(settings, public_images, judge, journal),
    )
    nearest = journal.stage(evaluation.find_nearest)(samples, public_images, eyes, settings.machine)
    scores = journal.stage(evaluation.evaluate)(look, judged, eyes, plan.facts, settings.evaluation, settings.seed)
    copies = journal.stage(audit.check_copies)(look, samples)
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
    record = conclude(run, journal, made)
    tell_spent()
    if publish_to:
        record = release.publish_run(record, run_folder(record) / PUBLISHED if publish_to == RUN_FOLDER else publish_to)
    show_in_ui(record)
    return record


@dataclass(frozen=True)
class Bearing:
    """What the budget of a private set bears, beside what other runs will pay."""

    private: PrivateSet
    terms: Terms
    others: tuple[AnyEvent, ...]

    def refusal(self, events: Iterable[AnyEvent]) -> str:
        """The ledger's refusal of `events`; empty where it bears them."""
        return checks.over_budget(self.private, [*events, *self.others], self.terms)

    def after(self, arguments: Mapping[str, Any]) -> str:
        """The ledger's refusal of what the run pays after a paid stage with these arguments."""
        return self.refusal(arguments["order"].terms.following)


def show_in_ui(record: RunRecord) -> None:
    """The statement in the log of the flow run, and the report that may leave as a Markdown artifact (in every run, cached stages or not)."""
    log_line(f"{statement(record)} Published: {record.published or f'not yet, sfumato publish {record.run}'}")
    page = reporting.report_for_prefect(record, pages_of(record))
    with reporting.telling(record, "Prefect"):
        create_markdown_artifact(page, key="report", description=record.run)


def select(
    settings: Settings, plan: Plan, images: PublicImages, order: Order, journal: Journal, go_on: bool
) -> TrainingSet:
    """What the public half learns from: all public images, or those that private records vote for.

    An autoencoder of all of them is rehearsed before votes for classes or sources are paid for; what has learnt from the winners is rehearsed before
    anything else is.
    """
    facts = plan.facts
    if not facts.selected:
        return encode(settings, images, journal)
    order, event = order.following(*after(plan, STAGE_SELECTION)), plan.event_of(DiscreteHistogram, STAGE_SELECTION)
    if facts.clusters:
        chosen = choose_alike(settings, plan, images, order, journal)
        return encode(settings, chosen, journal).model_copy(update={"whole": images})
    backbone, shown = train_backbone(settings, images, journal), encode(settings, images, journal)
    if shown.autoencoder:
        eyes = train_eyes(settings, images, journal)
        agree(settings, rehearse(settings, None, shown, eyes, journal), journal, go_on)
    if of := facts.sources:
        votes = journal.stage(selection.vote_for_sources, paid=True)(order, event, facts.classes, of, backbone)
        count = settings.selection.sources
        chosen = journal.stage(selection.choose_sources)(images, votes, of, count, settings.seed)
    else:
        votes = journal.stage(selection.vote, paid=True)(order, event, facts.classes, facts.public_classes, backbone)
        chosen = journal.stage(selection.choose)(images, votes, facts.selected, settings.seed)
    return shown.model_copy(update={"images": chosen, "whole": images})


def choose_alike(settings: Settings, plan: Plan, images: PublicImages, order: Order, journal: Journal) -> ChosenImages:
    """The public images that look like those of the clusters with the most votes."""
    facts, event, how = plan.facts, plan.event_of(DiscreteHistogram, STAGE_SELECTION), settings.selection
    clusters = journal.stage(selection.find_clusters)(images, facts.clusters, settings.seed)
    votes = journal.stage(selection.vote_for_clusters, paid=True)(order, event, facts.clusters, clusters)
    search = ClusterSearch(
        images=images,
        clusters=clusters,
        votes=votes,
        noise=event.noise_multiplier,
        threshold=how.threshold,
        kinds=facts.selected,
        candidates=how.candidates,
    )
    return journal.stage(selection.choose_clusters)(search, *read_as(settings, plan), settings.seed)


def paid_before(plan: Plan) -> str:
    """What a run has spent when its public half is made."""
    return "the votes for what is public alone were" if plan.facts.selected else "nothing was"


def agree(settings: Settings, rehearsed: Rehearsal, journal: Journal, go_on: bool, paid: str = "nothing was") -> None:
    """Show the rehearsal; `Refused` where it misses a threshold, unless a person goes on, which is then written to the ledger.

    `paid` is what was spent before.
    """
    picture = where().runs / journal.context.run / REHEARSAL
    worse = rehearsal.show(rehearsed, settings.rehearsal, picture)
    if worse and not go_on:
        raise rehearsal.refusal(worse, picture, paid)
    if worse:
        rehearsal.note_that_it_goes_on(rehearsed, worse, journal.private, journal.context.run)


@dataclass(frozen=True)
class Drawing:
    """What the images of a run are drawn from, and in which terms."""

    run: PlannedRun
    parts: PublicParts
    trained: PrivateParts
    order: Order
    journal: Journal


def draw(drawing: Drawing, inputs: Inputs) -> tuple[Samples, dict[str, Samples]]:
    """The run's images, and the sets to compare them with, by name, where a judge changed them."""
    settings, plan, trained, journal = drawing.run.settings, drawing.run.plan, drawing.trained, drawing.journal
    description = RunDescription(settings=public_settings(settings), plan=plan)
    judge, machine = trained.judge, settings.machine
    wanted = Wanted(
        generation=settings.generation, facts=plan.facts, images=settings.generation.images, counts=trained.counts
    )
    if not judge or not plan.judge:
        return draw_unjudged(drawing, inputs, wanted.images, description), {}
    use, images = plan.judge.use, to_draw(plan.judge, wanted.images)
    if use == GUIDE:
        drawn = draw_unjudged(drawing, inputs, images, description, judge)
    else:
        drawn = draw_unjudged(drawing, inputs, images, None)
    agreeing = journal.stage(generation.judge_images, note=AGREEING)(drawn, judge, wanted, "agreeing", machine)
    beside = {AGREEING: agreeing} if generation.comparable(agreeing) else {}
    if use == GUIDE or use == "none":
        return drawn, beside
    samples = journal.stage(generation.judge_images, paid=True, note=use)(
        drawn, judge, wanted, use, machine, description
    )
    return samples, {AS_DRAWN: drawn} | beside


def draw_unjudged(
    drawing: Drawing, inputs: Inputs, images: int, description: RunDescription | None, guide: Judging | None = None
) -> Samples:
    """Images drawn at no further cost, or by a sampler that pays for each of them; a judge may guide the first."""
    plan, journal, machine = drawing.run.plan, drawing.journal, drawing.run.settings.machine
    counts = drawing.trained.counts
    if (events := plan.events(STAGE_DRAWING)) and not plan.prototypes:
        wanted = Wanted(generation=inputs.settings.generation, facts=plan.facts, images=images, counts=counts)
        return journal.stage(generation.generate_privately, paid=True)(
            drawing.order, events, inputs, wanted, description=description
        )
    return journal.stage(generation.generate, paid=True)(inputs, images, machine, counts, guide, description)


def settle_points(drawing: Drawing) -> Inputs:
    """What images are drawn from: the trained models, or the points that this pays for, from which any number then follows."""
    plan, journal = drawing.run.plan, drawing.journal
    inputs = drawn_from(drawing, guided=plan.judge is not None and plan.judge.use == GUIDE)
    if plan.prototypes:
        before = before_drawing(inputs.settings)
        wanted = Wanted(generation=before.generation, facts=plan.facts, images=plan.prototypes)
        prototypes = journal.stage(generation.generate_privately, paid=True, note="prototypes")(
            drawing.order,
            plan.events(STAGE_DRAWING),
            inputs.model_copy(update={"settings": before, "matching": None}),
            wanted,
            prototypes=True,
        )
        public_models = inputs.public.model_copy(update={"images": None})
        inputs = inputs.model_copy(
            update={"prototypes": prototypes, "members": (), "heads": None, "public": public_models}
        )
    if plan.prototypes or not plan.events(STAGE_DRAWING):
        journal.refusal = ""  # paid models may draw again
    if plan.distillation:
        inputs = distilled(plan.distillation, inputs, drawing.run.settings, journal)
    return inputs


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


def draw_unmatched(drawing: Drawing, inputs: Inputs) -> dict[str, Samples]:
    """Some images as they are before they move to the mean embeddings of their classes, to be scored beside them."""
    settings, plan = drawing.run.settings, drawing.run.plan
    if not plan.matching:
        return {}
    images = min(settings.evaluation.images, settings.generation.images, FEW)
    unmoved = inputs.model_copy(update={"matching": None})
    draw_these = drawing.journal.stage(generation.generate, note=UNMATCHED)
    return {UNMATCHED: draw_these(unmoved, images, settings.machine, drawing.trained.counts)}


def draw_averages(drawing: Drawing) -> dict[str, Samples]:
    """The sets that further moving averages of the trained model draw, by name, to be scored beside the run's own."""
    settings, plan, tuned = drawing.run.settings, drawing.run.plan, drawing.trained.tuned
    if not plan.fine_tuning or not tuned:
        return {}
    images, inputs = min(settings.evaluation.images, settings.generation.images), drawn_from(drawing)
    names = {decay: f"moving average {decay:g}" for decay in plan.fine_tuning.averages}
    return {
        name: drawing.journal.stage(generation.generate, note=name)(
            inputs.model_copy(update={"average": decay}), images, settings.machine, drawing.trained.counts
        )
        for decay, name in names.items()
    }


def public_settings(settings: Settings) -> dict[str, Any]:
    """The settings that may be shown: the name of the data alone, and no seed."""
    shown = {name: value for name, value in settings.what().items() if name not in UNTOLD}
    return {**shown, "data": {"name": private_set(settings).name}}


def before_drawing(settings: Settings) -> Settings:
    """The settings that concern prototypes, so that another number of images is drawn from the same ones, which then move or do not."""
    seen = {name: getattr(settings, name).seen_by(PROTOTYPES) for name in ("generation", "method")}
    return settings.model_copy(update={**seen, "matching": Matching()})


def compare(
    settings: Settings,
    plan: Plan,
    parts: PublicParts,
    look: Order,
    journal: Journal,
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
        sets[PUBLIC_ONLY] = journal.stage(generation.generate, note=PUBLIC_ONLY)(inputs, min(images, FEW), machine)
    if other := baseline_settings(settings):
        trained = pay(other, plan_comparison(other, plan.facts), alone, look, journal)
        recipe = other.only("schedule", "method", "generation", "seed")
        inputs = inputs.model_copy(update={"settings": recipe, "tuned": trained.tuned})
        sets[BASELINE] = journal.stage(generation.generate, note=BASELINE)(inputs, images, machine, counts)
    return sets
