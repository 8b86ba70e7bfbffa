"""Notifications: the block with the address in `SFUMATO_NOTIFY`, to which the automations post.

In a process of its own (`python -m tasks.server.notifications`): saving a block starts a thread of Prefect's that talks to the
server until the process ends, and `sfumato serve` outlives its server.
"""

from typing import Any

from prefect.blocks.webhook import Webhook
from prefect.settings import PREFECT_API_URL
from pydantic import SecretStr

from tasks.runtime.environment import where
from tasks.server import automations


def set_up(api: str, url: str) -> None:
    """Let the automations post a line to `url`; the address is kept as a secret of the server."""
    block: Any = Webhook(url=SecretStr(url)).save(automations.NOTIFY, overwrite=True)
    automations.set_up(api, block)


if __name__ == "__main__":
    set_up(PREFECT_API_URL.value(), where().notify)
