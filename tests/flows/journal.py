"""A journal that runs nothing, for tests of what a flow asks of its stages."""

import contextlib
from types import SimpleNamespace
from typing import NamedTuple

from flows import synthesize as flow
from sfumato.methods import METHODS
from sfumato.privacy.door import PrivateSet
from tasks import checks, rehearsal
from tasks.planning import plan_run
from tasks.runtime.caching import Stage

QUICK = ["fine_tuning.steps=1", "fine_tuning.sample_rate=1"]

QUERIED = "generation.classes=queried"

OF_A_WANTED_CLASS = [name for name in METHODS if name != "dppm"]


class Asked(NamedTuple):
    """What a stage was asked."""

    stage: Stage
    given: SimpleNamespace
    paid: bool = False
    note: str = ""


class Book:
    """A journal that runs nothing and remembers what it was asked."""

    def __init__(self):
        self.calls, self.context, self.private = (
            [],
            SimpleNamespace(run="run-1"),
            PrivateSet(name="digits", source="digits"),
        )
        self.refusal, self.worse = "", ()

    def until_the_end(self):
        return contextlib.nullcontext()

    def stage(self, stage, *, paid=False, note=""):
        return lambda *args, **inputs: self.run(stage.given(*args, **inputs), paid=paid, note=note)

    def run(self, call, *, paid=False, note=""):
        self.calls.append(Asked(call.stage, SimpleNamespace(**call.arguments), paid, note))
        kind = call.stage.fn.__annotations__["return"]
        return kind(digest=f"{len(self.calls):064d}", label="PUBLIC")

    def run_all(self, calls, machine):
        return [self.run(call) for call in calls]

    def of(self, stage):
        return [one for one in self.calls if one.stage is stage]


def stand_in(monkeypatch):
    """The book of a run whose checks pass and whose end is not reached, in the place of every journal."""
    book = Book()
    monkeypatch.setattr(flow.Journal, "begin", lambda settings, secret, above: book)
    monkeypatch.setattr(
        checks,
        "check_private",
        lambda order, *_: book.calls.append(Asked(SimpleNamespace(name="check"), None)) or order.private,
    )
    monkeypatch.setattr(checks, "over_budget", lambda *_: "")
    monkeypatch.setattr(flow, "conclude", lambda *_: "record")
    for last in ("show_in_ui", "tell_spent"):
        monkeypatch.setattr(flow, last, lambda *_: None)
    monkeypatch.setattr(rehearsal, "show", lambda ref, wanted, picture: book.worse)
    return book


def planned(method="rapid", *changes):
    return plan_run(method, changes=[*QUICK, *changes])


def stages(book):
    return [one.stage.name for one in book.calls]


def made(book, requested):
    """Address of what a stage was asked for."""
    return next(f"{number:064d}" for number, one in enumerate(book.calls, 1) if one is requested)
