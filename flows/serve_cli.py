"""The commands `sfumato serve` and `sfumato status`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.where import configure

OUT = Console()
STYLES = {"runs": "green", "waits": "yellow", "next": "cyan", "failed": "red", "done": ""}
NO_SERVER = "server down: nothing scheduled will run, start it with `sfumato serve`"


def serve(
    port: Annotated[
        int, typer.Option(min=1, max=65534, help="Port of the Prefect UI; MLflow takes the next one.")
    ] = 4200,
    worker: Annotated[bool, typer.Option(help="Deploy prefect.yaml and carry out its runs.")] = True,
) -> None:
    """Start Prefect (runs, schedules, progress), its worker and MLflow (artifacts, scores) on this machine. Ctrl-C closes all.

    What a dead worker left behind is repaired first.
    """
    place = configure()
    from tasks import serving

    serving.serve(place, port, OUT, worker)


def status() -> None:
    """Show what runs, waits, comes next, failed and why, and what is left of each budget."""
    place = configure()
    from tasks.status import budgets, running_server, states

    api = running_server(place)
    OUT.print(f"server   {api}" if api else f"[red]{NO_SERVER}[/]", highlight=False, soft_wrap=True)
    shown = Table(box=None, pad_edge=False)
    for column in ("", "run", "when (UTC)", ""):
        shown.add_column(column, no_wrap=column != "")
    for one in states(place, api):
        shown.add_row(f"[{STYLES[one.kind]}]{one.kind}[/]" if STYLES[one.kind] else one.kind, *map(escape, one.cells))
    OUT.print(shown if shown.row_count else "no run yet", highlight=False)
    for line in budgets(place):
        OUT.print(line, markup=False, highlight=False, soft_wrap=True)
