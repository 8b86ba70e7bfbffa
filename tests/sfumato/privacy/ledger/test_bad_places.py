"""A ledger in a bad place: held by another, not writable, gone in the middle, told the time by a broken clock."""

import sys

import pytest
import sqlalchemy as sa

from sfumato import sources
from sfumato.errors import BadInput
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.door import Access, PrivateSet, spending
from sfumato.privacy.ledger.ledger import Ledger
from tests.spends import DELTA, KEYS, ONE, cancel, cheap, ledger_at, spend

PRIVATE = PrivateSet(name="digits", source="digits", share=0.0121)
TAKEN = 20
"""Records in that share."""
SPENT = Gaussian(noise_multiplier=0.5)


@pytest.fixture
def impatient(monkeypatch):
    """Nobody waits a minute for a held ledger."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("sfumato.privacy")]
    for module in (module for module in modules if hasattr(module, "BUSY_SECONDS")):
        monkeypatch.setattr(module, "BUSY_SECONDS", 0.1)


@pytest.fixture
def handed_out(monkeypatch):
    """Grows with each time that images are handed out."""
    times = []

    def load(*given, real=sources.load, **named):
        times.append(given)
        return real(*given, **named)

    monkeypatch.setattr(sources, "load", load)
    return times


def access(ledger):
    return Access(
        ledger, PRIVATE, run="run-1", stage="a stage", purpose="a test", code_version="0", relation="add_remove",
        delta=DELTA,
    )  # fmt: skip


def told_in_one_line(use):
    with pytest.raises(BadInput) as reported:
        use()
    assert "\n" not in str(reported.value) and "cannot be used" in str(reported.value)
    return str(reported.value)


def visit(ledger):
    with spending(access(ledger), [SPENT]):
        pass


# Held by another


def test_a_ledger_held_too_long_is_told_and_free_afterwards(url, impatient):
    meanwhile = []

    def clock():  # is asked while the entry is written: the ledger is held then
        with pytest.raises(BadInput, match="not held by another process for more than") as reported:
            spend(other)
        meanwhile.append((str(reported.value), other.entries()))  # reading needs no lock
        return "2026-01-01T00:00:00Z"

    with ledger_at(url) as other:
        with Ledger(url, clock, KEYS, price=cheap) as holder:
            spend(holder)
        ((reported, seen),) = meanwhile
        assert "\n" not in reported and seen == []
        spend(other)
        assert other.total("digits").spends == 2 and other.verify() == []


# Not writable


def test_a_server_that_lets_nobody_write_is_told_at_the_start(postgres_url):
    read_only = f"{postgres_url}&options=-c%20default_transaction_read_only%3Don"
    assert "read-only transaction" in told_in_one_line(lambda: ledger_at(read_only))
    ledger_at(postgres_url).close()
    assert "read-only transaction" in told_in_one_line(lambda: ledger_at(read_only))


def test_a_password_among_the_options_of_an_address_is_not_shown():
    reported = told_in_one_line(lambda: ledger_at("postgresql://127.0.0.1:1/x?user=stranger&password=a-password"))
    assert "user=stranger" in reported and "a-password" not in reported


@pytest.mark.parametrize(
    "address", ["postgresql://127.0.0.1:1/x?sslpassword=a-password", "sqlite:///x.db?password=a-password"]
)
def test_nor_is_a_secret_that_is_no_password_of_the_database(address):
    with pytest.raises(BadInput, match=r"password=\*\*\*") as reported:
        ledger_at(address)
    assert "a-password" not in str(reported.value)


def test_a_server_that_is_not_there_or_lets_nobody_in_is_told_at_the_start(postgres_server, postgres_url):
    told_in_one_line(lambda: ledger_at(postgres_url.replace("/fresh_", "/nowhere_")))
    reported = told_in_one_line(lambda: ledger_at(postgres_url.replace("sfumato@", "stranger:a-password@")))
    assert "a-password" not in reported
    postgres_server.stop()
    told_in_one_line(lambda: ledger_at(postgres_url))


# Gone in the middle


def lose(database, ledger, monkeypatch, call):
    """From now on the database goes away just before this call reaches it."""

    def gone(*given, real=getattr(ledger, call), **named):
        database.away()
        return real(*given, **named)

    monkeypatch.setattr(ledger, call, gone)


@pytest.mark.parametrize(("call", "stands"), [("reserve", 0), ("opened", 1)])
def test_a_database_that_goes_away_before_the_door_opens_ends_the_run(
    database, url, monkeypatch, handed_out, call, stands
):
    with ledger_at(url) as ledger:
        lose(database, ledger, monkeypatch, call)
        told_in_one_line(lambda: visit(ledger))
    database.back()
    with ledger_at(url) as later:
        assert handed_out == [] and later.verify() == [] and later.total("digits").spends == stands
        visit(later)
        assert len(handed_out) == 1 and later.total("digits").spends == stands + 1


@pytest.mark.parametrize("entry", [1, 2])
def test_a_server_that_dies_while_the_entry_is_written_ends_the_run_too(
    postgres_server, postgres_url, handed_out, entry
):
    times = []

    def clock():
        times.append("2026-01-01T00:00:00Z")
        if len(times) == entry:
            postgres_server.stop()
        return times[-1]

    with Ledger(postgres_url, clock, KEYS, price=cheap) as ledger:
        told_in_one_line(lambda: visit(ledger))
    postgres_server.start()
    with ledger_at(postgres_url) as later:
        assert handed_out == [] and later.verify() == [] and len(later.entries()) == entry - 1


def leave_while_away(ledger, inside):
    """What a visit makes, when the ledger may be gone by its end, and what is told where that is kept."""
    with spending(access(ledger), [SPENT]) as open_door:
        inside()
        result = len(open_door.images)
    return result, told_in_one_line(lambda: open_door.payment.commit(ledger, "a" * 64))


def test_a_database_that_goes_away_inside_the_door_leaves_the_whole_cost_standing(database, url, handed_out):
    with ledger_at(url) as ledger:
        result, reported = leave_while_away(ledger, database.away)
    database.back()
    assert result == TAKEN and "cannot be used" in reported
    with ledger_at(url) as later:
        assert len(handed_out) == 1 and [entry.kind for entry in later.entries()] == ["reserve", "open"]
        assert [events for _, events in later.spends("digits")] == [(SPENT,)]
        assert later.total("digits").epsilon == 4.0 and later.verify() == []
        visit(later)
        assert later.total("digits").epsilon == 8.0


def test_a_server_that_dies_while_the_commit_is_written_leaves_the_whole_cost_standing(postgres_server, postgres_url):
    times = []

    def clock():
        times.append("2026-01-01T00:00:00Z")
        if len(times) == 3:
            postgres_server.stop()
        return times[-1]

    with Ledger(postgres_url, clock, KEYS, price=cheap) as ledger:
        result, reported = leave_while_away(ledger, lambda: None)
    postgres_server.start()
    assert result == TAKEN and "cannot be used" in reported
    with ledger_at(postgres_url) as later:
        assert [events for _, events in later.spends("digits")] == [(SPENT,)] and later.verify() == []


def test_a_server_that_was_restarted_meanwhile_is_not_noticed(postgres_server, postgres_url):
    with ledger_at(postgres_url) as ledger:
        with spending(access(ledger), [SPENT]) as open_door:
            postgres_server.stop()
            postgres_server.start()
        open_door.payment.commit(ledger, "a" * 64)
    with ledger_at(postgres_url) as later:
        assert [entry.kind for entry in later.entries()] == ["reserve", "open", "commit"]


# A broken clock

CLOCKS = {
    "backwards": [f"2026-01-01T00:00:{60 - tick:02d}Z" for tick in range(1, 12)],
    "standing still": ["2026-01-01T00:00:00Z"] * 11,
    "far future, then the past": ["9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"] * 6,
    "no time at all": [""] * 11,
}


@pytest.mark.parametrize("times", CLOCKS.values(), ids=CLOCKS)
def test_order_chain_and_totals_do_not_depend_on_the_clock(url, times):
    ticks = iter(times)
    with Ledger(url, lambda: next(ticks), KEYS, price=cheap) as ledger:
        ledger.set_budget("digits", 100, DELTA)
        first, second, back = spend(ledger), spend(ledger), spend(ledger)
        ledger.opened(second)
        ledger.commit(second, [])
        cancel(ledger, back)
        ledger.opened(first)
        ledger.set_budget("digits", 3, DELTA)
        spend(ledger)
    with ledger_at(url) as later:
        kinds = ["budget", "reserve", "reserve", "reserve", "open", "commit", "cancel", "open", "budget", "reserve"]
        assert [(entry.seq, entry.kind) for entry in later.entries()] == list(enumerate(kinds, 1))
        assert [entry.body["time"] for entry in later.entries()] == times[:10]
        total = later.total("digits")
        assert (total.epsilon, total.spends, total.left) == (2.0, 3, 1.0), "the last budget holds, the last end counts"
        assert later.verify() == later.replay() == []
        assert [events for _, events in later.spends("digits")] == [(ONE,), (), (ONE,)]


def test_a_reader_too_waits_only_so_long(postgres_url, monkeypatch):
    monkeypatch.setattr("sfumato.privacy.ledger.chain.BUSY_SECONDS", 1)
    holder = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    with Ledger(postgres_url, lambda: "now", KEYS, price=cheap) as ledger, holder.connect() as connection:
        connection.exec_driver_sql("LOCK TABLE entries IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(
            BadInput, match="cannot be used .*lock timeout.*not held by another process for more than 1 s"
        ):
            ledger.entries()
        connection.rollback()
        assert ledger.entries() == []
