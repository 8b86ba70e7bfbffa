"""Drawn images move to the mean embeddings of their classes, whatever they were drawn by, and no farther than a number may be."""

import math
from dataclasses import replace

import pytest
import torch

from sfumato import sources
from sfumato.config import Matching
from sfumato.diffusion.schedule import make_schedule
from sfumato.drawing import draw_images
from sfumato.fourier import random_features
from sfumato.images import to_unit
from sfumato.matching import FEWEST, completed, matched
from sfumato.methods.parts import Parts, Target
from sfumato.methods.plan import Facts
from sfumato.networks.build import build
from sfumato.settings import resolve
from tests.seeded import seeded_source

HOW = Matching(share=0.1, frequencies=400, steps=80, step=0.1, at_once=200)


@pytest.fixture(scope="module")
def digits():
    images = sources.load("digits", sources.Reading(part="train"))
    return to_unit(images.pixels), torch.from_numpy(images.labels)


@pytest.fixture(scope="module")
def target(digits):
    """The mean embeddings of the real digits, without noise."""
    x, y = digits
    features = random_features(HOW, 64, seed=0)
    means = torch.stack([features(x[y == label]).mean(0) for label in range(10)])
    return Target(features.frequencies, means, HOW)


def start(count, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_plain_noise_becomes_digits_of_the_wanted_class(digits, target):
    y = torch.arange(10).repeat(60)
    x, distances = matched(start(600), y, target, limit=1.0, seed=0)
    assert len(distances) == HOW.steps and distances[-1] < 0.05 * distances[0]
    assert x.shape == (600, 1, 8, 8) and float(x.abs().max()) <= 1
    real = torch.stack([digits[0][digits[1] == label].mean(0).flatten() for label in range(10)])
    nearest = torch.cdist(x.flatten(1), real).argmin(1)
    assert (
        float((nearest == y).float().mean())
        > 0.8
        > 0.2
        > float((torch.cdist(start(600).flatten(1), real).argmin(1) == y).float().mean())
    )
    assert float(x[y == 3].std(0).mean()) > 0.1, "not one image for all"


def test_a_step_goes_down_the_gradient_of_the_squared_distance(target):
    """Against one autograd pass over the whole distance, with all frequencies: the signs of Adam's first step are the gradient's."""
    how = HOW.model_copy(update={"steps": 1, "at_once": 2 * HOW.frequencies})
    features, y, x = random_features(HOW, 64, seed=0), torch.tensor([0, 0, 4]), start(3)
    moved, (distance,) = matched(x, y, replace(target, how=how), limit=9.0, seed=0)
    free = x.clone().requires_grad_(True)
    means = torch.stack([features(free[y == label]).mean(0) for label in (0, 4)])
    whole = (means - target.means[[0, 4]]).square().sum()
    whole.backward()
    assert distance == pytest.approx(whole.item(), rel=1e-4)
    clear = free.grad.abs() > 1e-4 * free.grad.abs().max()
    assert torch.equal((moved - x).sign()[clear], -free.grad.sign()[clear])


def test_the_same_seed_moves_to_the_same_images_and_the_start_stays(target):
    x, y = start(20), torch.arange(10).repeat(2)
    before = x.clone()
    first, second, other = (matched(x, y, target, limit=1.0, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other) and torch.equal(x, before)


def test_few_images_move_beside_others_of_their_class(target):
    y = torch.tensor([3, 3, 7])
    drawn = completed(y)
    assert torch.equal(drawn[:3], y)
    assert torch.bincount(drawn).tolist() == [0, 0, 0, FEWEST, 0, 0, 0, FEWEST]
    assert len(completed(torch.zeros(FEWEST, dtype=torch.long))) == FEWEST


def test_a_drawing_gives_the_wanted_images_alone_and_varied_and_no_more_where_each_is_paid_for(digits, target):
    settings = resolve("dp-sgd", changes=["schedule.timesteps=50", "network.width=16", "network.condition=8"])
    facts = Facts(records=1437, classes=tuple("0123456789"), public_classes=62, shape=(1, 8, 8))
    schedule = make_schedule(settings.schedule)
    public = build(settings.network, (1, 8, 8), 62, alpha_bar=schedule.alpha_bar)
    parts = Parts(schedule=schedule, shape=(1, 8, 8), facts=facts, public=public, target=target)

    def noise(settings, parts, y, generator):
        return torch.rand(len(y), 1, 8, 8, generator=generator) * 2 - 1

    shares, steps = tuple(float(label == 3) for label in range(10)), []
    images = draw_images(
        noise, settings, parts, facts, 40, torch.device("cpu"), lambda *step: steps.append(step), shares=shares
    )
    assert steps[0] == (20, 40) and steps[-1] == (40, 40) and steps == sorted(steps), "half drawn, half moved"
    assert len(images) == 40 and set(images.labels.tolist()) == {3}
    shown = to_unit(images.pixels)
    real = torch.stack([digits[0][digits[1] == label].mean(0).flatten() for label in range(10)])
    assert torch.cdist(shown.flatten(1), real).argmin(1).tolist().count(3) > 20
    assert float(shown.std(0).mean()) > 0.1
    plain = draw_images(noise, settings, replace(parts, target=None), facts, 40, torch.device("cpu"), shares=shares)
    assert math.isclose(float(to_unit(plain.pixels).mean()), 0, abs_tol=0.1), "as drawn without a target"
    seen = []

    def paid(settings, parts, y, source):
        seen.append(len(y))
        return torch.full((len(y), 1, 8, 8), 0.5)

    priced = draw_images(paid, settings, parts, facts, 40, torch.device("cpu"), source=seeded_source(0), shares=shares)
    assert sum(seen) == len(priced) == 40, "one that is paid for neither moves nor is drawn beside others"
    assert (priced.pixels == priced.pixels[0, 0, 0, 0]).all()
