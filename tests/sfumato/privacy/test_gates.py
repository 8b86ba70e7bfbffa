"""No refusal that depends on one record goes unnamed: all that the code behind the door can raise is on the printed list."""

from pathlib import Path

import pytest

from sfumato.methods import METHODS
from sfumato.privacy.gates import GATES, OTHERWISE, in_words
from tests import reach

DOORS = (
    "sfumato.privacy.door",
    "sfumato.privacy.auditing.looks",
    "sfumato.privacy.mechanisms",
    "sfumato.privacy.shards",
    "tasks.checks",
    "artifacts.certify",
    "artifacts.publish",
)
"""Where private images are handled, or what was found in them is judged."""
HOOKS = ("ballot", "corrupt", "draw_privately", "finish", "loss")
"""What a mechanism calls in the file of a method."""
SINGLE = {
    "sfumato.privacy.ledger.balance.check_change": 3,
    "sfumato.privacy.ledger.balance.check_set": 3,
    "sfumato.privacy.door._refuse_copies": 1,
    "sfumato.privacy.door.check_parts": 3,
    "sfumato.sources.load": 1,
    "sfumato.sources.pictures.check_same_shape": 1,
    "sfumato.sources.pictures.check_same_unit": 1,
}
"""How often the functions that are gates by themselves refuse, so that one more refusal in them is seen."""
DOCS = Path(__file__).parents[3]


def result():
    roots = [(name, function) for name in DOORS for function in reach.module(name).functions]
    for method in METHODS.values():
        roots += [(method.module, hook) for hook in HOOKS if hook in reach.module(method.module).functions]
    return reach.refusals(reach.reached(roots), {"BadInput", "Refused"})


REFUSALS = result()


def under(function, prefixes):
    """The longest of these names that a function is, or lies in."""
    return max((prefix for prefix in prefixes if f"{function}.".startswith(f"{prefix}.")), key=len, default="")


def test_every_refusal_behind_the_door_is_a_gate_or_goes_by_public_facts():
    """A new one: decide it from public facts (then `OTHERWISE`), or add what it tells to `GATES`."""
    known = {where: gate.name for gate in GATES for where in gate.where} | OTHERWISE
    unnamed = sorted(function for function in REFUSALS if not under(function, known))
    assert unnamed == [], "add each to GATES or OTHERWISE in sfumato/privacy/gates.py"
    assert len(REFUSALS) > 60, "the search still finds its way"


def test_no_gate_is_listed_that_is_not_there():
    used = {under(function, [w for gate in GATES for w in gate.where] + list(OTHERWISE)) for function in REFUSALS}
    assert {where for gate in GATES for where in gate.where} - used == set()
    assert len({gate.name for gate in GATES}) == len(GATES)


def test_gates_by_themselves_refuse_as_often_as_they_did():
    assert {function: REFUSALS[function] for function in SINGLE} == SINGLE


@pytest.mark.parametrize("page", ["docs/privacy.md"])
def test_the_pages_print_the_list(page):
    lines = "\n".join(f"  - {gate.name}: {gate.tells}" for gate in GATES)
    assert lines in (DOCS / page).read_text(encoding="utf-8"), f"under 'What is not covered' of {page}:\n{lines}"


def test_the_sentence_says_what_each_gate_tells():
    assert all(gate.tells in in_words() and gate.name in in_words() for gate in GATES)


def test_a_refusal_in_a_function_that_is_only_reached_is_found():
    """Over a name, a table of functions, a method and a closure."""
    assert {
        "sfumato.sources.folders.by_prefix",
        "sfumato.sources.tables.opened_table",
        "sfumato.privacy.ledger.balance.check_set",
        "sfumato.sources.npz.levels",
    } <= set(REFUSALS)
