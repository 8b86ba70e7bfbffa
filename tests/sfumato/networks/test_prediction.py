"""A velocity network keeps the denoisers' contract, learns from the velocity's error, and loses nothing through the noise."""

import pytest
import torch
from torch import nn

from sfumato.config import Network, Schedule
from sfumato.diffusion.objective import Examples, denoising_examples, record_losses, renoising_loss
from sfumato.diffusion.schedule import add_noise, make_schedule, predicted_image
from sfumato.networks.build import build
from sfumato.networks.prediction import VelocityPrediction, error_weights
from sfumato.privacy.engine.per_record import one_by_one, together

SHAPE = (2, 3, 3)
VELOCITY = Network(kind="mlp", width=16, blocks=1, condition=8, prediction="velocity")
SCHEDULES = {
    "linear": Schedule(),
    "cosine": Schedule(kind="cosine"),
}


class Told(nn.Module):
    """A velocity network whose output is given."""

    def __init__(self, out, schedule):
        super().__init__()
        self.out = out
        self.prediction = VelocityPrediction(schedule.alpha_bar)

    def forward(self, x, t, y):
        return self.prediction(self.out, x, t)


def noised(schedule, records=64):
    """Images, noise, times over the whole schedule with both its ends, and x_t."""
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(records, *SHAPE, generator=generator) for _ in range(2))
    t = torch.linspace(1, schedule.timesteps, records).round().long()
    return x, noise, t, add_noise(schedule, x, t, noise)


def velocity_of(schedule, x, noise, t):
    return schedule.signal(t) * noise - schedule.noise(t) * x


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_image_that_a_velocity_means_survives_the_way_over_the_noise(kind):
    """In float32 down to alpha_bar 4e-5 (linear) and 2e-9 (cosine), where dividing by its root magnifies a rounding error most."""
    schedule = make_schedule(SCHEDULES[kind], limit=100.0)
    x, noise, t, x_t = noised(schedule)
    wrong = velocity_of(schedule, x, noise, t) + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    found = predicted_image(schedule, x_t, t, Told(wrong, schedule)(x_t, t, t))
    level = schedule.alpha_bar.double()[t].view(-1, 1, 1, 1)
    straight = level.sqrt() * x_t.double() - (1 - level).sqrt() * wrong.double()
    assert float((found - straight).abs().max()) < (5e-5 if kind == "linear" else 5e-3)
    assert 0.05 < float((straight - x).std()) < 0.2, "an error of the velocity is no larger one of the image"


@pytest.mark.parametrize("kind", SCHEDULES)
def test_its_loss_is_the_squared_error_of_the_velocity(kind):
    schedule = make_schedule(SCHEDULES[kind])
    x, noise, t, x_t = noised(schedule)
    off = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    model = Told(velocity_of(schedule, x, noise, t) + off, schedule)
    examples = Examples(*(part.unflatten(0, (-1, 4)) for part in (x_t, t, t, noise)))
    expected = off.square().flatten(1).mean(1).view(-1, 4).mean(1)
    torch.testing.assert_close(
        record_losses(model, examples), expected, rtol=2e-2 if kind == "cosine" else 1e-3, atol=0
    )


def test_only_a_velocity_is_weighed():
    t = torch.tensor([[1, 30], [50, 2]])
    levels = make_schedule(Schedule(timesteps=50)).alpha_bar
    assert error_weights(build(VELOCITY.model_copy(update={"prediction": "noise"}), SHAPE, 3), t) is None
    assert torch.equal(error_weights(build(VELOCITY, SHAPE, 3, alpha_bar=levels), t), 1 / levels[t])


def test_record_by_record_the_weights_are_the_same():
    schedule = make_schedule(Schedule(timesteps=50))
    model = build(VELOCITY, SHAPE, 3, alpha_bar=schedule.alpha_bar)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    x, y = torch.randn(5, *SHAPE, generator=generator), torch.tensor([0, 1, 2, 0, 1])
    examples = denoising_examples(schedule, x, y, draws=3, low=1, high=50, generator=generator)
    trainable = dict(model.named_parameters())
    rows, slow = together(model, trainable, examples), one_by_one(model, trainable, examples)
    for name in trainable:
        torch.testing.assert_close(rows[name], slow[name], rtol=1e-4, atol=1e-5)


def test_it_learns_from_noised_latents_by_the_error_of_the_noise():
    """As it is for a network that says the same noise: dp-promise's first phase is weighed by itself."""
    schedule = make_schedule(Schedule(timesteps=50))
    x, _, t, _ = noised(schedule)
    saying = {"boundary": 25, "generator": torch.Generator().manual_seed(3)}
    found = renoising_loss(Told(0 * x, schedule), schedule, x, t, **saying)
    plain = renoising_loss(
        lambda x_t, t, _: schedule.noise(t) * x_t,
        schedule,
        x,
        t,
        **(saying | {"generator": torch.Generator().manual_seed(3)}),
    )
    torch.testing.assert_close(found, plain)


def test_without_a_schedule_no_velocity_network_is_built():
    with pytest.raises(ValueError, match="signal levels"):
        build(VELOCITY, SHAPE, 3)
