"""Stages after the private data is paid for: drawing, judging, reporting, publishing."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Annotated, Any

from artifacts import approval, certify, classifiers, flavour, gate, pictures, serialization, witness
from artifacts.books import books_of
from artifacts.card import Evidence, evidence_of
from artifacts.labels import Label
from artifacts.model import lacking, with_images
from artifacts.packaging import Packaging
from artifacts.publish import destination, publish, safe_name, shareable_report
from artifacts.record import RunRecord, private_of, records, save_record
from artifacts.references import (
    ClassCounts,
    Judgement,
    NearestPublic,
    PublicClassifier,
    PublicImages,
    Samples,
)
from artifacts.reports import plots, spending
from artifacts.reports import run as report
from artifacts.reports.page import in_markdown, inside, write_tables
from artifacts.store import Store
from artifacts.tracking import NOTE
from sfumato import __version__
from sfumato.class_shares import numbers_of_each
from sfumato.config import FEWEST_JUDGED, NOT_HASHED, Evaluation, Machine, Section
from sfumato.drawing import draw_set, private_drawing
from sfumato.errors import BadInput, Refused
from sfumato.evaluation import nearest
from sfumato.evaluation.extractors import FeatureReader, inception, small_cnn
from sfumato.evaluation.extractors import backbone as backbone_eyes
from sfumato.images import ImageSet, to_unit
from sfumato.judge import Sorting, sorted_out
from sfumato.methods import METHODS
from sfumato.methods.parts import planned
from sfumato.methods.plan import ANY_NUMBER, STAGE_DRAWING, Facts
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.privacy.auditing import looks
from sfumato.privacy.ledger.ledger import Ledger
from tasks.inputs import FeatureSpaces, Inputs, Judging, RunDescription, Wanted, load_parts, load_shares
from tasks.runtime.artifact import Draft, RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import now, where
from tasks.runtime.machine import WHOLE, commit
from tasks.runtime.progress import CONSOLE, progress
from tasks.terms import Order

PICTURE = report.SAMPLES
DAY = len("2026-01-31")
"""Length of the day in a time as ISO-8601."""


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
        )
        code, behind = code_version(generate_privately.fn), [*parents, *members]
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_DRAWING, purpose=title, code=code, parents=behind)
            access = replace(access, images=ANY_NUMBER if prototypes else wanted.images)
            paid = mechanisms.drawn(access, events, draw, device=device, codec=parts.codec, maps=parts.alignment)
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
    ones, with the `wanted` number of each class, `agreeing` those whose class is also the judge's.
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
        draft.metrics |= {"drawn": len(drawn), "agreed": verdict.agreed}
    return draft.ref


def comparable(samples: Samples) -> bool:
    """Whether there are enough drawn images, and classes among them, to score them beside others."""
    images = serialization.load_images(where().store().folder(samples))
    return len(images) >= FEWEST_JUDGED and len(set(images.labels.tolist())) > 1


@stage
def find_nearest(
    context: RunContext,
    samples: Samples,
    images: PublicImages,
    eyes: FeatureSpaces,
    machine: Annotated[Machine, NOT_HASHED],
) -> NearestPublic:
    """Put some samples beside their nearest public images, in the features of the public backbone, or of the classifier without one."""
    parents = [ref for ref in (samples, images, eyes.backbone or eyes.classifier) if ref]
    with draft_of(NearestPublic, "nearest public images", context, parents=parents) as draft:
        shown = pictures.of_each(serialization.load_images(draft.open(samples)))
        known = serialization.load_images(draft.open(images))
        known = known.subset(nearest.searched(len(known)).numpy())
        if eyes.backbone:
            reader = serialization.load_backbone(draft.open(eyes.backbone), device_of(machine))
            read = backbone_eyes(reader.whitened, device_of(machine)).read
        else:
            read = extractor_of(draft, eyes.classifier, machine).features
        places = nearest.nearest(*(read(to_unit(one.pixels)) for one in (shown, known)))
        pictures.draw_pairs(draft.folder / report.NEAREST, shown, known.pixels[places.numpy()])
        draft.files = [draft.folder / report.NEAREST]
    return draft.ref


def extractor_of(draft: Draft[Any], classifier: PublicClassifier | None, machine: Machine) -> FeatureReader:
    """The extractor in whose features images are compared: the public classifier, or Inception without one."""
    device = device_of(machine)
    if classifier is None:
        return inception(device)
    return small_cnn(*classifiers.load_classifier(draft.open(classifier), device))


class JudgedSets(Section):
    """The sets that are judged side by side."""

    sets: dict[str, Samples]
    briefly: tuple[str, ...] = ()
    """Names of the sets that only the fast classifiers learn from."""


@stage
def evaluate(
    context: RunContext,
    order: Order,
    judged: JudgedSets,
    eyes: FeatureSpaces,
    facts: Facts,
    how: Evaluation,
    seed: int,
) -> Judgement:
    """Judge each named set against the private images, in the features of the public classifier, or of Inception without one.

    Also in the latents of the autoencoder and in the features of the backbone, where the run has them. INTERNAL, because it
    looks without noise.
    """
    parents, machine = [*judged.sets.values(), *eyes.refs()], order.machine
    autoencoder, backbone, code = eyes.autoencoder, eyes.backbone, code_version(evaluate.fn)
    with (
        draft_of(Judgement, "evaluation (INTERNAL)", context, parents=parents) as draft,
        where().ledger() as ledger,
    ):
        device = device_of(machine)
        known = draft.store.manifest(autoencoder)["parents"] if autoencoder else []
        scored = looks.judged(
            order.access(ledger, context, stage="evaluation", purpose="judge", code=code, parents=parents),
            {
                name: looks.tensors(serialization.load_images(draft.open(ref)), how.images)
                for name, ref in judged.sets.items()
            },
            classes=len(facts.classes),
            extractor=extractor_of(draft, eyes.classifier, machine),
            how=how,
            seed=seed,
            device=device,
            shown=pictures.MOST_COLUMNS,
            codec=serialization.load_codec(draft.open(autoencoder) if autoencoder else None, device, trained_on=known),
            backbone=serialization.load_backbone(draft.open(backbone), device) if backbone else None,
            progress=draft.show,
            briefly=judged.briefly,
        )
        rows, draft.entries = scored.rows, scored.entries
        serialization.save(draft.folder, {}, {name: row.model_dump(mode="json") for name, row in rows.items()})
        pictures.draw_images(draft.folder / report.REAL_PICTURE, scored.real, pictures.columns_of(scored.real))
        draft.files = [draft.folder / report.REAL_PICTURE]
        draft.metrics = {
            f"{name}/{key}".replace("+", "and"): value
            for name, row in rows.items()
            for key, value in row.numbers().items()
        }
    return draft.ref


def finish(record: RunRecord, samples: Samples, curves: Mapping[str, Sequence[float]]) -> RunRecord:
    """Write the folder of a run: samples, pictures, ledger, both reports, the record; and show them in MLflow."""
    place = where()
    folder = place.runs / record.run
    shutil.copyfile(place.store().folder(samples) / report.SAMPLES, folder / report.SAMPLES)
    if record.nearest_artifact:
        shutil.copyfile(place.store().folder(record.nearest_artifact) / report.NEAREST, folder / report.NEAREST)
    plots.draw_curves(folder / report.CURVES, curves)
    with place.ledger() as ledger, progress("ledger") as show:
        spending.export(ledger, record.settings["data"]["name"], folder, progress=show)
        witness.note_in_run(folder, ledger.statement())
        witness.note_beside(record.settings["data"]["private"], ledger.signed_head())
    write_up(record)
    with telling(record):
        show_run(record)
    return record


def write_up(record: RunRecord) -> None:
    """Write both reports and the record again, with the ledger's present state and the results of other runs since."""
    place = where()
    folder = place.runs / record.run
    if record.books:
        name, under = record.settings["data"]["name"], place.store().entries(record.samples_artifact)
        with place.ledger() as ledger:
            record = record.model_copy(update={"books": books_of(ledger, name, record.run, under)})
    if record.curve:
        plots.draw_privacy(folder / report.PRIVACY, record)
    plots.draw_trade_off(folder / report.TRADE_OFF, record, records(place.runs))
    report.write_reports(folder, record)
    save_record(folder, record)


@contextlib.contextmanager
def telling(record: RunRecord, whom: str = "MLflow") -> Iterator[None]:
    """Inside the block an error of MLflow, or of Prefect, is only a warning: a run that is over or published stays so."""
    try:
        yield
    except Exception as error:
        CONSOLE.print(f"{record.run}: stored, but not written to {whom} ({type(error).__name__})")


def show_run(record: RunRecord) -> None:
    """Show reports, pictures, tables and scores in MLflow, each in the experiment where it may be seen.

    Files that may be shown go through the same gate as published ones, and are drawn again.
    """
    place = where()
    folder, tracker = place.runs / record.run, place.tracker()
    with leaving(record) as (released, drawn):
        if isinstance(released, RunRecord) and released.label != Label.INTERNAL:
            certificate = released.certificate
            public = {"epsilon": certificate.epsilon, "delta": certificate.delta} if certificate else {}
            tracker.log(
                record.run,
                label=released.label,
                run=record.tracking[Label.DP],
                metrics={**public, "claim": released.claim.epsilon},
                files=there(drawn, report.REPORT, *report.PICTURES, report.TABLES),
                tags=tags_of(released) | {NOTE: pictured(released)},
                inputs=inputs_of(released),
            )
    tracker.log(
        record.run,
        label=Label.INTERNAL,
        run=record.tracking[Label.INTERNAL],
        metrics={f"{name}/{key}": row[key] for name, row in record.metrics.items() for key in report.shown([row])},
        files=there(folder, *report.INTERNAL_FILES),
        tags=tags_of(record) | {"label": Label.INTERNAL, "samples": record.label},
        inputs=inputs_of(record),
    )


def tags_of(record: RunRecord) -> dict[str, str]:
    """Tags of a run in MLflow."""
    entries = ",".join(map(str, record.entries))
    return {"label": record.label, "ledger_entries": entries, NOTE: report.statement(record)}


def pictured(record: RunRecord) -> str:
    """The description of a run in MLflow: the statement on its images, and below it the images themselves, as MLflow's pages fetch them."""
    run = record.tracking[Label.DP]
    return f"{report.statement(record)}\n\n![images of each class](get-artifact?path={report.SAMPLES}&run_uuid={run})"


def inputs_of(record: RunRecord) -> list[tuple[str, str]]:
    """Data of a run in MLflow: names with digests, but for the private set, whose digest stays here."""
    public = "+".join(PurePath(part).name for part in record.settings["data"].get("public", "public images").split("+"))
    digests = [digest for kind, digest in made_of(record) if kind == PublicImages.__name__]
    return [*((public, digest) for digest in digests), (record.settings["data"]["name"], "")]


@contextlib.contextmanager
def leaving(record: RunRecord) -> Iterator[tuple[RunRecord | str, Path]]:
    """The record as the gate releases it, and a temporary folder with report, pictures and tables; else the refusal."""
    place = where()
    store = place.store()
    released: RunRecord | str
    with store.writing() as folder:
        try:
            with place.ledger() as ledger:
                released = gate.passed(store, ledger, record)
            gate.draw_public(folder, store, released)
            (folder / report.REPORT).write_text(shareable_report(released, folder), encoding="utf-8")
            write_tables(folder / report.TABLES, report.public_page(released))
        except (BadInput, Refused) as refusal:
            released = str(refusal)
        yield released, folder


def report_for_prefect(record: RunRecord, links: Mapping[str, str]) -> str:
    """The report that may leave, in Markdown; where nothing may, that alone, and why."""
    with leaving(record) as (released, folder):
        if isinstance(released, str):
            return f"# {record.run}\n\nNothing of this run may leave: {released}\n"
        return in_markdown(report.public_page(released), inside(folder), links)


def made_of(record: RunRecord) -> list[tuple[str, str]]:
    """Kind and address of all ancestors of a run's samples."""
    return [(m["kind"], digest) for digest, m in where().store().ancestry(record.samples_artifact)]


def there(folder: Path, *names: str) -> list[Path]:
    """The existing ones of these files and folders."""
    return [folder / name for name in names if (folder / name).exists()]


def publish_run(
    record: RunRecord,
    to: Path | str,
    accept_claim: str = "",
    accept_copies: str = "",
    *,
    packaging: Packaging = Packaging(),
) -> RunRecord:
    """Publish the samples of a run to a folder or a URL, and note it in the record and the reports; `packaging` overrides the run's terms.

    A reason to accept something is written into the ledger before anything leaves.
    """
    place = where()
    store, folder = place.store(), place.runs / record.run
    accepting = [kind for kind, reason in (("claim", accept_claim), ("copies", accept_copies)) if reason]
    with place.ledger() as ledger:
        released = gate.passed(store, ledger, record, accepting)
        to = destination(to, private_of(record))
        packaging = packaging.of_run(record.model_copy(update={"decisions": released.decisions}))
        packaging = replace(
            packaging.of_run(released), date=now()[:DAY], signer=packaging.signer or place.image_signer()
        )
        if approval.check(released, packaging.terms, accepting) is None:
            approval.refuse_kin(released, records(place.runs))
        released = accepted(store, ledger, record, claim=accept_claim, copies=accept_copies)
        evidence = evidence_of(store, ledger, released)
    record = record.model_copy(update={"overrides": released.overrides, "decisions": released.decisions})
    save_record(folder, record)
    with progress("published images", images=1) as show:
        place_of = publish(store, released, to, evidence, packaging, show)
    record = record.model_copy(update={"published": str(place_of)})
    save_record(folder, record)  # before the reports: whatever ends them, a schedule counts this edition as published
    with progress("reports, MLflow, model") as show:
        write_up(record)
        show(1, 3)
        with telling(record):
            show_run(record)
            show(2, 3)
            register(released, evidence, packaging)
        show(3, 3)
    ask_again(released, str(place_of))
    return record


def ask_again(record: RunRecord, to: str) -> None:
    """`Refused` where the gate lets a run pass no more since it was published to `to`, and its model out of MLflow's registry again.

    Writing and uploading take minutes, in which an audit may refute the run.
    """
    place = where()
    try:
        with place.ledger() as ledger:
            gate.passed(place.store(), ledger, record)
    except (BadInput, Refused) as refusal:
        with telling(record):
            place.tracker().withdraw(model_name(record), run=record.tracking[Label.DP])
        raise Refused(f"{refusal}. This came to be known while the images left: take them back from {to}") from None


def accepted(store: Store, ledger: Ledger, record: RunRecord, *, claim: str, copies: str) -> RunRecord:
    """The record as the gate releases it, with the reasons to accept something, if any, written into the ledger first."""
    accepting = [kind for kind, reason in (("claim", claim), ("copies", copies)) if reason]
    released = gate.passed(store, ledger, record, accepting)
    if not accepting:
        return released
    copied = not gate.copy_check(ledger.entries(), record).body["passed"]
    certify.accept(store, ledger, released, claim=claim, copies=copies, copied=copied, code_version=__version__)
    return gate.passed(store, ledger, record)


def register(record: RunRecord, evidence: Evidence | None, packaging: Packaging) -> None:
    """Put the model that a certified run has just handed over into MLflow's registry, as a published folder that MLflow can load.

    Nothing where the images have no certificate, where each of them was paid for and no model may leave, where whoever published left it out,
    or where it cannot draw, since nobody named the licence of the public images in it.
    """
    certificate, place = record.certificate, where()
    if certificate is None or lacking(record) or not packaging.model:
        return
    if not packaging.terms.public_licence and with_images(place.store(), record):
        return
    stated = {key: str(value) for key, value in certificate.model_dump(mode="json").items()}
    tags = {
        **stated,
        "method": record.method,
        "run": record.run,
        "label": record.label,
        "samples": record.samples_artifact,
    }
    run = record.tracking[Label.DP]
    with place.store().writing() as folder:
        bundled = replace(packaging, terms=packaging.terms.model_copy(update={"form": flavour.FORM}))
        publish(place.store(), record, folder / flavour.BUNDLE, evidence, bundled)
        flavour.write_flavour(folder, run=run)
        place.tracker().release(model_name(record), folder, run=run, tags=tags, note=certificate.sentence())


def model_name(record: RunRecord) -> str:
    """The name in MLflow's registry of the denoisers that a method released from a private set."""
    return f"{safe_name(record.settings['data']['name'])}-{record.method}"
