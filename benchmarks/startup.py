"""How long a command takes before it says anything, and how much memory: as ratios to an empty Python in the same run.

    .venv/bin/python benchmarks/startup.py                     # help, typos, lists, the ledger of a new home, and a plan
    .venv/bin/python benchmarks/startup.py --command "plan rapid"
    .venv/bin/python benchmarks/startup.py --demo              # and `make demo` again, which is all cached; the first takes minutes

Processor time of each command with all that it starts, time by the clock, and peak memory, in a home of its own; the least of a few rounds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

COMMANDS = (
    "--help",
    "--version",
    "nosuch",
    "run --help",
    "ledger --help",
    "ledger show",
    "ledger verify",
    "explain rapid",
    "presets",
    "settings rapid",
)
OF_A_RUN = ("show latest", "status", "generate latest --images 40 --to more")
"""Commands that need a finished run."""
PLAN, DEMO = "plan rapid", "run rapid --preset digits --publish"
PLAIN, TORCH = [sys.executable, "-c", "pass"], [sys.executable, "-c", "import torch"]
ROUNDS = 3
KILO = 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", action="append", default=[], help="another command, as 'plan rapid'; repeatable")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each (default: 3)")
    parser.add_argument("--demo", action="store_true", help="make demo, and measure it when all of it is cached")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        new = [Path(folder) / str(number) for number in range(given.rounds)]
        same, demo = [Path(folder) / "same"] * given.rounds, [Path(folder) / "demo"] * given.rounds
        plain, _, _ = measured(PLAIN, same)
        print("| command | CPU s | by the clock, s | times an empty Python | MB |\n| --- | --- | --- | --- | --- |")
        rows = [("`python -c pass`", PLAIN, same), ("`python -c 'import torch'`", TORCH, same)]
        rows += [(f"`sfumato {command}`", _sfumato(command), same) for command in (*COMMANDS, *given.command)]
        rows += [
            (f"`sfumato {PLAN}`, the first time", _sfumato(PLAN), new),
            (f"`sfumato {PLAN}`, the same again", _sfumato(PLAN), same),
        ]
        if given.demo:
            measured(_sfumato(DEMO), demo[:1])
            rows.append((f"`sfumato {DEMO}`, all of it cached", _sfumato(DEMO), demo))
            rows += [(f"`sfumato {command}`", _sfumato(command), demo[:1]) for command in OF_A_RUN]
        for name, command, places in rows:
            seconds, clock, megabytes = measured(command, places)
            print(f"| {name} | {seconds:.2f} | {clock:.1f} | {seconds / plain:.0f} | {megabytes:.0f} |", flush=True)


def _sfumato(command: str) -> list[str]:
    return [sys.executable, "-m", "flows", *command.split()]


def measured(command: list[str], homes: Sequence[Path]) -> tuple[float, float, float]:
    """Least processor seconds with all that it starts, least seconds by the clock, and least peak of memory in megabytes, of a command in
    each of these homes in turn."""
    usage = []
    for home in homes:
        home.mkdir(exist_ok=True)
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parents[1]),
                "SFUMATO_HOME": str(home / "home"),
                "SFUMATO_KEYS": str(home / "keys"),
            },
            cwd=home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, _, used = os.wait4(process.pid, 0)
        usage.append((used.ru_utime + used.ru_stime, time.monotonic() - started, used.ru_maxrss / KILO))
    seconds, clock, megabytes = map(min, zip(*usage, strict=True))
    return seconds, clock, megabytes


if __name__ == "__main__":
    main()
