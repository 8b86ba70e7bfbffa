"""The page of the papers is what the stored results say, and every stored result is one of the inventory's rows."""

import json
import math
import re
from pathlib import Path

import pytest

from artifacts.reports.papers import RowResult, gpu_hours, load_result, page, save_result, shown, standing_result, state
from sfumato.errors import BadInput
from sfumato.inventory import all_rows, papers
from sfumato.methods import METHODS

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "papers"
ROWS = all_rows(papers())
STORED = sorted(RESULTS.glob("*.json"))


def made(name="dppm-equation-6", **changes):
    row = ROWS[name]
    lines = [
        {"what": line.what, "size": "formula", "paper": line.paper, "ours": 0.5, "claim": None, "certificate": None,
         "command": "sfumato reproduce", "minutes": 0.0}
        for line in row.small
    ]  # fmt: skip
    facts = {"cores": 2, "torch": "2.6"}
    fields = {"row": name, "size": "small", "recipe": row.digest("small"), "lines": lines, "measured": "2026-01-01"}
    return RowResult.model_validate({**fields, "commit": "0123456", "machine": facts, **changes})


def test_the_page_shows_the_results_that_are_stored():
    stored = (ROOT / "docs" / "results" / "papers.md").read_text(encoding="utf-8")
    assert stored == page(papers(), RESULTS), "write it anew: sfumato reproduce"


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_result_is_of_a_row_as_it_is_now_and_says_where_it_comes_from(path):
    result = RowResult.model_validate_json(path.read_text(encoding="utf-8"))
    assert standing_result(RESULTS, result.row, ROWS[result.row], result.size) == result
    assert result.measured and result.commit and result.machine["cores"]
    assert len(result.lines) == len(ROWS[result.row].recipe(result.size))
    assert [line.paper for line in result.lines] == [line.paper for line in ROWS[result.row].recipe(result.size)]


def test_every_row_stands_on_the_page_with_its_numbers_or_its_reason():
    text = page(papers(), RESULTS)
    for name, row in ROWS.items():
        assert f"**{row.place}** {row.shows}" in text
        assert row.lacking in text and (row.lacking or row.small or row.full), name


def test_a_row_that_is_not_run_shows_its_planned_cost():
    text = page(papers(), RESULTS)
    for name, row in ROWS.items():
        if row.full and not standing_result(RESULTS, name, row, "full"):
            assert f"full not run, {gpu_hours(row.hours)} planned: `sfumato reproduce {name} --full`" in text
            assert f"full not run, {gpu_hours(row.hours)} planned" in state(RESULTS, name, row)
    assert "| DPGEN (J.-W. Chen et al. 2022) |" in text and "quality.md#how-to-read-these-tables" in text
    assert [gpu_hours(hours) for hours in (0.42, 9.96, 37.4, 1065)] == [
        *("0.4 GPU hours", "10.0 GPU hours", "37 GPU hours", "1,065 GPU hours"),
    ]  # fmt: skip


def test_every_picture_that_the_page_links_is_there():
    links = re.findall(r"\]\(([^)]+\.png)\)", page(papers(), RESULTS))
    place = ROOT / "docs" / "results"
    assert len(links) > 20 and not [link for link in links if not (place / link).is_file()]


def test_the_table_of_methods_says_what_the_rows_of_the_papers_say():
    """Source by source, and whether what was measured has a certificate."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/results/papers.md)" in text
    rows = {
        name: cells
        for name, *cells in re.findall(
            r"^\| `([\w-]+)` \| (.+?) \| .+? \| (.+?) \| (.+?) \| `.+` \|$", text, re.MULTILINE
        )
    }
    assert set(rows) == set(METHODS)
    for name, paper in papers().items():
        year = paper.source.split()[-1]
        assert rows[name][0] in (paper.source, f"{paper.title} {year}"), name
    without = dict[str, set[bool]]()
    for path in STORED:
        result = RowResult.model_validate_json(path.read_text(encoding="utf-8"))
        for line, of in zip(result.lines, ROWS[result.row].recipe(result.size), strict=True):
            if of.method and "privacy.epsilon=inf" not in of.changes:
                without.setdefault(of.method, set()).add(line.certificate is None)
    assert {name for name, kinds in without.items() if True in kinds} == {
        name for name in without if "none" in rows[name][2]
    }
    assert {name for name, kinds in without.items() if kinds == {True}} == set(), "each has a certified form"


def test_what_is_written_is_read_again_infinite_prices_too(tmp_path):
    result = made()
    first = result.lines[0].model_copy(update={"certificate": math.inf})
    result = result.model_copy(update={"lines": (first, *result.lines[1:])})
    save_result(tmp_path, result)
    assert load_result(tmp_path, result.row, "small") == result and load_result(tmp_path, result.row, "full") is None
    text = page(papers(), tmp_path)
    assert "infinite" in text and "measured 2026-01-01 (0123456), 2 cores, torch 2.6" in text
    assert state(tmp_path, result.row, ROWS[result.row]).startswith("small measured 2026-01-01")


def test_a_result_of_other_lines_is_not_shown(tmp_path):
    save_result(tmp_path, made(recipe="0" * 16))
    assert standing_result(tmp_path, "dppm-equation-6", ROWS["dppm-equation-6"], "small") is None
    assert "2026-01-01" not in page(papers(), tmp_path)


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "dppm-equation-6.json").write_text(json.dumps({"row": 1}))
    with pytest.raises(BadInput, match=r"dppm-equation-6\.json' is no result"):
        load_result(tmp_path, "dppm-equation-6", "small")


def test_numbers_are_shown_shortly():
    values = (10.0, 0.99286, 14.0567, 110207.9, math.inf, 787.62, 1234)
    assert [shown(value) for value in values] == ["10", "0.9929", "14.06", "110,208", "infinite", "787.6", "1,234"]
