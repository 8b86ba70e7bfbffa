"""A denoiser in small has the layers of the large one, and the validation says the same of both."""

import pytest

from sfumato.config import Network
from sfumato.networks.build import build, resolved
from sfumato.networks.denoiser import parameters_by_group
from sfumato.networks.miniature import miniature
from sfumato.networks.transformer import Transformer
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.engine.validation import survey

LARGE = {
    "mlp": (Network(kind="mlp", width=64, blocks=3), (1, 12, 12)),
    "unet": (Network(kind="unet", width=24, blocks=1, multipliers=(1, 2, 2), attention=(7, 28)), (1, 28, 28)),
    "unet of deep transformers": (
        Network(kind="unet", width=24, blocks=2, multipliers=(1, 2), attention=(8,), transformer=1, attention_heads=3),
        (1, 16, 16),
    ),
    "unet of odd sides": (Network(kind="unet", width=24, blocks=1, multipliers=(1, 2), attention=(9,)), (3, 18, 18)),
    "refinenet": (Network(kind="refinenet", width=16, blocks=1, multipliers=(1, 2), refine=(2, 1, 1)), (1, 14, 14)),
    "dit": (Network(kind="dit", width=48, heads=6), (3, 16, 16)),
    "dit of odd sides": (Network(kind="dit", width=48), (1, 14, 15)),
    "dit of small sides": (Network(kind="dit", width=48), (3, 8, 8)),
    "dit of given squares": (Network(kind="dit", width=48, patch=7), (1, 28, 28)),
    "auto": (Network(condition=128), (3, 16, 16)),
}
"""Settings and shape, by kind."""
EACH = pytest.mark.parametrize("kind", LARGE)
CLASSES, WHOLE = 4, ("rows", "film", "attention", "time", "rest")


def layers(settings, shape):
    """Place and kind of every layer, in order."""
    return [(name, type(layer).__name__) for name, layer in build(settings, shape, CLASSES).named_modules()]


def validated(settings, shape, classes=CLASSES):
    """What the validation says of all parameters."""
    model = build(settings, shape, classes)
    return survey(model, trainable_parameters(model, WHOLE), shape)


@EACH
def test_the_layers_are_the_same_and_the_numbers_are_fewer(kind):
    settings, shape = LARGE[kind]
    small, less = miniature(settings, shape)
    one, other = (build(*each, CLASSES) for each in ((settings, shape), (small, less)))
    # A projection beside a block stands where its channels change, which they do at the same places; a U-Net's further blocks repeat the first.
    once = resolved(settings, shape[1])
    once = once.model_copy(update={"blocks": 1}) if once.kind == "unet" else settings
    assert layers(once, shape) == layers(small, less)
    assert {layer for _, layer in layers(settings, shape)} == {layer for _, layer in layers(small, less)}
    assert set(parameters_by_group(one)) == set(parameters_by_group(other)) and less[0] == shape[0]
    if isinstance(one, Transformer):
        assert isinstance(other, Transformer) and one.patch == other.patch
    assert sum(parameters_by_group(other).values()) < sum(parameters_by_group(one).values()) / 2


@EACH
def test_the_validation_says_the_same_of_both(kind):
    settings, shape = LARGE[kind]
    assert validated(settings, shape) == validated(*miniature(settings, shape))


def test_a_network_from_elsewhere_stays_as_it_is():
    settings = Network(config='{"_class_name": "UNet2DModel"}')
    assert miniature(settings, (3, 64, 64)) == (settings, (3, 64, 64))
