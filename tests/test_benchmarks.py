"""Every benchmark says what it is for, begins with nothing but definitions, and finds what it imports; figures are not tested."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ("sfumato", "artifacts", "tasks", "flows", "tests")


def complaints(path: Path) -> Iterator[str]:
    """What is wrong with a benchmark, read from its source: `--help` prints its docstring, and does nothing else."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if f"benchmarks/{path.name}" not in (ast.get_docstring(tree) or ""):
        yield "its docstring does not hold its command"
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    parsers = [call for call in calls if ast.unparse(call.func).endswith("ArgumentParser")]
    if not any("__doc__" in ast.unparse(keyword.value) for call in parsers for keyword in call.keywords):
        yield "its help is not its docstring"
    quiet = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    for node in tree.body:
        spoken = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        spoken = spoken or ast.unparse(node).startswith("os.environ.setdefault(")
        guard = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if not (isinstance(node, quiet) or spoken or guard):
            yield f"line {node.lineno} does something when it is read"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PROJECT:
            yield from (f"line {node.lineno}: no {node.module}.{one.name}" for one in node.names if missing(node, one))


def missing(node: ast.ImportFrom, one: ast.alias) -> bool:
    """Whether a name that is imported is not there."""
    try:
        if hasattr(importlib.import_module(str(node.module)), one.name):
            return False
        importlib.import_module(f"{node.module}.{one.name}")
    except ImportError:
        return True
    return False


def test_every_benchmark_explains_itself_and_finds_what_it_imports():
    files = sorted((ROOT / "benchmarks").glob("*.py"))
    assert len(files) > 10
    assert not [f"{path.name}: {complaint}" for path in files for complaint in complaints(path)]


def test_a_benchmark_that_does_not_is_found(tmp_path):
    (tmp_path / "one.py").write_text('"""Measures."""\nfrom tasks.private import nothing\nprint(1)\n')
    assert list(complaints(tmp_path / "one.py")) == [
        "its docstring does not hold its command",
        "its help is not its docstring",
        "line 3 does something when it is read",
        "line 2: no tasks.private.nothing",
    ]
