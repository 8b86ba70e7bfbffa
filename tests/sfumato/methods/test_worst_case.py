"""The game against each sampler: nothing is found where it does what its entries say, and each planted fault is."""

import math

import pytest
import torch

from sfumato import latents
from sfumato.diffusion import edm, objective
from sfumato.diffusion.schedule import make_schedule
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts
from sfumato.methods.plan import STAGE_DRAWING, Facts
from sfumato.preflight import plan_for
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from sfumato.privacy.auditing import games
from sfumato.privacy.auditing.games import log_likelihood_ratios, play_drawing
from sfumato.privacy.auditing.played import Played
from sfumato.privacy.engine import kernel_mean
from sfumato.settings import resolve

FACTS = Facts(records=1437, classes=tuple("0123456789"), public_classes=52, shape=(1, 8, 8))
FEW = ["generation.steps=15", "schedule.timesteps=50", "generation.images=20", "privacy.delta=3e-4"]
ENSEMBLE = ("dp-ensemble", "method.members=4")
ABSTAINING = ("dp-ensemble", "method.members=20", "method.adapters=4", "method.abstain=true")
RECORDS = {ABSTAINING: 60}
"""Where shards lack classes: with three records each, one member in four has a record of a class."""
KERNEL = ("empirical-denoiser",)
SAMPLED = ("empirical-denoiser", "method.sample_rate=0.2")
ALL = ("empirical-denoiser", "method.by_class=false", "method.centre=zero")
ONCE = ("empirical-denoiser", "method.pay=class", "method.trajectories=3")
SAMPLERS = {
    "ensemble": ENSEMBLE,
    "abstaining": ABSTAINING,
    "noise averaged": (*ENSEMBLE, "method.formulation=A"),
    "images averaged": (*ENSEMBLE, "method.formulation=B", "method.clipped=prediction"),
    "kernel mean": KERNEL,
    "of a sample": SAMPLED,
    "of all classes": ALL,
    "paid once": ONCE,
}


def tried(name, *changes, epsilon=10):
    settings = resolve(name, changes=[*FEW, f"privacy.epsilon={epsilon}", *changes])
    facts = FACTS.model_copy(update={"records": RECORDS.get((name, *changes), FACTS.records)})
    plan = plan_for(settings, facts)
    events = plan.events(STAGE_DRAWING)
    parts = Parts(make_schedule(settings.schedule), facts.shape, facts, None, paid=events)

    def play(present, source):
        return METHODS[name].worst_case(settings, parts, present, source)

    return play_drawing(play, events, numbers=64, delta=plan.privacy.delta)


@pytest.mark.parametrize("epsilon", [1, 10])
@pytest.mark.parametrize("how", SAMPLERS)
def test_a_sampler_that_does_what_its_entries_say_has_no_fault_and_keeps_its_price(how, epsilon):
    fit, bound = tried(*SAMPLERS[how], epsilon=epsilon)
    assert fit.faults == ()
    assert fit.noise == pytest.approx(1, abs=0.02) and fit.noise_at_most >= 1
    assert fit.contribution <= 1 + 1e-3
    assert fit.epsilon <= fit.priced and bound.epsilon <= fit.priced


@pytest.mark.parametrize("how", ["ensemble", "abstaining", "kernel mean", "of a sample", "of all classes", "paid once"])
def test_what_a_game_shows_is_nearly_the_price_so_that_little_could_hide(how):
    fit, _ = tried(*SAMPLERS[how])
    assert fit.contribution == pytest.approx(1, abs=1e-3) and fit.epsilon > 0.75 * fit.priced


def test_who_attacks_at_epsilon_ten_guesses_many_coins():
    assert tried(*ENSEMBLE)[1].epsilon > 0.5


# Planted faults


@pytest.mark.parametrize("epsilon", [1, 10])
@pytest.mark.parametrize(
    ("how", "module"), [("ensemble", objective), ("kernel mean", edm), ("of a sample", edm), ("paid once", edm)]
)
def test_halved_noise_is_found_and_shown_above_the_price(monkeypatch, how, module, epsilon):
    real = module.normal
    monkeypatch.setattr(module, "normal", lambda like, source: real(like, source) / 2)
    fit, _ = tried(*SAMPLERS[how], epsilon=epsilon)
    assert "the noise is at most 0.5" in fit.faults[0] and fit.epsilon > 1.3 * fit.priced


@pytest.mark.parametrize("how", ["ensemble", "abstaining", "noise averaged", "images averaged"])
def test_a_clip_of_c_instead_of_half_of_it_is_found(monkeypatch, how):
    real = latents.within
    monkeypatch.setattr(latents, "within", lambda vectors, radius: real(vectors, 2 * radius))
    fit, _ = tried(*SAMPLERS[how])
    assert any("the record moved a step by" in fault for fault in fit.faults)


@pytest.mark.parametrize("how", ["kernel mean", "of all classes", "paid once"])
def test_a_kernel_mean_divided_by_too_few_is_found(monkeypatch, how):
    real = kernel_mean.kernel_mean

    def planted(*args, expected, **named):
        return real(*args, expected=expected / 1.05, **named)

    monkeypatch.setattr(kernel_mean, "kernel_mean", planted)
    (fault,) = tried(*SAMPLERS[how])[0].faults
    assert "the record moved a step by 1.05" in fault


def test_records_that_take_part_too_often_are_found(monkeypatch):
    real = kernel_mean.kernel_mean

    def planted(*args, sample_rate, **named):
        return real(*args, sample_rate=1.5 * sample_rate, **named)

    monkeypatch.setattr(kernel_mean, "kernel_mean", planted)
    (fault,) = tried(*SAMPLED)[0].faults
    assert "chances at a rate of 0.2" in fault


def test_noise_that_comes_again_at_each_step_is_found(monkeypatch):
    retained = {}
    real = objective.normal
    monkeypatch.setattr(objective, "normal", lambda like, source: retained.setdefault(like.shape, real(like, source)))
    assert any("comes again" in fault for fault in tried(*ENSEMBLE)[0].faults)


# The likelihood ratio


def test_the_log_likelihood_ratio_is_that_of_two_normals_or_of_a_mixture():
    residuals = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    played = Played(residuals, torch.tensor([0.5, 1.5]), (0, 1))
    events = [
        Gaussian(noise_multiplier=2.0, count=3),
        SubsampledGaussian(noise_multiplier=2 / 3, sample_rate=0.3, steps=3),
    ]
    along, normal = residuals.sum(2) / 2, torch.distributions.Normal
    first = normal(0.5, 1.0).log_prob(along[0]) - normal(0.0, 1.0).log_prob(along[0])
    there, gone = (normal(mean, 1.0).log_prob(along[1]).exp() for mean in (1.5, 0.0))
    expected = first + ((0.7 * gone + 0.3 * there) / gone).log()
    assert log_likelihood_ratios(played, events).tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_a_record_that_is_never_there_shows_nothing():
    """Coins tossed and nothing done with them: at 95 % few of a hundred audits may show an epsilon above 0."""
    generator, shifts = torch.Generator().manual_seed(0), torch.full((5,), 0.2)

    def play(present, source):
        return Played(torch.randn(5, len(present), 4, generator=generator), shifts, (0,) * 5)

    event = Gaussian(noise_multiplier=1 / math.sqrt(5 * 0.04), count=1)
    result = [play_drawing(play, [event], numbers=4, delta=1e-3) for _ in range(100)]
    assert sum(bound.epsilon > 0 for _, bound in result) <= 10
    assert result[0][1].canaries == games.GAMES
