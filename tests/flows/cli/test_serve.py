"""The commands that start the servers and show what they do."""

import json

import pytest

from flows.cli import serve
from tasks.server import status
from tasks.server.status import LastRun, StatusLine

WEEKLY = "deployments: [{name: weekly, entrypoint: flows.deployments.rapid, parameters: {settings: {privacy: {delta: 1e-5}}}}]"


@pytest.mark.parametrize("option", ["--servers", "--no-servers"])
def test_a_deployment_whose_runs_would_fail_is_one_line_before_anything_starts(sfumato, tmp_path, monkeypatch, option):
    (tmp_path / "prefect.yaml").write_text(WEEKLY)
    monkeypatch.setattr(serve, "CHECKOUT", tmp_path)
    assert sfumato("serve", option).is_one_line("'weekly'", "settings.privacy.delta", "'1e-5'", "write 1.0e-5")


ENDED = [
    LastRun("prepare"),
    LastRun("rapid", "Completed", "2026-11-23T06:20:00+00:00", "All states completed."),
    LastRun("weekly", "Refused", "2026-11-23T06:10:00+00:00", "epsilon 0 of 20 left", failed=True),
]


@pytest.fixture
def server(monkeypatch):
    """A server that answers, with deployments that ended so."""
    monkeypatch.setattr(serve, "running_server", lambda place: "http://127.0.0.1:4200/api")
    monkeypatch.setattr(status, "last_runs", lambda api: ENDED)
    monkeypatch.setattr(
        status, "lines", lambda *_: iter([StatusLine("waits", "dppm", "Late"), StatusLine("next", "x", "")])
    )
    return ENDED


def test_the_screen_begins_with_how_each_deployment_ended(sfumato, server):
    shown = sfumato("status")
    assert shown.code == 0 and [line.split() for line in shown.out.splitlines()[:4]] == [
        ["server", "http://127.0.0.1:4200/api"],
        ["ended", "rapid", "2026-11-23", "06:20", "Completed:", "All", "states", "completed."],
        ["ended", "weekly", "2026-11-23", "06:10", "Refused:", "epsilon", "0", "of", "20", "left"],
        ["waits", "dppm", "Late"],
    ]


def test_the_same_as_one_object(sfumato, server, spent):
    shown = json.loads(sfumato("status", "--json").out)
    assert list(shown) == ["server", "deployments", "queued", "budgets"]
    assert shown["server"] == "http://127.0.0.1:4200/api" and shown["queued"] == [{"name": "dppm", "about": "Late"}]
    assert [LastRun(**one) for one in shown["deployments"]] == ENDED
    assert list(shown["budgets"]) == ["scans", "leaky"] and shown["budgets"]["scans"]["budget"]["epsilon"] == 50
    assert shown["budgets"]["leaky"]["epsilon"] is None


def test_monitoring_hears_of_a_server_that_is_down_and_of_a_last_run_that_failed(sfumato, server, monkeypatch):
    assert (sfumato("status", "--check").code, sfumato("status", "--check", "--json").code) == (1, 1)
    monkeypatch.setattr(status, "last_runs", lambda api: ENDED[:2])
    assert sfumato("status", "--check").code == 0
    monkeypatch.setattr(serve, "running_server", lambda place: "")
    assert sfumato("status").code == 0 and sfumato("status", "--check").code == 1
    down = sfumato("status", "--check", "--json")
    assert down.code == 1 and json.loads(down.out) == {
        "server": None,
        "deployments": [],
        "queued": [{"name": "dppm", "about": "Late"}],
        "budgets": {},
    }
