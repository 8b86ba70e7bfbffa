"""Runs side by side: means and intervals by hand, and a claim that never stands where a certificate belongs."""

import pytest

from artifacts.reports import comparison
from artifacts.reports.comparison import (
    Comparison,
    Spread,
    comparison_page,
    comparison_table,
    lines,
    row_of,
    spread,
    standing,
)
from artifacts.reports.page import in_markdown
from sfumato.errors import BadInput
from tests.examples import SCORES, make_certificate, make_record


def record(folder, run="run-1", cnn=0.8, **changes):
    metrics = {comparison.SYNTHETIC: {**SCORES, "cnn": cnn}}
    return make_record(folder, run=run, metrics=metrics, **changes)


def compared(*rows, **changes):
    return Comparison(name="compare", folder="", rows=rows, **changes)


def report(result) -> str:
    return in_markdown(comparison_page(result))


def rows(tmp_path):
    one = row_of("rapid", 1.0, [record(tmp_path, f"a{seed}", cnn) for seed, cnn in enumerate((0.7, 0.8, 0.9))])
    other = row_of("dp-sgd", 1.0, [record(tmp_path, "b0", certificate=None, label="INTERNAL")])
    ten = row_of("rapid", 0.5, [record(tmp_path, "c0")])
    return [one, other, ten]


def test_mean_and_interval_by_hand():
    # Student's .975 quantile with two degrees of freedom is 4.3027.
    result = spread([0.7, 0.8, 0.9])
    assert result.mean == pytest.approx(0.8) and result.half == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert spread([0.5]) == Spread(mean=0.5, half=None) and str(spread([0.5])) == "0.5"


def test_a_row_holds_the_worst_certificate_and_the_tightest_label(tmp_path):
    records = [record(tmp_path, f"r{e}", certificate=make_certificate(epsilon=e)) for e in (2.0, 3.0, 1.0)]
    assert row_of("rapid", 3.0, records).certificate == 3.0
    without = row_of("rapid", 3.0, [*records, record(tmp_path, certificate=None, label="INTERNAL")])
    assert without.certificate is None and without.label == "INTERNAL"


def test_the_largest_memory_of_all_runs_stands_beside_the_evaluations(tmp_path):
    stages = [
        stage.model_copy(update={"memory": size})
        for stage, size in zip(make_record(tmp_path).stages, (3.25, 1.5), strict=True)
    ]
    runs = [record(tmp_path, "r1", stages=stages), record(tmp_path, "r2")]
    assert row_of("rapid", 3.0, runs).memory == (3.25, 0.0)
    on_gpu = [stage.model_copy(update={"gpu_memory": 2.0}) for stage in stages]
    one, other, unknown = (row_of("rapid", 3.0, each) for each in (runs, [record(tmp_path, stages=on_gpu)], runs[1:]))
    _, columns, cells = comparison_table(compared(one, other, unknown))
    assert columns[columns.index("evaluations") + 1] == "memory (GB)"
    assert [line[columns.index("memory (GB)")] for line in cells] == ["3.25", "3.25, GPU 2.00", ""]


def test_a_score_that_one_seed_lacks_is_a_dash(tmp_path):
    without = make_record(tmp_path, metrics={comparison.SYNTHETIC: {**SCORES, "frechet": None}})
    row = row_of("rapid", 1.0, [record(tmp_path), without])
    assert str(row.scores["frechet"]) == "-" and row.scores["cnn"].mean is not None
    assert "-" in comparison_table(compared(row)).rows[0]


def test_two_feature_extractors_are_refused_in_one_row_and_in_one_table(tmp_path):
    made = [make_record(tmp_path, metrics={"synthetic": {**SCORES, "feature_extractor": name}}) for name in ("a", "b")]
    with pytest.raises(BadInput, match="two feature extractors"):
        row_of("rapid", 1.0, made)
    apart = [row_of("rapid", 1.0, [one]) for one in made]
    with pytest.raises(BadInput, match="two feature extractors"):
        comparison_table(compared(*apart))
    assert "coverage in: a." in report(compared(apart[0]))


def test_a_claim_is_never_shown_as_a_certificate(tmp_path):
    _, columns, cells = comparison_table(compared(*rows(tmp_path)))
    at = {name: columns.index(name) for name in ("variant", "claim", "certificate", "CNN", "label")}
    assert [line[at["certificate"]] for line in cells][1] == "none"
    assert all(line[at["claim"]] != line[at["certificate"]] for line in cells)
    assert cells[0][at["CNN"]] == "0.8 ± 0.25" and cells[1][at["label"]] == "INTERNAL"


def test_a_row_says_what_its_images_may_be_used_for(tmp_path):
    ten = row_of("dp-ensemble", 1.0, [record(tmp_path, certificate=make_certificate(images=10))])
    none = row_of("dppm", 1.0, [record(tmp_path, certificate=None, label="INTERNAL")])
    assert standing(ten) == "DP, covers 10" and standing(none) == "INTERNAL, no certificate"
    assert standing(ten.model_copy(update={"classes": "queried"})) == "DP, covers 10, classes queried"
    _, columns, cells = comparison_table(compared(ten, none))
    assert [line[columns.index("covers")] for line in cells] == [10, "none"]


def test_the_report_says_that_it_is_internal_and_names_all_runs(tmp_path):
    result = compared(*rows(tmp_path))
    text = report(result)
    assert "INTERNAL" in text.splitlines()[2] and "Over 3 seeds" in text
    assert all(run in text for run in ("a0", "a1", "a2", "b0"))
    assert (
        f"]({comparison.TRADE_OFF})" in text and "Rows of the picture: rapid at 1; dp-sgd at 1; rapid at 0.5." in text
    )
    assert Comparison.model_validate_json(result.model_dump_json()) == result


def test_a_sweep_names_setting_and_value_and_shows_a_shared_variant_at_each(tmp_path):
    axes = {"method.k": {"0.5": "rapid method.k=0.5", "0.8": "rapid"}, "sampler": {"ddim": "rapid"}}
    made = [row_of(name, 10.0, [record(tmp_path, name)]) for name in ("rapid", "rapid method.k=0.5")]
    result = compared(*made, axes=axes)
    shown = [("method.k", "0.5"), ("method.k", "0.8"), ("sampler", "ddim")]
    assert [line.names for line in lines(result)] == shown
    assert [line.row.variant for line in lines(result)] == ["rapid method.k=0.5", "rapid", "rapid"]
    _, columns, cells = comparison_table(result)
    assert columns[:3] == ["setting", "value", "target"] and [tuple(line[:2]) for line in cells] == shown
    text = report(result)
    assert f"]({comparison.SWEEP})" in text and "method.k 0.8 at 10; sampler ddim at 10." in text
    assert Comparison.model_validate_json(result.model_dump_json()) == result
