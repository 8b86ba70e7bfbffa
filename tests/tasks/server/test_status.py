"""How the last run of each deployment ended, as the server has it."""

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Completed, Crashed, Failed, Running

from tasks.server.status import LastRun, last_runs


@flow(name="some-work", persist_result=False)
def work() -> None:
    """Nothing; its runs are made by hand."""
    return None


@pytest.fixture
def client(prefect_server):
    with SyncPrefectClient(PREFECT_API_URL.value()) as client:
        yield client


def test_it_is_that_of_its_last_run_which_is_over(client):
    names = ["never", "twice", "works", "stopped", "died"]
    ids = {name: client.create_deployment(client.create_flow(work), name=name, path=".") for name in names}
    for name, state in [
        ("twice", Completed()),
        ("twice", Failed(name="Refused", message="nothing left\nand more")),
        ("works", Failed()),
        ("works", Completed(message="fine")),
        ("works", Running()),
        ("stopped", Cancelled()),
        ("died", Crashed(message="gone")),
    ]:
        run = client.create_flow_run_from_deployment(ids[name])
        for one in (Running(), state):  # the time of its end comes with the step
            client.set_flow_run_state(run.id, one, force=True)
    results = {one.deployment: one for one in last_runs(PREFECT_API_URL.value()) if one.deployment in names}
    assert list(results) == sorted(names) and results["never"] == LastRun("never")
    assert results["twice"][1] == "Refused" and results["twice"].message == "nothing left"
    assert (results["works"].outcome, results["works"].message) == ("Completed", "fine")
    assert {name for name, one in results.items() if one.failed} == {"twice", "died"}
    assert all(one.time.endswith("+00:00") for name, one in results.items() if name != "never")
    for one in ids.values():
        client.delete_deployment(one)
