"""A word to the outside when a run fails: a Prefect automation that posts to the address in `SFUMATO_NOTIFY`."""

from datetime import timedelta
from typing import Any

from prefect.automations import AutomationCore, EventTrigger, Posture
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import CallWebhook
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import SecretStr

NAME = "sfumato-notify"
ENDINGS = ("Failed", "Crashed", "BadInput", "Refused", "Stopped")
"""Names of the states that are told: Prefect's own, and those of `tasks.lifeline`."""
PAYLOAD = """{"text": {{ (flow_run.name ~ ": " ~ flow_run.state.name ~ ". " ~ flow_run.state.message) | tojson }}}"""


def set_up(api: str, url: str) -> None:
    """Post a line to `url` whenever a run ends badly; without an address, no longer. The address is a secret of the server."""
    with SyncPrefectClient(api) as client:
        for old in client.read_automations_by_name(NAME):
            client.delete_automation(old.id)
        if not url:
            return
        with temporary_settings({PREFECT_API_URL: api}):
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
