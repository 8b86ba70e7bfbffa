"""The present state of this home's server, runs and ledger, in lines for one screen."""

from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from artifacts.record import records
from artifacts.reports.odds import rounded_down, rounded_up
from sfumato.privacy.ledger.chain import is_there
from tasks.runtime.environment import Where

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import FlowRunFilterDeploymentId
    from prefect.client.schemas.objects import FlowRun, State, StateType
    from prefect.client.schemas.sorting import FlowRunSort

MOST = 5
"""Lines of each kind."""
AHEAD = 200
"""Number of scheduled runs to request, the most that the server gives; a schedule makes many, of which one is shown."""


class StatusLine(NamedTuple):
    """One run: its state, its name, and a remark."""

    kind: str
    name: str
    about: str


class LastRun(NamedTuple):
    """How the last run of a deployment that is over ended; all empty where none is."""

    deployment: str
    outcome: str = ""
    """Name of its state: `Completed`, `Failed`, `BadInput`, `Refused`, ..."""
    time: str = ""
    """ISO 8601, UTC."""
    message: str = ""
    """The first line of what it says."""
    failed: bool = False


def last_runs(api: str) -> list[LastRun]:
    """One for each deployment, in the order of their names."""
    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient(api) as client:
        deployments = sorted(client.read_deployments(), key=lambda one: one.name)
        return [_last_run(client, one.name, one.id) for one in deployments]


def _last_run(client: "SyncPrefectClient", name: str, deployment: UUID) -> LastRun:
    from prefect.client.schemas.filters import FlowRunFilterDeploymentId
    from prefect.client.schemas.objects import TERMINAL_STATES, StateType
    from prefect.client.schemas.sorting import FlowRunSort

    of = FlowRunFilterDeploymentId(any_=[deployment])
    for _, state in _runs_in(client, *TERMINAL_STATES, sort=FlowRunSort.END_TIME_DESC, most=1, of=of):
        failed = state.type in (StateType.FAILED, StateType.CRASHED)
        time = state.timestamp.astimezone(UTC).isoformat(timespec="seconds")
        message = (state.message or "").strip().splitlines() or [""]
        return LastRun(name, state.name or "", time, message[0], failed)
    return LastRun(name)


def lines(place: Where, api: str) -> Iterator[StatusLine]:
    """Lines on running, waiting, next, failed and last finished runs; without a server, only the last finished ones."""
    if api:
        from prefect.client.orchestration import SyncPrefectClient

        with SyncPrefectClient(api) as client:
            yield from _at_server(client)
    for record in list(records(place.runs))[-MOST:][::-1]:
        epsilon = f"epsilon {record.certificate.epsilon:.3f}" if record.certificate else "no certificate"
        published = f"published to {record.published}" if record.published else "not published"
        yield StatusLine("done", record.run, f"{record.label}, {epsilon}, {published}")


def budgets(place: Where) -> Iterator[str]:
    """The cost of each private set, and the rest of its budget."""
    if not is_there(place.ledger_url):
        return
    with place.ledger() as ledger:
        for name in dict.fromkeys(entry.dataset for entry in ledger.entries()):
            total = ledger.total(name)
            left = (
                f"{rounded_down(total.left or 0.0)} left of {total.budget.epsilon:g}"
                if total.budget
                else "no budget set"
            )
            yield f"'{name}': epsilon {rounded_up(total.epsilon)} spent at delta {total.delta:.3g}, {left}"


def budget_amounts(place: Where) -> dict[str, Any]:
    """The same as plain values, by set."""
    if not is_there(place.ledger_url):
        return {}
    from artifacts.reports.spending import totals

    with place.ledger() as ledger:
        return {name: totals(ledger, name) for name in dict.fromkeys(entry.dataset for entry in ledger.entries())}


def _at_server(client: "SyncPrefectClient") -> Iterator[StatusLine]:
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    deployments: dict[UUID | None, str] = {one.id: one.name for one in client.read_deployments()}
    for run, _ in _runs_in(client, StateType.RUNNING, StateType.CANCELLING, sort=FlowRunSort.START_TIME_DESC):
        yield StatusLine("runs", run.name, _progress(client, run))
    for run, state in _runs_in(client, StateType.PENDING, StateType.PAUSED, sort=FlowRunSort.START_TIME_DESC):
        of = deployments.get(run.deployment_id, run.name)
        # A question about a release has the name of the run that it is about.
        yield StatusLine("waits", run.name if run.name.startswith(f"{of}-") else of, state.name or "")
    seen: set[object] = set()
    for run, state in _runs_in(client, StateType.SCHEDULED, sort=FlowRunSort.EXPECTED_START_TIME_ASC, most=AHEAD):
        if run.deployment_id not in seen:
            seen.add(run.deployment_id)
            kind = "waits" if state.name == "Late" else "next"
            due = state.state_details.scheduled_time or run.expected_start_time
            yield StatusLine(kind, deployments.get(run.deployment_id, run.name), f"due {due:%Y-%m-%d %H:%M} UTC")
    for run, state in _runs_in(client, StateType.FAILED, StateType.CRASHED, sort=FlowRunSort.END_TIME_DESC):
        why = (state.message or "").strip().splitlines() or ["no reason given"]
        yield StatusLine("failed", run.name, f"{state.timestamp:%Y-%m-%d %H:%M} {state.name}: {why[0]}")


def _runs_in(
    client: "SyncPrefectClient",
    *types: "StateType",
    sort: "FlowRunSort",
    most: int = MOST,
    of: "FlowRunFilterDeploymentId | None" = None,
) -> "list[tuple[FlowRun, State]]":
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType

    wanted = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=wanted, deployment_id=of), sort=sort, limit=most)
    return [(run, run.state) for run in runs if run.state]


def _progress(client: "SyncPrefectClient", run: "FlowRun") -> str:
    """The progress of the last stage, from `tasks.runtime.progress`."""
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterType, FlowRunFilter, FlowRunFilterId
    from prefect.client.schemas.sorting import ArtifactSort

    artifacts = client.read_artifacts(
        artifact_filter=ArtifactFilter(type=ArtifactFilterType(any_=["progress"])),
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
        sort=ArtifactSort.CREATED_DESC,
        limit=1,
    )
    return artifacts[0].description or "" if artifacts else ""
