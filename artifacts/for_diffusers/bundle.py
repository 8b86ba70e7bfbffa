"""One file out of several of ours: a module with all that it uses of this program, cut from the sources, so that it runs without it.

What a module imports from this program is put in its place, definition by definition, as far as something uses it when it runs; types of
parameters are not looked up. Not covered: names that two modules give to different things, and imports under another name, which are
errors.
"""

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ("sfumato", "artifacts")


@dataclass(frozen=True)
class SourceFile:
    """A module of ours, by what it defines and imports at its top."""

    name: str
    text: str
    defined: dict[str, list[ast.stmt]]
    """Name -> its definition, with the text under it where it is a value."""
    ours: dict[str, str]
    """Name -> the module of ours that it comes from."""
    others: dict[str, str]
    """Name -> the line that imports it from elsewhere."""


def bundled(module: str) -> str:
    """The whole of a module, and of what it uses, as one text that imports nothing of ours."""
    source = read(module)
    parts: list[str] = []
    imports: set[str] = set()
    owners: dict[str, str] = {}
    for name in source.defined:
        _take(module, name, parts, imports, owners)
    text = ast.get_docstring(ast.parse(source.text), clean=False) or ""
    head = [f'"""{text}"""', "", "from __future__ import annotations", "", *sorted(imports, key=_order)]
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join(parts) + "\n"


def _take(module: str, name: str, parts: list[str], imports: set[str], owners: dict[str, str]) -> None:
    """Add a definition of a module after all that it uses."""
    if owners.setdefault(name, module) != module:
        raise ValueError(f"{name} is one thing in {owners[name]} and another in {module}: a file can hold one of them")
    source = read(module)
    text = "\n".join(_cut(source.text, node) for node in source.defined[name])
    if text in parts:
        return
    wanted = [used for node in source.defined[name] for used in _used(node)]
    inner = {one: path for node in source.defined[name] for one, path in _inner(node).items()}
    for used in dict.fromkeys(wanted):
        place = inner.get(used) or source.ours.get(used)
        if place:
            owner, known = place, read(place)
            while used not in known.defined:  # imported there in turn
                owner = known.ours[used]
                known = read(owner)
            if owners.get(used) != owner:
                _take(owner, used, parts, imports, owners)
        elif used in source.others:
            imports.add(source.others[used])
        elif used in source.defined and used != name and owners.get(used) != module:
            _take(module, used, parts, imports, owners)
    parts.append(text)


@functools.cache
def read(module: str) -> SourceFile:
    """The source of a module of ours, which need not be imported for it."""
    path = ROOT / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    defined: dict[str, list[ast.stmt]] = {}
    ours: dict[str, str] = {}
    others: dict[str, str] = {}
    last: list[ast.stmt] | None = None
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            _import(node, ours, others)
            last = None
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name], last = [node], None
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            last = [node]
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for inner in (one for target in targets for one in ast.walk(target)):
                if isinstance(inner, ast.Name):
                    defined[inner.id] = last
        elif last and isinstance(node, ast.Expr):  # the text under a value
            last.append(node)
            last = None
    return SourceFile(module, text, defined, ours, others)


def _import(node: ast.Import | ast.ImportFrom, ours: dict[str, str], others: dict[str, str]) -> None:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        if module.split(".")[0] in OURS:
            if alias.asname:
                raise ValueError(f"{module}.{alias.name} is imported under another name, {alias.asname}")
            ours[alias.name] = module
            continue
        shown = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
        line = f"from {module} import {shown}" if module else f"import {shown}"
        others[alias.asname or alias.name.split(".")[0]] = line


def _used(node: ast.stmt) -> list[str]:
    """Names that a definition looks up when it runs."""
    names = []
    for inner in ast.walk(_untyped(ast.parse(ast.unparse(node)))):
        if isinstance(inner, ast.Name):
            names.append(inner.id)
        elif isinstance(inner, ast.ImportFrom) and (inner.module or "").split(".")[0] in OURS:
            names += [alias.name for alias in inner.names]
    return names


def _inner(node: ast.stmt) -> dict[str, str]:
    """Name -> module of ours from which a definition imports it when it runs."""
    names: dict[str, str] = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.ImportFrom):
            _import(inner, names, {})
    return names


def _untyped(tree: ast.Module) -> ast.Module:
    """Without the types of parameters, results and fields, which nothing looks up when it runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            arguments = node.args
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                each.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return tree


def _cut(text: str, node: ast.stmt) -> str:
    """The lines of a definition, decorators included and imports of ours left out."""
    lines = text.splitlines()
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
    dropped = {
        line
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").split(".")[0] in OURS
        for line in range(inner.lineno, (inner.end_lineno or inner.lineno) + 1)
    }
    return "\n".join(lines[at - 1] for at in range(first, (node.end_lineno or first) + 1) if at not in dropped)


def _order(line: str) -> tuple[bool, str]:
    """Plain imports first, as a person sorts them."""
    return line.startswith("from "), line
