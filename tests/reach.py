"""What a set of functions can reach in the project's own code, read from the source: over names, attributes and methods.

A method is reached by its name alone, in whatever class of a module that the way there has touched, so that more is found
than can happen, and not less.
"""

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ("sfumato", "tasks", "artifacts")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One file."""

    functions: Mapping[str, Function]
    """By name, methods as `Class.method`."""
    classes: Mapping[str, list[str]]
    """The methods of each class."""
    names: Mapping[str, tuple[str, str]]
    """What is imported: name -> (module, name there), the latter empty for a module itself."""
    tables: Mapping[str, ast.expr]
    """What is set once, such as a table of functions."""


@functools.cache
def module(name: str) -> Module:
    """A module of the project, parsed."""
    place = ROOT / name.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions: dict[str, Function] = {}
    classes: dict[str, list[str]] = {}
    names: dict[str, tuple[str, str]] = {}
    tables: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, Function):
            functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            own = [part for part in node.body if isinstance(part, Function)]
            functions |= {f"{node.name}.{part.name}": part for part in own}
            classes[node.name] = [part.name for part in own]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            tables |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PROJECT:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                home = (inner, "") if exists(inner) else (node.module, alias.name)
                names[alias.asname or alias.name] = home
    return Module(functions, classes, names, tables)


def exists(name: str) -> bool:
    """Whether there is a module of the project by that name."""
    place = ROOT / name.replace(".", "/")
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def resolved(where: str, name: str) -> tuple[str, str] | None:
    """The module and name behind a name, re-exports followed."""
    place = module(where)
    if name in place.functions or name in place.classes or name in place.tables:
        return where, name
    if name not in place.names:
        return None
    there, inner = place.names[name]
    return (there, "") if not inner else resolved(there, inner)


def reached(roots: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Every function, as (module, name), that can be called from these."""
    todo, seen, called, touched = list(roots), set(), set(), set()
    while todo:
        where, name = todo.pop()
        if (where, name) in seen:
            continue
        seen.add((where, name))
        body = module(where).functions.get(name) or module(where).tables.get(name)
        if body is None:  # a class: its methods are reached where something of their name is called
            touched.add((where, name))
            own = [f"{name}.{method}" for method in module(where).classes.get(name, ()) if method.startswith("__")]
            todo += [(where, method) for method in own]
        else:
            if "." in name:
                touched.add((where, name.partition(".")[0]))
            for node in ast.walk(body):
                if isinstance(node, ast.Name) and (home := resolved(where, node.id)) and home[1]:
                    todo.append(home)
                if isinstance(node, ast.Attribute):
                    called.add(node.attr)
                    base = resolved(where, node.value.id) if isinstance(node.value, ast.Name) else None
                    if base and not base[1] and (home := resolved(base[0], node.attr)) and home[1]:
                        todo.append(home)
        for there, kind in touched:
            methods = [f"{kind}.{method}" for method in module(there).classes.get(kind, ()) if method in called]
            todo += [(there, method) for method in methods if (there, method) not in seen]
    return seen


def refusals(functions: Iterable[tuple[str, str]], kinds: Iterable[str]) -> Counter[str]:
    """How often each function, as `module.name`, makes one of these exceptions."""
    counts: Counter[str] = Counter()
    for where, name in functions:
        body = module(where).functions.get(name)
        for node in ast.walk(body) if body else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                counts[f"{where}.{name}"] += node.func.id in kinds
    return +counts
