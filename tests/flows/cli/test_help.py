"""Help: every command explains itself, and is listed."""

import pytest

from flows.cli import main


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["run"],
        ["plan"],
        ["show"],
        ["publish"],
        *(["generate"], ["request-release"], ["approve"]),
        ["ledger"],
        ["ledger", "show"],
        ["ledger", "budget"],
        ["ledger", "verify"],
        ["check"],
        ["rehearse"],
        ["compare"],
        ["sweep"],
        ["serve"],
        ["status"],
    ],
    ids=lambda command: " ".join(command) or "sfumato",
)
def test_every_command_explains_itself(sfumato, command):
    shown = sfumato(*command, "--help")
    assert shown.code == 0 and shown.err == ""
    assert "Usage:" in shown.out and "--help" in shown.out and len(shown.out.splitlines()) > 5


def test_every_command_is_known_to_these_tests():
    known = {"run", "plan", "show", "publish", "audit", "check", "compare", "sweep", "explain"}
    known |= {
        *("approve", "request-release"),
        *("generate", "verify-card"),
        "ledger",
        "migrate",
        "prune",
        "presets",
        "rehearse",
        "report",
        "reproduce",
        "serve",
        "settings",
        "status",
    }
    assert set(main.COMMANDS) == known
    assert set(main.load("ledger").commands) == {
        *("show", "budget", "join", "differ", "verify", "witness", "recover", "replay", "key", "export")
    }


def test_help_lists_every_command_with_the_first_line_of_its_own_help(sfumato, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    listed = " ".join(sfumato("--help").out.split())
    for name in main.COMMANDS:
        first = main.load(name).help.splitlines()[0].strip()
        assert " ".join(first.split()) in listed, name
