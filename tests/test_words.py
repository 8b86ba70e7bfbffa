"""A value is named by what it holds: not by how the program came by it."""

import ast
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from tests.source_code import ROOT, Source, nodes, source, tree

HOW = {"found", "asked", "told", "kept", "said"}
"""Words that say how a value was come by, and not what it is."""
STILL: dict[str, set[str]] = {}
"""Names from before the rule, by file: the list may shrink."""


def names_what_it_holds(file: Source) -> Iterator[str]:
    """Variables, parameters, fields, attributes, functions and classes are named by what they hold or do."""
    for name, line in bound(file):
        if HOW & set(name.lower().split("_")) and name not in STILL.get(file.path, set()):
            yield f"line {line}: {name} says how the value was come by; name it by what it holds"


def bound(file: Source) -> Iterator[tuple[str, int]]:
    """Every name that the file binds, and every attribute that it reads or sets, with its line."""
    yield PurePath(file.path).stem, 1
    for node in nodes(file):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno


def test_names_say_what_a_value_is():
    complaints = [f"{file.path}: {complaint}" for file in tree() for complaint in names_what_it_holds(file)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    "text",
    [
        "found = 1",
        "found: int = 1",
        "(a, told), b = (1, 2), 3",
        "for kept in (1, 2):\n    print(kept)",
        "def f(asked):\n    return asked",
        "def f(*, said=3):\n    return said",
        "def told_apart(a, b):\n    return a == b",
        "class Found:\n    kept_prints: int = 0",
        "def f(value):\n    return value.found_entries",
        "if (found := f()):\n    print(found)",
        "rows = [asked for asked in range(3)]",
        "from artifacts.store import Store as Kept",
        "try:\n    f()\nexcept ValueError as told:\n    print(told)",
        "_KEPT = 3",
        "f = lambda found: found",
    ],
)
def test_the_rule_sees_a_name_that_hides_its_value(text):
    assert list(names_what_it_holds(source("sfumato/x.py", text)))


def test_the_rule_lets_words_of_sentences_and_keys_be():
    text = 'def f(entries):\n    """What was found."""\n    return {"kept": entries, "told": "said so"}  # as asked\n'
    assert not list(names_what_it_holds(source("sfumato/x.py", text)))


def test_tests_and_benchmarks_name_no_value_by_such_a_word_alone():
    paths = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    hits = [
        f"{path}: {line}: {name}"
        for path, text in texts.items()
        for name, line in bound(source(path, text))
        if name in HOW
    ]
    assert len(paths) > 200 and not hits, "\n".join(hits)


def test_the_list_of_old_names_holds_no_others():
    files = {file.path: file for file in tree()}
    for path, names in STILL.items():
        assert names <= {name for name, _ in bound(files[path])}, path


def test_a_name_is_read_word_by_word():
    for name in ("foundation", "asking", "untold"):
        assert not list(names_what_it_holds(source("sfumato/x.py", f"{name} = 1")))
