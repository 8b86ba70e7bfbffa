"""The pages say what the program says."""

from pathlib import Path

import pytest

from flows.cli import main
from sfumato.methods import METHODS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", METHODS)
def test_the_page_on_privacy_holds_what_explain_prints(name):
    assert f"### {name}\n\n{METHODS[name].PROMISE}\n" in (DOCS / "privacy.md").read_text(encoding="utf-8")


def test_every_command_on_the_page_exists():
    known, ledger = set(main.COMMANDS), set(main.load("ledger").commands)
    words = (DOCS / "privacy.md").read_text(encoding="utf-8").replace("`", " ").split()
    for at, word in enumerate(words[:-2]):
        if word == "sfumato":
            assert words[at + 1] in known | {"ledger"}, words[at : at + 3]
            assert words[at + 1] != "ledger" or words[at + 2] in ledger, words[at : at + 3]
