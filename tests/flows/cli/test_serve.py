"""The commands that start the servers and show what they do."""

import pytest

from flows.cli import serve

WEEKLY = "deployments: [{name: weekly, entrypoint: flows.deployments.rapid, parameters: {settings: {privacy: {delta: 1e-5}}}}]"


@pytest.mark.parametrize("option", ["--servers", "--no-servers"])
def test_a_deployment_whose_runs_would_fail_is_one_line_before_anything_starts(sfumato, tmp_path, monkeypatch, option):
    (tmp_path / "prefect.yaml").write_text(WEEKLY)
    monkeypatch.setattr(serve, "CHECKOUT", tmp_path)
    assert sfumato("serve", option).is_one_line("'weekly'", "settings.privacy.delta", "'1e-5'", "write 1.0e-5")
