"""The commands `sfumato serve` and `sfumato status`."""

import json
from typing import Annotated

import typer
from rich.markup import escape

from flows.cli.options import OUT, Json
from sfumato.errors import BadInput
from tasks.runtime.environment import CHECKOUT, configure, running_server

STYLES = {
    "ended": "bold",
    "runs": "green",
    "waits": "yellow",
    "next": "cyan",
    "failed": "red",
    "budget": "bold",
    "server": "bold",
    "worker": "red",
}
NO_SERVER = "down: nothing that is scheduled runs; start it with `sfumato serve`"


def serve(
    port: Annotated[
        int, typer.Option(min=1, max=65534, help="Port of the Prefect UI; MLflow takes the next one.")
    ] = 4200,
    worker: Annotated[bool, typer.Option(help="Deploy prefect.yaml and carry out its runs.")] = True,
    servers: Annotated[
        bool,
        typer.Option(
            help="Start Prefect and MLflow here; without them the worker joins the server at PREFECT_API_URL."
        ),
    ] = True,
) -> None:
    """Start Prefect (runs, schedules, progress), its worker and MLflow (artifacts, scores) on this machine. Ctrl-C closes all.

    What a dead worker left behind is repaired first.
    """
    if not servers and not worker:
        raise BadInput("--no-servers and --no-worker together leave nothing to start: leave one of them out")
    place = configure()
    if worker:
        from tasks.server.parameters import check_parameters

        check_parameters(CHECKOUT / "prefect.yaml")  # before what takes seconds to import
    from tasks.server import serve as server

    if servers:
        server.serve(place, port, OUT, worker)
    else:
        from prefect.settings import PREFECT_API_URL

        server.join(place, PREFECT_API_URL.value() or "", OUT)


def status(
    as_json: Json = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Exit with 1 where the server is down or the last run of a deployment failed, for monitoring.",
        ),
    ] = False,
) -> None:
    """Show how each deployment ended last, what runs, waits, comes next, failed and why, and what is left of each budget."""
    place = configure()
    from tasks.prices import cached_prices
    from tasks.server.freezing import left_frozen
    from tasks.server.status import budget_amounts, budgets, last_runs, lines

    def say(kind: str, text: str) -> None:
        OUT.print(f"{_styled(kind)}{escape(text)}", highlight=False, soft_wrap=True)

    api = running_server(place)
    last, running = last_runs(api) if api else [], list(lines(place, api))
    if as_json:
        with cached_prices(place):
            amounts = budget_amounts(place)
        queued = [{"name": one.name, "about": one.about} for one in running if one.kind == "waits"]
        entry = {"server": api or None, "deployments": [one._asdict() for one in last], "queued": queued}
        print(json.dumps({**entry, "budgets": amounts}, indent=1, allow_nan=False))
    else:
        say("server", api or NO_SERVER)
        if number := left_frozen(place):
            say(
                "worker", f"process {number} is left of a `sfumato serve` that was killed, frozen: the next one ends it"
            )
        over = [one for one in last if one.outcome]
        width = max((len(one.deployment) for one in over), default=0)
        for one in over:
            ended = f"{one.time[:16].replace('T', ' ')} {one.outcome}"
            say("ended", f"{one.deployment:<{width}}  {': '.join(filter(None, (ended, one.message)))}")
        width = max((len(one.name) for one in running), default=0)
        for line in running:
            say(line.kind, f"{line.name:<{width}}  {line.about}")
        if not running:
            say("runs", "none yet")
        with cached_prices(place):
            for budget in budgets(place):
                say("budget", budget)
    if check and (not api or any(one.failed for one in last)):
        raise typer.Exit(1)


def _styled(kind: str) -> str:
    style = STYLES.get(kind)
    return f"[{style}]{kind:<8}[/]" if style else f"{kind:<8}"
