"""Signs of life of a flow run for the server: a lock while its process lives, a clear name, one line that says why it ended, in its log too.

The lock is on a file, and the operating system releases it when the process dies, however it dies; so the leavings of a dead
process differ from running work (`tasks.server.recovery`). The file holds the number of the process.
"""

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import coolname.data  # which Prefect brings, and makes names up with
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.states import Failed

from sfumato.errors import BadInput, Refused, Stopped, Unnamed
from tasks.runtime.environment import configure
from tasks.runtime.internal import pointed
from tasks.runtime.locks import is_free, turn

Takes = ParamSpec("Takes")
Gives = TypeVar("Gives")


def attended(work: Callable[Takes, Gives]) -> Callable[Takes, Gives]:
    """Wrap the function of a flow: it holds the lock, and a person's mistake or a refusal ends it with one line.

    The caller of the flow gets the error itself.
    """

    @functools.wraps(work)
    def run(*args: Takes.args, **kwargs: Takes.kwargs) -> Any:
        this = run_id()
        if this is None:
            return work(*args, **kwargs)
        show_life(configure().home, this)
        for name in RUN_LOGS:
            logging.getLogger(name).addFilter(in_one_line)
        try:
            return work(*args, **kwargs)
        except (BadInput, Refused, Stopped) as ended:
            error = pointed(ended, configure().home) if isinstance(ended, Unnamed) else ended
            _ENDED.append(error)
            return Failed(name=type(error).__name__, message=str(error), data=error)

    return run


RUN_LOGS = ("prefect.flow_runs", "prefect.task_runs")
"""Prefect's loggers whose lines stand in the log of a run."""


def in_one_line(record: logging.LogRecord) -> bool:
    """Let a line pass into the log of a run; where a person's mistake or a refusal is behind it, that error's own line in place of a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    ended = error if error is None or isinstance(error, BadInput | Refused | Stopped) else what_ended(error)
    if ended:
        record.msg, record.args, record.exc_info = str(ended), (), None
    return True


def what_ended(failed: BaseException) -> BadInput | Refused | Stopped | None:
    """The error with which a flow of this process ended, where Prefect kept no more of it than its message.

    It does where the server took the final state and its answer was lost: asked again, the server gives back its own copy, without data.
    """
    return next((error for error in _ENDED if str(error) == str(failed)), None)


_ENDED: list[BadInput | Refused | Stopped] = []


def show_life(home: Path, run_id: UUID) -> None:
    """Hold the lock of a run until this process ends, after the last word to the server."""
    if run_id not in _SHOWN:
        _SHOWN.add(run_id)
        _LIFE.enter_context(turn(home, sign(run_id), ""))
        sign_of(home, run_id).write_text(str(os.getpid()), encoding="utf-8")


_LIFE = contextlib.ExitStack()
_SHOWN: set[UUID] = set()


def sign(run_id: UUID | str) -> str:
    """Name of the lock that a flow run holds while its process lives."""
    return f"run-{run_id}"


def sign_of(home: Path, run_id: UUID) -> Path:
    """Its file."""
    return home / "locks" / sign(run_id)


def any_at_work(home: Path) -> bool:
    """Whether the process of any flow run of this home lives."""
    return not all(map(is_free, (home / "locks").glob(sign("*"))))


def call_run(name: str, about: Mapping[str, str] = MappingProxyType({})) -> None:
    """Give the flow run at work a name in Prefect, unless a person gave it one, and tags such as `data:digits`."""
    context = FlowRunContext.get()
    if not context or not context.flow_run:
        return
    run = context.flow_run
    named = None if run.id in _NAMED_BY_PEOPLE else name
    # A server that is briefly unreachable must not end a run over its name.
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        tags = {*run.tags, *(f"{what}:{value}" for what, value in about.items())}
        client.update_flow_run(run.id, name=named, tags=sorted(tags))


def named(template: str) -> Callable[[], str]:
    """The name with which a flow's run begins: the one that a person gave it, else `template` with the flow's parameters."""

    def name() -> str:
        context = FlowRunContext.get()
        assert context and context.flow_run  # Prefect asks within the run
        present, own = context.flow_run.name, template.format(**context.parameters or {})
        if present == own or STAMPED.match(present) or is_made_up(present):
            return own
        _NAMED_BY_PEOPLE.add(context.flow_run.id)
        return present

    return name


STAMPED = re.compile(r"((prepare|rehearse)-.*)?\d{4}-?\d{2}-?\d{2}[-T]")
"""Pattern of a name that `call_run` gave: before a retry."""
_NAMED_BY_PEOPLE: set[UUID] = set()


def is_made_up(name: str) -> bool:
    """Whether Prefect, which joins two words at random, made a name up."""
    lists = (one for one in coolname.data.config.values() if isinstance(one, dict) and one.get("type") == "words")
    words = name.split("-")
    return len(words) == 2 and set(words) <= {word for one in lists for word in one["words"]}


def run_id() -> UUID | None:
    """The id of the flow run at work, where there is one."""
    context = FlowRunContext.get()
    return context.flow_run.id if context and context.flow_run else None
