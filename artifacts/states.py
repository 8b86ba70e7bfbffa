"""The state of an unfinished training on disk: INTERNAL, written atomically, deleted when the training is done.

One file of tensors, named by its digest, and one of facts that names it; the facts are written last, so that they only name a
complete file. A damaged state counts as none. It is never an artifact: only the same training reads it, and nothing publishes it.
"""

import json
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from artifacts.store import file_digest, synced, write_text
from sfumato.resuming import TrainingState

FACTS = "state.json"
PRIVATE_FOLDER = 0o700


def save_state(folder: Path, state: TrainingState) -> None:
    """Write a state in place of the last one."""
    folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
    draft = folder / "new.safetensors"
    save_file({name: value.contiguous() for name, value in state.tensors.items()}, draft)
    synced(draft)
    digest = file_digest(draft)
    draft.rename(folder / f"{digest}.safetensors")
    facts = {
        "step": state.step,
        "entries": dict(state.entries),
        "reservation": state.reservation,
        "tensors": digest,
    }
    write_text(folder / FACTS, json.dumps(facts))
    for old in folder.glob("*.safetensors"):
        if old.stem != digest:
            old.unlink()


def load_state(folder: Path) -> TrainingState | None:
    """The last complete state; None where there is none."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        path = folder / f"{facts['tensors']}.safetensors"
        if file_digest(path) != facts["tensors"]:
            return None
        return TrainingState(facts["step"], load_file(path), facts["entries"], facts["reservation"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def drop_state(folder: Path) -> None:
    """Delete the state of a training."""
    shutil.rmtree(folder, ignore_errors=True)
