"""Whole flows in this process and on a home of their own, without Prefect, and without MLflow unless a test asks for it.

Store, ledger, images and cache keys are real. What Prefect does is replaced by the least that will do: a stage is called
directly, and its result is found again in a dictionary under the key that Prefect would use.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.references import Ref
from artifacts.tracking import Tracker
from flows import audit, synthesize
from tasks import rehearsal
from tasks.runtime import run
from tasks.runtime.artifact import RunContext
from tasks.runtime.caching import Call, lacking
from tasks.runtime.environment import configure, where
from tests.examples import home_at


@contextlib.contextmanager
def in_process(home: Path, patch: pytest.MonkeyPatch, *, tracked: bool = False) -> Iterator[dict[str, tuple[str, Ref]]]:
    """A home where flows run so; yields what was made, by cache key, each with the name of its stage."""
    made: dict[str, tuple[str, Ref]] = {}

    def run_stage(call: Call[Ref], context: RunContext) -> tuple[Ref, bool]:
        if is_cached(call):
            return made[call.key][1], True
        context = context.model_copy(update={"key": call.key})
        made[call.key] = call.stage.name, call.stage.fn(context, **call.arguments)
        return made[call.key][1], False

    def is_cached(call: Call[Ref]) -> bool:
        return call.key in made and not lacking(where(), made[call.key][1])

    with patch.context() as context, home_at(home):
        context.setattr(run, "run_stage", run_stage)
        context.setattr(run, "is_cached", is_cached)
        for module in (audit, synthesize, rehearsal):  # each would start a server
            context.setattr(module, "create_markdown_artifact", lambda *_, **__: None)
        if not tracked:
            for name in ("check", "log", "release", "end"):
                context.setattr(Tracker, name, lambda *_, **__: "")
        configure()
        yield made
