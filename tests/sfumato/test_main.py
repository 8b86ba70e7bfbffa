"""The commands of the library alone: what the recipient of a published folder types."""

import subprocess
import sys

import pytest

from sfumato import __version__, generate, verify_card
from sfumato.__main__ import COMMANDS, main


@pytest.fixture
def typed(monkeypatch):
    """Types words after `sfumato`."""

    def type_(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["sfumato", *words])
        return main()

    return type_


def test_help_names_every_command(typed, capsys):
    assert typed() == typed("--help") == typed("-h") == 0
    reported = capsys.readouterr().out
    assert all(reported.count(f"  {name} ") == 3 for name in COMMANDS)


def test_the_version_is_told(typed, capsys):
    assert typed("--version") == 0 and capsys.readouterr().out == f"sfumato {__version__}\n"


def test_what_a_checkout_alone_can_do_is_refused_and_says_where_it_is(typed, capsys):
    assert typed("run", "rapid") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: 'run' is no command of the library (verify-card, generate)")
    assert 'pip install -e ".[flow]"' in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_is_its_own(typed, name, capsys):
    with pytest.raises(SystemExit) as ended:
        typed(name, "--help")
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(f"usage: sfumato {name} ")


def test_words_reach_the_command_and_its_code_comes_back(typed, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(verify_card, "main", lambda words: seen.append(words) or 1)
    monkeypatch.setattr(generate, "main", lambda: seen.append(sys.argv[1:]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    assert typed("verify-card", "out") == 2, "a folder without a card"
    (tmp_path / "out" / "card.json").touch()
    assert typed("verify-card", "out", "--key", "k") == 1 and typed("generate", "out", "--images", "3") == 0
    assert seen == [["out", "--key", "k"], ["out", "--images", "3"]]


@pytest.mark.parametrize("words", [["generate", "nosuch", "--images", "3"], ["verify-card", "nosuch"]])
def test_a_folder_that_is_none_ends_in_one_line(words):
    words = [sys.executable, "-m", "sfumato", *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
