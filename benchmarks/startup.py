"""How long a command takes before it says anything, and how much memory: as ratios to an empty Python in the same run.

    .venv/bin/python benchmarks/startup.py                     # help, typos, lists, the ledger of a new home, and a plan
    .venv/bin/python benchmarks/startup.py --command "plan rapid"

Processor time and peak memory of each command in a process of its own, in a home of its own; the least of a few rounds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
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
PLAN = "plan rapid"
PLAIN, TORCH = [sys.executable, "-c", "pass"], [sys.executable, "-c", "import torch"]
ROUNDS = 3
KILO = 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", action="append", default=[], help="another command, as 'plan rapid'; repeatable")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each (default: 3)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        places = {"SFUMATO_HOME": str(Path(folder) / "home"), "SFUMATO_KEYS": str(Path(folder) / "keys")}
        plain, least = measured(PLAIN, places, given.rounds)
        print("| command | CPU s | times an empty Python | MB |\n| --- | --- | --- | --- |")
        print(f"| `python -c pass` | {plain:.2f} | 1 | {least:.0f} |")
        first, again = "`, the first time", "`, the same again"
        rows = [("`python -c 'import torch'`", TORCH, given.rounds)]
        rows += [(f"`sfumato {command}`", _sfumato(command), given.rounds) for command in (*COMMANDS, *given.command)]
        rows += [
            (f"`sfumato {PLAN}{first}", _sfumato(PLAN), 1),
            (f"`sfumato {PLAN}{again}", _sfumato(PLAN), given.rounds),
        ]
        for name, command, rounds in rows:
            seconds, megabytes = measured(command, places, rounds)
            print(f"| {name} | {seconds:.2f} | {seconds / plain:.0f} | {megabytes:.0f} |", flush=True)


def _sfumato(command: str) -> list[str]:
    return [sys.executable, "-m", "flows", *command.split()]


def measured(command: list[str], places: dict[str, str], rounds: int) -> tuple[float, float]:
    """Least processor seconds, and least peak of memory in megabytes, of a command with all that it starts."""
    usage = []
    for _ in range(rounds):
        process = subprocess.Popen(
            command,
            env={**os.environ, **places},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, _, used = os.wait4(process.pid, 0)
        usage.append((used.ru_utime + used.ru_stime, used.ru_maxrss / KILO))
    return min(seconds for seconds, _ in usage), min(megabytes for _, megabytes in usage)


if __name__ == "__main__":
    main()
