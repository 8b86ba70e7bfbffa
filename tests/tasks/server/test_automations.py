"""What the server does by itself: made once, kept as people set it, and set off by what runs tell."""

import json
import re
import time
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.events import emit_event
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter
from prefect.server.utilities.user_templates import matching_types_in_templates, render_user_template_sync
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Running

from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.auditing.findings import Audit
from tasks.runtime.environment import configure
from tasks.runtime.heartbeat import sign
from tasks.runtime.locks import turn
from tasks.server import automations as module
from tasks.server import events
from tasks.server.automations import NOTIFY, automations, set_up
from tasks.server.recovery import GONE
from tests.examples import DELTA, home_at, make_record, reserve


@pytest.fixture
def place(tmp_path):
    """A home whose ledger has one payment, for 'scans', by run-1."""
    with home_at(tmp_path / "home"):
        place = configure()
        with place.ledger() as ledger:
            reserve(ledger, [Gaussian(noise_multiplier=5.0)], run="run-1")
        yield place


def allow(place, share: float) -> None:
    """Set the budget of which a share is spent."""
    with place.ledger() as ledger:
        ledger.set_budget("scans", ledger.total("scans", DELTA).epsilon / share, DELTA)


NAMES = {"sfumato-budget", "sfumato-audit", "sfumato-zombie", "sfumato-refused-schedule"}
PATIENCE_SECONDS = 60


@pytest.fixture
def client(prefect_server):
    with SyncPrefectClient(PREFECT_API_URL.value()) as client:
        yield client
        for one in client.read_automations():
            client.delete_automation(one.id)


def there(client) -> dict:
    return {one.name: one for one in client.read_automations()}


def test_they_are_made_once_and_what_people_switched_off_stays_off(client):
    api = PREFECT_API_URL.value()
    set_up(api)
    first = there(client)
    assert set(first) == NAMES and all(one.enabled for one in first.values())
    client.pause_automation(first["sfumato-zombie"].id)
    own = automations()[0].model_copy(update={"name": "of a person"})
    client.create_automation(own)
    client.create_automation(automations()[0])
    set_up(api)
    again = there(client)
    assert set(again) == {*NAMES, "of a person"} and len(client.read_automations()) == len(NAMES) + 1
    assert [name for name, one in again.items() if not one.enabled] == ["sfumato-zombie"]
    assert {name: again[name].id for name in ("sfumato-zombie", "sfumato-audit")} == {
        name: first[name].id for name in ("sfumato-zombie", "sfumato-audit")
    }


def test_with_an_address_there_is_one_more_and_without_it_goes(client):
    api, webhook = PREFECT_API_URL.value(), uuid4()
    set_up(api, webhook)
    made = there(client)
    assert set(made) == {*NAMES, NOTIFY}
    reported = {name for name, one in made.items() if "webhook" in one.actions[0].type}
    assert reported == {NOTIFY, "sfumato-budget", "sfumato-audit"}
    set_up(api)
    assert set(there(client)) == NAMES and there(client)["sfumato-budget"].actions[0].type == "do-nothing"


@pytest.mark.parametrize(
    ("deployment", "name", "start"),
    [("weekly", "rapid", "weekly: rapid: "), ("rapid", "rapid", "rapid: "), (None, "mine", "mine: ")],
)
def test_the_line_on_a_run_names_its_deployment(deployment, name, start):
    state = SimpleNamespace(name="BadInput", message='no "scans"')
    of = deployment and SimpleNamespace(name=deployment)
    context = {"deployment": of, "flow_run": SimpleNamespace(name=name, state=state)}
    line = render_user_template_sync(module.OF_RUN, context)
    assert json.loads(line) == {"text": f'{start}BadInput. no "scans"'}
    assert set(matching_types_in_templates([module.OF_RUN], types={"deployment", "flow_run", "flow"})) == set(context)


def sent(client, name: str, most: int = 1) -> list[dict]:
    """The events of a name in the server's feed, once there are `most`, or a minute has passed."""
    wanted = EventFilter(event=EventNameFilter(name=[name]), occurred=EventOccurredFilter())
    wanted = {"filter": wanted.model_dump(mode="json", exclude_unset=True)}
    deadline, result = time.monotonic() + PATIENCE_SECONDS, []
    while len(result) < most and time.monotonic() < deadline:
        result = client.request("POST", "/events/filter", json=wanted).json()["events"]
        time.sleep(0.5)
    return result


def test_a_budget_that_is_nearly_spent_sets_its_automation_off_once_for_each_payment(client, place):
    api = PREFECT_API_URL.value()
    set_up(api)
    allow(place, 0.85)

    @flow(persist_result=False)
    def reported() -> None:
        events.tell_spent()

    reported()
    assert [one["resource"]["prefect.resource.name"] for one in sent(client, "prefect.automation.triggered")] == [
        "sfumato-budget"
    ]
    events.tell_left(place, api)
    reported()
    with place.ledger() as ledger:
        reserve(ledger, [Gaussian(noise_multiplier=50.0)], run="run-2")
    with turn(place.home, sign("at-work"), ""):
        events.tell_left(place, api)  # the run at work tells itself
    assert len(sent(client, events.BUDGET)) == 1
    for _ in range(2):
        events.tell_left(place, api)  # it died before
    payloads = [one["payload"] for one in sent(client, events.BUDGET, 2)]
    assert sorted(one["run"] for one in payloads) == ["run-1", "run-2"]
    assert all(one["text"].startswith("the budget of 'scans' is nearly spent: epsilon ") for one in payloads)
    reported()
    time.sleep(1)
    assert len(sent(client, events.BUDGET)) == 2


@pytest.mark.slow
def test_a_run_that_gives_no_sign_of_life_any_more_is_called_crashed(client, monkeypatch):
    monkeypatch.setattr(module, "SILENT_SECONDS", 10)
    set_up(PREFECT_API_URL.value())

    @flow(persist_result=False)
    def work() -> None:
        """Never carried out here: its process is dead."""

    dead, done = (client.create_flow_run(work, state=Running()) for _ in range(2))
    for run in (dead, done):
        resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name}
        emit_event("prefect.flow-run.heartbeat", resource)
    time.sleep(2)
    client.set_flow_run_state(done.id, Completed(), force=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.read_flow_run(dead.id).state.type != "CRASHED" and time.monotonic() < deadline:
        time.sleep(0.5)
    assert client.read_flow_run(dead.id).state.message == GONE
    assert client.read_flow_run(done.id).state.name == "Completed"


@pytest.mark.parametrize(("share", "tells"), [(0.81, True), (0.79, False), (1.0, True)])
def test_it_is_told_from_four_fifths_on(place, share, tells):
    allow(place, share)
    with place.ledger() as ledger:
        text = events.nearly_spent(ledger, "scans")
    assert bool(text) == tells
    line = r"the budget of 'scans' is nearly spent: epsilon [\d.]+ of [\d.]+, [\d.]+ left"
    assert not tells or re.fullmatch(line, text)


def test_without_a_budget_nothing_is_told(place):
    with place.ledger() as ledger:
        assert events.nearly_spent(ledger, "scans") == ""


def test_of_an_audit_only_that_it_refutes_is_told(monkeypatch, tmp_path):
    reported = []
    monkeypatch.setattr(events, "_tell", lambda *given: reported.append(given))
    for refuted in (False, True):
        monkeypatch.setattr(Audit, "refuted", property(lambda _, refuted=refuted: refuted))
        events.tell_refuted(make_record(tmp_path, audit=Audit.model_construct()))
    events.tell_refuted(make_record(tmp_path))
    assert [(event, set(payload)) for event, _, payload in reported] == [(events.AUDIT, {"run", "text"})]


@pytest.mark.parametrize("own", [True, False])
def test_a_server_that_ends_with_the_run_is_told_nothing_so_that_another_hears_it_later(place, monkeypatch, own):
    looks = []
    monkeypatch.setattr(events, "_tell_of_payments", lambda *of: looks.append(of))
    monkeypatch.setattr(events, "is_own", lambda _: own)
    monkeypatch.setattr(events, "FlowRunContext", SimpleNamespace(get=lambda: True))
    monkeypatch.setattr(events, "PREFECT_API_URL", SimpleNamespace(value=lambda: "http://127.0.0.1:9/api"))
    events.tell_spent()
    assert bool(looks) != own


def test_without_a_flow_run_or_where_the_server_does_not_answer_nothing_is_told(place, monkeypatch):
    monkeypatch.setattr(events, "PREFECT_API_URL", SimpleNamespace(value=lambda: "http://127.0.0.1:9/api"))
    allow(place, 0.9)
    events.tell_spent()
    monkeypatch.setattr(events, "FlowRunContext", SimpleNamespace(get=lambda: True))
    events.tell_spent()
