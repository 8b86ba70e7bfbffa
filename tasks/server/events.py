"""Events that a run tells the Prefect server, for automations to act on (`tasks.server.automations`)."""

from collections.abc import Mapping

from prefect.context import FlowRunContext
from prefect.events import emit_event

from artifacts.record import RunRecord
from tasks.runtime.environment import where

BUDGET, AUDIT = "sfumato.budget.nearly-spent", "sfumato.audit.failed"
NEARLY = 0.8
"""The share of a budget above which it counts as nearly spent."""


def tell_spent(record: RunRecord) -> None:
    """Tell where a run that paid has used up four fifths of its set's budget; what costs nothing changes nothing."""
    spent, left = record.spent_total["epsilon"], record.spent_total["left"]
    if left is None or spent is None or spent < NEARLY * (spent + left) or not _paid(record.run):
        return
    name = record.settings["data"]["name"]
    text = f"the budget of '{name}' is nearly spent: epsilon {spent:.4g} of {spent + left:.4g}, {left:.4g} left"
    _tell(BUDGET, f"sfumato.set.{name}", {"run": record.run, "set": name, "text": text})


def _paid(run: str) -> bool:
    with where().ledger() as ledger:
        return any(entry.kind == "reserve" and entry.body["run"] == run for entry in ledger.entries())


def tell_refuted(record: RunRecord) -> None:
    """Tell that an audit refuted a run's promise, which is all that may be told of it."""
    if record.audit and record.audit.refuted:
        text = f"the audit of run {record.run} refutes its promise: nothing made of the same spends may leave"
        _tell(AUDIT, f"sfumato.run.{record.run}", {"run": record.run, "text": text})


def _tell(event: str, resource: str, payload: Mapping[str, str]) -> None:
    """Tell the server, if the run has one."""
    if FlowRunContext.get():
        emit_event(event, {"prefect.resource.id": resource, "prefect.resource.name": resource}, payload=dict(payload))
