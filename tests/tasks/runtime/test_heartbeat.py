"""What Prefect shows of a run: a name that a person gave stays, its tags say what it is of, a stage is named by what it makes."""

import logging

import pytest
import torch
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import FlowRunContext
from prefect.exceptions import FailedRun
from prefect.flow_engine import run_flow
from prefect.logging.loggers import flow_run_logger
from prefect.settings import PREFECT_API_URL
from prefect.utilities.names import generate_slug

from artifacts.references import Samples
from sfumato.errors import BadInput, Refused, Stopped, Unnamed
from tasks.runtime import run as journal
from tasks.runtime.artifact import RunContext
from tasks.runtime.caching import GPU, stage
from tasks.runtime.environment import configure
from tasks.runtime.heartbeat import RUN_LOGS, attended, call_run, is_made_up, named, what_ended
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


@task
def opened(error: Exception) -> None:
    """A stage that ends with an error, which another one was behind."""
    try:
        raise OSError("cannot read smith.png")
    except OSError as cause:
        raise error from cause


@flow(name="mistaken-work", persist_result=False, validate_parameters=False)
@attended
def mistaken_work(error: Exception) -> None:
    """A run that a mistake ends, in a stage."""
    opened(error)


@pytest.mark.parametrize(
    "error",
    [
        BadInput("no such folder: is it mounted?"),
        Refused("epsilon 0.4 of 5 left for 'digits'"),
        Stopped("stopped after step 3 of 9"),
        Unnamed("an image cannot be read", internal="smith.png cannot be read"),
    ],
)
def test_the_log_of_a_run_that_a_person_can_correct_holds_one_line_and_no_traceback(client, caplog, error):
    made = client.create_flow_run(mistaken_work)
    for name in RUN_LOGS:
        caplog.set_level(logging.ERROR, logger=name)
    logger = flow_run_logger(made, mistaken_work)
    with pytest.raises((BadInput, Refused, Stopped)):
        run_flow(mistaken_work, flow_run=made, parameters={"error": error}, error_logger=logger)
    assert client.read_flow_run(made.id).state.type == "FAILED"
    of_stage, _, of_run = [one.getMessage() for one in caplog.records if one.name in RUN_LOGS]
    assert of_stage == str(error) and of_run.startswith(str(error))
    assert "smith" not in caplog.text and "Traceback" not in caplog.text


def test_the_log_of_a_run_that_the_program_is_to_blame_for_holds_the_traceback(client, caplog):
    caplog.set_level(logging.ERROR, logger=RUN_LOGS[0])
    with pytest.raises(KeyError):
        mistaken_work(KeyError("a fault of the program"))
    assert "Traceback" in caplog.text


def test_made_up_names_are_told_from_given_ones():
    assert all(is_made_up(generate_slug(2)) for _ in range(500))
    assert not any(map(is_made_up, ("for the ward", "weekly-scans", "release-20260101", "red")))
