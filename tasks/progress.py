"""Progress that a person can follow, in the terminal and in the Prefect UI: steps and time, nothing that looks at data."""

import contextlib
import multiprocessing
import re
import threading
import time
from collections.abc import Callable, Iterator
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

CONSOLE = Console(stderr=True)
REPORT_EVERY_SECONDS = 3.0
"""How often the Prefect artifact is told."""
TITLE_WIDTH = 24


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that moves a bar in the terminal and, inside a Prefect run, a progress artifact."""
    columns = (
        TextColumn("{task.description:<" + str(TITLE_WIDTH) + "}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    artifact, told = _artifact(title), time.monotonic()
    with Progress(*columns, console=CONSOLE, disable=_among_others()) as bars:
        bar = bars.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            nonlocal told
            bars.update(bar, completed=done, total=total)
            if artifact and (done == total or time.monotonic() - told > REPORT_EVERY_SECONDS):
                told = time.monotonic()
                _tell(artifact, 100 * done / max(1, total))

        yield show
        if bars.tasks[0].total is None:
            show(1, 1)


def _among_others() -> bool:
    """Whether this is one of several pieces at work on one terminal, whose bars would overwrite each other."""
    main = threading.current_thread() is threading.main_thread()
    return not main or multiprocessing.parent_process() is not None


def _artifact(title: str) -> UUID | None:
    from prefect.artifacts import create_progress_artifact
    from prefect.context import TaskRunContext

    if TaskRunContext.get() is None:
        return None
    return create_progress_artifact(
        0.0, key="progress-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-"), description=title
    )


def _tell(artifact: UUID, percent: float) -> None:
    from prefect.artifacts import update_progress_artifact

    # A server that is gone for a moment must not end a stage that has already paid for private data.
    with contextlib.suppress(Exception):
        update_progress_artifact(artifact, min(100.0, percent))
