"""What goes between rooms is typed: no bag of arguments is filled in one room and unpacked in another, and lists of exceptions only shrink."""

import ast
from collections.abc import Iterator

import pytest

from tests.source_code import FOLDERS, Source, imports, nodes, source, tree

CONVERSIONS = {"model_dump", "_asdict"}
"""Ways to turn a frozen value into arguments for another that has its fields; the types of both are there to read."""
READ_BACK = "fields of a file, read back into the value that was written there, which checks them"
UNPACKED = {
    ("artifacts/serialization.py", "Canaries"): READ_BACK,
    ("sfumato/formats.py", "Backbone"): READ_BACK,
    ("sfumato/formats.py", "ClassMaps"): READ_BACK,
    ("sfumato/formats.py", "KnowledgeBase"): READ_BACK,
    ("sfumato/formats.py", "Reference"): READ_BACK,
    ("sfumato/released.py", "PartFolders"): READ_BACK,
    ("tasks/audit.py", "Audit"): READ_BACK,
}
"""Where a bag is unpacked into a function or a value of another file, by file and callee."""
AS_STORED = "the JSON of a ledger entry, a card, a page or a screen, as it stands there"
BAGS = {
    ("flows/cli/ledger_screen.py", "total_lines"): AS_STORED,
    ("artifacts/gate.py", "save_how"): AS_STORED,
    ("artifacts/reports/spending.py", "page"): AS_STORED,
    ("sfumato/formats.py", "save"): AS_STORED,
    ("sfumato/privacy/ledger/chain.py", "write"): AS_STORED,
    ("sfumato/privacy/ledger/ledger.py", "override"): AS_STORED,
    ("sfumato/privacy/ledger/ledger.py", "reserve"): AS_STORED,
    ("sfumato/verify_card.py", "check_files"): AS_STORED,
    ("sfumato/verify_card.py", "check_privacy"): AS_STORED,
    ("sfumato/verify_card.py", "check_signature"): AS_STORED,
}
"""Public functions that take anything by name, by file and name."""


def unpacked(file: Source) -> Iterator[tuple[str, int]]:
    """Calls of what another file of the project has, with a bag unpacked into them: the callee, and the line."""
    elsewhere = {one.bound for one in imports(file) if one.module.split(".")[0] in FOLDERS}
    for node in nodes(file):
        if isinstance(node, ast.Call) and any(key.arg is None and not converted(key.value) for key in node.keywords):
            callee = ast.unparse(node.func)
            if callee.split(".")[0] in elsewhere:
                yield callee, node.lineno


def converted(value: ast.expr) -> bool:
    """Whether what is unpacked is a frozen value, turned into its fields in that very place."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in CONVERSIONS


def bags(file: Source) -> Iterator[tuple[str, str, int]]:
    """Parameters that are bags, of functions that other files may call: function, parameter, line."""
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                if one.annotation and "dict[str, Any]" in ast.unparse(one.annotation):
                    yield node.name, one.arg, node.lineno


def no_bag(file: Source) -> Iterator[str]:
    """What goes from room to room is a frozen value whose fields have types, and no dictionary of anything."""
    for callee, line in unpacked(file):
        if (file.path, callee) not in UNPACKED:
            yield f"line {line}: a bag is unpacked into {callee}: hand a frozen value on"
    for function, name, line in bags(file):
        if (file.path, function) not in BAGS:
            yield f"line {line}: {function} takes the bag {name}: make it a frozen value"


def no_looking_for_attributes(file: Source) -> Iterator[str]:
    """A value declares what it can do; nobody looks whether it happens to have a name."""
    if file.path.startswith(("sfumato/", "tasks/")) and file.path not in FOREIGN:
        for node in nodes(file):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr":
                yield f"line {node.lineno}: hasattr"


FOREIGN = {
    "sfumato/networks/diffusers_models.py": "models of another library",
    "sfumato/networks/checkpointing.py": "modules of networks, which may come from elsewhere",
    "sfumato/privacy/engine/arithmetic.py": "which version of PyTorch this is",
    "sfumato/privacy/engine/repeating.py": "state of any module, whatever it keeps",
}
BROKEN = [
    (no_bag, "tasks/x.py", "from sfumato import sources\ncommon = {'size': 8}\nsources.load('digits', **common)"),
    (no_bag, "sfumato/x.py", "from sfumato.config import Data\ndef f(options):\n    return Data(**options)"),
    (no_bag, "flows/x.py", "from tasks.release import publish_run\npublish_run(record, **(given | more))"),
    (no_bag, "tasks/x.py", "def close(record, facts: dict[str, Any]):\n    return record"),
    (no_bag, "tasks/x.py", "def close(record, *, facts: dict[str, Any] | None = None):\n    return record"),
    (no_looking_for_attributes, "sfumato/recipe/method_settings.py", "if hasattr(settings.method, 'members'): pass"),
]
"""Snippets that break each rule."""
RULES = (no_bag, no_looking_for_attributes)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_goes_between_rooms_is_typed(rule):
    complaints = [f"{file.path}: {complaint}" for file in tree() for complaint in rule(file)]
    assert not complaints, "\n".join([rule.__doc__, *complaints])


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN)
def test_the_rule_sees_what_breaks_it(rule, path, text):
    assert list(rule(source(path, text)))


def test_a_frozen_value_may_become_another_one_that_has_its_fields():
    text = "from sfumato.config import Training\nTraining(**settings.training.model_dump())"
    assert not list(no_bag(source("tasks/x.py", text)))


def test_every_exception_is_still_needed():
    files = {file.path: file for file in tree()}
    assert set(UNPACKED) == {(path, callee) for path in files for callee, _ in unpacked(files[path])}
    assert set(BAGS) == {(path, function) for path in files for function, _, _ in bags(files[path])}
    for path in FOREIGN:
        assert "hasattr(" in files[path].text
