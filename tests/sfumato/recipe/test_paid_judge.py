"""A judge keeps the surest of what is drawn: fewer of photographs than of strokes, and the time bears what is drawn for them."""

import pytest

from sfumato.recipe.paid_judge import KEEP, allowing_for_judge, could_be_judged
from sfumato.recipe.stage_costs import Declared
from sfumato.settings import resolve
from tests.sfumato.recipe.making import facts, recipe

PHOTOGRAPHS = {"shape": (3, 32, 32), "records": 2500, "classes": 5, "public_classes": 195}
CLOSE = "data.public=textures"


@pytest.mark.parametrize("method", ["rapid", "dp-sgd", "moments", "private-evolution", "dp-merf"])
def test_photographs_are_sorted_out_more_than_strokes(method):
    strokes = recipe("data.public=omniglot+glyphs", method=method, records=60_000).judge
    photographs = recipe(CLOSE, method=method, **PHOTOGRAPHS).judge
    assert (strokes.use, strokes.keep) == ("filter", KEEP["strokes"])
    assert (photographs.use, photographs.keep) == ("filter", KEEP["other"])


def test_what_is_thrown_away_is_drawn_in_the_time_too():
    judged, other = recipe(CLOSE, **PHOTOGRAPHS), recipe(CLOSE, "judge.use=none", **PHOTOGRAPHS)
    assert judged.generation.images == pytest.approx(KEEP["other"] * other.generation.images, rel=0.01)
    chosen = recipe(CLOSE, "judge.keep=.8", **PHOTOGRAPHS)
    assert chosen.judge.keep == 0.8 and chosen.generation.images > judged.generation.images, "what a person set stays"


def test_no_judge_where_noise_would_teach_it_and_the_same_public_half():
    rich, poor = (recipe(CLOSE, f"privacy.epsilon={epsilon}", **PHOTOGRAPHS) for epsilon in (10, 0.5))
    assert (rich.judge.use, poor.judge.use) == ("filter", "none")
    assert rich.pretraining == poor.pretraining and rich.latent == poor.latent


@pytest.mark.parametrize("method", ["dppm", "empirical-denoiser", "dp-ensemble"])
def test_a_method_that_draws_its_own_labels_or_pays_for_its_images_has_none(method):
    declared = Declared(facts(records=60_000), 60_000, frozenset())
    settings = resolve(method, "auto", ())
    assert not could_be_judged(settings, declared) and allowing_for_judge(settings, declared) == settings
