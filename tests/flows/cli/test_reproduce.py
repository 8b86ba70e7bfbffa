"""`sfumato reproduce` on two small made-up papers: what it lists, refuses, leaves out, writes, and goes on with."""

import json
import sys
from types import ModuleType

import pytest

from artifacts.reports.papers import load_result
from sfumato.errors import Refused
from sfumato.inventory import Line, parsed
from tasks.runtime.environment import where
from tests.examples import SCORES, make_record

DIGITS = "method: dp-sgd, changes: ['fine_tuning.steps=1', 'fine_tuning.sample_rate=1'], minutes: 3"
FIRST = f"""
title: First
source: Somebody 2025
rows:
  formula-1:
    place: Formula 1
    shows: "a conversion"
    small: [{{what: "mu of 1", paper: 4.4, formula: {{function: accountant/gdp_epsilon, arguments: {{mu: 1.0, delta: 1.0e-5}}}}, sound: true}}]
  table-1:
    place: Table 1
    shows: "what images score"
    small:
      - {{what: "distance", paper: 14.1, other_features: true, {DIGITS}, score: frechet}}
      - {{what: "accuracy", paper: 98.1, per_cent: true, {DIGITS}, score: cnn}}
    full: [{{what: "distance", paper: 14.1, {DIGITS}, score: frechet, hours: 12.0}}]
  table-2: {{place: Table 2, shows: "large images", lacking: "needs 256 pixels"}}
"""
SECOND = """
title: Second
source: Anybody 2026
rows:
  table-1:
    place: Table 1
    shows: "faces"
    small: [{what: "distance", method: dp-sgd, changes: ["data.private=nosuch-folder/faces"], score: frechet, minutes: 2}]
"""


@pytest.fixture
def papers(monkeypatch, tmp_path, sfumato):
    """Two papers of a few rows, and a place of their own for results."""
    made = {"first": parsed(FIRST, "first"), "second": parsed(SECOND, "second")}
    monkeypatch.setattr("flows.cli.reproduce.papers", lambda: made)
    monkeypatch.setattr("flows.reproduce.papers", lambda: made)
    monkeypatch.setattr("flows.reproduce.RESULTS", tmp_path / "results")
    monkeypatch.setattr("flows.reproduce.PAGE", tmp_path / "pages" / "papers.md")
    return made


@pytest.fixture
def carried_out(monkeypatch, tmp_path):
    """The runs that were begun, each with the home that it was begun in; a run may refuse."""
    begun = []
    flow = ModuleType("flows.synthesize")

    def synthesize_planned(run, wishes):
        begun.append((run.method, where().home))
        if isinstance(flow.answer, Exception):
            raise flow.answer
        return flow.answer

    flow.answer, flow.begun, flow.synthesize_planned = make_record(tmp_path), begun, synthesize_planned
    monkeypatch.setitem(sys.modules, "flows.synthesize", flow)
    return flow


def test_the_list_shows_every_row_with_its_state(sfumato, papers, monkeypatch):
    monkeypatch.setattr("flows.cli.reproduce.OUT._width", 160, raising=False)
    shown = sfumato("reproduce", "--list")
    assert shown.code == 0
    for word in (
        "first-table-1",
        "3 min",
        "12 GPU hours",
        "seconds",
        "needs 256 pixels",
        "second-table-1",
        "small not run",
    ):
        assert word in shown.out
    assert "second-table-1" not in sfumato("reproduce", "first", "--list").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frist"], ("unknown paper or row 'frist'", "did you mean 'first'", "--list")),
        (["first-table-9"], ("unknown paper or row 'first-table-9'", "'first-table-1'")),
        (["first-table-2"], ("none of these rows can be had at --small", "needs 256 pixels")),
        (["first", "--small", "--full"], ("exclude each other",)),
        (["first", "--full"], ("--full without a GPU: 1 runs", "min here", "--yes")),
    ],
)
def test_a_mistake_is_one_line(sfumato, papers, carried_out, arguments, words):
    shown = sfumato("reproduce", *arguments)
    assert shown.code == 2 and not carried_out.begun
    for word in words:
        assert word in " ".join(shown.err.split()), (word, shown.err)


def test_rows_are_measured_written_and_not_measured_again(sfumato, papers, carried_out, tmp_path, folder):
    first = sfumato("reproduce", "--small", "--yes")
    assert first.code == 0, first.err
    assert "second-table-1 is left out" in first.err and "nosuch-folder" in first.err
    assert "2 rows, 2 runs, about 3 min on two cores" in first.out
    assert {home for _, home in carried_out.begun} == {folder / "reproduce"}
    result = load_result(tmp_path / "results", "first-table-1", "small")
    assert [line.ours for line in result.lines] == [SCORES["frechet"], SCORES["cnn"]]
    assert result.lines[0].claim == 76.38 and result.lines[0].run and result.machine["cores"]
    formula = load_result(tmp_path / "results", "first-formula-1", "small").lines[0]
    assert formula.ours == formula.certificate == pytest.approx(4.377, abs=1e-3) and formula.size == "formula"
    page = (tmp_path / "pages" / "papers.md").read_text()
    assert "14.1 (other features)" in page and "98.1 %" in page and "needs 256 pixels" in page
    begun = len(carried_out.begun)
    again = sfumato("reproduce", "--small", "--yes")
    assert again.code == 0 and "measured already: 2 of 3 rows" in again.out and len(carried_out.begun) == begun
    assert sfumato("reproduce", "first-table-1", "--again", "--yes").code == 0 and len(carried_out.begun) == begun + 2


def test_rows_without_their_data_are_refused_and_the_page_stays_as_it_is(sfumato, papers, carried_out, tmp_path):
    page = tmp_path / "pages" / "papers.md"
    page.parent.mkdir()
    page.write_text("as it was")
    shown = sfumato("reproduce", "second-table-1", "--yes")
    assert shown.code == 2 and page.read_text() == "as it was" and not carried_out.begun
    words = " ".join(shown.err.split())
    assert "second-table-1 is left out" in words and "nothing was measured" in words and "stays as it is" in words
    assert sfumato("reproduce", "first", "--yes").code == 0
    page.write_text("as it was")
    rest = sfumato("reproduce", "--yes")
    assert rest.code == 0 and "stays as it is" in " ".join(rest.out.split()) and page.read_text() == "as it was"
    assert sfumato("reproduce", "first", "--yes").code == 0 and page.read_text() != "as it was", "all rows are measured"


def test_an_interruption_keeps_the_rows_that_ended(sfumato, papers, carried_out, tmp_path):
    carried_out.answer = KeyboardInterrupt()
    carried_out.synthesize_planned = lambda run, wishes: (_ for _ in ()).throw(KeyboardInterrupt)
    assert sfumato("reproduce", "first", "--yes").code == 130
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["first-formula-1.json"]


def test_a_refused_run_leaves_its_row_without_a_result_and_the_others_go_on(sfumato, papers, carried_out, tmp_path):
    carried_out.answer = Refused("the rehearsal failed")
    shown = sfumato("reproduce", "first", "--yes")
    assert shown.code == 3 and "first-table-1 has no result: the rehearsal failed" in shown.err
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["first-formula-1.json"]


def test_full_goes_on_when_it_is_told_to(sfumato, papers, carried_out, tmp_path):
    shown = sfumato("reproduce", "first", "--full", "--yes")
    assert shown.code == 0 and "about 12 GPU hours" in shown.out
    assert json.loads((tmp_path / "results" / "first-table-1-full.json").read_text())["size"] == "full"


def test_a_result_of_other_lines_stands_no_more(sfumato, papers, carried_out, tmp_path):
    assert sfumato("reproduce", "first-table-1", "--yes").code == 0
    begun = len(carried_out.begun)
    row = papers["first"].rows["table-1"]
    line = Line.model_validate({**row.small[0].model_dump(), "score": "coverage"})
    papers["first"] = papers["first"].model_copy(
        update={"rows": {**papers["first"].rows, "table-1": row.model_copy(update={"small": (line,)})}}
    )
    assert sfumato("reproduce", "first-table-1", "--yes").code == 0 and len(carried_out.begun) == begun + 1
