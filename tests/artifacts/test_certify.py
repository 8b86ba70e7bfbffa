"""What may leave follows from store and ledger: in random graphs of artifacts, and when a record or a person says otherwise."""

import itertools
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts import certify
from artifacts.labels import Label
from artifacts.publish import publish
from artifacts.record import Override, load_record, save_record
from artifacts.references import Ref, Samples, TunedModel
from artifacts.store import Store
from sfumato.errors import BadInput, Refused
from sfumato.privacy.accounting.events import Gaussian, Uncertified
from sfumato.privacy.ledger.ledger import Ledger, entry_label
from tasks import release
from tasks.release import publish_run
from tasks.runtime.environment import configure
from tests.examples import home_at, keep_samples, make_plan, make_record, paid_record, reserve
from tests.spends import KEYS

LEAK = Uncertified(reason="one step leaks")
WHO = {"stage": "a stage", "run": "run-1", "code_version": "1"}


def cheap(events, delta, relation):
    return sum(event.count / event.noise_multiplier**2 for event in events)


# Random graphs

ACCESSES = st.sampled_from(["spend", "query", "insecure", "leak", "look", "abandoned"])
STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 20), max_size=3), st.lists(ACCESSES, max_size=2)), min_size=1, max_size=7
)
"""For each artifact: which earlier ones it is made of (modulo their number), and how private data was touched for it."""


def touch(ledger: Ledger, how: str) -> tuple[str, str]:
    """One access to private data; the hash of the entry that stands for it, and its label."""
    if how == "look":
        entry = ledger.look("scans", "digest-of-scans", "a look", **WHO)
        return entry.hash, entry_label(entry)
    event = LEAK if how == "leak" else Gaussian(noise_multiplier=2.0 if how == "query" else 1.0)
    ticket = reserve(ledger, [event], insecure=how == "insecure")
    if how not in ("abandoned",):
        ledger.commit(ticket, [event])
    (entry,) = (entry for entry in ledger.entries() if entry.seq == ticket.seq)
    return ticket.hash, entry_label(entry)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_nothing_internal_is_ever_published_and_every_sentence_names_all_its_spends(steps):
    ticks = itertools.count()
    with tempfile.TemporaryDirectory() as name:
        home, made, truth = Path(name), [], []
        store = Store.open(home / "store")
        with Ledger(f"sqlite:///{home}/ledger.db", lambda: f"{next(ticks):06d}", KEYS, price=cheap) as ledger:
            for parents, accesses in steps:
                chosen = sorted({number % len(made) for number in parents}) if made else []
                entries = dict(touch(ledger, how) for how in accesses)
                spent = {name: how for name, how in zip(entries, accesses, strict=True)}
                made.append(keep_samples(store, entries=entries, parents=[made[n] for n in chosen]))
                truth.append(spent.copy())
                for n in chosen:
                    truth[-1] |= truth[n]
            for number, (samples, spent) in enumerate(zip(made, truth, strict=True)):
                check(store, ledger, home / f"out-{number}", samples, spent)


def check(store: Store, ledger: Ledger, to: Path, samples: Ref, spent: dict[str, str]) -> None:
    """Publish one artifact, knowing how private data was touched for it."""
    dirty = any(how in ("insecure", "leak", "look") for how in spent.values())
    label = Label.INTERNAL if dirty else Label.DP if spent else Label.PUBLIC
    certificate = certify.certificate_of(store, ledger, samples)
    facts = {
        "samples_artifact": samples.digest,
        "entries": certify.numbers_of(store, ledger, samples),
        "label": samples.label,
    }
    record = make_record(to, certificate=certificate, **facts)
    numbers = {entry.seq: entry.hash for entry in ledger.entries_by_hash(spent)}
    assert (samples.label, record.entries) == (label, sorted(numbers))
    if dirty:
        assert certificate is None
        with pytest.raises(Refused, match="INTERNAL, because of"):
            publish(store, record, to)
        assert not to.exists()
        reported = certify.missing(store, ledger, samples)
        assert all(
            f"entry {n}:" in reported for n, name in numbers.items() if spent[name] in ("insecure", "leak", "look")
        )
        return
    stated = json.loads((publish(store, record, to) / "card.json").read_text())["statement"]
    if spent:
        assert certificate.epsilon == pytest.approx(sum(0.25 if how == "query" else 1.0 for how in spent.values()))
        assert certificate.sentence() == stated and f"({certificate.epsilon:.3f}, " in stated
        named = stated.split("ledger entr")[1].split(" ", 1)[1].rstrip(".").split(", ")
        assert named == [str(seq) for seq in sorted(numbers)]
    else:
        assert stated == "made from public data alone"


# A record that says something else


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "show_run", lambda record: None)
    monkeypatch.setattr(release, "register", lambda record: None)
    with home_at(tmp_path / "home"):
        yield configure()


def retained(place, record):
    folder = place.runs / record.run
    folder.mkdir(parents=True, exist_ok=True)
    save_record(folder, record)
    return record.model_copy(update={"report": str(folder / "report.html")})


@pytest.mark.parametrize(
    "lie",
    [
        lambda record: {"certificate": record.certificate.model_copy(update={"epsilon": 0.1})},
        lambda record: {"certificate": record.certificate.model_copy(update={"entries": (1,)})},
        lambda record: {"certificate": record.certificate.model_copy(update={"relation": "replace_one"})},
        lambda record: {"certificate": record.certificate.model_copy(update={"images": 5})},
        lambda record: {"entries": record.entries[:1]},
        lambda record: {"label": "PUBLIC"},
        lambda record: {"settings": {**record.settings, "method": {"name": "nobody"}, "data": {"name": "nobody"}}},
        lambda record: {"claim": record.claim.model_copy(update={"source": "nobody"})},
        lambda record: {"stages": [record.stages[0].model_copy(update={"name": "nobody"})]},
    ],
)
def test_what_an_edited_record_says_is_not_believed(place, tmp_path, lie):
    record = paid_record(place, tmp_path)
    publish_run(retained(place, record.model_copy(update=lie(record))), tmp_path / "out")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["statement"] == record.certificate.sentence() and card["label"] == "DP"
    assert card["ledger_entries"] == record.entries and "nobody" not in json.dumps(card)
    assert "nobody" not in (tmp_path / "out" / "report.html").read_text()


# What a person may accept


def leaky(place, tmp_path):
    return retained(place, paid_record(place, tmp_path, events=[Gaussian(noise_multiplier=6.0), LEAK]))


def test_a_claim_is_accepted_with_a_reason_that_ledger_card_report_and_record_hold(place, tmp_path):
    record = leaky(place, tmp_path)
    assert (record.label, record.certificate) == ("INTERNAL", None)
    with pytest.raises(Refused, match="--accept-claim"):
        publish_run(record, tmp_path / "out")
    done = publish_run(record, tmp_path / "out", accept_claim="the board agreed on 3 May")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    for text in (card["statement"], (tmp_path / "out" / "README.md").read_text(), Path(done.report).read_text()):
        assert "No certificate" in text and "the board agreed on 3 May" in text and "76.380" in text
        assert "one step leaks" in text and "differential privacy for one image" not in text
    assert card["certificate"] is None and card["overrides"][0]["reason"] == "the board agreed on 3 May"
    with place.ledger() as ledger:
        entry = ledger.entries()[-1]
        assert (entry.kind, entry.body["reason"]) == ("override", "the board agreed on 3 May")
        assert entry.body["claim"]["epsilon"] == 76.38 and "one step leaks" in entry.body["missing"]
    assert load_record(place.runs, record.run).override("claim").entry == entry.seq


def test_a_claim_in_the_record_that_the_ledger_does_not_know_is_not_believed(place, tmp_path):
    record = leaky(place, tmp_path)
    forged = Override(kind="claim", reason="trust me", missing="", entry=2)
    with pytest.raises(Refused, match="--accept-claim"):
        publish_run(retained(place, record.model_copy(update={"overrides": (forged,)})), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_needs_no_acceptance_gets_none(place, tmp_path):
    record = retained(place, paid_record(place, tmp_path))
    for reason in ({"accept_claim": "why not"}, {"accept_copies": "why not"}):
        with pytest.raises(BadInput, match="leave --accept-c"):
            publish_run(record, tmp_path / "out", **reason)
    with place.ledger() as ledger:
        assert "override" not in [entry.kind for entry in ledger.entries()]


def test_what_taints_is_said_in_words(place):
    store = place.store()
    with place.ledger() as ledger:
        look = ledger.look("scans", "digest-of-scans", "train the judge", **WHO)
        fixed = reserve(ledger, [Gaussian(noise_multiplier=1.0)], insecure=True)
        with store.writing() as draft:
            (draft / "facts.json").write_text("{}")
            model = store.keep(
                TunedModel, draft, entries={look.hash: "INTERNAL", fixed.hash: "INTERNAL", "99": "INTERNAL"}
            )
        reported = certify.missing(store, ledger, keep_samples(store, parents=[model]))
    assert reported == (
        "entry 1: private images were looked at without noise (train the judge); entry 2: its noise was fixed by a test; "
        "entry 99: not in this ledger"
    )


# Copies


def test_copies_do_not_leave_unless_someone_answers_for_them(place, tmp_path):
    record = retained(place, paid_record(place, tmp_path, copied=2))
    with pytest.raises(Refused, match=r"images of run .* repeat training records .* copies\.png .*--accept-copies"):
        publish_run(record, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    publish_run(record, tmp_path / "out", accept_copies="blank pages")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["certificate"] and card["overrides"][0]["kind"] == "copies"
    publish_run(record, tmp_path / "again")  # the ledger remembers who answered


# Audits


def audited(place, record, passed):
    """The verdict of an audit of a run, in the ledger alone."""
    store = place.store()
    with place.ledger() as ledger:
        spends = certify.spends_of(store, ledger, record.samples_artifact)
        reported = {"what": "audit", "artifact": record.samples_artifact, "finding": "f" * 64, "passed": passed}
        ledger.check("scans", **reported, spends=spends, run=record.run, code_version="1")


def test_a_refuting_audit_blocks_publishing_also_of_what_stands_on_the_same_spends(place, tmp_path):
    record = retained(place, paid_record(place, tmp_path))
    with place.ledger() as ledger:
        twin = twin_of(place, ledger, record)
    audited(place, record, passed=False)
    for run in (record, twin):
        with pytest.raises(Refused, match=f"the audit of run {record.run} refutes its promise"):
            publish_run(run, tmp_path / "out")
    audited(place, record, passed=True)
    publish_run(twin, tmp_path / "out")


def twin_of(place, ledger, record):
    """Another run, whose samples were drawn from what the first one paid for."""
    store = place.store()
    (first,) = (Samples(digest=record.samples_artifact, label="DP"),)
    samples = keep_samples(store, plan=make_plan(), parents=[first])
    spends = certify.spends_of(store, ledger, samples)
    ledger.note_made(samples.digest, entries=store.entries(samples), stage="generation", run="twin", code_version="1")
    reported = {"what": "copies", "artifact": samples.digest, "finding": "f" * 64, "passed": True}
    ledger.check("scans", **reported, spends=spends, run="twin", code_version="1")
    changes = {"run": "20260102-120000-rapid-scans-eps10", "samples_artifact": samples.digest}
    return retained(place, record.model_copy(update=changes))


def test_a_refuting_audit_blocks_what_would_leave_on_a_claim(place, tmp_path):
    record = leaky(place, tmp_path)
    audited(place, record, passed=False)
    with pytest.raises(Refused, match="refutes its promise"):
        publish_run(record, tmp_path / "out", accept_claim="the board agreed")
    with place.ledger() as ledger:
        assert "override" not in [entry.kind for entry in ledger.entries()]
    audited(place, record, passed=True)
    publish_run(record, tmp_path / "out", accept_claim="the board agreed")
