"""Differences with and without a part: against SciPy's paired t interval, and image by image where there is one seed."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from artifacts.reports.comparison import SYNTHETIC, Comparison, comparison_page
from artifacts.reports.differences import (
    PAIRS,
    AblationPair,
    PairedDifference,
    PairRow,
    basis,
    difference,
    heads,
    row_of_pair,
    section_of,
)
from artifacts.reports.page import in_markdown
from sfumato.evaluation.intervals import paired_interval
from sfumato.evaluation.scores import packed
from tests.examples import SCORES, make_record

PAIR = AblationPair(part="votes", variant="rapid", without="rapid method.votes=false")
WITH, WITHOUT = (0.91, 0.88, 0.90, 0.93), (0.85, 0.86, 0.83, 0.90)
RIGHT = np.array([1.0] * 80 + [0.0] * 20), np.array([1.0] * 60 + [0.0] * 10 + [1.0] * 5 + [0.0] * 25)


def record(folder, **scores):
    return make_record(folder, metrics={SYNTHETIC: {**SCORES, **scores}})


def pair_row(folder, ones=WITH, others=WITHOUT, **more):
    runs = [
        (record(folder, cnn=one, **more), record(folder, cnn=other)) for one, other in zip(ones, others, strict=True)
    ]
    return row_of_pair(PAIR, 10.0, runs)


def test_the_interval_is_that_of_a_paired_t_test():
    value = difference(list(zip(WITH, WITHOUT, strict=True)))
    expected = ttest_rel(WITH, WITHOUT).confidence_interval(0.95)
    assert (value.low, value.high) == pytest.approx((expected.low, expected.high)) and value.over == "seeds"
    assert value.mean == pytest.approx(np.mean(WITH) - np.mean(WITHOUT)) and value.clear
    assert not difference([(0.9, 0.8), (0.8, 0.9)]).clear


def test_what_all_seeds_share_is_no_spread():
    """Seeds that are good or bad for both halves widen the interval of neither difference."""
    shift = np.array([0.0, 0.2, 0.4])
    together = difference([(0.5 + s + e, 0.4 + s) for s, e in zip(shift, (0.0, 0.01, -0.01), strict=True)])
    assert together.clear and together.high - together.low < 0.06


def test_a_score_that_one_run_lacks_has_no_difference():
    assert difference([(0.5, 0.4), (None, 0.4)]) == PairedDifference(mean=None)
    assert str(difference([(None, 0.4)])) == "-"


def test_one_seed_has_an_interval_where_the_held_out_images_have_one(tmp_path):
    one, other = (record(tmp_path, cnn=row.mean(), by_image={"cnn": packed(row)}) for row in RIGHT)
    row = row_of_pair(PAIR, 10.0, [(one, other)])
    low, high = paired_interval(*RIGHT, resamples=2000)
    value = row.scores["cnn"]
    assert (value.mean, value.low, value.high) == pytest.approx((0.15, low, high)) and value.over == "held-out images"
    assert row.scores["frechet"].low is None and row.scores["frechet"].over == ""
    assert "One seed" in basis([row])


def test_rows_over_other_test_images_are_not_compared_image_by_image(tmp_path):
    one, other = (record(tmp_path, by_image={"cnn": packed(row)}) for row in (RIGHT[0], RIGHT[1][:50]))
    assert row_of_pair(PAIR, 10.0, [(one, other)]).scores["cnn"].low is None
    assert row_of_pair(PAIR, 10.0, [(one, record(tmp_path))]).scores["cnn"].low is None


def test_the_page_shows_differences_first_and_says_what_both_halves_share(tmp_path):
    row = pair_row(tmp_path)
    section = section_of([row])
    table = section.blocks[0]
    cells = dict(zip(table.head, table.rows[0], strict=True))
    assert cells["with"] == "rapid" and cells["without"] == "rapid method.votes=false"
    assert (
        cells["CNN ↑"].startswith("+0.045 (")
        and cells["CNN ↑"].endswith("*")
        and cells["Frechet distance ↓"] == "+0 (0 to 0)"
    )
    comparison = Comparison(name="compare", folder="", rows=(), pairs=(row,))
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison
    text = in_markdown(comparison_page(comparison.model_copy(update={"rows": rows(tmp_path)})))
    assert text.index("With and without") < text.index("Scores against private images") and f"]({PAIRS})" in text
    assert "never seeded" in text and "over 4 paired seeds" in text


def rows(folder):
    from artifacts.reports.comparison import row_of

    return (row_of("rapid", 10.0, [record(folder)]),)


def test_the_direction_that_is_better_stands_beside_a_score():
    assert heads(["frechet", "coverage", "two_sample_auc"]) == ["Frechet distance ↓", "coverage ↑", "told from real ↓"]


def test_a_difference_reads_with_its_sign():
    value = PairedDifference(mean=-0.0123, low=-0.03, high=0.004, over="seeds")
    assert str(PairedDifference(mean=3.7e-17)) == "+0"
    assert str(value) == "-0.0123 (-0.03 to 0.004)" and str(PairedDifference(mean=0.5)) == "+0.5"
    assert isinstance(PairRow(pair=PAIR, target=1.0, seeds=1, scores={}).pair, AblationPair)
