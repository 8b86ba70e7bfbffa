"""`sfumato approve` signs a decision, and publishing goes by it; what is wrong with either is one line."""

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from artifacts.record import RECORD, load_record, save_record
from sfumato.privacy.ledger.signing import Signer, is_signed_value
from tasks import release
from tasks.approval import Ruling, decide
from tasks.runtime.environment import where
from tasks.server import requests
from tests.examples import paid_record

WHO = ("--name", "A. Jones", "--role", "data protection officer")
YES = (*WHO, "--reason", "as agreed")


@pytest.fixture(autouse=True)
def no_tracking(monkeypatch):
    monkeypatch.setattr(release, "show_run", lambda record: None)
    monkeypatch.setattr(release, "register", lambda *_: None)


def written_key(path, private) -> str:
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(path)


@pytest.fixture
def key(tmp_path) -> tuple[str, str]:
    """The approver's key as a file, and its public half."""
    private = Ed25519PrivateKey.generate()
    return written_key(tmp_path / "approver.pem", private), Signer(private).public_key


@pytest.fixture
def run(folder):
    """Make the record of a run whose settings ask for an approval, and return its name."""

    def make(approval: str = "required", approvers: tuple[str, ...] = ()) -> str:
        record = paid_record(where(), folder / "runs" / "one")
        terms = {**record.settings["release"], "approval": approval, "approvers": list(approvers)}
        record = record.model_copy(update={"settings": {**record.settings, "release": terms}})
        (folder / "runs" / record.run).mkdir(parents=True)
        save_record(folder / "runs" / record.run, record)
        return record.run

    return make


def typed(run: str, decision: str = "approved") -> None:
    """A decision as the form in Prefect's UI writes it."""
    decide(load_record(where().runs, run), Ruling(decision, "B. Typed", "officer", "why not", "CC0-1.0"))


def test_what_nobody_approved_is_not_published(sfumato, run, tmp_path):
    name = run()
    out = tmp_path / "out"
    assert sfumato("publish", "--to", out).is_one_line("needs an approval", f"request-release {name}", "approve")
    assert not out.exists()


def test_a_signed_approval_stands_in_ledger_report_and_card(sfumato, run, key, tmp_path):
    path, public = key
    name, out = run("signed", (public,)), tmp_path / "out"
    approved = sfumato("approve", name, "--key", path, *YES)
    assert approved.code == 0 and "signed by key" in approved.out and public in approved.out
    assert sfumato("publish", "--to", out).code == 0
    decision = json.loads((out / "card.json").read_text())["decision"]
    assert (
        decision["run"] == name and decision["digests"]["samples"] == load_record(where().runs, name).samples_artifact
    )
    assert is_signed_value(decision, public) and not is_signed_value({**decision, "licence": "MIT"}, public)
    with where().ledger() as ledger:
        (entry,) = [one for one in ledger.entries() if one.kind == "decision"]
        assert entry.body["signature"] == decision["signature"] and ledger.verify() == []
    for page in ("report.html", "README.md"):
        assert "A. Jones" in (out / page).read_text(), page


def test_a_typed_approval_is_said_not_to_be_verified_and_serves_where_no_signature_is_asked_for(sfumato, run, tmp_path):
    typed(run())
    assert sfumato("publish", "--to", tmp_path / "out").code == 0
    assert "name as typed, not verified" in (tmp_path / "out" / "README.md").read_text()


def test_where_signatures_are_asked_for_a_typed_approval_does_not_serve(sfumato, run, key, tmp_path):
    typed(run("signed", (key[1],)))
    assert sfumato("publish", "--to", tmp_path / "out").is_one_line("release.approval=signed", "typed, not signed")


def test_publishing_can_ask_for_more_than_the_run_and_not_for_less(sfumato, run, key, tmp_path):
    typed(run())
    more = ("--set", "release.approval=signed", "--set", f"release.approvers=[{key[1]}]")
    assert sfumato("publish", "--to", tmp_path / "out", *more).is_one_line("typed, not signed")
    less = ("--set", "release.approval=none")
    typed(load_record(where().runs).run, "refused")
    assert sfumato("publish", "--to", tmp_path / "out", *less).code == 2


def test_a_key_of_somebody_else_does_not_serve(sfumato, run, key, tmp_path):
    run("signed", (key[1],))
    other = written_key(tmp_path / "other.pem", Ed25519PrivateKey.generate())
    assert sfumato("approve", "--key", other, *YES).is_one_line("none of release.approvers")
    with where().ledger() as ledger:
        assert "decision" not in {one.kind for one in ledger.entries()}


def test_a_refusal_is_recorded_and_holds_until_somebody_approves(sfumato, run, key, tmp_path):
    name, out = run("none"), tmp_path / "out"
    refused = sfumato("approve", name, "--key", key[0], *WHO, "--refuse", "faces can be told apart")
    assert refused.code == 0 and "was refused" in refused.out
    assert sfumato("publish", "--to", out).is_one_line("was refused", "A. Jones", "faces can be told apart")
    assert sfumato("approve", name, "--key", key[0], *YES).code == 0
    assert sfumato("publish", "--to", out).code == 0


def test_a_refusal_holds_for_another_edition_of_the_same_paid_model(sfumato, run, key, folder, tmp_path):
    name = run("none")
    other = paid_record(where(), folder / "runs" / "two", images=7).model_copy(update={"run": "edition-2"})
    (folder / "runs" / other.run).mkdir()
    save_record(folder / "runs" / other.run, other)
    first = load_record(where().runs, name)
    assert not {*first.entries} & {*other.entries}
    assert sfumato("approve", name, "--key", key[0], *WHO, "--refuse", "faces").code == 0
    assert sfumato("publish", other.run, "--to", tmp_path / "own").code == 0, "what was paid for by itself"
    with where().ledger() as ledger:
        spends = [entry.hash for entry in ledger.entries() if entry.seq in other.entries]
        check = {"what": "copies", "artifact": first.samples_artifact, "finding": "f" * 64, "passed": True}
        ledger.check("scans", **check, spends=spends, run=name, code_version="1")
    out = tmp_path / "out"
    assert sfumato("publish", other.run, "--to", out).is_one_line(
        f"what run {name} paid for", "A. Jones", "edition-2 --key FILE"
    )
    assert sfumato("approve", other.run, "--key", key[0], *YES).code == 0
    assert sfumato("publish", other.run, "--to", out).code == 0


def test_an_approval_of_what_changed_since_does_not_serve(sfumato, run, key, folder, tmp_path):
    name = run()
    assert sfumato("approve", name, "--key", key[0], *YES).code == 0
    record = load_record(where().runs, name)
    other = paid_record(where(), folder / "runs" / "two", images=7)
    save_record(folder / "runs" / name, record.model_copy(update={"samples_artifact": other.samples_artifact}))
    assert sfumato("publish", "--to", tmp_path / "out").is_one_line("is not what would leave", "changed since")


def test_the_licence_is_the_one_that_was_approved(sfumato, run, key, tmp_path):
    run()
    assert sfumato("approve", "--key", key[0], *YES, "--licence", "MIT").code == 0
    assert sfumato("publish", "--to", tmp_path / "no", "--licence", "CC0-1.0").is_one_line("approved under MIT")
    assert sfumato("publish", "--to", tmp_path / "out").code == 0
    assert json.loads((tmp_path / "out" / "card.json").read_text())["licence"] == "MIT"


def test_what_is_missing_or_wrong_in_a_decision_is_one_line(sfumato, run, key, tmp_path):
    assert sfumato("approve", "--key", key[0], *YES).is_one_line("there is no run yet")
    run()
    assert sfumato("approve", "none-such", "--key", key[0], *YES).is_one_line("'none-such' is not in")
    assert sfumato("approve", *YES).is_one_line("--key FILE", "openssl genpkey")
    assert sfumato("approve", "--key", tmp_path / "none.pem", *YES).is_one_line("none.pem", "cannot be read")
    rsa_key = written_key(tmp_path / "rsa.pem", rsa.generate_private_key(65537, 2048))
    assert sfumato("approve", "--key", rsa_key, *YES).is_one_line("no Ed25519 key")
    assert sfumato("approve", "--key", key[0], *WHO).is_one_line("--reason is missing")
    assert sfumato("approve", "--key", key[0], *YES, "--refuse", "no").is_one_line("--reason approves")
    assert sfumato("approve", "--key", key[0], *YES, "--licence", "free").is_one_line("release.licence", "SPDX")


def test_a_run_that_has_nothing_to_release_is_not_asked_about(sfumato, folder, key):
    record = paid_record(where(), folder / "runs" / "one", copied=3)
    (folder / "runs" / record.run).mkdir(parents=True)
    save_record(folder / "runs" / record.run, record)
    assert sfumato("approve", "--key", key[0], *YES).is_one_line("repeat training records", code=3)
    assert sfumato("approve", "--key", key[0], *YES, "--accept-copies", "by chance").code == 0


def test_a_form_needs_a_server_that_shows_it(sfumato, run, monkeypatch):
    monkeypatch.setattr(requests, "answers", lambda api: False)  # that of another test may still run
    assert sfumato("request-release", run()).is_one_line("no Prefect server", "sfumato serve", "sfumato approve")


def test_settings_without_an_approver_or_with_no_key_are_refused(sfumato):
    signed = ("--set", "release.approval=signed")
    assert sfumato("plan", "rapid", *signed).is_one_line("release.approvers=[KEY]")
    assert sfumato("plan", "rapid", *signed, "release.approvers=[me]").is_one_line("release.approvers", "openssl pkey")


def test_the_key_as_openssl_prints_it_is_the_same_key(sfumato, run, key, tmp_path):
    public = Ed25519PrivateKey.generate()
    path = written_key(tmp_path / "own.pem", public)
    text = public.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode().splitlines()[1]
    assert len(base64.b64decode(text)) == 44
    run("signed", (text,))
    assert sfumato("approve", "--key", path, *YES).code == 0


def test_a_run_that_needs_an_approval_does_not_publish_by_itself(sfumato):
    requested = ("--set", "release.approval=required")
    assert sfumato("run", "rapid", *requested, "--dry-run", "--publish").is_one_line(
        "release.approval=required", "request-release"
    )


def test_records_of_earlier_versions_hold_no_decision(folder, run):
    path = folder / "runs" / run() / RECORD
    old = json.loads(path.read_text())
    del old["decisions"]
    path.write_text(json.dumps(old))
    assert load_record(where().runs).decisions == ()


def test_more_images_wait_for_the_same_approval(sfumato, run, tmp_path):
    name = run()
    refused = sfumato("generate", name, "--images", 4, "--to", tmp_path / "more")
    assert refused.is_one_line("needs an approval", "request-release")
