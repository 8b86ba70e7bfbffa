"""The ledger keeps count through death and error, and says no before it writes."""

import math
import os
import re
import tempfile
from pathlib import Path

import pytest

from sfumato.errors import BadInput, Refused
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian, Uncertified
from sfumato.privacy.ledger.ledger import Difference, Ledger, Total, entry_label
from tests.spends import DELTA, KEYS, ONE, WHO, cancel, cheap, clock, ledger_at, spend, tamper


def at(path):
    return ledger_at(f"sqlite:///{path}")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "ledger.db"


@pytest.fixture
def ledger(path):
    with at(path) as ledger:
        yield ledger


# The life of a reservation


def test_a_spend_is_reserved_opened_and_committed_with_fewer_steps(ledger):
    planned = SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.1, steps=100)
    reservation = spend(ledger, [planned], claim={"epsilon": 9.0, "source": "Eq. 1"}, images=50, parents=["abc"])
    assert (reservation.seq, reservation.epsilon, reservation.why) == (1, 25.0, None)
    assert ledger.total("digits").epsilon == 25.0
    ledger.opened(reservation)
    committed = ledger.commit(reservation, [planned.model_copy(update={"steps": 60})])
    assert committed.body["epsilon"] == 15.0 and committed.body["reserve"] == 1
    ((entry, events),) = ledger.spends("digits")
    assert entry.seq == 1 and events[0].steps == 60
    assert ledger.total("digits") == Total(15.0, DELTA, "add_remove", spends=1, left=None)
    body = entry.body
    assert (body["claim"]["epsilon"], body["images"], body["parents"], body["insecure"]) == (9.0, 50, ["abc"], False)
    assert body["accountant"] == "injected: cheap" and body["time"].startswith("2026-01-01T")
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "open", "commit"] and ledger.verify() == []


@pytest.mark.parametrize("opened", [False, True])
def test_a_reservation_stands_in_full_after_death(path, opened):
    first = at(path)
    reservation = spend(first, [Gaussian(noise_multiplier=1.0, count=3)])
    if opened:
        first.opened(reservation)
    del first, reservation  # the process dies here
    with at(path) as later:
        assert later.total("digits").epsilon == 3.0
        assert later.spends("digits")[0][1] == (Gaussian(noise_multiplier=1.0, count=3),)


def test_a_retry_pays_again(ledger):
    for _ in range(2):
        reservation = spend(ledger)
        ledger.opened(reservation)
        with pytest.raises(Refused, match="was opened before"):
            ledger.opened(reservation)
        ledger.commit(reservation, [ONE])
    assert ledger.total("digits").epsilon == 2.0 and ledger.total("digits").spends == 2


def test_a_reservation_that_an_earlier_version_cancelled_costs_nothing_and_opens_no_door(ledger):
    _, back = spend(ledger), spend(ledger)
    cancel(ledger, back)
    assert ledger.total("digits").epsilon == 1.0
    for again in (ledger.opened, lambda reservation: ledger.commit(reservation, [])):
        with pytest.raises(Refused, match="was cancelled before"):
            again(back)


@pytest.mark.parametrize(
    "taken",
    [
        [Gaussian(noise_multiplier=1.0, count=4)],
        [Gaussian(noise_multiplier=1.0, count=2)] * 2,
        [Gaussian(noise_multiplier=9.0)],
        [SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=1)],
        [Uncertified(reason="peek")],
    ],
)
def test_more_than_reserved_is_refused_and_all_stays_reserved(ledger, taken):
    reservation = spend(ledger, [Gaussian(noise_multiplier=1.0, count=3)])
    ledger.opened(reservation)
    with pytest.raises(Refused, match="does not cover what was done .* must not leave"):
        ledger.commit(reservation, taken)
    assert ledger.total("digits").epsilon == 3.0 and len(ledger.entries()) == 2
    ledger.commit(reservation, [ONE, Gaussian(noise_multiplier=1.0, count=2)])


def test_only_an_open_door_of_this_ledger_can_be_committed(ledger, tmp_path):
    reservation = spend(ledger)
    with pytest.raises(Refused, match="was never opened"):
        ledger.commit(reservation, [ONE])
    with at(tmp_path / "other.db") as other, pytest.raises(Refused, match="is not in this ledger"):
        spend(other)
        other.opened(reservation)
    ledger.opened(reservation)
    ledger.commit(reservation, [ONE])
    with pytest.raises(Refused, match="was committed before"):
        ledger.commit(reservation, [])


def test_nobody_joins_work_on_other_images_or_behind_a_shut_door(ledger):
    reservation = spend(ledger)
    with pytest.raises(Refused, match="is not open: nobody may join"):
        ledger.standing_open(reservation.hash, "d1g3st")
    ledger.opened(reservation)
    assert ledger.standing_open(reservation.hash, "d1g3st").seq == reservation.seq
    with pytest.raises(
        Refused, match="is for other images than this process finds: give every process the same data"
    ) as refusal:
        ledger.standing_open(reservation.hash, "0ther")
    assert not any(secret in str(refusal.value) for secret in ("d1g3st", "0ther"))
    ledger.commit(reservation, [ONE])
    with pytest.raises(Refused, match="is not open: nobody may join"):
        ledger.standing_open(reservation.hash, "d1g3st")


def steps(number):
    return SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=number)


def test_progress_never_goes_back_and_a_commit_not_below_what_was_surely_done(ledger):
    reservation = spend(ledger, [steps(10)])
    ledger.opened(reservation)
    for number in (2, 6, 6):
        ledger.progress(reservation, [steps(number)])
    for less in ([steps(5)], []):
        with pytest.raises(Refused, match="was allowed more before"):
            ledger.progress(reservation, less)
    for less in ([steps(1)], []):
        with pytest.raises(Refused, match="went on after more than that was done"):
            ledger.commit(reservation, less)
    assert ledger.total("digits").epsilon == 10.0, "what was refused stands in full"
    assert ledger.commit(reservation, [steps(3)]).body["epsilon"] == 3.0, "a stop in mid-stretch"


@pytest.mark.parametrize("before", [(), (2, 6)])
@pytest.mark.parametrize("more", [[steps(11)], [steps(10), ONE], [ONE]], ids=["steps", "and another", "another"])
def test_progress_beyond_the_reservation_is_refused_and_not_written(ledger, before, more):
    reservation = spend(ledger, [steps(10)])
    ledger.opened(reservation)
    for number in before:
        ledger.progress(reservation, [steps(number)])
    with pytest.raises(Refused, match="does not cover what is to be done: reserve for it"):
        ledger.progress(reservation, more)
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "open", *["progress"] * len(before)]
    ledger.progress(reservation, [steps(10)])


@pytest.mark.parametrize("allowances", [(2, 4, 7), (7, 2, 4)], ids=str)
def test_what_a_dead_process_took_is_its_largest_allowance(path, allowances):
    """Also in a ledger that was written when an allowance could be taken back: neither the last nor what was surely done."""
    with at(path) as ledger:
        reservation = spend(ledger, [steps(10)])
        ledger.opened(reservation)
        with ledger._chain.appending() as (entries, write):
            for number in allowances:
                body = {"reserve": reservation.seq, "events": [steps(number).model_dump(mode="json")]}
                write("digits", "progress", body)
        assert ledger.settle(reservation.hash).body["epsilon"] == 7.0


# The budget


def test_the_budget_refuses_in_one_line_and_writes_nothing(ledger):
    assert ledger.budget("digits") is None
    ledger.set_budget("digits", 10, DELTA)
    spend(ledger, [Gaussian(noise_multiplier=1.0, count=7)])
    assert ledger.total("digits").left == 3.0
    with pytest.raises(Refused) as refused:
        spend(ledger, [Gaussian(noise_multiplier=0.5)])
    assert str(refused.value) == (
        "epsilon 3 of 10 left for 'digits' at delta 1e-05 (add_remove); this run needs 4: "
        "with these settings --epsilon 2.98 (noise multiplier 0.579 instead of 0.5) would fit; or raise the budget"
    )
    with pytest.raises(Refused, match=r"has no certificate \(one step leaks\)"):
        spend(ledger, [ONE, Uncertified(reason="one step leaks")])
    assert len(ledger.entries()) == 2
    spend(ledger, [Gaussian(noise_multiplier=1.0, count=3)])
    ledger.set_budget("digits", 11, DELTA)
    spend(ledger)
    spend(ledger, [Gaussian(noise_multiplier=0.1)], dataset="faces")  # has a ledger page of its own
    assert ledger.budget("digits").epsilon == 11 and ledger.total("digits").left == 0.0


def test_a_budget_below_what_is_spent_is_refused_with_the_sum(ledger):
    spend(ledger, [Gaussian(noise_multiplier=1.0, count=4)])
    with pytest.raises(Refused, match=r"'digits' has cost epsilon 4 at delta 1e-05 \(add_remove\) .* budget of 3 is"):
        ledger.set_budget("digits", 3, DELTA)
    assert ledger.budget("digits") is None
    ledger.set_budget("digits", 4, DELTA)
    spend(ledger, [Uncertified(reason="no bound")], dataset="faces")
    with pytest.raises(Refused, match="epsilon inf"):
        ledger.set_budget("faces", 1000, DELTA)


def test_delta_must_be_the_budgets(ledger):
    spend(ledger, delta=1e-3)
    spend(ledger, delta=1e-6)
    assert ledger.total("digits").delta == 1e-6
    ledger.set_budget("digits", 10, DELTA)
    assert ledger.total("digits").delta == DELTA and ledger.total("digits", 1e-3).left is None
    with pytest.raises(
        BadInput, match="delta 1e-06 differs from the budget of 'digits': use its delta, .*privacy.delta=1e-05"
    ):
        spend(ledger, delta=1e-6)


def test_a_sum_is_stated_under_one_relation(ledger):
    ledger.set_budget("digits", 10, DELTA)
    one = spend(ledger)
    assert (ledger.total("digits").relation, ledger.total("digits").epsilon) == ("add_remove", 1.0)
    assert ledger.total("digits", relation="replace_one").epsilon == 4.0
    two = spend(ledger, relation="replace_one")
    assert two.epsilon == 4.0
    total = ledger.total("digits")
    assert (total.relation, total.epsilon, total.left) == ("replace_one", 8.0, 2.0)
    assert math.isinf(ledger.total("digits", relation="add_remove").epsilon)
    with pytest.raises(Refused, match=r"epsilon 2 of 10 left .* \(replace_one\); this run needs 4"):
        spend(ledger)
    assert ledger.price_of([one.hash], DELTA, "add_remove") == 1.0
    assert ledger.price_of([one.hash, two.hash], DELTA, "replace_one") == 8.0
    assert math.isinf(ledger.price_of([one.hash, two.hash], DELTA, "add_remove"))


def test_a_price_that_is_no_number_never_fits_a_budget(path):
    with Ledger(f"sqlite:///{path}", clock, KEYS, price=lambda *_: math.nan) as ledger:
        assert spend(ledger).epsilon is None
        with pytest.raises(Refused):
            ledger.set_budget("digits", 10, DELTA)


# The set


def test_a_name_means_one_content_and_no_digest_is_shown(ledger):
    reservation = spend(ledger)
    with pytest.raises(BadInput, match="the private set 'digits' changed since its last entry: bring the") as one:
        spend(ledger, digest="0ther")
    with pytest.raises(BadInput, match="the private set 'numbers' is in the ledger as 'digits': use that name") as two:
        ledger.look("numbers", "d1g3st", "histogram", **WHO)
    with pytest.raises(BadInput, match="changed since"):
        ledger.look("digits", "0ther", "histogram", **WHO)
    (entry,) = ledger.entries()
    shown = [str(one.value), str(two.value), repr(reservation), repr(entry), repr(entry.public())]
    assert not any(secret in text for text in shown for secret in ("d1g3st", "0ther", entry.hash))
    assert entry.public()["epsilon"] == 1.0 and not {"digest", "parents", "hash"} & set(entry.public())


def test_each_entry_holds_fresh_entropy_that_no_view_shows(ledger):
    spend(ledger)
    ledger.look("digits", "d1g3st", "why not", **WHO)
    salts = [entry.body["salt"] for entry in ledger.entries()]
    assert len(set(salts)) == 2 and all(re.fullmatch("[0-9a-f]{64}", salt) for salt in salts)
    shown = [text for entry in ledger.entries() for text in (repr(entry), repr(entry.public()))]
    assert not any(salt in text for salt in salts for text in shown)


@pytest.mark.parametrize(
    "wrong",
    [
        {"events": []},
        {"events": [Gaussian(noise_multiplier=1.0, count=0)]},
        {"events": ["free"]},
        {"delta": 0.0},
        {"delta": 1.0},
        {"events": [Gaussian(noise_multiplier=math.inf)]},
        {"relation": "edit"},
        {"dataset": " "},
        {"dataset": "a\nb"},
        {"digest": ""},
        {"images": -1},
        {"images": "many"},
        {"claim": {"epsilon": math.nan}},
    ],
)
def test_wrong_input_is_told_and_not_written(ledger, wrong):
    with pytest.raises(BadInput) as reported:
        spend(ledger, **wrong)
    assert "\n" not in str(reported.value) and ledger.entries() == []


# What costs nothing, labels, releases


def test_looks_reuse_and_overrides_are_written_and_free(ledger):
    ledger.set_budget("digits", 1, DELTA)
    reservation = spend(ledger)
    ledger.look("digits", "d1g3st", "fidelity against held-out images", parents=["a"], **WHO)
    ledger.reuse("digits", "art1fact", spends=[reservation.hash], **WHO)
    ledger.override(
        "digits",
        "the board agreed",
        what="claim",
        artifact="art1fact",
        claim={"epsilon": 1},
        missing="one step leaks",
        spends=[reservation.hash],
        run="run-1",
        code_version="0.1",
    )
    assert ledger.total("digits").epsilon == 1.0 and ledger.total("digits").spends == 1
    assert [entry.kind for entry in ledger.entries("digits")] == ["budget", "reserve", "look", "reuse", "override"]
    with pytest.raises(BadInput, match="needs a reason"):
        ledger.look("digits", "d1g3st", " ", **WHO)
    with pytest.raises(BadInput, match="entry 3 is no reservation on 'digits'"):
        ledger.reuse("digits", "art1fact", spends=[ledger.entries()[2].hash], **WHO)


def test_labels_follow_from_the_entries(ledger):
    paid, secret = spend(ledger), spend(ledger, insecure=True)
    claimed = spend(ledger, [ONE, Uncertified(reason="one step leaks")])
    assert (claimed.epsilon, claimed.why) == (None, "one step leaks")
    entries = {"paid": ledger.opened(paid), "secret": ledger.opened(secret), "claimed": ledger.opened(claimed)}
    assert {name: entry_label(entry) for name, entry in entries.items()} == {
        "paid": "DP",
        "secret": "INTERNAL",
        "claimed": "INTERNAL",
    }
    assert entry_label(ledger.commit(paid, [ONE])) == "DP"
    assert entry_label(ledger.commit(secret, [ONE])) == "INTERNAL"
    assert entry_label(ledger.commit(claimed, [Uncertified(reason="one step leaks")])) == "INTERNAL"
    assert [entry_label(entry) for entry in ledger.entries()[:3]] == ["DP", "INTERNAL", "INTERNAL"]
    assert entry_label(ledger.look("digits", "d1g3st", "why not", **WHO)) == "INTERNAL"
    assert entry_label(ledger.set_budget("faces", 1, DELTA)) == "PUBLIC"


def test_one_release_made_of_several_spends_has_one_price(ledger):
    one, two, back = spend(ledger), spend(ledger, [Gaussian(noise_multiplier=0.5)]), spend(ledger)
    faces = spend(ledger, dataset="faces")
    cancel(ledger, back)
    assert ledger.price_of([one.hash, two.hash, one.hash], DELTA, "add_remove") == 5.0
    assert ledger.price_of([two.hash], DELTA, "replace_one") == 16.0 and ledger.price_of([], DELTA, "add_remove") == 0.0
    look = ledger.look("digits", "d1g3st", "why not", **WHO)
    for other, reported in (
        (back.hash, "was cancelled"),
        (faces.hash, "several private sets"),
        (look.hash, f"entry {look.seq} is no reservation"),
        ("f" * 64, "ledger entry ffffffffffff is not in this ledger"),
    ):
        with pytest.raises(BadInput, match=reported):
            ledger.price_of([one.hash, other], DELTA, "add_remove")


def test_replay_finds_certificates_that_another_accountant_does_not_give(ledger, path):
    reservation = spend(ledger)
    spend(ledger, [Uncertified(reason="no bound")])
    ledger.opened(reservation)
    ledger.commit(reservation, [ONE])
    assert ledger.replay() == []
    with Ledger(f"sqlite:///{path}", clock, KEYS, price=lambda *terms: 1.01 * cheap(*terms)) as other:
        assert other.replay() == [
            Difference(seq, "digits", relation, recorded=cost, replayed=1.01 * cost)
            for seq in (1, 4)
            for relation, cost in (("add_remove", 1.0), ("replace_one", 4.0))
        ]
        assert other.replay(tolerance=0.1) == [] == other.replay(price=cheap)


def test_the_accountant_prices_by_default_and_signs(path):
    with Ledger(f"sqlite:///{path}", clock, KEYS) as ledger:
        ledger.set_budget("digits", 8.0, DELTA)
        reservation = spend(ledger, [SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=100)])
        two = spend(ledger, [Gaussian(noise_multiplier=1.0)])
        assert two.epsilon < ledger.total("digits").epsilon < reservation.epsilon + two.epsilon
        names = [entry.body["accountant"] for entry in ledger.entries()[1:]]
        assert names[0].startswith("dp-accounting ") and names[1] == "closed-form GDP" and ledger.replay() == []
        together = ledger.priced([reservation.hash, two.hash], DELTA, "add_remove")
        assert together == accountant.priced([*reservation.events, *two.events], DELTA)
        with pytest.raises(Refused, match="of 8 left for 'digits'"):
            spend(ledger, [Gaussian(noise_multiplier=0.5)])


def test_a_set_without_entries_has_cost_nothing(ledger):
    total = ledger.total("digits")
    assert (total.epsilon, total.delta, total.spends, total.left) == (0.0, 0.0, 0, None)


# The file


@pytest.mark.parametrize(
    "url",
    [
        "ledger.db",
        "sqlite://",
        "sqlite:///:memory:",
        "mysql://host/db",
        "nonsense://x",
        "sqlite:///x.db?mode=ro",
        "postgresql+nodriver://host/db",
        "postgresql://me:pass@host:port/db",
    ],
)
def test_a_url_that_is_no_ledger_is_told_in_one_line(url):
    with pytest.raises(BadInput) as reported:
        Ledger(url, clock, KEYS, price=cheap)
    assert "\n" not in str(reported.value) and "pass" not in str(reported.value)


def test_a_file_that_is_no_ledger_and_a_folder_that_is_a_file_are_told(tmp_path):
    (tmp_path / "notes.txt").write_text("my private notes " * 99)
    with pytest.raises(BadInput, match="file is not a database"):
        at(tmp_path / "notes.txt")
    with pytest.raises(BadInput, match="cannot be created"):
        at(tmp_path / "notes.txt" / "ledger.db")
    assert (tmp_path / "notes.txt").read_text().startswith("my private notes")


@pytest.fixture
def open_folder():
    """A folder that any user can enter, so that the tests can stop being root for a while."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize("file_mode, folder_mode", [(0o444, 0o777), (0o666, 0o555), (None, 0o555)])
def test_what_cannot_be_written_is_told_at_the_start(open_folder, file_mode, folder_mode):
    folder = open_folder / "store"
    if file_mode is None:
        folder.mkdir()
    else:
        at(folder / "ledger.db").close()
        (folder / "ledger.db").chmod(file_mode)
    folder.chmod(folder_mode)
    was_root = os.geteuid() == 0
    try:
        if was_root:
            os.seteuid(65534)
        with pytest.raises(BadInput, match="cannot be (used|created)") as reported:
            at(folder / "ledger.db")
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(0o755)
    assert "\n" not in str(reported.value)


def test_a_ledger_that_goes_away_stops_the_run_before_the_door(ledger, path):
    reservation = spend(ledger)
    for lost in path.parent.iterdir():
        lost.unlink()
    for use in (lambda: ledger.opened(reservation), lambda: spend(ledger), lambda: ledger.total("digits")):
        with pytest.raises(BadInput, match="unable to open database file"):
            use()
    assert not path.exists()
    with at(path) as fresh, pytest.raises(Refused, match="lacks entry 1, which was seen before"):
        fresh.opened(reservation)


def test_a_failure_while_writing_leaves_nothing(path):
    with at(path) as ledger:
        spend(ledger)
        full = "CREATE TRIGGER full BEFORE UPDATE ON meta BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        tamper(f"sqlite:///{path}", full)
        with pytest.raises(BadInput, match="disk is full"):  # the entry itself was already inserted
            spend(ledger)
        assert len(ledger.entries()) == 1 and ledger.verify() == []


def test_every_entry_is_on_disk_and_only_its_owner_reads_it(ledger, path):
    with ledger._chain._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    assert path.stat().st_mode & 0o077 == 0


# Both relations, the whole plan, versions of a set


def test_an_entry_keeps_its_price_under_both_relations(ledger):
    spend(ledger)
    spend(ledger, relation="replace_one")
    one, two = (entry.body for entry in ledger.entries())
    assert (one["epsilon"], one["both"]) == (1.0, {"add_remove": 1.0, "replace_one": 4.0})
    assert (two["epsilon"], two["both"]) == (4.0, {"add_remove": None, "replace_one": 4.0})


def test_a_plan_that_does_not_fit_as_a_whole_pays_for_no_part_of_it(ledger):
    ledger.set_budget("digits", 10, DELTA)
    steps = SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.5, steps=12)
    with pytest.raises(Refused, match=r"this run needs 13: with these settings --epsilon [\d.]+ \(noise multiplier"):
        spend(ledger, [ONE], following=[steps])
    assert [entry.kind for entry in ledger.entries()] == ["budget"]
    spend(ledger, [ONE], following=[steps.model_copy(update={"steps": 9})])
    assert ledger.total("digits").epsilon == 1.0


def test_a_plan_can_be_checked_without_a_trace(ledger):
    ledger.check_budget("digits", [ONE], "add_remove", DELTA)
    ledger.set_budget("digits", 2, DELTA)
    ledger.check_budget("digits", [ONE, ONE], "add_remove", DELTA)
    with pytest.raises(Refused, match="epsilon 2 of 2 left"):
        ledger.check_budget("digits", [ONE] * 3, "add_remove", DELTA)
    with pytest.raises(BadInput, match="privacy.delta=1e-05"):
        ledger.check_budget("digits", [ONE], "add_remove", 1e-3)
    assert [entry.kind for entry in ledger.entries()] == ["budget"]


def test_a_plan_of_several_mechanisms_that_no_change_of_one_makes_fit_is_told_so(path):
    with Ledger(f"sqlite:///{path}", clock, KEYS) as ledger:
        ledger.set_budget("digits", 1.0, DELTA)
        with pytest.raises(
            Refused, match="changing its largest mechanism alone is not enough: a smaller --epsilon makes all"
        ):
            spend(
                ledger,
                [Gaussian(noise_multiplier=2.0), SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.2, steps=150)],
            )


def test_what_fits_the_budget_of_a_joined_set_is_told_at_its_delta(path):
    """The other set's delta is not that of the run, to whose certificate an epsilon belongs."""
    with Ledger(f"sqlite:///{path}", clock, KEYS) as ledger:
        ledger.set_budget("digits", 1.0, 1e-6)
        spend(ledger, [Gaussian(noise_multiplier=50.0)], "scans")
        ledger.join("scans", "digits", "the same people")
        with pytest.raises(
            Refused, match=r"--epsilon 0\.\d+ --set privacy\.delta=1e-06 \(noise multiplier .*\) would fit"
        ):
            ledger.check_budget("scans", [Gaussian(noise_multiplier=2.0)], "add_remove", 1e-3)


def test_what_would_fit_fits_by_the_real_accountant(path):
    with Ledger(f"sqlite:///{path}", clock, KEYS) as ledger:
        ledger.set_budget("digits", 10.0, DELTA)
        votes, steps = (
            Gaussian(noise_multiplier=6.0),
            SubsampledGaussian(noise_multiplier=1.5, sample_rate=0.5, steps=150),
        )
        spend(ledger, [SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.2, steps=150)])
        with pytest.raises(Refused, match="would fit; or raise the budget") as reported:
            spend(ledger, [votes], following=[steps])
        epsilon, noise = map(
            float, re.search(r"--epsilon ([\d.]+) \(noise multiplier ([\d.]+) ", str(reported.value)).groups()
        )
        noisier = steps.model_copy(update={"noise_multiplier": noise})
        ledger.check_budget("digits", [votes, noisier], "add_remove", DELTA)
        assert epsilon == pytest.approx(accountant.epsilon([votes, noisier], DELTA, "add_remove"), rel=0.01)
        with pytest.raises(Refused):
            less = steps.model_copy(update={"noise_multiplier": 0.98 * noise})
            ledger.check_budget("digits", [votes, less], "add_remove", DELTA)


def test_a_declared_version_is_counted_afresh_under_the_same_budget(ledger):
    ledger.set_budget("digits", 5, DELTA)
    old = spend(ledger, [Gaussian(noise_multiplier=1.0, count=4)])
    ledger.opened(old)
    assert ledger.version("digits") == 1
    entry = ledger.new_version("digits", "n3wer", run="run-2", code_version="0.1")
    assert (entry.kind, entry.body["version"], entry_label(entry)) == ("version", 2, "PUBLIC")
    assert ledger.version("digits") == 2 and ledger.total("digits").left == 1.0, "no records were compared"
    ledger.differ("digits", "digits", "every image was taken anew")
    assert ledger.total("digits").left == 5.0
    with pytest.raises(BadInput, match="changed since its last entry"):
        spend(ledger)  # the images of version 1 are no longer those of the set
    spend(ledger, [Gaussian(noise_multiplier=1.0, count=3)], digest="n3wer")
    assert ledger.total("digits").epsilon == 3.0 and ledger.total("digits", all_versions=True).epsilon == 7.0
    with pytest.raises(Refused, match="epsilon 2 of 5 left"):
        spend(ledger, [Gaussian(noise_multiplier=1.0, count=3)], digest="n3wer")
    ledger.commit(old, [ONE])  # what was open goes on
    assert ledger.price_of([old.hash], DELTA, "add_remove") == 1.0
    assert ledger.total("digits", all_versions=True).epsilon == 4.0 and ledger.verify() == []


def test_a_version_cannot_be_had_for_nothing(ledger):
    terms = {"run": "run-2", "code_version": "0.1"}
    with pytest.raises(BadInput, match="knows no private set 'digits': leave --new-version out"):
        ledger.new_version("digits", "d1g3st", **terms)
    spend(ledger)
    spend(ledger, dataset="faces")
    with pytest.raises(BadInput, match="did not change since its last entry: leave --new-version out"):
        ledger.new_version("digits", "d1g3st", **terms)
    with pytest.raises(BadInput, match="is in the ledger as 'faces'"):
        ledger.new_version("digits", "d1g3stfaces", **terms)
    ledger.new_version("digits", "n3wer", **terms)
    with pytest.raises(BadInput, match="an earlier version of 'digits', whose spends cannot be counted afresh"):
        ledger.new_version("digits", "d1g3st", **terms)
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "reserve", "version"]


def test_the_history_grows_to_the_total(ledger):
    assert ledger.history("digits", 5) == []
    for count in (1, 2, 3, 4):
        spend(ledger, [Gaussian(noise_multiplier=1.0, count=count)])
    assert ledger.history("digits", 10) == [(1, 1.0), (2, 3.0), (3, 6.0), (4, 10.0)]
    heard = []
    assert ledger.history("digits", 2, progress=lambda *step: heard.append(step)) == [(2, 3.0), (4, 10.0)]
    assert heard == [(1, 2), (2, 2)]
