"""Asks the server to show the form of a release, by the worker of `sfumato serve` where there is one."""

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import WorkerStatus
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL
from prefect.states import Scheduled

from sfumato.errors import BadInput
from tasks.runtime.environment import answers
from tasks.server.recovery import POOL

FLOW = "release"


def server() -> str:
    """Address of the server whose UI shows the form; `BadInput` where none answers."""
    api = PREFECT_API_URL.value() or ""
    if not api or not answers(api):
        raise BadInput(
            "no Prefect server answers in whose UI somebody could decide: start sfumato serve, or sign here with sfumato approve RUN --key FILE"
        )
    return api


def ask(api: str, run: str, days: float) -> str:
    """Hand the question to the worker, and return the page of its flow run; empty where there is no worker for it."""
    with SyncPrefectClient(api) as client:
        try:
            deployment = client.read_deployment_by_name(f"{FLOW}/{FLOW}")
            workers = client.read_workers_for_work_pool(POOL)
        except ObjectNotFound:
            return ""
        if not any(one.status == WorkerStatus.ONLINE for one in workers):
            return ""
        waiting = client.create_flow_run_from_deployment(
            deployment.id, parameters={"run": run, "days": days}, state=Scheduled(), name=f"{FLOW}-{run}"
        )
        return f"{pages(api)}/runs/flow-run/{waiting.id}"


def pages(api: str) -> str:
    """Address of the server's pages."""
    return (PREFECT_UI_URL.value() or api.removesuffix("/api")).rstrip("/")
