"""Small spends on a ledger whose price adds up, for tests that count."""

import itertools
import os
from pathlib import Path

import sqlalchemy as sa

from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.ledger.signing import Keys

KEYS = Keys(Path(os.environ["SFUMATO_KEYS"]))
"""The keys of every ledger of the tests, in a folder that goes with them."""

TERMS = {"stage": "train", "purpose": "a test", "run": "run-1", "code_version": "0.1", "images": "any"}
WHO = {"stage": "train", "run": "run-1", "code_version": "0.1"}
DELTA = 1e-5
ONE = Gaussian(noise_multiplier=1.0)


def cheap(events, delta, relation):
    """A price that adds up: 1/noise^2 for each query, four times that when a record is exchanged."""
    once = sum(getattr(event, "steps", getattr(event, "count", 0)) / event.noise_multiplier**2 for event in events)
    return once * (4 if relation == "replace_one" else 1)


def clock(ticks=itertools.count()):
    """A clock that ticks a second at every look."""
    return f"2026-01-01T00:00:{next(ticks) % 60:02d}Z"


def ledger_at(url):
    """The ledger at a URL, with that price and that clock."""
    return Ledger(url, clock, KEYS, price=cheap)


def spend(ledger, events=(ONE,), dataset="digits", relation="add_remove", delta=DELTA, digest="d1g3st", **fields):
    """A reservation, by default of epsilon 1 on 'digits'."""
    return ledger.reserve(
        dataset, digest if dataset == "digits" else digest + dataset, events, relation, delta, **{**TERMS, **fields}
    )


def cancel(ledger, reservation):
    """Take a reservation back whose door is shut, as earlier versions could: by an entry of its own."""
    with ledger._chain.appending() as (_, write):
        return write(reservation.dataset, "cancel", {"reserve": reservation.seq})


MADE = "a" * 64
"""Address of what was made in a test."""


def tamper(url, *statements):
    """Go behind the ledger's back; the rows of the last statement, if it has any."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
        return result.all() if result.returns_rows else []
