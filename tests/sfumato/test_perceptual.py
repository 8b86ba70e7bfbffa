"""Perceptual features: as a slow oracle has them, of norm 1 whatever the image, and differentiable down to the pixels."""

import math

import numpy as np
import pytest
import torch

from sfumato import sources
from sfumato.backbone import train_backbone
from sfumato.config import BackboneSettings, Latent
from sfumato.images import to_unit
from sfumato.latents import train_autoencoder
from sfumato.methods.plan import Embedding
from sfumato.perceptual import both_moments, layers, perceptual_features, shown_by_itself, to_norm_one

LITTLE = BackboneSettings(width=8, steps=5, batch=32)
CHANNELS = 14 * LITTLE.width
"""Channels of all six blocks together."""


def features(squares=0.5, cells=2, image=0.0):
    return Embedding(features="perceptual", squares=squares, cells=cells, image=image, count_share=0.05)


@pytest.fixture(scope="module")
def backbone():
    glyphs = sources.load("glyphs", sources.Reading(size=8, glyphs_per_class=4))
    return train_backbone(LITTLE, glyphs, seed=0).backbone


@pytest.fixture(scope="module")
def digits():
    return to_unit(sources.load("digits", sources.Reading(part="test")).pixels)


def oracle(backbone, image, squares):
    """phi of one image `[c, h, w]`, number by number and in float64."""
    numbers, x = [], image[None]
    for block in backbone.network.trunk:
        x = block(x)
        height, width = x.shape[2:]
        for channel in x[0].double():
            for rows in (slice(0, height // 2), slice(height // 2, height)):
                for columns in (slice(0, width // 2), slice(width // 2, width)):
                    numbers.append(float(channel[rows, columns].mean()))
    e = np.array(numbers)
    first, second = e / math.sqrt((e**2).sum()), e**2 / math.sqrt((e**4).sum())
    return np.append(math.sqrt(1 - squares) * first, math.sqrt(squares) * second) if squares else first


@pytest.mark.parametrize("squares", [0.0, 0.5, 0.2])
def test_they_are_what_a_loop_over_layers_and_quarters_gives(backbone, digits, squares):
    phi = perceptual_features(backbone, features(squares))(digits[:6])
    assert phi.shape == (6, (2 if squares else 1) * 4 * CHANNELS)
    for row, image in zip(phi, digits, strict=False):
        assert row.numpy() == pytest.approx(oracle(backbone, image, squares), abs=1e-5)


CRAFTED = {
    "black": torch.full((1, 8, 8), -1.0),
    "white": torch.full((1, 8, 8), 1.0),
    "grey": torch.zeros(1, 8, 8),
    "huge": torch.full((1, 8, 8), 1e30),
    "one huge pixel": torch.zeros(1, 8, 8).index_fill(2, torch.tensor([3]), 3e37),
    "tiny": torch.full((1, 8, 8), 1e-38),
    "board": torch.tensor([1.0, -1.0]).repeat(32).view(1, 8, 8),
    "undefined": torch.full((1, 8, 8), math.nan),
    "infinite": torch.full((1, 8, 8), math.inf),
}


@pytest.mark.parametrize("squares", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("name", CRAFTED)
def test_no_image_gets_features_longer_than_1(backbone, name, squares):
    phi = perceptual_features(backbone, features(squares))(CRAFTED[name][None])
    norm = float(phi.double().norm())
    assert phi.isfinite().all() and (norm == 0 or norm == pytest.approx(1, abs=1e-5)), norm
    if name in ("undefined", "infinite"):
        assert norm == 0, "what says nothing adds nothing"


@pytest.mark.parametrize("name", CRAFTED)
def test_no_image_gets_longer_features_with_a_share_of_its_own(backbone, name):
    phi = perceptual_features(backbone, features(image=0.3))(CRAFTED[name][None])
    assert phi.isfinite().all() and phi.double().norm() <= 1 + 1e-5
    if name in ("undefined", "infinite"):
        assert phi.norm() == 0, "what says nothing adds nothing"


def test_the_image_itself_is_means_and_mean_squares_of_its_cells(digits):
    seen = shown_by_itself(digits[:3], 2)
    assert seen.shape == (3, 8)
    for row, image in zip(seen, digits, strict=False):
        quarters = [image[0, down : down + 4, right : right + 4] for down in (0, 4) for right in (0, 4)]
        wanted = [float(part.mean()) for part in quarters] + [float(part.square().mean()) for part in quarters]
        assert row.tolist() == pytest.approx([number / math.sqrt(8) for number in wanted], abs=1e-6)
    assert shown_by_itself(digits[:3], 99).shape == (3, 2 * 64)


def test_contrast_shows_only_where_the_image_has_a_share(backbone, digits):
    """The classifier's norms take out most of what halving the contrast does."""

    def moved(image):
        read = perceptual_features(backbone, features(image=image))
        return float((read(digits[:20]) - read(digits[:20] / 2)).norm(dim=1).mean())

    assert moved(0.3) > 2 * moved(0.0)


@pytest.mark.parametrize("squares", [0.0, 0.5])
@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e20, 3e38])
def test_the_scale_of_features_changes_nothing(scale, squares):
    e = torch.tensor([[1.0, -0.5, 0.25, 0.0]])
    assert torch.allclose(both_moments(scale * e, squares), both_moments(e, squares), atol=1e-6)


def test_a_row_that_is_zero_or_not_finite_is_zero_and_so_is_its_gradient():
    e = torch.tensor([[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [3.0, 4.0]], requires_grad=True)
    to_norm_one(e)[:, 0].sum().backward()
    assert to_norm_one(e).tolist() == [[0, 0], [0, 0], [0, 0], pytest.approx([0.6, 0.8])]
    assert e.grad[:3].tolist() == [[0, 0]] * 3
    assert e.grad[3].tolist() == pytest.approx([16 / 125, -12 / 125])


def test_each_image_is_read_by_itself_and_an_empty_batch_is_empty(backbone, digits):
    read = perceptual_features(backbone, features(0.5))
    together, alone = read(digits[:4]), torch.cat([read(digits[at : at + 1]) for at in range(4)])
    assert torch.allclose(together, alone, atol=1e-5)
    assert read(digits[:0]).shape == (0, 8 * CHANNELS)


def test_gradients_reach_the_pixels_as_differences_say(backbone, digits):
    read = perceptual_features(backbone, features(0.5))
    generator = torch.Generator().manual_seed(0)
    x, other = digits[:1].clone().requires_grad_(True), read(digits[1:2])
    towards = torch.randn(x.shape, generator=generator)
    (gradient,) = torch.autograd.grad((read(x) * other).sum(), x)
    with torch.no_grad():
        ahead, behind = ((read(x + step * towards) * other).sum() for step in (1e-2, -1e-2))
    assert float((gradient * towards).sum()) == pytest.approx(float(ahead - behind) / 2e-2, rel=0.02)


def test_latents_are_read_as_the_images_that_they_decode_to(backbone, digits):
    pixels = sources.load("glyphs", sources.Reading(size=8, glyphs_per_class=2)).pixels
    latent = Latent(kind="kl", steps=2, batch=8)
    codec = train_autoencoder(latent, to_unit(pixels), seed=0).codec
    z = codec.encode(digits[:3]).requires_grad_(True)
    phi = perceptual_features(backbone, features(0.5), codec)(z)
    assert torch.allclose(phi, perceptual_features(backbone, features(0.5))(codec.decode(z)), atol=1e-6)
    (gradient,) = torch.autograd.grad(phi[:, 0].sum(), z)
    assert gradient.shape == z.shape and gradient.abs().sum() > 0, "through the decoder"


def test_a_map_is_taken_whole_where_it_has_no_more_cells_than_asked_for(backbone, digits):
    first = backbone.network.trunk[0](digits[:2])
    whole = layers(backbone.network, digits[:2], 8)
    width = LITTLE.width
    assert whole.shape == (2, 64 * width + 16 * (width + 2 * width) + 4 * (2 + 4 + 4) * width)
    assert torch.allclose(whole[:, : 64 * width], first.flatten(1))
    assert layers(backbone.network, digits[:2], 2).shape == (2, 4 * CHANNELS)
    assert torch.allclose(layers(backbone.network, digits[:2], 1)[:, :width], first.mean((2, 3)), atol=1e-6)
