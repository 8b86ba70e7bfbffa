"""What a dead process left behind is told from what is at work, and only that is repaired."""

import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from uuid import uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleUpdate, DeploymentUpdate
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.settings import PREFECT_API_URL
from prefect.states import Crashed, Pending, Running

from artifacts.tracking import FLOW_RUN, REASON
from tasks.runtime.caching import GPU
from tasks.runtime.environment import configure
from tasks.runtime.heartbeat import sign, sign_of
from tasks.runtime.locks import turn
from tasks.server import recovery
from tasks.server.recovery import GONE, POOL, keeping_schedules, make_pool, mend
from tests.examples import home_at


@flow(name="some-work", persist_result=False)
def work() -> None:
    """Nothing; its runs are made by hand."""
    return None


@task
def stage() -> None:
    """Nothing either."""


@pytest.fixture
def api(prefect_server) -> str:
    make_pool(PREFECT_API_URL.value())
    return PREFECT_API_URL.value()


@pytest.fixture
def client(api):
    with SyncPrefectClient(api) as client:
        yield client


@pytest.fixture
def place(tmp_path):
    with home_at(tmp_path / "home"):
        place = configure()
        (place.home / "locks").mkdir()
        yield place


@pytest.fixture
def deployment(client, api):
    """A deployment whose runs wait in the pool of this home's worker."""
    make_pool(api)
    result = client.create_deployment(client.create_flow(work), name="some", work_pool_name=POOL, path=".")
    yield result
    client.delete_deployment(result)


def ended(client: SyncPrefectClient, run) -> bool:
    state = client.read_flow_run(run.id).state
    assert state.type != StateType.CRASHED or (state.name, state.message) == ("Crashed", GONE)
    return state.is_final()


def taken_turns(client: SyncPrefectClient) -> int:
    return client.read_global_concurrency_limit_by_name(f"tag:{GPU}").active_slots


HOLDER = """
import sys, time
from pathlib import Path
from tasks.runtime.locks import turn
with turn(Path(sys.argv[1]), sys.argv[2], ""):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_whose_process_died_ends_with_one_line_and_frees_the_gpu(client, api, place):
    run = client.create_flow_run(work, state=Running())
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place.home), sign(run.id)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    client.create_concurrency_limit(GPU, 1)
    held = client.increment_concurrency_slots_with_lease([f"tag:{GPU}"], 1, "concurrency", 3600)
    assert held.status_code == 200 and taken_turns(client)
    assert mend(place, api) == [] and not ended(client, run), "it lives"
    holder.kill()
    holder.wait()
    (reported,) = mend(place, api)
    assert reported == f"{run.name}: {GONE}" and "\n" not in reported
    assert ended(client, run) and not sign_of(place.home, run.id).exists()
    again = client.increment_concurrency_slots_with_lease([f"tag:{GPU}"], 1, "concurrency", 3600)
    assert again.status_code == 200, "the turn on the GPU is free"
    client.delete_concurrency_limit_by_tag(GPU)
    assert mend(place, api) == []


def test_what_a_dead_run_left_open_in_mlflow_is_ended_and_a_living_one_goes_on(client, api, place):
    dead, alive = (client.create_flow_run(work, state=Running()) for _ in range(2))
    sign_of(place.home, dead.id).touch()
    tracker = place.tracker()
    left, other = (
        [
            tracker.log("a run", label=label, tags={FLOW_RUN: str(run.id)}, ended=False)
            for label in ("PUBLIC", "INTERNAL")
        ]
        for run in (dead, alive)
    )
    with turn(place.home, sign(alive.id), ""):
        mend(place, api)
        runs = [tracker.client().get_run(run) for run in (*left, *other)]
    assert [one.info.status for one in runs] == ["KILLED", "KILLED", "RUNNING", "RUNNING"]
    assert [one.data.tags.get(REASON) for one in runs] == [GONE, GONE, None, None]
    mend(place, api)


def test_what_a_run_left_that_the_worker_itself_calls_crashed_is_ended_too(client, api, place):
    dead, alive, foreign = (client.create_flow_run(work, state=Crashed()) for _ in range(3))
    stages = [client.create_task_run(stage, run.id, "0", state=Running()) for run in (dead, alive, foreign)]
    sign_of(place.home, dead.id).touch()
    tracker, public = place.tracker(), "PUBLIC"
    ids = [str(run.id) for run in (dead, alive, foreign)]
    runs = [
        tracker.log("a run", label=public, tags={FLOW_RUN: one}, ended=False) for one in (*ids, "none", str(uuid4()))
    ]
    with turn(place.home, sign(alive.id), ""):
        assert mend(place, api) == [], "Prefect knows already"
        states = [tracker.client().get_run(run).info.status for run in runs]
        types = [client.read_task_run(one.id).state.type for one in stages]
    assert states == ["KILLED", "RUNNING", "RUNNING", "RUNNING", "RUNNING"]
    assert types == [StateType.CRASHED, StateType.RUNNING, StateType.RUNNING]
    for run in (dead, alive, foreign):
        client.delete_flow_run(run.id)


def test_a_living_run_keeps_its_turn_on_the_gpu_when_another_died(client, api, place):
    dead, alive = (client.create_flow_run(work, state=Running()) for _ in range(2))
    sign_of(place.home, dead.id).touch()
    client.create_concurrency_limit(GPU, 1)
    client.increment_concurrency_slots_with_lease([f"tag:{GPU}"], 1, "concurrency", 3600)
    with turn(place.home, sign(alive.id), ""):
        assert len(mend(place, api)) == 1
        assert ended(client, dead) and not ended(client, alive)
        assert taken_turns(client)
    client.delete_concurrency_limit_by_tag(GPU)
    mend(place, api)


def test_what_waited_for_the_dead_worker_ends_too_and_what_is_of_others_is_left_alone(
    client, api, place, deployment, monkeypatch
):
    other = client.create_flow_run(work, state=Running())
    waiting = client.create_flow_run_from_deployment(deployment, state=Pending())
    scheduled = client.create_flow_run_from_deployment(deployment)
    monkeypatch.setattr(recovery, "_alone", lambda client: False)
    assert mend(place, api) == [], "the worker of another machine may have it"
    monkeypatch.undo()
    assert mend(place, api) == [f"{waiting.name}: {GONE}"]
    assert ended(client, waiting) and not ended(client, other) and not ended(client, scheduled)
    client.delete_flow_run(other.id)


def test_a_schedule_stays_as_it_was_set_unless_the_file_changed(client, api, place, deployment, tmp_path):
    file = tmp_path / "prefect.yaml"
    weekly = IntervalSchedule(interval=timedelta(days=7))
    paused = [DeploymentScheduleUpdate(schedule=weekly, active=False)]

    def deployed_again(text: str) -> list[bool]:
        file.write_text(text)
        with keeping_schedules(place, api, file):
            client.update_deployment(deployment, DeploymentUpdate(schedules=paused))
        return [one.active for one in client.read_deployment(deployment).schedules]

    assert deployed_again("one") == [False]
    on = [DeploymentScheduleUpdate(schedule=IntervalSchedule(interval=timedelta(days=1)), active=True)]
    client.update_deployment(deployment, DeploymentUpdate(schedules=on))
    assert deployed_again("one") == [True]
    assert client.read_deployment(deployment).schedules[0].schedule.interval == timedelta(days=1)
    assert deployed_again("two") == [False], "the file was edited and wins"


def test_what_was_set_in_the_ui_stays_also_where_deploying_fails(client, api, place, deployment, tmp_path):
    file = tmp_path / "prefect.yaml"
    file.write_text("one")
    with keeping_schedules(place, api, file):
        client.update_deployment(deployment, DeploymentUpdate(parameters={"method": "rapid"}))
    weekly = [DeploymentScheduleUpdate(schedule=IntervalSchedule(interval=timedelta(days=7)), active=True)]
    client.update_deployment(deployment, DeploymentUpdate(schedules=weekly, parameters={"method": "dp-sgd"}))
    paused = [DeploymentScheduleUpdate(schedule=IntervalSchedule(interval=timedelta(days=7)), active=False)]
    for fails in (False, True):
        with pytest.raises(KeyboardInterrupt) if fails else nullcontext(), keeping_schedules(place, api, file):
            client.update_deployment(deployment, DeploymentUpdate(schedules=paused, parameters={"method": "rapid"}))
            if fails:
                raise KeyboardInterrupt
        now = client.read_deployment(deployment)
        assert [one.active for one in now.schedules] == [True] and now.parameters == {"method": "dp-sgd"}


def test_what_is_deployed_already_is_deployed_again_only_after_a_change(api, client, deployment, place, tmp_path):
    file, code = tmp_path / "prefect.yaml", tmp_path / "flows" / "deployments.py"
    code.parent.mkdir()
    code.write_text("form = 1")
    file.write_text("deployments: [{name: some}]")
    assert not recovery.is_deployed(place, api, file), "nothing was noted yet"
    recovery.note_deployed(place, file)
    assert recovery.is_deployed(place, api, file)
    code.write_text("form = 2")
    assert not recovery.is_deployed(place, api, file), "the form may be another"
    file.write_text("deployments: [{name: some}, {name: none}]")
    recovery.note_deployed(place, file)
    assert not recovery.is_deployed(place, api, file), "somebody deleted one"
