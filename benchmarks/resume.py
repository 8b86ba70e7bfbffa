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
POLL_SECONDS = 2
KINDS = ("reserve", "commit")
SHORT = ("evaluation.baseline=false", "generation.images=200", "evaluation.images=200", "fine_tuning.steps=2000")
"""Little beside the training, and a training that outlives several saved states."""


def command(changes: list[str]) -> list[str]:
    """The run, as a person types it."""
    return [sys.executable, "-m", "flows", "run", "rapid", *(part for one in changes for part in ("--set", one))]


def books() -> dict:
    """Entries and totals of the private set, as `sfumato ledger show --json` prints them."""
    shown = subprocess.run(
        [sys.executable, "-m", "flows", "ledger", "show", "digits", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(shown.stdout) if shown.returncode == 0 else {"entries": [], "totals": {}}


def stretches() -> int:
    """How many stretches of training the ledger was told of so far."""
    return sum(entry["kind"] == "progress" for entry in books()["entries"])


def until(condition: Callable[[], bool], run: subprocess.Popen) -> None:
    """Wait while the run is at work."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if run.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the run ended before it could be broken off: give it more steps")
        time.sleep(POLL_SECONDS)


def broken_off(changes: list[str], by: signal.Signals, after: int) -> str:
    """Start the run, break it off once it has trained for `after` stretches more, and return its last words."""
    there = stretches()
    run = subprocess.Popen(command(changes), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until(lambda: stretches() >= there + after, run)
    os.killpg(run.pid, by)
    words = run.communicate()[1].decode(errors="replace").strip().splitlines()
    return next((line for line in reversed(words) if "sfumato:" in line), "")


def show(title: str, remark: str = "") -> None:
    """What was reserved and paid so far, and what it adds up to."""
    ledger = books()
    print(
        f"\n**{title}.** {remark}\n\n| entry | kind | of entry | DP-SGD steps | epsilon |\n| --- | --- | --- | --- | --- |"
    )
    for entry in ledger["entries"]:
        if entry["kind"] in KINDS and (steps := sum(event.get("steps", 0) for event in entry.get("events", []))):
            of, epsilon = entry.get("reserve", ""), entry.get("epsilon")
            print(
                f"| {entry['seq']} | {entry['kind']} | {of} | {steps} | {'' if epsilon is None else f'{epsilon:.4f}'} |"
            )
    spent = next(iter(ledger["totals"].values()))
    print(f"\nIn all, votes included: epsilon {spent['epsilon']:.4f} ({spent['relation']}).", flush=True)


def main() -> None:
    """Stop, kill, finish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    changes = [*SHORT, *parser.parse_args().set]
    with tempfile.TemporaryDirectory(prefix="sfumato-resume-", ignore_cleanup_errors=True) as temporary:
        home = f"{temporary}/home"
        os.environ |= {"SFUMATO_HOME": home, "SFUMATO_KEYS": f"{temporary}/keys"}
        show("After Ctrl-C", broken_off(changes, signal.SIGINT, 3))
        show("After kill -9", broken_off(changes, signal.SIGKILL, 3))
        subprocess.run(command(changes), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        show("After the same command once more")


if __name__ == "__main__":
    main()
