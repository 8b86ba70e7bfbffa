"""Notifications of failed runs: a Prefect automation that posts to the address in `SFUMATO_NOTIFY`."""

from datetime import timedelta
from typing import Any

from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import CallWebhook
from prefect.settings import PREFECT_API_URL
from pydantic import SecretStr

from tasks.runtime.environment import where

NAME = "sfumato-notify"
ENDINGS = ("Failed", "Crashed", "BadInput", "Refused", "Stopped")
"""Names of the states that are notified: Prefect's own, and those of `tasks.runtime.heartbeat`."""
PAYLOAD = """{"text": {{ (flow_run.name ~ ": " ~ flow_run.state.name ~ ". " ~ flow_run.state.message) | tojson }}}"""


def set_up(api: str, url: str) -> None:
    """Post a line to `url` whenever a run ends badly; the address is kept as a secret of the server.

    In a process of its own (`python -m tasks.server.notifications`): saving a block starts a thread of Prefect's that talks to the
    server until the process ends, and `sfumato serve` outlives its server.
    """
    clear(api)
    with SyncPrefectClient(api) as client:
        block: Any = Webhook(url=SecretStr(url)).save(NAME, overwrite=True)
        client.create_automation(
            AutomationCore(
                name=NAME,
                description="Posts a line when a run ends badly.",
                trigger=EventTrigger(
                    expect={f"prefect.flow-run.{ending}" for ending in ENDINGS},
                    match={"prefect.resource.id": "prefect.flow-run.*"},
                    posture=Posture.Reactive,
                    threshold=1,
                    within=timedelta(0),
                ),
                actions=[CallWebhook(block_document_id=block, payload=PAYLOAD)],
            )
        )


def clear(api: str) -> None:
    """Remove the automation."""
    with SyncPrefectClient(api) as client:
        for old in client.read_automations_by_name(NAME):
            client.delete_automation(old.id)


if __name__ == "__main__":
    set_up(PREFECT_API_URL.value(), where().notify)
