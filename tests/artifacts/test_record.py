"""A record comes back as it was written, and a run is found by its name or as the latest."""

import json
import math

import pytest
from pydantic import ValidationError

from artifacts.record import RunRecord, load_record, record_json, run_folder, save_record
from sfumato.errors import BadInput
from tests.examples import make_record


def save(runs, name, **changes):
    (runs / name).mkdir(parents=True)
    record = make_record(runs / name, run=name, **changes)
    save_record(runs / name, record)
    return record


def refused(*words: str):
    """Expects a BadInput in one line that holds all words."""
    return pytest.raises(BadInput, match="^" + "".join(f"(?=.*{word})" for word in words) + r"[^\n]*$")


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record = save(tmp_path, "20260101-1", certificate=None)
    assert load_record(tmp_path, "20260101-1") == record
    assert run_folder(record) == tmp_path / "20260101-1"


def test_a_record_with_votes_steps_and_certificate_comes_back(tmp_path):
    record = save(tmp_path, "20260101-1")
    result = load_record(tmp_path)
    assert result == record and [spend.event.kind for spend in result.plan.spends] == [
        "gaussian",
        "subsampled_gaussian",
    ]


def test_a_record_of_an_earlier_version_is_read_with_the_terms_of_its_certificate(tmp_path):
    record = save(tmp_path, "20260101-1")
    path = tmp_path / "20260101-1" / "run.json"
    old = json.loads(path.read_text())
    del old["plan"]["privacy"]
    path.write_text(json.dumps(old))
    privacy, certificate = load_record(tmp_path).plan.privacy, record.plan.certificate
    assert (privacy.epsilon, privacy.delta) == (certificate.epsilon, certificate.delta)
    assert privacy.relation == certificate.relation


def test_time_is_that_of_this_run_not_of_what_was_cached(tmp_path):
    assert make_record(tmp_path).seconds == 33.75


def test_the_memory_of_every_stage_is_internal(tmp_path):
    """A process holds what INTERNAL stages left there, whatever it makes next."""
    one, other = make_record(tmp_path).stages
    record = make_record(tmp_path, stages=[one.model_copy(update={"memory": 2.75, "gpu_memory": 1.5}), other])
    shown = record_json(record)
    internal = shown.pop("INTERNAL")
    assert "memory" not in json.dumps(shown["stages"])
    assert internal["memory"] == [
        {"name": "pretrain", "memory": 2.75, "gpu_memory": 1.5},
        {"name": "fine-tune", "memory": 0.0, "gpu_memory": 0.0},
    ]
    assert record.memory == (2.75, 1.5) and make_record(tmp_path, stages=[]).memory == (0.0, 0.0)


def test_a_total_without_bound_can_be_written_and_read(tmp_path):
    total = {"epsilon": math.inf, "delta": 1e-5, "relation": "add_remove", "spends": 1, "left": None}
    save(tmp_path, "20260101-1", spent_total=total)
    text = (tmp_path / "20260101-1" / "run.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert load_record(tmp_path).spent_total["epsilon"] is None


def test_the_latest_run_is_the_last_by_name_and_an_unfinished_one_is_none(tmp_path):
    for name in ("20260102-080000-rapid", "20260101-235959-rapid", "20260102-075959-rapid"):
        save(tmp_path, name)
    (tmp_path / "20260103-000000-rapid").mkdir()
    assert load_record(tmp_path).run == load_record(tmp_path, "latest").run == "20260102-080000-rapid"
    assert load_record(tmp_path, "20260101-235959-rapid").run == "20260101-235959-rapid"


def test_without_a_run_the_way_to_one_is_named(tmp_path):
    with refused("no run yet", str(tmp_path), "sfumato run"):
        load_record(tmp_path / "runs")


@pytest.mark.parametrize("name", ["20260101", "../20260101-1", "", "Latest"])
def test_an_unknown_run_is_named_with_those_there_are(tmp_path, name):
    save(tmp_path, "20260101-1")
    with refused(repr(name), "20260101-1", "latest"):
        load_record(tmp_path, name)


@pytest.mark.parametrize(
    "harm",
    [lambda text: text[: len(text) // 2], lambda text: "{}", lambda text: "[]", lambda text: text.replace('"DP"', "7")],
    ids=["cut", "empty", "list", "wrong"],
)
def test_a_garbled_record_is_one_line(tmp_path, harm):
    save(tmp_path, "20260101-1")
    path = tmp_path / "20260101-1" / "run.json"
    path.write_text(harm(path.read_text()))
    with refused("20260101-1", "cannot be read", "run again"):
        load_record(tmp_path)


def test_a_record_that_is_not_text_is_one_line(tmp_path):
    save(tmp_path, "20260101-1")
    (tmp_path / "20260101-1" / "run.json").write_bytes(b"\xff\xfe\x00")
    with refused("20260101-1", "cannot be read"):
        load_record(tmp_path)


def test_a_record_is_frozen(tmp_path):
    record = make_record(tmp_path)
    with pytest.raises(ValidationError):
        record.label = "PUBLIC"
    assert set(RunRecord.model_fields) == set(record.model_dump())


def test_a_copied_home_reads_its_own_files(tmp_path):
    """Nothing in the file says where the home lies; a record of before, which did, is read where it lies now."""
    save(tmp_path / "old" / "runs", "20260101-1", published=str(tmp_path / "old" / "runs" / "20260101-1" / "published"))
    assert str(tmp_path) not in (tmp_path / "old" / "runs" / "20260101-1" / "run.json").read_text()
    (tmp_path / "old").rename(tmp_path / "new")
    result = load_record(tmp_path / "new" / "runs")
    assert run_folder(result) == tmp_path / "new" / "runs" / "20260101-1"
    assert result.published == str(run_folder(result) / "published")
    path = run_folder(result) / "run.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "report": "/gone/runs/20260101-1/report.html", "published": "s3://bucket/a"}))
    result = load_record(tmp_path / "new" / "runs")
    assert run_folder(result) == path.parent and result.published == "s3://bucket/a"
