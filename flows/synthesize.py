"""The flow: from private images to a synthetic set with its privacy statement.

It reads like the paper: plan, public pretraining, contrastive extractor, knowledge base, rehearsal, (votes,) DP fine-tuning,
generation, evaluation, report, and publishing where asked. It branches on what the plan holds, never on a method's
name.

From Python: `from flows.synthesize import synthesize`, in a process that has not imported Prefect before; the home is made then.
"""
# ruff: noqa: E402

from tasks.runtime.environment import configure

configure()  # Prefect reads its settings when it is imported, and would keep results where no other run finds them

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from artifacts.publish import below
from artifacts.record import SYNTHETIC, UNTOLD, RunRecord, run_folder
from artifacts.references import (
    CanaryImages,
    ClassCounts,
    ClassMoments,
    PhaseOneModel,
    PublicBackbone,
    PublicClassifier,
    PublicImages,
    Rehearsal,
    Samples,
)
from artifacts.reports.rehearsal import REHEARSAL
from sfumato import sources
from sfumato.config import Alignment, Generation, Judge, Network
from sfumato.evaluation.effort import FEW
from sfumato.judge import to_draw
from sfumato.methods import METHODS
from sfumato.methods.plan import (
    SHARED_STAGES,
    STAGE_COUNTS,
    STAGE_DRAWING,
    STAGE_JUDGE,
    STAGE_MOMENTS,
    STAGE_PHASE_ONE,
    STAGE_TRAINING,
    STAGE_TUNING,
    STAGE_VOTES,
    Plan,
)
from sfumato.named_settings import DEFAULT_METHOD
from sfumato.preflight import brought_to, plan_for, preflight, private_set, public_name
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.privacy.door import PrivateSet
from sfumato.settings import Settings, preset_for, resolve
from tasks import audit, checks, private, public, rehearsal, release
from tasks.editions import next_edition
from tasks.inputs import Judging, PrivateParts, PublicParts, RunDescription
from tasks.record import baseline_settings, close, pages_of
from tasks.runtime.artifact import device_of
from tasks.runtime.environment import where
from tasks.runtime.heartbeat import attended
from tasks.runtime.run import Journal
from tasks.terms import Terms

PUBLIC_ONLY, BASELINE = "public model alone", "plain DP-SGD"
"""Names of the sets that are judged beside that of the run."""
AS_DRAWN, AGREEING = "as drawn", "agreeing"
"""Names of those beside what a judge made of them: everything that was drawn, and what the judge gives the class that it was drawn for."""
RUN_FOLDER = "."
"""Publish into the folder of the run, under `PUBLISHED`."""
PUBLISHED = "published"


@flow(name="synthesize", flow_run_name="{method}", persist_result=False, validate_parameters=True)
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
        publish_to: Folder or URL to publish to; `.` takes the folder of the run, empty keeps the result in the store.
        new_version: The private set changed since its last entry in the ledger: count what it costs afresh.
        go_on: Pay even where the rehearsal with public images fails; ledger, report and card say so.
    """
    return run_changed(method, preset, changes or [], publish_to=publish_to, new_version=new_version, go_on=go_on)


def run_changed(
    method: str,
    preset: str,
    changes: Sequence[str],
    *,
    publish_to: str,
    new_version: bool = False,
    another: bool = False,
    go_on: bool = False,
) -> RunRecord:
    """Plan and carry out a method with settings as a person gives them.

    With `another`, draw the edition after the last that was published, and publish it into a folder of its own.
    """
    place = configure()
    known = (lambda name: None) if new_version else checks.known_constants
    settings, facts, _ = preflight(resolve(method, preset, changes), str(place.data), known, checks.agreed_delta)
    device_of(settings.machine)
    with next_edition(settings, place) if another else nullcontext(settings) as settings:
        plan = plan_for(settings, facts)
        how: dict[str, Any] = {"publish_to": publish_to, "new_version": new_version, "own_folder": another}
        return run_plan(settings, plan, preset=preset_for(preset, changes), go_on=go_on, **how)


def run_plan(
    settings: Settings,
    plan: Plan,
    *,
    preset: str,
    publish_to: str,
    new_version: bool = False,
    following: tuple[AnyEvent, ...] = (),
    above: Mapping[str, str] | None = None,
    own_folder: bool = False,
    go_on: bool = False,
) -> RunRecord:
    """Carry a plan out, stage by stage.

    The budget must also bear the events `following`, of runs that come after this one. `above` are the MLflow runs, by
    label, to which this run belongs. With `own_folder`, what is published lies in `publish_to` under the name of the run. With
    `go_on`, a rehearsal that fails stops nothing.
    """
    if publish_to:
        checks.refuse_publishing(plan)
    book = Journal.begin(settings, private_set(settings), above or {})
    if own_folder and publish_to not in ("", RUN_FOLDER):
        publish_to = below(publish_to, book.context.run)
    with book.kept_if_filled():
        return _carry_out(
            settings,
            plan,
            book,
            preset=preset,
            publish_to=publish_to,
            new_version=new_version,
            following=following,
            go_on=go_on,
        )


def _carry_out(
    settings: Settings,
    plan: Plan,
    book: Journal,
    *,
    preset: str,
    publish_to: str,
    new_version: bool,
    following: tuple[AnyEvent, ...],
    go_on: bool,
) -> RunRecord:
    public_images = load_images(settings, plan, book)
    secret = checks.check_private(book.private, terms(plan), book.context, public_images, new_version, plan.facts.whole)
    # With too little budget left, what was paid for before may still be used, and nothing else is begun.
    book.refusal = checks.over_budget(secret, [*(spend.event for spend in plan.spends), *following], terms(plan))
    parts = prepare(settings, plan, public_images, book)
    eyes = train_eyes(settings, public_images, book)
    rehearsed = rehearse(settings, parts, public_images, eyes, book)
    agree(settings, rehearsed, book, go_on)
    counts = count(plan, secret, book)
    judge = train_judge(settings, plan, public_images, secret, book)
    trained = pay(settings, plan, parts, secret, book).model_copy(update={"counts": counts, "judge": judge})
    samples, beside = draw(settings, plan, parts, trained, secret, book)
    book.refusal = ""

    judged = {SYNTHETIC: samples} | beside | compare(settings, plan, parts, secret, book, counts)
    judging = eyes if settings.evaluation.features == "cnn" else None
    further = further_eyes(settings, public_images, judge, book)
    nearest = book.run(release.find_nearest, samples, public_images, judging, machine=settings.machine, **further)
    scores = book.run(
        release.evaluate,
        judged,
        judging,
        plan.facts,
        secret,
        terms(plan, comparison=True),
        settings.evaluation,
        settings.seed,
        settings.machine,
        autoencoder=parts.autoencoder,
        briefly=(PUBLIC_ONLY, *beside),
        **further,
    )
    copies = book.run(audit.check_copies, samples, secret, terms(plan, comparison=True))
    given = counts, trained.moments, rehearsed
    record = close(settings, plan, preset, book, parts, samples, scores, copies, nearest, *given)
    if publish_to:
        record = release.publish_run(record, run_folder(record) / PUBLISHED if publish_to == RUN_FOLDER else publish_to)
    show_in_ui(record)
    return record


def show_in_ui(record: RunRecord) -> None:
    """The report that may leave as a Markdown artifact of the flow run (made in every run, cached stages or not), linked to MLflow."""
    create_markdown_artifact(release.report_for_prefect(record, pages_of(record)), key="report", description=record.run)


def load_images(settings: Settings, plan: Plan, book: Journal) -> PublicImages:
    """The public images, with which the private ones are compared before anything is trained."""
    data = settings.data
    size, channels = brought_to(plan.facts.shape)
    content = sources.fingerprint(data.public, folder=data.folder)
    side = data.model_copy(update=PUBLIC_SIDE | {"channels": channels})
    return book.run(public.load_public, side, size, settings.seed, content=content)


PUBLIC_SIDE = {
    "private": "",
    "name": "",
    "held_out": 0.5,
    "share": 1.0,
    "records": 0,
    "classes": (),
    "private_classes": (),
    "limit": 0,
    "group": "",
    "unit": "person",
}
"""What of the data section the public images do not depend on, set to one value for all runs."""


def prepare(settings: Settings, plan: Plan, images: PublicImages, book: Journal) -> PublicParts:
    """The public half: autoencoder where asked, denoiser, and where the plan retrieves, extractor and knowledge base."""
    common: dict[str, Any] = {"seed": settings.seed, "machine": settings.machine}
    coder = None
    if settings.latent.kind != "none":
        eyes = {}
        if settings.latent.perceptual:
            eyes = {"backbone": book.run(public.train_backbone, images, settings.backbone, **common)}
        coder = book.run(public.train_autoencoder, images, settings.latent, **common, **eyes)
    reference = plan.retrieval.reference if plan.retrieval else 0.0
    network: Network = settings.network
    seen, schedule = (images, coder), settings.schedule
    model = book.run(public.pretrain, *seen, schedule, network, settings.pretraining, reference=reference, **common)
    found: dict[str, Any] = {}
    if plan.moments:
        usual = Alignment()
        how = plan.moments.model_copy(update={"share": usual.share, "proportions": usual.proportions})
        found = {"moments": book.run(public.measure, *seen, how, **common)}
    if plan.retrieval is None:
        shown = images if plan.public_images else None
        return PublicParts(model=model, autoencoder=coder, images=shown, **found)
    # The extractor does not depend on how the base is kept, and is found again where that alone changes.
    learnt = plan.retrieval.model_copy(update={"by_class": False, "trajectories": 0})
    extractor = book.run(public.train_extractor, *seen, model, schedule, learnt, **common)
    base = book.run(public.build_knowledge_base, *seen, model, extractor, schedule, plan.retrieval, **common)
    return PublicParts(model=model, autoencoder=coder, extractor=extractor, base=base, **found)


def train_eyes(settings: Settings, images: PublicImages, book: Journal) -> PublicClassifier:
    """The CNN of public images alone in whose features the rehearsal, and where nothing else is asked for the scores, compare images.

    No part of what is paid for, so that to be measured in other features costs nothing.
    """
    called: dict[str, Any] = {"source": public_name(settings.data), "seed": settings.seed, "machine": settings.machine}
    return book.run(public.train_classifier, images, **called)


def further_eyes(settings: Settings, images: PublicImages, judge: Judging | None, book: Journal) -> dict[str, Any]:
    """The public backbone, in whose features images are compared too, where the run has trained one."""
    if judge:
        return {"backbone": judge.backbone}
    learnt = settings.latent.kind != "none" and settings.latent.perceptual > 0
    return {"backbone": train_backbone(settings, images, book)} if learnt else {}


def rehearse(
    settings: Settings, parts: PublicParts, images: PublicImages, eyes: PublicClassifier, book: Journal
) -> Rehearsal:
    """The public half tried on public images that nothing learnt from; neither images' number nor edition matters to it."""
    usual = Generation()
    same = {name: getattr(usual, name) for name in ("images", "redraw", "edition", *SHARED_OUT)}
    return book.run(
        public.rehearse,
        images,
        parts.autoencoder,
        parts.model if has_public_model(settings) else None,
        parts.base,
        eyes,
        schedule=settings.schedule,
        generation=settings.generation.model_copy(update=same),
        count=settings.rehearsal.images,
        seed=settings.seed,
        machine=settings.machine,
    )


def has_public_model(settings: Settings) -> bool:
    """Whether images are drawn by a model that learnt from public ones first: private training may begin afresh."""
    return settings.pretraining.steps > 0 and not hasattr(METHODS[settings.method.name], "blueprint")


def agree(settings: Settings, rehearsed: Rehearsal, book: Journal, go_on: bool) -> None:
    """Show the rehearsal; `Refused` where it is worse than the settings want, unless a person goes on, which the ledger then says."""
    picture = where().runs / book.context.run / REHEARSAL
    worse = rehearsal.show(rehearsed, settings.rehearsal, picture)
    if worse and not go_on:
        raise rehearsal.refusal(worse, picture)
    if worse:
        rehearsal.note_that_it_goes_on(rehearsed, worse, book.private, book.context.run)


def count(plan: Plan, secret: PrivateSet, book: Journal) -> ClassCounts | None:
    """How common each class is, where the plan asks for it; found again by every run that asks with the same noise."""
    if not plan.events(STAGE_COUNTS):
        return None
    later = after(plan, STAGE_COUNTS)
    # A claim is of one run and would keep the others from finding the counts.
    how = terms(plan, following=later).model_copy(update={"claim": None})
    asked: dict[str, Any] = {"private": secret, "terms": how, "classes": plan.facts.classes}
    return book.run(private.count_classes, event=plan.event(STAGE_COUNTS), paid=True, **asked)


def after(plan: Plan, stage: str) -> tuple[AnyEvent, ...]:
    """What a plan spends after `stage`."""
    last = max(place for place, spend in enumerate(plan.spends) if spend.stage == stage)
    return tuple(spend.event for spend in plan.spends[last + 1 :])


def train_backbone(settings: Settings, images: PublicImages, book: Journal) -> PublicBackbone:
    """The classifier of the public images in whose features others are judged; found again by whoever asks for it."""
    common: dict[str, Any] = {"seed": settings.seed, "machine": settings.machine}
    return book.run(public.train_backbone, images, settings.backbone, **common)


def train_judge(
    settings: Settings, plan: Plan, images: PublicImages, secret: PrivateSet, book: Journal
) -> Judging | None:
    """What labels, chooses or guides drawn images, where the plan has it; found again by every run that trains one like it."""
    if not plan.judge:
        return None
    backbone = train_backbone(settings, images, book)
    # How it is used does not change it, and a claim is of one run: neither keeps another run from finding it.
    usual = Judge()
    recipe = plan.judge.model_copy(update={name: getattr(usual, name) for name in ("use", "share", "keep", "pull")})
    later = tuple(spend.event for spend in plan.spends if spend.stage not in (STAGE_COUNTS, STAGE_JUDGE))
    how = terms(plan, following=later).model_copy(update={"claim": None})
    asked: dict[str, Any] = {"settings": recipe, "facts": plan.facts, "machine": settings.machine}
    event = plan.event(STAGE_JUDGE)
    judge = book.run(private.train_judge, backbone, secret, how, event, paid=True, **asked)
    return Judging(backbone=backbone, judge=judge)


def pay(
    settings: Settings,
    plan: Plan,
    parts: PublicParts,
    secret: PrivateSet,
    book: Journal,
    comparison: bool = False,
    canaries: CanaryImages | None = None,
) -> PrivateParts:
    """The private half but for the drawing: votes, a first phase, training with or without protection, as the plan has them."""
    recipe = settings.only("schedule", "network", "method", "fine_tuning")
    common: dict[str, Any] = {
        "settings": recipe,
        "facts": plan.facts,
        "private": secret,
        "terms": terms(plan, comparison),
        "public": parts,
        "machine": settings.machine,
        "paid": not comparison,
        "note": "canaries" if canaries else BASELINE if comparison else "",
        "canaries": canaries,
    }
    moments = align(plan, common, book)
    given: dict[str, Any] = {"moments": moments} if moments else {}
    common |= given
    if plan.members or plan.plain:
        return train(settings, plan, common, book).model_copy(update=given)
    votes = None
    if plan.votes:
        rest = plan.events(STAGE_TUNING) + plan.events(STAGE_DRAWING)
        first: dict[str, Any] = {**common, "terms": terms(plan, comparison, following=rest)}
        votes = book.run(private.take_votes, event=plan.event(STAGE_VOTES), **first)
    if not plan.fine_tuning:
        return PrivateParts(votes=votes, **given)
    started = begin(settings, plan, common, book) if plan.phase_one else None
    tuned = book.run(private.fine_tune, event=plan.event(STAGE_TUNING), votes=votes, started=started, **common)
    return PrivateParts(votes=votes, tuned=tuned, **given)


def align(plan: Plan, common: dict[str, Any], book: Journal) -> ClassMoments | None:
    """The moments of the private classes, where the plan has them; found again by every run that asks with the same noise."""
    if not (events := plan.events(STAGE_MOMENTS)):
        return None
    later = tuple(spend.event for spend in plan.spends if spend.stage not in SHARED_STAGES)
    # A claim is of one run and would keep the others from finding the moments.
    parts: PublicParts = common["public"]
    asked = {name: common[name] for name in ("private", "machine", "paid", "note", "canaries")}
    asked["terms"] = common["terms"].model_copy(update={"claim": None, "following": later})
    asked |= {"classes": plan.facts.classes, "reference": parts.moments, "autoencoder": parts.autoencoder}
    return book.run(private.take_moments, events=events, **asked)


def train(settings: Settings, plan: Plan, common: dict[str, Any], book: Journal) -> PrivateParts:
    """Training without protection: of members, which stay behind a priced drawing, or of a model without certificate."""
    asked: dict[str, Any] = {
        name: common[name] for name in ("facts", "private", "terms", "public", "machine", "moments") if name in common
    }
    asked["settings"] = settings.only("schedule", "network", "method", "seed")
    if plan.plain:
        event = plan.event(STAGE_TRAINING)
        asked["settings"] = settings.only("privacy", "schedule", "network", "method", "seed")
        how = {name: common[name] for name in ("paid", "note")}
        tuned = book.run(private.train_plainly, event=event, training=plan.plain, **how, **asked)
        return PrivateParts(tuned=tuned)
    # What members learn costs nothing and does not depend on what is drawn of them, so that other runs find them again.
    asked["terms"] = common["terms"].model_copy(update={"claim": None, "comparison": False})
    asked["settings"] = settings.only("schedule", "network", "seed")
    assert plan.members  # nothing else is left to train
    calls = [{"members": plan.members, "shard": shard, **asked} for shard in range(plan.members.count)]
    return PrivateParts(members=tuple(book.run_all(private.train_member, calls, settings.machine)))


def draw(
    settings: Settings,
    plan: Plan,
    parts: PublicParts,
    trained: PrivateParts,
    secret: PrivateSet,
    book: Journal,
) -> tuple[Samples, dict[str, Samples]]:
    """The images that the run is for, and the sets to compare them with, by name, where a judge had a say in them."""
    told = RunDescription(settings=tellable(settings), plan=plan)
    judge, wanted = trained.judge, settings.generation.images
    trained = trained.model_copy(update={"judge": None})
    if not judge or not plan.judge:
        return draw_unjudged(settings, plan, parts, trained, secret, book, wanted, told), {}
    use, images = plan.judge.use, to_draw(plan.judge, wanted)
    told_now, guide = (told, judge) if use == "guide" else (None, None)
    drawn = draw_unjudged(settings, plan, parts, trained, secret, book, images, told_now, guide)
    asked: dict[str, Any] = {"facts": plan.facts, "images": wanted, "machine": settings.machine}
    asked |= {"counts": trained.counts} if trained.counts else {}
    recipe = settings.only("generation")
    agreeing = book.run(release.judge_images, drawn, judge, recipe, use="agreeing", note=AGREEING, **asked)
    beside = {AGREEING: agreeing} if release.comparable(agreeing) else {}
    if use == "guide":
        return drawn, beside
    samples = book.run(release.judge_images, drawn, judge, recipe, use=use, note=use, paid=True, told=told, **asked)
    return samples, {AS_DRAWN: drawn} | beside


def draw_unjudged(
    settings: Settings,
    plan: Plan,
    parts: PublicParts,
    trained: PrivateParts,
    secret: PrivateSet,
    book: Journal,
    images: int,
    told: RunDescription | None,
    guide: Judging | None = None,
) -> Samples:
    """Images drawn from what was trained, or by a sampler that pays for each of them; a judge may guide the first."""
    recipe = settings.only("schedule", "method", "generation", "seed", *(["judge"] if guide else []))
    drawing: dict[str, Any] = {
        "facts": plan.facts,
        "public": parts,
        "machine": settings.machine,
        "images": images,
        "told": told,
    }
    if events := plan.events(STAGE_DRAWING):
        asked: dict[str, Any] = {
            "private": secret,
            "terms": terms(plan),
            "events": events,
            "trained": trained,
            **drawing,
        }
        if not plan.prototypes:
            return book.run(release.generate_privately, recipe, paid=True, **asked)
        asked |= {"images": plan.prototypes, "prototypes": True, "note": "prototypes", "paid": True, "told": None}
        asked["trained"] = trained.model_copy(update={"counts": None})
        first = book.run(release.generate_privately, before_drawing(recipe), **asked)
    book.refusal = ""  # what is paid for may be drawn from again
    drawing["prototypes"] = first if plan.prototypes else None
    drawing |= {"counts": trained.counts} if trained.counts else {}
    drawing |= {"guide": guide} if guide else {}
    drawing |= {"moments": trained.moments} if trained.moments else {}
    return book.run(release.generate, recipe, votes=trained.votes, tuned=trained.tuned, paid=True, **drawing)


def tellable(settings: Settings) -> dict[str, Any]:
    """The settings that may be told: of the data the name alone, and no seed."""
    told = {name: value for name, value in settings.what().items() if name not in UNTOLD}
    return {**told, "data": {"name": private_set(settings).name}}


def before_drawing(settings: Settings) -> Settings:
    """The settings without what does not concern prototypes, so that another number of images is drawn from the same ones."""
    usual, other = Generation(), ("images", "redraw", "edition", *SHARED_OUT)
    same = settings.generation.model_copy(update={name: getattr(usual, name) for name in other})
    return settings.model_copy(update={"generation": same})


SHARED_OUT = ("classes", "shares", "count_noise", "largest_share")
"""Settings of the drawing that say how many images there are of each class."""


def begin(settings: Settings, plan: Plan, common: dict[str, Any], book: Journal) -> PhaseOneModel:
    """The first phase, on copies that are noised once where the plan says so; `common` is what all private stages are told."""
    event, rest = plan.event(STAGE_PHASE_ONE), (plan.event(STAGE_TUNING),)
    first: dict[str, Any] = {**common, "terms": common["terms"].model_copy(update={"following": rest})}
    noised = None
    assert plan.phase_one  # the caller has seen it
    if plan.phase_one.noised_once:
        # The claim is of the whole run and would keep another run from finding these copies and what they trained.
        first["terms"] = first["terms"].model_copy(update={"claim": None})
        asked = {
            name: first[name]
            for name in ("private", "terms", "machine", "paid", "note", "canaries", "moments")
            if name in common
        }
        noised = book.run(
            private.noise_once,
            event=event,
            records=plan.facts.records,
            autoencoder=common["public"].autoencoder,
            **asked,
        )
    first |= {
        "settings": settings.only("schedule", "network", "seed"),
        "phase": plan.phase_one,
        "noised": noised,
    }
    return book.run(private.train_phase_one, event=event, **first)


def compare(
    settings: Settings,
    plan: Plan,
    parts: PublicParts,
    secret: PrivateSet,
    book: Journal,
    counts: ClassCounts | None = None,
) -> dict[str, Samples]:
    """What the public model alone gives and, where asked, plain DP-SGD at the same budget; the latter is INTERNAL.

    The public model knows none of the classes, of which it is asked for as many each.
    """
    # One edition is compared with the same as the others.
    first = settings.generation.model_copy(update={"edition": Generation().edition})
    settings = settings.model_copy(update={"generation": first})
    images = min(settings.evaluation.images, settings.generation.images)
    drawing: dict[str, Any] = {"facts": plan.facts, "votes": None, "machine": settings.machine}
    usual = Generation()
    evenly = first.model_copy(update={name: getattr(usual, name) for name in SHARED_OUT})
    plain = settings.model_copy(update={"generation": evenly}).only("schedule", "generation", "seed")
    alone = PublicParts(model=parts.model, autoencoder=parts.autoencoder)
    few: dict[str, Any] = {"images": min(images, FEW), "note": PUBLIC_ONLY}
    sets = {PUBLIC_ONLY: book.run(release.generate, plain, public=alone, tuned=None, **few, **drawing)}
    if other := baseline_settings(settings):
        trained = pay(other, plan_for(other, plan.facts), alone, secret, book, comparison=True)
        recipe = other.only("schedule", "method", "generation", "seed")
        drawing |= {"images": images} | ({"counts": counts} if counts else {})
        sets[BASELINE] = book.run(release.generate, recipe, public=alone, tuned=trained.tuned, note=BASELINE, **drawing)
    return sets


def terms(plan: Plan, comparison: bool = False, following: tuple[AnyEvent, ...] = ()) -> Terms:
    """In which terms the stages of a plan pay."""
    claim = None if comparison else plan.claim.model_dump(mode="json")
    return Terms(
        relation=plan.privacy.relation,
        delta=plan.privacy.delta,
        claim=claim,
        comparison=comparison,
        reason=plan.privacy.reason,
        following=following,
    )
