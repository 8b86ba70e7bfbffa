"""Our samplers and predictions against diffusers' schedulers, step for step."""

import diffusers
import pytest
import torch

from sfumato.config import Schedule
from sfumato.diffusion.samplers import ddim
from sfumato.diffusion.schedule import add_noise, make_schedule
from sfumato.networks.prediction import SamplePrediction, VelocityPrediction, error_weights

T = 1000
SHAPE = (4, 3, 8, 8)
SCHEDULES = [
    (Schedule(), {}),
    (
        Schedule(kind="scaled_linear", beta_start=0.0015, beta_end=0.0155),
        {"beta_schedule": "scaled_linear", "beta_start": 0.0015, "beta_end": 0.0155},
    ),
    (Schedule(kind="cosine"), {"beta_schedule": "squaredcos_cap_v2"}),
]


def net(x, t):
    """A made-up network that is bounded: some noise in x, depending on the time."""
    return torch.tanh(x + t.view(-1, 1, 1, 1) / T)


@pytest.mark.parametrize(("settings", "theirs"), SCHEDULES, ids=lambda value: getattr(value, "kind", ""))
@pytest.mark.parametrize("steps", [10, 50])
def test_ddim_is_that_of_diffusers(settings, theirs, steps):
    schedule = make_schedule(settings)
    scheduler = diffusers.DDIMScheduler(clip_sample=True, set_alpha_to_one=True, **theirs)
    scheduler.set_timesteps(steps)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    times = [int(time) + 1 for time in scheduler.timesteps]
    drawn = ddim(
        schedule,
        lambda x, t, y: net(x, t),
        x,
        torch.zeros(4, dtype=torch.long),
        [*times, 0],
        generator=torch.Generator(),
    )
    expected = x
    for time in scheduler.timesteps:
        noise = net(expected, torch.full((4,), int(time) + 1))
        # Both clamp the image, and then take the noise that goes with it.
        expected = scheduler.step(noise, int(time), expected, eta=0.0, use_clipped_model_output=True).prev_sample
    # Theirs stops at a time one step short of 0, whose level is 1 by `set_alpha_to_one`.
    torch.testing.assert_close(drawn, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("settings", "theirs"), SCHEDULES, ids=lambda value: getattr(value, "kind", ""))
def test_noise_is_added_as_diffusers_adds_it(settings, theirs):
    scheduler = diffusers.DDPMScheduler(**theirs)
    x, noise = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    t = torch.tensor([1, 5, 500, 1000])
    torch.testing.assert_close(
        add_noise(make_schedule(settings), x, t, noise), scheduler.add_noise(x, noise, t - 1), rtol=0, atol=1e-5
    )


def test_velocity_and_image_mean_what_they_mean_to_diffusers():
    schedule = make_schedule(Schedule())
    scheduler = diffusers.DDPMScheduler()
    x, noise = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    t = torch.tensor([1, 100, 700, 999])
    seen, velocity = add_noise(schedule, x, t, noise), scheduler.get_velocity(x, noise, t - 1)
    torch.testing.assert_close(VelocityPrediction(schedule.alpha_bar)(velocity, seen, t), noise, rtol=0, atol=1e-5)
    torch.testing.assert_close(SamplePrediction(schedule.alpha_bar)(x, seen, t), noise, rtol=0, atol=1e-4)


def test_the_error_that_a_network_of_images_learns_from_is_that_of_the_image():
    schedule, t = make_schedule(Schedule()), torch.tensor([100, 500])
    model = torch.nn.Module()
    model.prediction = SamplePrediction(schedule.alpha_bar)
    x, wrong, noise = torch.randn(3, 2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    seen = add_noise(schedule, x, t, noise)
    errors = (model.prediction(wrong, seen, t) - noise).square().flatten(1).mean(1)
    torch.testing.assert_close(errors * error_weights(model, t), (wrong - x).square().flatten(1).mean(1))
