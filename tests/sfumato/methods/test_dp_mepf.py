"""DP-MEPF: one release is all that is paid, no record adds more than it pays for, and a generator comes to have the classes' mean."""

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sfumato import embedding, fourier, sources
from sfumato.errors import BadInput
from sfumato.images import ImageSet, to_unit
from sfumato.methods.algorithm import begun
from sfumato.methods.plan import ANY_NUMBER, STAGE_EMBEDDING
from sfumato.preflight import plan_for, preflight
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.noise import Source
from sfumato.recipe.stage_costs import needs_backbone
from sfumato.settings import resolve
from tests.sfumato.methods.conftest import public_backbone

FORMS = {"phi_1": 0.0, "phi_1 and phi_2": 0.5}


def planned(*changes):
    settings, facts, _ = preflight(resolve("dp-mepf", "digits", changes))
    return plan_for(settings, facts)


@pytest.fixture(scope="module")
def tiny(world):
    return world("dp-mepf", "network.width=64", "network.condition=32")


@pytest.fixture(scope="module")
def digits():
    return sources.load("digits", sources.Reading(part="train"))


def features_of(tiny, squares):
    how = tiny.plan.embedding.model_copy(update={"squares": squares})
    return embedding.features_of(how, tiny.parts, public_backbone(tiny.settings.backbone), seed=0)


@pytest.mark.parametrize("squares", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_the_certificate_is_that_of_one_gaussian_mechanism(relation, squares):
    requested = [f"privacy.relation={relation}", "privacy.epsilon=3", f"method.squares={squares}"]
    plan = planned(*requested)
    (event,) = plan.events(STAGE_EMBEDDING)
    assert event == Gaussian(noise_multiplier=plan.noise_multiplier) and len(plan.spends) == 1
    alone = accountant.epsilon([event], plan.privacy.delta, relation)
    assert plan.certificate.epsilon == pytest.approx(alone, rel=1e-9) and plan.certificate.images == ANY_NUMBER
    if relation == "add_remove":
        assert plan.claim.epsilon == pytest.approx(plan.certificate.epsilon, rel=1e-2)
    assert planned(*requested, "method.training.steps=9", "backbone.steps=7").spends == plan.spends, (
        "these cost nothing"
    )


def test_two_gaussians_of_the_paper_are_the_one_of_the_joint_vector():
    """phi_1 and phi_2, each of norm 1 with noise s, cost what one vector of norm 1 with noise s / sqrt(2) costs."""
    s, delta = 3.0, 1e-5
    two = accountant.epsilon([Gaussian(noise_multiplier=s)] * 2, delta)
    assert two == pytest.approx(accountant.epsilon([Gaussian(noise_multiplier=s / math.sqrt(2))], delta), rel=1e-3)


def test_the_public_classifier_is_trained_and_the_kernel_is_not():
    settings, _, _ = preflight(resolve("dp-mepf", "digits", []))
    assert needs_backbone(settings)
    plan = planned()
    assert plan.embedding.features == "perceptual" and not plan.embedding.frequencies
    assert "perceptual features" in str(plan)


@pytest.mark.parametrize("wrong", ["1", "-0.1", "nan"])
def test_a_share_of_squares_that_leaves_nothing_for_the_features_is_refused_in_one_line(wrong):
    with pytest.raises(BadInput, match=r"method\.squares") as refusal:
        planned(f"method.squares={wrong}")
    assert "\n" not in str(refusal.value)


def summed(images, tiny, squares, monkeypatch):
    """What the mechanism makes of a set, with its noise taken out."""
    with monkeypatch.context() as patch:
        visit = SimpleNamespace(images=images, entries={}, payment=None)
        patch.setattr(mechanisms, "spending", lambda *_, **__: contextlib.nullcontext(visit))
        patch.setattr(Source, "steps", lambda self, shape, _: torch.zeros(*shape, dtype=torch.float64))
        embed = embedding.embedder(features_of(tiny, squares), tiny.parts.codec)
        event, share = Gaussian(noise_multiplier=1.0), tiny.plan.embedding.count_share
        return mechanisms.noisy_embedding(None, event, embed, classes=10, count_share=share).result


@pytest.mark.parametrize("squares", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("grouped", [False, True], ids=["records", "groups"])
def test_no_neighbour_moves_the_sums_farther_than_the_price_says(tiny, digits, squares, grouped, monkeypatch):
    """Real digits with one more record, or person, of crafted images: black, white, grey, a board, one pixel."""
    crafted = np.zeros((5, 1, 8, 8), np.uint8)
    crafted[1], crafted[2], crafted[3, 0, ::2, ::2], crafted[4, 0, 3, 3] = 255, 128, 255, 255
    few = digits.subset(slice(6))
    members = [[0, 1, 2, 3, 4], [1, 1, 1], [3]] if grouped else [[number] for number in range(5)]

    def with_these(chosen):
        pixels = np.concatenate([few.pixels, crafted[chosen]])
        labels = np.concatenate([few.labels, np.array(chosen, np.int64)])
        groups = np.concatenate([np.arange(6), np.full(len(chosen), 6)]) if grouped else None
        return summed(ImageSet(pixels, labels, digits.classes, groups), tiny, squares, monkeypatch)

    base, others = with_these([]), [with_these(chosen) for chosen in members]
    moved = [float((sums - base).norm()) for sums in others]
    assert all(map(math.isfinite, moved)) and max(moved) <= 1.001, "the grid adds a thousandth"
    assert max(moved) > 0.99, "the bound is met"
    assert max(float((a - b).norm()) for a in others for b in others) <= 2.001, "an exchange moves them by 2 at most"


@pytest.mark.parametrize("squares", FORMS.values(), ids=FORMS)
def test_the_sums_are_the_means_of_a_loop_and_the_count(tiny, digits, squares, monkeypatch):
    few = digits.subset(slice(60))
    sums = summed(few, tiny, squares, monkeypatch)
    means = fourier.class_means(sums, tiny.plan.embedding.count_share, noise_multiplier=0.0)
    read = features_of(tiny, squares)
    for label in range(10):
        alone = [read(x[None])[0] for x in to_unit(few.pixels[few.labels == label])]
        assert (means[label] - torch.stack(alone).mean(0)).abs().max() < 1e-3


@pytest.mark.parametrize("squares", FORMS.values(), ids=FORMS)
def test_a_generator_comes_to_have_the_mean_of_the_classes(tiny, digits, squares):
    """Sums without noise of the real digits: the loss falls, and drawn images of a class lie nearest to its own mean features."""
    x, y = to_unit(digits.pixels), torch.from_numpy(digits.labels)
    how = tiny.plan.embedding
    training = how.training.model_copy(update={"steps": 150, "batch": 100, "warm_up": 10})
    how = how.model_copy(update={"training": training})
    features = features_of(tiny, squares)
    phi = features(x)
    means = torch.stack([phi[y == label].mean(0) for label in range(10)])
    generator, built = begun(tiny.method, tiny.settings, tiny.parts)
    assert built.classes == 10 and built.network.prediction == "noise"
    model, losses = embedding.fitted(generator, tiny.parts, features, means, how, seed=0)
    assert losses[-1] < 0.2 * losses[0]
    classes = torch.arange(10).repeat_interleave(50)
    parts = tiny.parts.__class__(**{**vars(tiny.parts), "tuned": model})
    drawn = tiny.method.draw(tiny.settings, parts, classes, torch.Generator().manual_seed(1))
    assert drawn.shape == (500, 1, 8, 8) and drawn.abs().max() <= 1
    own = torch.stack([features(drawn[classes == label]).mean(0) for label in range(10)])
    assert torch.cdist(own, means).argmin(1).tolist() == list(range(10))
    assert float(drawn[classes == 1].std(0).mean()) > 0.02, "and not one image for all noise"
