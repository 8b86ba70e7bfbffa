"""Every line of what `sfumato serve` starts has its time, also where that is killed."""

import re
import signal
import subprocess
import sys
import time

from tasks.server.timed_log import copy, timed_log

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  "
KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from tasks.server.timed_log import timed_log
late = "import time; print('first', flush=True); time.sleep(3); print('last')"
with timed_log(Path(sys.argv[1])) as log:
    subprocess.Popen([sys.executable, "-c", late], stdout=log)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_children_write_is_added_with_the_time_of_each_line(tmp_path):
    path = tmp_path / "serve.log"
    path.write_text("from before\n")
    with timed_log(path) as log:
        for text in ("one\\n\\ntwo", "no newline"):
            subprocess.run([sys.executable, "-c", f"print('{text}', end='')"], stdout=log, check=True)
    before, *lines = path.read_text().splitlines()
    assert before == "from before"
    assert [re.sub(TIME, "", line) for line in lines] == ["one", "", "twono newline"]
    assert all(re.match(TIME, line) for line in lines if line)


def test_what_is_written_after_a_kill_is_there_too(tmp_path):
    path = tmp_path / "serve.log"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while "last" not in path.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert re.fullmatch(f"{TIME}first\n{TIME}last\n", path.read_text())


def test_a_line_that_the_disk_refuses_ends_nothing():
    class Full:
        def __init__(self) -> None:
            self.lines = []

        def write(self, line: bytes) -> None:
            if b"second" in line:
                raise OSError("no space left on device")
            self.lines.append(line)

    log = Full()
    copy([b"first\n", b"second\n", b"third\n"], log)
    assert [line.split(b"  ")[1] for line in log.lines] == [b"first\n", b"third\n"]
