"""Events for automations of the Prefect server to act on (`tasks.server.automations`).

That a budget is nearly spent is told by the run that paid, at its end, and by `sfumato serve` where that run died before: by whoever sees the payment
in the ledger first. A variable of the server says which payment of a set was the last one looked at, so each is told once, whatever machine looks.
"""

import contextlib
import hashlib
from collections.abc import Mapping
from uuid import uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import VariableCreate, VariableUpdate
from prefect.context import FlowRunContext
from prefect.events import Event, Resource, emit_event
from prefect.settings import PREFECT_API_URL

from artifacts.record import RunRecord
from sfumato.privacy.ledger.chain import is_there
from sfumato.privacy.ledger.ledger import Ledger
from tasks.runtime.environment import Where, where
from tasks.runtime.heartbeat import any_at_work
from tasks.server.embedded import is_own

BUDGET, AUDIT = "sfumato.budget.nearly-spent", "sfumato.audit.failed"
NEARLY = 0.8
"""The share of a budget above which it counts as nearly spent."""


def tell_spent() -> None:
    """In a run that has ended: tell its server of budgets that are nearly spent. A server of its own, which nobody hears, is told nothing."""
    api = PREFECT_API_URL.value() or ""
    if FlowRunContext.get() and api and not is_own(api):
        with contextlib.suppress(Exception):  # a server that is briefly unreachable: `sfumato serve` tells it later
            _tell_of_payments(where(), api)


def tell_left(place: Where, api: str) -> None:
    """Tell the server of payments by runs that died before they could; nothing while a run of this home is at work, which tells itself."""
    if not any_at_work(place.home):
        _tell_of_payments(place, api)


def _tell_of_payments(place: Where, api: str) -> None:
    """Look once at the last payment for each set that has a budget, and tell where four fifths of that are spent then."""
    if not is_there(place.ledger_url):
        return
    with place.ledger() as ledger, SyncPrefectClient(api) as client:
        payments = {entry.dataset: entry for entry in ledger.entries() if entry.kind == "reserve"}
        for name, entry in payments.items():
            variable = f"sfumato_budget_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
            seen, last = client.read_variable_by_name(variable), {"set": name, "entry": entry.hash}
            if not _has_budget(ledger, name) or (seen and seen.value == last):
                continue
            if text := nearly_spent(ledger, name):
                resource = Resource({"prefect.resource.id": _of(name), "prefect.resource.name": _of(name)})
                payload = {"run": entry.body["run"], "set": name, "text": text}
                event = Event(event=BUDGET, resource=resource, payload=payload, id=uuid4())
                client.request("POST", "/events", json=[event.model_dump(mode="json")])
            if seen:
                client.update_variable(VariableUpdate(name=variable, value=last))
            else:
                client.create_variable(VariableCreate(name=variable, value=last))


def _has_budget(ledger: Ledger, name: str) -> bool:
    return any(ledger.budget(one) for one in (name, *ledger.joined(name)))


def _of(name: str) -> str:
    return f"sfumato.set.{name}"


def nearly_spent(ledger: Ledger, name: str) -> str:
    """The line on a set that has used up four fifths of its budget; empty for another."""
    total = ledger.total(name)
    if not total.budget or total.left is None or total.epsilon < NEARLY * total.budget.epsilon:
        return ""
    return f"the budget of '{name}' is nearly spent: epsilon {total.epsilon:.4g} of {total.budget.epsilon:.4g}, {total.left:.4g} left"


def tell_refuted(record: RunRecord) -> None:
    """Tell that an audit refuted a run's promise, which is all that may be told of it."""
    if record.audit and record.audit.refuted:
        text = f"the audit of run {record.run} refutes its promise: nothing made of the same spends may leave"
        _tell(AUDIT, f"sfumato.run.{record.run}", {"run": record.run, "text": text})


def _tell(event: str, resource: str, payload: Mapping[str, str]) -> None:
    """Tell the server, if the run has one."""
    if FlowRunContext.get():
        emit_event(event, {"prefect.resource.id": resource, "prefect.resource.name": resource}, payload=dict(payload))
