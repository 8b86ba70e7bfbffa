"""`sfumato run`, `plan` and `rehearse`: what a run would do, its public half alone, and all of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.loading import loading
from flows.cli.options import (
    OUT,
    Changes,
    Epsilon,
    GoOn,
    Licence,
    MethodName,
    PresetName,
    PublicBecause,
    PublicLicence,
    warn,
    with_short,
)
from sfumato.errors import BadInput, Refused
from sfumato.named_settings import DEFAULT_METHOD
from tasks.runtime.environment import Where, configure

if TYPE_CHECKING:
    import threading

    from tasks.planning import PlannedRun


def run(
    method: MethodName = DEFAULT_METHOD,
    preset: PresetName = "",
    epsilon: Epsilon = None,
    changes: Changes = None,
    public_because: PublicBecause = "",
    publish: Annotated[bool, typer.Option("--publish", help="Publish the result into the folder of the run.")] = False,
    publish_to: Annotated[
        str, typer.Option("--publish-to", metavar="DIR", help="Publish the result there, a folder or a URL.")
    ] = "",
    licence: Licence = "",
    public_licence: PublicLicence = "",
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
    place, all_changes = configure(), with_short(changes, epsilon, public_because, licence, public_licence)
    answering = None if dry_run else _server_for(method, preset, all_changes)
    with loading():
        from tasks.checks import refuse_publishing
        from tasks.planning import RUN_FOLDER, Wishes, plan_run
        from tasks.prices import cached_prices

    def shown() -> "PlannedRun":
        planned = plan_run(method, preset, all_changes, new_version=new_version)
        _show(place, planned)
        if publish or publish_to:
            refuse_publishing(planned.plan, planned.settings)
        return planned

    if not answering:
        with cached_prices(place):
            shown()
        return
    planned = shown()
    place.store()
    place.ledger().close()
    if publish_to:
        from artifacts.publish import destination

        destination(publish_to, planned.settings.data.private)
    with loading():
        from flows.cli.results import summary
        from flows.synthesize import synthesize_planned

        place.tracker().check()  # MLflow loads while the server starts
    if new_version:
        warn(
            "a new version is counted afresh only where its records are not those of the versions before: a record in both has "
            "been paid for in both, and their budget binds them together (sfumato ledger show says which count together)"
        )
    wishes = Wishes(publish_to or (RUN_FOLDER if publish else ""), new_version, go_on=go_on)
    answering.wait()
    summary(synthesize_planned(planned, wishes))


def plan(
    method: MethodName = DEFAULT_METHOD,
    preset: PresetName = "",
    epsilon: Epsilon = None,
    changes: Changes = None,
    public_because: PublicBecause = "",
) -> None:
    """Show what a run would train, the noise it needs and the certificate it would earn; opens no private image."""
    with loading():
        from tasks.planning import plan_run
        from tasks.prices import cached_prices

    place = configure()
    with cached_prices(place):
        _show(place, plan_run(method, preset, with_short(changes, epsilon, public_because)))


def rehearse(
    method: MethodName = DEFAULT_METHOD,
    preset: PresetName = "",
    changes: Changes = None,
    public_because: PublicBecause = "",
) -> None:
    """Make the public half of a run and show what it can do, before anything is paid: one picture, three numbers.

    Opens no private image and writes nothing into the ledger. The run with the same settings finds all of it again.
    """
    place, all_changes = configure(), with_short(changes, public_because=public_because)
    answering = _server_for(method, preset, all_changes)
    with loading():
        from tasks.planning import plan_run

    planned = plan_run(method, preset, all_changes)
    _warn_of(planned)
    place.store()
    from flows.rehearse import rehearse_planned

    answering.wait()
    rehearse_planned(planned)


def _server_for(method: str, preset: str, changes: Sequence[str]) -> "threading.Event":
    """Start the server that a run needs, which takes as long as its planning; mistakes in the settings end before that."""
    from sfumato.settings import resolve
    from tasks.server.embedded import begin_server

    resolve(method, preset, changes)
    return begin_server()


def _warn_of(planned: "PlannedRun") -> None:
    """Say what the planning noticed, and what of the data is left out; `BadInput` for pictures that are not there."""
    from sfumato.preflight import left_out

    for warning in (*planned.warnings, *left_out(planned.settings.data)):
        warn(warning)


def _show(place: Where, planned: "PlannedRun") -> None:
    """Show the plan, and whether the ledger's budget bears it."""
    from flows.cli.ledger_screen import budget_line
    from flows.cli.plan_screen import plan_lines
    from sfumato.preflight import private_of
    from sfumato.privacy.ledger.chain import is_there
    from tasks.checks import unlike_known
    from tasks.runtime.internal import pointed

    _warn_of(planned)
    data = planned.settings.data
    try:
        unlike = unlike_known(data.name, data.private, replace(private_of(data).reading("train"), classes=()))
    except BadInput as error:
        warn(str(pointed(error, place.home)))
        unlike = ""
    if unlike:
        warn(
            f"{unlike}: another collection needs a name of its own (--set data.name=NAME), and a changed one sfumato run --new-version; where the number "
            "was declared, nothing is wrong"
        )
    for part in plan_lines(planned.settings, planned.plan):
        OUT.print(part)
    if not is_there(place.ledger_url):
        return
    name, terms = planned.settings.data.name, planned.plan.privacy
    with place.ledger() as ledger:
        OUT.print(f"budget: {budget_line(ledger, name)}", markup=False, soft_wrap=True, highlight=False)
        try:
            ledger.check_budget(name, [spend.event for spend in planned.plan.spends], terms.relation, terms.delta)
        except Refused as refusal:
            warn(f"{refusal}. What was paid for before may still be used")
