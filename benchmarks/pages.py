"""Put the figures of `benchmarks/results/*.json` into the pages: between `<!-- NAME/TABLE -->` and `<!-- end -->` stands that table.

    .venv/bin/python benchmarks/pages.py            # write the pages anew
    .venv/bin/python benchmarks/pages.py --check    # exit code 1, and their names, where pages differ

All else on a page is written by hand. A test (`tests/test_benchmarks.py`) runs the check, and looks for every decimal fraction that the text of
a page of results names among the figures of its tables.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- ([\w-]+)/([\w -]+) -->\n.*?<!-- end -->", re.DOTALL)


def pages() -> list[Path]:
    """Every page with a block."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    return [page for page in files if BLOCK.search(page.read_text(encoding="utf-8"))]


def results(name: str) -> dict[str, Any]:
    """What was kept of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def shown(value: str | float) -> str:
    """A cell; a number with at most six digits and commas between thousands."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def lines(name: str, table: str) -> list[str]:
    """A table in Markdown, and below it where its figures come from."""
    stored = results(name)
    cells = {**stored.get("by hand", {}), **stored["tables"]}[table]
    columns = zip(cells["columns"], cells["units"], strict=True)
    heads = [f"{name}, {unit}" if unit not in ("", name) else name for name, unit in columns]
    body = [heads, ["---"] * len(heads), *([shown(value) for value in row] for row in cells["rows"])]
    came = (
        source(stored)
        if table in stored["tables"]
        else f"*Written by hand from earlier runs of `{stored['command'] or 'scripts'}`.*"
    )
    return [*("| " + " | ".join(row) + " |" for row in body), "", came]


def source(stored: dict[str, Any]) -> str:
    """The command, when it ran and on what."""
    machine = stored["machine"]
    facts = [f"{machine['cores']} cores", *([f"torch {machine['torch']}"] if machine.get("torch") else [])]
    when = (
        f"carried over, written down {stored['measured']}"
        if stored.get("carried over")
        else f"measured {stored['measured']}"
    )
    command = f"`{stored['command']}`" if stored["command"] else "Throw-away scripts"
    return f"*{command}; {when} ({stored['commit']}), {', '.join(facts)}.*"


def filled(text: str) -> str:
    """A page with its tables as they are kept."""
    return BLOCK.sub(
        lambda block: "\n".join([f"<!-- {block[1]}/{block[2]} -->", *lines(block[1], block[2]), "<!-- end -->"]), text
    )


def main() -> None:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = [page for page in pages() if filled(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in stale:
        print(page.relative_to(ROOT))
        if not check:
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
