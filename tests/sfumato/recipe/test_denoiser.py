"""The network that the recipe chooses, by what it works on and the device."""

from sfumato.settings import resolve
from tests.sfumato.recipe.making import recipe


def test_a_gpu_gets_another_recipe_and_colour_another_network():
    grey, gpu = recipe(), recipe("recipe.device=gpu")
    colour, large = recipe(shape=(3, 32, 32)), recipe(shape=(3, 20, 20))
    assert [result.network.kind for result in (grey, gpu, colour, large)] == ["mlp", "dit", "unet", "dit"]
    assert (colour.network.multipliers, colour.network.width, colour.pretraining.batch) == ((1,), 64, 32)
    assert large.network.patch == 2, "10x10 positions in 25 squares"
    assert gpu.network.width > large.network.width and gpu.pretraining.steps > grey.pretraining.steps / 2


def test_photographs_are_mirrored_and_letters_are_not():
    letters, photographs = (
        recipe(f"data.public={name}", method="rapid", shape=(3, 32, 32)) for name in ("glyphs", "shapes")
    )
    assert (letters.backbone.mirror, letters.method.extractor.mirror) == (False, False)
    assert (photographs.backbone.mirror, photographs.method.extractor.mirror) == (True, True)
    assert not recipe("data.public=shapes", shape=(1, 32, 32)).backbone.mirror


def test_nothing_is_inherited_across_kinds():
    mlp, unet = recipe("network.kind=mlp"), recipe("network.kind=unet")
    assert unet.network.width < mlp.network.width and len(unet.network.multipliers) >= 1
    retained = resolve("rapid", "digits").network
    other = resolve("rapid", "digits", ["network.kind=unet"]).network
    assert retained.width == 192 and other.width == 0, "the preset's width is one of an MLP"
    assert resolve("rapid", "digits", ["network.kind=mlp", "network.blocks=3"]).network.width == 192
    assert resolve("rapid", "rapid-mnist", ["latent.kind=none"]).latent == type(unet.latent)()
