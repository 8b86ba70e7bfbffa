"""The digest of the code that a stage's result may depend on: its own source, what it uses in the same file, and the project
modules that the names in them lead to; comments and docstrings dropped.

Parsing some 130 modules takes a second, and nearly all are as they were at the last run. So what was found in a file is
kept in the home under a digest of its bytes, and asked there first.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from artifacts.store import write_text
from tasks.runtime.environment import where

PROJECT = ("sfumato", "artifacts", "tasks")
DECLARATIONS = (
    "sfumato",
    "sfumato.settings",
    "sfumato.config",
    "sfumato.data_settings",
    "sfumato.network_settings",
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


FILE = "source-digests.json"
"""The file of a home that says what was found in which source."""
MOST_KNOWN = 1000
"""Sources in it, after which those that are not in use are dropped."""


class SourceSummary(NamedTuple):
    """What a source says, whatever the module is called."""

    digest: str
    """Of its syntax tree without comments and docstrings, hex."""
    names: list[str]
    """Modules that it imports, or imports from."""
    attributes: list[str]
    """What it imports from them, with their names before; some are modules too."""


SUMMARIES = TypeAdapter(dict[str, SourceSummary])


@dataclass
class KnownSources:
    """What a home knows of sources; a process reads it once."""

    summaries: dict[str, SourceSummary] = field(default_factory=dict)
    """By a digest of the version of Python and the source's bytes."""
    used: set[str] = field(default_factory=set)
    is_new: bool = False
    """Whether something is not in its file yet."""


@functools.cache
def code_digest(function: Callable[..., Any], extra: frozenset[str] = frozenset()) -> str:
    """Digest of the function's source, what it uses in the same file, and every project module that the names in them lead to."""
    helpers, modules = code_behind(function, extra)
    texts = [*(helpers[name] for name in sorted(helpers)), *(module_digest(name) for name in sorted(modules))]
    _save(where().home)
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


@functools.cache
def _ours(name: str) -> bool:
    """Whether a module's code shapes results; a change of the ledger, of settings or of progress must make nobody pay twice."""
    keeps_books = any(f"{name}.".startswith(f"{wing}.") for wing in BOOKKEEPING)
    return name.split(".")[0] in PROJECT and name not in DECLARATIONS and not keeps_books


def module_digest(name: str) -> str:
    """Digest of a module's code with comments and docstrings dropped."""
    return _summary(name).digest


@functools.cache
def _summary(name: str) -> SourceSummary:
    """What a module's code says, from the home where its file is known there."""
    key = hashlib.sha256(f"{sys.version_info[:2]}\n".encode() + _source(name)).hexdigest()
    known = _known(where().home)
    if key not in known.summaries:
        known.summaries[key] = _read(_tree(name))
        known.is_new = True
    known.used.add(key)
    return known.summaries[key]


def _read(tree: ast.Module) -> SourceSummary:
    names, attributes = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            attributes |= {f"{node.module}.{alias.name}" for alias in node.names}
    return SourceSummary(hashlib.sha256(ast.dump(tree).encode()).hexdigest(), sorted(names), sorted(attributes))


@functools.cache
def _known(home: Path) -> KnownSources:
    """What is known in a home; nothing where its file is missing or damaged."""
    known = KnownSources()
    with contextlib.suppress(OSError, ValueError):
        known.summaries = SUMMARIES.validate_json((home / FILE).read_bytes())
    return known


def _save(home: Path) -> None:
    known = _known(home)
    if not known.is_new:
        return
    if len(known.summaries) > MOST_KNOWN:
        known.summaries = {key: known.summaries[key] for key in known.used}
    with contextlib.suppress(OSError):  # a home that cannot be written to: the next process parses again
        write_text(home / FILE, SUMMARIES.dump_json(known.summaries).decode())
    known.is_new = False


@functools.cache
def _source(name: str) -> bytes:
    """The source of a module as this process first saw it: what is hashed and what is parsed are the same bytes."""
    module = sys.modules.get(name) or importlib.import_module(name)
    return Path(inspect.getfile(module)).read_bytes()


@functools.cache
def _tree(name: str) -> ast.Module:
    """A module's code, parsed, with comments and docstrings dropped."""
    return _without_docstrings(ast.parse(_source(name)))


def _own_tree(thing: Callable[..., Any]) -> ast.Module:
    """The same of a function or class of a module alone."""
    for node in _tree(thing.__module__).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == thing.__qualname__:
            return ast.Module(body=[node], type_ignores=[])
    # Not at the top of its file. That `inspect` finds it there too takes it a hundred times as long.
    return _without_docstrings(ast.parse(inspect.cleandoc("\n" + inspect.getsource(thing))))


@functools.cache
def _imports(name: str) -> frozenset[str]:
    """The modules that a module's code may import."""
    summary = _summary(name)
    return frozenset([*summary.names, *(child for child in summary.attributes if _ours(child) and _is_module(child))])


@functools.cache
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
