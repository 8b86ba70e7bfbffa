"""The white-box test finds faults that are planted in the engine, and none where there is none."""

import math

import pytest
import torch

from sfumato.config import FineTuning
from sfumato.privacy.accounting.events import SubsampledGaussian
from sfumato.privacy.auditing.findings import FALSE_ALARM
from sfumato.privacy.auditing.white_box import noise_faults, play_training
from sfumato.privacy.engine import dp_sgd
from tests.sfumato.privacy.engine.test_dp_sgd import corrupt, network

DEMO = SubsampledGaussian(noise_multiplier=2.7, sample_rate=0.5, steps=150)
"""About epsilon 10 at this delta."""
STRICT = SubsampledGaussian(noise_multiplier=19.0, sample_rate=0.5, steps=150)
"""About epsilon 1."""
DELTA = 3.4e-4


def tried(event=DEMO, *, kind="mlp", **changes):
    settings = FineTuning(draws=2, clip=0.1).model_copy(update=changes)
    return play_training(network(kind), (1, 8, 8), corrupt, settings, event, delta=DELTA, physical_batch=64)


@pytest.mark.parametrize("event", [DEMO, STRICT], ids=["epsilon 10", "epsilon 1"])
def test_an_engine_that_does_what_its_entry_says_has_no_fault_and_nearly_its_price(event):
    fit = tried(event)
    assert fit.faults == () and fit.numbers > 2e5
    assert fit.noise == pytest.approx(1, abs=0.01) and 1 <= fit.noise_at_most < 1.02
    assert fit.contribution == pytest.approx(1, abs=1e-3)
    assert 0.6 * fit.priced < fit.epsilon < fit.priced


# Planted faults


def noise_times(monkeypatch, change):
    """Let the engine's noise be what `change` makes of it."""
    real = dp_sgd.add_gaussian

    def planted(total, **given):
        noisy = real(total, **given)
        return {name: total[name] + change(name, noisy[name] - total[name]) for name in total}

    monkeypatch.setattr(dp_sgd, "add_gaussian", planted)


@pytest.mark.parametrize("event", [DEMO, STRICT], ids=["epsilon 10", "epsilon 1"])
def test_halved_noise_is_found_and_shown_above_the_price(monkeypatch, event):
    noise_times(monkeypatch, lambda name, noise: noise / 2)
    fit = tried(event)
    assert "the noise is at most 0.5" in fit.faults[0]
    assert fit.epsilon > 1.4 * fit.priced


def test_noise_that_is_missing_on_one_tensor_is_found(monkeypatch):
    first = []

    def without(name, noise):
        first.append(name)
        return 0 * noise if name == first[0] else noise

    noise_times(monkeypatch, without)
    assert tried().faults


def test_noise_that_comes_again_is_found(monkeypatch):
    retained = {}
    noise_times(monkeypatch, lambda name, noise: retained.setdefault(name, noise))
    assert "the noise of one step comes again in another" in tried().faults


def test_noise_of_another_shape_is_found(monkeypatch):
    noise_times(monkeypatch, lambda name, noise: 2.7 * 0.1 * math.sqrt(12) * (torch.rand(noise.shape) - 0.5))
    assert "the noise is not of normal shape" in tried().faults


def test_a_sum_in_which_records_are_not_clipped_is_found(monkeypatch):
    monkeypatch.setattr(
        "sfumato.privacy.engine.clipping.clip_factors", lambda squares, clip: torch.ones_like(squares[0])
    )
    assert "one record moved the sum by" in tried().faults[0]


@pytest.mark.parametrize("rule", ["flat", "per_group", "automatic"])
def test_twice_the_clip_is_found_under_every_rule(monkeypatch, rule):
    real = dp_sgd.clipped_sum
    assert tried(clipping=rule).faults == ()
    monkeypatch.setattr(dp_sgd, "clipped_sum", lambda *args, clip, **named: real(*args, clip=2 * clip, **named))
    fit = tried(clipping=rule)
    assert "one record moved the sum by" in fit.faults[0] and fit.contribution == pytest.approx(2, rel=0.01)
    assert fit.epsilon > 1.2 * fit.priced


def test_records_that_take_part_too_often_are_found(monkeypatch):
    real = dp_sgd.poisson_sample
    monkeypatch.setattr(
        dp_sgd, "poisson_sample", lambda records, rate, source: real(records, min(1, 1.5 * rate), source)
    )
    (fault,) = tried(DEMO.model_copy(update={"sample_rate": 0.05})).faults
    assert "chances at a rate of 0.05" in fault


# Its own false alarms, without an engine


def test_standard_normal_noise_is_hardly_ever_found_faulty():
    generator = torch.Generator().manual_seed(0)
    result = 0
    for _ in range(200):
        steps = [[torch.randn(n, generator=generator) for n in (300, 40, 7, 1)] for _ in range(8)]
        result += bool(noise_faults(steps)[2])
    assert result <= 2, f"{200 * FALSE_ALARM} expected"


def test_noise_that_is_two_in_a_hundred_too_small_is_found_among_a_million_numbers():
    generator = torch.Generator().manual_seed(0)
    seen, at_most, faults = noise_faults([[0.98 * torch.randn(10**5, generator=generator)] for _ in range(10)])
    assert seen < at_most < 1 and len(faults) == 1
