"""What a ledger says of a set for whoever answers for it, in numbers."""

import pytest

from artifacts.books import Accesses, books_of
from sfumato.privacy.accounting.events import Gaussian, Uncertified
from tasks.runtime.environment import configure
from tests.examples import DELTA, home_at, reserve
from tests.spends import cancel

NOISY = Gaussian(noise_multiplier=6.0)
LOOK = {"stage": "evaluation", "code_version": "1"}


@pytest.fixture
def ledger(tmp_path):
    with home_at(tmp_path / "home"), configure().ledger() as ledger:
        yield ledger


def test_every_access_is_counted_looks_of_other_runs_and_joined_sets_included(ledger):
    ticket, other = reserve(ledger, [NOISY]), reserve(ledger, [NOISY], run="run-2", dataset="others")
    ledger.look("scans", "digest-of-scans", "scores", run="run-1", **LOOK)
    ledger.look("scans", "digest-of-scans", "scores", run="run-2", **LOOK)
    reserve(ledger, [Uncertified(reason="a test")], run="run-3", stage="training")
    ledger.join("scans", "others", "one ward")
    books = books_of(ledger, "scans", "run-1", [ticket.hash])
    assert books.accesses == (
        Accesses(kind="paid", stage="fine_tuning", own=1, total=2),
        Accesses(kind="look", stage="evaluation", own=1, total=2),
        Accesses(kind="uncertified", stage="training", own=0, total=1),
    )
    assert other.dataset in books.joined and books.spends == 3 and books.epsilon is None and books.versions == 1


def test_a_reservation_that_opened_no_door_is_no_access(ledger):
    cancel(
        ledger,
        ledger.reserve(
            *("scans", "digest-of-scans", [NOISY], "add_remove", DELTA),
            **{"stage": "votes", "purpose": "a test", "run": "run-1", "code_version": "1", "images": "any"},
        ),
    )
    assert books_of(ledger, "scans", "run-1", []).accesses == ()


def test_versions_that_may_share_records_are_priced_together_and_the_head_is_the_last_entry(ledger):
    reserve(ledger, [NOISY])
    alone = books_of(ledger, "scans", "run-1", [])
    assert alone.all_versions is None
    ledger.new_version("scans", "another digest", run="run-2", code_version="1")
    ticket = ledger.reserve(
        *("scans", "another digest", [NOISY], "add_remove", DELTA),
        **{"stage": "votes", "purpose": "a test", "run": "run-2", "code_version": "9", "images": "any"},
    )
    books = books_of(ledger, "scans", "run-2", [ticket.hash])
    assert books.versions == 2 and books.spends == 2 and alone.epsilon < books.epsilon == books.all_versions
    assert books.code == ("9",) and books.paid == ledger.entries()[-1].body["time"][:10] == books.as_of[:10]
    assert (books.head, books.head_hash) == (len(ledger.entries()), ledger.entries()[-1].hash)
