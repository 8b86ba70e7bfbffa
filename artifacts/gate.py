"""The one gate before every way out: folder, URL, MLflow's shareable experiment and registry, the report in Prefect.

Every statement about samples comes from the ledger and from artifacts checked against their digests: label, data set, unit,
relation, delta, images covered, price, settings, plan, the verdicts of copy check and audits, and what a person accepted. The
record of a run is a file that anyone may edit: only the address of the samples, the name of the run and its MLflow runs are
taken from it.

Not covered: who may write to the ledger; public data, and artifacts made from it alone, which no ledger names.
"""

import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from artifacts import serialization
from artifacts.binding import named_by, unbound
from artifacts.books import books_of
from artifacts.certify import at_zero_of, certificate_of, curve_of, missing
from artifacts.labels import Label
from artifacts.record import Override, RunRecord
from artifacts.references import (
    ChosenModel,
    ClassCounts,
    ClassMoments,
    FeatureExtractor,
    NearestPublic,
    PublicAutoencoder,
    PublicModel,
    Samples,
    Trajectories,
)
from artifacts.reports import plots
from artifacts.reports import run as report
from artifacts.reports.rehearsal import REHEARSAL, picture, rehearsal_of
from artifacts.store import Damaged, Store
from sfumato.class_shares import class_shares
from sfumato.errors import SHOWN_DIGITS, BadInput, Refused
from sfumato.methods.plan import Plan
from sfumato.privacy.ledger.decisions import decisions_of
from sfumato.privacy.ledger.ledger import Entry, Ledger

HOW = "how.json"
"""Settings and plan of the run that drew the samples, among their files."""
CURVES = {"autoencoder": PublicAutoencoder, "public denoiser": PublicModel, "feature extractor": FeatureExtractor}
"""Public stages whose losses a report shows."""


def save_how(folder: Path, settings: dict[str, Any], plan: Plan, commit: str = "") -> None:
    """Store settings, plan and commit of the code beside the samples, so that the address of the artifact covers them."""
    how = {"settings": settings, "plan": plan.model_dump(mode="json"), "commit": commit}
    (folder / HOW).write_text(json.dumps(how, indent=1), encoding="utf-8")


def passed(store: Store, ledger: Ledger, record: RunRecord, accepting: Collection[str] = ()) -> RunRecord:
    """The record from ledger and store alone; `Refused` or `BadInput` where the samples must not leave.

    `accepting` are the kinds of acceptance (`Override`) that are about to be written.
    """
    known, samples = ledger.whole_entries(), record.samples_artifact
    settings, plan = _how(store, known, record)
    entries = ledger.entries_by_hash(store.entries(samples))
    _check_set(record, entries, settings["data"]["name"])
    rehearsed = rehearsal_of(store, samples, record.rehearsal_artifact)
    gone_on = went_on(known, settings["data"]["name"], record.rehearsal_artifact, runs_of(known, samples, entries))
    overrides = (*gone_on, *overrides_of(known, samples))
    accepted = {*accepting, *(one.kind for one in overrides)}
    label = store.label_of(samples)
    if label == Label.INTERNAL and "claim" not in accepted:
        raise Refused(
            f"the samples of run {record.run} are INTERNAL, because of {store.tainted_by(samples)}: they must not leave "
            f'({missing(store, ledger, samples)}), unless someone answers for the claim with --accept-claim "REASON"'
        )
    _check_audits(known, record, {entry.seq for entry in entries if entry.kind == "reserve"})
    copies = copy_check(known, record)
    if not copies.body["passed"] and "copies" not in accepted:
        raise Refused(
            f"images of run {record.run} repeat training records and no held-out one: look at {report.COPIES_PICTURE} in "
            'the folder of the run; --accept-copies "REASON" if chance explains them'
        )
    certificate = certificate_of(store, ledger, samples)
    total = ledger.total(settings["data"]["name"])
    return record.model_copy(
        update={
            "method": plan.method,
            "label": label,
            "settings": settings,
            "plan": plan,
            "certificate": certificate,
            "claim": plan.claim,
            "curve": curve_of(store, ledger, samples, certificate),
            "at_zero": at_zero_of(store, ledger, samples, certificate),
            "books": books_of(ledger, settings["data"]["name"], record.run, store.entries(samples)),
            "commit": commit_of(store, samples),
            "entries": [entry.seq for entry in entries],
            "overrides": overrides,
            "decisions": decisions_of(known, record.run, samples),
            "rehearsal": rehearsed,
            "spent_total": {name: getattr(total, name) for name in ("epsilon", "delta", "relation", "spends", "left")},
            "retrieval": _summary(store, samples, Trajectories),
            "rates": _summary(store, samples, ChosenModel),
            "latents": _summary(store, samples, PublicAutoencoder),
            "alignment": _summary(store, samples, ClassMoments),
            "class_shares": class_shares(plan.generation, plan.facts.classes, _counts(store, samples)),
            "judged": judged_of(store, samples),
            "nearest_artifact": _nearest(store, known, record),
            "stages": [],
            "metrics": {},
            "account": "",
        }
    )


def _nearest(store: Store, known: Sequence[Entry], record: RunRecord) -> str:
    """Address of the picture of these very samples beside public images, if the ledger names it; empty otherwise."""
    artifact = record.nearest_artifact
    try:
        manifest = store.manifest(artifact) if artifact else {}
    except Damaged:
        return ""
    of_these = manifest.get("kind") == NearestPublic.__name__ and record.samples_artifact in manifest["parents"]
    if (
        not of_these
        or unbound(store, known, artifact)
        or store.label_of(artifact) != store.label_of(record.samples_artifact)
    ):
        return ""
    return artifact


def copy_check(known: Sequence[Entry], record: RunRecord) -> Entry:
    """The last verdict on whether these samples repeat records; `Refused` where there is none."""
    verdicts = [one for one in named_by(known, "check", record.samples_artifact) if one.body["what"] == "copies"]
    if not verdicts:
        raise Refused(f"the ledger knows no copy check of the samples of run {record.run}: run again")
    return verdicts[-1]


def overrides_of(known: Sequence[Entry], samples: str) -> tuple[Override, ...]:
    """The overrides that a person accepted for these samples, in order."""
    return tuple(
        Override(
            kind=one.body.get("what") or ("copies" if one.body["claim"] is None else "claim"),
            reason=one.body["reason"],
            missing=one.body["missing"],
            entry=one.seq,
        )
        for one in named_by(known, "override", samples)
    )


def went_on(known: Sequence[Entry], dataset: str, rehearsal: str, runs: Collection[str] = ()) -> tuple[Override, ...]:
    """The last override of a failed rehearsal for this set: of the rehearsal at this address, or of any in one of the `runs`."""
    overrides = [one for one in known if one.kind == "override" and one.body.get("what") == "rehearsal"]
    mine = [one for one in overrides if one.body["artifact"] == rehearsal or one.body["run"] in runs]
    return tuple(
        Override(kind="rehearsal", reason=one.body["reason"], missing=one.body["missing"], entry=one.seq)
        for one in [one for one in mine if one.dataset == dataset][-1:]
    )


def runs_of(known: Sequence[Entry], samples: str, entries: Sequence[Entry]) -> set[str]:
    """The runs that drew samples or paid for their `entries`, from the ledger and not from a record."""
    return {one.body["run"] for one in (*entries, *named_by(known, "made", samples)) if "run" in one.body}


def draw_public(folder: Path, store: Store, record: RunRecord) -> None:
    """Write the pictures of the report that may leave into a folder: copied from checked artifacts, or drawn from them."""
    family = _family(store, record.samples_artifact)
    shutil.copyfile(store.folder(record.samples_artifact) / report.SAMPLES, folder / report.SAMPLES)
    if record.nearest_artifact:
        shutil.copyfile(store.folder(record.nearest_artifact) / report.NEAREST, folder / report.NEAREST)
    named = {title: family[kind.__name__] for title, kind in CURVES.items() if kind.__name__ in family}
    curves = {title: serialization.load_curve(store.folder(digest)) for title, digest in named.items()}
    plots.draw_curves(folder / report.CURVES, curves)
    if record.rehearsal:
        shutil.copyfile(picture(store, record.rehearsal_artifact), folder / REHEARSAL)
    if record.curve:
        plots.draw_privacy(folder / report.PRIVACY, record)


def commit_of(store: Store, samples: str) -> str:
    """The commit of the code that drew the samples; empty where it was not known."""
    return str(_stored_how(store, samples).get("commit", ""))


def _stored_how(store: Store, samples: str) -> dict[str, Any]:
    how: dict[str, Any] = json.loads((store.folder(samples) / HOW).read_text(encoding="utf-8"))
    return how


def _how(store: Store, known: Sequence[Entry], record: RunRecord) -> tuple[dict[str, Any], Plan]:
    """Settings and plan under which the samples were drawn, after a check that the ledger names the samples."""
    samples = record.samples_artifact
    if store.manifest(samples)["kind"] != Samples.__name__:
        raise BadInput(f"run {record.run} names {samples[:SHOWN_DIGITS]} as its samples, which are none: run again")
    if why := unbound(store, known, samples):
        raise BadInput(f"the samples of run {record.run} cannot be published, since {why}: run again")
    if not store.entries(samples):
        raise BadInput(
            f"the samples of run {record.run} rest on no ledger entry, which those of every run do: run again"
        )
    try:
        how = _stored_how(store, samples)
        return how["settings"], Plan.model_validate(how["plan"])
    except (OSError, ValueError, KeyError):
        raise BadInput(f"the samples of run {record.run} do not say how they were made: run again") from None


def _check_set(record: RunRecord, entries: Sequence[Entry], name: str) -> None:
    """`Refused` unless the samples stand on entries of one private set, the one in the record."""
    if strange := [entry for entry in entries if entry.dataset != name]:
        raise BadInput(
            f"the samples of run {record.run} stand on ledger entry {strange[0].seq} of '{strange[0].dataset}', not of "
            f"'{name}': run again"
        )


def _check_audits(known: Sequence[Entry], record: RunRecord, spends: set[int]) -> None:
    """`Refused` where the last audit of these samples, or of any that stand on one of the same spends, refutes."""
    last = {one.body["artifact"]: one for one in known if one.kind == "check" and one.body["what"] == "audit"}
    for one in last.values():
        if not one.body["passed"] and (
            one.body["artifact"] == record.samples_artifact or spends & set(one.body["spends"])
        ):
            raise Refused(
                f"the audit of run {one.body['run']} refutes its promise (ledger entry {one.seq}); nothing made of the same "
                "spends may leave. Find the fault, or audit it again"
            )


def judged_of(store: Store, samples: str) -> dict[str, float]:
    """The paid judge's agreement on the images from which samples were labelled or chosen, and how many of these have other classes than they were
    drawn for; empty without a judge."""
    summary = store.manifest(samples)["summary"]
    return {name: summary[name] for name in JUDGED if name in summary} if "agreed" in summary else {}


JUDGED = ("drawn", "agreed", "relabelled")
"""Numbers of images before a judge, share that it agrees with, share of the result that has another class than it was drawn for."""


def _family(store: Store, samples: str) -> dict[str, str]:
    """Kind -> address of the samples' ancestors, the nearest of each kind."""
    nearest: dict[str, str] = {}
    for digest, manifest in store.ancestry(samples):
        nearest.setdefault(manifest["kind"], digest)
    return nearest


def _summary(store: Store, samples: str, kind: type) -> dict[str, float]:
    digest = _family(store, samples).get(kind.__name__)
    return store.manifest(digest)["summary"] if digest else {}


def _counts(store: Store, samples: str) -> Any:
    digest = _family(store, samples).get(ClassCounts.__name__)
    return serialization.load(store.folder(digest))[0]["counts"] if digest else None
