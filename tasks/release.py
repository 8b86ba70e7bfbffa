"""Stages after the private data is paid for: drawing, judging, reporting, publishing."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from artifacts import certify, classifiers, gate, pictures, serialization, witness
from artifacts.card import evidence_of
from artifacts.labels import Label
from artifacts.publish import destination, publish, safe_name, shareable_report
from artifacts.record import RunRecord, records, save_record
from artifacts.references import (
    ClassCounts,
    ClassMoments,
    ClassVotes,
    Judgement,
    NearestPublic,
    PublicAutoencoder,
    PublicBackbone,
    PublicClassifier,
    PublicImages,
    Samples,
    TunedModel,
)
from artifacts.reports import plots, spending
from artifacts.reports import run as report
from artifacts.reports.page import in_markdown, inside, write_tables
from artifacts.tracking import NOTE
from sfumato import __version__
from sfumato.class_shares import numbers_of_each
from sfumato.config import FEWEST_JUDGED, Evaluation, Machine
from sfumato.drawing import draw_set, private_drawing
from sfumato.errors import BadInput, Refused
from sfumato.evaluation import nearest
from sfumato.evaluation.extractors import FeatureReader, inception, small_cnn
from sfumato.evaluation.extractors import backbone as backbone_eyes
from sfumato.images import ImageSet, to_unit
from sfumato.judge import Sorting, sorted_out
from sfumato.methods import METHODS
from sfumato.methods.plan import ANY_NUMBER, STAGE_DRAWING, Facts
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.privacy.auditing import looks
from sfumato.privacy.door import PrivateSet
from sfumato.settings import Settings
from tasks.inputs import Judging, PrivateParts, PublicParts, RunDescription, load_parts, load_shares
from tasks.runtime.artifact import Draft, RunContext, device_of, making
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import where
from tasks.runtime.progress import CONSOLE, progress
from tasks.terms import Terms, access

PICTURE = report.SAMPLES


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
    counts: ClassCounts | None = None,
    told: RunDescription | None = None,
    guide: Judging | None = None,
    moments: ClassMoments | None = None,
) -> Samples:
    """Draw `images` images, of each class as many as the settings say, or as `counts` say; without tuned model, prototypes and moments, what the public model alone would give.

    A judge as `guide` pulls each image towards its class.
    """
    parents = [*public.refs(), *(ref for ref in (votes, tuned, prototypes, counts, moments) if ref)]
    parents += guide.refs() if guide else []
    own = tuned or prototypes or moments
    title = "generation" if own else "generation (public model)"
    shown: dict[str, Any] = {"params": settings.generation.model_dump(), "images": 1}
    with making(Samples, title, context, parents=parents, **shown) as draft:
        made: dict[str, Any] = {"prototypes": prototypes, "moments": moments}
        parts = load_parts(draft, settings, facts, public, machine, votes, tuned, **made)
        device, pulls = device_of(machine), None
        if guide:
            pulls = serialization.load_judge(draft.open(guide.judge), draft.open(guide.backbone), device)
        shares = load_shares(draft, settings, facts, counts)
        drawn = draw_set(settings, parts, images, device, guide=pulls, shares=shares, progress=draft.show)
        keep_samples(draft, drawn, told)
    return draft.ref


@stage
def generate_privately(
    settings: Settings,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    events: tuple[AnyEvent, ...],
    public: PublicParts,
    trained: PrivateParts,
    images: int,
    machine: Machine,
    context: RunContext,
    prototypes: bool = False,
    told: RunDescription | None = None,
) -> Samples:
    """Draw `images` images by a sampler that pays for each of them with its own noise; `prototypes` are drawn from further."""
    parents = [*public.refs(), *(ref for ref in (trained.votes, trained.tuned, trained.counts, trained.moments) if ref)]
    asking: dict[str, Any] = {
        "parents": parents,
        "behind": trained.members,
        "params": settings.generation.model_dump(),
        "images": 1,
    }
    with making(Samples, "private generation", context, **asking) as draft:
        made: dict[str, Any] = {"members": trained.members, "moments": trained.moments}
        parts = load_parts(draft, settings, facts, public, machine, trained.votes, trained.tuned, **made)
        parts = replace(parts, paid=events)
        method, device = METHODS[settings.method.name], device_of(machine)
        shares = load_shares(draft, settings, facts, trained.counts)
        draw = private_drawing(method.draw_privately, settings, parts, facts, images, device, draft.show, shares=shares)
        code = code_version(generate_privately.fn)
        with where().ledger() as ledger:
            behind = [*parents, *trained.members]
            asked = access(ledger, private, terms, STAGE_DRAWING, "private generation", behind, context, code)
            asked = replace(asked, images=ANY_NUMBER if prototypes else images)
            paid = mechanisms.drawn(asked, events, draw, device=device, codec=parts.codec, maps=parts.alignment)
        draft.stands_on(paid)
        keep_samples(draft, paid.result, told)
    return draft.ref


def keep_samples(draft: Draft, found: ImageSet, told: RunDescription | None = None) -> None:
    """Write images, a picture of some of each class, and what is told of how they are made."""
    serialization.save_images(draft.folder, found)
    if told:
        gate.save_how(draft.folder, told.settings, told.plan)
    pictures.draw_images(draft.folder / PICTURE, found, pictures.columns_of(found))
    draft.files = [draft.folder / PICTURE]
    draft.metrics = {"images": len(found)}


@stage
def judge_images(
    samples: Samples,
    judging: Judging,
    settings: Settings,
    facts: Facts,
    images: int,
    use: Sorting,
    machine: Machine,
    context: RunContext,
    counts: ClassCounts | None = None,
    told: RunDescription | None = None,
) -> Samples:
    """What a paid judge makes of drawn images, which costs nothing more; the labels that they were drawn for are kept beside.

    `relabel` gives all of them its class, `weigh` the likelier one of that and the class drawn for, `filter` keeps the `images` that it is surest of, as many of each class as were asked for, `agreeing`
    keeps those whose class is also its own.
    """
    parents = [samples, *judging.refs(), *([counts] if counts else [])]
    with making(Samples, f"judging ({use})", context, parents=parents, params={"use": use}) as draft:
        drawn, device = serialization.load_images(draft.open(samples)), device_of(machine)
        paid = serialization.load_judge(draft.open(judging.judge), draft.open(judging.backbone), device)
        wanted = numbers_of_each(load_shares(draft, settings, facts, counts), len(facts.classes), images)
        verdict = sorted_out(paid, use, drawn, wanted, device)
        keep_samples(draft, verdict.images, told)
        serialization.save_relabelled(draft.folder, verdict.images, verdict.drawn_for)
        draft.metrics |= {"drawn": len(drawn), "agreed": verdict.agreed}
    return draft.ref


def comparable(samples: Samples) -> bool:
    """Whether drawn images are enough, and of classes enough, to be scored beside others."""
    found = serialization.load_images(where().store().folder(samples))
    return len(found) >= FEWEST_JUDGED and len(set(found.labels.tolist())) > 1


@stage
def find_nearest(
    samples: Samples,
    images: PublicImages,
    classifier: PublicClassifier | None,
    machine: Machine,
    context: RunContext,
    backbone: PublicBackbone | None = None,
) -> NearestPublic:
    """Put some samples beside their nearest public images, in the features of the public backbone, or of the classifier without one."""
    parents = [ref for ref in (samples, images, backbone or classifier) if ref]
    with making(NearestPublic, "nearest public images", context, parents=parents) as draft:
        shown = pictures.of_each(serialization.load_images(draft.open(samples)))
        known = serialization.load_images(draft.open(images))
        known = known.subset(nearest.searched(len(known)).numpy())
        if backbone:
            reader = serialization.load_backbone(draft.open(backbone), device_of(machine))
            read = backbone_eyes(reader.whitened, device_of(machine)).read
        else:
            read = eyes(draft, classifier, machine).features
        places = nearest.nearest(*(read(to_unit(one.pixels)) for one in (shown, known)))
        pictures.draw_pairs(draft.folder / report.NEAREST, shown, known.pixels[places.numpy()])
        draft.files = [draft.folder / report.NEAREST]
    return draft.ref


def eyes(draft: Draft, classifier: PublicClassifier | None, machine: Machine) -> FeatureReader:
    """In whose features images are compared: those of the public classifier, or of Inception without one."""
    device = device_of(machine)
    if classifier is None:
        return inception(device)
    return small_cnn(*classifiers.load_classifier(draft.open(classifier), device))


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
    autoencoder: PublicAutoencoder | None = None,
    backbone: PublicBackbone | None = None,
    briefly: tuple[str, ...] = (),
) -> Judgement:
    """Judge each named set against the private images, in the features of the public classifier, or of Inception without one.

    Also in the latents of the autoencoder and in the features of the backbone, where the run has them; those named in
    `briefly` by the fast classifiers alone. INTERNAL, because it looks without noise.
    """
    parents = [*sets.values(), *(ref for ref in (classifier, autoencoder, backbone) if ref)]
    with (
        making(Judgement, "evaluation (INTERNAL)", context, parents=parents) as draft,
        where().ledger() as ledger,
    ):
        device = device_of(machine)
        known = draft.store.manifest(autoencoder)["parents"] if autoencoder else []
        found = looks.judged(
            access(ledger, private, terms, "evaluation", "judge", parents, context, code_version(evaluate.fn)),
            {name: looks.tensors(serialization.load_images(draft.open(ref)), how.images) for name, ref in sets.items()},
            classes=len(facts.classes),
            extractor=eyes(draft, classifier, machine),
            how=how,
            seed=seed,
            device=device,
            shown=pictures.MOST_COLUMNS,
            codec=serialization.load_codec(draft.open(autoencoder) if autoencoder else None, device, trained_on=known),
            backbone=serialization.load_backbone(draft.open(backbone), device) if backbone else None,
            progress=draft.show,
            briefly=briefly,
        )
        rows, draft.entries = found.rows, found.entries
        serialization.save(draft.folder, {}, {name: row.model_dump(mode="json") for name, row in rows.items()})
        pictures.draw_images(draft.folder / report.REAL_PICTURE, found.real, pictures.columns_of(found.real))
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
    """Write both reports and the record anew, the pictures with what other runs have found since."""
    place = where()
    folder = place.runs / record.run
    if record.curve:
        plots.draw_privacy(folder / report.PRIVACY, record)
    plots.draw_trade_off(folder / report.TRADE_OFF, record, records(place.runs))
    report.write_reports(folder, record)
    save_record(folder, record)


@contextlib.contextmanager
def telling(record: RunRecord) -> Iterator[None]:
    """Whatever MLflow answers, what is told of has happened: a run that is over or published stays so."""
    try:
        yield
    except Exception as error:
        CONSOLE.print(f"{record.run}: kept, but MLflow could not be told ({type(error).__name__})")


def show_run(record: RunRecord) -> None:
    """Show reports, pictures, tables and scores in MLflow, each in the experiment where it may be seen.

    What may be shown goes through the same gate as what is published, and is drawn anew.
    """
    place = where()
    folder, tracker = place.runs / record.run, place.tracker()
    with leaving(record) as (found, drawn):
        if isinstance(found, RunRecord) and found.label != Label.INTERNAL:
            certificate = found.certificate
            public = {"epsilon": certificate.epsilon, "delta": certificate.delta} if certificate else {}
            tracker.log(
                record.run,
                label=found.label,
                run=record.tracking[Label.DP],
                metrics={**public, "claim": found.claim.epsilon},
                files=there(drawn, report.REPORT, *report.PICTURES, report.TABLES),
                **facts_of(found),
            )
    told = facts_of(record)
    tracker.log(
        record.run,
        label=Label.INTERNAL,
        run=record.tracking[Label.INTERNAL],
        metrics={f"{name}/{key}": row[key] for name, row in record.metrics.items() for key in report.shown([row])},
        files=there(folder, *report.INTERNAL_FILES),
        **told | {"tags": {**told["tags"], "label": Label.INTERNAL, "samples": record.label}},
    )


def facts_of(record: RunRecord) -> dict[str, Any]:
    """Tags and inputs of a run in MLflow."""
    tags = {"label": record.label, "ledger_entries": ",".join(map(str, record.entries)), NOTE: report.statement(record)}
    public_data = [one for one in made_of(record) if one[0] == PublicImages.__name__]
    return {"tags": tags, "inputs": [*public_data, (record.settings["data"]["name"], "")]}


@contextlib.contextmanager
def leaving(record: RunRecord) -> Iterator[tuple[RunRecord | str, Path]]:
    """The record as the gate lets it out, and a folder with report, pictures and tables, gone at the end; else the refusal."""
    place = where()
    store = place.store()
    found: RunRecord | str
    with store.writing() as folder:
        try:
            with place.ledger() as ledger:
                found = gate.passed(store, ledger, record)
            gate.draw_public(folder, store, found)
            (folder / report.REPORT).write_text(shareable_report(found, folder), encoding="utf-8")
            write_tables(folder / report.TABLES, report.public_page(found))
        except (BadInput, Refused) as refusal:
            found = str(refusal)
        yield found, folder


def report_for_prefect(record: RunRecord, links: Mapping[str, str]) -> str:
    """The report that may leave, in Markdown; where nothing may, that alone, and why."""
    with leaving(record) as (found, folder):
        if isinstance(found, str):
            return f"# {record.run}\n\nNothing of this run may leave: {found}\n"
        return in_markdown(report.public_page(found), inside(folder), links)


def made_of(record: RunRecord) -> list[tuple[str, str]]:
    """Kind and address of everything that the samples of a run were made of."""
    return [(m["kind"], digest) for digest, m in where().store().ancestry(record.samples_artifact)]


def there(folder: Path, *names: str) -> list[Path]:
    """Those of these files and folders that there are."""
    return [folder / name for name in names if (folder / name).exists()]


def publish_run(
    record: RunRecord, to: Path | str, accept_claim: str = "", accept_copies: str = "", *, model: bool = True
) -> RunRecord:
    """Hand the samples of a run over to a folder or a URL, with the `model` where it may leave, and note it in the record and the reports.

    A reason to accept something is written into the ledger before anything leaves.
    """
    place = where()
    store, folder = place.store(), place.runs / record.run
    accepting = [kind for kind, reason in (("claim", accept_claim), ("copies", accept_copies)) if reason]
    with place.ledger() as ledger:
        found = gate.passed(store, ledger, record, accepting)
        to = destination(to)
        copied = not gate.copy_check(ledger.entries(), record).body["passed"]
        certify.accept(
            store, ledger, found, claim=accept_claim, copies=accept_copies, copied=copied, code_version=__version__
        )
        found = gate.passed(store, ledger, record)
        evidence = evidence_of(store, ledger, found)
    record = record.model_copy(update={"overrides": found.overrides})
    save_record(folder, record)
    record = record.model_copy(update={"published": str(publish(store, found, to, evidence, model=model))})
    write_up(record)
    with telling(record):
        show_run(record)
        register(record)
    return record


def register(record: RunRecord) -> None:
    """Put the denoiser that a certified run released into MLflow's registry, with the certificate as its tags.

    Nothing where the images have no certificate, or where each of them was paid for and no model may leave.
    """
    place = where()
    with place.ledger() as ledger:
        record = gate.passed(place.store(), ledger, record)
    certificate = record.certificate
    models = [digest for kind, digest in made_of(record) if kind == TunedModel.__name__]
    if certificate is None or certificate.images != ANY_NUMBER or not models:
        return
    (model,) = models
    manifest = place.store().manifest(model)
    if manifest["label"] != Label.DP:
        return
    told = {key: str(value) for key, value in certificate.model_dump(mode="json").items()}
    tags = {**told, "method": record.method, "run": record.run, "label": manifest["label"], "artifact": model}
    place.tracker().release(
        model_name(record),
        place.store().folder(model),
        run=record.tracking[Label.DP],
        tags=tags,
        note=certificate.sentence(),
    )


def model_name(record: RunRecord) -> str:
    """What the denoisers that a method released from a private set are called in MLflow's registry."""
    return f"{safe_name(record.settings['data']['name'])}-{record.method}"
