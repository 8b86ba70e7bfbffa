"""DP-MERF: one release is all that is paid, the features are those of the kernel, and a generator comes to have the classes' mean."""

import math

import pytest
import torch

from sfumato import embedding, fourier, sources
from sfumato.images import to_unit
from sfumato.methods.algorithm import begun
from sfumato.methods.plan import ANY_NUMBER, STAGE_EMBEDDING
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian
from sfumato.settings import resolve


def planned(*changes):
    settings, facts, _ = preflight(resolve("dp-merf", "digits", changes))
    return plan_for(settings, facts)


@pytest.fixture(scope="module")
def tiny(world):
    return world("dp-merf", "method.frequencies=400", "network.width=64", "network.condition=32")


@pytest.fixture(scope="module")
def digits():
    result = sources.load("digits", sources.Reading(part="train"))
    return to_unit(result.pixels), torch.from_numpy(result.labels)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_the_certificate_is_that_of_one_gaussian_mechanism(relation):
    plan = planned(f"privacy.relation={relation}", "privacy.epsilon=3")
    (event,) = plan.events(STAGE_EMBEDDING)
    assert event == Gaussian(noise_multiplier=plan.noise_multiplier) and len(plan.spends) == 1
    alone = accountant.epsilon([event], plan.privacy.delta, relation)
    assert plan.certificate.epsilon == pytest.approx(alone, rel=1e-9) and plan.certificate.images == ANY_NUMBER
    if relation == "add_remove":
        assert plan.claim.epsilon == pytest.approx(plan.certificate.epsilon, rel=1e-2)
    more = planned(
        f"privacy.relation={relation}", "privacy.epsilon=3", "method.frequencies=5000", "method.training.steps=9"
    )
    assert more.spends == plan.spends, "features and steps cost nothing"


def test_the_distance_of_a_sample_is_without_bias():
    """Over all samples of two of three: the mean distance from the mean of the three is the spread that two distinct have."""
    features = torch.nn.functional.normalize(torch.randn(3, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    pairs = torch.stack([features[[0, 1]], features[[0, 2]], features[[1, 2]]])
    other = torch.tensor([0.3, 0, 0, 0, 0])
    mean = embedding.distances(pairs, other.expand(3, 5)).mean()
    products = features @ features.T
    between = (products.sum() - products.trace()) / 6
    assert mean == pytest.approx(float(between - 2 * other @ features.mean(0) + other.square().sum()), abs=1e-6)


def test_a_generator_comes_to_have_the_mean_of_the_classes(tiny, digits):
    """Sums without noise of the real digits: the loss falls near that of the digits themselves, and means of images agree."""
    x, y = digits
    how = tiny.plan.embedding
    training = how.training.model_copy(update={"steps": 300, "batch": 200, "warm_up": 10})
    how = how.model_copy(update={"training": training})
    features = fourier.random_features(how, math.prod(tiny.parts.shape), 0)
    phi = features(x)
    means = torch.stack([phi[y == label].mean(0) for label in range(10)])
    generator, built = begun(tiny.method, tiny.settings, tiny.parts)
    assert built.classes == 10 and built.network.prediction == "noise"
    model, losses = embedding.fitted(generator, tiny.parts, features, means, how, seed=0)
    assert losses[-1] < 0.1 * losses[0]
    classes = torch.arange(10).repeat_interleave(50)
    parts = tiny.parts.__class__(**{**vars(tiny.parts), "tuned": model})
    drawn = tiny.method.draw(tiny.settings, parts, classes, torch.Generator().manual_seed(1))
    assert drawn.shape == (500, 1, 8, 8) and drawn.abs().max() <= 1
    own, real = (torch.stack([a[b == c].mean(0).flatten() for c in range(10)]) for a, b in ((drawn, classes), (x, y)))
    nearest = torch.cdist(own, real).argmin(1)
    assert nearest.tolist() == list(range(10)), "each class lies nearest to its own"
    assert float(drawn[classes == 1].std(0).mean()) > 0.05, "and not one image for all noise"
