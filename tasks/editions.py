"""Editions: sets drawn one after the other with the same settings, each of other images.

The number of an edition follows from the published ones, and from those that never will be: a person refused them, or the copy check did. So a run that died
resumes under its number and reuses the stages that it has paid for, and a schedule does not draw for ever what nobody lets out. A person may delete the folders of old runs but for the last, which holds the count.
"""

import contextlib
from collections.abc import Iterator

from artifacts.publish import safe_name
from artifacts.record import RunRecord, records
from sfumato.preflight import private_set
from sfumato.privacy.ledger.vetoes import REFUSED
from tasks.planning import PlannedRun
from tasks.runtime.environment import where
from tasks.runtime.locks import turn


@contextlib.contextmanager
def next_edition(run: PlannedRun) -> Iterator[PlannedRun]:
    """The run with the number after the last edition that its method published of these private images.

    Two runs at once wait for each other, or both would draw the same one.
    """
    place, method, name = where(), run.method, private_set(run.settings).name
    with turn(place.home, f"edition-{method}-{safe_name(name)}", f"waiting for another edition of '{name}'"):
        over = [
            record.settings["generation"].get("edition", 0)
            for record in records(place.runs)
            if is_over(record) and (record.method, record.settings["data"]["name"]) == (method, name)
        ]
        yield run.of_edition(max(over, default=0) + 1)


def is_over(record: RunRecord) -> bool:
    """Whether a run's images are published, or were last refused by a person or by the copy check."""
    refused = record.decisions and record.decisions[-1].decision == REFUSED
    return bool(record.published or refused or (record.copies and not record.copies.passed))
