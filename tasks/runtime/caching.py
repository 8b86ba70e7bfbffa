"""Stages: Prefect tasks whose result is a reference, cached under everything that shapes it.

The cache key is a digest of the stage's name, the code that it uses (its own source and the project modules behind the
names in it, comments and docstrings dropped), the versions of the libraries that shape results, and its inputs as
canonical JSON. Parameters and fields annotated with `NOT_HASHED` concern speed, places or the run, not the result; those with `LATER` are
newer than some keys, which imply their default. A
reference whose artifact is missing or damaged is made again.
"""

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, get_origin, get_type_hints

from prefect import Task, task
from prefect.cache_policies import CacheKeyFnPolicy
from pydantic import BaseModel

from artifacts.binding import touches, unbound
from artifacts.labels import Label
from artifacts.references import Ref
from sfumato.config import LATER, NOT_HASHED
from sfumato.errors import SHOWN_DIGITS, BadInput
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import Where, where
from tasks.runtime.locks import turn_everywhere
from tasks.runtime.narrowing import narrowed
from tasks.runtime.progress import CONSOLE
from tasks.runtime.source_digest import code_digest

LIBRARIES = ("torch", "numpy", "faiss-cpu", "faiss-gpu-cu12", "lightly", "scikit-learn", "matplotlib", "dp-accounting")
"""Libraries whose versions are in every key: they compute what is stored, matplotlib the letters, dp-accounting the noise that is planned. Not covered:
those that read files (Pillow, pydicom, nibabel, PyArrow), SciPy, and diffusers for models from elsewhere; one more here makes everybody pay anew.
"""
GPU = "gpu"
"""Tag of stages that want the accelerator; `flows` limits it to one at a time."""


P = ParamSpec("P")
Made = TypeVar("Made", bound=Ref, covariant=True)
Kind = TypeVar("Kind", bound=Ref)


@dataclass(frozen=True)
class Stage(Generic[P, Made]):
    """A function from a run and its arguments to the reference of its result; `given` preserves the types of its parameters."""

    fn: Callable[Concatenate[RunContext, P], Made]
    """The work itself, without cache."""

    @property
    def name(self) -> str:
        """Its name on screens, in reports and in Prefect."""
        return self.fn.__name__.replace("_", "-")

    @functools.cached_property
    def task(self) -> Task[..., Any]:
        """The same as a cached Prefect task that is never tried twice."""
        return task(
            name=self.name,
            task_run_name=self.name,
            retries=0,
            persist_result=True,
            result_serializer="json",
            cache_policy=CacheKeyFnPolicy(cache_key_fn=functools.partial(_key, self.fn)),
        )(self.fn)

    def given(self, *args: P.args, **kwargs: P.kwargs) -> "Call[Made]":
        """A call of this stage with what it reads of these arguments, for a run to carry out. Missing arguments count as their defaults."""
        bound = inspect.signature(self.fn).bind(None, *args, **kwargs)
        bound.apply_defaults()
        (_, *rest), marked = bound.arguments.items(), marks(self.fn)
        read = {name: narrowed(value, marked.get(name, ())) for name, value in rest}
        return Call(self, MappingProxyType(read))

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        """Send only the name to another process, which has the stage itself."""
        return _stage_named, (self.fn.__module__, self.fn.__name__)


@dataclass(frozen=True)
class Call(Generic[Made]):
    """A stage and all its arguments but the run."""

    stage: Stage[..., Made]
    arguments: Mapping[str, object]
    """Name -> value, in the order of the parameters."""
    note: str = ""
    """What distinguishes its result from others of the same stage, for people."""

    @property
    def name(self) -> str:
        """Its name on screens, in reports and in Prefect."""
        return f"{self.stage.name} ({self.note})" if self.note else self.stage.name

    @property
    def key(self) -> str:
        """The cache key of the result, which is Prefect's too."""
        return cache_key(self.stage.fn, self.arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A view of a dictionary cannot be sent to another process; the dictionary can."""
        return _call_of, (self.stage, dict(self.arguments), self.note)


def _stage_named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _call_of(stage: Stage[..., Kind], arguments: dict[str, object], note: str) -> Call[Kind]:
    return Call(stage, MappingProxyType(arguments), note)


def stage(function: Callable[Concatenate[RunContext, P], Made]) -> Stage[P, Made]:
    """Make a stage of `function`, which takes the run, then settings and references, and returns a reference."""
    return Stage(function)


def _key(function: Callable[..., Ref], _: Any, inputs: dict[str, Any]) -> str:
    _, *rest = inputs.items()
    return cache_key(function, dict(rest))


def cache_key(function: Callable[..., Any], inputs: Mapping[str, object]) -> str:
    """The key of this stage's result for these inputs; the run is none of them."""
    marked, given = marks(function), inspect.signature(function).parameters
    hashed = {
        name: value
        for name, value in inputs.items()
        if NOT_HASHED not in marked.get(name, ())
        and not (LATER in marked.get(name, ()) and value == given[name].default)
    }
    plain = {name: canonical(value) for name, value in hashed.items()}
    extra = frozenset(module for value in hashed.values() for module in method_modules(value))
    parts = [function.__name__, code_digest(function, extra), library_versions(), plain]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@functools.cache
def marks(function: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """The marks of parameters: `NOT_HASHED` and `LATER`, which no key holds, or none while they have their default, and `Narrowed`."""
    hints = get_type_hints(function, include_extras=True)
    return {name: hint.__metadata__ for name, hint in hints.items() if get_origin(hint) is Annotated}


def canonical(value: Any) -> Any:
    """Plain JSON values; a reference stands for its content alone."""
    if isinstance(value, Ref):
        return value.digest
    if isinstance(value, BaseModel):
        return {name: canonical(field) for name, field in value if not left_out(value, name)}
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    return value


def left_out(value: BaseModel, name: str) -> bool:
    """Whether a field is no part of a key: it does not shape the result, or is newer than some keys and has the default that they imply."""
    field = type(value).model_fields[name]
    return NOT_HASHED in field.metadata or (LATER in field.metadata and getattr(value, name) == field.default)


def method_modules(value: object) -> set[str]:
    """The modules of the methods named anywhere in settings, whose code belongs to the key."""
    if not isinstance(value, BaseModel):
        return set()
    modules = set().union(*(method_modules(field) for _, field in value))
    method = getattr(value, "method", None)
    return modules | {type(method).__module__} if isinstance(method, BaseModel) else modules


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of the installed libraries that shape results."""
    from importlib.metadata import PackageNotFoundError

    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def is_cached(call: Call[Ref]) -> bool:
    """Whether a call has a usable result, here or in the shared store."""
    place, key = where(), call.key
    if is_here(call.stage, key):
        stored = here(call.stage, key)
        return stored is not None and not lacking(place, stored)
    return recalled(place, key) is not None


def here(stage: Stage[..., Ref], key: str) -> Ref | None:
    """The result that this machine has under a cache key; None where it cannot be read."""
    from prefect.results import get_result_store

    store: Any = get_result_store()
    with contextlib.suppress(OSError, ValueError, LookupError, ImportError):  # a damaged file: the stage then finds out
        stored = store.update_for_task(stage.task, _sync=True).read(key).result
        return stored if isinstance(stored, Ref) else None
    return None


def lacking(place: Where, ref: Ref) -> str:
    """The reason why a cached result may not be used: missing, damaged, or not bound to the ledger in use; empty where it may."""
    store = place.store()
    if not store.intact(ref):
        return "it is missing or damaged"
    if ref.label == Label.PUBLIC and not touches(store, ref):
        return ""
    with place.ledger() as ledger:
        return unbound(store, ledger.entries(), ref)


def is_here(stage: Stage[..., Ref], key: str) -> bool:
    """Whether this machine has a result under a cache key."""
    from prefect.results import get_result_store

    store: Any = get_result_store()  # its signatures do not tell of `_sync`
    return bool(store.update_for_task(stage.task, _sync=True).exists(key))


def run_stage(call: Call[Kind], context: RunContext) -> tuple[Kind, bool]:
    """Carry a call out; returns its reference and whether it came from the cache.

    Of two runs that need the same result at once, the second waits and reuses it. A cached reference whose artifact is missing or
    damaged, or stands on entries that are not in the ledger in use, is made again (a private stage then reserves again).
    """
    place, key, stage = where(), call.key, call.stage
    context = context.model_copy(update={"key": key})
    with turn_everywhere(place, key, f"waiting for {stage.name} of another run"):
        if not is_here(stage, key) and (known := recalled(place, key)):
            if place.shared_store:
                share(place, key, known)
            return cast(Kind, known), True  # a key is of one stage, which makes one kind
        work = stage.task.with_options(task_run_name=call.name) if call.note else stage.task
        state: Any = work(context, **call.arguments, return_state=True)
        ref, cached = state.result(), state.name == "Cached"
        if cached and (why := lacking(place, ref)):
            CONSOLE.print(f"{stage.name}: made again: {why}")
            ref, cached = work.with_options(refresh_cache=True)(context, **call.arguments), False
        if place.shared_store:
            share(place, key, ref)
    return ref, cached


def recalled(place: Where, key: str) -> Ref | None:
    """The result under a cache key of a run that was killed here before Prefect had stored it, or of another machine with the same ledger.

    An artifact that the ledger in use does not name counts as missing.
    """
    ref = place.store().noted(key)
    if (ref is None or lacking(place, ref)) and place.shared_store:
        ref = place.store().recall(f"{place.books}/{key}")
    return ref if ref and not lacking(place, ref) else None


def share(place: Where, key: str, ref: Ref) -> None:
    """Share a result with other machines; one that cannot be sent stays here, and the next run sends it."""
    try:
        place.store().remember(f"{place.books}/{key}", ref)
    except BadInput as error:
        CONSOLE.print(f"{type(ref).__name__} {ref.digest[:SHOWN_DIGITS]} is on this machine only: {error}")


def code_version(function: Callable[..., Any]) -> str:
    """Version of the program and of the code behind a stage, for the ledger."""
    from sfumato import __version__

    return f"{__version__}+{code_digest(function)[:SHOWN_DIGITS]}"
