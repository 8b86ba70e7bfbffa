"""Plans a run once, from a person's settings, the home and its ledger; the plan is passed on and never priced again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sfumato.methods.plan import Facts, Plan
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.settings import Settings, preset_for, resolve
from tasks.checks import agreed_delta, counted_elsewhere, known_constants, other_units, refuse_own_releases
from tasks.prices import cached_prices
from tasks.runtime.artifact import device_of, one_thread
from tasks.runtime.environment import where

RUN_FOLDER = "."
"""Publish into the folder of the run."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that may begin: its settings, its plan with the cost, and the warnings for a person."""

    settings: Settings
    """With nothing left open."""
    plan: Plan
    preset: str
    changes: tuple[str, ...] = ()
    """Settings as a person gave them, `section.field=value`."""
    warnings: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """Its name."""
        return self.settings.method.name

    def of_edition(self, number: int) -> "PlannedRun":
        """The same run with other images; which edition is drawn changes neither what is done nor its price."""
        generation = self.settings.generation.model_copy(update={"edition": number})
        settings = self.settings.model_copy(update={"generation": generation})
        return replace(self, settings=settings, plan=self.plan.model_copy(update={"generation": generation}))


@dataclass(frozen=True)
class Wishes:
    """A person's requests for a run beside its settings."""

    publish_to: str = ""
    """Folder or URL to publish to; `RUN_FOLDER` takes the folder of the run, empty keeps the result in the store."""
    new_version: bool = False
    """The private set changed since its last entry in the ledger: begin a version of its own."""
    another: bool = False
    """Draw the edition after the last that was published, and publish it into a folder of its own below `publish_to`."""
    go_on: bool = False
    """Pay even where the rehearsal with public images fails."""
    following: tuple[AnyEvent, ...] = ()
    """Events that runs after this one will spend; the budget must bear them too."""
    above: Mapping[str, str] = field(default_factory=dict)
    """The MLflow runs, by label, to which the run belongs."""


def plan_run(method: str, preset: str = "", changes: Sequence[str] = (), *, new_version: bool = False) -> PlannedRun:
    """Plan a method with a person's settings; opens no private image. `BadInput` for settings or data that cannot work.

    Of a `new_version` of the private set the ledger knows nothing yet.
    """
    place = where()
    known = (lambda name: None) if new_version else known_constants
    settings = resolve(method, preset, changes)
    with one_thread():  # the networks that it tries are small, and threads would only wait for each other
        settings, facts, warnings = preflight(settings, str(place.data), known, agreed_delta)
    refuse_own_releases(settings)
    device_of(settings.machine)
    plan, name = plan_for(settings, facts), settings.data.name
    by_ledger = (*counted_elsewhere(name, settings.data.private), *other_units(name, facts.unit))
    return PlannedRun(
        settings=settings,
        plan=plan.model_copy(update={"warnings": (*plan.warnings, *by_ledger)}),
        preset=preset_for(preset, changes),
        changes=tuple(changes),
        warnings=(*warnings, *by_ledger),
    )


def plan_comparison(settings: Settings, facts: Facts) -> Plan:
    """The plan of a method that a run is compared with: it pays nothing, so that its prices bind nobody and may be cached ones."""
    with cached_prices(where()):
        return plan_for(settings, facts)
