"""Central images out of noisy sums, and the warm-up on them."""

from dataclasses import replace

import pytest
import torch

from sfumato.alignment import Reference
from sfumato.central import CentralImages, central_images, expected_records, warmed
from sfumato.config import Central
from sfumato.diffusion.schedule import make_schedule
from sfumato.methods.parts import Parts, untuned
from sfumato.methods.plan import Facts
from sfumato.networks.build import build
from sfumato.networks.denoiser import groups_of
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from sfumato.settings import resolve

SHAPE, NUMBERS, RADIUS = (1, 4, 4), 16, 2.0
EVENT = Gaussian(noise_multiplier=1.0)


def reference(cells=1):
    eye = torch.eye(NUMBERS, dtype=torch.float64)
    mean = torch.full((NUMBERS,), -0.5, dtype=torch.float64)
    return Reference(mean, eye, eye, torch.zeros(cells, NUMBERS, dtype=torch.float64), RADIUS, 1.0)


def images(sums, event=EVENT, records=400, cells=1):
    return central_images(sums, event, reference(cells), records=records, shape=SHAPE, limit=1.0)


def test_the_divisor_is_a_public_constant_whatever_was_counted():
    sums = torch.zeros(1, 10, 4, NUMBERS)
    assert expected_records(EVENT, sums, 400) == 10
    sampled = SubsampledGaussian(noise_multiplier=1.0, sample_rate=0.5, steps=3)
    assert expected_records(sampled, torch.zeros(3, 10, 1, NUMBERS), 400) == 20
    assert expected_records(EVENT, sums, 1) == 1, "never by less than one"


def test_what_stands_out_from_the_noise_is_kept_and_the_rest_is_the_public_mean():
    sums = torch.zeros(1, 2, 2, NUMBERS, dtype=torch.float64)
    sums[0, 0, 0], sums[0, 0, 1] = 40.0, 0.5
    result = images(sums, cells=2)
    assert result.x.shape == (4, *SHAPE) and result.y.tolist() == [0, 0, 1, 1]
    # 40 in each number over 100 records is .4 in each, of norm 1.6; the noise takes a little of it.
    assert torch.allclose(result.x[0], torch.full(SHAPE, -0.1), atol=0.01)
    assert torch.equal(result.x[1], torch.full(SHAPE, -0.5)) and torch.equal(result.x[2], torch.full(SHAPE, -0.5))
    assert result.weights.tolist() == [1.0, 0.0, 0.0, 0.0], "a class of which nothing stands out is not shown"
    far = images(sums * 1000, cells=2)
    assert float((far.x[0] + 0.5).norm()) == pytest.approx(RADIUS, rel=1e-4), "no farther than any record counts"


def world():
    settings = resolve("dp-sgd", changes=["schedule.timesteps=50", "network.width=16", "network.condition=8"])
    schedule = make_schedule(settings.schedule)
    public = build(settings.network, (1, 8, 8), 5, alpha_bar=schedule.alpha_bar)
    with torch.no_grad():  # its last layer begins at 0, through which nothing would be learnt
        for parameter in public.parameters():
            parameter.add_(torch.full_like(parameter, 0.02))
    facts = Facts(records=400, classes=("a", "b"), public_classes=5, shape=(1, 8, 8))
    return Parts(schedule=schedule, shape=(1, 8, 8), facts=facts, public=public)


def shown(level=0.8, weights=(1.0, 1.0)):
    x = torch.stack([torch.full((1, 8, 8), -level), torch.full((1, 8, 8), level)])
    return CentralImages(x, torch.tensor([0, 1]), torch.tensor(weights))


def test_the_warm_up_trains_the_groups_that_it_is_given_and_learns():
    parts, central = world(), Central(images=1, steps=60, learning_rate=1e-2)
    before = dict(untuned(parts).named_parameters())
    model, losses = warmed(parts, shown(), central, ("rows", "film"), seed=0)
    assert len(losses) == 60
    group_of = groups_of(model)
    changed = {group_of(name) for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"rows", "film"} and not any(p.requires_grad for p in model.parameters())
    again, _ = warmed(parts, shown(), central, ("rows", "film"), seed=0)
    everything = ("rows", "film", "attention", "time", "rest")
    _, losses = warmed(parts, shown(), central, everything, seed=0)
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_fine_tuning_starts_from_the_warm_model_and_without_signal_nothing_moves():
    parts = world()
    cold, losses = warmed(parts, shown(weights=(0.0, 0.0)), Central(images=1, steps=5), ("rows",), seed=0)
    begun = untuned(parts).state_dict()
    assert losses == [] and all(torch.equal(value, begun[name]) for name, value in cold.state_dict().items())
    warm, _ = warmed(parts, shown(), Central(images=1, steps=5), ("rows",), seed=0)
    start = untuned(replace(parts, warm=warm))
    assert start is not warm and all(torch.equal(v, start.state_dict()[n]) for n, v in warm.state_dict().items())
