"""The command `sfumato`: everything a person can do from a terminal.

Mistakes end with one line and exit code 2, refusals of the ledger or of a label with exit code 3.
"""

import logging
import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from artifacts.publish import destination
from artifacts.record import RunRecord, load_record, run_folder
from artifacts.reports.audit import AUDIT_PICTURE, AUDIT_REPORT, verdict
from artifacts.reports.run import INTERNAL_REPORT, REPORT, SCORES, checks, statement
from artifacts.store import Store
from flows.cli import check, compare, ledger, serve
from sfumato.errors import BadInput, Refused, Stopped, Unnamed
from sfumato.methods import METHODS, PAPERS
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.ledger.chain import is_there
from sfumato.privacy.ledger.chain import migrate as ledger_migrate
from sfumato.settings import AUTO_PRESET, DEFAULT_METHOD, DEFAULT_PRESET, known, preset_for, presets, resolve
from tasks.checks import agreed_delta, known_constants
from tasks.runtime.artifact import device_of
from tasks.runtime.distributed import together
from tasks.runtime.environment import Where, configure, now, where
from tasks.runtime.internal import pointed

CANARIES = 200
"""Canaries of an audit; at the delta of a few thousand records more do not sharpen the bound."""

app = typer.Typer(
    help="Private images in, synthetic images with a differential-privacy statement out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(ledger.app, name="ledger")
app.command()(check.check)
app.command()(compare.compare)
app.command()(compare.sweep)
app.command()(serve.serve)
app.command()(serve.status)
STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""
OUT, ERR = Console(), Console(stderr=True)

PRESETS = f"Named settings to start from: {', '.join(presets())}. Default: {DEFAULT_PRESET} for the embedded digits, {AUTO_PRESET} for all other data."
MethodName = Annotated[str, typer.Argument(help=f"One of: {', '.join(METHODS)}.")]
PresetName = Annotated[str, typer.Option("--preset", help=PRESETS)]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        help="Change a setting, or several. Example: generation.images=500 seed=1",
    ),
]
Epsilon = Annotated[float | None, typer.Option(help="Target epsilon; short for --set privacy.epsilon=E.")]
RunName = Annotated[str, typer.Argument(help="Name of a run, or 'latest'.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def run(
    method: MethodName = DEFAULT_METHOD,
    preset: PresetName = "",
    epsilon: Epsilon = None,
    changes: Changes = None,
    publish: Annotated[bool, typer.Option("--publish", help="Publish the result into the folder of the run.")] = False,
    publish_to: Annotated[
        str, typer.Option("--publish-to", metavar="DIR", help="Publish the result there, a folder or a URL.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Stop after printing the plan.")] = False,
    new_version: Annotated[
        bool,
        typer.Option(
            "--new-version", help="The private images changed since the last run: begin a new version of the set."
        ),
    ] = False,
    go_on: compare.GoOn = False,
) -> None:
    """Run a method from private images to a synthetic set with its report.

    Example with your own images: sfumato run rapid --set data.private=scans/ --set data.public=textures/
    """
    place = configure()
    _planned(place, method, preset, epsilon, changes)
    if dry_run:
        return
    place.store()
    place.ledger().close()
    if publish_to:
        destination(publish_to)
    from flows.synthesize import RUN_FOLDER, synthesize
    from tasks.server.embedded import start_server

    if new_version:
        _warn(
            "a new version is counted afresh only where its records are not those of the versions before: a record in both has "
            "been paid for in both, and their budget binds them together (sfumato ledger show says which count together)"
        )
    given = [*(changes or []), *([f"privacy.epsilon={epsilon}"] if epsilon is not None else [])]
    start_server()
    record = synthesize(
        method=method,
        preset=preset_for(preset, given),
        changes=given,
        publish_to=publish_to or (RUN_FOLDER if publish else ""),
        new_version=new_version,
        go_on=go_on,
    )
    _summary(record)


@app.command()
def plan(
    method: MethodName = DEFAULT_METHOD,
    preset: PresetName = "",
    epsilon: Epsilon = None,
    changes: Changes = None,
) -> None:
    """Show what a run would train, the noise it needs and the certificate it would earn; opens no private image."""
    _planned(configure(), method, preset, epsilon, changes)


@app.command()
def rehearse(
    method: MethodName = DEFAULT_METHOD,
    preset: PresetName = "",
    changes: Changes = None,
) -> None:
    """Make the public half of a run and show what it can do, before anything is paid: one picture, three numbers.

    Opens no private image and writes nothing into the ledger. The run with the same settings finds all of it again.
    """
    place = configure()
    preflight(resolve(method, preset, changes or []), str(place.data), known_constants, agreed_delta)
    place.store()
    from flows.rehearse import rehearse as rehearsal
    from tasks.server.embedded import start_server

    start_server()
    rehearsal(method=method, preset=preset, changes=changes or [])


@app.command()
def show(run: RunName = "latest", as_json: Json = False) -> None:
    """Show a run: what it cost, how it scored, where its results lie."""
    place = configure()
    record = load_record(place.runs, run)
    if as_json:
        print(record.model_dump_json(indent=1))
    else:
        _summary(record)


@app.command()
def report(run: RunName = "latest") -> None:
    """Print where the report of a run lies, one HTML file, and that of its INTERNAL sibling; written anew, costs nothing."""
    place = configure()
    from tasks.release import write_up

    record = load_record(place.runs, run)
    write_up(record)
    folder = run_folder(record)
    for name, text in {"report": folder / REPORT, "INTERNAL report": folder / INTERNAL_REPORT}.items():
        OUT.print(f"{name:<16} {text}", soft_wrap=True, highlight=False, markup=False)


@app.command()
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
) -> None:
    """Hand a run's images over: image folder, labels, sample picture, data card. Refuses what is INTERNAL."""
    place = configure()
    from tasks.release import publish_run

    record = publish_run(load_record(place.runs, run), to, accept_claim, accept_copies)
    OUT.print(f"published to {record.published}", soft_wrap=True, markup=False)


@app.command()
def audit(
    run: RunName = "latest",
    canaries: Annotated[int, typer.Option(help="How many made-up images to guess by.")] = CANARIES,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="machine.FIELD=VALUE", help="Change the machine; repeatable.")
    ] = None,
) -> None:
    """Try to break a finished run: canaries, membership attacks, copies. INTERNAL; costs nothing, takes one training."""
    configure()
    from flows.audit import audit_run
    from tasks.server.embedded import start_server

    start_server()
    record = audit_run(run, canaries, changes)
    found, folder = record.audit, run_folder(record)
    assert found  # which the audit has just put there
    for line in (verdict(found), f"report   {folder / AUDIT_REPORT}", f"picture  {folder / AUDIT_PICTURE}"):
        OUT.print(line, soft_wrap=True, highlight=False, markup=False)
    if found.refuted:
        raise Refused(f"run {record.run} must not be published: the audit refutes its promise")


@app.command()
def explain(method: Annotated[str, typer.Argument(help=f"One of: {', '.join(PAPERS)}.")]) -> None:
    """Say what a method's paper claims, what can be certified, and why the two differ."""
    known("method", method, PAPERS)
    OUT.print(Markdown(f"# {method}\n\n{PAPERS[method].PROMISE}"))


@app.command()
def migrate() -> None:
    """Bring a home of an earlier format to this one: every entry of its ledger stays as it is, and counts.

    What was made before can be shown. A run makes it again, and pays for it again, where it asks for it.
    """
    place = configure()
    if Store.migrate(place.home / "store", place.shared_store):
        OUT.print("the store: what is in it can be shown; a run makes its stages again, and pays for the private ones")
    entry = ledger_migrate(place.ledger_url, now, place.keys)
    if entry is None:
        OUT.print("the ledger is of this format already")
    else:
        OUT.print(
            f"the ledger keeps its {entry.seq - 1} entries as they were; heads are signed from entry {entry.seq} on"
        )


def _planned(place: Where, method: str, preset: str, epsilon: float | None, changes: list[str] | None) -> None:
    given = [*(changes or []), *([f"privacy.epsilon={epsilon}"] if epsilon is not None else [])]
    settings, facts, warnings = preflight(
        resolve(method, preset, given), str(place.data), known_constants, agreed_delta
    )
    made = plan_for(settings, facts)
    device_of(settings.machine)
    from flows.cli.screen import budget_line, plan_lines

    for warning in warnings:
        _warn(warning)
    for part in plan_lines(settings, made):
        OUT.print(part)
    terms = made.privacy
    if not is_there(place.ledger_url):
        return
    with place.ledger() as ledger:
        OUT.print(f"budget: {budget_line(ledger, settings.data.name)}", markup=False, soft_wrap=True, highlight=False)
        try:
            ledger.check_budget(settings.data.name, [spend.event for spend in made.spends], terms.relation, terms.delta)
        except Refused as refusal:
            _warn(f"{refusal}. What was paid for before may still be used")


def _warn(text: str) -> None:
    ERR.print(f"[yellow]warning:[/] {escape(text)}", soft_wrap=True)


def _summary(record: RunRecord) -> None:
    scores = Table(title="Scores against private images: INTERNAL", title_justify="left")
    scores.add_column("images")
    for title in SCORES.values():
        scores.add_column(title, justify="right")
    for name, row in record.metrics.items():
        scores.add_row(escape(name), *("-" if row.get(key) is None else f"{row[key]:.3g}" for key in SCORES))
    OUT.print(scores)
    OUT.print(
        Panel(
            f"[bold]{escape(statement(record))}[/]\n\nclaim of the paper, for comparison: epsilon {record.claim.epsilon:.3f}",
            title=escape(record.run),
        )
    )
    cached = sum(stage.cached for stage in record.stages)
    total = record.spent_total
    spent = math.inf if total["epsilon"] is None else total["epsilon"]  # JSON has no infinity
    OUT.print(
        f"{len(record.stages)} stages, {cached} from the cache, {record.seconds:.0f} s; "
        f"'{record.settings['data']['name']}' has cost epsilon {spent:.3f} (delta {total['delta']:.3g}) in all.",
        markup=False,
    )
    OUT.print(f"INTERNAL: {checks(record)}", soft_wrap=True, markup=False, highlight=False)
    lines = {
        "report": record.report,
        "INTERNAL report": record.internal_report,
        "picture": record.samples,
        "published": record.published or f"not yet: sfumato publish {record.run} --to DIR",
        "open both UIs": "make serve (or sfumato serve)",
    }
    for name, text in lines.items():
        OUT.print(f"{name:<16} {text}", soft_wrap=True, highlight=False, markup=False)


def quiet_logs() -> None:
    """Warnings of libraries in the terminal, and nothing of Prefect, whose log is in its UI.

    Opacus gives the root logger a handler of its own when it is imported, through which Prefect's lines would come, unless
    there is one already.
    """
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not record.name.startswith("prefect"))
    logging.basicConfig(handlers=[handler])


CHANGE = re.compile(r"[a-z_]+(\.[a-z_]+)*=.*", re.DOTALL)
"""What a change of a setting looks like."""


def each_with_set(arguments: Sequence[str]) -> list[str]:
    """`--set A=1 B=2` as `--set A=1 --set B=2`: an option takes one value, and a person may well mean the others too."""
    found: list[str] = []
    changing = False
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if changing and CHANGE.fullmatch(argument):
            found.append("--set")
        else:
            changing = before == "--set" or argument.startswith("--set=")
        found.append(argument)
    return found


def main() -> None:
    """Run the command; one line and the right exit code for whatever a person may get wrong."""
    quiet_logs()
    try:
        together(lambda: app(args=each_with_set(sys.argv[1:]), standalone_mode=False), _help_with)
    except (BadInput, Refused, Stopped) as ended:
        error = pointed(ended, where().home) if isinstance(ended, Unnamed) else ended
        ERR.print(f"[bold red]sfumato:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _stopped()
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except Exception as error:
        if hasattr(error, "format_message"):
            if message := error.format_message():  # empty where help was shown instead
                ERR.print(
                    f"[bold red]sfumato:[/] {escape(message)} (see sfumato --help)", soft_wrap=True, highlight=False
                )
            sys.exit(2)
        causes = list(_causes(error))
        # Ctrl-C reaches the embedded server too, whose silence then hides the cause.
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            _stopped()
        told = next((text for cause in causes for sign, text in DISK.items() if sign in str(cause)), None)
        if told is None and any(_of_prefect(cause) for cause in causes):
            told = _no_server()
        if told is None:
            raise
        ERR.print(
            f"[bold red]sfumato:[/] {told} ({escape(str(where().home))}): {GO_ON}", soft_wrap=True, highlight=False
        )
        sys.exit(BadInput.exit_code)


def _help_with(job: str) -> None:
    from tasks.private import fine_tune_beside

    configure()
    fine_tune_beside(job)


DISK = {
    "No space left on device": "no space left on the disk; free some",
    "disk is full": "no space left on the disk; free some",
    "Disk quota exceeded": "the disk quota is used up; free some space",
    "Read-only file system": "the disk is read-only; make it writable, or set SFUMATO_HOME to another place",
    "readonly database": "the disk is read-only; make it writable, or set SFUMATO_HOME to another place",
}
"""What a disk says through the libraries that write to it, each in errors of its own, and what a person needs to know."""
GO_ON = "what was finished is kept, nothing is half-written, and the same command goes on from there"


def _of_prefect(error: BaseException) -> bool:
    """Whether this is how Prefect says that its server does not answer."""
    return type(error).__module__.startswith("httpx") or "Failed to reach API at" in str(error)


def _no_server() -> str:
    from prefect.settings import PREFECT_API_URL

    at = f" at {PREFECT_API_URL.value()}" if PREFECT_API_URL.value() else ""
    return f"the Prefect server{at} does not answer; should it have ended, start it again (`sfumato serve`)"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and all that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _stopped() -> None:
    ERR.print(
        "[bold red]sfumato:[/] stopped. Finished stages are kept; what was reserved and not committed stands in full in the ledger. "
        "The same command goes on from there.",
        soft_wrap=True,
    )
    sys.exit(STOPPED)
