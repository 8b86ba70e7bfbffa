"""The rehearsal tells samples that look like public images from texture and noise, and says in one line what is worse than wanted."""

import numpy as np
import pytest
import torch

from sfumato import rehearsal, sources
from sfumato.config import Generation, RehearsalSettings, Schedule
from sfumato.diffusion.schedule import make_schedule
from sfumato.held_out import held_out
from sfumato.images import to_unit
from sfumato.latents import PIXELS
from sfumato.rehearsal import complaints, distances, gaussian_draws, reading, rehearse, set_size
from sfumato.rehearsal_findings import RehearsalFindings

CPU, WANTED = torch.device("cpu"), RehearsalSettings()
GOOD = {"held_out": 200, "images": 100, "directions": 10, "samples": 3.0, "real": 2.0, "gaussian": 12.0}


@pytest.fixture(scope="module")
def glyphs():
    return sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=40))


def edges(images):
    """Features that a Gaussian's draws do not share with glyphs: how strong the edges are, row by row and column by column."""
    strong = torch.cat([images.diff(dim=2).abs().mean(3), images.diff(dim=3).abs().mean(2)], 2).flatten(1)
    return torch.cat([strong, images.square().mean(3).flatten(1)], 1), (images.flatten(1).mean(1) > 0).long()


def test_draws_have_mean_and_covariance_of_what_they_are_fitted_to():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 1, 2, 1, generator=generator) @ torch.tensor([[1.0]]) * 0.3
    x[:, 0, 1] += 0.5 * x[:, 0, 0] + 0.2
    drawn = gaussian_draws(x, 4000, 9.0, generator).flatten(1)
    torch.testing.assert_close(drawn.mean(0), x.flatten(1).mean(0), atol=0.03, rtol=0)
    torch.testing.assert_close(drawn.T.cov(), x.flatten(1).T.cov(), atol=0.02, rtol=0)
    assert gaussian_draws(x, 50, 0.1, generator).abs().max() <= 0.1


@pytest.mark.parametrize(
    ("held", "requested", "size"), [(2000, 500, 500), (300, 500, 150), (40, 500, 20), (39, 500, 0), (0, 500, 0)]
)
def test_sets_are_as_large_as_half_of_what_is_held_out(held, requested, size):
    assert set_size(held, requested) == size


def test_public_images_pass_and_texture_and_noise_fail(glyphs):
    learnt, retained = held_out(glyphs, 0)
    x, size = to_unit(retained.pixels), 100
    generator = torch.Generator().manual_seed(1)
    texture = [gaussian_draws(to_unit(learnt.pixels), size, 1.0, generator) for _ in range(2)]
    sets = {"glyphs": to_unit(learnt.pixels[:size]), "texture": texture[1], "noise": 2 * torch.rand(size, 1, 8, 8) - 1}
    worse = {}
    for name, drawn in sets.items():
        apart, directions = distances(edges(x)[0], edges(drawn)[0], edges(texture[0])[0])
        assert directions == size // rehearsal.PER_DIRECTION
        result = RehearsalFindings(**{**GOOD, **apart._asdict()})
        worse[name] = result.nearness
    assert abs(worse["glyphs"]) < 0.2 and 0.7 < worse["texture"] < 1.3 and worse["noise"] > 2, worse


def test_halves_hold_the_same_classes_however_the_images_lie():
    labels = torch.arange(10).repeat_interleave(30)  # held-out images in order of class
    features = 5 * torch.eye(10)[labels] + 0.3 * torch.randn(300, 10, generator=torch.Generator().manual_seed(0))
    order = rehearsal.dealt(labels, 0)
    assert sorted(order.tolist()) == list(range(300)) and torch.equal(labels[order[:150]], labels[order[150:]])
    assert not torch.equal(order, rehearsal.dealt(labels, 1)) and labels[order[:50]].unique().numel() == 10
    good = 5 * torch.eye(10)[labels[order[:150]]] + 0.3 * torch.randn(150, 10)
    apart, _ = distances(features[order], good, torch.zeros(150, 10))
    assert apart.samples == pytest.approx(apart.real, abs=0.1) and apart.real < 0.1 < apart.gaussian


def test_single_images_of_a_class_come_last_and_are_used():
    labels = torch.tensor([7, 3, 3, 1, 2, 2, 2, 3, 3])
    order = rehearsal.dealt(labels, 0)
    assert sorted(order.tolist()) == list(range(9))
    first, second = labels[order[:4]], labels[order[4:8]]
    assert torch.equal(first[:3], second[:3]) and first[3] != second[3]
    assert sorted(rehearsal.dealt(torch.arange(5), 0).tolist()) == list(range(5))
    assert rehearsal.dealt(torch.zeros(0, dtype=torch.long), 0).shape == (0,)


def test_between_public_images_and_a_gaussians_draws():
    assert RehearsalFindings(**GOOD).nearness == pytest.approx(0.1)
    assert RehearsalFindings(**GOOD | {"samples": 12.0}).nearness == pytest.approx(1.0)
    alike = RehearsalFindings(**GOOD | {"gaussian": 1.5})  # a Gaussian draws such images as well as anything
    assert alike.nearness == pytest.approx(0.5)
    assert RehearsalFindings(held_out=10).nearness is None


def test_what_is_read_beyond_chance_survives():
    labels = torch.arange(100) % 2
    wrong = 1 - labels
    half = torch.where(torch.arange(100) < 50, labels, torch.zeros(100, dtype=torch.long))
    assert reading(labels, labels, labels) == (1.0, 1.0, 1.0)
    assert reading(labels, labels, half) == (1.0, 0.75, 0.5)
    assert reading(labels, labels, 0 * labels) == (1.0, 0.5, 0.0), "one class for all is chance"
    assert reading(labels, half, wrong).survives == 0.0
    assert reading(labels, 0 * labels, labels).survives is None, "nothing was read before"


def test_worse_than_wanted_names_number_threshold_and_way_out():
    assert complaints(RehearsalFindings(**GOOD, survives=0.8), WANTED) == ()
    assert complaints(RehearsalFindings(held_out=10), WANTED) == (), "what was not measured stops nothing"
    far, lost = complaints(RehearsalFindings(**GOOD | {"samples": 24.0}, survives=0.625), WANTED)
    assert all(
        word in far for word in ("2.20", "rehearsal.nearer=1", "pretraining.steps", "latent.kind", "data.public")
    )
    encoded = complaints(RehearsalFindings(**GOOD | {"samples": 24.0}, error=0.1), WANTED)
    assert "latent.kind" not in encoded[0], "nobody is told to do what is done"
    assert all(word in lost for word in ("62.5%", "rehearsal.survives=0.8", "recipe.minutes", "latent.steps"))
    assert "\n" not in far + lost
    lenient = RehearsalSettings(nearer=3.0, survives=0.5)
    assert complaints(RehearsalFindings(**GOOD | {"samples": 24.0}, survives=0.625), lenient) == ()
    assert complaints(RehearsalFindings(**GOOD | {"samples": float("nan")}), WANTED), "no number is no pass"


@pytest.mark.parametrize("there", [True, False])
def test_it_draws_as_it_is_told_or_says_that_there_is_no_model(glyphs, there):
    public = held_out(glyphs, 0)
    levels, requested = make_schedule(Schedule(timesteps=50)), []

    def denoiser(x, t, y):
        requested.append(y)
        return torch.zeros_like(x)

    how = {"images": 30, "seed": 0, "device": CPU}
    result, shown = rehearse(levels, Generation(steps=3), public, PIXELS, denoiser if there else None, edges, **how)
    again, _ = rehearse(levels, Generation(steps=3), public, PIXELS, denoiser if there else None, edges, **how)
    assert result == again and result.model is there and result.survives is result.error is None
    if there:
        assert result.images == 30 and result.nearness > 1 and len(requested) == 6
        order = rehearsal.dealt(torch.from_numpy(public.withheld.labels), 0)
        assert np.array_equal(requested[0], public.withheld.labels[order[:30]]), (
            "of the classes of as many held-out images"
        )
        assert [caption for caption, _ in shown] == [rehearsal.SAMPLES, rehearsal.HELD_OUT, rehearsal.GAUSSIAN]
    else:
        assert result.nearness is None and [caption for caption, _ in shown] == [rehearsal.HELD_OUT]
