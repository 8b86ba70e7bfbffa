"""Pieces of a run side by side: in threads, in processes, or on the machines of a Ray cluster.

Each piece runs as it would alone: its stages wait for their turns, and use the cache and the ledger where they run, so that a
piece that two runs need is made once and each look and spend has its entry. A worker that would write into another ledger than
the run's is refused before it opens anything.

Not covered: turns on the file system hold among processes of one machine; `tasks.runtime.locks` says how machines take turns.
"""

import logging
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from prefect import task
from prefect.context import FlowRunContext
from prefect.exceptions import CrashedRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from sfumato.config import Machine
from sfumato.errors import BadInput
from tasks.runtime.distributed import refuse_company
from tasks.runtime.environment import configure, where
from tasks.runtime.progress import progress

Result = TypeVar("Result")


def side_by_side(title: str, machine: Machine, pieces: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all pieces, as many at once as the machine has workers; a piece is a partial of a module's function.

    The first error of a piece is raised here, after running pieces have ended; others do not begin. `BadInput` for a worker that
    died, and where Ray is required and not installed.
    """
    refuse_company(f"machine.runner={machine.runner!r}")
    books = where().books
    with _reachable(), _runner(machine) as runner, progress(title) as show:
        futures = [runner.submit(carry_out, {"piece": piece, "books": books}) for piece in pieces]
        results: list[Result] = []
        for future in futures:
            try:
                results.append(future.result())
            except _deaths(machine):
                raise BadInput(
                    f"a worker of machine.runner={machine.runner!r} died: what was finished is kept; run again, with a smaller "
                    f"machine.workers={workers_of(machine)} if memory was short"
                ) from None
            show(len(results), len(futures))
    return results


def _deaths(machine: Machine) -> tuple[type[BaseException], ...]:
    """Errors by which a runner says that a worker died."""
    if machine.runner == "dask":
        from distributed import KilledWorker

        return CrashedRun, BrokenExecutor, KilledWorker
    return CrashedRun, BrokenExecutor


def among_others(machine: Machine) -> Machine:
    """The machine settings for one of several pieces: no further parallel work, and its share of the CPU."""
    share = machine.threads or (1 if machine.runner in CLUSTERS else max(1, _cores() // workers_of(machine)))
    return machine.model_copy(update={"runner": "inline", "threads": share})


def alone(machine: Machine, pieces: int) -> bool:
    """Whether this number of pieces runs one after another, in this process."""
    return machine.runner == "inline" or pieces < 2


def workers_of(machine: Machine) -> int:
    """Number of pieces at once."""
    return machine.workers or _cores()


@task(name="piece", persist_result=False, retries=0)
def carry_out(piece: Callable[[], Result], books: str) -> Result:
    """One piece, in a worker."""
    configure()
    check_books(books)
    return piece()


def check_books(books: str) -> None:
    """`BadInput` where this process would write into another ledger than the one that `books` stands for."""
    if where().books != books:
        raise BadInput(
            f"the worker on {platform.node()!r} writes into another ledger than the run: give every machine the same SFUMATO_LEDGER, a "
            "PostgreSQL server's, before its worker starts"
        )


def _runner(machine: Machine) -> TaskRunner[Any]:
    if machine.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=workers_of(machine))
    if machine.runner == "processes":
        return ProcessPoolTaskRunner(max_workers=workers_of(machine))
    return _on_dask(machine) if machine.runner == "dask" else _on_ray(machine)


CLUSTERS = ("ray", "dask")
"""Runners whose workers may be other machines."""
DASK = {"distributed.scheduler.allowed-failures": 0}
"""A piece whose worker died is not begun again: a person decides, since it may pay again."""


def _on_dask(machine: Machine) -> TaskRunner[Any]:
    try:
        import dask
        from prefect_dask import DaskTaskRunner
    except ImportError:
        raise BadInput("machine.runner='dask' needs Dask: pip install 'sfumato[scale]'") from None
    address = where().dask
    if address:
        there: TaskRunner[Any] = DaskTaskRunner(address=address)
        return there
    dask.config.set(DASK)
    own = {
        "n_workers": workers_of(machine),
        "threads_per_worker": 1,
        "dashboard_address": None,
        "silence_logs": logging.CRITICAL,
    }
    here: TaskRunner[Any] = DaskTaskRunner(cluster_kwargs=own)
    return here


def _on_ray(machine: Machine) -> TaskRunner[Any]:
    try:
        from prefect_ray import RayTaskRunner
    except ImportError:
        raise BadInput("machine.runner='ray' needs Ray: pip install 'sfumato[scale]'") from None
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    own = {**quiet, "num_cpus": workers_of(machine), "include_dashboard": False}
    address = where().ray
    there: TaskRunner[Any] = (
        RayTaskRunner(address=address, init_kwargs=quiet) if address else RayTaskRunner(init_kwargs=own)
    )
    return there


def _reachable() -> AbstractContextManager[Any]:
    """Make workers use the server of this run instead of starting one each."""
    context = FlowRunContext.get()
    return temporary_settings({PREFECT_API_URL: str(context.client.api_url)} if context else {})


def _cores() -> int:
    return os.cpu_count() or 1
