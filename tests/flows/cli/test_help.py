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


def test_a_misspelt_command_is_answered_by_those_of_nearly_its_name(sfumato):
    ended = sfumato("plna")
    assert (
        ended.code == 2 and ended.err == "sfumato: No such command 'plna': did you mean 'plan'? (see sfumato --help)\n"
    )
    assert "No such command 'xyz'. (see" in sfumato("xyz").err


def test_no_group_offers_a_completion_that_the_whole_does_not_have(sfumato):
    assert "--install-completion" not in sfumato("ledger", "--help").out + sfumato("--help").out


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
