"""Runs side by side: means and intervals by hand, and a claim that never stands where a certificate belongs."""

import pytest

from artifacts import comparison
from artifacts.comparison import (
    Comparison,
    Spread,
    by_variant,
    comparison_table,
    draw_trade_off,
    report,
    row_of,
    spread,
)
from sfumato.errors import BadInput
from tests.examples import SCORES, make_certificate, make_record


def record(folder, run="run-1", cnn=0.8, **changes):
    metrics = {comparison.SYNTHETIC: {**SCORES, "cnn": cnn}}
    return make_record(folder, run=run, metrics=metrics, **changes)


def rows(tmp_path):
    one = row_of("rapid", 1.0, [record(tmp_path, f"a{seed}", cnn) for seed, cnn in enumerate((0.7, 0.8, 0.9))])
    other = row_of("dp-sgd", 1.0, [record(tmp_path, "b0", certificate=None, label="INTERNAL")])
    ten = row_of("rapid", 0.5, [record(tmp_path, "c0")])
    return [one, other, ten]


def test_mean_and_interval_by_hand():
    # Student's .975 quantile with two degrees of freedom is 4.3027.
    found = spread([0.7, 0.8, 0.9])
    assert found.mean == pytest.approx(0.8) and found.half == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert spread([0.5]) == Spread(mean=0.5, half=None) and str(spread([0.5])) == "0.5"


def test_a_row_holds_the_worst_certificate_and_the_tightest_label(tmp_path):
    records = [record(tmp_path, f"r{e}", certificate=make_certificate(epsilon=e)) for e in (2.0, 3.0, 1.0)]
    assert row_of("rapid", 3.0, records).certificate == 3.0
    without = row_of("rapid", 3.0, [*records, record(tmp_path, certificate=None, label="INTERNAL")])
    assert without.certificate is None and without.label == "INTERNAL"


def test_a_score_that_one_seed_lacks_is_a_dash_and_is_not_drawn(tmp_path):
    without = make_record(tmp_path, metrics={comparison.SYNTHETIC: {**SCORES, "frechet": None}})
    row = row_of("rapid", 1.0, [record(tmp_path), without])
    assert str(row.scores["frechet"]) == "-" and row.scores["cnn"].mean is not None
    assert "| - |" in comparison_table([row])
    draw_trade_off(tmp_path / "plot.png", [row])


def test_two_feature_extractors_are_refused_in_one_row_and_in_one_table(tmp_path):
    made = [make_record(tmp_path, metrics={"synthetic": {**SCORES, "feature_extractor": name}}) for name in ("a", "b")]
    with pytest.raises(BadInput, match="two feature extractors"):
        row_of("rapid", 1.0, made)
    apart = [row_of("rapid", 1.0, [one]) for one in made]
    with pytest.raises(BadInput, match="two feature extractors"):
        comparison_table(apart)
    assert "coverage in: a." in report(Comparison(name="compare", folder="", rows=tuple(apart[:1])), ["one"])


def test_a_claim_is_never_shown_as_a_certificate(tmp_path):
    head, _, *lines = comparison_table(rows(tmp_path)).splitlines()
    columns = [cell.strip() for cell in head.split("|")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    at = {name: columns.index(name) for name in ("variant", "claim", "certificate", "CNN", "label")}
    assert [line[at["certificate"]] for line in cells][1] == "none"
    assert all(line[at["claim"]] != line[at["certificate"]] for line in cells)
    assert cells[0][at["CNN"]] == "0.8 ± 0.25" and cells[1][at["label"]] == "INTERNAL"


def test_the_report_says_that_it_is_internal_and_names_all_runs(tmp_path):
    found = Comparison(name="compare", folder=str(tmp_path), rows=tuple(rows(tmp_path)))
    text = report(found, ["one", "two"])
    assert "INTERNAL" in text.splitlines()[2] and "Over 3 seeds" in text
    assert all(run in text for run in ("a0", "a1", "a2", "b0"))
    assert Comparison.model_validate_json(found.model_dump_json()) == found


def test_the_plot_is_drawn_with_and_without_certificates(tmp_path):
    draw_trade_off(tmp_path / "plot.png", rows(tmp_path))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert [row.target for row in by_variant(rows(tmp_path))["rapid"]] == [0.5, 1.0]
