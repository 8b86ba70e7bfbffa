"""What goes from room to room goes as a frozen value: few parameters, and a list of older functions that can only shrink."""

import ast
from collections.abc import Iterator

from tests.test_house import Source, source, tree

MOST_PARAMETERS = 6
WIDE = {
    "flows/cli/compare.py": {"compare", "sweep"},
    "flows/cli/run.py": {"run"},
    "flows/compare.py": {"compare"},
    "tasks/server/serve.py": {"_watch"},
    "artifacts/certify.py": {"accept"},
    "artifacts/reports/comparison_plots.py": {"_bars"},
    "artifacts/store.py": {"keep"},
    "artifacts/tracking.py": {"log"},
    "sfumato/drawing.py": {"draw_images", "draw_set", "private_drawing"},
    "sfumato/estimate.py": {"private_seconds"},
    "sfumato/methods/dp_ensemble.py": {"averaged"},
    "sfumato/methods/empirical_denoiser.py": {"_empirical"},
    "sfumato/networks/transformer.py": {"__init__"},
    "sfumato/networks/unet.py": {"__init__"},
    "sfumato/privacy/auditing/looks.py": {"attacked", "guessed", "judged"},
    "sfumato/privacy/auditing/white_box.py": {"play_training"},
    "sfumato/privacy/engine/capture.py": {"_conv", "_conv_transpose", "_embedding"},
    "sfumato/privacy/engine/distributed.py": {"help_training"},
    "sfumato/privacy/engine/dp_sgd.py": {"train_privately"},
    "sfumato/privacy/ledger/chain.py": {"_append"},
    "sfumato/privacy/ledger/ledger.py": {"_refusal", "check", "look", "override"},
    "sfumato/privacy/mechanisms.py": {
        "drawn",
        "fine_tuned",
        "fine_tuned_beside",
        "noised_records",
        "noisy_head",
        "noisy_moments",
        "noisy_votes",
        "unprotected",
    },
    "sfumato/privacy/shards.py": {"shard_trained"},
    "sfumato/rehearsal.py": {"rehearse"},
}
"""Functions of more parameters than that, and no reason in their docstring: the list may shrink. `self` and the run are not counted.

The docstring of a command of the terminal is what its help shows, so those stand here.
"""
REASON = "Many parameters: "
"""Begins the sentence of a docstring that says why a function takes more, such as a formula with so many symbols."""


def few_parameters(file: Source) -> Iterator[str]:
    """What goes from room to room goes as a frozen value, not as a dozen arguments."""
    for name, count, line in unreasoned(file):
        if name not in WIDE.get(file.path, set()):
            yield (
                f"line {line}: {name} takes {count} parameters: group what belongs together in a frozen value, or say why not in a "
                f"sentence of its docstring that begins with {REASON!r}"
            )


def unreasoned(file: Source) -> Iterator[tuple[str, int, int]]:
    """Functions of too many parameters whose docstring does not say why, with the number of their parameters and their lines."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(one.arg not in ("self", "cls", "context") for one in given)
            if count > MOST_PARAMETERS and REASON not in (ast.get_docstring(node) or ""):
                yield node.name, count, node.lineno


def test_no_further_function_takes_many_parameters():
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


def test_the_list_names_nothing_that_needs_no_place_on_it():
    files = {file.path: file for file in tree()}
    for path, names in WIDE.items():
        assert names == {name for name, _, _ in unreasoned(files[path])}, path
