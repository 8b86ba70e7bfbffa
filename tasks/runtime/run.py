"""The book of one flow run: its name and folder, its MLflow parents, and how each stage went."""

import contextlib
import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from artifacts.certify import spends_of
from artifacts.labels import Label
from artifacts.publish import safe_name
from artifacts.record import StageRecord
from artifacts.references import Ref
from sfumato.config import Machine
from sfumato.errors import Refused
from sfumato.privacy.door import PrivateSet
from sfumato.settings import Settings
from tasks.runtime.artifact import RunContext, device_of
from tasks.runtime.caching import code_version, is_cached, run_stage
from tasks.runtime.environment import where
from tasks.runtime.heartbeat import call_run
from tasks.runtime.locks import holding
from tasks.runtime.parallel import among_others, side_by_side
from tasks.runtime.progress import CONSOLE

Kind = TypeVar("Kind", bound=Ref)


@dataclass
class Journal:
    """Runs stages and remembers what they took."""

    context: RunContext
    private: PrivateSet
    device: torch.device
    stages: list[StageRecord] = field(default_factory=list)
    refusal: str = ""
    """While this says why the ledger refuses, a stage may only find its result, not make it."""

    @classmethod
    def begin(
        cls, settings: Settings, private: PrivateSet, above: Mapping[str, str] = MappingProxyType({})
    ) -> "Journal":
        """A new run: a unique name that tells method, data and epsilon, a folder, a parent run in each experiment.

        `above` are the MLflow runs, by label, to which the parents belong; without them the flow run has this name too.
        """
        place = where()
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        base = f"{stamp}-{settings.method.name}-{safe_name(private.name)}-eps{settings.privacy.epsilon:g}"
        if settings.generation.edition:
            base += f"-edition{settings.generation.edition}"
        name, number = base, 1
        while True:
            try:
                (place.runs / name).mkdir(parents=True)
                break
            except FileExistsError:
                number += 1
                name = f"{base}-{number}"
        if not above:
            call_run(name)
        tracker = place.tracker()
        tags = {"method": settings.method.name, "data": private.name, "epsilon": f"{settings.privacy.epsilon:g}"}
        params = settings.model_copy(
            update={"data": settings.data.model_copy(update={"private": private.name, "folder": ""})}
        ).what()
        public, internal = (
            tracker.log(name, label=label, parent=above.get(label, ""), tags=tags, params=params)
            for label in (Label.PUBLIC, Label.INTERNAL)
        )
        parents = {Label.PUBLIC: public, Label.DP: public, Label.INTERNAL: internal}
        context = RunContext(run=name, parents={str(k): v for k, v in parents.items()})
        return cls(context, private, device_of(settings.machine))

    @contextlib.contextmanager
    def kept_if_filled(self) -> Iterator[None]:
        """The folder of a run that ends with an error before anything was written into it does not stay."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                (where().runs / self.context.run).rmdir()
            raise

    def run(self, stage: Any, *args: Any, paid: bool = False, note: str = "", **kwargs: Any) -> Any:
        """Run a stage or find its result; a reused private result is written into the ledger (it costs nothing).

        `note` tells stages of the same kind apart.
        """
        name = f"{stage.name} ({note})" if note else stage.name
        kwargs["context"] = self.context
        self._check(stage, *args, **kwargs)
        return self._noted(stage, name, find_or_make(stage, self.device, args, kwargs), paid)

    def run_all(self, stage: Any, calls: Sequence[Mapping[str, Any]], machine: Machine) -> list[Any]:
        """Run a stage that costs nothing with each of these arguments, side by side where the machine is to."""
        if machine.runner == "inline" or len(calls) < 2:
            return [self.run(stage, **call) for call in calls]
        calls = [{**call, "machine": among_others(machine), "context": self.context} for call in calls]
        for call in calls:
            self._check(stage, **call)
        where_it_is = {"module": stage.fn.__module__, "stage": stage.fn.__name__, "device": self.device}
        found = side_by_side(
            f"{stage.name}, {len(calls)} times", machine, piece, [{**where_it_is, "call": call} for call in calls]
        )
        return [self._noted(stage, stage.name, one, paid=False) for one in found]

    def _check(self, stage: Any, *args: Any, **kwargs: Any) -> None:
        if self.refusal and not is_cached(stage, *args, **kwargs):
            raise Refused(self.refusal)

    def _noted(self, stage: Any, name: str, found: "StageResult", paid: bool) -> Any:
        ref, cached = found.ref, found.cached
        self.stages.append(
            StageRecord(name=name, seconds=found.seconds, cached=cached, made_in=ref.seconds, label=ref.label)
        )
        if cached:
            CONSOLE.print(f"{name:<26} from cache (made in {ref.seconds:.1f} s)")
        if cached and paid:
            place = where()
            with place.ledger() as ledger:
                ledger.reuse(
                    self.private.name,
                    ref.digest,
                    spends=spends_of(place.store(), ledger, ref),
                    stage=name,
                    run=self.context.run,
                    code_version=code_version(stage.fn),
                )
        return ref


@dataclass(frozen=True)
class StageResult:
    """What a stage gave."""

    ref: Ref
    cached: bool
    seconds: float
    """Time that this run spent on it."""


def find_or_make(stage: Any, device: torch.device, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StageResult:
    """Run a stage or find its result, holding the device."""
    started = time.monotonic()
    with holding(device, where().home):
        ref, cached = run_stage(stage, *args, **kwargs)
    return StageResult(ref, cached, round(time.monotonic() - started, 2))


def piece(module: str, stage: str, device: torch.device, call: Mapping[str, Any]) -> StageResult:
    """A stage of one run among several, by name, since another process has its own."""
    return find_or_make(getattr(importlib.import_module(module), stage), device, (), call)
