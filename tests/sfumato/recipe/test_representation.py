"""What the recipe works on: pixels or latents, their size and channels."""

import pytest

from sfumato.errors import BadInput
from sfumato.networks.autoencoder import latent_shape
from sfumato.recipe.representation import MOST_SIDE, fold_of, nearest_side
from tests.sfumato.recipe.making import recipe


def test_a_size_that_does_not_divide_is_refused_with_one_that_does():
    with pytest.raises(BadInput, match=r"31x31 pixels .*data\.size=(\d+)") as error:
        recipe(shape=(1, 31, 31))
    side = int(str(error.value).rsplit("=", 1)[1])
    assert fold_of(side, side, "cpu") and abs(side - 31) <= 4
    assert recipe("latent.kind=none", "network.kind=mlp", shape=(1, 31, 31)).latent.kind == "none"


@pytest.mark.parametrize(("device", "most"), [("cpu", 128), ("gpu", 256)])
def test_images_that_are_too_large_are_brought_to_what_the_device_bears(device, most):
    for shape in ((3, 512, 600), (3, most + 16, most + 16)):
        with pytest.raises(BadInput, match=rf"x{shape[2]} pixels .* at most {most} a side .*data\.size={most}$"):
            recipe(f"recipe.device={device}", shape=shape)
    assert recipe(
        f"recipe.device={device}",
        "latent.kind=patch",
        "latent.patch=16",
        "latent.multipliers=[1,2]",
        "recipe.minutes=600",
        shape=(3, 512, 512),
    )


@pytest.mark.parametrize("device", list(MOST_SIDE))
def test_the_side_nearest_to_any_is_one_that_the_recipe_takes(device):
    for side in (17, 31, 50, 65, 97, 100, 220, 2000):
        near = nearest_side(side, device)
        assert (
            recipe(f"recipe.device={device}", shape=(3, near, near)).latent.kind == "patch"
            and near <= MOST_SIDE[device]
        )
    assert nearest_side(64, device) == 64


def test_in_colour_a_linear_map_lies_beside_the_convolutions_unless_a_person_says_otherwise():
    colour, grey = (3, 32, 32), (1, 32, 32)
    assert recipe(shape=colour).latent.linear and recipe(shape=(3, 64, 64)).latent.linear
    assert not recipe(shape=grey).latent.linear and recipe("latent.linear=true", shape=grey).latent.linear
    assert not recipe("latent.linear=false", shape=colour).latent.linear
    assert not recipe("latent.kind=kl", shape=colour).latent.linear


@pytest.mark.parametrize(
    ("public", "shape", "numbers"),
    [
        ("glyphs", (1, 12, 12), (2, 6, 6)),
        ("glyphs", (1, 16, 10), (2, 8, 5)),
        ("textures", (3, 16, 16), (3, 8, 8)),
        ("glyphs", (1, 20, 20), (1, 10, 10)),
        ("omniglot+glyphs", (1, 28, 28), (2, 7, 7)),
        ("emnist-letters", (1, 28, 28), (2, 7, 7)),
        ("textures", (1, 28, 28), (6, 7, 7)),
        ("omniglot+textures", (1, 28, 28), (6, 7, 7)),
        ("glyphs", (3, 32, 32), (6, 8, 8)),
        ("textures", (1, 64, 64), (8, 8, 8)),
        ("textures", (3, 64, 64), (8, 8, 8)),
        ("textures", (3, 56, 64), (8, 7, 8)),
        ("textures", (3, 48, 48), (8, 6, 6)),
        ("textures", (3, 104, 104), (12, 8, 8)),
        ("textures", (3, 128, 128), (12, 8, 8)),
        ("textures", (3, 40, 40), (8, 8, 8)),
        ("textures", (1, 72, 72), (12, 8, 8)),
        ("glyphs", (1, 21, 21), (2, 7, 7)),
    ],
)
def test_strokes_need_few_numbers_and_photographs_more(public, shape, numbers):
    assert latent_shape(recipe(f"data.public={public}", shape=shape).latent, shape) == numbers


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 13, 13), (1, 16, 6)])
def test_images_that_are_tiny_or_small_and_do_not_divide_are_drawn_pixel_by_pixel(shape):
    assert recipe(shape=shape).latent.kind == "none"


def test_on_a_cpu_there_are_eight_positions_a_side_or_fewer_where_they_fit_and_on_a_gpu_more():
    sides = {
        24: 4,
        28: 4,
        32: 4,
        48: 8,
        64: 8,
        96: 16,
        128: 16,
        36: 6,
        40: 5,
        72: 9,
        100: None,
        104: 13,
        116: None,
        20: 2,
    }
    assert {side: fold_of(side, side, "cpu") for side in sides} == sides
    assert fold_of(40, 40, "cpu", squares=False) == 4, "levels halve"
    assert [fold_of(side, side, "gpu") for side in (28, 32, 48, 64, 128)] == [4, 4, 4, 4, 8]
    small, large = (
        recipe("data.public=textures", f"recipe.device={device}", shape=(3, 64, 64)) for device in ("cpu", "gpu")
    )
    assert [result.network.kind for result in (small, large)] == ["unet", "dit"]
