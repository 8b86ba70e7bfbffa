"""Stages: Prefect tasks whose result is a reference, found again when nothing that matters has changed.

The cache key is a digest of the stage's name, the code that it uses (its own source and the project modules behind the
names in it, comments and docstrings dropped), the versions of the libraries that shape results, and its inputs as
canonical JSON. Inputs named in `NOT_HASHED` say how fast, where or on whose behalf, not what. A reference whose artifact is
gone or damaged is made again.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import CacheKeyFnPolicy
from pydantic import BaseModel

from artifacts.binding import touches, unbound
from artifacts.labels import Label
from artifacts.references import Ref
from sfumato.config import LATER
from sfumato.errors import BadInput
from tasks.runtime.environment import Where, where
from tasks.runtime.locks import turn_everywhere
from tasks.runtime.progress import CONSOLE

PROJECT = ("sfumato", "artifacts", "tasks")
LIBRARIES = ("torch", "numpy", "faiss-cpu", "faiss-gpu-cu12", "lightly", "scikit-learn", "matplotlib", "dp-accounting")
NOT_HASHED = ("machine", "context", "following", "told", "folder", "reason")
DECLARATIONS = (
    "sfumato",
    "sfumato.settings",
    "sfumato.config",
    "sfumato.methods",
    "sfumato.methods.plan",
    "sfumato.privacy.accounting.events",
    "artifacts.references",
)
"""Modules that say what there is to ask for, and do nothing themselves: whatever is asked reaches the key as an input."""
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
"""Wings and modules that price, keep, move, time, label and report what a stage made, and never touch what is in it. What they get wrong is found
when an artifact is read or leaves: its digest is checked, and its label and price are computed again."""
GPU = "gpu"
"""Tag of stages that want the accelerator; `flows` limits it to one at a time."""


def stage(function: Callable[..., Ref]) -> Any:
    """Make a cached, never retried Prefect task of `function`, which takes settings and references and returns one."""
    return task(
        name=function.__name__.replace("_", "-"),
        tags=[GPU],
        retries=0,
        persist_result=True,
        result_serializer="json",
        cache_policy=CacheKeyFnPolicy(cache_key_fn=functools.partial(_key, function)),
    )(function)


def _key(function: Callable[..., Ref], _: Any, inputs: dict[str, Any]) -> str:
    return cache_key(function, inputs)


def cache_key(function: Callable[..., Ref], inputs: dict[str, Any]) -> str:
    """The key under which this stage's result is kept for these inputs."""
    plain = {name: canonical(value) for name, value in inputs.items() if name not in NOT_HASHED}
    extra = {module for value in inputs.values() if (module := method_module(value))}
    parts = [function.__name__, code_digest(function, frozenset(extra)), library_versions(), plain]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def canonical(value: Any) -> Any:
    """Plain JSON values; a reference stands for its content alone."""
    if isinstance(value, Ref):
        return value.digest
    if isinstance(value, BaseModel):
        return {name: canonical(field) for name, field in value if name not in NOT_HASHED and not left_out(value, name)}
    if isinstance(value, dict):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    return value


def left_out(value: BaseModel, name: str) -> bool:
    """Whether a field came later than some keys and is at its default, which these keys meant."""
    field = type(value).model_fields[name]
    return LATER in field.metadata and getattr(value, name) == field.default


def method_module(value: Any) -> str:
    """The module of the method that settings name, whose code then belongs to the key."""
    return type(value.method).__module__ if hasattr(value, "method") and isinstance(value.method, BaseModel) else ""


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of the installed libraries that shape results."""
    from importlib.metadata import PackageNotFoundError

    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@functools.cache
def code_digest(function: Callable[..., Any], extra: frozenset[str] = frozenset()) -> str:
    """Digest of the function's source, what it uses in the same file, and every project module that the names in them lead to."""
    helpers, modules = code_behind(function, extra)
    texts = [*(helpers[name] for name in sorted(helpers)), *(module_digest(name) for name in sorted(modules))]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def code_behind(function: Callable[..., Any], extra: frozenset[str] = frozenset()) -> tuple[dict[str, str], set[str]]:
    """What a stage's result may depend on: pieces of its own file, by name, and the names of whole modules."""
    helpers, modules, todo = {}, set(extra), [function]
    space = vars(sys.modules[function.__module__])
    while todo:
        current = todo.pop()
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(current)))
        helpers[current.__qualname__] = ast.dump(_without_docstrings(tree))
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
    """Whether a module's code shapes results: a better ledger, one more setting or another line of progress makes nobody pay twice."""
    keeps_books = any(f"{name}.".startswith(f"{wing}.") for wing in BOOKKEEPING)
    return name.split(".")[0] in PROJECT and name not in DECLARATIONS and not keeps_books


@functools.cache
def module_digest(name: str) -> str:
    """Digest of a module's code with comments and docstrings dropped."""
    return hashlib.sha256(ast.dump(_without_docstrings(ast.parse(_source(name)))).encode()).hexdigest()


@functools.cache
def _source(name: str) -> str:
    module = sys.modules.get(name) or importlib.import_module(name)
    return Path(inspect.getfile(module)).read_text(encoding="utf-8")


@functools.cache
def _imports(name: str) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            children = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {child for child in children if _ours(child) and _is_module(child)}
    return frozenset(found)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a module, not a package
        return False


def _without_docstrings(tree: ast.AST) -> ast.AST:
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


def stage_key(stage_task: Any, *args: Any, **kwargs: Any) -> str:
    """The cache key of a stage called like this, which is Prefect's: what is not given counts as its default."""
    bound = inspect.signature(stage_task.fn).bind(*args, **kwargs)
    bound.apply_defaults()
    return cache_key(stage_task.fn, dict(bound.arguments))


def is_cached(stage_task: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a stage called like this would find its result, here or in the shared store, and might use it."""
    place, key = where(), stage_key(stage_task, *args, **kwargs)
    if is_here(stage_task, key):
        found = here(stage_task, key)
        return found is not None and not lacking(place, found)
    return recalled(place, key) is not None


def here(stage_task: Any, key: str) -> Ref | None:
    """The result that this machine has under a cache key; None where it cannot be read."""
    from prefect.results import get_result_store

    store: Any = get_result_store()
    with contextlib.suppress(OSError, ValueError, LookupError, ImportError):  # a damaged file: the stage then finds out
        found = store.update_for_task(stage_task, _sync=True).read(key).result
        return found if isinstance(found, Ref) else None
    return None


def lacking(place: Where, ref: Ref) -> str:
    """Why a result that was found may not be used: gone, damaged, or not what the ledger in use says; empty where it may."""
    store = place.store()
    if not store.intact(ref):
        return "it is gone or damaged"
    if ref.label == Label.PUBLIC and not touches(store, ref):
        return ""
    with place.ledger() as ledger:
        return unbound(store, ledger.entries(), ref)


def is_here(stage_task: Any, key: str) -> bool:
    """Whether this machine has a result under a cache key."""
    from prefect.results import get_result_store

    store: Any = get_result_store()  # its signatures do not tell of `_sync`
    return store.update_for_task(stage_task, _sync=True).exists(key)


def run_stage(stage_task: Any, *args: Any, **kwargs: Any) -> tuple[Ref, bool]:
    """Run a stage; returns its reference and whether it came from the cache.

    Of two runs that want the same result at once, the second waits and finds it.
    A cached reference whose artifact is missing or damaged, or stands on entries that are not in the ledger in use, is made
    again (a private stage then asks the ledger anew).
    """
    place, key = where(), stage_key(stage_task, *args, **kwargs)
    if "context" in kwargs:
        kwargs["context"] = kwargs["context"].model_copy(update={"key": key})
    with turn_everywhere(place, key, f"waiting for {stage_task.name} of another run"):
        if place.shared_store and not is_here(stage_task, key) and (ref := recalled(place, key)):
            return ref, True
        state = stage_task(*args, **kwargs, return_state=True)
        ref = state.result()
        cached = state.name == "Cached"
        if cached and (why := lacking(place, ref)):
            CONSOLE.print(f"{stage_task.name}: made again: {why}")
            ref, cached = stage_task.with_options(refresh_cache=True)(*args, **kwargs), False
        if place.shared_store:
            share(place, key, ref)
    return ref, cached


def recalled(place: Where, key: str) -> Ref | None:
    """What a machine that writes into the same ledger made under a cache key; what this ledger does not name counts as missing."""
    ref = place.store().recall(f"{place.books}/{key}") if place.shared_store else None
    return ref if ref and not lacking(place, ref) else None


def share(place: Where, key: str, ref: Ref) -> None:
    """Let other machines find a result; one that cannot be sent stays here, and the next run sends it."""
    try:
        place.store().remember(f"{place.books}/{key}", ref)
    except BadInput as error:
        CONSOLE.print(f"{type(ref).__name__} {ref.digest[:12]} is on this machine only: {error}")


def code_version(function: Callable[..., Any]) -> str:
    """Version of the program and of the code behind a stage, for the ledger."""
    from sfumato import __version__

    return f"{__version__}+{code_digest(function)[:12]}"
