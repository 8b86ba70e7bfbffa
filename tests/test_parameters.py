"""What goes from room to room goes as a frozen value: a function of many parameters says in its docstring why it takes them."""

import ast
from collections.abc import Iterator

from flows.cli.main import COMMANDS
from tests.source_code import Source, nodes, source, tree

MOST_PARAMETERS = 6
REASON = "Many parameters: "
"""Begins the sentence of a docstring that says why a function takes more, such as a formula with so many symbols."""


def few_parameters(file: Source) -> Iterator[str]:
    """What goes from room to room goes as a frozen value, not as a dozen arguments."""
    for name, count, line in unreasoned(file):
        yield (
            f"line {line}: {name} takes {count} parameters: group what belongs together in a frozen value, or say why not in a "
            f"sentence of its docstring that begins with {REASON!r}"
        )


def unreasoned(file: Source) -> Iterator[tuple[str, int, int]]:
    """Functions of too many parameters whose docstring does not say why, with the number of their parameters and their lines.

    `self` and the run are not counted.
    """
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not for_a_person(file, node):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(one.arg not in ("self", "cls", "context") for one in given)
            if count > MOST_PARAMETERS and REASON not in (ast.get_docstring(node) or ""):
                yield node.name, count, node.lineno


def for_a_person(file: Source, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether its parameters are what a person types or fills in, and its docstring the help beside them: a command, or a flow."""
    command = file.path == f"flows/cli/{COMMANDS.get(node.name)}.py"
    return command or any(ast.unparse(one).startswith("flow(") for one in node.decorator_list)


def test_a_function_takes_few_parameters_or_says_why():
    assert not [f"{file.path}: {complaint}" for file in tree() for complaint in few_parameters(file)]


def test_the_rule_sees_what_breaks_it():
    assert list(few_parameters(source("tasks/x.py", "def f(a, b, c, *, d, e, f, g):\n    return a")))
    assert not list(few_parameters(source("tasks/x.py", "def f(self, context, b, c, *, d, e, f, g):\n    return b")))


def test_a_reason_in_the_docstring_is_enough():
    text = 'def f(a, b, c, *, d, e, f, g):\n    """{}"""\n    return a'
    assert not list(
        few_parameters(source("tasks/x.py", text.format("Sum. Many parameters: each is a symbol of Eq. 5.")))
    )
    assert list(few_parameters(source("tasks/x.py", text.format("The sum of many parameters."))))


def test_commands_and_flows_may_take_what_a_person_gives():
    text = "{}\ndef {}(a, b, c, *, d, e, f, g):\n    return a"
    assert not list(few_parameters(source("flows/cli/run.py", text.format("", "run"))))
    assert list(few_parameters(source("flows/cli/run.py", text.format("", "_show"))))
    assert list(few_parameters(source("flows/cli/check.py", text.format("", "run"))))
    assert not list(few_parameters(source("flows/x.py", text.format("@flow(name='x')", "whole"))))
    assert list(few_parameters(source("flows/x.py", text.format("@attended", "whole"))))
