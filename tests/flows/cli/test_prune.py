"""`sfumato prune` shows what may go, and removes it only where it is told to."""

import os

import pytest
from rich.console import Console

from flows.cli import main, prune
from tasks.runtime.environment import configure
from tests.examples import home_at


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(prune, "OUT", Console(width=200))
    with home_at(tmp_path / "home") as home:
        configure()
        for name in ("runs/died", "states/key"):
            (home / name).mkdir(parents=True)
            (home / name / "file").write_bytes(b"x" * 2_000)
            os.utime(home / name / "file", (0, 0))
            os.utime(home / name, (0, 0))
        yield home


def test_it_shows_and_removes_nothing_unless_it_is_told_to(home, capsys):
    main.app(["prune"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "folders of runs that did not end" in shown and "2.0 kB" in shown
    assert "stay: a stopped run goes on from them; --unended removes them too" in shown
    assert "nothing was removed; `sfumato prune --yes` removes 2.0 kB" in shown
    assert (home / "runs/died").exists() and (home / "states/key").exists()


def test_saved_states_go_where_they_are_named(home, capsys):
    main.app(["prune", "--yes"], standalone_mode=False)
    assert not (home / "runs/died").exists() and (home / "states/key").exists()
    main.app(["prune", "--yes", "--unended"], standalone_mode=False)
    assert not (home / "states/key").exists()
    assert capsys.readouterr().out.count("removed: 2.0 kB") == 2
