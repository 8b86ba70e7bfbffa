"""`sfumato run`, `plan` and `rehearse`: what a run would do, its public half alone, and all of it."""

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import OUT, Changes, Epsilon, GoOn, MethodName, PresetName, warn
from sfumato.errors import Refused
from sfumato.named_settings import DEFAULT_METHOD
from tasks.runtime.environment import Where, configure

if TYPE_CHECKING:
    from sfumato.methods.plan import Plan


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
    go_on: GoOn = False,
) -> None:
    """Run a method from private images to a synthetic set with its report.

    Example with your own images: sfumato run rapid --set data.private=scans/ --set data.public=textures/
    """
    from flows.cli.prices import cached_prices
    from tasks.checks import refuse_publishing

    place = configure()
    with cached_prices(place) if dry_run else contextlib.nullcontext():
        planned = _planned(place, method, preset, epsilon, changes)
    if publish or publish_to:
        refuse_publishing(planned)
    if dry_run:
        return
    place.store()
    place.ledger().close()
    if publish_to:
        from artifacts.publish import destination

        destination(publish_to)
    from tasks.server.embedded import begin_server

    answering = begin_server()
    from flows.cli.results import summary
    from flows.synthesize import RUN_FOLDER, synthesize
    from sfumato.settings import preset_for

    if new_version:
        warn(
            "a new version is counted afresh only where its records are not those of the versions before: a record in both has "
            "been paid for in both, and their budget binds them together (sfumato ledger show says which count together)"
        )
    given = [*(changes or []), *([f"privacy.epsilon={epsilon}"] if epsilon is not None else [])]
    answering.wait()
    record = synthesize(
        method=method,
        preset=preset_for(preset, given),
        changes=given,
        publish_to=publish_to or (RUN_FOLDER if publish else ""),
        new_version=new_version,
        go_on=go_on,
    )
    summary(record)


def plan(
    method: MethodName = DEFAULT_METHOD,
    preset: PresetName = "",
    epsilon: Epsilon = None,
    changes: Changes = None,
) -> None:
    """Show what a run would train, the noise it needs and the certificate it would earn; opens no private image."""
    from flows.cli.prices import cached_prices

    place = configure()
    with cached_prices(place):
        _planned(place, method, preset, epsilon, changes)


def rehearse(
    method: MethodName = DEFAULT_METHOD,
    preset: PresetName = "",
    changes: Changes = None,
) -> None:
    """Make the public half of a run and show what it can do, before anything is paid: one picture, three numbers.

    Opens no private image and writes nothing into the ledger. The run with the same settings finds all of it again.
    """
    from sfumato.preflight import preflight
    from sfumato.settings import resolve
    from tasks.checks import agreed_delta, known_constants

    place = configure()
    preflight(resolve(method, preset, changes or []), str(place.data), known_constants, agreed_delta)
    place.store()
    from flows.rehearse import rehearse as rehearsal
    from tasks.server.embedded import start_server

    start_server()
    rehearsal(method=method, preset=preset, changes=changes or [])


def _planned(place: Where, method: str, preset: str, epsilon: float | None, changes: list[str] | None) -> "Plan":
    """Show the plan, and what the ledger says to it."""
    from flows.cli.ledger_screen import budget_line
    from flows.cli.plan_screen import plan_lines
    from sfumato.preflight import plan_for, preflight
    from sfumato.privacy.ledger.chain import is_there
    from sfumato.settings import resolve
    from tasks.checks import agreed_delta, known_constants
    from tasks.runtime.artifact import device_of

    given = [*(changes or []), *([f"privacy.epsilon={epsilon}"] if epsilon is not None else [])]
    settings, facts, warnings = preflight(
        resolve(method, preset, given), str(place.data), known_constants, agreed_delta
    )
    made = plan_for(settings, facts)
    device_of(settings.machine)
    for warning in warnings:
        warn(warning)
    for part in plan_lines(settings, made):
        OUT.print(part)
    terms = made.privacy
    if not is_there(place.ledger_url):
        return made
    with place.ledger() as ledger:
        OUT.print(f"budget: {budget_line(ledger, settings.data.name)}", markup=False, soft_wrap=True, highlight=False)
        try:
            ledger.check_budget(settings.data.name, [spend.event for spend in made.spends], terms.relation, terms.delta)
        except Refused as refusal:
            warn(f"{refusal}. What was paid for before may still be used")
    return made
