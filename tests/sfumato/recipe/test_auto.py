"""The recipe follows declared facts and the time, keeps what is set, and chooses what fits together."""

import math
import runpy
from pathlib import Path

import pytest

from sfumato.config import FineTuning, Latent, Recipe
from sfumato.costs import COSTS, autoencoder_work, denoiser_work
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.networks.autoencoder import PATCHES, latent_shape
from sfumato.networks.build import build
from sfumato.preflight import preflight
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.engine.validation import survey
from sfumato.recipe.auto import follow
from sfumato.recipe.picks import paths_set
from sfumato.recipe.stage_costs import Declared, stage_costs, trains_privately
from sfumato.settings import Settings, preset_for, resolve
from tests.examples import write_classes
from tests.sfumato.recipe.making import facts, recipe

ROOT = Path(__file__).parents[3]
SHAPES = [(1, 8, 8), (1, 28, 28), (1, 28, 40), (3, 64, 64)]


@pytest.mark.parametrize(("method", "shape"), [*(("rapid", shape) for shape in SHAPES), ("dp-ensemble", (3, 32, 32))])
def test_what_is_chosen_fits_together_and_the_engine_knows_it(shape, method):
    settings = recipe("recipe.minutes=2000", method=method, shape=shape)
    worked_on = latent_shape(settings.latent, shape)
    model = build(settings.network, worked_on, 10, alpha_bar=make_schedule(settings.schedule).alpha_bar)
    survey(model, trainable_parameters(model, settings.fine_tuning.trainable), worked_on)
    assert (settings.latent.kind == "none") == (max(shape[1:]) <= 16)
    assert settings.latent.kind == "none" or 7 <= min(worked_on[1:]) <= max(worked_on[1:]) <= 16
    assert settings.pretraining.steps >= 1000 and settings.fine_tuning.batch <= 10_000 / 2


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
    aligned = set(METHODS) - {"dp-merf", "dp-mepf", "dppm"}
    assert (settings.alignment.kind == "moments") == (method in aligned)
    assert (settings.fine_tuning == FineTuning()) == (not trains_privately(settings))


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
