"""What tests let other processes do, and a way to start those quickly: forked from one that has everything loaded."""

import gc
import itertools
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
import torch

from sfumato import sources
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput, Refused
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts
from sfumato.methods.plan import STAGE_TUNING, Facts, Plan
from sfumato.networks.build import build
from sfumato.networks.denoiser import with_classes
from sfumato.preflight import private_set
from sfumato.privacy.door import Access, spending
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.mechanisms import fine_tuned
from sfumato.settings import Settings
from tests.spends import KEYS, ONE, clock, ledger_at, spend

# Importing torch takes seconds; a fork of a process that did it takes none, and that process has one thread only. The
# first four are what a stage would import on its way.
PROCESSES = multiprocessing.get_context("forkserver")
LOADED = ("torch._dynamo", "dp_accounting.pld", "sklearn.datasets", "psycopg", "pytest", __name__)
PROCESSES.set_forkserver_preload([*LOADED])

PATIENCE_SECONDS = 60
"""How long anything may take on a busy machine, and how long a process waits to be killed."""


def reserve_often(url, budget, delta, times, barrier, results):
    """Wait for the others, open the ledger, perhaps create it, and try to reserve; send what came of each try."""
    barrier.wait(PATIENCE_SECONDS)
    seqs, refusals, broken = [], [], []
    try:
        with ledger_at(url) as ledger:
            ledger.set_budget("digits", budget, delta)
            for _ in range(times):
                try:
                    seqs.append(spend(ledger, run=f"run-{os.getpid()}").seq)
                except Refused as no:
                    refusals.append(str(no))
    except BadInput as trouble:
        broken.append(str(trouble))
    results.put((seqs, refusals, broken))


@dataclass(frozen=True)
class Marks:
    """What a process that may die at any moment left on disk of what it really did."""

    folder: Path
    run: str

    def leave(self, what: str) -> None:
        """Once more; a byte each time."""
        with open(self.folder / f"{self.run}.{what}", "ab") as file:
            file.write(b".")

    def count(self, what: str) -> int:
        """How often."""
        path = self.folder / f"{self.run}.{what}"
        return path.stat().st_size if path.exists() else 0

    def time(self, what: str) -> float:
        """When it happened last."""
        return (self.folder / f"{self.run}.{what}").stat().st_mtime

    def watch_the_images(self) -> None:
        """From now on mark, in this process, each time that images are about to be handed out."""

        def load(*given, real=sources.load, **named):
            self.leave("handed out")
            return real(*given, **named)

        sources.load = load


@dataclass(frozen=True)
class Stage:
    """The DP stage of a resolved run."""

    settings: Settings
    facts: Facts
    plan: Plan

    @property
    def event(self):
        """What it costs."""
        return self.plan.event(STAGE_TUNING)


def fine_tune(url: str, marks: Marks, stage: Stage) -> None:
    """The demo's DP-SGD on the real private digits and a real ledger, as the task does it; then wait to be killed."""
    gc.freeze()  # else the first collection copies every page that the fork shares
    torch.set_num_threads(1)
    marks.watch_the_images()
    settings, facts, terms = stage.settings, stage.facts, stage.plan.certificate
    model = build(settings.network, facts.shape, len(facts.classes))
    model = with_classes(model, model.condition.rows.weight)
    parts = Parts(schedule=make_schedule(settings.schedule), shape=facts.shape, facts=facts, public=model)
    corrupt = METHODS[settings.method.name].corrupt(settings, parts)

    def marked(x, y, generator):
        marks.leave("step")
        return corrupt(x, y, generator)

    with Ledger(url, clock, KEYS) as ledger:
        access = Access(
            ledger, private_set(settings), run=marks.run, stage=STAGE_TUNING, purpose="DP fine-tuning",
            code_version="0", relation=terms.relation, delta=terms.delta,
        )  # fmt: skip
        paid = fine_tuned(
            access, stage.event, model, marked, settings.fine_tuning, records=facts.records,
            device=torch.device("cpu"), physical_batch=settings.machine.physical_batch,
        )  # fmt: skip
        paid.payment.commit(ledger, "a" * 64)
    marks.leave("done")
    time.sleep(PATIENCE_SECONDS)


def die_at_statement(url: str, marks: Marks, number: int, private) -> None:
    """Spend by the door, and die before the given statement: one of SQL, the end of a transaction, a hang-up."""
    gc.freeze()
    numbers = itertools.count(1)

    def die(*_):
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for what, moment in ((sa.Engine, "before_cursor_execute"), (sa.Engine, "commit"), (sa.Pool, "checkin")):
        sa.event.listen(what, moment, die)
    marks.watch_the_images()
    with ledger_at(url) as ledger:
        access = Access(
            ledger, private, run=marks.run, stage="a stage", purpose="a test", code_version="0", relation="add_remove",
            delta=1e-5,
        )  # fmt: skip
        with spending(access, [ONE]) as visit:
            pass
        visit.payment.commit(ledger, "a" * 64)
    marks.leave("done")
