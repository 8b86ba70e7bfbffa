"""A ledger that was rewritten, cut off, exchanged or begun anew is found out, and nobody writes in it without its key."""

import base64
import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.errors import BadInput, Refused
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.ledger import chain
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.ledger.signing import Head, Keys, Signer, canonical, fingerprint, is_signed, is_signed_value
from tests.sfumato.privacy.ledger.test_databases import auditors_hash
from tests.spends import DELTA, KEYS, cheap, clock, spend, tamper

SEVERAL = 5


@pytest.fixture
def keys(tmp_path) -> Keys:
    """A folder of keys of its own."""
    return Keys(tmp_path / "keys")


def at(url, keys):
    return Ledger(url, clock, keys, price=cheap)


def spent(url, keys, times=SEVERAL):
    with at(url, keys) as ledger:
        return [spend(ledger, run=f"run-{number}") for number in range(times)]


def rechain(url, rewrite=lambda seq, body: body):
    """Rewrite entries and every hash in the database, as who reads the source can; signatures stay as they are."""
    rows = tamper(url, "SELECT seq, dataset, kind, body, previous FROM entries ORDER BY seq")
    last, statements = "", []
    for seq, dataset, kind, body, _ in rows:
        text = canonical(rewrite(seq, json.loads(body)))
        row = [seq, dataset, kind, text, last]
        quoted = text.replace("'", "''")
        hash = auditors_hash(row)
        statements.append(
            f"UPDATE entries SET body = '{quoted}', previous = '{last}', hash = '{hash}' WHERE seq = {seq}"
        )
        last = hash
    tamper(url, *statements, f"UPDATE meta SET value = '{last}' WHERE key = 'head'")


def cut(url, last):
    """Delete all entries after this one and set the end there."""
    head = f"(SELECT coalesce(max(hash), '') FROM entries WHERE seq = {last})"
    tamper(url, f"DELETE FROM entries WHERE seq > {last}", f"UPDATE meta SET value = {head} WHERE key = 'head'")


def cheaper(seq, body):
    return {**body, "events": [Gaussian(noise_multiplier=9.0).model_dump()]} if seq == 2 else body


# Rewritten


def test_a_ledger_whose_every_hash_was_computed_anew_is_found_out(url, keys):
    spent(url, keys)
    rechain(url)
    with at(url, keys) as ledger:
        assert ledger.verify() == [], "to compute the hashes alone changes nothing"
    rechain(url, cheaper)
    with at(url, keys) as ledger:
        breaks = ledger.verify()
        forged = [line for line in breaks if "not signed by the ledger's key" in line]
        assert [line.split(":")[0] for line in forged] == ["entry 2", "entry 3", "entry 4", "entry 5"]
        for use in (lambda: spend(ledger), lambda: ledger.total("digits"), ledger.signed_head):
            with pytest.raises(Refused, match="was tampered with .entry 5: not signed"):
                use()


def test_signatures_of_another_key_or_none_do_not_pass(url, keys, tmp_path):
    spent(url, keys)
    other = Keys(tmp_path / "other")
    with at(url, other) as ledger, pytest.raises(BadInput, match="the key of the ledger at .* cannot be read"):
        spend(ledger)
    tamper(url, "UPDATE entries SET signature = ''")
    with at(url, keys) as ledger:
        assert len(ledger.verify()) == SEVERAL
    stranger = Signer(Ed25519PrivateKey.generate())
    rows = tamper(url, "SELECT seq, hash FROM entries ORDER BY seq")
    ((name,),) = tamper(url, "SELECT value FROM meta WHERE key = 'ledger'")
    for seq, hash in rows:
        head = {"ledger": name, "seq": seq, "hash": hash, "public_key": stranger.public_key}
        tamper(url, f"UPDATE entries SET signature = '{stranger.sign(canonical(head).encode())}' WHERE seq = {seq}")
    tamper(url, f"UPDATE meta SET value = '{stranger.public_key}' WHERE key = 'key'")
    with at(url, keys) as ledger, pytest.raises(BadInput, match="is not the one of this ledger"):
        spend(ledger)


# Cut off, lost, exchanged


@pytest.mark.parametrize("last", [0, 3])
def test_a_ledger_whose_end_was_cut_off_is_found_out_and_takes_no_entry(url, keys, last):
    reservations = spent(url, keys)
    cut(url, last)
    with at(url, keys) as ledger:
        assert ledger.verify() == [f"entry {seq}: seen before, and not in this ledger" for seq in range(5, last, -1)]
        for use in (lambda: spend(ledger), lambda: ledger.opened(reservations[0])):
            with pytest.raises(
                Refused, match=rf"lacks entry 5, .*\({5 - last} in all\).*sfumato ledger recover"
            ) as reported:
                use()
            assert "\n" not in str(reported.value)
        assert len(ledger.entries()) == last


def test_entries_of_a_ledger_that_is_whole_are_checked_in_one_reading(url, keys, monkeypatch):
    spent(url, keys)
    readings = []
    load = chain._load
    monkeypatch.setattr(chain, "_load", lambda connection: readings.append(1) or load(connection))
    with at(url, keys) as ledger:
        readings.clear()
        entries = ledger.whole_entries()
        assert len(readings) == 1 and entries == ledger.entries() and len(entries) == SEVERAL
        cut(url, 3)
        assert len(ledger.entries()) == 3, "what is there is unbroken"
        with pytest.raises(Refused, match="lacks entry 5, which was seen before"):
            ledger.whole_entries()
    rechain(url, cheaper)
    with at(url, keys) as ledger, pytest.raises(Refused, match="lacks entry 5, which was seen before"):
        ledger.whole_entries()  # what is missing is more urgent than what was rewritten


def test_entries_that_were_edited_are_not_whole(url, keys):
    spent(url, keys)
    tamper(url, "UPDATE entries SET body = replace(body, 'run-1', 'run-7') WHERE seq = 2")
    with at(url, keys) as ledger, pytest.raises(Refused, match=r"was tampered with \(entry 2"):
        ledger.whole_entries()


def test_a_new_ledger_in_the_place_of_a_lost_one_pays_for_nothing(tmp_path, keys):
    path = tmp_path / "home" / "ledger.db"
    spent(f"sqlite:///{path}", keys)
    for file in path.parent.iterdir():
        file.unlink()
    with at(f"sqlite:///{path}", keys) as ledger:
        assert ledger.entries() == [] and len(ledger.verify()) == SEVERAL
        with pytest.raises(Refused, match="lacks entry 5, which was seen before"):
            spend(ledger)


def test_another_ledger_in_the_place_of_one_pays_for_nothing(database, keys):
    url, other = database.fresh(), database.fresh()
    spent(url, keys)
    spent(other, keys, times=1)
    rows = tamper(other, "SELECT seq, dataset, kind, body, previous, hash, signature FROM entries")
    meta = tamper(other, "SELECT key, value FROM meta")
    quote = lambda value: value if isinstance(value, int) else "'" + value.replace("'", "''") + "'"  # noqa: E731
    tamper(url, "DELETE FROM entries", *(f"UPDATE meta SET value = {quote(v)} WHERE key = {quote(k)}" for k, v in meta))
    tamper(url, *(f"INSERT INTO entries VALUES ({', '.join(str(quote(v)) for v in row)})" for row in rows))
    with at(url, keys) as ledger:
        assert len(ledger.entries()) == 1 and len(ledger.verify()) == SEVERAL
        with pytest.raises(Refused, match="lacks entry 5"):
            spend(ledger)
    with at(other, keys) as ledger:
        assert ledger.verify() == [] and spend(ledger).seq == 2


def test_a_copy_that_grew_by_itself_shows_but_does_not_spend(tmp_path, keys):
    """Two machines, each with the key and with what it saw itself; then one hears of the other."""
    here, there = f"sqlite:///{tmp_path / 'here.db'}", f"sqlite:///{tmp_path / 'there.db'}"
    spent(here, keys, times=2)
    (tmp_path / "there.db").write_bytes((tmp_path / "here.db").read_bytes())
    away = Keys(tmp_path / "away")
    away.folder.mkdir()
    for file in keys.folder.iterdir():
        if file.suffix == ".pem":
            (away.folder / file.name).write_bytes(file.read_bytes())
    spent(here, keys, times=1)
    (reservation,) = spent(there, away, times=1)
    with at(there, away) as ledger:
        assert ledger.lacks() == []
        with at(here, keys) as other:
            away.remember(
                other.signed_head()["ledger"],
                [Head(entry.seq, entry.hash, entry.previous) for entry in other.entries()],
            )
        assert [head.seq for head in ledger.lacks()] == [3]
        with pytest.raises(Refused, match="lacks entry 3"):
            spend(ledger)
        with pytest.raises(Refused, match="lacks entry 3"):
            ledger.set_budget("digits", 100, DELTA)
        ledger.opened(reservation)  # what was reserved goes on
        assert ledger.total("digits").epsilon == 3.0 and ledger.signed_head()["seq"] == 4


def test_a_head_that_a_crash_kept_from_being_noted_is_made_good(url, keys):
    spent(url, keys, times=2)
    (notes,) = keys.folder.glob("*.heads")
    noted = notes.read_text()
    notes.write_text(noted.rstrip("\n")[:-7])  # a torn line: the last of the heads is not known
    with at(url, keys) as ledger:
        spend(ledger)
        assert ledger.verify() == [] and sorted({head.seq for head in keys.seen("", notes.stem)}) == [1, 2, 3]
    notes.unlink()
    with at(url, keys) as ledger:
        spend(ledger)
        assert ledger.verify() == [] and len(keys.seen("", notes.stem)) == 4


# Keys


def test_a_key_is_made_once_for_each_ledger_and_only_its_owner_reads_it(tmp_path, keys):
    for name in ("one", "two"):
        for _ in range(2):
            spent(f"sqlite:///{tmp_path / name}.db", keys, times=1)
    files = sorted(keys.folder.glob("*.pem"))
    assert len(files) == 2 and all(file.stat().st_mode & 0o077 == 0 for file in keys.folder.iterdir())
    assert keys.folder.stat().st_mode & 0o077 == 0 and "PRIVATE" not in repr(Keys(keys.folder, files[0].read_text()))


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_text("x"), lambda path: path.write_bytes(b"\xff")]
)
def test_a_lost_or_unreadable_key_is_one_line_and_no_new_one_is_made(url, keys, damage):
    spent(url, keys, times=1)
    (file,) = keys.folder.glob("*.pem")
    damage(file)
    with at(url, keys) as ledger:
        for use in (lambda: spend(ledger), ledger.signed_head, lambda: ledger.sign({})):
            with pytest.raises(BadInput, match=re.escape(str(file))) as reported:
                use()
            assert "\n" not in str(reported.value) and "SFUMATO_LEDGER_KEY" in str(reported.value)
            assert "sfumato ledger recover --new-key" in str(reported.value)
        assert len(ledger.entries()) == 1 and ledger.verify() == [], "to read takes no key"


@pytest.mark.parametrize("how", ["text", "path"])
def test_a_team_gives_its_key(url, keys, tmp_path, how):
    spent(f"sqlite:///{tmp_path / 'made.db'}", keys, times=1)
    (file,) = keys.folder.glob("*.pem")
    given = Keys(tmp_path / "member", file.read_text() if how == "text" else str(file))
    spent(url, given, times=1)
    colleague = Keys(tmp_path / "colleague", given.outside_key)
    spent(url, colleague, times=1)
    with at(url, colleague) as ledger:
        assert ledger.verify() == [] and len(ledger.entries()) == 2
        assert ledger.signed_head()["public_key"] == given.signer("").public_key
    assert not list(given.folder.glob("*.pem")) and not list(colleague.folder.glob("*.pem"))
    cannot = pytest.raises(BadInput, match="the key of the ledger at SFUMATO_LEDGER_KEY cannot be read")
    with at(url, Keys(tmp_path / "stranger", "nonsense")) as ledger, cannot:
        spend(ledger)


def test_a_folder_that_cannot_be_used_is_one_line(url, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"folder of the ledger's keys .* cannot be used .*: set SFUMATO_KEYS"):
        at(url, Keys(tmp_path / "file"))


# Signatures


def test_a_signed_head_can_be_checked_by_anyone(url):
    with at(url, KEYS) as ledger:
        nothing = ledger.signed_head()
        spend(ledger)
        head = ledger.signed_head()
        last = ledger.entries()[-1]
    assert (nothing["seq"], nothing["hash"]) == (0, "") and (head["seq"], head["hash"]) == (1, last.hash)
    for one in (nothing, head):
        assert set(one) == {"ledger", "seq", "hash", "public_key", "signature"}
        assert is_signed_value(one, one["public_key"]) and not is_signed_value({**one, "seq": 7}, one["public_key"])
    plain = json.dumps({k: v for k, v in head.items() if k != "signature"}, sort_keys=True, separators=(",", ":"))
    assert is_signed(head["public_key"], plain.encode(), head["signature"])
    assert len(base64.b64decode(head["public_key"])) == 32 and len(fingerprint(head["public_key"])) == 64


def test_every_field_of_a_signed_value_counts(url):
    with at(url, KEYS) as ledger:
        card = ledger.sign({"epsilon": 1.0, "covers": {"images": 20}})
        key = ledger.signed_head()["public_key"]
        assert ledger.sign(card) == card
    assert is_signed_value(card, key)
    for changed in ({"epsilon": 0.5}, {"covers": {"images": 21}}, {"more": 1}, {"signature": "AAAA"}, {"signature": 1}):
        assert not is_signed_value({**card, **changed}, key)
    assert not is_signed_value(card, base64.b64encode(bytes(32)).decode()) and not is_signed_value(card, "no key")
