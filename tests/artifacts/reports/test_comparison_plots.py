"""What the pictures of a comparison hold: read from the figure that is drawn, before it becomes a file."""

import pytest
from PIL import Image

from artifacts.reports import comparison_plots
from artifacts.reports.comparison import SYNTHETIC, Comparison, row_of
from artifacts.reports.comparison_plots import by_variant, draw, draw_pairs, draw_sweep, draw_trade_off
from artifacts.reports.differences import PAIRS, AblationPair, row_of_pair
from tests.examples import SCORES, make_record

AXES = {
    "method.k": {"0.8": "rapid k=0.8", "0.3": "rapid k=0.3"},
    "fine_tuning.batch": {"16": "rapid b=16", "256": "rapid b=256"},
    "sampler": {"ddim": "rapid", "pndm": "rapid s=pndm"},
}
"""Settings with numbers close together, far apart, and with words; the first stands in no order."""


def row(folder, variant, target=10.0, cnn=(0.8,), **changes):
    judged = [{SYNTHETIC: {**SCORES, "cnn": one}} for one in cnn]
    made = [make_record(folder, run=f"{variant}-{n}", metrics=one, **changes) for n, one in enumerate(judged)]
    return row_of(variant, target, made)


def swept(*rows, **axes):
    return Comparison(name="sweep", folder="", rows=rows, axes=axes or AXES)


def every(folder, low):
    variants = [variant for values in AXES.values() for variant in values.values()]
    return [row(folder, variant, cnn=(0.1 if variant == low else 0.8,)) for variant in variants]


@pytest.fixture
def figures(monkeypatch):
    """The figures drawn; their files are written too."""
    retained, panels = [], comparison_plots._panels

    def keep(*size, **shape):
        retained.append(panels(*size, **shape))
        return retained[-1]

    monkeypatch.setattr(comparison_plots, "_panels", keep)
    return retained


def points(panel, number=0):
    return [tuple(map(float, point)) for point in panel.containers[number].lines[0].get_xydata()]


def test_a_sweep_has_a_panel_for_each_setting_and_score_on_one_scale(tmp_path, figures):
    draw_sweep(tmp_path / "plot.png", swept(*every(tmp_path, low="rapid s=pndm")))
    (_, panels) = figures[0]
    assert panels.shape == (2, 3) and [panel.get_xlabel() for panel in panels[1]] == list(AXES)
    assert [line[0].get_ylabel() for line in panels] == ["Frechet distance", "CNN"]
    for line in panels:
        ((low, high),) = {panel.get_ylim() for panel in line}
        assert all(low <= y <= high for panel in line for _, y in points(panel))
    with Image.open(tmp_path / "plot.png") as image:
        assert image.format == "PNG" and image.width > image.height


def test_numbers_lie_in_order_on_an_axis_and_words_side_by_side(tmp_path, figures):
    scores = dict(zip(("rapid k=0.8", "rapid k=0.3", "rapid", "rapid s=pndm"), (0.8, 0.6, 0.7, 0.9), strict=True))
    made = [
        row(tmp_path, variant, cnn=(scores.get(variant, 0.5),))
        for values in AXES.values()
        for variant in values.values()
    ]
    draw_sweep(tmp_path / "plot.png", swept(*made))
    numbers, batches, words = figures[0][1][1]
    assert points(numbers) == [(0.3, 0.6), (0.8, 0.8)] and numbers.get_xscale() == "linear"
    assert batches.get_xscale() == "log" and [text.get_text() for text in batches.get_xticklabels()] == ["16", "256"]
    assert points(words) == [(0, 0.7), (1, 0.9)] and [text.get_text() for text in words.get_xticklabels()] == [
        "ddim",
        "pndm",
    ]
    assert (
        numbers.containers[0].lines[0].get_linestyle() == "-" and words.containers[0].lines[0].get_linestyle() == "None"
    )


def test_each_epsilon_has_a_line_and_seeds_have_bars(tmp_path, figures):
    made = [row(tmp_path, "rapid k=0.3", target, (0.7, 0.8, 0.9)) for target in (1.0, 10.0)]
    draw_sweep(tmp_path / "plot.png", swept(*made, **{"method.k": {"0.3": "rapid k=0.3"}}))
    figure, panels = figures[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["epsilon 1", "epsilon 10"]
    (bar,) = panels[1, 0].containers[0].lines[2][0].get_segments()
    half = made[0].scores["cnn"].half
    assert bar[:, 1].tolist() == pytest.approx([0.8 - half, 0.8 + half])


def test_a_sweep_over_epsilon_itself_has_each_value_once(tmp_path, figures):
    made = [row(tmp_path, f"rapid privacy.epsilon={target:g}", target) for target in (1.0, 10.0)]
    draw_sweep(tmp_path / "plot.png", swept(*made, **{"privacy.epsilon": {f"{r.target:g}": r.variant for r in made}}))
    panel = figures[0][1][1, 0]
    assert [points(panel, number) for number in (0, 1)] == [[(1, 0.8)], [(10, 0.8)]]


def test_a_run_without_certificate_is_marked_apart_and_a_score_that_is_missing_is_left_out(tmp_path, figures):
    axes = {"Phase I": {"off": "a", "as published": "b", "neither": "c"}}
    without = row(tmp_path, "b", certificate=None, label="INTERNAL")
    draw_sweep(tmp_path / "plot.png", swept(row(tmp_path, "a"), without, row(tmp_path, "c", cnn=(None,)), **axes))
    figure, panels = figures[0]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["epsilon 10", "epsilon 10, no certificate"]
    assert points(panels[1, 0]) == [(0, 0.8)] and points(panels[1, 0], 1) == [(1, 0.8)]
    assert len(points(panels[0, 0])) == 2


def test_the_trade_off_shows_certificates_and_claims_and_leaves_out_what_is_missing(tmp_path, figures):
    made = [row(tmp_path, "rapid", 1.0), row(tmp_path, "rapid", 0.5), row(tmp_path, "dp-sgd", 1.0, certificate=None)]
    draw_trade_off(tmp_path / "plot.png", [*made, row(tmp_path, "rapid", 3.0, cnn=(None,))])
    panels = figures[0][1][0]
    assert len(points(panels[1])) == 2 and len(points(panels[0])) == 3 and points(panels[1], 1) == []
    assert [row.target for row in by_variant(made)["rapid"]] == [0.5, 1.0]


@pytest.mark.parametrize("axes", [{}, {"sampler": {"ddim": "rapid"}}])
def test_the_picture_is_the_one_that_the_report_names(tmp_path, axes):
    result = Comparison(name="one", folder="", rows=(row(tmp_path, "rapid"),), axes=axes)
    draw(tmp_path, result)
    assert [path.name for path in tmp_path.glob("*.png")] == [result.plot]


def paired_row(folder, part, target=10.0, ones=(0.9, 0.91, 0.9), others=(0.7, 0.7, 0.72)):
    runs = [
        tuple(make_record(folder, metrics={SYNTHETIC: {**SCORES, "cnn": cnn}}) for cnn in both)
        for both in zip(ones, others, strict=True)
    ]
    return row_of_pair(AblationPair(part=part, variant="rapid", without="rapid without"), target, runs)


def test_differences_lie_beside_a_zero_line_and_those_that_are_clear_are_full(tmp_path, figures):
    made = [paired_row(tmp_path, "votes"), paired_row(tmp_path, "judge", 1.0, others=(0.95, 0.8, 0.99))]
    draw_pairs(tmp_path / "plot.png", made)
    figure, panels = figures[0]
    (panel,) = [panel for panel in panels[0] if panel.get_xlabel() == "CNN ↑"]
    zero, *_ = panel.lines
    assert set(zero.get_xdata()) == {0} and [label.get_text() for label in panels[0, 0].get_yticklabels()] == [
        "votes: rapid",
        "judge: rapid",
    ]
    first, second = panel.containers
    assert points(panel)[0] == pytest.approx((made[0].scores["cnn"].mean, 0)) and points(panel, 1)[0][1] == 1
    (bar,) = first.lines[2][0].get_segments()
    assert bar[:, 0].tolist() == pytest.approx([made[0].scores["cnn"].low, made[0].scores["cnn"].high])
    assert second.lines[0].get_markerfacecolor() == "white" != first.lines[0].get_markerfacecolor()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["epsilon 10", "epsilon 1"]


def test_a_comparison_of_pairs_has_both_pictures(tmp_path):
    made = Comparison(name="one", folder="", rows=(row(tmp_path, "rapid"),), pairs=(paired_row(tmp_path, "votes"),))
    draw(tmp_path, made)
    assert {path.name for path in tmp_path.glob("*.png")} == {made.plot, PAIRS}
