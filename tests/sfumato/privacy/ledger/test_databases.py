"""The ledger keeps its promises on both databases: a file of SQLite, and a server of PostgreSQL."""

import hashlib
import json
from itertools import chain

import pytest

from sfumato.errors import BadInput, Refused
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from sfumato.privacy.ledger.ledger import Total
from tests.processes import PATIENCE_SECONDS, PROCESSES, reserve_often
from tests.spends import DELTA, ONE, WHO, cancel, ledger_at, spend, tamper

PLANNED = SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.1, steps=20)


def test_a_spend_lives_from_its_reservation_to_its_commit_or_cancelling(url):
    with ledger_at(url) as ledger:
        retained, back, dead = spend(ledger, [PLANNED]), spend(ledger), spend(ledger, run="dies with its door open")
        ledger.opened(retained)
        ledger.commit(retained, [PLANNED.model_copy(update={"steps": 12})])
        cancel(ledger, back)
        ledger.opened(dead)
        ledger.look("digits", "d1g3st", "why not", **WHO)
        for again in (ledger.opened, lambda reservation: ledger.commit(reservation, [])):
            with pytest.raises(Refused, match=r"was (committed|cancelled) before"):
                again(retained)
            with pytest.raises(Refused, match=r"was cancelled before"):
                again(back)
    with ledger_at(url) as later:
        kinds = [entry.kind for entry in later.entries()]
        assert kinds == ["reserve", "reserve", "reserve", "open", "commit", "cancel", "open", "look"]
        assert later.total("digits") == Total(4.0, DELTA, "add_remove", spends=2, left=None)
        assert [events[0] for _, events in later.spends("digits")] == [PLANNED.model_copy(update={"steps": 12}), ONE]
        assert later.verify() == later.replay() == []


def test_the_budget_refuses_and_nothing_is_written(url):
    with ledger_at(url) as ledger:
        ledger.set_budget("digits", 10, DELTA)
        spend(ledger, [Gaussian(noise_multiplier=1.0, count=7)])
        with pytest.raises(Refused, match="epsilon 3 of 10 left for 'digits'.*this run needs 4"):
            spend(ledger, [Gaussian(noise_multiplier=0.5)])
        with pytest.raises(Refused, match="a budget of 6 is below that"):
            ledger.set_budget("digits", 6, DELTA)
        assert len(ledger.entries()) == 2
        spend(ledger, [Gaussian(noise_multiplier=1.0, count=3)])
        spend(ledger, [Gaussian(noise_multiplier=0.1)], dataset="faces")
        assert ledger.total("digits").left == 0.0 and ledger.budget("faces") is None


@pytest.mark.parametrize(
    "reason", ["Größe, 大きさ, 🙂", "'; DROP TABLE entries; --", 'a "quoted" 50%s :name\\', "a\x00b\nc"]
)
def test_words_come_back_as_they_were_written(url, reason):
    with ledger_at(url) as ledger:
        ledger.look("Größe 50%", "d1g3st", reason, **WHO)
    with ledger_at(url) as later:
        ((name, stated),) = [(entry.dataset, entry.body["reason"]) for entry in later.entries()]
        assert (name, stated) == ("Größe 50%", reason) and later.verify() == []


# Tampering

EDIT = "UPDATE entries SET body = replace(body, '\"noise_multiplier\":1.0', '\"noise_multiplier\":9.0') WHERE seq = "
SWAP = [f"UPDATE entries SET seq = {new} WHERE seq = {old}" for old, new in ((2, 99), (3, 2), (99, 3))]
SWAP_BODIES = ["UPDATE entries SET body = (SELECT body FROM entries WHERE seq = 1) WHERE seq = 3"]
TAMPERED = {
    "edited": ([EDIT + "2"], ["entry 2: edited"]),
    "last edited": ([EDIT + "5"], ["entry 5: edited"]),
    "first deleted": (["DELETE FROM entries WHERE seq = 1"], ["entry 1: missing"]),
    "deleted": (["DELETE FROM entries WHERE seq = 3"], ["entry 3: missing"]),
    "last deleted": (["DELETE FROM entries WHERE seq = 5"], ["the end: entry 4"]),
    "all deleted": (["DELETE FROM entries"], ["the end: entry 0"]),
    "end deleted": (["DELETE FROM meta WHERE key = 'head'"], ["the end"]),
    "entries dropped": (["DROP TABLE entries"], ["the end: entry 0"]),
    "meta dropped": (["DROP TABLE meta"], ["the end"]),
    "swapped": (SWAP, ["entry 2: edited or moved", "entry 3: edited or moved"]),
    "bodies swapped": (SWAP_BODIES, ["entry 3: edited"]),
    "given to another set": (["UPDATE entries SET dataset = 'faces' WHERE seq = 4"], ["entry 4: edited"]),
    "hash changed": (["UPDATE entries SET hash = previous WHERE seq = 4"], ["entry 4: edited"]),
}


@pytest.mark.parametrize(("statements", "result"), TAMPERED.values(), ids=TAMPERED)
def test_tampering_is_found_and_ends_all_spending(url, statements, result):
    with ledger_at(url) as ledger:
        reservations = [spend(ledger, run=f"run-{number}") for number in range(5)]
    tamper(url, *statements)
    with ledger_at(url) as ledger:
        breaks = ledger.verify()
        assert all(any(line.startswith(start) for line in breaks) for start in result), breaks
        for use in (lambda: spend(ledger), lambda: ledger.opened(reservations[0]), lambda: ledger.total("digits")):
            with pytest.raises(Refused, match="was tampered with"):
                use()


def auditors_hash(fields):
    """An entry's hash, computed without Sfumato: from seq, dataset, kind, body and the previous hash."""
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()


@pytest.mark.parametrize(("seq", "result"), [(1, "entry 2: does not follow entry 1"), (3, "the end: entry 3 is not")])
def test_an_edit_with_a_fresh_hash_breaks_the_chain(url, seq, result):
    with ledger_at(url) as ledger:
        for _ in range(3):
            spend(ledger)
    rows = tamper(url, "SELECT seq, dataset, kind, body, previous, hash FROM entries ORDER BY seq")
    assert all(auditors_hash(row[:5]) == row[5] for row in map(list, rows))
    *row, _ = rows[seq - 1]
    row[3] = row[3].replace('"noise_multiplier":1.0', '"noise_multiplier":9.0')
    tamper(url, EDIT + str(seq), f"UPDATE entries SET hash = '{auditors_hash(row)}' WHERE seq = {seq}")
    with ledger_at(url) as ledger:
        (line,) = ledger.verify()
        assert line.startswith(result)


def test_a_ledger_of_another_version_is_left_alone(url):
    ledger_at(url).close()
    tamper(url, "UPDATE meta SET value = '99' WHERE key = 'schema'")
    before = tamper(url, "SELECT key, value FROM meta ORDER BY key")
    with pytest.raises(BadInput, match="has version 99, this Sfumato keeps version") as reported:
        ledger_at(url)
    assert "\n" not in str(reported.value) and tamper(url, "SELECT key, value FROM meta ORDER BY key") == before


# Many at once

WORKERS, TRIES, FIT = 8, 5, 20
RACES = 3
"""Each is a new database, so that the eight also meet while the tables are made."""


def test_eight_processes_at_once_create_one_ledger_and_never_overspend_together(database):
    for _ in range(RACES):
        url = database.fresh()
        barrier, results = PROCESSES.Barrier(WORKERS), PROCESSES.Queue()
        work = {"target": reserve_often, "args": (url, FIT, DELTA, TRIES, barrier, results)}
        workers = [PROCESSES.Process(**work) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        reports = [results.get(timeout=PATIENCE_SECONDS) for _ in workers]
        for worker in workers:
            worker.join()
        seqs, refusals, broken = ([*chain.from_iterable(result)] for result in zip(*reports, strict=True))
        assert not broken, broken
        assert len(seqs) == len(set(seqs)) == FIT and len(refusals) == WORKERS * TRIES - FIT
        assert all(reported.startswith(f"epsilon 0 of {FIT} left for 'digits'") for reported in refusals), refusals
        with ledger_at(url) as ledger:
            assert ledger.verify() == []
            assert {entry.seq for entry in ledger.entries() if entry.kind == "reserve"} == set(seqs)
            assert ledger.total("digits").epsilon == FIT and ledger.total("digits").left == 0.0
