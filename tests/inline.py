"""Whole runs in this process, one stage after the other: real store, ledger and images, without Prefect and MLflow, so that no server is needed."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from artifacts.record import RunRecord
from artifacts.tracking import Tracker
from flows import audit, synthesize
from sfumato.preflight import private_set
from tasks import private, rehearsal
from tasks.runtime.artifact import RunContext
from tasks.runtime.caching import stage_key
from tasks.runtime.environment import configure, where
from tasks.runtime.run import Journal, StageResult
from tests.examples import UNCHOSEN, UNREHEARSED, home_at

TINY = [
    *(
        "data.glyphs_per_class=10",
        "network.width=16",
        "network.blocks=1",
        "pretraining.steps=20",
        "fine_tuning.steps=3",
    ),
    *("generation.images=60", "generation.steps=20", "evaluation.images=60", "evaluation.baseline=false"),
    *("evaluation.resamples=20", "schedule.timesteps=100"),
    *UNREHEARSED,
]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Calls:
    """What was called."""

    keys: list[str] = field(default_factory=list)
    """Cache keys under which Prefect would keep the counts."""


@contextlib.contextmanager
def inline(home: Path) -> Iterator[Calls]:
    """Within, the flow keeps everything in `home` and calls its stages themselves."""
    calls = Calls()

    def run(book, stage, *args, paid=False, note="", **inputs):
        inputs["context"] = book.context
        if stage is private.count_classes:
            calls.keys.append(stage_key(stage, *args, **inputs))
        return book._noted(stage, stage.name, StageResult(stage.fn(*args, **inputs), False, 0.0), paid)

    def begin(settings, secret, above):
        name = f"run-{len(list(where().runs.iterdir()))}"
        (where().runs / name).mkdir()
        return Journal(
            RunContext(run=name, parents={"DP": "", "INTERNAL": "", "PUBLIC": ""}), private_set(settings), CPU
        )

    with pytest.MonkeyPatch.context() as patch, home_at(home):
        patch.setattr(Journal, "run", run)
        patch.setattr(Journal, "begin", begin)
        for name in ("log", "release"):
            patch.setattr(Tracker, name, lambda *_, **__: "")
        patch.setattr(synthesize, "show_in_ui", lambda record: None)
        for module in (audit, rehearsal):  # each would start a server of Prefect's
            patch.setattr(module, "create_markdown_artifact", lambda *_, **__: None)
        configure()
        yield calls


def run_inline(method: str, changes: list[str], to: str = "") -> RunRecord:
    """A run of what a user's own data start from, published to `to`."""
    return synthesize.run_changed(method, "auto", [*UNCHOSEN, *changes], publish_to=to)
