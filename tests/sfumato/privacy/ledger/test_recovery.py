"""A ledger that lacks something is made whole by signed entries: what is known counts again, the rest is declared lost."""

import json
import shutil

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.errors import BadInput, Refused
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.ledger.balance import entry_label
from sfumato.privacy.ledger.chain import migrate
from sfumato.privacy.ledger.decisions import decisions_of
from sfumato.privacy.ledger.fingerprints import Prints
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.ledger.signing import Head, Keys, Signer, signed
from tests.sfumato.privacy.ledger.test_databases import auditors_hash
from tests.sfumato.privacy.ledger.test_decisions import DECISION
from tests.sfumato.privacy.ledger.test_signing import cut
from tests.spends import DELTA, ONE, cancel, cheap, clock, spend, tamper

THREE = Gaussian(noise_multiplier=1.0, count=3)


@pytest.fixture
def keys(tmp_path) -> Keys:
    """A folder of keys of its own."""
    return Keys(tmp_path / "keys")


def at(url, keys):
    return Ledger(url, clock, keys, price=cheap)


def only(result):
    (one,) = result
    return one


def known_by(by, ledger, keys, stated, copy):
    """What is known from elsewhere, by a copy of the ledger or a statement of it."""
    if by == "statement":
        return only(ledger.known_from([stated]))
    with at(f"sqlite:///{copy}", keys) as other:
        return ledger.known_from_copy(other)


def two_spends(ledger):
    """Of three and of one, the first with a budget and committed at two."""
    ledger.set_budget("digits", 10, DELTA)
    first = spend(ledger, [THREE])
    ledger.opened(first)
    ledger.commit(first, [THREE.model_copy(update={"count": 2})])
    spend(ledger, dataset="faces", relation="replace_one")


def test_what_a_runs_statement_knows_counts_again(url, keys):
    with at(url, keys) as ledger:
        two_spends(ledger)
        stated = json.dumps(ledger.statement())
        assert "d1g3st" not in stated
    cut(url, 0)
    with at(url, keys) as ledger:
        known = only(ledger.known_from([stated]))
        written = ledger.recover([known])
        assert [entry.kind for entry in written] == ["recovery", "recovered", "recovered", "budget"]
        assert ledger.total("digits").epsilon == 2.0 and ledger.total("digits").left == 8.0
        assert ledger.total("faces").epsilon == 4.0 and ledger.total("faces").relation == "replace_one"
        assert ledger.verify() == ledger.replay() == ledger.lacks() == []
        assert {entry_label(entry) for entry in written if entry.kind == "recovered"} == {"INTERNAL"}
        with pytest.raises(Refused, match="epsilon 8 of 10 left"):
            spend(ledger, [Gaussian(noise_multiplier=1.0, count=9)])
        spend(ledger, [THREE])
        with pytest.raises(BadInput, match="lacks nothing that was seen"):
            ledger.recover([known])
        assert ledger.total("digits").epsilon == 5.0 and len(ledger.history("digits", 5)) == 2
        assert [note["kind"] for note in ledger.notes("digits")] == ["recovery", "recovered"]
        assert not any("hash" in name or name == "covers" for note in ledger.notes("digits") for name in note)


@pytest.mark.parametrize("by", ["statement", "copy"])
def test_sets_that_counted_together_do_so_again(keys, by, tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    with at(url, keys) as ledger:
        spend(ledger, [ONE])
        spend(ledger, [ONE], dataset="faces")
        ledger.set_budget("faces", 3, DELTA)
        ledger.join("digits", "faces", "the same persons")
        stated = json.dumps(ledger.statement())
    if by == "copy":
        shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
    cut(url, 0)
    with at(url, keys) as ledger:
        known = known_by(by, ledger, keys, stated, tmp_path / "copy.db")
        assert ledger.recover([known])[-1].kind == "join" and ledger.joined("digits") == ("faces",)
        assert ledger.total("digits").epsilon == 2.0 and ledger.verify() == ledger.replay() == []
        with pytest.raises(Refused, match="epsilon 1 of 3 left"):
            spend(ledger, [THREE])


@pytest.mark.parametrize("by", ["statement", "copy"])
def test_what_said_no_says_so_again_and_what_said_yes_does_not(keys, by, tmp_path):
    """A backup from before an audit refuted, or before a person refused, lets nothing leave that these held back."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    refuting = {"what": "audit", "finding": "f" * 64, "code_version": "1", "run": "run-1"}
    with at(url, keys) as ledger:
        first, second = spend(ledger, [ONE]), spend(ledger, [THREE])
        for passed, artifact, paid in (
            (True, "a", first),
            (False, "a", first),
            (False, "b", second),
            (True, "b", second),
        ):
            ledger.check("digits", artifact=artifact * 64, passed=passed, spends=[paid.hash], **refuting)
        for artifact, how in (("c", "refused"), ("d", "approved")):
            decided = DECISION.model_copy(update={"decision": how, "run": f"run-{artifact}"})
            signer = Signer(Ed25519PrivateKey.generate())
            ledger.decide("digits", decided.signed_by(signer), artifact=artifact * 64, code_version="1")
        stated, whole = json.dumps(ledger.statement()), tmp_path / "copy.db"
        shutil.copy(tmp_path / "ledger.db", whole)
    cut(url, 2 if by == "statement" else 0)
    with at(url, keys) as ledger:
        known = known_by(by, ledger, keys, stated, whole)
        written = {entry.kind: entry for entry in ledger.recover([known])}
        audit, refusal = written["check"], written["decision"]
        assert not audit.body["passed"] and audit.body["artifact"] == "a" * 64
        paid = ledger.entries()[audit.body["spends"][0] - 1]
        assert first.hash in (paid.hash, paid.body.get("was_hash")), (
            "about the same payment, whatever its number is now"
        )
        (held,) = decisions_of(ledger.entries(), "run-c", "-")
        assert held.decision == "refused" and held.is_signed and refusal.body["run"] == "run-c"
        assert sum(entry.kind in ("check", "decision") for entry in ledger.entries()) == 2
        assert ledger.verify() == ledger.replay() == ledger.lacks() == []
        again = only(ledger.known_from([json.dumps(ledger.statement())]))
        assert {one["hash"] for one in again.vetoes} == {one["hash"] for one in known.vetoes}, (
            "a second loss knows them too"
        )


@pytest.mark.parametrize(("then", "holds"), [(4, 4.0), (9, 5.0)])
def test_a_budget_that_was_lowered_is_low_again_and_one_that_was_raised_is_set_anew(url, keys, then, holds):
    with at(url, keys) as ledger:
        ledger.set_budget("digits", 7, DELTA)
        early = json.dumps(ledger.statement())
        ledger.set_budget("digits", 5, DELTA)
        ledger.set_budget("digits", then, DELTA)
        late = json.dumps(ledger.statement())
    cut(url, 2)
    with at(url, keys) as ledger:
        ledger.recover(ledger.known_from([early, late]))
        assert ledger.budget("digits").epsilon == holds


def test_a_head_that_a_run_knows_too_does_not_hide_what_came_before_it(url, keys):
    """The last head is then noted twice, once without the hash before it; the statement at it still knows all up to it."""
    with at(url, keys) as ledger:
        two_spends(ledger)
        stated = json.dumps(ledger.statement())
    cut(url, 1)
    with at(url, keys) as ledger:
        known = only(ledger.known_from([stated]))
        with pytest.raises(Refused, match="lacks entry"):
            ledger.check_heads([known])
        assert len(ledger.lacks()) == 4 and ledger.recover([known])[0].kind == "recovery"
        assert ledger.total("digits").epsilon == 2.0 and ledger.lacks() == []


def test_what_nobody_knows_is_declared_lost_with_a_reason_that_cards_show(url, keys):
    with at(url, keys) as ledger:
        two_spends(ledger)
        stated = json.dumps(ledger.statement())
        spend(ledger, [THREE])
    cut(url, 0)
    with at(url, keys) as ledger:
        known = only(ledger.known_from([stated]))
        for sources, unknown in (([], 6), ([known], 1)):
            with pytest.raises(Refused, match=f"{unknown} of 6 entries .* --declare-loss REASON") as reported:
                ledger.recover(sources)
            assert "\n" not in str(reported.value) and ledger.entries() == []
        first, *rest = ledger.recover([known], "the disk died")
        assert (first.kind, first.body["reason"], first.body["unknown"], first.body["spends"]) == (
            "loss",
            "the disk died",
            1,
            2,
        )
        assert ledger.total("digits").epsilon == 2.0 and ledger.verify() == []
        assert ledger.notes("faces")[0]["reason"] == "the disk died" and len(ledger.notes("faces")) == 2
        spend(ledger)


def test_a_card_knows_the_spends_of_its_release_and_no_others(url, keys):
    with at(url, keys) as ledger:
        ledger.set_budget("digits", 10, DELTA)
        released, _ = spend(ledger, [THREE]), spend(ledger)
        stated = {"ledger_spends": ledger.spends_under([released.hash]), "spends": [{"stage": "x"}]}
        card = json.dumps(ledger.sign({**stated, "head": ledger.signed_head()}))
    cut(url, 1)
    with at(url, keys) as ledger:
        (known,) = ledger.known_from([card])
        with pytest.raises(Refused, match="2 of 2 entries"):
            ledger.recover([known])
        ledger.recover([known], "the other run's folder was deleted")
        assert ledger.total("digits").epsilon == 3.0 and ledger.total("digits").left == 7.0


@pytest.mark.parametrize("change", [{"ledger_spends": []}, {"seq": 1}, {"signature": "AAAA"}, {"ledger": "0" * 32}])
def test_a_forged_statement_says_nothing(url, keys, change):
    with at(url, keys) as ledger:
        two_spends(ledger)
        stated = ledger.statement()
        assert len(ledger.known_from([json.dumps(stated)])) == 1
        forged = [json.dumps({**stated, **change}), "{}", "[1]", "no JSON", json.dumps({"head": stated})]
        assert ledger.known_from(forged) == []


def test_a_key_that_signs_several_ledgers_does_not_mix_their_spends(tmp_path, keys):
    with at(f"sqlite:///{tmp_path / 'one.db'}", keys) as ledger:
        spend(ledger)
    (file,) = keys.folder.glob("*.pem")
    team = Keys(tmp_path / "team", str(file))
    with at(f"sqlite:///{tmp_path / 'two.db'}", team) as two, at(f"sqlite:///{tmp_path / 'three.db'}", team) as three:
        spend(two)
        assert three.known_from([json.dumps(two.statement())]) == []
        with pytest.raises(BadInput, match="is no copy of the ledger"):
            three.known_from_copy(two)


def test_of_two_copies_that_grew_each_spends_after_it_recovered_the_other(tmp_path, keys):
    here, there, away = tmp_path / "here.db", tmp_path / "there.db", tmp_path / "away"
    with at(f"sqlite:///{here}", keys) as ledger:
        common = spend(ledger)
    shutil.copyfile(here, there)
    shutil.copytree(keys.folder, away)
    with at(f"sqlite:///{here}", keys) as one, at(f"sqlite:///{there}", Keys(away)) as two:
        cancel(one, common)
        spend(one, [THREE])
        two.opened(common)
        spend(two)
        assert (one.total("digits").epsilon, two.total("digits").epsilon) == (3.0, 2.0)
        copy = one.known_from_copy(two)
        with pytest.raises(Refused, match="lacks entry 3"):
            one.check_heads([copy])
        with pytest.raises(Refused, match="lacks entry 3"):
            spend(one)
        assert one.total("digits").epsilon == 3.0 and one.signed_head()["seq"] == 3, "it shows and publishes"
        one.recover([copy])
        assert one.total("digits").epsilon == 5.0, "what was opened there cannot be cancelled here"
        spend(one)
        two.recover([two.known_from_copy(one)])
        assert two.total("digits").epsilon == 2.0 + 3.0 + 1.0 and one.verify() == two.verify() == []
        spend(two)
        with pytest.raises(Refused, match="lacks entry"):
            one.check_heads([one.known_from_copy(two)])


def test_a_lost_key_is_replaced_by_a_signed_entry_that_says_why(url, keys):
    with at(url, keys) as ledger:
        spend(ledger)
        stated = json.dumps(ledger.statement())
        with pytest.raises(BadInput, match="is there and is its own: leave --new-key out"):
            ledger.new_key("no reason")
    (file,) = keys.folder.glob("*.pem")
    file.unlink()
    with at(url, keys) as ledger:
        entry = ledger.new_key("the laptop was stolen")
        assert (entry.kind, entry.body["reason"]) == ("key", "the laptop was stolen")
        assert ledger.signed_head()["public_key"] == entry.body["now"] != entry.body["was"]
        spend(ledger)
        assert ledger.verify() == [] and ledger.total("digits").spends == 2
        assert ledger.known_from([stated]), "what the former key signed still holds"
        assert [note["kind"] for note in ledger.notes("digits")] == ["key"]
    tamper(url, "UPDATE entries SET signature = '' WHERE seq = 1")
    with at(url, keys) as ledger:
        assert [line.split(":")[0] for line in ledger.verify()] == ["entry 1"]


def test_a_lost_ledger_whose_key_is_lost_too_is_a_loss(tmp_path, keys):
    path = tmp_path / "ledger.db"
    with at(f"sqlite:///{path}", keys) as ledger:
        spend(ledger)
        stated = json.dumps(ledger.statement())
    for file in [*tmp_path.glob("ledger.db*"), *keys.folder.glob("*.pem")]:
        file.unlink()
    with at(f"sqlite:///{path}", keys) as ledger:
        with pytest.raises(Refused, match="lacks entry 1"):
            spend(ledger)
        ledger.recover(ledger.known_from([stated]))
        assert ledger.total("digits").epsilon == 1.0 and ledger.verify() == []


def test_heads_seen_elsewhere_are_asked_for_from_then_on(url, keys):
    with at(url, keys) as ledger:
        spend(ledger)
        name, key = (ledger.signed_head()[field] for field in ("ledger", "public_key"))
        lost = keys.signer(name)
        head = {"ledger": name, "seq": 7, "hash": "ab" * 32, "public_key": key}
        known = only(ledger.known_from([json.dumps(signed(head, lost))]))
        ledger.check_heads(ledger.known_from([json.dumps(ledger.signed_head())]))
        with pytest.raises(Refused, match="lacks entry 7"):
            ledger.check_heads([known])
        with pytest.raises(Refused, match="lacks entry 7"):
            spend(ledger)
        assert ledger.lacks() == [Head(7, "ab" * 32)]
        ledger.recover([known], "a test of ours")
        assert ledger.lacks() == [] and spend(ledger).seq == 3


def test_a_version_that_was_lost_does_not_begin_again_at_zero(url, keys):
    """Its spends are written anew without their records, so that nobody can say that those of the next version are others."""
    first, second = (Prints(9, np.arange(9 * at, 9 * at + 18, dtype=np.uint64).reshape(9, 2)) for at in (1, 9))
    who = {"run": "run-2", "code_version": "0.1"}
    with at(url, keys) as ledger:
        ledger.set_budget("digits", 5, DELTA)
        ledger.note_records("digits", "d1g3st", first)
        spend(ledger)
        assert ledger.new_version("digits", "n3wer", prints=second, **who).body["compared"]
        spend(ledger, [THREE], digest="n3wer")
        stated = json.dumps(ledger.statement())
    cut(url, 2)
    tamper(url, "DELETE FROM fingerprints WHERE digest = 'n3wer'")
    with at(url, keys) as ledger:
        ledger.recover(ledger.known_from([stated]))
        assert ledger.total("digits").epsilon == 4.0
        ledger.new_version("digits", "n3wer", prints=second, **who)
        assert ledger.total("digits").epsilon == 4.0
        with pytest.raises(Refused, match="epsilon 1 of 5 left"):
            spend(ledger, [THREE], digest="n3wer")


# A ledger of the earlier format


def earlier(url):
    """A ledger as Sfumato kept it before heads were signed: its entries."""
    engine_tables = [
        "CREATE TABLE entries (seq INTEGER PRIMARY KEY, dataset TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, "
        "previous TEXT NOT NULL, hash TEXT NOT NULL)",
        "CREATE TABLE meta (key VARCHAR(16) PRIMARY KEY, value TEXT)",
    ]
    body = {
        "digest": "d1g3st", "events": [THREE.model_dump()], "relation": "add_remove", "delta": DELTA, "epsilon": 3.0,
        "both": {"add_remove": 3.0, "replace_one": 12.0}, "why": None, "accountant": "injected: cheap", "claim": None,
        "images": "any", "code_version": "0.1", "run": "run-1", "stage": "train", "parents": [], "purpose": "a test",
        "insecure": False, "time": "2025-01-01T00:00:00Z",
    }  # fmt: skip
    rows, previous = [], ""
    for seq, (kind, stated) in enumerate([("budget", {"epsilon": 5.0, "delta": DELTA}), ("reserve", body)], 1):
        text = json.dumps(stated, sort_keys=True, separators=(",", ":"))
        rows.append([seq, "digits", kind, text, previous])
        previous = auditors_hash(rows[-1])
        rows[-1].append(previous)
    inserts = [f"INSERT INTO entries VALUES ({seq}, '{d}', '{k}', '{t}', '{p}', '{h}')" for seq, d, k, t, p, h in rows]
    meta = f"INSERT INTO meta VALUES ('schema', '1'), ('head', '{previous}')"
    tamper(url, *engine_tables, *inserts, meta)
    return [tuple(row) for row in rows]


@pytest.fixture
def earlier_url(database, tmp_path):
    (tmp_path / "ledgers").mkdir(exist_ok=True)
    url = database.fresh()
    if url.startswith("sqlite:///"):
        open(url.removeprefix("sqlite:///"), "w").close()
    return url


def test_a_ledger_of_the_earlier_format_is_named_and_migrated_with_every_entry_as_it_was(earlier_url, keys):
    before = earlier(earlier_url)
    with pytest.raises(BadInput, match="is of the earlier format, .* sfumato migrate") as reported:
        at(earlier_url, keys)
    assert "\n" not in str(reported.value)
    entry = migrate(earlier_url, clock, keys)
    assert (entry.kind, entry.seq, entry.body["signed_from"]) == ("migrate", 3, 3)
    assert migrate(earlier_url, clock, keys) is None
    rows = tamper(
        earlier_url, "SELECT seq, dataset, kind, body, previous, hash FROM entries WHERE seq < 3 ORDER BY seq"
    )
    assert [tuple(row) for row in rows] == before
    with at(earlier_url, keys) as ledger:
        assert ledger.verify() == [] and ledger.total("digits").epsilon == 3.0 and ledger.total("digits").left == 2.0
        with pytest.raises(Refused, match="epsilon 2 of 5 left"):
            spend(ledger, [THREE])
        spend(ledger, [ONE])
        assert ledger.replay() == [] and ledger.notes("digits")[0]["signed_from"] == 3
    cut(earlier_url, 1)
    with at(earlier_url, keys) as ledger, pytest.raises(Refused):
        spend(ledger)


def test_an_earlier_ledger_that_was_edited_is_not_migrated(earlier_url, keys):
    earlier(earlier_url)
    tamper(earlier_url, "UPDATE entries SET dataset = 'faces' WHERE seq = 2")
    with pytest.raises(Refused, match="was tampered with .entry 2: edited"):
        migrate(earlier_url, clock, keys)
    assert ("schema", "1") in [tuple(row) for row in tamper(earlier_url, "SELECT key, value FROM meta")]


def test_to_call_a_signed_ledger_an_earlier_one_and_migrate_it_does_not_hide_a_cut(tmp_path, keys):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with at(url, keys) as ledger:
        for _ in range(3):
            spend(ledger)
    cut(url, 1)
    tamper(url, "ALTER TABLE entries DROP COLUMN signature", "DELETE FROM meta WHERE key IN ('ledger', 'key')")
    tamper(url, "UPDATE meta SET value = '1' WHERE key = 'schema'")
    migrate(url, clock, keys)
    with at(url, keys) as ledger, pytest.raises(Refused, match="lacks entry 3, which was seen before .2 in all"):
        spend(ledger)


def test_there_must_be_a_ledger_to_migrate(tmp_path, keys):
    with pytest.raises(BadInput, match="there is no ledger"):
        migrate(f"sqlite:///{tmp_path / 'none.db'}", clock, keys)
