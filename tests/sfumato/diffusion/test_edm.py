"""Noise levels instead of times: a network's prediction against the closed form for Gaussian data, and one noisy step."""

import itertools
import math

import pytest
import torch

from sfumato.config import Schedule
from sfumato.diffusion.edm import clean_image, noisy_step, step_noise
from sfumato.diffusion.samplers import time_of
from sfumato.diffusion.schedule import make_schedule

SCHEDULES = [Schedule(), Schedule(kind="cosine"), Schedule(timesteps=4000, beta_start=2.5e-5, beta_end=5e-3)]
MEAN, SPREAD = 0.2, 0.3


def ideal(schedule):
    """Predicts the noise in x_t for pixels from N(MEAN, SPREAD^2), exactly."""

    def denoise(x, t, y):
        signal, noise = schedule.signal(t), schedule.noise(t)
        return noise * (x - signal * MEAN) / (signal**2 * SPREAD**2 + noise**2)

    return denoise


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind} {s.timesteps}")
@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 5.0, 20.0])
def test_it_is_the_bayes_denoiser_of_gaussian_data(schedule, sigma):
    made = make_schedule(schedule, limit=10.0)
    generator = torch.Generator().manual_seed(0)
    clean = MEAN + SPREAD * torch.randn(50, 1, 4, 4, generator=generator)
    x = clean + sigma * torch.randn(clean.shape, generator=generator)
    result = clean_image(made, ideal(made), x, torch.zeros(50, dtype=torch.long), sigma)
    exact = (SPREAD**2 * x + sigma**2 * MEAN) / (SPREAD**2 + sigma**2)
    torch.testing.assert_close(result, exact, rtol=0, atol=0.02)


def test_a_finer_schedule_comes_nearer():
    """What is left is the distance to the nearest time."""
    x = torch.linspace(-2, 2, 100).view(100, 1, 1, 1)
    exact = (SPREAD**2 * x + MEAN) / (SPREAD**2 + 1)
    wrong = []
    for steps in (30, 300, 3000):
        made = make_schedule(Schedule(timesteps=steps, beta_start=0.1 / steps, beta_end=20 / steps), limit=10.0)
        result = clean_image(made, ideal(made), x, torch.zeros(100, dtype=torch.long), 1.0)
        wrong.append(float((result - exact).abs().max()))
    assert wrong[0] > 3 * wrong[1] > 9 * wrong[2]


def test_the_time_has_the_same_signal_to_noise():
    made = make_schedule(Schedule())
    for time in (1, 2, 77, 500, 999, 1000):
        level = float(made.alpha_bar[time])
        assert time_of(made, math.sqrt((1 - level) / level)) == time
    assert time_of(made, 1e-9) == 1 and time_of(made, 1e9) == 1000, "beyond its levels the ends stand in"


def test_predictions_stay_within_the_limit():
    made = make_schedule(Schedule())
    x = torch.full((3, 1, 4, 4), 50.0)
    result = clean_image(made, lambda x, t, y: torch.zeros_like(x), x, torch.zeros(3, dtype=torch.long), 0.5)
    assert float(result.max()) == 1.0


def test_a_step_has_the_weights_and_the_noise_of_eq_1():
    x, image = torch.full((20_000, 1, 1, 2), 3.0), torch.full((20_000, 1, 1, 2), -1.0)
    result = noisy_step(x, image, 2.0, 1.5, torch.Generator().manual_seed(0))
    assert float(result.mean()) == pytest.approx((1 - 2 * 0.5 / 2) * 3 + 2 * 0.5 / 2 * -1, abs=0.03)
    assert float(result.std()) == pytest.approx(math.sqrt(2 * 2 * 0.5), rel=0.02)


@pytest.mark.parametrize(("sigma", "after"), [(80.0, 69.0), (2.0, 1.5), (0.3, 0.0)])
def test_the_noise_relative_to_the_image_is_what_a_step_is_priced_by(sigma, after):
    """Moving the image by e moves the result by as many standard deviations of its noise as e has step noises."""
    zero, one = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    steps = [noisy_step(zero, image, sigma, after, torch.Generator().manual_seed(0)) for image in (zero, one)]
    deviation = math.sqrt(2 * sigma * (sigma - after))
    assert float(steps[1] - steps[0]) / deviation == pytest.approx(1 / step_noise(sigma, after), rel=1e-4)


def test_many_steps_end_in_the_data():
    made = make_schedule(Schedule(), limit=10.0)
    generator = torch.Generator().manual_seed(0)
    levels = [*(20 ** (1 - i / 60) * 0.02 ** (i / 60) for i in range(61)), 0.0]
    x = levels[0] * torch.randn(4000, 1, 1, 1, generator=generator)
    y = torch.zeros(4000, dtype=torch.long)
    for sigma, after in itertools.pairwise(levels):
        x = noisy_step(x, clean_image(made, ideal(made), x, y, sigma), sigma, after, generator)
    assert float(x.mean()) == pytest.approx(MEAN, abs=0.03) and float(x.std()) == pytest.approx(SPREAD, rel=0.15)
