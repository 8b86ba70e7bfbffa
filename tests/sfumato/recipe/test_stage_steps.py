"""The number of steps of a stage, from its share of the time."""

from sfumato.recipe.stage_costs import Declared, stage_costs
from sfumato.recipe.stage_steps import FEWEST_OF_PHOTOGRAPHS
from tests.sfumato.recipe.making import facts, recipe


def test_little_time_still_teaches_an_autoencoder_of_photographs_what_a_rehearsal_asks():
    short = "recipe.minutes=9"
    assert recipe(short, "data.public=textures").latent.steps >= FEWEST_OF_PHOTOGRAPHS["latent"]
    assert recipe(short, "data.public=glyphs").latent.steps < FEWEST_OF_PHOTOGRAPHS["latent"]


def test_the_keys_of_a_knowledge_base_take_a_tenth_of_the_time_and_all_of_them_where_they_fit():
    crowd = {"method": "rapid", "images": 110_000, "public_classes": 200}
    few = recipe("recipe.minutes=15", "data.public=photographs", **crowd)
    assert 500 <= few.method.trajectories < few.method.reference * 110_000
    keys = few.method.trajectories * stage_costs(few, Declared(facts(public_classes=200), 110_000))["trajectories"]
    assert keys <= 0.1 * 15 * 60
    assert recipe("recipe.minutes=15", **(crowd | {"images": 3000})).method.trajectories == 900
    assert recipe("recipe.minutes=15", "method.trajectories=77", **crowd).method.trajectories == 77
    assert recipe("method.neighbour=random", **crowd).method.trajectories == 0


def test_large_images_are_drawn_in_numbers_that_memory_bears():
    small, large = (recipe("recipe.minutes=6000", shape=(3, side, side)).generation.images for side in (32, 128))
    assert small == 30_000 and 5000 < large < 12_000
    assert recipe("generation.images=20000", shape=(3, 128, 128)).generation.images == 20_000, (
        "unless a person asks for more"
    )
