"""What fails under the command line: disks and libraries that would speak for themselves."""

import os
import signal
import subprocess
import sys

import httpx
import pytest

from flows.cli import main
from tasks.runtime.environment import CHECKOUT


@pytest.mark.parametrize(
    ("stated", "reported"),
    [
        ("Error while serializing: I/O error: No space left on device (os error 28)", "no space left on the disk"),
        ("(sqlite3.OperationalError) database or disk is full", "no space left on the disk"),
        ("[Errno 30] Read-only file system: 'x'", "the disk is read-only"),
    ],
)
def test_a_disk_that_fails_under_a_library_is_one_line(monkeypatch, capsys, stated, reported):
    def fail(**_):
        try:
            raise RuntimeError(stated)
        except RuntimeError as error:
            raise ValueError("a stage failed") from error

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as left:
        main.main()
    message = capsys.readouterr().err
    assert left.value.code == 2 and reported in message and len(message.strip().splitlines()) == 1
    monkeypatch.setattr(main, "app", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main.main()


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("")]
)
def test_a_prefect_server_that_goes_away_is_one_line_that_says_how_to_go_on(monkeypatch, capsys, error):
    def fail(**_):
        raise error

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as left:
        main.main()
    message = capsys.readouterr().err
    assert left.value.code == 2 and "Prefect server" in message and len(message.strip().splitlines()) == 1


def ctrl_c():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("stop", "code"), [(ctrl_c, 130), (lambda: os.kill(os.getpid(), signal.SIGTERM), 143)], ids=["Ctrl-C", "SIGTERM"]
)
@pytest.mark.parametrize("command", ["compare", "sweep", "run", "status"])
def test_what_a_signal_ends_is_one_line_and_the_code_that_shells_have(sfumato, monkeypatch, stop, code, command):
    monkeypatch.setattr(f"flows.cli.{main.COMMANDS[command]}.configure", stop)
    named = ["rapid"] if command == "sweep" else []
    assert sfumato(command, *named).is_one_line("stopped", "kept", "The same command goes on", code=code)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--minutes", "as a setting: --set recipe.minutes=VALUE"),
        ("--steps", "settings have this name"),
        ("--nonsense", "No such option: --nonsense (see"),
    ],
)
def test_an_option_that_is_none_is_said_to_be_a_setting_where_it_is_one(sfumato, option, hint):
    assert sfumato("plan", "rapid", option, "20").is_one_line(f"No such option: {option}", hint)


def test_a_prefect_server_that_is_not_there_is_one_line(tmp_path):
    home = {
        "SFUMATO_HOME": str(tmp_path),
        "PREFECT_API_URL": "http://127.0.0.1:9/api",
        "PREFECT_CLIENT_MAX_RETRIES": "0",
    }
    command = [sys.executable, "-m", "flows", "run", "rapid"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, env={**os.environ, **home})
    stated = [line for line in done.stderr.splitlines() if line.startswith("sfumato:")]
    assert done.returncode == 2 and len(stated) == 1 and "http://127.0.0.1:9/api" in stated[0], done.stderr[-2000:]
    assert "Traceback" not in done.stderr


def test_the_terminal_shows_warnings_and_nothing_of_prefect():
    program = """
import logging
from flows.cli.main import quiet_logs
quiet_logs()
import opacus
logging.getLogger("prefect.flow_runs").setLevel("INFO")
logging.getLogger("prefect.flow_runs").info("Finished in state Completed()")
logging.getLogger("other").warning("something to know")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CHECKOUT)
    assert done.returncode == 0 and "Finished" not in done.stderr and "something to know" in done.stderr
