"""Which runs a comparison makes, that all are checked before the first begins, and in what order they pay."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from artifacts.record import save_record
from artifacts.reports.comparison import Comparison, row_of
from artifacts.tracking import COMMIT, INTERNAL, REASON, SHAREABLE, SOURCE
from flows import compare as flow
from flows.cli import compare as compare_cli
from flows.compare import compare
from flows.variants import RunGrid, named_sweep, planned, sweep_over, variants_of
from sfumato.errors import BadInput, Refused
from sfumato.named_settings import sweeps
from tasks.comparison import comparing
from tasks.runtime.environment import configure, where
from tests.examples import home_at, keep_samples, make_certificate, make_record
from tests.sfumato.sources.test_named import offline  # noqa: F401 (a fixture)

QUICK = ["fine_tuning.steps=1", "fine_tuning.sample_rate=1"]


def test_every_variant_meets_every_budget_and_seed():
    cells = planned(RunGrid(["rapid method.k=0.6", "dp-sgd"], "digits", [1.0, 10.0], [0, 3], QUICK))
    assert [(c.variant, c.epsilon, c.run.settings.seed) for c in cells[:4]] == [
        ("rapid method.k=0.6", 1.0, 0), ("rapid method.k=0.6", 1.0, 3),
        ("rapid method.k=0.6", 10.0, 0), ("rapid method.k=0.6", 10.0, 3),
    ]  # fmt: skip
    assert len(cells) == 8 and cells[0].run.settings.method.k == 0.6 and cells[-1].run.settings.method.name == "dp-sgd"
    assert not any(cell.run.settings.evaluation.baseline for cell in cells)
    assert all(cell.run.plan.certificate.epsilon <= cell.epsilon for cell in cells)


def test_what_votes_do_by_themselves_stands_beside_methods_that_take_them():
    grid = RunGrid(["rapid", "dp-sgd"], "digits", [10.0], [0], QUICK, controls=True)
    assert [cell.variant for cell in planned(grid)] == ["rapid", "dp-sgd", "dp-sgd method.votes=true"]
    without = replace(grid, variants=["rapid method.votes=false", "dp-sgd"])
    assert [cell.variant for cell in planned(without)] == without.variants, "none takes votes"


def test_a_mistake_in_the_last_variant_stops_before_the_first_run():
    with pytest.raises(BadInput, match=r"method\.v=0\.9 is not below method\.k"):
        planned(RunGrid(["dp-sgd", "rapid method.v=0.9"], "digits", [1.0], [0], QUICK))


def test_data_sets_by_name_are_found_in_the_data_folder(tmp_path, made, offline, monkeypatch):  # noqa: F811
    """The folder that the environment names reaches the plans of the command and of the flow."""
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "sets"))
    with pytest.raises(BadInput, match=f"'fashion-mnist' is not in '{tmp_path / 'sets'}"):
        planned(RunGrid(["dp-sgd"], changes=["data.private=fashion-mnist"]))
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "named"))
    with pytest.raises(BadInput, match=f"'fashion-mnist' is not in '{tmp_path / 'named'}"):
        compare.fn(["dp-sgd"], changes=["data.private=fashion-mnist"])


@pytest.mark.parametrize(
    ("variants", "message"),
    [(["rapid", "rapid"], "twice"), (["rapide"], "did you mean 'rapid'"), (["rapid k"], "--set 'k'")],
)
def test_bad_variants_are_named(variants, message):
    with pytest.raises(BadInput, match=message):
        planned(RunGrid(variants, "digits", [], [0], QUICK))


def test_a_variant_may_start_from_a_preset_of_its_own():
    one, other = planned(RunGrid(["dp-sgd", "dp-sgd preset=lora fine_tuning.rank=2"], "digits", [], [0], QUICK))
    assert (one.run.preset, one.run.settings.fine_tuning.rank) == ("digits", 0)
    assert (other.run.preset, other.run.settings.fine_tuning.rank) == ("lora", 2)
    assert "attention" in other.run.settings.fine_tuning.trainable
    with pytest.raises(BadInput, match="did you mean 'lora'"):
        planned(RunGrid(["dp-sgd preset=lorra"], "digits", [], [0], QUICK))


def test_a_sweep_changes_one_setting_at_a_time():
    result = sweep_over(["method.k=0.3,0.5", "fine_tuning.batch=16"], "rapid")
    assert result.axes["method.k"] == {"0.3": "rapid method.k=0.3", "0.5": "rapid method.k=0.5"}
    assert variants_of(result.axes) == ["rapid method.k=0.3", "rapid method.k=0.5", "rapid fine_tuning.batch=16"]
    with pytest.raises(BadInput, match="--over 'method.k='"):
        sweep_over(["method.k="])


@pytest.mark.parametrize("name", sweeps())
def test_every_sweep_that_is_written_down_can_be_planned(name):
    result = named_sweep(name)
    cells = planned(RunGrid(variants_of(result.axes), result.preset, [], [0], [*result.changes, *QUICK]))
    assert sweeps()[name]["why"] and len(cells) == len(variants_of(result.axes))
    for values in result.axes.values():
        assert len(values) > 1 and len(
            {cell.run.settings.model_dump_json() for cell in cells if cell.variant in values.values()}
        ) == len(values)


def test_what_is_written_down_becomes_variants_and_what_holds_for_all(monkeypatch):
    axes = {
        "fine_tuning.batch": [16, 64],
        "fine_tuning.trainable": [["rows", "film"]],
        "who": {"me": "dp-sgd preset=lora"},
    }
    made = {"preset": "dpdm", "method": "rapid", "settings": {"fine_tuning": {"steps": 3}, "seed": 2}, "axes": axes}
    monkeypatch.setattr("flows.variants.sweeps", lambda: {"one": made})
    result = named_sweep("one")
    assert result.preset == "dpdm" and variants_of(result.axes) == [
        "rapid fine_tuning.batch=16", "rapid fine_tuning.batch=64",
        'rapid fine_tuning.trainable=["rows","film"]', "dp-sgd preset=lora",
    ]  # fmt: skip
    cells = planned(RunGrid(variants_of(result.axes)[2:], result.preset, [], [0], [*result.changes, *QUICK[1:]]))
    assert cells[0].run.settings.fine_tuning.steps == 3 and cells[0].run.settings.fine_tuning.trainable == (
        "rows",
        "film",
    )
    with pytest.raises(BadInput, match="unknown sweep 'oen': did you mean 'one'"):
        named_sweep("oen")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """What was asked of `run_plan`, which makes a record without any work."""
    requested = []
    with home_at(tmp_path / "home"):
        place = configure()
        samples = keep_samples(place.store())

        def run_plan(run, wishes):
            name = f"run-{len(requested)}"
            requested.append((run, wishes))
            folder = place.runs / name
            folder.mkdir(parents=True)
            metrics = {
                "synthetic": dict.fromkeys(
                    ("frechet", "coverage", "readable", "logistic", "cnn"), 0.5 + run.settings.seed
                )
            }
            facts = {"run": name, "metrics": metrics, "samples_artifact": samples.digest, "label": samples.label}
            record = make_record(folder, plan=run.plan, **facts)
            save_record(folder, record)
            return record

        monkeypatch.setattr(flow, "run_plan", run_plan)
        monkeypatch.setattr(flow, "create_markdown_artifact", lambda *_, **__: None)
        yield requested


def test_each_run_is_told_what_will_be_paid_after_it(made):
    result = compare.fn(["dp-sgd"], epsilons=[1.0, 2.0], seeds=[0, 1], changes=QUICK)
    assert [len(wishes.following) for _, wishes in made] == [3, 2, 1, 0]
    assert made[0][1].following[0] == made[1][0].plan.spends[0].event
    (first, second) = result.rows
    assert (first.target, first.runs, second.runs) == (1.0, ("run-0", "run-1"), ("run-2", "run-3"))
    assert first.scores["cnn"].mean == pytest.approx(1.0)


def test_what_is_paid_for_another_private_set_is_not_asked_of_the_budget_of_this_one(made):
    compare.fn(["dp-sgd data.name=here", "dp-sgd data.name=there"], epsilons=[1.0], seeds=[0, 1], changes=QUICK)
    assert [(run.settings.data.name, len(wishes.following)) for run, wishes in made] == [
        ("here", 1),
        ("here", 0),
        ("there", 1),
        ("there", 0),
    ]


def test_table_plot_and_page_lie_in_one_folder_and_runs_below_one_parent(made):
    result = compare.fn(["dp-sgd", "rapid"], seeds=[0], changes=QUICK)
    folder = Path(result.folder)
    names = {"comparison.json", "comparison-internal.html", "tables-internal", "samples.png", "trade-off-internal.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert len(json.loads((folder / "comparison.json").read_text())["rows"]) == 2
    above = {wishes.above["INTERNAL"] for _, wishes in made}
    assert len(above) == 1 and all(above)


def test_a_sweep_draws_its_values_and_each_run_keeps_its_preset(made):
    axes = {"sampler": {"ddim": "dp-sgd", "pndm": "dp-sgd generation.solver=pndm"}, "rank": {"4": "dp-sgd preset=lora"}}
    result = compare.fn(axes=axes, seeds=[0], changes=QUICK)
    assert (Path(result.folder) / "sweep-internal.png").exists()
    assert not (Path(result.folder) / "trade-off-internal.png").exists()
    assert [run.preset for run, _ in made] == ["digits", "digits", "lora"]
    table = Path(result.folder) / "tables-internal" / "comparison.csv"
    assert "rank,4,10," in table.read_text()


def test_pairs_are_subtracted_seed_by_seed_in_table_picture_and_json(made, monkeypatch):
    made_run = flow.run_plan

    def run_plan(run, wishes):
        """The judge is worth .1 with the first seed and .3 with the second."""
        record, gain = made_run(run, wishes), (0.1, 0.3)[run.settings.seed]
        if run.settings.judge.use == "none":
            return record
        scores = record.metrics["synthetic"]
        return record.model_copy(update={"metrics": {"synthetic": {**scores, "cnn": scores["cnn"] + gain}}})

    monkeypatch.setattr(flow, "run_plan", run_plan)
    comparison = compare.fn(["dp-sgd"], epsilons=[1.0, 2.0], seeds=[0, 1], changes=QUICK, pairs=["judge"])
    assert [row.target for row in comparison.pairs] == [1.0, 2.0] and comparison.pairs[0].seeds == 2
    value = comparison.pairs[1].scores["cnn"]
    assert value.mean == pytest.approx(0.2) and value.high - value.mean == pytest.approx(12.706 * 0.1, rel=1e-3)
    folder = Path(comparison.folder)
    stored = json.loads((folder / "comparison.json").read_text())["pairs"]
    assert stored[0]["pair"] == {"part": "judge", "variant": "dp-sgd judge.use=weigh", "without": "dp-sgd"}
    assert (folder / "differences-internal.png").exists()
    assert "judge,dp-sgd judge.use=weigh,dp-sgd,1," in (folder / "tables-internal" / "differences.csv").read_text()


def test_a_screen_shows_differences_and_what_their_intervals_hold(made, monkeypatch):
    comparison = compare.fn(["dp-sgd"], seeds=[0, 1], changes=QUICK, pairs=["judge", "votes"])
    screen = Console(width=80, record=True)
    monkeypatch.setattr(compare_cli, "OUT", screen)
    compare_cli.show(comparison)
    text = screen.export_text()
    assert "With a part minus without it: INTERNAL" in text and "without: dp-sgd" in text and "Frechet" in text
    assert "2 paired seeds" in text and "never seeded" in " ".join(text.split()) and "differences-internal.png" in text
    assert (
        max(len(line) for line in text.splitlines() if not line.startswith(("INTERNAL", "diff", "scores", "pict")))
        <= 80
    )


def test_a_comparison_that_is_refused_leaves_no_folder(made, monkeypatch):
    def refuse(*_, **__):
        raise Refused("epsilon 1 of 25 left")

    monkeypatch.setattr(flow, "run_plan", refuse)
    with pytest.raises(Refused, match="1 of 25"):
        compare.fn(["dp-sgd"], seeds=[0], changes=QUICK)
    assert list((where().home / "comparisons").iterdir()) == []
    shown, internal = (_last(experiment) for experiment in (SHAREABLE, INTERNAL))
    assert {shown.info.status, internal.info.status} == {"FAILED"} and "25 left" not in str(shown.data.tags)
    assert internal.data.tags[REASON] == "Refused: epsilon 1 of 25 left"


def _last(experiment: str):
    """The MLflow run of this experiment that began last."""
    client = where().tracker().client()
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id], max_results=1)[0]


def test_in_mlflow_a_comparison_lasts_until_its_end_and_says_from_which_commit(made):
    with comparing("a title") as (_, parents):
        assert _last(SHAREABLE).info.status == "RUNNING" and _last(SHAREABLE).info.run_id == parents["PUBLIC"]
    run = _last(SHAREABLE)
    assert run.info.status == "FINISHED" and run.info.end_time >= run.info.start_time
    assert run.data.tags[SOURCE] == "sfumato" and COMMIT in run.data.tags


def test_two_comparisons_in_the_same_second_have_folders_of_their_own(made):
    with comparing("a title") as (one, _), comparing("a title") as (other, _):
        assert one != other and len(list((where().home / "comparisons").iterdir())) == 2


# Side by side


@pytest.mark.slow
def test_side_by_side_where_the_budget_bears_all(prefect_server, made):
    """Nobody is told of the others then: what they reserve is in the ledger."""
    result = compare.fn(["dp-sgd"], seeds=[0, 1, 2], changes=[*QUICK, "machine.runner=threads", "machine.workers=1"])
    assert result.rows[0].runs == ("run-0", "run-1", "run-2")
    assert [wishes.following for _, wishes in made] == [()] * 3
    assert {run.settings.machine.runner for run, _ in made} == {"inline"}


@pytest.mark.slow
def test_one_after_another_where_it_does_not(prefect_server, made):
    with where().ledger() as ledger:
        ledger.set_budget("digits", 12.0, 1e-3)
    compare.fn(["dp-sgd"], seeds=[0, 1], changes=[*QUICK, "machine.runner=threads", "privacy.delta=1e-3"])
    assert [len(wishes.following) for _, wishes in made] == [1, 0]


def test_a_narrow_screen_says_of_each_row_what_it_covers(tmp_path, monkeypatch):
    made = [
        make_record(tmp_path, certificate=make_certificate(images=10)),
        make_record(tmp_path, certificate=None, label="INTERNAL"),
    ]
    rows = [
        row_of(name, 10.0, [one])
        for name, one in zip(("dp-ensemble method.clipped=prediction", "dppm"), made, strict=True)
    ]
    screen = Console(width=80, record=True)
    monkeypatch.setattr(compare_cli, "OUT", screen)
    compare_cli.show(Comparison(name="compare", folder="home/comparison", rows=tuple(rows)))
    text = screen.export_text()
    assert "DP, covers 10" in text and "INTERNAL" in text and "certificate" in text.split("dppm")[1]
    assert max(map(len, text.splitlines())) <= 80
