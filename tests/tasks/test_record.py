"""The end of a run."""

from tasks import record as record_module
from tasks.runtime.environment import configure
from tests.examples import home_at, make_record


def test_a_run_is_linked_to_its_pages_where_these_are_shown(tmp_path, monkeypatch):
    record = make_record(tmp_path).model_copy(
        update={"tracking": {"PUBLIC": "shown", "DP": "shown", "INTERNAL": "hidden"}}
    )
    with home_at(tmp_path / "home"):
        configure()
        assert record_module.pages_of(record) == {}, "nobody shows them"
        monkeypatch.setattr(record_module, "mlflow_pages", lambda place: "http://127.0.0.1:4201")
        monkeypatch.setattr(record_module, "page_of", lambda pages, run: f"{pages}/{run}")
        result = record_module.pages_of(record)
        assert list(result.values()) == ["http://127.0.0.1:4201/shown", "http://127.0.0.1:4201/hidden"]
        assert ["INTERNAL" in title for title in result] == [False, True]
        monkeypatch.setattr(record_module, "page_of", lambda pages, run: "")
        assert record_module.pages_of(record) == {}
