"""`sfumato show`, `report` and `publish`: what a run gave, and handing it over."""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table

from flows.cli.options import OUT, Json, RunName, SignCert, SignKey, warn
from tasks.runtime.environment import configure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from artifacts.record import RunRecord
    from sfumato.config import Release


def show(run: RunName = "latest", as_json: Json = False) -> None:
    """Show a run: what it cost, where its results lie, and what is INTERNAL, how it scored, under a heading that says so."""
    from artifacts.record import load_record, record_json

    place = configure()
    record = load_record(place.runs, run)
    if as_json:
        print(json.dumps(record_json(record), indent=1))
    else:
        summary(record)


def report(run: RunName = "latest") -> None:
    """Print where the report of a run lies, one HTML file, and that of its INTERNAL sibling; written anew, costs nothing."""
    from artifacts.record import load_record, run_folder
    from artifacts.reports.run import INTERNAL_REPORT, REPORT

    place = configure()
    from tasks.reporting import write_up

    record = load_record(place.runs, run)
    write_up(record)
    folder = run_folder(record)
    _places({"report": str(folder / REPORT), "INTERNAL report": str(folder / INTERNAL_REPORT)})


def publish(
    run: RunName = "latest",
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="A new or empty folder, or a URL such as s3://bucket/folder.")
    ] = "published",
    accept_claim: Annotated[
        str,
        typer.Option(
            metavar="REASON", help="Answer for INTERNAL images on the paper's claim; goes into ledger and card."
        ),
    ] = "",
    accept_copies: Annotated[
        str,
        typer.Option(metavar="REASON", help="Say why images that repeat training records may leave; goes there too."),
    ] = "",
    model: Annotated[
        bool,
        typer.Option(
            help="With the model where the certificate covers any number of images; it may hold public images."
        ),
    ] = True,
    licence: Annotated[
        str,
        typer.Option(
            metavar="SPDX",
            help="Licence of the images, such as CC-BY-4.0; else release.licence of the run, or you are asked.",
        ),
    ] = "",
    public_licence: Annotated[
        str,
        typer.Option(
            "--public-licence",
            metavar="SPDX",
            help="Licence of the public images that the model of some methods holds; else release.public_licence of the run, or you are asked.",
        ),
    ] = "",
    form: Annotated[
        str,
        typer.Option(help="folder (class folders of PNG files), parquet or webdataset; else release.form of the run."),
    ] = "",
    sign_cert: SignCert = "",
    sign_key: SignKey = "",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="release.FIELD=VALUE", help="Who publishes and why: curator, purpose, contact; repeatable."
        ),
    ] = None,
) -> None:
    """Hand a run's images over: a data set with its data card, certificate and model. Refuses what is INTERNAL."""
    from artifacts.record import load_record, private_of

    place = configure()
    # Before what takes seconds to load, so that a slip is told at once.
    record = load_record(place.runs, run)
    from sfumato.settings import release_from, release_of

    own = release_from(changes or [])
    from artifacts.upload import is_url
    from sfumato.image_folder import free_folder

    if not is_url(to):
        free_folder(Path(to), beside=private_of(record))
    from artifacts.packaging import Packaging
    from artifacts.reports.in_short import POOR, doubts
    from tasks.release import publish_run

    licences = [licence, own.licence, release_of(record.settings).licence]
    licences += [one.licence for one in record.decisions]
    if not any(licences) and sys.stdin.isatty():
        licence = typer.prompt(
            "Licence of the images, as SPDX calls it (CC-BY-4.0, CC0-1.0, LicenseRef-NAME for your own terms)"
        )
    options = {"licence": licence, "public_licence": public_licence, "form": form}
    terms = terms_from(changes, options)
    if model and sys.stdin.isatty() and (parts := unlicensed(record, terms)):
        options["public_licence"] = typer.prompt(
            f"The model holds public images ({parts}). Their licence, as SPDX calls it (empty: they stay here, and it cannot draw)",
            default="",
            show_default=False,
        )
        terms = terms_from(changes, options)
    packaging = Packaging(terms, place.image_signer(sign_cert, sign_key), model)
    record = publish_run(record, to, accept_claim, accept_copies, packaging=packaging)
    if doubtful := doubts(record):
        warn(f"{doubtful}. {POOR}")
    if model and (parts := unlicensed(record, terms)):
        warn(
            f"the model left without its {parts}, and cannot draw: nobody named the licence of the public images in it (--public-licence)"
        )
    OUT.print(f"published to {record.published}", soft_wrap=True, markup=False)


def terms_from(changes: "Sequence[str] | None", options: "Mapping[str, str]") -> "Release":
    """The terms that a person gives by settings, and by the `options` that are short for some, by their names."""
    from sfumato.settings import release_from

    short = [f"release.{name}={json.dumps(value)}" for name, value in options.items() if value]
    return release_from([*(changes or []), *short])


def unlicensed(record: "RunRecord", own: "Release") -> str:
    """The parts of a run's model that hold public images, with commas between; empty where there are none, or their licence is named."""
    from artifacts.model import with_images
    from artifacts.packaging import terms_of

    named = terms_of(record, own).public_licence
    return "" if named else ", ".join(with_images(configure().store(), record))


def summary(record: "RunRecord") -> None:
    """A run at a glance: what may be shown, and below a heading what may not."""
    from artifacts.reports.in_short import POOR, SCORES, checks, doubts, in_gigabytes, statement
    from artifacts.reports.odds import rounded_up

    OUT.print(
        Panel(
            f"[bold]{escape(statement(record))}[/]\n\nclaim of the paper, for comparison: epsilon {record.claim.epsilon:.3f}",
            title=escape(record.run),
        )
    )
    total = record.spent_total
    spent = math.inf if total["epsilon"] is None else total["epsilon"]  # JSON has no infinity
    OUT.print(
        f"'{record.settings['data']['name']}' has cost epsilon {rounded_up(spent)} (delta {total['delta']:.3g}) in all.",
        markup=False,
    )
    _places(
        {
            "report": record.report,
            "picture": record.samples,
            "published": record.published or f"not yet: sfumato publish {record.run} --to DIR",
            "open both UIs": "make serve (or sfumato serve)",
        }
    )
    if doubtful := doubts(record):
        OUT.print(f"[bold yellow]{escape(doubtful).capitalize()}.[/] {POOR}", soft_wrap=True, highlight=False)
    OUT.print(Rule(INTERNAL_HEADING, align="left"))
    scores = Table(title="Scores against private images", title_justify="left")
    scores.add_column("images")
    for title in SCORES.values():
        scores.add_column(title, justify="right")
    for name, row in record.metrics.items():
        scores.add_row(escape(name), *("-" if row.get(key) is None else f"{row[key]:.3g}" for key in SCORES))
    OUT.print(scores)
    if missing := sorted(
        {f"{key}: {why}" for row in record.metrics.values() for key, why in row.get("missing", {}).items()}
    ):
        OUT.print(f"not measured: {'; '.join(missing)}", soft_wrap=True, markup=False, highlight=False)
    cached = sum(stage.cached for stage in record.stages)
    memory = in_gigabytes(*record.memory)
    needed = f", {memory} GB of memory" if memory else ""
    OUT.print(f"{len(record.stages)} stages, {cached} from the cache, {record.seconds:.0f} s{needed}", markup=False)
    OUT.print(checks(record), soft_wrap=True, markup=False, highlight=False)
    _places({"INTERNAL report": record.internal_report})


INTERNAL_HEADING = "INTERNAL: what follows must not leave"


def _places(lines: "Mapping[str, str]") -> None:
    for name, text in lines.items():
        OUT.print(f"{name:<16} {text}", soft_wrap=True, highlight=False, markup=False)
