"""Attacks on what samples promise, by a person who may write where artifacts and records lie, and not in the ledger."""

import base64
import hashlib
import io
import json
import shutil
import sqlite3

import pytest
from PIL import Image

from artifacts import approval, gate
from artifacts.binding import unbound
from artifacts.record import RECORD, run_folder, save_record
from artifacts.references import NearestPublic, Samples, TunedModel
from artifacts.reports import run as report
from sfumato.errors import BadInput, Refused
from sfumato.images import picture, save_png
from sfumato.privacy.accounting.accountant import AtZero
from sfumato.privacy.accounting.events import Gaussian, Uncertified
from sfumato.privacy.ledger.chain import canonical
from sfumato.privacy.ledger.decisions import Decision
from sfumato.privacy.ledger.ledger import entry_label
from tasks import release
from tasks.more_images import model_of
from tasks.release import publish_run
from tasks.reporting import report_for_prefect
from tasks.runtime.environment import configure
from tests.examples import SPENT, home_at, keep_samples, make_plan, paid_record, picture_set, reserve

WHO = {"stage": "a stage", "run": "run-1", "code_version": "1"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "show_run", lambda record: None)
    monkeypatch.setattr(release, "register", lambda record: None)
    with home_at(tmp_path / "home"):
        yield configure()


@pytest.fixture
def record(place):
    return retained(place, paid_record(place, place.runs / "one", images=20))


def retained(place, record):
    folder = place.runs / record.run
    folder.mkdir(parents=True, exist_ok=True)
    save_record(folder, record)
    return record.model_copy(update={"report": str(folder / "report.html")})


def refused(record, tmp_path, why, error=BadInput):
    with pytest.raises(error, match=why):
        publish_run(record, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    reported = report_for_prefect(record, {})
    assert "Nothing of this run may leave" in reported and "data:image" not in reported


def test_images_covered_come_from_the_entries(place, record, tmp_path):
    certificate = record.certificate
    assert certificate.images == 20
    edited = record.model_copy(update={"certificate": certificate.model_copy(update={"images": "any"})})
    publish_run(retained(place, edited), tmp_path / "out")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert "covering 20 images" in card["statement"] and card["certificate"]["images"] == 20


def test_odds_accesses_and_commit_come_from_ledger_and_store(place, record):
    with place.ledger() as ledger:
        true = gate.passed(place.store(), ledger, record)
        small = AtZero(0.01, true.at_zero.accountant)
        fewer = true.books.model_copy(update={"accesses": (), "epsilon": 0.1})
        edited = record.model_copy(update={"at_zero": small, "books": fewer, "commit": "f" * 40})
        again = gate.passed(place.store(), ledger, retained(place, edited))
    assert (again.at_zero, again.books, again.commit) == (true.at_zero, true.books, true.commit)
    assert 0.01 < again.at_zero.delta < 1 and again.books.accesses[0].own == len(SPENT)


def test_votes_for_a_learning_rate_come_from_the_store(place, record):
    """Here no rate was chosen by private records, whatever the record says."""
    edited = record.model_copy(update={"rates": {"rate": 2.0, "votes_for_2": 900.0}})
    with place.ledger() as ledger:
        assert gate.passed(place.store(), ledger, edited).rates == {}


FREE = {
    *("run", "preset", "samples_artifact", "rehearsal_artifact", "nearest_artifact"),
    *("samples", "report", "internal_report", "published", "tracking"),
    *("audit", "copies"),
}
"""Fields of a record that name what is looked up, or the places of its files; and findings, which are compared with digests in the ledger."""


def test_the_gate_takes_no_other_field_from_a_record_on_disk(place, record):
    """Every field that is not known to be harmless is found again in ledger and store, or emptied."""
    wrong = {name: object() for name in type(record).model_fields if name not in FREE}
    forged = record.model_copy(update=wrong)
    with place.ledger() as ledger:
        passed = gate.passed(place.store(), ledger, forged)
    assert not [name for name, value in wrong.items() if getattr(passed, name) is value]


def test_internal_samples_do_not_pass_whatever_way_out_asks(place, tmp_path):
    """Publishing looks at the label once more; MLflow and the report in Prefect have this gate alone."""
    leak = Uncertified(reason="one step shows a record")
    result = retained(place, paid_record(place, place.runs / "one", events=[leak]))
    with place.ledger() as ledger:
        with pytest.raises(Refused, match="INTERNAL, because of Samples .*one step shows a record"):
            gate.passed(place.store(), ledger, result)
        assert gate.passed(place.store(), ledger, result, accepting=["claim"]).label == "INTERNAL"


def test_without_a_copy_check_in_the_ledger_nothing_leaves(place, tmp_path):
    store = place.store()
    with place.ledger() as ledger:
        ticket = reserve(ledger, [SPENT[0]])
        samples = keep_samples(store, entries={ticket.hash: "DP"}, plan=make_plan())
        ledger.commit(ticket, [SPENT[0]], artifact=samples.digest)
    result = paid_record(place, place.runs / "one").model_copy(
        update={"samples_artifact": samples.digest, "copies": None}
    )
    refused(retained(place, result), tmp_path, "the ledger knows no copy check", Refused)


def test_deleting_what_says_that_there_are_copies_does_not_help(place, tmp_path):
    record = retained(place, paid_record(place, place.runs / "one", copied=2))
    refused(record.model_copy(update={"copies": None}), tmp_path, "repeat training records", Refused)


def test_whoever_went_on_after_a_rehearsal_that_failed_is_told_whatever_the_record_says(place, record, tmp_path):
    stated = {"what": "rehearsal", "claim": None, "spends": (), "code_version": "1"}
    with place.ledger() as ledger:
        for run, missing in (("run-0", "another run"), ("run-1", "public samples are noise")):
            ledger.override("scans", "A. Person", artifact="f" * 64, missing=missing, run=run, **stated)
        ledger.override("others", "A. Person", artifact="f" * 64, missing="another set", run="run-1", **stated)
    assert record.rehearsal_artifact == "" and not record.overrides, "as a record that was edited has it"
    publish_run(record, tmp_path / "out")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert [(one["kind"], one["missing"]) for one in card["overrides"]] == [("rehearsal", "public samples are noise")]
    assert (
        "the rehearsal with public images failed: public samples are noise"
        in (tmp_path / "out" / "README.md").read_text()
    )


def test_the_account_under_which_a_run_was_made_stays_in_its_record(place, record, tmp_path):
    record = record.model_copy(update={"account": "login-of-grace"})
    publish_run(record, tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"login-of-grace" in path.read_bytes()]
    assert "login-of-grace" in (run_folder(record) / RECORD).read_text(encoding="utf-8")
    assert "login-of-grace" not in report_for_prefect(record, {})


def test_no_picture_of_the_run_folder_leaves(place, record, tmp_path):
    secret = picture(picture_set(1).pixels[0])
    for name in ("samples.png", "training-curves.png", "privacy-curve.png", "copies.png"):
        save_png(place.runs / record.run / name, secret)
    private = (place.runs / record.run / "samples.png").read_bytes()
    publish_run(record, tmp_path / "out")
    honest = (place.store().folder(record.samples_artifact) / "samples.png").read_bytes()
    assert honest != private
    with Image.open(tmp_path / "out" / "samples.png") as shown, Image.open(io.BytesIO(honest)) as stored:
        assert shown.tobytes() == stored.tobytes()
    coded = base64.b64encode(private).decode()
    texts = [path.read_text() for path in (tmp_path / "out").glob("*.html")] + [report_for_prefect(record, {})]
    assert texts and not any(coded in text for text in texts)
    assert all(base64.b64encode(honest).decode() in text for text in texts)


def keep_nearest(place, parents, shade):
    """A picture of samples beside public images, as its stage leaves it."""
    store = place.store()
    with store.writing() as folder:
        save_png(folder / report.NEAREST, picture(picture_set(1).pixels[0] // 2 + shade))
        return store.keep(NearestPublic, folder, parents=parents)


def test_samples_beside_public_images_leave_with_them_where_the_ledger_names_the_picture(place, record, tmp_path):
    store, samples = place.store(), Samples(digest=record.samples_artifact, label=record.label)
    named, others = keep_nearest(place, [samples], 3), keep_nearest(place, [keep_samples(store)], 5)
    unnamed = keep_nearest(place, [samples], 7)
    with place.ledger() as ledger:
        ledger.note_made(
            named.digest, entries=store.entries(named), stage="nearest public images", run="run-1", code_version="1"
        )
        for result, leaves in ((named, True), (unnamed, False), (others, False)):
            reported = record.model_copy(update={"nearest_artifact": result.digest})
            assert gate.passed(store, ledger, reported).nearest_artifact == (result.digest if leaves else "")
        gone = record.model_copy(update={"nearest_artifact": "0" * 64})
        assert gate.passed(store, ledger, gone).nearest_artifact == ""
    reported = record.model_copy(update={"nearest_artifact": named.digest})
    folder = place.runs / record.run
    save_png(folder / report.NEAREST, picture(picture_set(2).pixels[1]))
    false = base64.b64encode((folder / report.NEAREST).read_bytes()).decode()
    publish_run(retained(place, reported), tmp_path / "out")
    honest = base64.b64encode((store.folder(named) / report.NEAREST).read_bytes()).decode()
    texts = [(tmp_path / "out" / "report.html").read_text(), report_for_prefect(reported, {})]
    assert all(honest in text and false not in text for text in texts)


def forged(store, entries, parents=(), label="DP"):
    """Samples whose manifest says whatever one likes, under its right address."""
    genuine = keep_samples(store, picture_set(4, side=6), plan=make_plan())
    manifest = {**store.manifest(genuine), "entries": entries, "parents": list(parents), "label": label}
    text = json.dumps(manifest, sort_keys=True, indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder = store.root / "objects" / digest
    if not folder.exists():
        shutil.copytree(store.root / "objects" / genuine.digest, folder)
    (folder / "manifest.json").write_text(text)
    return Samples(digest=digest, label=label)


def test_a_forged_manifest_publishes_nothing(place, record, tmp_path):
    """Private images under entries of someone else, under none, as a child of what was paid for, as an ancestor's look gone."""
    store = place.store()
    with place.ledger() as ledger:
        look = ledger.look("scans", "digest-of-scans", "train the baseline", **WHO)
        standing = reserve(ledger, [SPENT[0]])
    paid = dict.fromkeys(store.entries(record.samples_artifact), "DP")
    lies = {
        "was not committed with it": forged(store, paid),
        "no ledger entry names it": forged(store, {}, [record.samples_artifact]),
        "is not what it says": forged(store, {**paid, look.hash: "DP"}),
        "rest on no ledger entry": forged(store, {}, label="PUBLIC"),
        "entries are not in this ledger": forged(store, {"7": "DP"}),
        f"entry {standing.seq} was not committed": forged(store, {standing.hash: "DP"}),
    }
    for why, samples in lies.items():
        refused(record.model_copy(update={"samples_artifact": samples.digest}), tmp_path, why)


def test_an_insecure_entry_is_no_promise_whatever_the_manifest_says(place, record, tmp_path):
    store = place.store()
    with place.ledger() as ledger:
        ticket = reserve(ledger, [SPENT[0]], insecure=True)
        samples = forged(store, {ticket.hash: "DP"})
        ledger.commit(ticket, [SPENT[0]], artifact=samples.digest)
    refused(record.model_copy(update={"samples_artifact": samples.digest}), tmp_path, "is not what it says")


def test_entries_of_another_private_set_are_refused(place, record, tmp_path):
    store = place.store()
    with place.ledger() as ledger:
        ticket = reserve(ledger, [SPENT[0]], dataset="others")
        samples = keep_samples(store, entries={ticket.hash: "DP"}, plan=make_plan())
        ledger.commit(ticket, [SPENT[0]], artifact=samples.digest)
    reported = f"stand on ledger entry {ticket.seq} of 'others', not of 'scans'"
    refused(record.model_copy(update={"samples_artifact": samples.digest}), tmp_path, reported)


@pytest.mark.parametrize("other", [{"delta": 1e-6}, {"relation": "replace_one"}, {"unit": "person"}])
def test_entries_that_disagree_give_no_certificate(place, tmp_path, other):
    store = place.store()
    with place.ledger() as ledger:
        tickets = [reserve(ledger, [SPENT[0]]), reserve(ledger, [SPENT[0]], **other)]
        samples = keep_samples(store, entries={one.hash: "DP" for one in tickets}, plan=make_plan())
        with pytest.raises(BadInput, match="which no single certificate can state"):
            gate.certificate_of(store, ledger, samples)


# Bound to this ledger


def test_from_a_ledger_that_was_set_back_nothing_leaves(place, record, tmp_path):
    """A copy from before an audit that refuted the run, or before other runs paid, knows nothing of them."""
    database, copy = place.home / "ledger.db", tmp_path / "backup.db"
    with place.ledger() as ledger:
        gate.passed(place.store(), ledger, record)
    with sqlite3.connect(database) as here, sqlite3.connect(copy) as there:
        here.backup(there)
    with place.ledger() as ledger:
        ledger.check(
            "scans",
            what="audit",
            artifact=record.samples_artifact,
            finding="f" * 64,
            passed=False,
            spends=[one.hash for one in ledger.entries() if one.kind == "reserve"],
            run=record.run,
            code_version="1",
        )
    refused(record, tmp_path, "refutes its promise", Refused)
    with sqlite3.connect(copy) as there, sqlite3.connect(database) as here:
        there.backup(here)
    refused(record, tmp_path, "lacks entry .*, which was seen before", Refused)


def test_a_refusal_of_the_same_paid_model_is_in_the_ledger_and_not_in_a_folder(place, record, tmp_path):
    """Nor does it matter by which way more of it would leave."""
    other = keep_samples(place.store(), picture_set(5), {}, plan=make_plan())
    spends = [one.hash for one in place.ledger().entries() if one.kind == "reserve"]
    words = {"run": "an earlier edition", "digests": {}, "name": "A", "role": "B", "reason": "a face", "licence": ""}
    refusal, approved = (
        Decision(decision=word, time="2026-01-01T00:00:00+00:00", **words) for word in ("refused", "approved")
    )
    with place.ledger() as ledger:
        check = {"what": "copies", "artifact": other.digest, "finding": "f" * 64, "passed": True}
        ledger.check("scans", **check, spends=spends[:1], run="an earlier edition", code_version="1")
        ledger.decide("scans", refusal, artifact=other.digest, code_version="1")
    with pytest.raises(BadInput, match="draws from what run an earlier edition paid for, which was refused"):
        publish_run(record, tmp_path / "out")
    with pytest.raises(BadInput, match="draws from what run an earlier edition paid for, which was refused"):
        model_of(record)
    with place.ledger() as ledger:
        ledger.decide("scans", approved, artifact=other.digest, code_version="1")
        approval.refuse_kin(gate.passed(place.store(), ledger, record), ledger.entries())


def test_what_another_ledger_paid_for_is_missing_here_and_never_borrows_a_price(place, tmp_path):
    """A run at .999; ledger and keys are lost; a run at .4 has the same numbers, and not the first one's samples."""
    store = place.store()
    dear = retained(place, paid_record(place, place.runs / "one", events=[Gaussian(noise_multiplier=4.0)]))
    with place.ledger() as ledger:
        known = ledger.entries()
        assert unbound(store, known, dear.samples_artifact) == ""
    with home_at(tmp_path / "other"):
        cheap = retained(configure(), paid_record(configure(), tmp_path, events=[Gaussian(noise_multiplier=8.0)]))
        assert cheap.entries == dear.entries, "numbers alone would be taken for each other"
        with configure().ledger() as ledger:
            reported = unbound(store, ledger.entries(), dear.samples_artifact)
            assert reported == "its ledger entries are not in this ledger"
            with pytest.raises(BadInput, match="not in this ledger"):
                gate.passed(store, ledger, dear)


def test_an_artifact_that_was_kept_and_not_committed_is_paid_in_full_and_not_used(place):
    """What a crash between the two leaves behind."""
    store = place.store()
    with place.ledger() as ledger:
        ticket = reserve(ledger, [SPENT[0]])
        with store.writing() as folder:
            (folder / "facts.json").write_text("{}")
            (entry,) = ledger.entries_by_hash([ticket.hash])
            model = store.keep(TunedModel, folder, entries={ticket.hash: entry_label(entry)})
        assert unbound(store, ledger.entries(), model) == f"ledger entry {ticket.seq} was not committed with it"
        assert ledger.spends("scans")[0][1] == (SPENT[0],)
        ledger.commit(ticket, [SPENT[0]], artifact=model.digest)
        assert unbound(store, ledger.entries(), model) == ""
        assert "label" in unbound(store, ledger.entries(), model.model_copy(update={"label": "PUBLIC"}))


def test_work_that_went_on_after_a_stop_stands_on_both_its_spends(place):
    store = place.store()
    with place.ledger() as ledger:
        first, second = reserve(ledger, [SPENT[0]]), reserve(ledger, [SPENT[0]])
        ledger.commit(first, [])
        samples = keep_samples(store, entries={first.hash: "DP", second.hash: "DP"})
        assert "was not committed with it" in unbound(store, ledger.entries(), samples)
        ledger.commit(second, [SPENT[0]], artifact=samples.digest)
        assert unbound(store, ledger.entries(), samples) == ""


def test_what_leaves_confirms_no_guess_of_the_private_content(place, record, tmp_path):
    """A person with the card, all that views show and all records but one guesses the last: the right guess looks like any other.

    Whoever guesses rightly knows the digest of the set, and builds every entry anew but for its salt.
    """
    publish_run(record, tmp_path / "out")
    texts = [path.read_text() for path in (tmp_path / "out").rglob("*") if path.suffix in (".json", ".md", ".html")]
    with place.ledger() as ledger:
        entries = ledger.entries()
    texts += [json.dumps(entry.public()) for entry in entries]
    withheld = [entry.body["salt"] for entry in entries] + ["digest-of-scans"]
    assert not any(secret in text for secret in withheld for text in texts)
    for entry in entries:
        guess = {name: value for name, value in entry.body.items() if name != "salt"}
        fields = (entry.seq, entry.dataset, entry.kind, canonical(guess), entry.previous)
        unsalted = hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()
        assert unsalted != entry.hash, "today's hash would have been met"
    with home_at(tmp_path / "again"):
        twin = paid_record(configure(), tmp_path, images=20)
        with configure().ledger() as ledger:
            again = ledger.entries()
    assert twin.samples_artifact != record.samples_artifact, "the same content has another address each time"
    pairs = list(zip(entries, again, strict=False))
    assert len(pairs) > 5 and all(one.hash != other.hash for one, other in pairs)
    assert pairs[0][0].body["digest"] == pairs[0][1].body["digest"]
