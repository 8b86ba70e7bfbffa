"""The ensemble's part of the recipe: heads, as many paid images as the budget bears, and all of it within the time."""

import pytest

from sfumato.methods import METHODS
from sfumato.methods.dp_ensemble import unit_cost, voices
from sfumato.methods.plan import STAGE_DRAWING
from sfumato.recipe.ensemble import FOR_ONE_IMAGE, MOST_MEMBERS, most_prototypes
from sfumato.recipe.stage_costs import Declared, stage_costs
from sfumato.recipe.stage_steps import stated
from tests.sfumato.recipe.making import facts, recipe


def ensemble(*changes, **reported):
    return recipe(*changes, method="dp-ensemble", **reported)


def test_members_are_heads_of_few_records_and_no_more_than_answer_in_time():
    many, few = ensemble(records=60_000), ensemble(shape=(1, 8, 8), records=1437)
    assert (many.method.members, few.method.members) == (MOST_MEMBERS, 205)
    assert many.method.adapters and few.method.adapters
    assert (many.method.abstain, few.method.abstain) == (False, True), "seven records are not of all ten classes"


def test_as_many_images_are_paid_for_as_deviations_of_some_norm_bear():
    paid = [most_prototypes(members, epsilon, 10) for members, epsilon in ((1000, 10), (200, 10), (1000, 1), (20, 1))]
    assert paid == [228, 9, 2, 1]


@pytest.mark.parametrize("minutes", [20, 60, 150])
def test_members_paid_images_and_what_learns_from_them_have_a_share_of_the_time(minutes):
    reported = facts(records=60_000)
    settings = ensemble(f"recipe.minutes={minutes}", records=60_000)
    declared = Declared(reported, 60_000, frozenset())
    costs = stage_costs(settings, declared)
    assert {"members", "prototypes", "distillation", "drawing", "pretraining", "latent", "backbone"} == set(costs)
    seconds = sum(cost * stated(name, settings, declared) for name, cost in costs.items())
    assert 0.5 * minutes < seconds / 60 < 1.05 * minutes


def test_whole_denoisers_and_images_that_are_paid_one_by_one_when_a_person_asks():
    whole = ensemble("method.adapters=0", records=60_000)
    assert (whole.method.members, whole.method.adapters, whole.method.abstain) == (142, 0, False)
    assert whole.generation.steps == 250
    alone = ensemble("method.prototypes=0", records=60_000)
    assert alone.generation.images == 20 and alone.method.distillation.steps == 0
    assert whole.generation.vary == 0.2 and alone.generation.vary == 0, "a paid image leaves as it was paid"


def test_what_learns_from_paid_latents_has_the_levers_of_all_methods_and_what_is_paid_one_by_one_has_none():
    settings = ensemble(records=60_000)
    assert (settings.alignment.kind, settings.judge.use) == ("moments", "filter") and settings.matching.share == 0.2
    assert settings.alignment.share == pytest.approx(0.071, abs=1e-3)
    for other in (ensemble("method.prototypes=0", records=60_000), ensemble(shape=(1, 8, 8), records=1437)):
        assert (other.alignment.kind, other.judge.use, other.matching.share) == ("none", "none", 0.0)
    assert ensemble(shape=(3, 32, 32), records=60_000).matching.share == 0, "of 384 numbers it was not tried"


def test_the_plan_pays_for_the_images_at_a_norm_that_cuts_little():
    """The rule of thumb against the plan's own price, where a class has as many images as the rule allows."""
    settings = ensemble("recipe.minutes=600", "privacy.delta=1e-5", records=60_000)
    reported = facts(records=60_000)
    plan = METHODS["dp-ensemble"].plan(settings, reported)
    (event,) = plan.events(STAGE_DRAWING)
    radius = voices(settings, reported) / (2 * unit_cost(settings)) / event.noise_multiplier
    paid = settings.method.prototypes * 10
    assert event.count == paid and radius == pytest.approx(10 * 1000 * 10 / FOR_ONE_IMAGE / paid**0.5, rel=0.1)
