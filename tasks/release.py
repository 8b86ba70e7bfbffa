"""Stages after the private data is paid for: drawing, judging, reporting, publishing."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from artifacts import certify, classifiers, contents, report, spending
from artifacts.kinds import ClassVotes, Judgement, PublicClassifier, Samples, TunedModel
from artifacts.labels import Label
from artifacts.publish import check_label, destination, publish
from artifacts.record import RunRecord, save_record
from sfumato import __version__
from sfumato.config import Evaluation, Machine
from sfumato.drawing import draw_images, draw_public, first_of_each, private_drawing
from sfumato.evaluation.extractors import inception, small_cnn
from sfumato.images import ImageSet, enlargement, grid, save_png
from sfumato.methods import METHODS
from sfumato.methods.plan import ANY_NUMBER, STAGE_DRAWING, Facts
from sfumato.privacy import looks, mechanisms
from sfumato.privacy.door import PrivateSet
from sfumato.privacy.events import AnyEvent
from sfumato.settings import Settings
from tasks.caching import code_version, stage
from tasks.making import Draft, RunContext, device_of, making
from tasks.private import PublicParts, Terms, Trained, access, load_parts
from tasks.progress import progress
from tasks.where import where

GRID_COLUMNS = 20
"""Images of each class in the sample picture, one class a row."""
PICTURE = "samples.png"


@stage
def generate(
    settings: Settings,
    facts: Facts,
    public: PublicParts,
    votes: ClassVotes | None,
    tuned: TunedModel | None,
    images: int,
    machine: Machine,
    context: RunContext,
    prototypes: Samples | None = None,
) -> Samples:
    """Draw `images` images, as many of each class; without tuned model and prototypes, what the public model alone would give."""
    parents = [*public.refs(), *(ref for ref in (votes, tuned, prototypes) if ref)]
    title = "generation" if tuned or prototypes else "generation (public model)"
    shown = {"params": settings.generation.model_dump(), "images": 1}
    with making(Samples, title, context, parents=parents, **shown) as draft:
        parts = load_parts(draft, settings, facts, public, machine, votes, tuned, prototypes=prototypes)
        method, device = METHODS[settings.method.name], device_of(machine)
        draw, labels = (method.draw, getattr(method, "labels", None)) if tuned or prototypes else (draw_public, None)
        keep_samples(draft, draw_images(draw, settings, parts, facts, images, device, draft.show, labels=labels))
    return draft.ref


@stage
def generate_privately(
    settings: Settings,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    events: tuple[AnyEvent, ...],
    public: PublicParts,
    trained: Trained,
    images: int,
    machine: Machine,
    context: RunContext,
    prototypes: bool = False,
) -> Samples:
    """Draw `images` images by a sampler that pays for each of them with its own noise; `prototypes` are drawn from further."""
    parents = [*public.refs(), *(ref for ref in (trained.votes, trained.tuned) if ref)]
    asking = {"parents": parents, "behind": trained.members, "params": settings.generation.model_dump(), "images": 1}
    with making(Samples, "private generation", context, **asking) as draft:
        parts = load_parts(
            draft, settings, facts, public, machine, trained.votes, trained.tuned, members=trained.members
        )
        parts = replace(parts, paid=events)
        method, device = METHODS[settings.method.name], device_of(machine)
        draw = private_drawing(method.draw_privately, settings, parts, facts, images, device, draft.show)
        code = code_version(generate_privately.fn)
        with where().ledger() as ledger:
            behind = [*parents, *trained.members]
            asked = access(ledger, private, terms, STAGE_DRAWING, "private generation", behind, context, code)
            asked = replace(asked, images=ANY_NUMBER if prototypes else images)
            paid = mechanisms.drawn(asked, events, draw, device=device, codec=parts.codec)
        draft.entries = paid.entries
        keep_samples(draft, paid.result)
    return draft.ref


def keep_samples(draft: Draft, found: ImageSet) -> None:
    """Write images and a picture of the first of each class."""
    contents.save_images(draft.folder, found)
    columns = min(GRID_COLUMNS, max(1, len(found) // len(found.classes)))
    page = grid(first_of_each(found, columns), columns, enlargement(found.pixels.shape[2]))
    save_png(draft.folder / PICTURE, page)
    draft.files = [draft.folder / PICTURE]
    draft.metrics = {"images": len(found)}


@stage
def evaluate(
    sets: dict[str, Samples],
    classifier: PublicClassifier | None,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    how: Evaluation,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> Judgement:
    """Judge each named set against the private images, in the features of the public classifier, or of Inception without one.

    INTERNAL, because it looks without noise.
    """
    parents = [*sets.values(), *([classifier] if classifier else [])]
    with (
        making(Judgement, "evaluation (INTERNAL)", context, parents=parents) as draft,
        where().ledger() as ledger,
    ):
        device = device_of(machine)
        rows, draft.entries = looks.judged(
            access(ledger, private, terms, "evaluation", "judge", parents, context, code_version(evaluate.fn)),
            {name: looks.tensors(contents.load_images(draft.open(ref)), how.images) for name, ref in sets.items()},
            classes=len(facts.classes),
            extractor=small_cnn(*classifiers.load_classifier(draft.open(classifier), device))
            if classifier
            else inception(device),
            how=how,
            seed=seed,
            device=device,
            progress=draft.show,
        )
        contents.save(draft.folder, {}, {name: row.model_dump(mode="json") for name, row in rows.items()})
        draft.metrics = {
            f"{name}/{key}".replace("+", "and"): value
            for name, row in rows.items()
            for key, value in row.numbers().items()
        }
    return draft.ref


def finish(record: RunRecord, samples: Samples, curves: dict[str, Sequence[float]]) -> RunRecord:
    """Write the folder of a run: samples, curves, both reports, the record; and show them in MLflow."""
    place = where()
    folder = place.runs / record.run
    shutil.copyfile(place.store().folder(samples) / PICTURE, folder / PICTURE)
    report.draw_curves(folder / report.CURVES, curves)
    report.write_reports(folder, record)
    save_record(folder, record)
    shown = [folder / PICTURE, folder / report.CURVES]
    tracker, certificate = place.tracker(), record.certificate
    public = {"epsilon": certificate.epsilon, "delta": certificate.delta} if certificate else {}
    if record.label != Label.INTERNAL:
        tracker.log(
            record.run,
            label=Label.DP,
            run=record.tracking[Label.DP],
            metrics={**public, "claim": record.claim.epsilon},
            files=[*shown, folder / report.REPORT],
        )
    with place.ledger() as ledger, progress("ledger") as show:
        books = spending.export(ledger, record.settings["data"]["name"], folder, progress=show)
    tracker.log(
        record.run,
        label=Label.INTERNAL,
        run=record.tracking[Label.INTERNAL],
        metrics={f"{name}/{key}": row[key] for name, row in record.metrics.items() for key in report.shown([row])},
        files=[folder / report.INTERNAL_REPORT, *shown, *books],
    )
    return record


def publish_run(record: RunRecord, to: Path, accept_claim: str = "", accept_copies: str = "") -> RunRecord:
    """Hand the samples of a run over to a folder, and note it in the record and the reports.

    A reason to accept something is written into the ledger before anything leaves.
    """
    place = where()
    store, folder = place.store(), place.runs / record.run
    if not accept_claim and not accept_copies:
        check_label(store, record)
    certify.check_audits(place.runs, record)
    to = destination(to)
    with place.ledger() as ledger:
        record = certify.confirmed(store, ledger, record)
        record = certify.accepted(
            store, ledger, record, claim=accept_claim, copies=accept_copies, code_version=__version__
        )
    save_record(folder, record)
    record = record.model_copy(update={"published": str(publish(store, record, to))})
    report.write_reports(folder, record)
    save_record(folder, record)
    return record
