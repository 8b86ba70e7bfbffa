"""Where things are kept: the environment decides, and a place that cannot be used is one line."""

import errno
import os
import re
from datetime import datetime
from pathlib import Path

import pytest

from sfumato.errors import BadInput
from sfumato.privacy.ledger.signing import Keys
from tasks.runtime import environment as places
from tasks.runtime.environment import CHECKOUT, SERVER_FILE, configure, home_below, mlflow_pages, now, where
from tests.examples import home_at


@pytest.fixture
def folder(tmp_path):
    with home_at(tmp_path / "deep" / "home") as path:
        yield path


def refused(*words: str):
    """Expects a BadInput in one line that holds all words."""
    return pytest.raises(BadInput, match="^" + "".join(f"(?=.*{re.escape(word)})" for word in words) + r"[^\n]*$")


def test_everything_lies_below_the_home(folder):
    place = where()
    assert place.home == folder and place.runs == folder / "runs"
    assert place.ledger_url == f"sqlite:///{folder / 'ledger.db'}"
    assert place.tracking_uri == f"sqlite:///{folder / 'mlflow.db'}"
    assert place.store().root == folder / "store"
    assert (place.tracker().uri, place.tracker().files) == (place.tracking_uri, folder / "mlflow")


def test_ledger_and_tracking_can_lie_elsewhere(folder, monkeypatch):
    monkeypatch.setenv("SFUMATO_LEDGER", "postgresql+psycopg://host/ledger")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    place = where()
    assert (place.ledger_url, place.tracking_uri) == ("postgresql+psycopg://host/ledger", "http://tracking:5000")
    assert place.home == folder


def test_data_sets_by_name_lie_where_the_environment_says(folder, monkeypatch):
    monkeypatch.delenv("SFUMATO_DATA", raising=False)
    assert where().data == folder / "data"
    monkeypatch.setenv("SFUMATO_DATA", "relative")
    assert where().data == Path("relative").absolute()


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_home_the_checkout_has_one(folder, monkeypatch, value):
    monkeypatch.delenv("SFUMATO_HOME") if value is None else monkeypatch.setenv("SFUMATO_HOME", value)
    assert where().home == CHECKOUT / "sfumato-home" and (CHECKOUT / "pyproject.toml").is_file()


def test_a_relative_home_and_one_with_a_tilde_become_absolute(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SFUMATO_HOME", "here")
    assert where().home == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SFUMATO_HOME", "~/there")
    assert where().home == tmp_path / "there"


def test_keys_lie_outside_the_home_or_are_given(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("SFUMATO_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("SFUMATO_LEDGER_KEY", "~/team.pem")
    assert where().keys == Keys(tmp_path / "keys", "~/team.pem") and "team" not in repr(where())
    monkeypatch.delenv("SFUMATO_LEDGER_KEY")
    monkeypatch.delenv("SFUMATO_KEYS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert where().keys == Keys(tmp_path / "settings" / "sfumato" / "keys")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert where().keys.folder == tmp_path / "me" / ".config" / "sfumato" / "keys"
    for wrong in (folder, folder / "keys"):
        monkeypatch.setenv("SFUMATO_KEYS", str(wrong))
        with refused("SFUMATO_KEYS", str(wrong), "outside"):
            where()
    monkeypatch.setenv("SFUMATO_KEYS", "~nobody-of-that-name/keys")
    with refused("SFUMATO_KEYS", "~nobody-of-that-name/keys"):
        where()


def test_configuring_makes_the_folders_and_points_prefect_there(folder, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("PREFECT", "MLFLOW", "DO_NOT"))]:
        monkeypatch.delenv(name)
    configure()
    assert {path.name for path in folder.iterdir()} == {"runs", "prefect", "results", "mlflow"}
    assert os.environ["PREFECT_HOME"] == str(folder / "prefect")
    assert os.environ["PREFECT_LOCAL_STORAGE_PATH"] == str(folder / "results")
    assert os.environ["DO_NOT_TRACK"] == os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == os.environ["PREFECT_SERVER_UI_V2_ENABLED"] == "false"
    assert int(os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"]) >= 60
    assert configure() == where()


def test_threads_that_wait_leave_the_core_to_others_unless_the_environment_says_how(folder, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    configure()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    configure()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


def test_what_the_environment_says_of_prefect_stays(folder, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", "/mine")
    configure()
    assert os.environ["PREFECT_HOME"] == "/mine"


@pytest.mark.parametrize("below", ["", "home", "deep/home"])
def test_a_home_that_is_a_file_is_refused(folder, monkeypatch, tmp_path, below):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "file" / below))
    with refused("cannot write", str(tmp_path / "file"), "SFUMATO_HOME"):
        configure()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOENT])
def test_a_home_that_cannot_be_made_is_refused_with_the_reason(folder, monkeypatch, code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", fail)
    with refused(str(folder), os.strerror(code), "SFUMATO_HOME"):
        configure()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc, where no folder can be made")
def test_a_home_where_no_folder_can_be_is_refused(folder, monkeypatch):
    monkeypatch.setenv("SFUMATO_HOME", "/proc/sfumato")
    with refused("/proc/sfumato", "SFUMATO_HOME"):
        configure()


def test_a_home_without_write_permission_is_refused(folder, monkeypatch):
    configure()
    monkeypatch.setattr(places.os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) == folder))
    with refused(str(folder), "permission denied", "SFUMATO_HOME"):
        configure()


def test_the_home_of_nobody_is_refused(folder, monkeypatch):
    monkeypatch.setenv("SFUMATO_HOME", "~nobody-of-that-name/home")
    with refused("~nobody-of-that-name/home", "SFUMATO_HOME"):
        where()


def test_the_pages_of_mlflow_are_those_of_its_server_or_those_that_are_served(folder, monkeypatch):
    configure()
    assert mlflow_pages(where()) == ""
    for note in ('{"api": "http://127.0.0.1:1/api"}', "{"):
        (folder / SERVER_FILE).write_text(note)
        assert mlflow_pages(where()) == ""
    (folder / SERVER_FILE).write_text('{"api": "http://127.0.0.1:1/api", "mlflow": "http://127.0.0.1:2"}')
    assert mlflow_pages(where()) == "http://127.0.0.1:2"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://tracking:5000")
    assert mlflow_pages(where()) == "https://tracking:5000"


def test_the_time_is_utc():
    reported = datetime.fromisoformat(now())
    assert reported.utcoffset() is not None and not reported.utcoffset() and reported.microsecond == 0


def test_a_switch_that_makes_the_gpu_round_is_refused(folder, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert where().home == folder
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    for ask in (where, configure):
        with refused("NVIDIA_TF32_OVERRIDE=1", "unset NVIDIA_TF32_OVERRIDE"):
            ask()


def test_a_home_below_takes_runs_along_and_leaves_data_where_they_are(tmp_path):
    with home_at(tmp_path / "home"):
        os.environ.pop("SFUMATO_DATA", None)
        outer = where()
        home_below("reproduce")
        inner = where()
    assert inner.home == outer.home / "reproduce" and inner.runs.is_relative_to(inner.home)
    assert inner.data == outer.data and inner.ledger_url != outer.ledger_url
