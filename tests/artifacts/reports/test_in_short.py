"""Tests of a run in a few lines."""

import pytest

from artifacts.data_card import cautions
from artifacts.reports.in_short import doubts
from artifacts.reports.run import labels_note
from sfumato.config import Judge
from tests.examples import make_record


@pytest.mark.parametrize(
    ("agreed", "words"),
    [
        (
            0.62,
            "the classes may be hard to see: the paid judge finds the own one of 62% of what was drawn, and chance is 50%",
        ),
        (0.66, "of 66% of what was drawn"),
        (0.67, ""),
        (None, ""),
    ],
)
def test_a_judge_that_hardly_sees_the_classes_speaks_against_the_images(tmp_path, agreed, words):
    """A third of the way from chance to all is .667 of two classes; without a judge nothing is said."""
    record = make_record(tmp_path, judged={} if agreed is None else {"drawn": 1000.0, "agreed": agreed})
    assert words in doubts(record) and bool(words) == bool(doubts(record))
    assert "the judge's" not in doubts(record)
    card = "\n".join(cautions({}, record))
    assert (words in card) and ("paid judge" in card) == bool(words)


@pytest.mark.parametrize(
    ("use", "relabelled", "whose"), [("filter", 0.8, True), ("filter", 0.0, False), ("relabel", 0.8, False)]
)
def test_labels_that_a_filter_took_from_the_judge_are_said_to_be_its_own(tmp_path, use, relabelled, whose):
    made = make_record(tmp_path, judged={"drawn": 1000.0, "agreed": 0.52, "relabelled": relabelled})
    record = made.model_copy(update={"plan": made.plan.model_copy(update={"judge": Judge(use=use)})})
    assert doubts(record).endswith("; the labels are therefore the judge's") is whose
    note = labels_note(record)
    assert ("The labels are those of a judge" in note) is (whose or use == "relabel") and "52.0% of 1000" in note
