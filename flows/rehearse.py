"""The flow that tests the public half of a run by itself: no private image is opened, and nothing is written to the ledger."""

from prefect import flow

from artifacts.reports.rehearsal import REHEARSAL
from flows import public_half
from sfumato.named_settings import DEFAULT_METHOD
from sfumato.preflight import private_set
from tasks import rehearsal
from tasks.planning import PlannedRun, plan_run
from tasks.runtime.artifact import RunContext, device_of
from tasks.runtime.environment import configure, now, where
from tasks.runtime.heartbeat import attended, call_run, named
from tasks.runtime.run import Journal


@flow(name="rehearse", flow_run_name=named("rehearse-{method}"), persist_result=False, validate_parameters=True)
@attended
def rehearse(method: str = DEFAULT_METHOD, preset: str = "", changes: list[str] | None = None) -> None:
    """Make the public half of a run and show what it can do, before anything is paid. Opens no private image.

    Args:
        method: Which method the run will be of, for example `rapid`.
        preset: Named settings to start from; empty takes `digits` for the embedded digits and `auto` for other data.
        changes: Further settings as `section.field=value`; those of the run, or it will not find what was made.
    """
    configure()
    rehearse_public(plan_run(method, preset, changes or []), f"rehearse-{method}-{now()}")


def rehearse_planned(run: PlannedRun) -> None:
    """The same flow with a run that was planned in this process."""

    @flow(name="rehearse", flow_run_name=named("rehearse-{method}"), persist_result=False)
    @attended
    def as_planned(method: str, preset: str, changes: list[str]) -> None:
        rehearse_public(run, f"rehearse-{method}-{now()}")

    as_planned(run.method, run.preset, list(run.changes))


def rehearse_public(run: PlannedRun, name: str) -> None:
    """Make the public half of a run, under a name of its own; `Refused` where the rehearsal would stop the run."""
    place, settings, plan = where(), run.settings, run.plan
    journal = Journal(RunContext(run=name, parents={}), private_set(settings), device_of(settings.machine))
    call_run(name)
    images = public_half.load_images(settings, plan, journal)
    shown = public_half.encode(settings, images, journal)
    # What learns from chosen classes depends on private votes; the autoencoder alone is rehearsed before these are paid for.
    parts = None if plan.facts.selected else public_half.prepare(settings, plan, shown, journal)
    if plan.judge or plan.facts.selected:
        public_half.train_backbone(settings, images, journal)
    eyes = public_half.train_eyes(settings, images, journal)
    rehearsed = public_half.rehearse(settings, parts, shown, eyes, journal)
    picture = place.home / "rehearsals" / rehearsed.digest[:DIGITS] / REHEARSAL
    if worse := rehearsal.show(rehearsed, settings.rehearsal, picture):
        raise rehearsal.refusal(worse, picture)


DIGITS = 12
"""Digits of a rehearsal's address in the name of the folder of its picture."""
