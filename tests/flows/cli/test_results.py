"""`sfumato publish` asks for what a data set needs that leaves, and refuses in one line what is missing."""

import io
import json
import shutil
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from artifacts import model
from artifacts.record import RunRecord, save_record
from artifacts.references import PublicModel, Trajectories
from flows.cli.results import INTERNAL_HEADING, summary
from tasks import release
from tasks.runtime.environment import where
from tests.certificates import chain
from tests.examples import keep_made_up, make_record, paid_record, write_classes


@pytest.fixture
def publish(sfumato, folder, tmp_path):
    """`sfumato publish` of a run whose settings name no licence."""
    record: RunRecord = paid_record(where(), folder / "runs" / "one")
    bare = record.model_copy(update={"settings": {**record.settings, "release": {"licence": ""}}})
    (folder / "runs" / record.run).mkdir(parents=True)
    save_record(folder / "runs" / record.run, bare)
    return lambda *options: sfumato("publish", "--to", tmp_path / "out", *options)


def test_terms_that_are_missing_or_unknown_are_one_line_and_nothing_is_published(publish, tmp_path):
    assert publish().is_one_line("no licence", "--licence", "CC-BY-4.0")
    assert publish("--licence", "free").is_one_line("release.licence", '"free"', "SPDX")
    assert publish("--licence", "MIT", "--form", "zip").is_one_line("release.form", '"zip"', "webdataset")
    assert publish("--licence", "MIT", "--sign-cert", "chain.pem").is_one_line("belong together", "--sign-key")
    assert not (tmp_path / "out").exists()


def test_licence_and_form_are_those_that_are_given(publish, tmp_path):
    assert publish("--licence", "cc-by-4.0", "--form", "parquet").code == 0
    assert "license: cc-by-4.0" in (tmp_path / "out" / "README.md").read_text()
    assert (tmp_path / "out" / "data" / "train-00000-of-00001.parquet").is_file()
    assert len(json.loads((tmp_path / "out" / "card.json").read_text())["date"]) == len("2026-01-31")


def test_images_are_signed_by_the_files_that_the_environment_names(publish, tmp_path, monkeypatch):
    c2pa = pytest.importorskip("c2pa")
    certificates, key = chain(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    monkeypatch.setenv("SFUMATO_SIGN_CERT", str(certificates))
    monkeypatch.setenv("SFUMATO_SIGN_KEY", str(tmp_path / "none.pem"))
    assert publish("--licence", "MIT").is_one_line("--sign-key", "none.pem", "cannot be read")
    monkeypatch.setenv("SFUMATO_SIGN_KEY", str(key))
    assert publish("--licence", "MIT").code == 0
    for path in (tmp_path / "out" / "data").rglob("*.png"):
        assert c2pa.Reader("image/png", io.BytesIO(path.read_bytes())).get_validation_state() == "Valid"


def test_who_publishes_and_why_stand_in_datasheet_registry_and_croissant(publish, tmp_path):
    reported = {"curator": "Ward 7", "purpose": "to teach residents", "contact": "ward7@example.org"}
    assert publish("--licence", "MIT", "--set", "data.private=x").is_one_line("'data'", "release.FIELD=VALUE")
    assert (
        publish(
            "--licence", "MIT", *(part for name in reported for part in ("--set", f"release.{name}={reported[name]}"))
        ).code
        == 0
    )
    text = {name: (tmp_path / "out" / name).read_text() for name in ("DATASHEET.md", "registry.yaml", "croissant.json")}
    assert all(value in text["DATASHEET.md"] for value in reported.values())
    assert all(value in text["registry.yaml"] for value in ("Ward 7", "to teach residents"))
    assert json.loads(text["croissant.json"])["creator"]["name"] == "Ward 7"


@pytest.mark.parametrize(("agreed", "shown"), [(0.6, True), (0.9, False)])
def test_a_run_says_above_what_is_internal_that_its_classes_are_hard_to_see(tmp_path, capsys, agreed, shown):
    summary(make_record(tmp_path, judged={"drawn": 200.0, "agreed": agreed}))
    above = capsys.readouterr().out.partition(INTERNAL_HEADING)[0]
    assert ("paid judge finds the own one of 60% of what was drawn" in above) == shown
    assert ("docs/questions.md#why-are-my-images-noise" in above) == shown


def test_a_person_at_a_terminal_is_asked_for_the_licence(publish, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("CC0-1.0\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert publish().code == 0
    assert json.loads((tmp_path / "out" / "card.json").read_text())["licence"] == "CC0-1.0"


@pytest.fixture
def publish_model(sfumato, folder, tmp_path, monkeypatch):
    """`sfumato publish` of a run whose model holds public images, for which its settings name no licence; the model's fields of the card."""
    monkeypatch.setattr(model, "write_for_diffusers", lambda *_: "none: its parts are made up")
    monkeypatch.setattr(release, "register", lambda *_: None)
    parts = keep_made_up(where().store(), PublicModel, Trajectories)
    record = paid_record(where(), folder / "runs" / "one", parents=parts)
    (folder / "runs" / record.run).mkdir(parents=True)
    save_record(folder / "runs" / record.run, record)

    def command(*options):
        outcome = sfumato("publish", "--to", tmp_path / "out", *options)
        assert outcome.code == 0, outcome.err
        return outcome, json.loads((tmp_path / "out" / "card.json").read_text())["model"]

    return command


def test_public_images_of_a_model_leave_under_a_licence_that_is_named(publish_model):
    outcome, card = publish_model("--public-licence", "CC-BY-4.0")
    assert outcome.code == 0 and "warning" not in outcome.err
    assert card["public_images"] == {"parts": ["base"], "licence": "CC-BY-4.0"} and set(card["parts"]) == {
        "base",
        "public",
    }


@pytest.mark.parametrize(("answer", "leaves"), [("MIT\n", True), ("\n", False), (None, False)])
def test_who_names_none_is_asked_or_told_that_the_model_cannot_draw(publish_model, monkeypatch, answer, leaves):
    monkeypatch.setattr("sys.stdin", io.StringIO(answer or ""))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: answer is not None, raising=False)
    outcome, card = publish_model()
    assert outcome.code == 0 and ("base" in card["parts"]) == leaves and ("without" in card) != leaves
    assert ("model left without its base" in outcome.err and "--public-licence" in outcome.err) != leaves


def test_a_run_that_would_publish_without_a_licence_does_not_begin(sfumato, tmp_path):
    scans = write_classes(tmp_path / "scans", {"a": 80, "b": 80})
    changes = [
        f"data.private={scans}",
        "data.public=glyphs",
        "recipe.kind=none",
        "evaluation.features=cnn",
        "network.kind=mlp",
    ]
    how = [part for change in changes for part in ("--set", change)]
    assert sfumato("run", "dp-sgd", *how, "--dry-run", "--publish").is_one_line("no licence", "release.licence=")
    publish = ("--dry-run", "--publish", "--licence")
    assert sfumato("run", "dp-sgd", *how, *publish, "free").is_one_line("release.licence", "SPDX")
    assert sfumato("run", "dp-sgd", *how, *publish, "CC-BY-4.0", "--public-licence", "MIT").code == 0


def test_a_card_is_checked_by_its_folder_or_its_file(sfumato, released):
    for given in (released, released / "card.json"):
        shown = sfumato("verify-card", str(given))
        assert shown.code == 0 and [line.split(":")[0] for line in shown.out.splitlines()] == ["holds"] * 3


def test_a_card_that_does_not_hold_or_is_not_there_has_its_own_code(sfumato, released, tmp_path):
    copy = tmp_path / "out"
    shutil.copytree(released, copy)
    (copy / "labels.csv").write_text("edited")
    shown = sfumato("verify-card", str(copy))
    assert shown.code == 1 and "FAILS: file labels.csv was changed" in shown.out
    missing = sfumato("verify-card", str(tmp_path / "nosuch"))
    assert missing.code == 2 and "nosuch" in missing.err
