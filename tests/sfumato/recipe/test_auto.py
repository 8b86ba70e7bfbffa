"""The recipe follows declared facts and the time, keeps what is set, and chooses what fits together."""

import functools
import math
import runpy
from pathlib import Path

import pytest

from sfumato.config import BackboneSettings, FineTuning, Latent, Recipe
from sfumato.costs import COSTS, autoencoder_work, denoiser_work
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.evaluation.effort import judging_seconds
from sfumato.methods import METHODS
from sfumato.methods.plan import Facts
from sfumato.networks.autoencoder import PATCHES, latent_shape
from sfumato.networks.build import build
from sfumato.preflight import preflight
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.engine.validation import survey
from sfumato.recipe.auto import CPU_SIDE, fold_of, follow, judged_sets, paths_set
from sfumato.recipe.stage_costs import Declared, stage_costs, trains_privately
from sfumato.recipe.stage_steps import FEWEST_OF_PHOTOGRAPHS
from sfumato.settings import Settings, preset_for, resolve
from tests.examples import write_classes

ROOT = Path(__file__).parents[3]
SHAPES = [(1, 8, 8), (1, 28, 28), (1, 28, 40), (3, 64, 64)]


def facts(shape=(1, 28, 28), records=10_000, classes=10, public_classes=52, **more):
    return Facts(
        records=records,
        classes=tuple(f"c{n}" for n in range(classes)),
        public_classes=public_classes,
        shape=shape,
        **more,
    )


def recipe(*changes, method="dp-sgd", images=60_000, **reported):
    return follow(resolve(method, "auto", changes), facts(**reported), images)


@pytest.mark.parametrize(("method", "shape"), [*(("rapid", shape) for shape in SHAPES), ("dp-ensemble", (3, 32, 32))])
def test_what_is_chosen_fits_together_and_the_engine_knows_it(shape, method):
    settings = recipe("recipe.minutes=2000", method=method, shape=shape)
    worked_on = latent_shape(settings.latent, shape)
    model = build(settings.network, worked_on, 10, alpha_bar=make_schedule(settings.schedule).alpha_bar)
    survey(model, trainable_parameters(model, settings.fine_tuning.trainable), worked_on)
    assert (settings.latent.kind == "none") == (max(shape[1:]) <= 16)
    assert settings.latent.kind == "none" or 7 <= min(worked_on[1:]) <= max(worked_on[1:]) <= 16
    assert settings.pretraining.steps >= 1000 and settings.fine_tuning.batch <= 10_000 / 2


def test_shares_of_a_very_large_target_are_small_and_not_none():
    settings = recipe("privacy.epsilon=1e6", records=60_000)
    assert 0 < settings.judge.share < 1e-4 and 0 < settings.alignment.share < 1e-4


@pytest.mark.parametrize("method", ["rapid", "dp-ensemble", "moments", "dppm"])
def test_every_method_has_a_recipe_with_a_reason_for_each_choice(method):
    settings = recipe(method=method, shape=(1, 8, 8))
    assert settings.method.name == method and settings.recipe.choices
    for choice in settings.recipe.choices:
        assert choice.why and choice.value and "\n" not in choice.why + choice.value
        value = settings
        for name in choice.setting.split("."):
            value = getattr(value, name)
        again = recipe(f"{choice.setting}={choice.value}", method=method, shape=(1, 8, 8))
        for name in choice.setting.split("."):
            again = getattr(again, name)
        assert again == value, "a value is told as a person would set it"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_planned_as_it_is_chosen(method, monkeypatch):
    for module in ("accountant.calibrate", "accountant.epsilon"):
        monkeypatch.setattr(
            f"sfumato.privacy.accounting.{module}", lambda *_, **__: 1.0
        )  # the price plays no part here
    settings = recipe(method=method)
    aligned = ("rapid", "dp-sgd", "dp-promise", "moments", "private-evolution", "empirical-denoiser")
    assert (settings.alignment.kind == "moments") == (method in aligned)
    assert (settings.fine_tuning == FineTuning()) == (not trains_privately(settings))


def test_class_moments_and_a_judge_where_they_pay():
    few, one, large = recipe(records=300), recipe(public_classes=1), recipe(shape=(3, 128, 128), records=60_000)
    assert (few.alignment.kind, few.judge.use) == ("none", "none")
    assert (one.alignment.kind, one.judge.use) == ("moments", "none"), "one public class teaches no features"
    assert (large.alignment.kind, large.judge.use) == ("none", "filter"), "second moments of too many numbers"
    shares = [recipe(f"privacy.epsilon={epsilon}", records=60_000) for epsilon in (10, 1, 0.2)]
    for result, epsilon in zip(shares, (10, 1, 0.2), strict=True):
        own = [result.alignment.share * epsilon, result.judge.share * epsilon]
        assert own[0] <= 0.711 and own[1] <= 0.651 and math.hypot(*own) < 0.8 * epsilon, "most is left for gradients"


def test_a_judge_that_noise_would_teach_is_not_paid_for_and_leaves_the_public_half_as_it_is():
    for method in ("dp-sgd", "moments", "dp-merf"):
        heard, unheard = (recipe(f"privacy.epsilon={epsilon}", method=method, records=1500) for epsilon in (10, 1))
        assert heard.judge.use != "none" == unheard.judge.use
        assert heard.pretraining == unheard.pretraining and heard.latent == unheard.latent
        assert unheard.backbone == BackboneSettings()
    requested = recipe("judge.use=weigh", "privacy.epsilon=1", records=1500)
    assert requested.judge.use == "weigh" and requested.backbone.steps > 1


def test_classes_with_fewer_records_need_less_noise_on_their_moments():
    costs = [10 * recipe(records=records).alignment.share for records in (120_000, 60_000, 30_000, 4_000)]
    assert costs == pytest.approx([0.71, 0.71, 1.42, 2.7], abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "records", "cells"), [(10, 60_000, 64), (10, 10_000, 8), (1, 60_000, 8), (1, 10_000, 1)]
)
def test_classes_are_split_into_as_many_cells_as_their_records_and_the_budget_bear(epsilon, records, cells):
    settings = recipe(f"privacy.epsilon={epsilon}", method="moments", records=records)
    assert settings.alignment.cells == cells and settings.alignment.clusters == 1
    beside = recipe(f"privacy.epsilon={epsilon}", method="dp-sgd", records=records)
    assert beside.alignment.cells == 1, "an MLP trains more than class rows"


def test_a_network_that_learns_class_rows_alone_has_cells_too():
    rows = recipe("privacy.epsilon=10", method="dp-sgd", shape=(3, 28, 28), records=10_000)
    assert rows.network.kind == "unet" and rows.alignment.cells == 8


def test_mean_embeddings_ask_no_public_denoiser_and_have_a_judge():
    settings = recipe(method="dp-merf")
    assert settings.pretraining.steps == 0 and settings.alignment.kind == "none" and settings.judge.use == "filter"
    assert settings.method.training.steps > 1000 and settings.latent.steps > 1000
    assert settings.network.width > recipe(method="dp-sgd").network.width
    assert recipe(method="dp-merf", shape=(3, 32, 32)).network.kind == "mlp"
    small = recipe(method="dp-merf", shape=(1, 8, 8))
    usual = resolve("dp-merf", "digits").method
    assert small.method.frequencies == usual.frequencies < settings.method.frequencies
    assert recipe("pretraining.steps=5", method="dp-merf").pretraining.steps == 5, "for `generation.refine`"


def test_what_was_tried_with_features_of_a_kernel_is_not_taken_for_others():
    settings = recipe(method="dp-mepf")
    assert settings.pretraining.steps == 0 and settings.judge.use == "filter" and settings.latent.steps > 1000
    usual = resolve("dp-mepf", "digits").method
    assert settings.method.training.learning_rate == usual.training.learning_rate
    assert settings.backbone.steps > 300 and settings.method.training.steps >= 1


def test_a_gpu_gets_another_recipe_and_colour_another_network():
    grey, gpu = recipe(), recipe("recipe.device=gpu")
    colour, large = recipe(shape=(3, 32, 32)), recipe(shape=(3, 64, 64))
    assert [result.network.kind for result in (grey, gpu, colour, large)] == ["mlp", "dit", "unet", "dit"]
    assert (colour.network.multipliers, colour.network.width, colour.pretraining.batch) == ((1,), 64, 32)
    assert large.network.patch == 4, "16x16 positions in 16 squares"
    assert gpu.network.width > large.network.width and gpu.pretraining.steps > grey.pretraining.steps / 2
    assert colour.backbone.mirror and not grey.backbone.mirror


def test_few_private_steps_of_more_copies_where_epsilon_times_records_is_little():
    rich, little = recipe("privacy.epsilon=10"), recipe("privacy.epsilon=0.2")
    assert (rich.fine_tuning.draws, little.fine_tuning.draws, little.fine_tuning.steps) == (2, 4, 60)
    assert rich.fine_tuning.steps > 60 and rich.pretraining.steps == little.pretraining.steps, (
        "one public half for all targets"
    )


def test_the_page_has_the_table_that_is_printed():
    page = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    printed = runpy.run_path(str(ROOT / "benchmarks" / "recipe.py"))["table"]
    assert page.endswith("\n".join(printed()) + "\n"), "print it anew: benchmarks/recipe.py --table"


def test_two_machines_and_two_calls_choose_the_same(monkeypatch):
    first = recipe(shape=(3, 32, 32))
    monkeypatch.setattr("sfumato.costs.torch.get_num_threads", lambda: 64)
    denoiser_work.cache_clear()
    autoencoder_work.cache_clear()
    assert recipe("machine.device=cuda", "machine.threads=9", shape=(3, 32, 32)).what() == first.what()


def test_what_was_resolved_is_not_chosen_again():
    first = recipe()
    stored = Settings.model_validate({**first.what(), "machine": first.machine})
    assert follow(stored, facts(), 60_000) == follow(first, facts(records=77), 5) == first


def test_what_is_set_wins_and_the_rest_follows_from_it():
    usual, mine = recipe(), recipe("network.width=32", "fine_tuning.steps=7", "latent.channels=1")
    assert (mine.network.width, mine.fine_tuning.steps, mine.latent.channels) == (32, 7, 1)
    reported = {choice.setting for choice in mine.recipe.choices}
    assert not reported & {"network.width", "fine_tuning.steps", "latent.channels"} and "network.blocks" in reported
    assert mine.pretraining.steps > usual.pretraining.steps, "a smaller network has time for more steps"
    assert set(paths_set(resolve("rapid", "auto", ["network.width=32", "seed=3"]))) == {
        "method.name", "network.width", "recipe.kind", "seed"
    }  # fmt: skip


def test_nothing_is_inherited_across_kinds():
    mlp, unet = recipe("network.kind=mlp"), recipe("network.kind=unet")
    assert unet.network.width < mlp.network.width and len(unet.network.multipliers) >= 1
    retained = resolve("rapid", "digits").network
    other = resolve("rapid", "digits", ["network.kind=unet"]).network
    assert retained.width == 192 and other.width == 0, "the preset's width is one of an MLP"
    assert resolve("rapid", "digits", ["network.kind=mlp", "network.blocks=3"]).network.width == 192
    assert resolve("rapid", "rapid-mnist", ["latent.kind=none"]).latent == type(unet.latent)()


def test_patches_set_by_hand_are_none_of_the_other_kinds():
    result = resolve("dp-sgd", "digits", ["latent.kind=patch", "latent.batch=64"]).latent
    assert result == PATCHES.model_copy(update={"batch": 64})
    other = resolve("dp-sgd", "digits", ["latent.kind=kl"]).latent
    assert other == Latent(kind="kl"), "what is another kind's stays as it was"
    open_ones = resolve("dp-sgd", "auto", ["latent.kind=patch"]).latent
    assert open_ones.model_fields_set == {"kind"}, "the recipe fills them in, and says why"
    chosen = recipe("latent.kind=patch", "latent.batch=64").latent
    assert (chosen.width, chosen.batch, chosen.loss) == (PATCHES.width, 64, PATCHES.loss)


def test_more_time_never_means_less():
    before = None
    for minutes in (20, 30, 60, 1000):
        now = recipe(f"recipe.minutes={minutes}", method="rapid", images=20_000)
        steps = [now.latent.steps, now.pretraining.steps, now.fine_tuning.steps, now.generation.images]
        assert before is None or all(later >= sooner for later, sooner in zip(steps, before, strict=True)), minutes
        before = steps


def test_the_time_is_kept_by_the_table():
    settings, reported = recipe(method="rapid"), facts()
    costs = stage_costs(settings, Declared(reported, 60_000))
    numbers = {"extractor": settings.method.extractor.steps, "drawing": settings.generation.images}
    seconds = sum(
        cost * numbers.get(name, getattr(getattr(settings, name, None), "steps", 0)) for name, cost in costs.items()
    )
    assert 0.5 * 3600 < seconds <= 3600


def test_the_keys_of_a_knowledge_base_take_a_tenth_of_the_time_and_all_of_them_where_they_fit():
    crowd = {"method": "rapid", "images": 110_000, "public_classes": 200}
    few = recipe("recipe.minutes=15", "data.public=photographs", **crowd)
    assert 500 <= few.method.trajectories < few.method.reference * 110_000
    keys = few.method.trajectories * stage_costs(few, Declared(facts(public_classes=200), 110_000))["trajectories"]
    assert keys <= 0.1 * 15 * 60
    assert recipe("recipe.minutes=15", **(crowd | {"images": 3000})).method.trajectories == 900
    assert recipe("recipe.minutes=15", "method.trajectories=77", **crowd).method.trajectories == 77
    assert recipe("method.neighbour=random", **crowd).method.trajectories == 0


@pytest.mark.parametrize(
    ("shape", "classifiers"),
    [((1, 28, 28), "fast"), ((1, 28, 28), "all"), ((3, 32, 32), "fast"), ((3, 64, 64), "fast")],
)
def test_judging_takes_a_quarter_of_the_time_at_most(shape, classifiers):
    requested = [f"evaluation.classifiers={classifiers}", "evaluation.scikit_images=1"]
    result = recipe(*requested, shape=shape, records=60_000)
    how, drawn, quarter = result.evaluation, result.generation.images, 0.25 * 3600
    takes = functools.partial(judging_seconds, table=COSTS["cpu"], sizes=judged_sets(result, facts(shape, 60_000)))
    assert takes(how, judged=how.images) <= quarter
    assert 2000 <= how.images <= drawn and (how.epochs == 50 or (classifiers == "all" and how.epochs >= 10))
    longer = how.model_copy(update={"epochs": how.epochs + 1})
    assert how.images == drawn or takes(longer, judged=drawn) > quarter, "no less than there is time for"


def test_papers_are_judged_as_they_were():
    assert resolve("rapid", "rapid-mnist").evaluation.epochs == 50
    result = recipe("evaluation.classifiers=all", "evaluation.epochs=50", "evaluation.images=30000", shape=(3, 64, 64))
    assert (result.evaluation.epochs, result.evaluation.images) == (50, 30_000), "what is set stays"


def test_a_time_too_short_for_steps_that_were_asked_for_says_which():
    with pytest.raises(
        BadInput, match=r"recipe.minutes=1 is too short .* with the steps that fine_tuning.steps asks for: use --set"
    ):
        recipe("recipe.minutes=1", "fine_tuning.steps=30000", shape=(1, 8, 8))


def test_a_time_too_short_says_what_fits():
    with pytest.raises(BadInput) as error:
        recipe("recipe.minutes=1.5", shape=(3, 64, 64))
    stated = str(error.value)
    assert "\n" not in stated and "recipe.minutes=1.5 is too short for images of 64x64 on a CPU" in stated
    minutes = int(stated.split("--set recipe.minutes=")[1].split(",")[0])
    assert recipe(f"recipe.minutes={minutes}", shape=(3, 64, 64)).pretraining.steps >= 1000
    if "data.size=" in stated:
        side = int(stated.split("data.size=")[1])
        assert recipe("recipe.minutes=1.5", shape=(3, side, side)).pretraining.steps >= 1000


def test_a_size_that_does_not_divide_is_refused_with_one_that_does():
    with pytest.raises(BadInput, match=r"31x31 pixels .*data\.size=(\d+)") as error:
        recipe(shape=(1, 31, 31))
    side = int(str(error.value).rsplit("=", 1)[1])
    assert fold_of(side, side) and abs(side - 31) <= 4
    assert recipe("latent.kind=none", "network.kind=mlp", shape=(1, 31, 31)).latent.kind == "none"


@pytest.mark.parametrize(("device", "side"), [("cpu", CPU_SIDE), ("gpu", 256)])
def test_images_that_are_too_large_are_brought_to_what_the_device_bears(device, side):
    with pytest.raises(BadInput, match=rf"512x600 pixels .*data\.size={side}$"):
        recipe(f"recipe.device={device}", shape=(3, 512, 600))


def test_less_privacy_budget_and_fewer_records_train_less():
    rich, poor = recipe(records=60_000), recipe("privacy.epsilon=.2", records=2_500)
    assert set(poor.fine_tuning.trainable) < set(rich.fine_tuning.trainable)
    assert poor.fine_tuning.steps < rich.fine_tuning.steps and poor.fine_tuning.batch < rich.fine_tuning.batch
    grouped = recipe(records=277, unit="person", images=9_000)
    assert 277 / 8 < grouped.fine_tuning.batch < 277 / 2


def test_after_class_moments_a_network_over_positions_trains_its_class_rows_alone():
    """Noise on modulation and attention makes a public model forget more than private records teach it."""
    few, many = (recipe(shape=(3, 32, 32), records=count) for count in (3_900, 60_000))
    for result in (few, many):
        assert result.alignment.kind == "moments" and result.alignment.share == 0.7
        assert result.fine_tuning.trainable == ("rows",) and result.fine_tuning.rate_rows == 0.01
    alone = recipe("privacy.epsilon=.2", "alignment.kind=none", records=2_500)
    assert alone.fine_tuning.trainable == ("rows",) and alone.fine_tuning.rate_rows == 0.05
    plain = recipe("alignment.kind=none", shape=(3, 32, 32), records=3_900)
    assert "film" in plain.fine_tuning.trainable, "without moments it is training that brings the class"
    small, large = recipe(records=3_900), recipe(records=60_000)
    assert "film" in small.fine_tuning.trainable and "rest" in large.fine_tuning.trainable, (
        "an MLP was not seen to forget"
    )
    assert 2 * large.alignment.share < few.alignment.share


def test_digits_keep_their_preset_and_all_other_data_follow_the_recipe(tmp_path):
    folder = write_classes(tmp_path / "scans", {"ill": 30, "well": 30})
    public = write_classes(tmp_path / "open", {"a": 30, "b": 30})
    assert (preset_for(""), preset_for("", [f"data.private={folder}"]), preset_for("mnist")) == (
        "digits",
        "auto",
        "mnist",
    )
    assert resolve("rapid").recipe == Recipe() and resolve("rapid").network.width == 192
    settings, reported, _ = preflight(resolve("dp-sgd", changes=[f"data.private={folder}", f"data.public={public}"]))
    assert settings.recipe.choices and settings.fine_tuning != FineTuning()
    assert preflight(settings)[:2] == (settings, reported), "settled twice, nothing changes"
    with pytest.raises(BadInput, match="--preset auto"):
        resolve("rapid", "digits", [f"data.private={folder}"])
    with pytest.raises(BadInput, match=r"recipe\.minutes=5.0 decides nothing.*--preset auto"):
        preflight(resolve("rapid", changes=["recipe.minutes=5"]))


def test_every_kind_of_network_has_its_costs():
    for table in COSTS.values():
        for cost in table.values():
            assert cost.work > 0 and math.isfinite(cost.step)
    assert set(COSTS["cpu"]) == set(COSTS["gpu"])


@pytest.mark.parametrize("records", [10_000, 100_000])
def test_private_steps_leave_the_public_half_its_time(records):
    """However many records there are: with 100,000 forty steps of 8,192 once left 1,000 public steps of 20,000."""
    made = recipe(shape=(3, 32, 32), records=records)
    assert made.pretraining.steps > 10_000 and made.fine_tuning.steps >= 40 and made.fine_tuning.batch >= 1024


@pytest.mark.parametrize(
    ("public", "shape", "numbers"),
    [
        ("omniglot+glyphs", (1, 28, 28), (2, 7, 7)),
        ("textures", (1, 28, 28), (6, 7, 7)),
        ("omniglot+textures", (1, 28, 28), (6, 7, 7)),
        ("glyphs", (3, 32, 32), (6, 8, 8)),
        ("textures", (1, 64, 64), (4, 16, 16)),
        ("textures", (3, 64, 64), (4, 16, 16)),
    ],
)
def test_strokes_need_few_numbers_and_photographs_more(public, shape, numbers):
    assert latent_shape(recipe(f"data.public={public}", shape=shape).latent, shape) == numbers


def test_little_time_still_teaches_an_autoencoder_of_photographs_what_a_rehearsal_asks():
    short = "recipe.minutes=8"
    assert recipe(short, "data.public=textures").latent.steps >= FEWEST_OF_PHOTOGRAPHS["latent"]
    assert recipe(short, "data.public=glyphs").latent.steps < FEWEST_OF_PHOTOGRAPHS["latent"]


def test_the_time_of_a_query_is_measured_unless_a_person_chose_it():
    free, fixed, one = (
        recipe(*changes, method="rapid", public_classes=classes).method
        for changes, classes in (([], 52), (["method.k=0.75"], 52), ([], 1))
    )
    assert free.times == (0.8, 0.7) and fixed.times == one.times == () and fixed.k == 0.75 and one.k == 0.7
    assert free.extractor.contrast == fixed.extractor.contrast == "classes" and one.extractor.contrast == "views"
    assert recipe("method.v=0.45", method="rapid").method.times == (0.8, 0.7, 0.6, 0.5)
