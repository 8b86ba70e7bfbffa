"""Every benchmark says what it is for, begins with nothing but definitions, and finds what it imports; the pages show
the figures that were kept."""

import ast
import importlib
import importlib.util
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ("sfumato", "artifacts", "tasks", "flows", "tests")
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
PAGES = runpy.run_path(str(ROOT / "benchmarks" / "pages.py"))
RECORD = runpy.run_path(str(ROOT / "benchmarks" / "record.py"))
FIRST = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
CLAIMS = re.findall(r"^\| (?!claim|---)(.+?) \| (.+?) \| `(.+?)` \| (.+?) \|$", FIRST, re.MULTILINE)
FIGURE = re.compile(r"(?<![\w.,])-?\d*\.\d+(?![\w.])")
TABLE = "| pairs | search, us a query | time, CPU s | of all |\n| --- | --- | --- | --- |\n| 1,030 of 2,000 | 12.5 | .4 | 5% |\n"


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


def figures(retained) -> set[float]:
    """Every number of a file of results, also those within a text."""
    if isinstance(retained, dict | list):
        return set().union(*map(figures, retained.values() if isinstance(retained, dict) else retained))
    if isinstance(retained, str):
        return {float(text.replace(",", "")) for text in re.findall(r"-?\d[\d,]*\.?\d*|-?\.\d+", retained)}
    return set() if isinstance(retained, bool) else {float(retained)}


def unkept(text: str, names: set[str]) -> list[str]:
    """The decimal fractions of a text that none of these files holds, rounded as they are shown."""
    there = set().union(
        *(
            figures({key: PAGES["results"](name).get(key, {}) for key in ("tables", "by hand", "lines")})
            for name in names
        )
    )
    return [
        shown
        for shown in FIGURE.findall(text)
        if not any(round(value, len(shown.partition(".")[2])) == float(shown) for value in there)
    ]


def test_pages_show_the_figures_that_were_kept():
    stale = [page.name for page in PAGES["pages"]() if PAGES["filled"](page.read_text()) != page.read_text()]
    assert stale == [], "write them anew: benchmarks/pages.py"


WRITTEN_BY_COMMAND = "papers.md"
"""A page that a command writes whole; `tests/artifacts/reports/test_papers.py` compares it with its results."""
HAND_WRITTEN = [page for page in sorted((ROOT / "docs" / "results").glob("*.md")) if page.name != WRITTEN_BY_COMMAND]


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: page.stem)
def test_what_a_page_of_results_says_in_passing_is_kept_too(page):
    text = page.read_text(encoding="utf-8")
    names = {block[0] for block in PAGES["BLOCK"].findall(text)}
    own_words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", PAGES["BLOCK"].sub("", text))
    assert unkept(re.sub(r"\b[a-z]+ = \.\d( T)?|guidance \.\d", "", own_words), names) == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[0])
def test_a_claim_has_its_figure_and_its_command_in_its_file(claim):
    _, figure, command, files = claim
    names = set(re.findall(r"results/([\w-]+)\.json", files))
    assert names and unkept(figure, names) == []
    first = PAGES["results"](re.search(r"results/([\w-]+)\.json", files)[1])["command"]
    assert first.startswith(command) or not first


def test_every_file_of_results_is_named_and_says_where_it_comes_from():
    assert "results/papers/ROW.json" in FIRST and sorted((ROOT / "benchmarks" / "results" / "papers").glob("*.json"))
    for path in RESULTS:
        retained = json.loads(path.read_text(encoding="utf-8"))
        assert f"results/{path.name}" in FIRST, path.name
        assert retained["measured"] and retained["commit"] and retained["machine"]["cores"], path.name
        for table in [*retained["tables"].values(), *retained.get("by hand", {}).values()]:
            assert {len(table["columns"])} == {len(table["units"]), *map(len, table["rows"])}, path.name


def test_the_first_page_shows_figures_of_the_targets():
    rows = re.search(r"## What you get\n(.*?)\n## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    names = {
        "targets-mnist",
        "targets-mnist-private-evolution",
        "targets-mnist-dp-merf-1",
        "targets-mnist-moments",
        "targets-photos-moments-bands",
        "targets-xrays-shapes",
        "compare-epsilons",
    }
    assert unkept(re.sub(r"\]\([^)]*\)", "", rows), names) == []


def test_printed_tables_are_kept_as_numbers_with_their_units(tmp_path):
    (table,), others = RECORD["tables"](f"before\n\n{TABLE}after\n")
    assert table["columns"] == ["pairs", "search", "time", "of all"] and table["units"] == [
        "",
        "us a query",
        "CPU s",
        "",
    ]
    assert table["rows"] == [["1,030 of 2,000", 12.5, 0.4, "5%"]] and others == ["before", "after"]
    assert [RECORD["cell"](text) for text in ("1,030", "3e-4", "-.5", "-", "", "inf")] == [
        1030,
        3e-4,
        -0.5,
        "-",
        "",
        "inf",
    ]


def test_a_recorded_command_keeps_its_tables_under_their_names(tmp_path, monkeypatch, capsys):
    script = tmp_path / "one.py"
    script.write_text(f"print({TABLE!r})")
    main = RECORD["main"]
    monkeypatch.setitem(main.__globals__, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["record.py", "one", str(script)])
    main()
    retained = json.loads((tmp_path / "one.json").read_text())
    assert retained["tables"]["table 1"]["rows"] and retained["machine"]["torch"] and "12.5" in capsys.readouterr().out
    retained["tables"] = {"pairs": retained["tables"]["table 1"]}
    (tmp_path / "one.json").write_text(json.dumps({**retained, "by hand": {"tried": {}}, "carried over": True}))
    monkeypatch.setattr(sys, "argv", ["record.py", "one"])
    main()
    again = json.loads((tmp_path / "one.json").read_text())
    assert list(again["tables"]) == ["pairs"] and "by hand" in again and "carried over" not in again


def test_every_known_fault_can_still_be_put_in_and_names_tests_that_there_are():
    """A fault whose text is gone would be tried no more (`benchmarks/mutations.py`)."""
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "benchmarks" / "mutations.py")
    mutations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutations)
    texts = {fault.file: (ROOT / fault.file).read_text(encoding="utf-8") for fault in mutations.FAULTS}
    assert not [fault.name for fault in mutations.FAULTS if not mutations.fits(fault, texts[fault.file])]
    assert not [
        name for fault in mutations.FAULTS for name in fault.tests.split() if not (ROOT / "tests" / name).exists()
    ]
    assert len(mutations.FAULTS) >= 40 and len({fault.name for fault in mutations.FAULTS}) == len(mutations.FAULTS)
