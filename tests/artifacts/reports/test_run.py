"""Two reports: one that may leave and holds no score, one that is INTERNAL and says so."""

import base64
import csv
import json

import pytest
from PIL import Image

from artifacts.record import Override, StageRecord
from artifacts.reports import plots
from artifacts.reports import run as report
from artifacts.reports.officer import TITLE
from artifacts.reports.page import in_html, in_markdown, inside, table
from artifacts.reports.run import INTERNAL_REPORT, REPORT, internal_page, public_page
from sfumato.errors import BadInput
from sfumato.privacy.auditing.looks import CEILING, REAL
from tests.examples import (
    DELTA,
    PRIVATE_PATH,
    PUBLIC_PATH,
    SCORE_KEYS,
    SCORES,
    make_certificate,
    make_record,
)
from tests.markup import Tags


@pytest.fixture
def record(tmp_path):
    return make_record(tmp_path)


def public_report(record) -> str:
    return in_markdown(public_page(record))


def internal_report(record) -> str:
    return in_markdown(internal_page(record))


def rows(text: str, name: str) -> list[list[str]]:
    """The cells of the table rows that begin with `name`."""
    result = [line for line in text.splitlines() if line.lower().replace("*", "").startswith(f"| {name}")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in result]


def row(text: str, name: str) -> list[str]:
    """The cells of the one table row that begins with `name`."""
    (result,) = rows(text, name)
    return result


def shown(number: float) -> set[str]:
    """How a number may be written."""
    return {str(number), f"{number:.4g}", f"{number:.3g}", f"{number:.3f}", f"{number:.1%}", f"{number:.2f}"}


# What may leave


def test_the_public_report_holds_no_score(record):
    text = public_report(record)
    for scores in record.metrics.values():
        for value in scores.values():
            assert not [written for written in shown(value) if written in text], value
    for title in ("Scores", "Frechet", "coverage", "logistic", "CNN", "readable"):
        assert title not in text, title
    assert "public model alone" not in text


def test_neither_report_holds_a_path_of_the_images(record):
    for text in (public_report(record), internal_report(record)):
        assert PRIVATE_PATH not in text and "ward-7" not in text and PUBLIC_PATH not in text
    assert "data.name" in public_report(record) and "fine_tuning.steps" in public_report(record)


def test_the_public_report_names_no_folder_of_this_machine(record, tmp_path):
    assert str(tmp_path) not in public_report(record)


def test_certificate_and_claim_are_rows_of_their_own(record):
    text = public_report(record)
    assert row(text, "certificate") == ["certificate", "9.876", f"{DELTA:.3g}", "add_remove", "dp-accounting 0.6.0 PLD"]
    claim = row(text, "claim")
    assert claim[0].startswith("claim") and claim[1] == "76.380" and claim[-1] == "Proposition 1"
    assert record.certificate.sentence() in text and "only the certificate is a promise" in text


def test_what_a_plan_warns_of_stands_beside_the_promise(record):
    reported = record.model_copy(
        update={"plan": record.plan.model_copy(update={"warnings": ("privacy.delta=0.02 is above 0.01",)})}
    )
    assert "privacy.delta=0.02 is above 0.01" in public_report(reported) and "Warning" not in public_report(record)


def test_without_a_certificate_the_report_says_so_and_covers_nothing(tmp_path):
    text = public_report(make_record(tmp_path, certificate=None, label="INTERNAL"))
    assert row(text, "certificate")[:2] == ["certificate", "none"]
    assert "No certificate" in text and "must not leave" in text and "The images are INTERNAL." in text
    assert "9.876" not in text and "differential privacy for" not in text
    assert "Covers any number" not in text
    assert row(text, "claim")[1] == "76.380"


@pytest.mark.parametrize(("images", "words"), [("any", "Covers any number of images"), (25, "Covers 25 images")])
def test_the_images_covered_are_said(tmp_path, images, words):
    assert words in public_report(make_record(tmp_path, certificate=make_certificate(images=images)))


def test_every_spend_is_listed_with_its_price(record):
    text = public_report(record)
    assert "gaussian (noise_multiplier=6, count=1)" in row(text, "votes")[2]
    assert "noise_multiplier=2.724, sample_rate=0.5, steps=150" in row(text, "fine_tuning |")[2]
    assert "Ledger entries 2, 5" in text and "1437 private records in 2 classes" in text


def test_stages_tell_cached_time_from_time_spent(record):
    text = public_report(record)
    assert row(text, "pretrain |") == ["pretrain", "0.2", "from cache", "61.5"]
    assert row(text, "fine-tune |") == ["fine-tune", "33.5", "", "33.5"]
    assert "2 of 2 stages, in 34 seconds" in text


def test_how_long_internal_work_took_stays_in_the_internal_report(tmp_path):
    hidden = StageRecord(name="member 1", seconds=417.25, cached=False, made_in=418.5, label="INTERNAL", memory=9.31)
    unknown = hidden.model_copy(update={"name": "of an old record", "label": "", "seconds": 88.5})
    record = make_record(tmp_path, stages=[*make_record(tmp_path).stages, hidden, unknown])
    text = public_report(record)
    assert "2 of 4 stages, in 34 seconds" in text
    assert not any(reported in text for reported in ("417", "418.5", "88.5", "member 1 |", "539", "9.31", "GB"))
    assert row(internal_report(record), "member 1 |") == ["member 1", "417.2", "", "418.5", "9.31"]


def test_memory_is_in_the_internal_report_alone(tmp_path):
    stages = [stage.model_copy(update={"memory": 3.21}) for stage in make_record(tmp_path).stages]
    record = make_record(tmp_path, stages=stages)
    assert "3.21" not in public_report(record)
    assert row(internal_report(record), "pretrain |") == ["pretrain", "0.2", "from cache", "61.5", "3.21"]


@pytest.mark.parametrize(("accuracy", "words"), [(0.31, "above chance"), (0.03, "near chance")])
def test_retrieval_is_judged_against_chance(tmp_path, accuracy, words):
    retrieval = {"retrieval_accuracy": accuracy, "retrieval_chance": 0.019}
    text = public_report(make_record(tmp_path, retrieval=retrieval))
    assert f"{accuracy:.1%}" in text and "1.9%" in text and words in text
    assert "**Retrieval.**" not in public_report(make_record(tmp_path, retrieval={}))


def test_a_walk_that_is_skipped_is_reported_with_what_was_measured(tmp_path):
    measured = {"retrieval_accuracy": 0.03, "retrieval_chance": 0.019, "retrieval_reference": 0.068, "query_time": 0.0}
    text = public_report(make_record(tmp_path, retrieval=measured))
    assert "3.0%" in text and "right 6.8% of the time" in text and "without the walk from T to k" in text
    bare = public_report(make_record(tmp_path, retrieval={"keys": 187.0, "query_time": 0.0, "search_recall": 1.0}))
    assert "taken at random" in bare and "chance is" not in bare
    assert "without the walk" not in public_report(make_record(tmp_path, retrieval=measured | {"query_time": 500.0}))


def test_what_an_autoencoder_loses_is_told_beside_what_there_was(tmp_path):
    text = public_report(make_record(tmp_path, latents={"reconstruction_error": 0.0512, "spread": 0.5747}))
    assert "**Latents.**" in text and "reconstructions: 0.051; of the mean image: 0.575" in text
    assert "**Latents.**" not in public_report(make_record(tmp_path))


@pytest.mark.parametrize(("recall", "stated"), [(1.0, False), (0.974, True)])
def test_an_approximate_search_is_reported_with_its_recall(tmp_path, recall, stated):
    retrieval = {"retrieval_accuracy": 0.3, "retrieval_chance": 0.02, "search_recall": recall}
    text = public_report(make_record(tmp_path, retrieval=retrieval))
    assert ("Search is approximate: it finds the nearest key 97.4% of the time." in text) == stated


def test_the_edge_of_the_promise_is_in_both(record):
    for text in (public_report(record), internal_report(record)):
        assert "not covered" in text and "the unit is one image" in text and "rounding inside float32 sums" in text


# What may not


def test_the_internal_report_says_so_first_and_holds_every_score(record):
    text = internal_report(record)
    assert text.splitlines()[2].startswith("> INTERNAL. Do not share")
    for name, share in (("synthetic", 1), ("public model alone", 1 / 3)):
        cells = [cell for result in rows(text, name) for cell in result[1:]]
        assert cells == [f"{SCORES[key] * share:.4g}" for key in SCORE_KEYS]
    everything = [section for section in public_page(record).sections if section.title not in ("Time", TITLE)]
    assert [section for section in internal_page(record).sections if section in everything] == everything


def test_each_score_stands_beside_its_interval_and_the_extractor_is_named(tmp_path):
    metrics = {"synthetic": {**SCORES, "intervals": {"frechet": [6.5, 8.25]}, "feature_extractor": "two eyes"}}
    text = internal_report(make_record(tmp_path, metrics=metrics))
    fidelity, utility = rows(text, "synthetic")
    assert fidelity[1:3] == [f"{SCORES['frechet']:.4g} (6.5 to 8.25)", f"{SCORES['coverage']:.4g}"]
    assert utility[1:] == [f"{SCORES[key]:.4g}" for key in ("logistic", "cnn")]
    assert "(k = 5) in: two eyes." in text and "100 bootstrap resamples" in text and "Not measured" not in text


def test_a_score_that_could_not_be_measured_is_a_dash_with_its_reason(tmp_path):
    reason = "60 synthetic images are too few for 64 features"
    few = {**SCORES, "frechet": None, "paper_cnn": None, "missing": {"frechet": reason, "paper_cnn": "tiny images"}}
    text = internal_report(make_record(tmp_path, metrics={"synthetic": few, "public model alone": SCORES}))
    fidelity, utility = rows(text, "synthetic")
    assert fidelity[1] == "-" and utility[-1] == "-" and "CNN of DPDM" in text and "MLP" not in text
    assert rows(text, "public model alone")[0][1] == f"{SCORES['frechet']:.4g}"
    assert f"Not measured: frechet: {reason}. paper_cnn: tiny images." in text


def test_the_classifiers_behind_the_mean_are_shown(tmp_path):
    metrics = {"synthetic": {**SCORES, "eleven": 0.75, "scikit": {"logistic": 0.8317, "bagging": 0.6683}}}
    text = internal_report(make_record(tmp_path, metrics=metrics))
    assert rows(text, "synthetic")[1][-1] == "0.75" and rows(text, "synthetic")[2][1:] == ["0.8317", "0.6683"]
    assert "the last column: eleven of scikit-learn's classifiers" in text


def test_what_the_numbers_mean_stands_first_and_in_words(tmp_path):
    judged = {**SCORES, "two_sample_auc": 0.983, "judge": 0.9917, "cnn_balanced": 0.7531, "precision": 0.41}
    real = {**SCORES, "cnn": 0.9731, "two_sample_auc": 0.514}
    best = {"readable": 0.9333, "two_sample_auc": 0.62}
    text = internal_report(make_record(tmp_path, metrics={"synthetic": judged, REAL: real, CEILING: best}))
    words = text.split("## In plain words")[1].split("## Pictures")[0]
    assert "picks the synthetic one 98% of the time; guessing gives 50%" in words and "held-out ones: 51%" in words
    assert "79.2% (75.3% as the mean over classes) of held-out real images; after real ones 97.3%" in words
    assert "reads 55.3% of the synthetic ones as they were meant; of held-out real ones 99.2%" in words
    assert (
        "through the autoencoder and back 93.3% are still read; a small CNN tells them from others 62% of the time"
        in words
    )
    assert "41% lie among real ones" in words and "No number here is a verdict by itself" in words
    assert "told from real: how often a small CNN" in text and "CNN, balanced" in text
    assert text.index("## Promise") < text.index("## In plain words") < text.index("## Scores")
    assert "In plain words" not in public_report(make_record(tmp_path, metrics={"synthetic": judged}))


def test_of_scores_of_an_earlier_version_less_is_said(record):
    words = internal_report(record).split("## In plain words")[1].split("## Pictures")[0]
    assert "picks the synthetic one" not in words and "autoencoder" not in words and "names the class of 79.2%" in words


def test_a_row_without_any_of_the_scores_is_left_out_of_a_table(tmp_path):
    best = {"readable": 0.9333, "frechet": 3.0}
    text = internal_report(make_record(tmp_path, metrics={"synthetic": SCORES, CEILING: best}))
    assert len(rows(text, CEILING)) == 1 and len(rows(text, "synthetic")) == 2


def test_samples_and_their_nearest_public_images_may_leave_and_real_images_may_not(record, tmp_path):
    for name in (*report.PICTURES, report.REAL_PICTURE):
        Image.new("L", (len(name), 2)).save(tmp_path / name)
    coded = {name: inside(tmp_path)(name) for name in (report.NEAREST, report.REAL_PICTURE)}
    report.write_reports(tmp_path, record)
    public, internal = ((tmp_path / name).read_text(encoding="utf-8") for name in (REPORT, INTERNAL_REPORT))
    assert coded[report.NEAREST] in public and coded[report.NEAREST] in internal
    assert coded[report.REAL_PICTURE] in internal and coded[report.REAL_PICTURE] not in public
    assert report.REAL_PICTURE not in report.PICTURES and report.REAL_PICTURE in report.INTERNAL_FILES


def test_two_feature_extractors_are_refused_in_one_report(tmp_path):
    metrics = {name: {**SCORES, "feature_extractor": name} for name in ("a", "b")}
    with pytest.raises(BadInput, match="two feature extractors"):
        report.score_table(metrics, "fidelity", report.FIDELITY)
    with pytest.raises(BadInput, match="two feature extractors"):
        internal_report(make_record(tmp_path, metrics=metrics))


def test_both_are_written_beside_each_other_with_their_tables(record, tmp_path):
    books = {"entries": [{"seq": 7, "time": "2026-01-01", "kind": "look", "reason": "evaluation of a <b>set</b>"}]}
    (tmp_path / "ledger.json").write_text(json.dumps(books), encoding="utf-8")
    report.write_reports(tmp_path, record)
    public, internal = ((tmp_path / name).read_text(encoding="utf-8") for name in (REPORT, INTERNAL_REPORT))
    assert record.certificate.sentence() in public and record.certificate.sentence() in internal
    assert "Scores against private images" in internal and "evaluation of a &lt;b&gt;set" in internal
    assert "Scores" not in public and "7.419" not in public and "evaluation of a" not in public
    shared = {path.name for path in (tmp_path / report.TABLES).iterdir()}
    assert shared == {"facts.csv", "promise.csv", "time.csv", "ledger.csv", "settings.csv"}
    with (tmp_path / report.INTERNAL_TABLES / "fidelity.csv").open(encoding="utf-8", newline="") as file:
        (_, first, *_) = csv.reader(file)
    assert first == ["synthetic", *(f"{SCORES[key]:.4g}" for key in ("frechet", "coverage", "readable"))]


def test_a_reader_sees_at_once_what_may_leave(tmp_path):
    pages = {
        "DP": (public_page(make_record(tmp_path)), "May leave, with the sentence below"),
        "INTERNAL": (internal_page(make_record(tmp_path)), "Do not share"),
        "no certificate": (public_page(make_record(tmp_path, certificate=None, label="INTERNAL")), "Must not leave."),
    }
    for name, (page, words) in pages.items():
        label = "DP" if name == "DP" else "INTERNAL"
        text = in_html(page, str)
        assert (page.label, f'<body class="{label}">' in text, f"<title>{label}:" in text) == (label, True, True)
        assert f"<b>{label}</b> {words}" in text
    claim = Override(kind="claim", reason="<script>alert(1)</script>", missing="all", entry=9)
    accepted = in_html(public_page(make_record(tmp_path, certificate=None, label="INTERNAL", overrides=[claim])), str)
    assert "on the paper&#39;s claim alone: no certificate" in accepted and "<script" not in accepted


def test_a_class_that_is_named_like_markup_stays_a_name(tmp_path):
    record = make_record(tmp_path)
    names = ("<script>alert(1)</script>", '"><img src=https://example.org/x>', "](https://example.org/y)", "a | b")
    plan = record.plan.model_copy(update={"facts": record.plan.facts.model_copy(update={"classes": names})})
    settings = record.settings | {"data": {**record.settings["data"], "name": "<iframe src=https://example.org>"}}
    evil = record.model_copy(update={"plan": plan, "settings": settings})
    Image.new("L", (3, 2)).save(tmp_path / report.SAMPLES)
    for page in (public_page(evil), internal_page(evil)):
        result = Tags(in_html(page, inside(tmp_path)))
        assert result.counts["img"] == 1 and not {"script", "iframe"} & set(result.counts)
        assert names[0] in result.text and names[1] in result.text
    text = report.markdown(evil)
    assert "<script" not in text and "<iframe" not in text and "<img" not in text and "\\](https" in text


def test_the_report_for_the_ui_is_the_public_one_with_its_pictures_inside(record, tmp_path):
    for name in ("samples.png", report.CURVES):
        Image.new("L", (3, 2)).save(tmp_path / name)
    picture = "data:image/png;base64," + base64.b64encode((tmp_path / "samples.png").read_bytes()).decode()
    text = report.markdown(record)
    assert text.count(picture) == 2 and "](samples.png)" not in text
    assert "7.419" not in text and "INTERNAL" not in text


def test_links_stand_at_the_head_of_the_report_for_the_ui(record):
    text = report.markdown(record, {"MLflow: all": "http://127.0.0.1:4201/#/experiments/1/runs/abc"})
    assert "[MLflow: all](<http://127.0.0.1:4201/#/experiments/1/runs/abc>)" in text.split("## Promise")[0]
    assert "http" not in report.markdown(record).split("## Promise")[0]


# Pieces


def test_a_cell_cannot_break_its_table():
    assert table(["a"], [["x | y"]]).splitlines()[-1] == "| x \\| y |"


def test_curves_are_drawn_one_panel_each(tmp_path):
    widths = []
    for curves in ({}, {"public denoiser": [1.0, 0.5]}, {"public denoiser": [1.0, 0.5], "feature extractor": [2.0]}):
        plots.draw_curves(tmp_path / "curves.png", curves)
        with Image.open(tmp_path / "curves.png") as result:
            assert result.format == "PNG"
            widths.append(result.width)
    assert widths[0] == widths[1] and widths[2] == pytest.approx(2 * widths[1], abs=2)


def test_epsilon_at_other_deltas_is_drawn_where_it_is_known(tmp_path):
    record = make_record(tmp_path, curve=((1e-9, 20.0), (DELTA, 9.876), (1e-2, 5.0)))
    assert in_html(public_page(record), str).count("<img") == 1 + in_html(
        public_page(make_record(tmp_path)), str
    ).count("<img")
    plots.draw_privacy(tmp_path / "curve.png", record)
    with Image.open(tmp_path / "curve.png") as result:
        assert result.width > 500 and len(result.convert("RGB").getcolors(1 << 20)) > 10


def test_earlier_runs_stand_beside_where_they_are_alike(tmp_path, monkeypatch):
    named = {**SCORES, "feature_extractor": "a"}
    record = make_record(tmp_path, metrics={"synthetic": named, "public model alone": named})
    other = {
        "alike": make_record(tmp_path, run="b", metrics={"synthetic": named}, certificate=None, label="INTERNAL"),
        "itself": make_record(tmp_path, metrics={"synthetic": named}),
        "measured otherwise": make_record(tmp_path, run="c", metrics={"synthetic": SCORES}),
        "of other images": make_record(
            tmp_path, run="d", metrics={"synthetic": named}, settings=record.settings | {"data": {"name": "others"}}
        ),
    }
    drawn, point = [], plots._point
    monkeypatch.setattr(plots, "_point", lambda *given, filled: drawn.append(given[1]) or point(*given, filled=filled))
    plots.draw_trade_off(tmp_path / "trade.png", record, other.values())
    assert drawn == [other["alike"], record] * 2
    with Image.open(tmp_path / "trade.png") as result:
        assert result.width > 800
