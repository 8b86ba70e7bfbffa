"""What a person is told while a stage works: steps, speed in images where these are known, the time left."""

import logging
import re
import time

import pytest
from prefect import flow, task
from rich.console import Console

from tasks.runtime import progress as module
from tasks.runtime.progress import in_words, progress, speed


class Work:
    """A task of rich's that is half done."""

    def __init__(self, pace=2.5, total=40, left=75.4):
        self.completed, self.total, self.speed, self.finished_speed = 20, total, pace, None
        self.time_remaining, self.fields = left, {"speed": speed(self, 0)}


@pytest.mark.parametrize(
    ("pace", "images", "stated"),
    [
        (2.5, 0, "2.5 steps/s"),
        (2.5, 256, "640 images/s"),
        (101231.46, 0, "101,231 steps/s"),
        (None, 256, ""),
        (0, 0, ""),
    ],
)
def test_speed_is_in_images_where_these_are_known(pace, images, stated):
    assert speed(Work(pace), images) == stated


def test_work_in_one_step_has_no_speed():
    assert speed(Work(total=1), 5) == ""


def test_a_line_holds_steps_speed_and_time_left():
    assert in_words(Work()) == "20 of 40, 2.5 steps/s, 0:01:15 left"
    assert in_words(Work(None, left=None)) == "20 of 40"


def test_the_bar_shows_speed(monkeypatch, capsys):
    monkeypatch.setattr(module, "CONSOLE", Console(width=120, force_terminal=True))
    with progress("training", 64) as show:
        for done in range(1, 6):
            show(done, 5)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert "training" in shown and "5/5" in shown and "images/s" in shown


def test_work_that_reports_now_and_then_ends_with_a_full_bar(monkeypatch, capsys):
    monkeypatch.setattr(module, "CONSOLE", Console(width=80, force_terminal=True))
    with progress("public images") as show:
        show(82688, 82731)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    last = shown.split("\r")[-1]
    assert "82731/82731" in last and "…" not in last, "count and times are whole, in a terminal of usual width too"


def test_work_that_fails_leaves_its_bar_where_it_was(monkeypatch, capsys):
    monkeypatch.setattr(module, "CONSOLE", Console(width=120, force_terminal=True))
    with pytest.raises(ValueError), progress("public images") as show:
        show(3, 7)
        raise ValueError
    assert "7/7" not in capsys.readouterr().out


def test_a_log_hears_how_far_the_work_is_and_a_terminal_does_not(monkeypatch, capsys):
    monkeypatch.setattr(module, "LINE_EVERY_SECONDS", 0.05)
    for terminal in (False, True):
        monkeypatch.setattr(module, "CONSOLE", Console(width=60, force_terminal=terminal))
        with progress("training", 64) as show:
            show(1, 4)
            time.sleep(0.4)
            show(4, 4)
        stated = [line for line in capsys.readouterr().out.splitlines() if line.startswith("training: ")]
        assert bool(stated) is not terminal
        assert terminal or stated[0].startswith("training: 25 %, 1 of 4")
        time.sleep(0.2)
        assert "training: " not in capsys.readouterr().out, "nothing once the work is done"


def test_prefect_is_told_too(prefect_server, monkeypatch):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    monkeypatch.setattr(module, "REPORT_EVERY_SECONDS", 0.0)

    @task
    def stage() -> None:
        with progress("a test of progress", 8) as show:
            for done in range(1, 5):
                show(done, 4)

    @flow(persist_result=False)
    def whole() -> None:
        stage()

    whole()
    with get_client(sync_client=True) as client:
        key = ArtifactFilterKey(any_=["progress-a-test-of-progress"])
        (result,) = client.read_artifacts(artifact_filter=ArtifactFilter(key=key))
    assert result.data == 100 and re.fullmatch(r"a test of progress: 4 of 4, [\d,]+ images/s", result.description)


def test_what_the_terminal_shows_stands_in_the_log_of_the_run_at_work(prefect_server, monkeypatch, capsys):
    """Text alone: a bar, which prints itself through the same console, is none of it."""
    lines, console = [], module.RunConsole(width=60, force_terminal=True)
    monkeypatch.setattr(module, "CONSOLE", console)
    logger = logging.getLogger("prefect.flow_runs")
    monkeypatch.setattr(logger, "handle", lambda record: lines.append(record.getMessage()))
    level = logger.level
    logger.setLevel(logging.INFO)  # the tests silence Prefect

    @flow(persist_result=False)
    def work() -> None:
        console.print("pretrain: from cache", soft_wrap=True)
        with progress("training") as show:
            show(1, 1)

    console.print("before")
    work()
    logger.setLevel(level)
    assert "pretrain: from cache" in lines and not any("before" in line or "training" in line for line in lines)
    assert "before" in (shown := capsys.readouterr().out) and "training" in shown
