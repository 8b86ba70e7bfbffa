"""Stages: Prefect tasks whose result is a reference, cached under everything that shapes it.

The cache key is a digest of the stage's name, the code that it uses (its own source and the project modules behind the
names in it, comments and docstrings dropped), the versions of the libraries that shape results, and its inputs as
canonical JSON. Parameters and fields annotated with `NOT_HASHED` concern speed, places or the run, not the result; those with `LATER` are
newer than some keys, which imply their default. A
reference whose artifact is missing or damaged is made again.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, get_origin, get_type_hints

from prefect import Task, task
from prefect.cache_policies import CacheKeyFnPolicy
from pydantic import BaseModel

from artifacts.binding import touches, unbound
from artifacts.labels import Label
from artifacts.references import Ref
from sfumato.config import LATER, NOT_HASHED
from sfumato.errors import BadInput
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import Where, where
from tasks.runtime.locks import turn_everywhere
from tasks.runtime.progress import CONSOLE

PROJECT = ("sfumato", "artifacts", "tasks")
LIBRARIES = ("torch", "numpy", "faiss-cpu", "faiss-gpu-cu12", "lightly", "scikit-learn", "matplotlib", "dp-accounting")
DECLARATIONS = (
    "sfumato",
    "sfumato.settings",
    "sfumato.config",
    "sfumato.data_settings",
    "sfumato.marks",
    "sfumato.retrieval.settings",
    "sfumato.methods",
    "sfumato.methods.plan",
    "sfumato.privacy.accounting.events",
    "artifacts.references",
)
"""Modules of settings and other declarations without work of their own: their values reach the key as inputs."""
BOOKKEEPING = (
    "sfumato.privacy.accounting",
    "sfumato.privacy.ledger",
    "tasks.runtime",
    "artifacts.reports",
    "artifacts.store",
    "artifacts.binding",
    "artifacts.certify",
    "artifacts.gate",
    "artifacts.remote",
    "artifacts.labels",
    "artifacts.tracking",
)
"""Wings and modules that price, store, move, time, label and report results, and never change their content. Their faults show when an
artifact is read or leaves: its digest is checked, and its label and price are computed again."""
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
        """A call of this stage with these arguments, for a run to carry out. Missing arguments count as their defaults."""
        bound = inspect.signature(self.fn).bind(None, *args, **kwargs)
        bound.apply_defaults()
        _, *rest = bound.arguments.items()
        return Call(self, MappingProxyType(dict(rest)))

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
    """The marks of parameters that no key holds, or none while they have their default: `NOT_HASHED`, `LATER`."""
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


@functools.cache
def code_digest(function: Callable[..., Any], extra: frozenset[str] = frozenset()) -> str:
    """Digest of the function's source, what it uses in the same file, and every project module that the names in them lead to."""
    helpers, modules = code_behind(function, extra)
    texts = [*(helpers[name] for name in sorted(helpers)), *(module_digest(name) for name in sorted(modules))]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def code_behind(function: Callable[..., Any], extra: frozenset[str] = frozenset()) -> tuple[dict[str, str], set[str]]:
    """The code that a stage's result may depend on: pieces of its own file, by name, and the names of whole modules."""
    helpers, modules, todo = {}, set(extra), [function]
    space = vars(sys.modules[function.__module__])
    while todo:
        current = todo.pop()
        tree = _own_tree(current)
        helpers[current.__qualname__] = ast.dump(tree)
        for name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(space):
            thing = space[name]
            home = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", "") or ""
            if home == function.__module__ and (inspect.isfunction(thing) or inspect.isclass(thing)):
                todo += [thing] if thing.__qualname__ not in helpers else []
            elif home != function.__module__ and _ours(home):
                modules.add(home)
            elif not home:
                with contextlib.suppress(TypeError, ValueError):  # a constant
                    helpers[name] = json.dumps(thing, sort_keys=True)
    seen: set[str] = set()
    while modules - seen:
        name = (modules - seen).pop()
        seen.add(name)
        modules |= {other for other in _imports(name) if _ours(other)}
    return helpers, seen


def _ours(name: str) -> bool:
    """Whether a module's code shapes results; a change of the ledger, of settings or of progress must make nobody pay twice."""
    keeps_books = any(f"{name}.".startswith(f"{wing}.") for wing in BOOKKEEPING)
    return name.split(".")[0] in PROJECT and name not in DECLARATIONS and not keeps_books


@functools.cache
def module_digest(name: str) -> str:
    """Digest of a module's code with comments and docstrings dropped."""
    return hashlib.sha256(ast.dump(_tree(name)).encode()).hexdigest()


@functools.cache
def _tree(name: str) -> ast.Module:
    """A module's code, parsed, with comments and docstrings dropped."""
    module = sys.modules.get(name) or importlib.import_module(name)
    return _without_docstrings(ast.parse(Path(inspect.getfile(module)).read_text(encoding="utf-8")))


def _own_tree(thing: Callable[..., Any]) -> ast.Module:
    """The same of a function or class of a module alone."""
    for node in _tree(thing.__module__).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == thing.__qualname__:
            return ast.Module(body=[node], type_ignores=[])
    # Not at the top of its file. That `inspect` finds it there too takes it a hundred times as long.
    return _without_docstrings(ast.parse(inspect.cleandoc("\n" + inspect.getsource(thing))))


@functools.cache
def _imports(name: str) -> frozenset[str]:
    names = set()
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            children = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {child for child in children if _ours(child) and _is_module(child)}
    return frozenset(names)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a module, not a package
        return False


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [
                item
                for item in body
                if not (
                    isinstance(item, ast.Expr)
                    and isinstance(item.value, ast.Constant)
                    and isinstance(item.value.value, str)
                )
            ]
    return tree


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
        if place.shared_store and not is_here(stage, key) and (known := recalled(place, key)):
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
    """The result of another machine with the same ledger under a cache key; an artifact that the ledger does not name counts as missing."""
    ref = place.store().recall(f"{place.books}/{key}") if place.shared_store else None
    return ref if ref and not lacking(place, ref) else None


def share(place: Where, key: str, ref: Ref) -> None:
    """Share a result with other machines; one that cannot be sent stays here, and the next run sends it."""
    try:
        place.store().remember(f"{place.books}/{key}", ref)
    except BadInput as error:
        CONSOLE.print(f"{type(ref).__name__} {ref.digest[:12]} is on this machine only: {error}")


def code_version(function: Callable[..., Any]) -> str:
    """Version of the program and of the code behind a stage, for the ledger."""
    from sfumato import __version__

    return f"{__version__}+{code_digest(function)[:12]}"
