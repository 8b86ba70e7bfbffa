"""Repairs the leavings of dead processes at the server of this home.

A flow run whose process has died ends as Crashed with one line, and so does its stage, and as killed in MLflow; its turn on the GPU becomes free. A live
run holds the lock of `tasks.runtime.heartbeat` in this home. A run without a lock file has not begun, or belongs to another
machine: it is left alone unless it was waiting for this home's worker.
"""

import contextlib
import hashlib
import os
import platform
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleUpdate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType, WorkerStatus
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Crashed
from prefect.workers.process import ProcessWorker

from artifacts.store import write_text
from tasks.runtime.caching import GPU
from tasks.runtime.environment import Where
from tasks.runtime.heartbeat import sign, sign_of
from tasks.runtime.locks import is_free

POOL = "sfumato"
"""Name of the work pool in prefect.yaml."""
AT_WORK = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
STAGES_AT_WORK = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=AT_WORK)))
GONE = "its process is gone: killed, or the machine went down. Finished stages are kept; the same run again goes on from there"
"""Message in the state of a run whose process died."""
DEPLOYED = "deployed"
"""File in the home that holds the digest of the prefect.yaml deployed last."""
DEPLOYED_CODE = "deployed-code"
"""File in the home that holds the digest of the code whose forms were deployed last."""
FORMS, CODE = ("flows", "tasks", "sfumato"), (".py", ".yaml")
"""Folders and kinds of files that the forms are made of."""


def worker_name() -> str:
    """Name of the worker of this machine."""
    return f"{POOL}-{platform.node()}"


def mend(place: Where, api: str) -> list[str]:
    """Repair the leavings of dead processes, and return what was repaired; for a server with the pool, while this home's worker is stopped."""
    with SyncPrefectClient(api) as client:
        runs = _at_work(client)
        gone = [run for run in runs if _is_gone(place, run, alone=_alone(client))]
        for run in gone:
            _crash(client, run)
        if len(gone) == len(runs):
            _free_gpu(client)
    end_leavings(place, api)
    for path in (place.home / "locks").glob(sign("*")):
        if is_free(path):
            path.unlink()
    return [f"{run.name}: {GONE}" for run in gone]


def end_leavings(place: Where, api: str) -> None:
    """End the stages, and the runs in MLflow, of runs that are over in Prefect and whose process is gone: the worker, which reports a process that was
    killed alone, knows neither. At any time."""
    with SyncPrefectClient(api) as client:
        over = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(TERMINAL_STATES)))
        alone = _alone(client)
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(state=over), task_run_filter=STAGES_AT_WORK):
            if _is_gone(place, run, alone):
                _crash_stages(client, run)
        with contextlib.suppress(Exception):  # of MLflow or its connection: the server is mended without it
            tracker = place.tracker()
            for run in _runs_of(client, tracker.flow_runs_at_work()):
                if run.state and run.state.is_final() and _is_gone(place, run, alone):
                    tracker.end_those_of(str(run.id), GONE)


def make_pool(api: str) -> None:
    """The work pool in which the runs of prefect.yaml wait for the worker."""
    with SyncPrefectClient(api) as client, contextlib.suppress(ObjectAlreadyExists):
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))


def end_runs(place: Where, api: str, seconds: float) -> None:
    """Ask the runs of the worker to save their state and stop; kill those that still run after `seconds`."""
    with SyncPrefectClient(api) as client:
        mine = [run for run in _at_work(client) if run.work_pool_name == POOL]
    signs = [path for path in (sign_of(place.home, run.id) for run in mine) if path.exists()]
    deadline = time.monotonic() + seconds
    for number in (signal.SIGTERM, signal.SIGKILL):
        for path in signs:
            with contextlib.suppress(OSError, ValueError):
                if not is_free(path):
                    os.kill(int(path.read_text()), number)
        while time.monotonic() < deadline and not all(map(is_free, signs)):
            time.sleep(0.5)


def is_deployed(place: Where, api: str, file: Path) -> bool:
    """Whether the server holds the deployments of prefect.yaml as this checkout would make them."""
    mark = place.home / DEPLOYED_CODE
    if not mark.exists() or mark.read_text(encoding="utf-8") != _code_behind(file):
        return False
    names = {one["name"] for one in yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]}
    with SyncPrefectClient(api) as client:
        return names <= {one.name for one in client.read_deployments()}


def note_deployed(place: Where, file: Path) -> None:
    """Note what was deployed; call once it is."""
    write_text(place.home / DEPLOYED_CODE, _code_behind(file))


def _code_behind(file: Path) -> str:
    """A digest of prefect.yaml, its place, and all code and presets that its forms are made of."""
    digest = hashlib.sha256(str(file).encode())
    for path in [file, *sorted(one for part in FORMS for one in (file.parent / part).rglob("*") if one.suffix in CODE)]:
        digest.update(f"{path}\n".encode() + path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def keeping_schedules(place: Where, api: str, file: Path) -> Iterator[None]:
    """While prefect.yaml is deployed again, keep the schedules and parameters set in the UI, unless the file was changed; also where deploying fails."""
    mark, digest = place.home / DEPLOYED, hashlib.sha256(file.read_bytes()).hexdigest()
    same = mark.exists() and mark.read_text(encoding="utf-8") == digest
    with SyncPrefectClient(api) as client:
        before = {one.id: (one.schedules, one.parameters) for one in client.read_deployments()} if same else {}
        try:
            yield
        finally:
            for deployment, (schedules, parameters) in before.items():
                updates = [DeploymentScheduleUpdate(**one.model_dump(include=SCHEDULE)) for one in schedules]
                client.update_deployment(deployment, DeploymentUpdate(schedules=updates, parameters=parameters))
    write_text(mark, digest)


SCHEDULE = {"schedule", "active", "parameters", "slug"}
"""Fields of a schedule that a person sets."""


def _at_work(client: SyncPrefectClient) -> list[FlowRun]:
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=AT_WORK))
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(state=state))


def _is_gone(place: Where, run: FlowRun, alone: bool) -> bool:
    path = sign_of(place.home, run.id)
    return is_free(path) if path.exists() else alone and run.work_pool_name == POOL


def _alone(client: SyncPrefectClient) -> bool:
    """Whether no other machine's worker carries out runs of the pool."""
    workers = client.read_workers_for_work_pool(POOL)
    return not any(one.status == WorkerStatus.ONLINE and one.name != worker_name() for one in workers)


def _runs_of(client: SyncPrefectClient, ids: Iterable[str]) -> Iterator[FlowRun]:
    """The flow runs of this server among those with the ids."""
    for one in ids:
        with contextlib.suppress(ObjectNotFound, ValueError):
            yield client.read_flow_run(UUID(one))


def _crash(client: SyncPrefectClient, run: FlowRun) -> None:
    _crash_stages(client, run)
    client.set_flow_run_state(run.id, Crashed(message=GONE), force=True)


def _crash_stages(client: SyncPrefectClient, run: FlowRun) -> None:
    for stage in client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])), task_run_filter=STAGES_AT_WORK
    ):
        client.set_task_run_state(stage.id, Crashed(message=GONE), force=True)


def _free_gpu(client: SyncPrefectClient) -> None:
    """Reset the GPU's limit to one free turn. Nothing is running, so no living holder loses it."""
    with contextlib.suppress(ObjectNotFound):
        client.delete_concurrency_limit_by_tag(GPU)
    client.create_concurrency_limit(GPU, 1)
