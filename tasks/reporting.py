"""The folder of a run, its two reports, and what MLflow and Prefect are shown of it."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from artifacts import gate, witness
from artifacts.books import books_of
from artifacts.labels import Label
from artifacts.publish import shareable_report
from artifacts.record import RunRecord, records, save_record
from artifacts.references import (
    PublicImages,
    Samples,
)
from artifacts.reports import plots, spending
from artifacts.reports import run as report
from artifacts.reports.page import in_markdown, inside, write_tables
from artifacts.tracking import NOTE
from sfumato.errors import BadInput, Refused
from tasks.runtime.environment import where
from tasks.runtime.progress import CONSOLE, progress


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
