"""No refusal that depends on one record goes unnamed: all that the code behind the door can raise is on the printed list."""

from pathlib import Path

import pytest

from sfumato.methods import METHODS
from sfumato.privacy.refusals import REFUSALS, in_words
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
    "sfumato.sources.loading.Gathering.images": 1,
    "sfumato.sources.pictures.check_same_shape": 1,
    "sfumato.sources.pictures.check_same_unit": 1,
}
"""How often the functions that are listed by themselves refuse, so that one more refusal in them is seen."""
DOCS = Path(__file__).parents[3]
OTHERWISE = {
    "artifacts": "the store, the run's record, and the place that is published to",
    "artifacts.approval": "a person's decision",
    "sfumato.backbone": "the shape of images",
    "sfumato.image_folder": "the place that is published to",
    "sfumato.privacy.door._unchanged": "when files were written",
    "sfumato.settings": "settings",
    "sfumato.named_settings": "settings",
    "sfumato.released": "the version that a published model was written by",
    "sfumato.sources.glyphs": "settings",
    "sfumato.sources.shapes": "settings",
    "sfumato.label_rows": "the shape of images, and the numbers of classes",
    "sfumato.latents": "the shape of images",
    "sfumato.methods": "settings, and what was paid",
    "sfumato.networks": "settings",
    "sfumato.privacy.accounting.accountant": "settings",
    "sfumato.retrieval.features": "the packages that are installed",
    "sfumato.privacy.auditing.audit": "settings",
    "sfumato.privacy.ledger.balance": "the ledger",
    "sfumato.privacy.ledger.chain": "the ledger",
    "sfumato.privacy.exact": "settings: how much noise there is",
    "sfumato.privacy.accounting.gdp": "settings",
    "sfumato.privacy.ledger.ledger": "the ledger: what was paid before, and what is planned",
    "sfumato.privacy.ledger.signing": "the ledger and its key",
    "sfumato.privacy.engine.validation": "the network, tried on images made up for it",
    "sfumato.sources": "settings",
    "sfumato.sources.catalogue": "settings",
    "sfumato.sources.identity": "settings, and which files there are",
    "sfumato.sources.mixture": "settings, and public sources",
    "tasks": "the environment",
}
"""Functions and modules that also refuse behind the door, but for reasons other than a record's content: these reasons."""


def result():
    roots = [(name, function) for name in DOORS for function in reach.module(name).functions]
    for method in METHODS.values():
        roots += [(method.module, hook) for hook in HOOKS if hook in reach.module(method.module).functions]
    return reach.refusals(reach.reached(roots), {"BadInput", "Refused"})


RAISED = result()


def under(function, prefixes):
    """The longest of these names that a function is, or lies in."""
    return max((prefix for prefix in prefixes if f"{function}.".startswith(f"{prefix}.")), key=len, default="")


def test_every_refusal_behind_the_door_is_listed_or_goes_by_public_facts():
    """A new one: decide it from public facts (then `OTHERWISE`), or add what it tells to `REFUSALS`."""
    known = {where: refusal.name for refusal in REFUSALS for where in refusal.where} | OTHERWISE
    unnamed = sorted(function for function in RAISED if not under(function, known))
    assert unnamed == [], "add each to REFUSALS in sfumato/privacy/refusals.py, or to OTHERWISE"
    assert len(RAISED) > 60, "the search still finds its way"


def test_no_refusal_is_listed_that_is_not_there():
    used = {
        under(function, [w for refusal in REFUSALS for w in refusal.where] + list(OTHERWISE)) for function in RAISED
    }
    assert {where for refusal in REFUSALS for where in refusal.where} - used == set()
    assert len({refusal.name for refusal in REFUSALS}) == len(REFUSALS)


def test_functions_listed_by_themselves_refuse_as_often_as_they_did():
    assert {function: RAISED[function] for function in SINGLE} == SINGLE


@pytest.mark.parametrize("page", ["docs/privacy.md"])
def test_the_pages_print_the_list(page):
    lines = "\n".join(f"  - {refusal.name}: {refusal.tells}" for refusal in REFUSALS)
    assert lines in (DOCS / page).read_text(encoding="utf-8"), f"under 'What is not covered' of {page}:\n{lines}"


def test_the_sentence_says_what_each_refusal_tells():
    assert all(refusal.tells in in_words() and refusal.name in in_words() for refusal in REFUSALS)


def test_a_refusal_in_a_function_that_is_only_reached_is_found():
    """Over a name, a table of functions, a method and a closure."""
    assert {
        "sfumato.sources.folders.by_prefix",
        "sfumato.sources.tables.opened_table",
        "sfumato.privacy.ledger.balance.check_set",
        "sfumato.sources.npz.levels",
    } <= set(RAISED)
