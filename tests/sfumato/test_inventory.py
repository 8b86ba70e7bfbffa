"""The inventory of the papers: every row can be read, resolved and planned, and its formulas give the checked numbers."""

import inspect
import runpy
from pathlib import Path

import pytest

from sfumato import inventory
from sfumato.edm_levels import Levels
from sfumato.errors import BadInput
from sfumato.evaluation.scores import Scores
from sfumato.inventory import DATA_FOLDER, SECONDS, Formula, Line, Stops, all_rows, chosen, papers, parsed
from sfumato.methods import METHODS
from sfumato.methods.empirical_denoiser import Grid, window
from sfumato.settings import resolve
from sfumato.sources import Reading, describe
from tasks import public
from tasks.planning import plan_run
from tasks.runtime.caching import Stage
from tests.examples import home_at
from tests.vectors import facts

ROWS = all_rows(papers())
STAGES = {one.name for one in vars(public).values() if isinstance(one, Stage)}
PLANNED = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "planned.py"))
LONGEST_ROW, LONGEST_RUN = 20, 150
"""Minutes on two cores that a small row and a single run may take."""
WRITTEN = """
title: A paper
source: Nobody 2026
rows:
  table-1: {place: Table 1, shows: "what it shows", small: [{what: "one number", formula: {function: accountant/gdp_epsilon}}]}
"""


def lines(*sizes):
    return [(name, line) for name, row in ROWS.items() for size in sizes for line in row.recipe(size)]


def runs(*sizes):
    """Each run once."""
    return {(line.method, line.preset, line.changes): line for _, line in lines(*sizes) if line.method}


def formula(row, what):
    return next(line.formula for line in ROWS[row].small if line.what.startswith(what)).value()


def test_every_paper_has_its_tables_and_figures():
    every = papers()
    counts = {
        name: sum(row.place.startswith(("Table", "Figure")) for row in every[name].rows.values()) for name in every
    }
    assert counts == {"rapid": 25, "dp-promise": 16, "dp-ensemble": 8, "empirical-denoiser": 15, "dppm": 11}
    assert list(every) == [name for name in METHODS if name in every]


def test_every_run_names_a_method_a_preset_settings_and_a_score_that_there_are():
    for (method, preset, changes), line in runs("small", "full").items():
        assert resolve(method, preset, changes).method.name == method
        stage = line.score.removeprefix(SECONDS)
        assert line.score in Scores.model_fields or (stage in STAGES and line.score != stage)


def test_the_data_folder_stands_in_the_settings_of_a_run_and_a_person_sees_its_variable():
    line = Line(what="x-rays", method="dp-sgd", score="frechet", changes=("data.private={data}/scans", "seed=1"))
    assert line.changes_in("/vault") == ("data.private=/vault/scans", "seed=1")
    assert line.command == "sfumato run dp-sgd --set data.private=$SFUMATO_DATA/scans seed=1"


def test_every_formula_takes_the_arguments_that_it_is_given():
    formulas = [one for _, line in lines("small", "full") for one in (line.formula, line.certificate) if one]
    assert len(formulas) > 70
    for one in formulas:
        inspect.signature(one.called).bind(**one.arguments)


def test_small_rows_are_small():
    assert not {name: row.minutes("small") for name, row in ROWS.items() if row.minutes("small") > LONGEST_ROW}
    assert all(0 < line.minutes <= LONGEST_RUN for _, line in lines("small") if line.method)


def test_one_small_run_of_each_method_can_be_planned():
    for method, (preset, changes) in {run[0]: run[1:] for run in runs("small")}.items():
        assert plan_run(method, preset, changes).plan.spends


@pytest.mark.slow
def test_every_small_run_can_be_planned():
    for run in runs("small"):
        if not any(DATA_FOLDER in change for change in run[2]):
            assert plan_run(*run).plan.spends


@pytest.mark.slow
def test_every_small_run_on_data_that_are_there_can_be_planned(data, tmp_path):
    here = [line for line in runs("small").values() if any(DATA_FOLDER in change for change in line.changes)]
    with home_at(tmp_path / "home"):
        for line in here:
            assert plan_run(line.method, line.preset, line.changes_in(str(data))).plan.noise_multiplier is not None


@pytest.mark.slow
def test_every_full_run_whose_data_are_there_can_be_planned(data, tmp_path, monkeypatch):
    here = [run for run in runs("full") if run[1] == "mnist"]
    assert len(here) == 9
    with home_at(tmp_path / "home"):
        monkeypatch.setenv("SFUMATO_DATA", str(data))
        for run in here:
            assert plan_run(*run).plan.spends


def test_every_run_of_a_papers_own_size_says_what_it_is_planned_to_cost():
    assert all(line.hours > 0 and not line.minutes for _, line in lines("full"))
    assert not [line.what for _, line in lines("small") if line.hours]
    row = ROWS["dp-promise-table-2"]
    assert row.hours == pytest.approx(sum(line.hours for line in runs("full").values() if line in row.full))
    for name in ("rapid-table-1", "dp-promise-table-5", "dppm-table-1"):
        line = ROWS[name].full[0]
        assert line.hours == PLANNED["planned"](line), "write them anew: benchmarks/planned.py --write"


@pytest.mark.slow
def test_all_planned_hours_are_those_of_the_program_as_it_is():
    stale = {line.what: PLANNED["planned"](line) for _, line in lines("full") if line.hours != PLANNED["planned"](line)}
    assert not stale, "write them anew: benchmarks/planned.py --write"


@pytest.mark.parametrize("name", ["mnist", "glyphs"])
def test_data_sets_that_are_here_have_the_sizes_as_published(name, data):
    one = PLANNED["PUBLISHED"][name]
    train, every = (describe(name, Reading(part, folder=str(data))) for part in ("train", "all"))
    assert (every.records, len(every.classes), every.channels) == (one.every, one.classes, one.channels)
    assert name == "glyphs" or (train.records, train.height) == (one.train, one.side)


def test_quoted_methods_have_numbers_of_the_same_things():
    quoted = papers()["dppm"].quoted
    assert [one.method.split(" ")[0] for one in quoted] == [
        *("DP-GAN", "PATE-GAN", "GS-WGAN", "P3GM", "G-PATE", "DataLens", "DPGEN", "PSG"),
    ]  # fmt: skip
    assert "wrong" in quoted[6].idea and quoted[0].numbers["MNIST"] == "40.36, 80.11"
    with pytest.raises(BadInput, match="'B' is quoted with other numbers than 'A'"):
        text = (
            WRITTEN + "quoted: [{method: A, idea: a, numbers: {one: '1'}}, {method: B, idea: b, numbers: {two: '2'}}]"
        )
        parsed(text, "x")


def test_the_formulas_give_the_checked_numbers():
    for vector, key, row, what in (
        ("000-P1", "eps", "dp-promise-section-6-2", "MNIST and Fashion-MNIST, S 900, 3 epochs, noise 7"),
        ("000-P2", "eps", "dp-promise-section-6-2", "CIFAR-10, S 900, 3 epochs, noise 1.19"),
        ("000-P3", "pld_add_remove", "dp-promise-section-6-2", "MNIST, Phase II alone, noise 1.13"),
        ("001-P4", "mu", "empirical-denoiser-figure-5", "sigma_min 0.002"),
        ("002-P1", "eps", "rapid-proposition-1", "one step at noise 1"),
        ("002-P2", "eps_pld_replace_one", "rapid-proposition-1", "MNIST, the same noise"),
        ("003-P1", "eps", "dp-ensemble-figure-3", "32x32"),
        ("003-P2", "eps", "dp-ensemble-figure-3", "100 images"),
        ("003-P3", "xi_A", "dp-ensemble-figure-2", "noise over the weight"),
        ("004-P1", "p_keep", "dppm-equation-6", "share that stays, epsilon 1, k = 10"),
        ("004-P2", "p_keep", "dppm-equation-6", "share that stays, epsilon 10, k = 5"),
    ):
        _, expected, near = facts(vector)
        assert formula(row, what) == near(expected[key]), (vector, row)


@pytest.mark.parametrize(
    ("row", "less", "more"),
    [
        ("dp-ensemble-figure-3", "32x32", "64x64"),
        ("dp-ensemble-figure-3", "32x32", "linear schedule"),
        ("dp-ensemble-figure-3", "32x32", "1 public step at each end"),
        ("dp-ensemble-figure-3", "32x32", "1,000 steps, 25 public"),
        ("dp-ensemble-figure-3", "32x32", "100 images"),
        ("dp-ensemble-figure-6", "linear, the last 50", "cosine, the last 50"),
        ("dp-ensemble-figure-6", "linear, the last 50", "linear, the last 10"),
        ("dp-ensemble-figure-6", "linear, the last 50", "64x64"),
        ("dp-ensemble-figure-2", "the cheaper of both", "formulation A alone"),
        ("dp-ensemble-figure-2", "the cheaper of both", "formulation B alone"),
        ("dppm-equation-6", "share that stays, epsilon 1, k = 10", "share that stays, epsilon 5, k = 10"),
        ("dppm-equation-6", "share that stays, epsilon 5, k = 10", "share that stays, epsilon 10, k = 10"),
        ("dppm-equation-6", "share that stays, epsilon 10, k = 20", "share that stays, epsilon 10, k = 5"),
        ("empirical-denoiser-figure-4", "the step after 50 %", "the step after 75 %"),
        ("empirical-denoiser-figure-4", "the step after 75 %", "the step after 83 %"),
        ("empirical-denoiser-figure-4", "the step after 83 %", "the step after 93 %"),
    ],
)
def test_the_curves_rise_and_fall_as_the_papers_draw_them(row, less, more):
    assert formula(row, less) < formula(row, more)


def test_the_claims_of_the_denoiser_are_those_that_its_paper_prints():
    """Table 4 to its last digit; in Table 3 single cells differ, which the page shows."""
    printed = [line for line in ROWS["empirical-denoiser-table-4"].small if line.paper]
    assert len(printed) == 12
    assert all(line.formula.value() == pytest.approx(line.paper, abs=1e-3) for line in printed)


def test_the_certificates_of_the_denoiser_price_the_steps_of_its_grid():
    """An exchange moves a step by mu, and the accountant takes what one record moves."""
    mus = Grid().mus()
    certified = [
        line for name in ("1", "4") for line in ROWS[f"empirical-denoiser-table-{name}"].small if line.certificate
    ]
    assert len(certified) == 5
    for line in certified:
        (mu,) = line.certificate.arguments["mus"]
        (step,) = window(line.formula.arguments["percent"], 100, True, len(mus))
        assert 2 * mu == pytest.approx(mus[step], rel=1e-6)


def test_a_formula_of_no_public_function_is_refused():
    for wrong in ("accountant/nothing", "accountant/_certify", "nobody/claim"):
        with pytest.raises(BadInput, match="nothing|_certify|nobody"):
            assert Formula(function=wrong).called


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("shows:", "show:", "rows.table-1.shows: Field required"),
        ("formula:", "method: dp-sgd, formula:", "must have a method or a formula, and not both"),
        ("formula: {function: accountant/gdp_epsilon}", "method: dp-sgd", "must name a score with its method"),
        (
            ', small: [{what: "one number", formula: {function: accountant/gdp_epsilon}}]',
            "",
            "neither a recipe nor a reason",
        ),
        ("shows:", "pictures: stops, shows:", "needs pictures: stops together with the noise levels of stops"),
        ("shows:", "stops: {at: [0.5]}, shows:", "needs pictures: stops together with the noise levels of stops"),
    ],
)
def test_a_mistake_in_a_file_names_its_place(before, after, words):
    assert parsed(WRITTEN, "x").rows["table-1"].place == "Table 1"
    with pytest.raises(BadInput, match=words):
        parsed(WRITTEN.replace(before, after), "x")


def test_sampling_stops_at_the_nearest_levels_of_its_grid():
    stops = Stops(grid=Levels(N=50), at=(0.5, 0.09, 0.05, 1e-9, 1e9))
    reached = stops.grid.levels()[list(stops.places)]
    assert reached[:3] == pytest.approx([0.5, 0.09, 0.05], rel=0.1)
    assert stops.places[3:] == (49, 1), "neither before the first step nor at the end"
    assert ROWS["empirical-denoiser-figure-7"].stops.places == stops.places[:3]


def test_a_person_names_papers_and_rows():
    every = papers()
    assert len(chosen([], every)) == len(ROWS)
    assert list(chosen(["dppm"], every)) == [name for name in ROWS if name.startswith("dppm-")]
    assert set(chosen(["dppm-table-1", "rapid"], every)) == {"dppm-table-1", *chosen(["rapid"], every)}
    with pytest.raises(BadInput, match="unknown paper or row 'rapid-tabel-1': did you mean 'rapid-table-1'"):
        chosen(["rapid-tabel-1"], every)


def test_a_digest_follows_what_is_done_and_not_how_it_is_worded():
    row = ROWS["dppm-table-1"]
    first, *rest = row.small
    worded = row.model_copy(update={"small": (first.model_copy(update={"what": "other words", "minutes": 1.0}), *rest)})
    changed = row.model_copy(update={"small": (first.model_copy(update={"score": "frechet"}), *rest)})
    assert row.digest("small") == worded.digest("small") != changed.digest("small")
    assert inventory.read("dppm").rows["table-1"].digest("small") == row.digest("small")
