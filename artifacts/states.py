"""The state of an unfinished training on disk: INTERNAL, whole or not at all, gone when the training is done.

One file of tensors, named by its digest, and one of facts that names it; the facts are written last, so that what they
say is there. A state that is damaged counts as none. It is never an artifact: nothing can be made of it but the rest of
the same training, and nothing publishes it.
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
    """Keep a state in place of the last one."""
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
    """The state that was kept last; None where there is none, or none that is whole."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        path = folder / f"{facts['tensors']}.safetensors"
        if file_digest(path) != facts["tensors"]:
            return None
        return TrainingState(facts["step"], load_file(path), facts["entries"], facts["reservation"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def drop_state(folder: Path) -> None:
    """Forget a training."""
    shutil.rmtree(folder, ignore_errors=True)
