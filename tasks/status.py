"""What the server of this home, the folders of its runs and the ledger say at this moment, in lines for one screen."""

from collections.abc import Iterator
from typing import NamedTuple

from artifacts.record import records
from sfumato.privacy.chain import is_there
from tasks.where import Where, running_server

__all__ = ["budgets", "running_server", "states"]

MOST = 5
"""Lines of each kind."""
MINUTES = 16
"""Characters of a time in ISO-8601, up to the minutes."""


class Line(NamedTuple):
    """One run: what it does, and the cells that say which, since or till when, and what about it."""

    kind: str
    cells: tuple[str, str, str]


def states(place: Where, api: str) -> Iterator[Line]:
    """What runs, waits, comes next, failed and why, and what was finished last; without a server, the last alone."""
    if api:
        yield from _at_server(api)
    for record in list(records(place.runs))[-MOST:][::-1]:
        epsilon = f"epsilon {record.certificate.epsilon:.3f}" if record.certificate else "no certificate"
        stamp = record.run[:15]
        when = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]} {stamp[9:11]}:{stamp[11:13]}"
        yield Line("done", (record.run, when, f"{record.label}, {epsilon}, {record.published or 'not published'}"))


def budgets(place: Where) -> Iterator[str]:
    """What each private set has cost and what is left."""
    if not is_there(place.ledger_url):
        return
    with place.ledger() as ledger:
        for name in dict.fromkeys(entry.dataset for entry in ledger.entries()):
            total, budget = ledger.total(name), ledger.budget(name)
            left = f"{total.left:.4g} left of {budget.epsilon:g}" if budget else "no budget set"
            yield f"budget   '{name}': epsilon {total.epsilon:.4g} spent at delta {total.delta:.3g}, {left}"


def _at_server(api: str) -> Iterator[Line]:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import FlowRun, StateType
    from prefect.client.schemas.sorting import FlowRunSort

    with SyncPrefectClient(api) as client:
        deployments = {one.id: one.name for one in client.read_deployments()}

        def found(*types: StateType, sort: FlowRunSort) -> list[FlowRun]:
            state = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))
            return client.read_flow_runs(flow_run_filter=FlowRunFilter(state=state), sort=sort, limit=MOST)

        def line(kind: str, run: FlowRun, when: object, about: str) -> Line:
            return Line(kind, (run.name, str(when or "")[:MINUTES], about))

        for run in found(StateType.RUNNING, StateType.CANCELLING, sort=FlowRunSort.START_TIME_DESC):
            yield line("runs", run, run.start_time, deployments.get(run.deployment_id, ""))
        for run in found(StateType.PENDING, StateType.PAUSED, sort=FlowRunSort.START_TIME_DESC):
            yield line("waits", run, run.expected_start_time, run.state.name)
        seen: set[object] = set()
        for run in found(StateType.SCHEDULED, sort=FlowRunSort.EXPECTED_START_TIME_ASC):
            if run.deployment_id not in seen:
                seen.add(run.deployment_id)
                kind = "waits" if run.state.name == "Late" else "next"
                yield line(kind, run, run.next_scheduled_start_time, deployments.get(run.deployment_id, ""))
        for run in found(StateType.FAILED, StateType.CRASHED, sort=FlowRunSort.END_TIME_DESC):
            why = (run.state.message or "").strip().splitlines() or ["no reason given"]
            yield line("failed", run, run.end_time, f"{run.state.name}: {why[0]}")
