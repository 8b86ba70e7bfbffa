"""Whole runs in processes of their own that may be killed at any moment, and what must hold whenever one was."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.store import MANIFEST, Store
from sfumato.privacy.accounting.events import DiscreteHistogram
from sfumato.privacy.ledger.ledger import Ledger
from tests.processes import LOADED, PROCESSES, Marks
from tests.spends import KEYS

# What takes longest of a small run is to load it; a process that has done so is hit in the midst of its work.
PROCESSES.set_forkserver_preload([*LOADED, "flows.synthesize", "mlflow", "mlflow.store.db.utils", "faiss", "lightly"])

PATIENCE_SECONDS = 900
"""How long one whole run may take on a busy machine."""


@dataclass(frozen=True)
class Job:
    """One command, to be given again and again until it is done."""

    home: Path
    changes: Sequence[str]
    api: str = ""
    """Address of the Prefect server; empty starts one inside."""

    @property
    def marks(self) -> Marks:
        """What its processes did."""
        return Marks(self.home, "marks")

    @property
    def ledger(self) -> Ledger:
        """Its books."""
        return Ledger(f"sqlite:///{self.home / 'ledger.db'}", lambda: "", KEYS)


def carry_out(job: Job) -> None:
    """`sfumato run rapid --publish` with marks for what was really done; the end of a process that was started for it."""
    os.setsid()
    job.marks.leave("begun")
    names = {
        "SFUMATO_HOME": job.home,
        "PREFECT_HOME": job.home / "prefect",
        "PREFECT_LOCAL_STORAGE_PATH": job.home / "results",
    }
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ.pop("PREFECT_API_URL", None)
    if job.api:
        os.environ["PREFECT_API_URL"] = job.api
    from tasks.runtime.environment import configure

    configure()
    from prefect.context import refresh_global_settings_context

    from flows.synthesize import synthesize
    from sfumato.privacy import mechanisms
    from sfumato.privacy.engine import dp_sgd

    refresh_global_settings_context()

    def noised(*given, real=dp_sgd.add_gaussian, **named):
        job.marks.leave("step")
        return real(*given, **named)

    def voted(*given, real=mechanisms.noisy_votes, **named):
        paid = real(*given, **named)
        job.marks.leave("votes")
        return paid

    dp_sgd.add_gaussian, mechanisms.noisy_votes = noised, voted
    synthesize(method="rapid", preset="digits", changes=list(job.changes), publish_to=".")
    job.marks.leave("done")


@contextmanager
def started(job: Job) -> Iterator:
    """A process that carries the job out; whatever is left of it at the end is killed."""
    job.home.mkdir(exist_ok=True)
    process = PROCESSES.Process(target=carry_out, args=(job,))
    process.start()
    try:
        yield process
    finally:
        killed(process)


def killed(process) -> None:
    """kill -9, with all that it started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    process.join(PATIENCE_SECONDS)


def finished(job: Job) -> float:
    """Carry the job out to its end; how many seconds that took, without what a first one needs to load."""
    with started(job) as process:
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0, f"the run ended with {process.exitcode}"
    return job.marks.time("done") - job.marks.time("begun")


@dataclass
class Tally:
    """What the suite counts."""

    fault: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)
    """Artifacts that were there and are not, or not whole."""
    understated: list[str] = field(default_factory=list)
    """What was done to private data without standing in the ledger."""

    def inspect(self, job: Job, before: set[str]) -> set[str]:
        """Look after one more fault at everything that the job has left, as `look` does."""
        self.tried += 1
        return self.look(job, before)

    def look(self, job: Job, before: set[str]) -> set[str]:
        """Count what is lost or understated; returns the artifacts that are there, of which there were `before`."""
        if not (job.home / "store" / "store.json").exists():
            return before
        store = Store.open(job.home / "store")
        there = {path.name for path in (store.root / "objects").iterdir()}
        self.lost += [digest for digest in sorted(before | there) if not store.intact(digest)]
        self.understated += sorted(unpaid(job, store, there))
        return there

    def passed(self) -> bool:
        """Nothing lost, nothing understated."""
        return not self.lost and not self.understated


def unpaid(job: Job, store: Store, there: set[str]) -> Iterator[str]:
    """What was done, or what stands in the store, without an entry that says so."""
    if not (job.home / "ledger.db").exists():
        if job.marks.count("step") or job.marks.count("votes"):
            yield "private records were used before there was a ledger"
        return
    with job.ledger as ledger:
        yield from ledger.verify()
        yield from map(str, ledger.replay())
        events = [event for _, spend in ledger.spends("digits") for event in spend]
        known = {entry.hash for entry in ledger.entries()}
    paid = sum(getattr(event, "steps", 0) for event in events)
    if job.marks.count("step") > paid:
        yield f"{job.marks.count('step')} noisy steps were taken, {paid} are paid for"
    votes = sum(isinstance(event, DiscreteHistogram) for event in events)
    if job.marks.count("votes") > votes:
        yield f"votes were taken {job.marks.count('votes')} times, {votes} are paid for"
    for digest in there:
        if (store.root / "objects" / digest / MANIFEST).exists():
            strange = set(store.manifest(digest)["entries"]) - known
            if strange:
                yield f"artifact {digest[:12]} stands on ledger entries {strange} that do not exist"
