"""The end of a run: the ledger entries of the samples, their cost, and the record."""

import shutil

from artifacts import serialization
from artifacts.books import books_of
from artifacts.certify import at_zero_of, certificate_of, curve_of, numbers_of
from artifacts.gate import commit_of, judged_of, runs_of, went_on
from artifacts.labels import Label
from artifacts.record import RunRecord
from artifacts.references import (
    ClassCounts,
    ClassMoments,
    Copies,
    Judgement,
    NearestPublic,
    Rehearsal,
    Samples,
    TunedModel,
)
from artifacts.reports import run as report
from artifacts.reports.rehearsal import findings_of
from artifacts.tracking import page_of
from sfumato.class_shares import class_shares
from sfumato.config import Alignment, Central, Matching, Section
from sfumato.evaluation.attack_results import CopyCheck
from sfumato.methods import METHODS
from sfumato.methods.plan import STAGE_RATES
from sfumato.settings import Settings
from tasks.inputs import PublicParts
from tasks.planning import PlannedRun
from tasks.reporting import finish
from tasks.runtime.environment import account, mlflow_pages, where
from tasks.runtime.run import Journal

BASELINE_METHOD = "dp-sgd"
"""The method that every run is compared with."""


def baseline_settings(settings: Settings) -> Settings | None:
    """The same settings with plain DP-SGD as the method; None where there is no baseline."""
    if not settings.evaluation.baseline or settings.method.name == BASELINE_METHOD:
        return None
    tuning = settings.fine_tuning.model_copy(update={"averages": (), "rates": ()})
    own = {"method": METHODS[BASELINE_METHOD].section(), "fine_tuning": tuning}
    return settings.model_copy(update={**own, "alignment": Alignment(), "central": Central(), "matching": Matching()})


class Finished(Section):
    """References to what a run made, as its record tells of them."""

    public: PublicParts
    samples: Samples
    scores: Judgement
    copies: Copies
    nearest: NearestPublic
    counts: ClassCounts | None = None
    moments: ClassMoments | None = None
    tuned: TunedModel | None = None
    rehearsal: Rehearsal | None = None


def conclude(run: PlannedRun, journal: Journal, made: Finished) -> RunRecord:
    """Price the samples from the ledger's own entries, and write record and reports."""
    settings, plan, parts, samples = run.settings, run.plan, made.public, made.samples
    counts, moments, rehearsed = made.counts, made.moments, made.rehearsal
    place = where()
    store = place.store()
    with place.ledger() as ledger:
        certificate = certificate_of(store, ledger, samples)
        curve, entries = curve_of(store, ledger, samples, certificate), numbers_of(store, ledger, samples)
        at_zero = at_zero_of(store, ledger, samples, certificate)
        books = books_of(ledger, journal.private.name, journal.context.run, store.entries(samples))
        total = ledger.total(journal.private.name)
        known = ledger.entries()
        runs = runs_of(known, samples.digest, ledger.entries_by_hash(store.entries(samples)))
        gone_on = went_on(known, journal.private.name, rehearsed.digest if rehearsed else "", runs)
    folder = place.runs / journal.context.run
    trained = {"autoencoder": parts.autoencoder, "public denoiser": parts.model, "feature extractor": parts.extractor}
    record = RunRecord(
        run=journal.context.run,
        method=plan.method,
        preset=run.preset,
        label=samples.label,
        settings=settings.what(),
        plan=plan,
        certificate=certificate,
        claim=plan.claim,
        curve=curve,
        at_zero=at_zero,
        books=books,
        commit=commit_of(store, samples.digest),
        entries=entries,
        spent_total={
            "epsilon": total.epsilon,
            "delta": total.delta,
            "relation": total.relation,
            "spends": total.spends,
            "left": total.left,
        },
        metrics=serialization.load(store.folder(made.scores))[1],
        retrieval=store.manifest(parts.base)["summary"] if parts.base else {},
        latents=store.manifest(parts.autoencoder)["summary"] if parts.autoencoder else {},
        alignment=store.manifest(moments)["summary"] if moments else {},
        rates=store.manifest(made.tuned)["summary"] if made.tuned and plan.events(STAGE_RATES) else {},
        stages=journal.stages,
        samples_artifact=samples.digest,
        nearest_artifact=made.nearest.digest,
        report=str(folder / report.REPORT),
        internal_report=str(folder / report.INTERNAL_REPORT),
        samples=str(folder / report.SAMPLES),
        published="",
        tracking=journal.context.parents,
        class_shares=class_shares(
            settings.generation,
            plan.facts.classes,
            serialization.load(store.folder(counts))[0]["counts"] if counts else None,
        ),
        judged=judged_of(store, samples.digest),
        overrides=gone_on,
        rehearsal=findings_of(store, rehearsed.digest) if rehearsed else None,
        rehearsal_artifact=rehearsed.digest if rehearsed else "",
        account=account(),
        copies=CopyCheck.model_validate(serialization.load(store.folder(made.copies))[1]),
    )
    shutil.copyfile(store.folder(made.scores) / report.REAL_PICTURE, folder / report.REAL_PICTURE)
    shutil.copyfile(store.folder(made.copies) / report.COPIES_PICTURE, folder / report.COPIES_PICTURE)
    curves = {title: serialization.load_curve(store.folder(ref)) for title, ref in trained.items() if ref}
    return finish(record, samples, curves)


def pages_of(record: RunRecord) -> dict[str, str]:
    """Addresses of the run on MLflow's pages, where they are shown: what may be shown, and what is INTERNAL."""
    if not (pages := mlflow_pages(where())):
        return {}
    labels = {"MLflow: what may be shown": Label.PUBLIC, "MLflow: scores (INTERNAL)": Label.INTERNAL}
    addresses = {title: page_of(pages, record.tracking[label]) for title, label in labels.items()}
    return {title: address for title, address in addresses.items() if address}
