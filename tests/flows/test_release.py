"""A decision typed into Prefect's form: the run waits without a worker, the server checks the form, the answer is in the ledger."""

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL

from artifacts.record import load_record, save_record
from flows import release as flow_file
from flows.release import release
from sfumato.errors import BadInput
from tasks.runtime.environment import configure, where
from tasks.server import requests
from tasks.server.recovery import POOL, make_pool, worker_name
from tests.examples import home_at, paid_record

ANSWER = {"decision": "approve", "name": "A. Jones", "role": "officer", "reason": "as agreed", "licence": "CC-BY-4.0"}


@pytest.fixture
def run(tmp_path):
    """The name of a finished run."""
    with home_at(tmp_path / "home"):
        place = configure()
        record = paid_record(place, place.runs / "one")
        (place.runs / record.run).mkdir(parents=True)
        save_record(place.runs / record.run, record)
        yield record.run


@pytest.fixture
def client(prefect_server):
    make_pool(PREFECT_API_URL.value())
    with SyncPrefectClient(PREFECT_API_URL.value()) as client:
        yield client


@pytest.fixture
def requested(client, run) -> FlowRun:
    """A run of the deployment, as the worker gets it."""
    deployment = client.create_deployment(client.create_flow(release), name="release", work_pool_name=POOL, path=".")
    yield client.create_flow_run_from_deployment(deployment, parameters={"run": run, "days": 1})
    client.delete_deployment(deployment)


def carried_out(client, flow_run: FlowRun):
    """What a worker does with a run that is due."""
    now = client.read_flow_run(flow_run.id)
    return run_flow(release, flow_run=now, parameters=now.parameters)


def form_in(client, flow_run: FlowRun) -> dict:
    """The schema of the form that the server shows."""
    keyset = client.read_flow_run(flow_run.id).state.state_details.run_input_keyset
    return client.request(
        "GET", "/flow_runs/{id}/input/{key}", path_params={"id": flow_run.id, "key": keyset["schema"]}
    ).json()


def decisions(run: str) -> list:
    return list(load_record(where().runs, run).decisions)


def test_a_form_is_answered_while_no_worker_waits(client, run, requested):
    with pytest.raises(Pause):
        carried_out(client, requested)
    assert client.read_flow_run(requested.id).state.name == "Suspended" and decisions(run) == []
    form = form_in(client, requested)
    assert list(form["properties"]) == ["decision", "name", "role", "reason", "licence"]
    assert form["properties"]["decision"]["enum"] == ["approve", "refuse"]
    assert form["properties"]["licence"]["default"] == "CC0-1.0"
    (shown,) = client.read_artifacts(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[requested.id])))
    assert shown.key == "release" and "For the person who decides" in shown.data

    for wrong in ({"decision": "perhaps"}, {"name": " "}):
        assert client.resume_flow_run(requested.id, run_input={**ANSWER, **wrong}).status == "REJECT"
    assert client.resume_flow_run(requested.id, run_input={**ANSWER, "licence": "free"}).status == "ACCEPT"
    with pytest.raises(Pause):  # SPDX knows no such licence, so that the form is shown again
        carried_out(client, requested)
    assert decisions(run) == []

    assert client.resume_flow_run(requested.id, run_input=ANSWER).status == "ACCEPT"
    assert "name as typed, not verified" in carried_out(client, requested)
    (decision,) = decisions(run)
    assert (decision.decision, decision.name, decision.licence) == ("approved", "A. Jones", "CC-BY-4.0")
    assert not decision.is_signed
    with where().ledger() as ledger:
        assert [one.body["name"] for one in ledger.entries() if one.kind == "decision"] == ["A. Jones"]


def test_without_a_worker_the_process_waits_and_a_refusal_is_an_answer_too(run, client, monkeypatch):
    seen = []

    def answered(wait_for_input, **how):
        seen.append(how)
        return wait_for_input(**{**ANSWER, "decision": "refuse"})

    monkeypatch.setattr(flow_file, "pause_flow_run", answered)
    assert "refused" in release(run, days=2)
    assert seen[0]["timeout"] == 2 * 24 * 60 * 60
    assert [one.decision for one in decisions(run)] == ["refused"]


def test_an_answer_to_what_was_shown_does_not_cover_what_came_since(run, client, monkeypatch):
    """While the form waited, somebody answered for copies: the promise is another one, and is shown again."""
    mistakes, shown = [], [{"images": "a" * 64}, None, None]
    real = flow_file.digests_of
    monkeypatch.setattr(flow_file, "digests_of", lambda record: shown.pop(0) or real(record))

    def answered(wait_for_input, **how):
        mistakes.append(wait_for_input._description)
        return wait_for_input(**ANSWER)

    monkeypatch.setattr(flow_file, "pause_flow_run", answered)
    assert "approved" in release(run, days=2)
    assert len(mistakes) == 2 and "has changed since this form was made" in mistakes[1]
    assert [one.decision for one in decisions(run)] == ["approved"]


def test_latest_is_no_name_in_a_form(client, run):
    with pytest.raises(BadInput, match="give the name of the run"):
        release("latest")


def test_the_question_goes_to_the_worker_where_there_is_one(client, run, requested):
    api = PREFECT_API_URL.value()
    assert requests.server() == api
    assert requests.ask(api, run, 3) == "", "no worker is online"
    client.send_worker_heartbeat(POOL, worker_name(), heartbeat_interval_seconds=30)
    page = requests.ask(api, run, 3)
    due = client.read_flow_run(page.rsplit("/", 1)[1])
    assert due.parameters == {"run": run, "days": 3} and due.name == f"release-{run}"
