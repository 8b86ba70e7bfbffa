"""Retrieval in the words of a rehearsal: each time with chance, reference and echo, and what came of it."""

import pytest

from artifacts.reports.page import section_in_markdown
from artifacts.reports.rehearsal import lines, section
from sfumato.config import RehearsalSettings
from sfumato.rehearsal_findings import RehearsalFindings, RetrievalFindings


def at(time, first, reference=0.07):
    return RetrievalFindings(
        time=time, share=time / 1000, first=first, five=0.34, chance=0.02, chance_five=0.094, reference=reference,
        labelled_first=0.78, labelled_five=0.91, echo=0.77,
    )  # fmt: skip


def retrieval(**findings):
    shown = lines(RehearsalFindings(held_out=9, **findings), RehearsalSettings())
    return [text for name, text in shown if name == "retrieval"]


def test_each_time_stands_with_chance_reference_and_echo():
    one, two, chosen = retrieval(by_time=(at(500, 0.05), at(300, 0.2)), query_time=300)
    for shown in (
        "k = 0.5 T",
        "5.0%",
        "chance 2.0%",
        "reference 7.0%",
        "34.0%",
        "9.4%",
        "78.0%",
        "91.0%",
        "77.0%",
        "echo",
    ):
        assert shown in one
    assert "above chance, and mostly wrong" in one and "it works" in two
    assert "k = 0.3 T is the largest" in chosen


def test_a_query_that_was_asked_for_its_class_is_not_said_to_work():
    (text,) = retrieval(by_time=(at(800, 0.78),), query_time=800)
    assert "an echo of the label that it was asked for" in text and "it works" not in text


@pytest.mark.parametrize(("reference", "why"), [(0.019, True), (0.4, False)])
def test_near_chance_the_reference_says_whether_there_was_anything_to_find(reference, why):
    (text,) = retrieval(by_time=(at(800, 0.02, reference),), query_time=800)
    assert "near chance: nothing to retrieve by" in text and ("hardly holds its class" in text) == why


def test_where_no_neighbour_means_anything_it_says_that_one_is_taken_at_random():
    assert "the walk from T to k is skipped" in retrieval(by_time=(at(800, 0.02), at(500, 0.03)), query_time=0)[-1]
    assert retrieval(query_time=0) == ["none: trajectories are taken at random"]
    assert retrieval() == []


@pytest.mark.parametrize(
    ("chosen", "made_from"), [(False, "public images alone."), (True, "private records chose by paid votes.")]
)
def test_the_picture_says_whether_private_records_chose_the_public_images(chosen, made_from, tmp_path):
    page = section_in_markdown(
        section(RehearsalFindings(held_out=9), RehearsalSettings(), chosen=chosen), lambda name: name
    )
    assert made_from in "".join(page)
