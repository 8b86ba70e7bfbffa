"""The record of a run: one JSON object with its stages, its cost and the places of its results."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from artifacts.books import Books
from artifacts.labels import Label
from artifacts.store import write_text
from sfumato.class_shares import ClassShares
from sfumato.errors import BadInput
from sfumato.evaluation.attack_results import CopyCheck
from sfumato.methods.plan import Certificate, Claim, Plan
from sfumato.privacy.accounting.accountant import AtZero
from sfumato.privacy.auditing.findings import Audit
from sfumato.privacy.ledger.decisions import Decision
from sfumato.rehearsal_findings import RehearsalFindings

RECORD = "run.json"
SYNTHETIC = "synthetic"
"""The judged set that a run is for."""
PATHS = ("report", "internal_report", "samples", "published")
"""Fields that hold a path: absolute in memory, relative to the home in the file."""


class StageRecord(BaseModel):
    """One stage of a run."""

    model_config = ConfigDict(frozen=True)

    name: str
    seconds: float
    """Time that this run spent on it."""
    cached: bool
    made_in: float
    """Time of the run that made it."""
    memory: float = 0.0
    """Largest memory (GB) of the process that made it, and of a GPU; INTERNAL. 0 where not measured, as in records of earlier versions."""
    gpu_memory: float = 0.0
    label: str = ""
    """Label of its result; the time of INTERNAL work is INTERNAL too."""


class Override(BaseModel):
    """A person's acceptance, which lets samples leave in spite of a refusal."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["claim", "copies", "rehearsal"]
    """The paper's claim in place of a certificate; images that repeat training records; or a rehearsal that failed, before the run."""
    reason: str
    missing: str
    """What the promise lacks."""
    entry: int
    """Number of its ledger entry."""


class RunRecord(BaseModel):
    """The record that `sfumato show` prints. Metrics are INTERNAL: they were measured against private images."""

    model_config = ConfigDict(frozen=True)

    run: str
    method: str
    preset: str
    label: str
    """Label of the samples."""
    settings: dict[str, Any]
    plan: Plan
    certificate: Certificate | None
    """Certificate of these samples, from the ledger's entries; None where there is none."""
    claim: Claim
    curve: tuple[tuple[float, float], ...] = ()
    """Delta and epsilon of the certificate's spends, over other deltas than its own too."""
    at_zero: AtZero | None = None
    """The delta of the same spends at epsilon 0, with its accountant; None in records of earlier versions."""
    books: Books | None = None
    """Every access to the private set and the cost of all its versions; None in records of earlier versions."""
    commit: str = ""
    """Commit of the code that drew the samples; empty where it is not known."""
    entries: list[int]
    """Ledger entries that the samples stand on."""
    spent_total: dict[str, Any]
    """Cost of the private set so far, all runs together."""
    metrics: dict[str, dict[str, Any]]
    """Scores by image set; INTERNAL."""
    retrieval: dict[str, float]
    """Retrieval accuracy on public queries, and chance."""
    latents: dict[str, float] = {}
    """Reconstruction error of the autoencoder on public images that it did not learn from; empty where denoisers work on pixels."""
    alignment: dict[str, float] = {}
    """Number of aligned private classes, and of those that share a covariance; empty without alignment."""
    rates: dict[str, float] = {}
    """The chosen factor on the learning rates (`rate`), and the noisy votes for each candidate; empty where one alone was trained."""
    stages: list[StageRecord]
    samples_artifact: str
    """Address of the samples in the store."""
    nearest_artifact: str = ""
    """Address of the picture of samples beside their nearest public images; empty in records of earlier versions."""
    report: str
    internal_report: str
    samples: str
    published: str
    tracking: dict[str, str]
    """Label -> MLflow run."""
    copies: CopyCheck | None = None
    """Whether samples repeat training records; INTERNAL."""
    audit: Audit | None = None
    """Results of the last audit; INTERNAL."""
    overrides: tuple[Override, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """Decisions of people on whether the images may leave, in order."""
    rehearsal: RehearsalFindings | None = None
    """Findings of the rehearsal on public images, before anything was paid for; None in records of earlier versions."""
    rehearsal_artifact: str = ""
    """Its address in the store."""
    account: str = ""
    """Account under which it ran; INTERNAL."""
    class_shares: ClassShares | None = None
    """Distribution of the images over the classes; None where every class has equally many."""

    judged: dict[str, float] = {}
    """Number of drawn images, and the share on which a paid judge agreed with the class; empty where none labelled or chose them."""

    def override(self, kind: str) -> Override | None:
        """The last override of a kind."""
        return next((one for one in reversed(self.overrides) if one.kind == kind), None)

    @property
    def seconds(self) -> float:
        """Time that this run took, stage by stage."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def memory(self) -> tuple[float, float]:
        """Largest memory (GB) of a stage's process, and of a GPU, in whichever runs made the stages; 0 where not measured. INTERNAL."""
        each = [(stage.memory, stage.gpu_memory) for stage in self.stages]
        return max((one for one, _ in each), default=0.0), max((other for _, other in each), default=0.0)


INTERNAL_FIELDS = ("metrics", "copies", "audit", "account", "internal_report")
UNTOLD = ("data", "seed")
"""Sections of the settings that do not leave."""


def record_json(record: RunRecord) -> dict[str, Any]:
    """The record as one JSON object, with everything that must not leave under `INTERNAL`."""
    fields = record.model_dump(mode="json")
    internal = {name: fields.pop(name) for name in INTERNAL_FIELDS}
    internal["settings"] = {name: fields["settings"].pop(name) for name in UNTOLD if name in fields["settings"]}
    internal["memory"] = [
        {"name": stage["name"], **{name: stage.pop(name) for name in ("memory", "gpu_memory")}}
        for stage in fields["stages"]
    ]
    internal["stages"] = [stage for stage in fields["stages"] if stage["label"] == Label.INTERNAL]
    fields["stages"] = [stage for stage in fields["stages"] if stage["label"] != Label.INTERNAL]
    internal["tracking"] = {
        name: fields["tracking"].pop(name) for name in (Label.INTERNAL,) if name in fields["tracking"]
    }
    return {**fields, str(Label.INTERNAL): internal}


def save_record(folder: Path, record: RunRecord) -> None:
    """Write the record atomically, with paths relative to the home, so that the home may be moved or copied."""
    home = folder.parent.parent
    paths = {name: _relative(getattr(record, name), home) for name in PATHS}
    write_text(folder / RECORD, record.model_copy(update=paths).model_dump_json(indent=1))


def _relative(path: str, home: Path) -> str:
    inside = path and "://" not in path and Path(path).is_relative_to(home)
    return str(Path(path).relative_to(home)) if inside else path


def _absolute(path: str, folder: Path) -> str:
    """A path of the record in `folder`; absolute paths, which earlier records hold, are assumed to lie in this home too."""
    if not path or "://" in path:
        return path
    if not Path(path).is_absolute():
        return str(folder.parent.parent / path)
    return str(folder / Path(path).name) if Path(path).parent.name == folder.name else path


def run_folder(record: RunRecord) -> Path:
    """The folder that holds everything about a run."""
    return Path(record.report).parent


def judge_went_by_its_own(record: RunRecord) -> bool:
    """Whether a judge that keeps the surest went by its own classes, whatever the images were drawn for."""
    judge = record.plan.judge
    return bool(judge and judge.use == "filter" and record.judged.get("relabelled"))


def private_of(record: RunRecord) -> str:
    """The place of a run's private images."""
    return str(record.settings["data"].get("private", ""))


def records(runs: Path) -> Iterator[RunRecord]:
    """The records of all runs that can be read, oldest first."""
    for path in sorted(runs.glob(f"*/{RECORD}")):
        with contextlib.suppress(BadInput):
            yield load_record(runs, path.parent.name)


def load_record(runs: Path, name: str = "latest") -> RunRecord:
    """The record of a run by name, or of the latest; `BadInput` where there is none."""
    known = sorted(path.parent.name for path in runs.glob(f"*/{RECORD}"))
    if not known:
        raise BadInput(f"there is no run yet in {runs}: start one with `sfumato run`")
    chosen = known[-1] if name == "latest" else name
    if chosen not in known and (runs / chosen).is_dir() and chosen not in ("", ".", ".."):
        raise BadInput(
            f"run {name!r} was not carried out to its end, so that there is nothing to show or to publish: begin it again"
        )
    if chosen not in known:
        raise BadInput(f"run {name!r} is not in {runs}: choose one of {', '.join(known[-5:])}, or 'latest'")
    try:
        record = RunRecord.model_validate(json.loads((runs / chosen / RECORD).read_text(encoding="utf-8")))
    except ValueError as error:
        raise BadInput(
            f"the record of run {chosen} in {runs} cannot be read ({error.__class__.__name__}): run again"
        ) from None
    return record.model_copy(update={name: _absolute(getattr(record, name), runs / chosen) for name in PATHS})
