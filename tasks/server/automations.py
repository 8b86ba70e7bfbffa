"""The automations of `sfumato serve`, as code: what the server does when a budget is nearly spent, an audit fails, or a run ends badly.

They are brought up to date at each start. One that a person switched off stays off; one that a person made, under another name, is left alone.
With an address in `SFUMATO_NOTIFY` a line is posted there; without one, what happened stands in the feed of events alone.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ActionTypes, CallWebhook, ChangeFlowRunState, DoNothing

from tasks.server.events import AUDIT, BUDGET
from tasks.server.recovery import GONE

NOTIFY = "sfumato-notify"
RUNS: dict[str, str | list[str]] = {"prefect.resource.id": "prefect.flow-run.*"}
ENDINGS = ("Failed", "Crashed", "BadInput", "Refused", "Stopped")
"""Names of the states in which a run ends badly: Prefect's own, and those of `tasks.runtime.heartbeat`."""
HEARTBEAT_SECONDS, SILENT_SECONDS = 30, 300
"""Seconds between signs of life of a run, and those after which a run without one counts as dead."""
SCHEDULED = "prefect.tag.auto-scheduled"
"""The tag of runs that a schedule made."""
OF_RUN = """{"text": {{ (
    (deployment.name ~ ": " if deployment and deployment.name != flow_run.name else "")
    ~ flow_run.name ~ ": " ~ flow_run.state.name ~ ". " ~ flow_run.state.message
) | tojson }}}"""
"""The deployment says which schedule it was: a run has a name of its own only once it is planned."""
OF_EVENT = """{"text": {{ event.payload.text | tojson }}}"""


def automations(webhook: UUID | None = None) -> list[AutomationCore]:
    """All of them; `webhook` is the server's block with the address of who is told."""
    all_of_them = [
        _automation(
            "sfumato-budget", "A private set has used 80 % of its budget.", _seen(BUDGET), _tell(webhook, OF_EVENT)
        ),
        _automation("sfumato-audit", "An audit refuted what a run promises.", _seen(AUDIT), _tell(webhook, OF_EVENT)),
        _automation(
            "sfumato-zombie",
            "A run that gives no sign of life any more is called Crashed.",
            EventTrigger(
                after={"prefect.flow-run.heartbeat"},
                expect={"prefect.flow-run.*"},
                match=RUNS,
                for_each={"prefect.resource.id"},
                posture=Posture.Proactive,
                threshold=1,
                within=timedelta(seconds=SILENT_SECONDS),
            ),
            [ChangeFlowRunState(name=None, state=StateType.CRASHED, message=GONE, force=False)],
        ),
        _automation(
            "sfumato-refused-schedule",
            "A run that a schedule made was refused, or cannot work as it is set.",
            EventTrigger(
                expect={"prefect.flow-run.Refused", "prefect.flow-run.BadInput"},
                match=RUNS,
                match_related={"prefect.resource.role": "tag", "prefect.resource.id": SCHEDULED},
                posture=Posture.Reactive,
                threshold=1,
                within=timedelta(0),
            ),
            [DoNothing()],  # where somebody is told at all, the next one tells it
        ),
    ]
    if webhook:
        endings = _seen(*(f"prefect.flow-run.{ending}" for ending in ENDINGS)).model_copy(update={"match": RUNS})
        all_of_them.append(_automation(NOTIFY, "Posts a line when a run ends badly.", endings, _tell(webhook, OF_RUN)))
    return all_of_them


def set_up(api: str, webhook: UUID | None = None) -> None:
    """Make the automations, or bring them up to date; without a `webhook` nobody is told, and the one that tells of runs goes."""
    wanted = {one.name: one for one in automations(webhook)}
    with SyncPrefectClient(api) as client:
        for name in {NOTIFY, *wanted}:
            there = client.read_automations_by_name(name)
            new = wanted.get(name)
            if new and there:
                client.update_automation(there[0].id, new.model_copy(update={"enabled": there[0].enabled}))
            elif new:
                client.create_automation(new)
            for extra in there[1:] if new else there:
                client.delete_automation(extra.id)


def _automation(name: str, about: str, trigger: EventTrigger, actions: Sequence[ActionTypes]) -> AutomationCore:
    return AutomationCore(name=name, description=about, trigger=trigger, actions=list(actions))


def _seen(*events: str) -> EventTrigger:
    return EventTrigger(expect=set(events), posture=Posture.Reactive, threshold=1, within=timedelta(0))


def _tell(webhook: UUID | None, text: str) -> list[ActionTypes]:
    return [CallWebhook(block_document_id=webhook, payload=text)] if webhook else [DoNothing()]
