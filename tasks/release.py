"""Publishing the images of a run: through the gate, to a folder, a URL and MLflow's registry of models."""

from dataclasses import replace
from pathlib import Path

from artifacts import approval, certify, flavour, gate
from artifacts.card import Evidence, evidence_of
from artifacts.labels import Label
from artifacts.model import lacking, with_images
from artifacts.packaging import Packaging
from artifacts.publish import destination, publish, safe_name
from artifacts.record import RunRecord, private_of, save_record
from artifacts.store import Store
from sfumato import __version__
from sfumato.errors import BadInput, Refused
from sfumato.privacy.ledger.ledger import Ledger
from tasks.reporting import show_run, telling, write_up
from tasks.runtime.environment import now, where
from tasks.runtime.progress import progress

DAY = len("2026-01-31")
"""Length of the day in a time as ISO-8601."""


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
            approval.refuse_kin(released, ledger.entries())
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
