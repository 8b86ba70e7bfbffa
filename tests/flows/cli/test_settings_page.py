"""The page of all settings is what the command prints, names each of them, and says what their own checks allow."""

import re
from pathlib import Path

import pytest

from flows.cli.setting_rows import listed
from flows.cli.settings_page import COMMAND, allowed
from sfumato.config import Alignment, Data, FineTuning, Generation, Network, Privacy, Recipe
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import PRESETS, names
from sfumato.settings import Settings, resolve

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "settings.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_command_prints(sfumato):
    shown = sfumato(*COMMAND.split()[1:])
    assert shown.code == 0 and shown.out == PAGE, f"print it anew: {COMMAND} > docs/settings.md"


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_stands_on_the_page_once_with_its_default_and_its_meaning(method):
    shared, _, own = PAGE.partition("\n## method\n")
    own = own.partition("\n## Presets\n")[0].partition(f"\n### {method}\n")[2].partition("\n### ")[0]
    for path, default, meaning in listed(Settings(method=METHODS[method].section())):
        part = own if path.startswith("method.") else shared
        row = f"| `{path}` | `{default}` | "
        assert path == "method.name" or (part.count(row) == 1 and meaning.replace("|", "\\|") in part), path
    assert own


def test_every_preset_stands_on_the_page():
    presets = PAGE.partition("\n## Presets\n")[2]
    assert all(f"| `{name}` | " in presets for name in names(PRESETS))


def test_every_row_has_its_four_cells():
    settings = PAGE.partition("\n## Presets\n")[0]
    rows = [line for line in settings.splitlines() if line.startswith("| `")]
    assert len(rows) > 250 and {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}


@pytest.mark.parametrize(
    ("section", "field", "words"),
    [
        (Data, "held_out", "number, above 0, below 1"),
        (Data, "size", "whole number, 0 to 1,024"),
        (Data, "classes", "list: texts"),
        (Data, "channels", "`0`, `1`, `3`"),
        (Privacy, "delta", "number or `auto`"),
        (Privacy, "reason", "text, at most 500 characters"),
        (Privacy, "delta_exponent", "number, below -1"),
        (Network, "multipliers", "list: one or more whole numbers, 1 or more"),
        (Network, "condition", "whole number, 2 or more, a multiple of 2"),
        (FineTuning, "sample_rate", "number, above 0, at most 1"),
        (FineTuning, "trainable", "list: one or more of `rows`, `film`, `attention`, `time`, `rest`"),
        (Alignment, "proportions", "list: 3 numbers, above 0"),
        (Generation, "shares", "for each name a number, 0 or more"),
        (Recipe, "choices", "filled in"),
    ],
)
def test_what_is_allowed_is_said_in_words(section, field, words):
    assert allowed(section.model_json_schema()["properties"][field]) == words


BOUND = re.compile(
    r"^\| `([\w.]+)` \| `[^`]*` \| (?:whole )?number, (?:(above|below) )?(-?[\d.]+)(?: or more| to [\d.]+)?[, |]",
    re.MULTILINE,
)


def test_what_lies_beyond_a_bound_of_the_page_is_refused():
    shared = PAGE.partition("\n## method\n")[0]
    bounds = BOUND.findall(shared)
    assert len(bounds) > 100
    for path, kind, text in bounds:
        beyond = float(text) if kind else float(text) - 1
        with pytest.raises(BadInput, match=re.escape(path)):
            resolve("rapid", "digits", [f"{path}={beyond:g}"])
