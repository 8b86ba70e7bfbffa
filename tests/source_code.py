"""The source of the four folders, as the rules about it read it: imports, names and texts of each file."""

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "flows": {"flows", "tasks", "artifacts", "sfumato"},
    "tasks": {"tasks", "artifacts", "sfumato"},
    "artifacts": {"artifacts", "sfumato"},
    "sfumato": {"sfumato"},
}
"""Which of the four folders each may import."""


class Source(NamedTuple):
    """A file and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """Its dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Import(NamedTuple):
    """One imported name."""

    module: str
    name: str
    bound: str
    """What it is called here."""
    line: int
    late: bool
    """Inside a function."""


def source(path: str, text: str) -> Source:
    """A file as the rules want it."""
    return Source(path, text, ast.parse(text))


@functools.cache
def tree() -> tuple[Source, ...]:
    """All files of the four folders."""
    return tuple(
        source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


def once(reader: Callable[[Source], Iterator[T]]) -> Callable[[Source], tuple[T, ...]]:
    """All that a reader finds in a file, read once, since many rules ask for the same."""
    return functools.cache(lambda file: tuple(reader(file)))


@once
def nodes(file: Source) -> Iterator[ast.AST]:
    """All of its syntax tree."""
    yield from ast.walk(file.tree)


@once
def imports(file: Source) -> Iterator[Import]:
    """Every imported name of a file."""
    late = {inner for outer in nodes(file) if isinstance(outer, ast.FunctionDef) for inner in ast.walk(outer)}
    for node in nodes(file):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", alias.asname or alias.name.split(".")[0], node.lineno, node in late)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(module, alias.name, alias.asname or alias.name, node.lineno, node in late)


@once
def attributes(file: Source) -> Iterator[tuple[str, int]]:
    """Dotted names as they are written, such as `torch.cuda.is_available`, with their lines."""
    for node in nodes(file):
        parts, inner = [], node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name):
            yield ".".join([inner.id, *reversed(parts)]), node.lineno


@once
def texts(file: Source) -> Iterator[tuple[str, int]]:
    """Strings that the program uses: docstrings and texts under attributes are left out."""
    spoken = {id(node.value) for node in nodes(file) if isinstance(node, ast.Expr)}
    for node in nodes(file):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            yield node.value, node.lineno


@once
def names(file: Source) -> Iterator[tuple[str, int]]:
    """Plain names, arguments and keywords."""
    for node in nodes(file):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value.lineno


def in_folder(file: Source, *folders: str) -> bool:
    """Whether a file lies in one of these folders."""
    return any(file.path.startswith(f"{folder}/") for folder in folders)
