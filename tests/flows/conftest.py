"""The command in this process, on a home of its own."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from artifacts.tracking import Tracker
from flows.cli import main
from sfumato.preflight import preflight, private_set
from sfumato.privacy.accounting.events import Gaussian, Uncertified
from sfumato.settings import resolve
from tasks.checks import check_private
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import where
from tasks.server import embedded, serve
from tasks.terms import Order, Terms
from tests.examples import answered, home_at, write_classes


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def is_one_line(self, *words: str, code: int = 2) -> bool:
        """Whether it was refused in one line without a traceback that holds all words; fails with what is there."""
        assert self.code == code, (self.code, self.err)
        assert self.err.count("\n") == 1 and self.err.endswith("\n"), self.err
        assert self.err.startswith("sfumato: ") and "Traceback" not in self.err
        for word in words:
            assert word in self.err, (word, self.err)
        return True


@pytest.fixture
def folder(tmp_path):
    """A home of its own; the environment is as before afterwards."""
    with home_at(tmp_path / "home") as path:
        yield path


@pytest.fixture
def sfumato(folder, monkeypatch, capsys):
    """The command in this process; a run that gets as far as the flow fails the test."""

    def started(*_, **__):
        raise AssertionError("the flow was started")

    flow = ModuleType("flows.synthesize")
    flow.synthesize_planned = started
    monkeypatch.setitem(sys.modules, "flows.synthesize", flow)
    monkeypatch.setattr(serve, "serve", started)
    monkeypatch.setattr(embedded, "begin_server", answered)
    monkeypatch.setattr(Tracker, "check", lambda tracker: None)

    def command(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["sfumato", *map(str, arguments)])
        code = 0
        try:
            main.main()
        except SystemExit as leave:
            code = leave.code
        return Outcome(code, *capsys.readouterr())

    return command


@pytest.fixture
def images(tmp_path) -> Path:
    return write_classes(tmp_path / "scans", {"ill": 30, "well": 30})


@pytest.fixture
def spent(folder):
    with where().ledger() as ledger:
        terms = {"stage": "fine_tuning", "purpose": "DP-SGD", "run": "run-1", "code_version": "1", "images": "any"}
        ledger.set_budget("scans", 50.0, 1e-5)
        ledger.reserve("scans", "digest-of-scans", [Gaussian(noise_multiplier=5.0)], "add_remove", 1e-5, **terms)
        ledger.reserve("leaky", "digest-of-leaky", [Uncertified(reason="no noise")], "add_remove", 1e-5, **terms)


@pytest.fixture
def check(folder):
    """The check that every run makes of its private images before any other stage."""

    def check(*changes):
        settings, facts, _ = preflight(resolve("rapid", changes=changes))
        terms = Terms(relation="add_remove", delta=1e-5)
        order = Order(private=private_set(settings), terms=terms, machine=settings.machine)
        check_private(order, RunContext(run="run-1", parents={}), constants=facts.whole)

    return check


@pytest.fixture
def book(monkeypatch):
    """The book of a run whose checks pass and whose end is not reached."""
    from tests.flows.journal import stand_in

    return stand_in(monkeypatch)
