"""The end of a run: what is told to which experiment, and that no score or digest is among what may be shown."""

import json

import pytest

from artifacts import model
from artifacts.packaging import Packaging
from artifacts.record import load_record
from artifacts.references import PublicModel, Samples, Trajectories
from artifacts.tracking import Tracker
from sfumato import verify_card
from sfumato.config import Release
from sfumato.errors import BadInput, Refused
from sfumato.privacy.accounting.events import Uncertified
from sfumato.settings import resolve
from tasks import release
from tasks.record import BASELINE_METHOD, baseline_settings
from tasks.release import publish_run
from tasks.reporting import finish
from tasks.runtime.environment import configure
from tests.examples import SCORE_KEYS, SCORES, home_at, keep_made_up, paid_record


@pytest.fixture
def place(tmp_path):
    with home_at(tmp_path / "home"):
        place = configure()
        with place.ledger() as ledger:
            ledger.look("scans", "digest-of-scans", "judge", stage="evaluation", run="run-1", code_version="1")
            ledger.look("others", "digest-of-others", "judge", stage="evaluation", run="run-1", code_version="1")
        yield place


@pytest.fixture
def reported(monkeypatch) -> list[dict]:
    """What MLflow would have been told."""
    calls = []
    monkeypatch.setattr(Tracker, "log", lambda self, name, **facts: calls.append({"name": name, **facts}) or "told-1")
    return calls


def end(place, **changes):
    folder = place.runs / "20260101-120000-rapid-scans-eps10"
    folder.mkdir()
    record = paid_record(place, folder, **changes)
    samples = Samples(digest=record.samples_artifact, label=record.label)
    return finish(record, samples, {"denoiser": [1.0, 0.5]})


def test_the_folder_of_a_run_holds_both_reports_the_record_and_the_pictures(place, reported):
    record = end(place)
    folder = place.runs / record.run
    assert {path.name for path in folder.iterdir()} == {
        "samples.png",
        "training-curves.png",
        "report.html",
        "report-internal.html",
        "tables",
        "tables-internal",
        "trade-off-internal.png",
        "run.json",
        "ledger.json",
        "ledger-head.json",
        "ledger.md",
        "spending.png",
    }
    assert load_record(place.runs) == record


def test_what_may_be_shown_holds_no_score_and_no_internal_file(place, reported):
    record = end(place)
    shown, hidden = reported
    assert (shown["label"], shown["run"]) == ("DP", "aaa") and (hidden["label"], hidden["run"]) == ("INTERNAL", "bbb")
    assert shown["metrics"] == {"epsilon": record.certificate.epsilon, "delta": pytest.approx(3.4e-4), "claim": 76.38}
    assert [path.name for path in shown["files"]] == [
        *("report.html", "samples.png", "training-curves.png", "privacy-curve.png", "tables"),
    ]
    judged = ("synthetic", "public model alone")
    assert set(hidden["metrics"]) == {f"{name}/{key}" for name in judged for key in SCORE_KEYS}
    assert {"report-internal.html", "tables-internal", "trade-off-internal.png", "ledger.json"} <= {
        path.name for path in hidden["files"]
    }


def test_what_both_are_told_names_data_by_digest_and_the_private_set_by_name_alone(place, reported):
    record = end(place)
    for call in reported:
        assert call["inputs"] == [("scans", "")] and call["tags"]["ledger_entries"] == ",".join(
            map(str, record.entries)
        )
        assert call["tags"]["mlflow.note.content"].split("\n\n")[0] == record.certificate.sentence()
    assert [call["tags"]["label"] for call in reported] == ["DP", "INTERNAL"] and "digest-of-scans" not in str(reported)


def test_the_description_of_a_run_shows_its_images_where_they_may_be_seen_alone(place, reported):
    end(place)
    shown, hidden = (call["tags"]["mlflow.note.content"] for call in reported)
    assert shown.endswith("](get-artifact?path=samples.png&run_uuid=aaa)") and "get-artifact" not in hidden
    assert "samples.png" in [path.name for path in reported[0]["files"]]


def test_a_score_without_a_number_is_not_told(place, reported):
    end(place, metrics={"synthetic": {**SCORES, "frechet": None, "kid": 0.5, "feature_extractor": "a"}})
    assert set(reported[1]["metrics"]) == {f"synthetic/{key}" for key in {*SCORE_KEYS, "kid"} - {"frechet"}}


def test_of_an_internal_run_nothing_is_shown(place, reported):
    end(place, events=[Uncertified(reason="one step leaks")])
    assert [call["label"] for call in reported] == ["INTERNAL"]


def test_the_ledger_beside_the_record_is_of_this_set_alone_and_holds_no_digest(place, reported):
    record = end(place)
    text = (place.runs / record.run / "ledger.json").read_text()
    assert {entry["dataset"] for entry in json.loads(text)["entries"]} == {"scans"} and "digest" not in text


def test_a_run_stays_finished_and_published_though_mlflow_is_gone(place, monkeypatch, tmp_path, capsys):
    def gone(self, name, **facts):
        raise BadInput("no answer")

    monkeypatch.setattr(Tracker, "log", gone)
    record = publish_run(end(place), tmp_path / "out")
    assert (tmp_path / "out" / "card.json").exists() and load_record(place.runs) == record
    assert capsys.readouterr().err.count("but not written to MLflow") == 2


def test_publishing_is_noted_in_the_record(place, reported, tmp_path):
    record = publish_run(end(place), tmp_path / "out")
    assert record.published == str(tmp_path / "out") and load_record(place.runs).published == record.published


@pytest.mark.parametrize("error", [Refused("an audit refutes"), BadInput("the ledger knows no copy check")])
def test_whatever_the_gate_says_once_images_left_takes_the_model_back(place, reported, tmp_path, monkeypatch, error):
    run, withdrawn, write = end(place), [], release.publish

    def published(*given):
        folder = write(*given)
        monkeypatch.setattr(release.gate, "passed", lambda *_: (_ for _ in ()).throw(error))
        return folder

    monkeypatch.setattr(release, "publish", published)
    monkeypatch.setattr(Tracker, "withdraw", lambda _, name, run: withdrawn.append(name))
    with pytest.raises(Refused, match=f"{error}.* while the images left: take them back from .*/out"):
        publish_run(run, str(tmp_path / "out"))
    assert withdrawn == [release.model_name(run)]


def test_what_is_published_is_noted_before_its_reports_are_written(place, reported, tmp_path, monkeypatch):
    """Else a schedule would publish the same images once more."""
    record = end(place)

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr(release, "write_up", full)
    with pytest.raises(OSError, match="no space"):
        publish_run(record, tmp_path / "out")
    assert load_record(place.runs).published == str(tmp_path / "out")


@pytest.mark.parametrize("licence", ["", "MIT"])
def test_a_model_that_cannot_draw_is_no_version_in_the_registry(place, reported, tmp_path, monkeypatch, licence):
    versions = []
    monkeypatch.setattr(Tracker, "release", lambda self, name, *_, **__: versions.append(name))
    monkeypatch.setattr(model, "write_for_diffusers", lambda *_: "none: its parts are made up")
    record = end(place, parents=keep_made_up(place.store(), PublicModel, Trajectories))
    publish_run(record, tmp_path / "out", packaging=Packaging(Release(licence="MIT", public_licence=licence)))
    assert versions == ["scans-rapid"] * bool(licence)


def test_a_published_folder_is_checked_from_outside(place, tmp_path, capsys):
    """The events of the ledger, not those of the record, by a script that knows neither; with the key of the ledger."""
    publish_run(end(place), tmp_path / "out")
    with place.ledger() as ledger:
        head = ledger.signed_head()
        events = ledger.spends("scans")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert len(card["mechanisms"]) == len(events) and card["head"]["ledger"] == head["ledger"]
    assert verify_card.main([str(tmp_path / "out" / "card.json"), "--key", head["public_key"]]) == 0
    assert verify_card.main([str(tmp_path / "out"), "--key", head["public_key"]]) == 0, "the folder does"
    assert capsys.readouterr().out.count("holds: ") == 6
    (tmp_path / "out" / "samples.png").write_bytes(b"another")
    assert verify_card.main([str(tmp_path / "out" / "card.json"), "--key", head["public_key"]]) == 1


def test_the_baseline_differs_in_the_method_alone_and_has_none_itself():
    settings = resolve("rapid")
    other = baseline_settings(settings)
    assert other.method.name == BASELINE_METHOD
    assert other.model_copy(update={"method": settings.method}) == settings
    assert baseline_settings(resolve(BASELINE_METHOD)) is None
    assert baseline_settings(resolve("rapid", changes=["evaluation.baseline=false"])) is None
