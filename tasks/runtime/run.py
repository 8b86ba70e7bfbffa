"""The journal of one flow run: its name and folder, its MLflow parents, and the record of each stage."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from prefect import tags

from artifacts.certify import spends_of
from artifacts.labels import Label
from artifacts.publish import safe_name
from artifacts.record import StageRecord
from artifacts.references import Ref
from artifacts.tracking import COMMIT, FLOW_RUN, REASON, SOURCE, SOURCE_TYPE, USER
from sfumato import sources
from sfumato.config import Machine
from sfumato.errors import Refused, Stopped
from sfumato.privacy.door import PrivateSet
from sfumato.settings import Settings
from tasks.runtime.artifact import RunContext, device_of
from tasks.runtime.caching import GPU, Call, Stage, code_version, is_cached, run_stage
from tasks.runtime.checkpoints import resumable, stop_if_late
from tasks.runtime.environment import account, where
from tasks.runtime.heartbeat import call_run, run_id
from tasks.runtime.locks import holding
from tasks.runtime.machine import WHOLE, commit
from tasks.runtime.parallel import alone, side_by_side
from tasks.runtime.progress import CONSOLE

P = ParamSpec("P")
Kind = TypeVar("Kind", bound=Ref)
Made = TypeVar("Made", bound=Ref, covariant=True)


PAYING = "order"
"""The argument of every stage that opens private images, and may pay."""


def no_refusal(_: Mapping[str, Any]) -> str:
    """Nothing is refused."""
    return ""


@dataclass
class Journal:
    """Runs stages and records their time."""

    context: RunContext
    private: PrivateSet
    device: torch.device
    stages: list[StageRecord] = field(default_factory=list)
    refusal: str = ""
    """The ledger's refusal; while it is not empty, a stage may only reuse its result or go on from its state, not begin."""
    refused_after: Callable[[Mapping[str, Any]], str] = no_refusal
    """The ledger's refusal of all that a run pays after a stage with these arguments; empty where the budget bears that."""

    @classmethod
    def begin(
        cls, settings: Settings, private: PrivateSet, above: Mapping[str, str] = MappingProxyType({})
    ) -> "Journal":
        """Begin a new run: a unique name with method, data and epsilon, a folder, a parent run in each experiment.

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
        about = {"method": settings.method.name, "data": private.name, "epsilon": f"{settings.privacy.epsilon:g}"}
        if not above:
            call_run(name, about)
        shown = {
            "private": private.name,
            "public": without_paths(settings.data.public),
            "folder": "",
        }
        params = settings.model_copy(update={"data": settings.data.model_copy(update=shown)}).what()
        context = RunContext(run=name, parents=begin_parents(name, about, params, above))
        return cls(context, private, device_of(settings.machine))

    @contextlib.contextmanager
    def until_the_end(self) -> Iterator[None]:
        """End the run in MLflow as the block ends, and remove its folder if it is empty then."""
        with until_the_end(self.context.parents, where().runs / self.context.run):
            yield

    def stage(self, stage: Stage[P, Kind], *, paid: bool = False, note: str = "") -> Callable[P, Kind]:
        """A function that carries the stage out or reuses its result; reuse of a private result is written into the ledger (it costs nothing).

        `note` distinguishes stages of the same kind.
        """

        def carried_out(*args: P.args, **kwargs: P.kwargs) -> Kind:
            return self.run(replace(stage.given(*args, **kwargs), note=note), paid=paid)

        return carried_out

    def run(self, call: Call[Kind], *, paid: bool) -> Kind:
        """Carry out one call of a stage."""
        self._check(call)
        ref = self._noted(call, call.name, find_or_make(call, self.context, self.device), paid)
        if self.refusal and paid and PAYING in call.arguments:  # what comes after it may fit
            self.refusal = self.refused_after(call.arguments)
        stop_if_late()
        return ref

    def run_all(self, calls: Sequence[Call[Kind]], machine: Machine) -> list[Kind]:
        """Carry out calls that cost nothing, side by side where the machine is to; each call says what machine it sees."""
        if alone(machine, len(calls)):
            return [self.run(call, paid=False) for call in calls]
        for call in calls:
            self._check(call)
        title = f"{calls[0].stage.name}, {len(calls)} times"
        pieces = [functools.partial(find_or_make, call, self.context, self.device) for call in calls]
        results = side_by_side(title, machine, pieces)
        return [self._noted(call, call.stage.name, one, paid=False) for call, one in zip(calls, results, strict=True)]

    def _check(self, call: Call[Ref]) -> None:
        if not self.refusal or is_cached(call):
            return
        # What goes on reserves the rest of its steps alone, and the ledger decides about these.
        goes_on = PAYING in call.arguments and resumable(call.key)
        refusal = self.refused_after(call.arguments) if goes_on else self.refusal
        if refusal:
            raise Refused(refusal)

    def _noted(self, call: Call[Ref], name: str, result: "StageResult[Kind]", paid: bool) -> Kind:
        ref, cached = result.ref, result.cached
        self.stages.append(
            StageRecord(
                name=name,
                seconds=result.seconds,
                cached=cached,
                made_in=ref.seconds,
                memory=ref.memory,
                gpu_memory=ref.gpu_memory,
                label=ref.label,
            )
        )
        if cached:
            took = "" if ref.label == Label.INTERNAL else f" (made in {ref.seconds:.1f} s)"
            CONSOLE.print(f"{name:<26} from cache{took}")
        if cached and paid:
            place = where()
            with place.ledger() as ledger:
                ledger.reuse(
                    self.private.name,
                    ref.digest,
                    spends=spends_of(place.store(), ledger, ref),
                    stage=name,
                    run=self.context.run,
                    code_version=code_version(call.stage.fn),
                )
        return ref


def begin_parents(
    name: str,
    about: Mapping[str, str],
    params: Mapping[str, Any] | None = None,
    above: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Begin a run in each of MLflow's experiments, and return them by label; they go on until `until_the_end`.

    `about` are their tags; `above` are the runs, by label, that they belong to.
    """
    tags = {**about, SOURCE: "sfumato", SOURCE_TYPE: "LOCAL", COMMIT: commit(WHOLE), FLOW_RUN: str(run_id() or "none")}
    tracker = where().tracker()
    public, internal = (
        tracker.log(name, label=label, parent=above.get(label, ""), tags=tags | more, params=params, ended=False)
        for label, more in ((Label.PUBLIC, {}), (Label.INTERNAL, {USER: account()}))
    )
    return {str(Label.PUBLIC): public, str(Label.DP): public, str(Label.INTERNAL): internal}


@contextlib.contextmanager
def until_the_end(parents: Mapping[str, str], folder: Path) -> Iterator[None]:
    """End these runs in MLflow as the block ends, with the reason where it fails; then also remove `folder`, if it is empty.

    The reason may tell of the private set, and stays among what is INTERNAL; what may be shown says what kind of end it was.
    """
    try:
        yield
    except BaseException as error:
        _end(parents, "FAILED" if isinstance(error, Exception) and not isinstance(error, Stopped) else "KILLED", error)
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    _end(parents, "FINISHED")


def _end(parents: Mapping[str, str], status: str, error: BaseException | None = None) -> None:
    for label in (Label.PUBLIC, Label.INTERNAL):
        kind = type(error).__name__
        line = next(iter(str(error).strip().splitlines()), "")
        reason = f"{kind}: {line}" if line and label == Label.INTERNAL else kind
        with contextlib.suppress(Exception):  # of MLflow or its connection: what ends the run counts for more
            where().tracker().end(parents[label], status, {REASON: reason} if error else {})


def without_paths(source: str) -> str:
    """A public source for those who may see no path of this machine: known names stay."""
    return "+".join(part if part in sources.NAMES else "public images" for part in sources.parts_of(source))


@dataclass(frozen=True)
class StageResult(Generic[Made]):
    """The result of a stage."""

    ref: Made
    cached: bool
    seconds: float
    """Time that this run spent on it."""


def find_or_make(call: Call[Kind], context: RunContext, device: torch.device) -> StageResult[Kind]:
    """Carry a call out or reuse its result, holding the device."""
    started = time.monotonic()
    with holding(device, where().home), tags(*([GPU] if device.type == "cuda" else [])):
        ref, cached = run_stage(call, context)
    return StageResult(ref, cached, round(time.monotonic() - started, 2))
