"""The notebook of the first hour runs from its first cell to its last, as a reader would run it, and shows what its words say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "first-hour.ipynb"
COMMANDS = {"sfumato": f"{sys.executable} -m flows", "python": sys.executable}
"""Commands in a cell, and how they are called here, where the environment may not be the active one."""


def cells(kind: str) -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def script() -> str:
    """The cells as one script: a line `!COMMAND` is a shell's, with Python's values in braces, and the last line of a cell is printed."""
    lines = ["import subprocess"]
    for cell in cells("code"):
        *before, last = cell.splitlines()
        if not re.match(r"!|\s|print|\w+ = |\w+, \w+ = |\)", last):
            last = f"print({last})"
        lines += [shell(line) for line in (*before, last)]
    return "\n".join(lines)


def shell(line: str) -> str:
    if not line.startswith("!"):
        return line
    name, _, rest = line.removeprefix("!").partition(" ")
    return f"print(subprocess.run(f{f'{COMMANDS[name]} {rest}'!r}, shell=True, text=True, stdout=-1, stderr=-2).stdout)"


def test_the_notebook_holds_no_output_and_its_links_lead_somewhere():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook["cells"])
    links = re.findall(r"\]\(([\w./-]+)\)", "\n".join(cells("markdown")))
    assert len(links) >= 4 and all((NOTEBOOK.parent / link).is_file() for link in links)


@pytest.mark.slow
def test_every_cell_runs_and_shows_what_is_said(tmp_path):
    environment = {**os.environ, "SFUMATO_HOME": str(tmp_path / "home"), "SFUMATO_KEYS": str(tmp_path / "keys")}
    environment["PYTHONPATH"] = str(NOTEBOOK.parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script()], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    promises = re.findall(r"\((\d[\d.]*), ([\d.e-]+)\)-differential", text)
    assert len(promises) >= 4 and len(set(promises[:-1])) == 1, (
        "plan, run and released folder say the same; the last is the refused run"
    )
    assert re.search(r"\(20, 1, 8, 8\) \{.*?'digit-7'", text) and len(list((tmp_path / "more").rglob("*.png"))) == 50
    assert "of 3.5" in text and re.search(r"exit code [23]$", text), text[-1500:]
    assert (tmp_path / "out" / "card.json").is_file() and "Traceback" not in text
