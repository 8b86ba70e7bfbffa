"""Progress that a person can follow, in the terminal and in the Prefect UI: lines, steps, speed and time, nothing that looks at data."""

import contextlib
import math
import multiprocessing
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column


class RunConsole(Console):
    """The terminal; what is printed as text also stands in the log of the Prefect run at work, where there is one."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `rich` does, and log the text."""
        super().print(*objects, **options)
        if objects and all(isinstance(one, str) for one in objects):  # a bar prints itself through here too
            log_line(" ".join(objects))


def log_line(text: str) -> None:
    """Write a line into the log of the Prefect run at work; without one, nothing. It may hold nothing INTERNAL."""
    if "prefect" not in sys.modules:
        return
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    with contextlib.suppress(MissingContextError):
        get_run_logger().info(text)


CONSOLE = RunConsole(stderr=True)


def tell(text: str, *, internal: bool) -> None:
    """Print a line, which the log of the Prefect run at work holds too where it is not INTERNAL."""
    (Console if internal else RunConsole).print(CONSOLE, text, soft_wrap=True, markup=False, highlight=False)


SHOW_EVERY_SECONDS = 0.1
"""Seconds between updates of the speed: the mean of a thousand times takes longer than many a step."""
REPORT_EVERY_SECONDS = 3.0
"""Seconds between updates of the Prefect artifact."""
LINE_EVERY_SECONDS = 60.0
"""Seconds between lines of a log, in which no bar moves."""
TITLE_WIDTH = 24
SLOW = 100
"""Steps a second below which a digit behind the point says something."""


@contextlib.contextmanager
def progress(title: str, images: float = 0) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) that moves a bar in the terminal and, inside a Prefect run, a progress artifact.

    Where the output goes into a file or a pipe, a line a minute replaces the bar, also while the work reports nothing.

    `images` is the average number of images of a step, where images per second are more informative than steps.
    """
    columns = (
        TextColumn("{task.description:<" + str(TITLE_WIDTH) + "}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),  # a narrow terminal shortens the bar alone
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("left"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    artifact, last_report, last_shown = _artifact(title), time.monotonic(), -math.inf
    with Progress(*columns, console=CONSOLE, disable=_among_others()) as bars:
        bar = bars.add_task(title, total=None, speed="")
        (task,) = bars.tasks
        ended = threading.Event()
        if not CONSOLE.is_terminal:
            threading.Thread(target=_tell_log, args=(title, task, ended), daemon=True).start()

        def show(done: int, total: int) -> None:
            nonlocal last_report, last_shown
            bars.update(bar, completed=done, total=total)
            now = time.monotonic()
            if done == total or now - last_shown > SHOW_EVERY_SECONDS:
                last_shown = now
                bars.update(bar, speed=speed(task, images))
            if artifact and (done == total or now - last_report > REPORT_EVERY_SECONDS):
                last_report = now
                _tell(artifact, 100 * done / max(1, total), f"{title}: {in_words(task)}")

        try:
            yield show
        finally:
            ended.set()
        if not task.finished:  # work that reports now and then, or never, is done all the same
            whole = round(task.total or 1)
            show(whole, whole)


def _among_others() -> bool:
    """Whether this is one of several pieces at work on one terminal, whose bars would overwrite each other."""
    main = threading.current_thread() is threading.main_thread()
    return not main or multiprocessing.parent_process() is not None


def speed(task: Task, images: float) -> str:
    """The speed, in images where these are known; empty before it is known."""
    steps = task.finished_speed or task.speed
    if not steps or task.total == 1:
        return ""
    digits = 1 if steps < SLOW else 0
    return f"{steps * images:,.0f} images/s" if images else f"{steps:,.{digits}f} steps/s"


def in_words(task: Task) -> str:
    """Steps, speed and time left as a line."""
    parts = [f"{task.completed:.0f} of {task.total:.0f}", task.fields["speed"]]
    if task.time_remaining:
        parts.append(f"{timedelta(seconds=round(task.time_remaining))} left")
    return ", ".join(filter(None, parts))


def _tell_log(title: str, task: Task, ended: threading.Event) -> None:
    """Print a line now and then on the progress of a task, until it has ended."""
    while not ended.wait(LINE_EVERY_SECONDS):
        known = f"{task.percentage:.0f} %, {in_words(task)}" if task.total else "at work"
        CONSOLE.print(f"{title}: {known}", soft_wrap=True, markup=False, highlight=False)


def _artifact(title: str) -> UUID | None:
    from prefect.artifacts import create_progress_artifact
    from prefect.context import TaskRunContext

    if TaskRunContext.get() is None:
        return None
    artifact = create_progress_artifact(
        0.0, key="progress-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-"), description=title
    )
    return artifact if isinstance(artifact, UUID) else None


def _tell(artifact: UUID, percent: float, about: str) -> None:
    from prefect.artifacts import update_progress_artifact

    # A server that is briefly unreachable must not end a stage that has already paid for private data.
    with contextlib.suppress(Exception):
        update_progress_artifact(artifact, min(100.0, percent), description=about)
