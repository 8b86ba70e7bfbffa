"""Carry a benchmark out and keep the tables that it prints, with its command, the date and the machine, as `benchmarks/results/NAME.json`.

    .venv/bin/python benchmarks/record.py startup benchmarks/startup.py
    .venv/bin/python benchmarks/record.py startup                 # the same command again
    .venv/bin/python benchmarks/record.py faults make test-faults

A script is run by this Python. Every table in Markdown that the command prints is kept, under the names of the file that was there before, and
every other line beside them as `lines`. What a person wrote there (`by hand`: what was tried besides, and what came of it) stays.
`benchmarks/pages.py` then puts the tables into the pages. Files marked `carried over` were copied from the pages of before, where each figure had
been printed by the command; `measured` and `commit` then say when it was written down.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.runtime.machine import commit

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
UNITS = ("CPU s", "s", "ms", "MB", "%", "minutes", "CPU minutes", "us a query", "in steps", "clips")
"""What may stand after the comma of a column's head."""
NUMBER = re.compile(r"-?(\d{1,3}(,\d{3})+|\d*)(\.\d+)?(e[+-]?\d+)?")
Table = dict[str, Any]


def cell(text: str) -> str | float:
    """A number where the text is one, such as `1,030`, `.5` or `3e-4`."""
    text = text.strip()
    if not (re.search(r"\d", text) and NUMBER.fullmatch(text)):
        return text
    value = float(text.replace(",", ""))
    return int(value) if value.is_integer() and "e" not in text else value


def table(lines: Sequence[str]) -> Table:
    """`columns`, their `units`, empty where there is none, and `rows` of a table in Markdown."""
    heads, _, *rows = ([part.strip() for part in line.strip().strip("|").split("|")] for line in lines)
    parts = [head.rpartition(", ") for head in heads]
    named = [
        (name or unit, unit) if unit in UNITS else (head, "")
        for head, (name, _, unit) in zip(heads, parts, strict=True)
    ]
    return {
        "columns": [name for name, _ in named],
        "units": [unit for _, unit in named],
        "rows": [[cell(part) for part in row] for row in rows],
    }


def tables(text: str) -> tuple[list[Table], list[str]]:
    """The tables of a text, and its other lines that are not empty."""
    blocks: list[list[str]] = []
    others = []
    inside = False
    for line in text.splitlines():
        if line.startswith("|"):
            blocks.append([]) if not inside else None
            blocks[-1].append(line)
        elif line.strip():
            others.append(line)
        inside = line.startswith("|")
    return [table(lines) for lines in blocks if len(lines) > 1], others


def machine() -> dict[str, str | int | float]:
    """What the figures were measured on."""
    cpu = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpu.read_text()) if cpu.is_file() else None
    facts = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "processor": model[1] if model else platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
    }
    if hasattr(os, "getloadavg"):
        facts["load_before"] = round(os.getloadavg()[0], 1)
    return facts


def output(command: Sequence[str]) -> Iterator[str]:
    """What a command prints, line by line; ends the program with its exit code where it fails."""
    words = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        yield from running.stdout
    if running.returncode:
        sys.exit(running.returncode)


def main() -> None:
    """Run, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the file, below benchmarks/results/")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="default: the one in the file")
    given = parser.parse_args()
    path = RESULTS / f"{given.name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"tables": {}, "command": ""}
    command = given.command or shlex.split(before["command"])
    facts, text = machine(), ""
    for line in output(command):
        print(line, end="", flush=True)
        text += line
    measured, others = tables(text)
    names = [*before["tables"], *(f"table {number}" for number in range(len(before["tables"]) + 1, len(measured) + 1))]
    stored = {
        "command": shlex.join(command),
        "measured": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": facts,
        "tables": dict(zip(names, measured, strict=False)),
        "lines": others,
        **({"by hand": before["by hand"]} if before.get("by hand") else {}),
    }
    path.write_text(written(stored), encoding="utf-8")


def written(stored: dict[str, Any]) -> str:
    """JSON with a row of a table on one line."""
    text = json.dumps(stored, indent=1, ensure_ascii=False)
    return (
        re.sub(r"\[\s+((?:[^\[\]{}]|\"[^\"]*\")*?)\s+\]", lambda row: "[" + re.sub(r",\n\s+", ", ", row[1]) + "]", text)
        + "\n"
    )


if __name__ == "__main__":
    main()
