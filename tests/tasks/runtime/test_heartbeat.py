"""What Prefect shows of a run: a name that a person gave stays, its tags say what it is of, a stage is named by what it makes."""

import pytest
import torch
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import FlowRunContext
from prefect.exceptions import FailedRun
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL
from prefect.utilities.names import generate_slug

from artifacts.references import Samples
from sfumato.errors import Stopped
from tasks.runtime import run as journal
from tasks.runtime.artifact import RunContext
from tasks.runtime.caching import GPU, stage
from tasks.runtime.environment import configure
from tasks.runtime.heartbeat import attended, call_run, is_made_up, named, what_ended
from tests.examples import home_at, keep_samples


@stage
def generate(context: RunContext, number: int) -> Samples:
    """Samples of no run."""
    return keep_samples(configure().store())


@flow(name="named-work", flow_run_name=named("work-on-{data}"), persist_result=False)
def work(data: str) -> str:
    """A run that learns its name late, and has three stages of one kind."""
    call_run(f"20260101-120000-rapid-{data}", {"data": data, "epsilon": "3"})
    book = journal.Journal(RunContext(run="run-1", parents={}), None, torch.device("cpu"))
    for number, note in enumerate(("", "public model alone", "baseline")):
        book.stage(generate, note=note)(number)
    return FlowRunContext.get().flow_run.name


@pytest.fixture
def client(prefect_server, tmp_path):
    with home_at(tmp_path / "home"), SyncPrefectClient(PREFECT_API_URL.value()) as client:
        configure()
        yield client


def test_names_and_tags_say_what_a_run_is_of_and_a_given_name_stays(client):
    for given, shown in ((None, "20260101-120000-rapid-digits"), ("for the ward", "for the ward")):
        made = client.create_flow_run(work, parameters={"data": "digits"}, name=given, tags=["mine"])
        begun_as = run_flow(work, flow_run=made, parameters={"data": "digits"})
        assert begun_as == (given or "work-on-digits")
        run = client.read_flow_run(made.id)
        assert run.name == shown and set(run.tags) == {"data:digits", "epsilon:3", "mine"}
        stages = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[made.id])))
        assert {one.name for one in stages} == {"generate", "generate (public model alone)", "generate (baseline)"}
        assert all(GPU not in one.tags for one in stages)


def test_a_stage_has_the_tag_of_the_gpu_where_it_holds_one(monkeypatch, tmp_path):
    from prefect.context import TagsContext

    seen = []
    monkeypatch.setattr(journal, "run_stage", lambda *_: seen.append(TagsContext.get().current_tags) or (None, True))
    with home_at(tmp_path / "home"):
        configure()
        for device in ("cpu", "cuda:0"):
            journal.find_or_make(None, None, torch.device(device))
    assert seen == [set(), {GPU}]


@flow(name="ended-work", persist_result=False)
@attended
def ended_work() -> None:
    """A run that a signal stopped."""
    raise Stopped("stopped after step 43 of 400 and saved")


def test_what_ended_a_run_is_known_where_the_servers_first_answer_was_lost(client, monkeypatch):
    once = SyncPrefectClient.request

    def twice(self, method, path, *args, **kwargs):
        if "set_state" in path:
            once(self, method, path, *args, **kwargs)
        return once(self, method, path, *args, **kwargs)

    monkeypatch.setattr(SyncPrefectClient, "request", twice)
    with pytest.raises(FailedRun) as lost:
        ended_work()
    ended = what_ended(lost.value)
    assert isinstance(ended, Stopped) and ended.exit_code == Stopped.exit_code
    assert what_ended(RuntimeError("something else")) is None


def test_made_up_names_are_told_from_given_ones():
    assert all(is_made_up(generate_slug(2)) for _ in range(500))
    assert not any(map(is_made_up, ("for the ward", "weekly-scans", "release-20260101", "red")))
