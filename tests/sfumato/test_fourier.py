"""Random features are those of the Gaussian kernel, and the mean of a class that hardly anybody is in is not noise blown up."""

import math

import pytest
import torch

from sfumato import fourier, sources
from sfumato.config import Matching
from sfumato.images import to_unit


@pytest.fixture(scope="module")
def digits():
    images = sources.load("digits", sources.Reading(part="train"))
    return to_unit(images.pixels), torch.from_numpy(images.labels)


def test_products_of_features_are_the_kernel(digits):
    x, scale = digits[0][:60], 0.7
    how = Matching(frequencies=20_000, length_scales=(scale,))
    features = fourier.random_features(how, 64, seed=3)(x)
    assert features.shape == (60, 40_000) and features.norm(dim=1).sub(1).abs().max() < 1e-5
    kernel = (-torch.cdist(x.flatten(1), x.flatten(1)).square() / (2 * scale**2 * 64)).exp()
    assert (features @ features.T - kernel).abs().max() < 0.04, "four deviations of so many features"
    assert torch.equal(features, fourier.random_features(how, 64, seed=3)(x)), "public, from the seed"
    two = how.model_copy(update={"length_scales": (scale, 2 * scale)})
    wider = (-torch.cdist(x.flatten(1), x.flatten(1)).square() / (8 * scale**2 * 64)).exp()
    both = fourier.random_features(two, 64, seed=3)(x)
    assert (both @ both.T - (kernel + wider) / 2).abs().max() < 0.04


def test_a_class_of_few_records_is_not_blown_up():
    share = 0.05
    sums = torch.zeros(2, 5, dtype=torch.float64)
    sums[0], sums[1] = 10.0, 0.01
    means = fourier.class_means(sums, share, noise_multiplier=1.0)
    count = 10 / math.sqrt(share)
    assert means[0] == pytest.approx(torch.full((4,), 10 / math.sqrt(1 - share) / count), rel=1e-5)
    assert means[1].norm() < 0.02 and means.dtype == torch.float32


def test_some_frequencies_show_the_same_means(digits):
    x, _ = digits
    features, chosen = fourier.random_features(Matching(frequencies=300), 64, seed=0), torch.tensor([7, 3, 250])
    part = features.some(chosen)
    assert part.count == 3 and part(x[:5]).norm(dim=1) == pytest.approx(torch.ones(5))
    whole = features(x).mean(0, keepdim=True)
    assert torch.allclose(features.of_some(whole, chosen), part(x).mean(0, keepdim=True), atol=1e-6)
