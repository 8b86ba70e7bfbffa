"""Stages that draw images from what was paid for, or pay for each image, and that apply a paid judge to drawn ones."""

from dataclasses import replace
from typing import Annotated

from artifacts import gate, pictures, serialization
from artifacts.references import (
    ClassCounts,
    Samples,
)
from artifacts.reports import run as report
from sfumato.class_shares import numbers_of_each
from sfumato.config import FEWEST_JUDGED, NOT_HASHED, Machine
from sfumato.drawing import draw_set, private_drawing
from sfumato.images import ImageSet
from sfumato.judge import Sorting, sorted_out
from sfumato.methods import METHODS
from sfumato.methods.parts import planned
from sfumato.methods.plan import ANY_NUMBER, STAGE_DRAWING
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import AnyEvent
from tasks.inputs import Inputs, Judging, RunDescription, Wanted, load_parts, load_shares
from tasks.runtime.artifact import Draft, RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import where
from tasks.runtime.machine import WHOLE, commit
from tasks.terms import Order

PICTURE = report.SAMPLES


@stage
def generate(
    context: RunContext,
    inputs: Inputs,
    images: int,
    machine: Annotated[Machine, NOT_HASHED],
    counts: ClassCounts | None = None,
    guide: Judging | None = None,
    description: Annotated[RunDescription | None, NOT_HASHED] = None,
) -> Samples:
    """Draw `images` images with the class shares of the settings, or of `counts`; without tuned model, prototypes and moments, by the public
    model alone.

    A judge as `guide` pulls each image towards its class.
    """
    settings, facts = inputs.settings, inputs.facts
    parents = [*inputs.refs(), *([counts] if counts else []), *(guide.refs() if guide else [])]
    own, params = inputs.tuned or inputs.prototypes or inputs.moments, settings.generation.model_dump()
    title = "generation" if own else "generation (public model)"
    with draft_of(Samples, title, context, parents=parents, params=params, images=1) as draft:
        parts, device, pulls = load_parts(draft, inputs, machine), device_of(machine), None
        if guide:
            pulls = serialization.load_judge(draft.open(guide.judge), draft.open(guide.backbone), device)
        shares = load_shares(draft, settings.generation, facts, counts)
        drawn = draw_set(settings, parts, images, device, guide=pulls, shares=shares, progress=draft.show)
        keep_samples(draft, drawn, description)
    return draft.ref


@stage
def generate_privately(
    context: RunContext,
    order: Order,
    events: tuple[AnyEvent, ...],
    inputs: Inputs,
    wanted: Wanted,
    prototypes: bool = False,
    description: Annotated[RunDescription | None, NOT_HASHED] = None,
) -> Samples:
    """Draw images by a sampler that pays for each of them with its own noise; `prototypes` serve for drawing any number."""
    parents = [*inputs.refs(), *([wanted.counts] if wanted.counts else [])]
    settings, facts, members, title = inputs.settings, inputs.facts, inputs.behind, "private generation"
    params = settings.generation.model_dump()
    with draft_of(Samples, title, context, parents=parents, behind=members, params=params, images=1) as draft:
        parts = replace(load_parts(draft, inputs, order.machine), paid=events)
        method, device = METHODS[settings.method.name], device_of(order.machine)
        shares = load_shares(draft, wanted.generation, facts, wanted.counts)
        partition = method.partition(settings, parts) if method.partition else None
        draw = private_drawing(
            planned(method.draw_privately),
            settings,
            parts,
            facts,
            wanted.images,
            device,
            draft.show,
            shares=shares,
            finish=method.finish if prototypes else None,
            partition=partition,
        )
        code, behind = code_version(generate_privately.fn), [*parents, *members]
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_DRAWING, purpose=title, code=code, parents=behind)
            access = replace(access, images=ANY_NUMBER if prototypes else wanted.images)
            paid = mechanisms.drawn(
                access,
                events,
                draw,
                device=device,
                codec=parts.codec,
                maps=parts.alignment,
                partition=partition,
            )
        draft.stands_on(paid)
        keep_samples(draft, paid.result, description)
    return draft.ref


def keep_samples(draft: Draft[Samples], images: ImageSet, description: RunDescription | None = None) -> None:
    """Write images, a picture of some of each class, and the description of their run."""
    serialization.save_images(draft.folder, images)
    if description:
        gate.save_how(draft.folder, description.settings, description.plan, commit(WHOLE))
    pictures.draw_images(draft.folder / PICTURE, images, pictures.columns_of(images))
    draft.files = [draft.folder / PICTURE]
    draft.metrics = {"images": len(images)}


@stage
def judge_images(
    context: RunContext,
    samples: Samples,
    judging: Judging,
    wanted: Wanted,
    use: Sorting,
    machine: Annotated[Machine, NOT_HASHED],
    description: Annotated[RunDescription | None, NOT_HASHED] = None,
) -> Samples:
    """Apply a paid judge to drawn images, which costs nothing more; the labels that they were drawn for are stored too.

    `relabel` gives all of them the judge's class, `weigh` the likelier one of that and the class drawn for, `filter` keeps the surest
    ones, with the `wanted` number of each class (its own, where it sees nothing of those drawn for), `agreeing` those whose class is also the judge's.
    """
    parents, facts = [samples, *judging.refs(), *([wanted.counts] if wanted.counts else [])], wanted.facts
    with draft_of(Samples, f"judging ({use})", context, parents=parents, params={"use": use}) as draft:
        drawn, device = serialization.load_images(draft.open(samples)), device_of(machine)
        paid = serialization.load_judge(draft.open(judging.judge), draft.open(judging.backbone), device)
        shares = load_shares(draft, wanted.generation, facts, wanted.counts)
        each = numbers_of_each(shares, len(facts.classes), wanted.images)
        verdict = sorted_out(paid, use, drawn, each, device)
        keep_samples(draft, verdict.images, description)
        serialization.save_relabelled(draft.folder, verdict.images, verdict.drawn_for)
        moved = verdict.images.labels != verdict.drawn_for
        relabelled = float(moved.mean()) if len(moved) else 0.0
        draft.metrics |= {"drawn": len(drawn), "agreed": verdict.agreed, "relabelled": relabelled}
    return draft.ref


def comparable(samples: Samples) -> bool:
    """Whether there are enough drawn images, and classes among them, to score them beside others."""
    images = serialization.load_images(where().store().folder(samples))
    return len(images) >= FEWEST_JUDGED and len(set(images.labels.tolist())) > 1
