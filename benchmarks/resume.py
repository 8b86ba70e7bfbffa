"""What a stop and a crash in the middle of DP training cost: the ledger before and after, from the program itself.

    .venv/bin/python benchmarks/resume.py [--set SECTION.FIELD=VALUE ...]

Runs RAPID in a fresh temporary home three times: stopped by Ctrl-C in the middle of DP fine-tuning, killed (`kill -9`)
further on, and left to finish. After each, prints what the ledger says of the private set.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

PATIENCE_SECONDS = 1800
SHORT = ("evaluation.baseline=false", "generation.images=200", "evaluation.images=200", "fine_tuning.steps=400")
"""Little beside the training, and a training that outlives several saved states."""


def command(changes: list[str]) -> list[str]:
    """The run, as a person types it."""
    return [sys.executable, "-m", "flows", "run", "rapid", *(part for one in changes for part in ("--set", one))]


def books() -> list[dict]:
    """The entries about the private set."""
    shown = subprocess.run(
        [sys.executable, "-m", "flows", "ledger", "show", "digits", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(shown.stdout)["entries"] if shown.returncode == 0 else []


def steps_allowed(entries: list[dict]) -> int:
    """How many stretches of training the ledger was told of so far."""
    return sum(entry["kind"] == "progress" for entry in entries)


def until(condition: Callable[[], bool], run: subprocess.Popen) -> None:
    """Wait while the run is at work."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if run.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the run ended before it could be broken off: give it more steps")
        time.sleep(1)


def broken_off(changes: list[str], by: signal.Signals, after: int) -> None:
    """Start the run and break it off once it has trained for `after` stretches more."""
    there = steps_allowed(books())
    run = subprocess.Popen(
        command(changes), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: steps_allowed(books()) >= there + after, run)
    os.killpg(run.pid, by)
    run.wait()


def show(title: str) -> None:
    """The ledger as a person sees it."""
    print(f"\n{title}:\n", flush=True)
    subprocess.run([sys.executable, "-m", "flows", "ledger", "show", "digits"], check=False)


def main() -> None:
    """Stop, kill, finish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    changes = [*SHORT, *parser.parse_args().set]
    with tempfile.TemporaryDirectory(prefix="sfumato-resume-", ignore_cleanup_errors=True) as home:
        os.environ["SFUMATO_HOME"] = home
        broken_off(changes, signal.SIGINT, 3)
        show("After Ctrl-C")
        broken_off(changes, signal.SIGKILL, 3)
        show("After kill -9")
        subprocess.run(command(changes), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        show("After the same command once more")


if __name__ == "__main__":
    main()
