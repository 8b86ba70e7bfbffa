"""The frame of every stage: open the store, time the work, store the result, describe it in MLflow."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from pydantic import BaseModel, ConfigDict

from artifacts.labels import Label
from artifacts.references import Ref
from artifacts.store import Store
from sfumato import __version__
from sfumato.config import Machine
from sfumato.errors import SHOWN_DIGITS, BadInput
from sfumato.privacy.door import Payment
from sfumato.privacy.mechanisms import Paid
from tasks.runtime import memory
from tasks.runtime.environment import Where, where
from tasks.runtime.progress import CONSOLE, log_line, progress, tell

Kind = TypeVar("Kind", bound=Ref)


class RunContext(BaseModel):
    """The run for which a stage works; never part of a cache key."""

    model_config = ConfigDict(frozen=True)

    run: str
    """Name of the run."""
    parents: dict[str, str]
    """Label -> MLflow parent run in the experiment of that label."""
    key: str = ""
    """Cache key of the running stage, under which it may store unfinished work."""


@dataclass
class Draft(Generic[Kind]):
    """A running stage: its folder, its inputs, and the facts about its result."""

    store: Store
    folder: Path
    show: Callable[[int, int], None]
    """Progress callback (done, total)."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the ledger entries used, with their labels."""
    metrics: dict[str, float] = field(default_factory=dict)
    series: dict[str, Sequence[float]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    """Lines on the result for the screen, and for the log where it is not INTERNAL."""
    files: list[Path] = field(default_factory=list)
    """Pictures of the result that MLflow should show; of what was paid for they wait for the gate (`tasks.reporting.show_run`)."""
    payment: Payment | None = None
    """The payment to commit under the address of the result, once it is stored."""
    stored: Kind | None = None
    """The result, once it is in the store."""

    @property
    def ref(self) -> Kind:
        """The reference to the result, after `draft_of`."""
        if self.stored is None:
            raise ValueError("nothing is kept yet: ask for the reference after `with draft_of(...)`")
        return self.stored

    def stands_on(self, paid: Paid[Any]) -> None:
        """Take over the entries of a mechanism's result, and its payment."""
        self.entries, self.payment = paid.entries, paid.payment

    def open(self, ref: Ref) -> Path:
        """The checked folder of an input."""
        return self.store.folder(ref)


@contextlib.contextmanager
def draft_of(
    kind: type[Kind],
    title: str,
    context: RunContext,
    *,
    parents: Sequence[Ref] = (),
    behind: Sequence[Ref] = (),
    params: Mapping[str, Any] | None = None,
    images: float = 0,
) -> Iterator[Draft[Kind]]:
    """Work on an artifact of `kind`; at the end it is in the store, logged, and `draft.ref` refers to it.

    `behind` are artifacts used through a priced mechanism alone, see `Store.keep`. `images` is how many images one step
    takes on average.
    """
    place = where()
    store = place.store()
    started = time.monotonic()
    memory.begin()
    with store.writing() as folder, progress(title, images) as show:
        steps = 0

        def counted(done: int, total: int) -> None:
            nonlocal steps
            steps = done
            show(done, total)

        draft: Draft[Kind] = Draft(store, folder, counted)
        yield draft
        seconds = time.monotonic() - started
        ref = store.keep(
            kind,
            folder,
            parents=parents,
            behind=behind,
            entries=draft.entries,
            summary=draft.metrics,
            seconds=round(seconds, 2),
        ).model_copy(update=memory.peaks())
        if context.key:  # before the ledger is told: whatever ends this process after that, nothing is paid for twice
            store.note(context.key, ref)
        numbers = bind(place, draft, ref, title, context)
    draft.stored = ref
    took = "" if ref.label == Label.INTERNAL else f" in {seconds:.1f} s"
    log_line(f"{title}: made{took}, {ref.label}, artifact {ref.digest[:SHOWN_DIGITS]}")
    for line in draft.lines:
        tell(line, internal=ref.label == Label.INTERNAL)
    try:
        tracked = place.tracker().log(
            title,
            label=ref.label,
            parent=context.parents.get(ref.label, context.parents.get(Label.PUBLIC, "")),
            tags={"artifact": ref.digest, "ledger_entries": ",".join(map(str, numbers))},
            params=params,
            metrics={**draft.metrics, "seconds": seconds, "steps": steps},
            series=draft.series,
            steps=steps,
            seconds=seconds,
            inputs=[(type(ref).__name__, ref.digest) for ref in parents],
            files=[] if ref.label == Label.DP else [store.folder(ref) / path.name for path in draft.files],
        )
        draft.stored = ref.model_copy(update={"tracked": tracked})
    except Exception as error:  # the result is stored and perhaps paid for: a lost log line must not lose it
        CONSOLE.print(f"{title}: stored, but not written to MLflow ({type(error).__name__})")


def bind(place: Where, draft: Draft[Any], ref: Ref, title: str, context: RunContext) -> list[int]:
    """Write the stored artifact's address into the ledger, and return the numbers of the entries that it stands on itself.

    A spend is committed with its address; an artifact made from paid artifacts alone gets an entry of its own. Where that fails,
    the stage fails: an artifact that no entry names is not used, and its reservation stands in full.
    """
    if not draft.entries and ref.label != Label.DP:
        return []
    try:
        with place.ledger() as ledger:
            if payment := draft.payment:
                payment.commit(ledger, ref.digest)
            elif ref.label == Label.DP:
                entries = draft.store.entries(ref)
                ledger.note_made(ref.digest, entries=entries, stage=title, run=context.run, code_version=__version__)
            return [entry.seq for entry in ledger.entries_by_hash(draft.entries)]
    except BadInput as error:
        raise BadInput(
            f"{title} is done, but its entry could not be written to the ledger, so that it cannot be used: {error}"
        ) from error


def device_of(machine: Machine) -> torch.device:
    """The device that the machine settings name; `auto` takes the first GPU, or the CPU. Sets the threads of the CPU as well.

    `BadInput` for a device that is not there.
    """
    use_threads(machine)
    return _device(machine)


def on_gpu(machine: Machine) -> bool:
    """Whether the machine settings name a GPU, or find one; `BadInput` as `device_of` has it."""
    return _device(machine).type != "cpu"


def _device(machine: Machine) -> torch.device:
    if machine.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(machine.device)
    except RuntimeError:
        raise BadInput(f"machine.device={machine.device!r} is no device: use auto, cpu, cuda or cuda:NUMBER") from None
    there = torch.cuda.device_count() if device.type == "cuda" else 1
    if device.type == "cuda" and (device.index or 0) >= there:
        raise BadInput(
            f"machine.device={machine.device!r} is not there, this machine has {there} GPUs: use auto or cpu"
        )
    return device


def use_threads(machine: Machine) -> None:
    """Set the number of CPU threads from the settings; 0 leaves torch's choice."""
    if machine.threads:
        torch.set_num_threads(machine.threads)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One CPU thread inside the block, so that timings are the same on an idle machine and beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
