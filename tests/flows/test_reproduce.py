"""A row of the papers from plan to page by the flow that every run takes, in a home of its own."""

import pytest
from PIL import Image

from artifacts.record import load_record
from artifacts.reports.papers import load_result
from flows import reproduce, synthesize
from flows.reproduce import HOME, Outputs, RowPlan, carry_out, score_of
from sfumato.image_folder import SYNTHETIC, XMP_KEY
from sfumato.inventory import parsed
from tasks.planning import plan_run
from tasks.runtime.environment import configure, home_below, where
from tests.examples import UNREHEARSED, make_record

TINY = (
    *("data.glyphs_per_class=10", "network.width=16", "network.blocks=1", "pretraining.steps=20", "fine_tuning.steps=3"),
    *("generation.images=60", "generation.steps=5", "evaluation.images=60", "evaluation.resamples=20"),
    *("evaluation.baseline=false", *UNREHEARSED),
)  # fmt: skip
PAPER = """
title: A paper
source: Somebody 2025
rows:
  table-1:
    place: Table 1
    shows: "what images score"
    pictures: samples
    small:
      - {what: "accuracy", paper: 98.1, per_cent: true, method: dp-sgd, score: cnn, minutes: 1}
      - {what: "the same: coverage", method: dp-sgd, score: coverage, minutes: 1}
"""


@pytest.mark.usefixtures("no_servers", "quick_judges")
def test_a_row_is_planned_paid_recorded_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(synthesize, "synthesize_planned", synthesize.run_plan)
    papers = {"first": parsed(PAPER, "first")}
    monkeypatch.setattr(reproduce, "papers", lambda: papers)
    outer = where().home
    home_below(HOME)
    configure()
    row = papers["first"].rows["table-1"]
    outputs = Outputs(tmp_path / "results", tmp_path / "pages" / "papers.md")
    planned = plan_run("dp-sgd", "", TINY)
    carry_out(RowPlan("first-table-1", row, "small", (planned, planned)), outputs)

    line, same = load_result(outputs.folder, "first-table-1", "small").lines
    record = load_record(where().runs, line.run)
    assert where().home == outer / HOME and not list((outer / "runs").glob("*"))
    assert line.ours == record.metrics["synthetic"]["cnn"] and line.claim == record.claim.epsilon
    assert line.certificate == record.certificate.epsilon and line.minutes > 0
    with where().ledger() as ledger:
        assert ledger.total("digits").epsilon == pytest.approx(record.certificate.epsilon)
    assert same.ours == record.metrics["synthetic"]["coverage"]
    assert line.picture == same.picture == "first-table-1-small-1.png", "one run has one picture"
    page = outputs.page.read_text()
    assert f"| {100 * line.ours:.4g} % |" in page and "([picture](papers/first-table-1-small-1.png))" in page
    with Image.open(outputs.page.parent / "papers" / line.picture) as stored, Image.open(record.samples) as samples:
        assert SYNTHETIC in stored.text[XMP_KEY] and stored.tobytes() == samples.tobytes()


def test_a_line_may_report_the_time_of_a_stage(tmp_path):
    record = make_record(tmp_path)
    assert score_of(record, "seconds/pretrain") == 61.5, "of the run that made it"
    assert score_of(record, "seconds/build-knowledge-base") is None
    assert score_of(record, "frechet") == record.metrics["synthetic"]["frechet"]
