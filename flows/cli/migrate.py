"""`sfumato migrate`: a home of an earlier format."""

from flows.cli.options import OUT
from tasks.runtime.environment import configure, now


def migrate() -> None:
    """Bring a home of an earlier format to this one: every entry of its ledger stays as it is, and counts.

    What was made before can be shown. A run makes it again, and pays for it again, where it asks for it.
    """
    from artifacts.store import Store
    from sfumato.privacy.ledger.chain import migrate as ledger_migrate

    place = configure()
    if Store.migrate(place.home / "store", place.shared_store):
        OUT.print("the store: what is in it can be shown; a run makes its stages again, and pays for the private ones")
    entry = ledger_migrate(place.ledger_url, now, place.keys)
    if entry is None:
        OUT.print("the ledger is of this format already")
    else:
        OUT.print(
            f"the ledger keeps its {entry.seq - 1} entries as they were; heads are signed from entry {entry.seq} on"
        )
