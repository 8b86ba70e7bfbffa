"""Networks that predict anything but the noise keep the denoisers' contract, learn from the error of what they predict, and lose nothing
through the noise."""

import pytest
import torch
from torch import nn

from sfumato.config import Network, Schedule
from sfumato.diffusion.objective import Examples, denoising_examples, record_losses, renoising_loss
from sfumato.diffusion.schedule import add_noise, make_schedule, predicted_image
from sfumato.networks.build import build
from sfumato.networks.prediction import EdmPrediction, VelocityPrediction, error_weights
from sfumato.privacy.engine.per_record import all_at_once, one_by_one

SHAPE = (2, 3, 3)
VELOCITY = Network(kind="mlp", width=16, blocks=1, condition=8, prediction="velocity")
EDM = VELOCITY.model_copy(update={"prediction": "edm", "sigma_data": 0.5})
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
    result = predicted_image(schedule, x_t, t, Told(wrong, schedule)(x_t, t, t))
    level = schedule.alpha_bar.double()[t].view(-1, 1, 1, 1)
    straight = level.sqrt() * x_t.double() - (1 - level).sqrt() * wrong.double()
    assert float((result - straight).abs().max()) < (5e-5 if kind == "linear" else 5e-3)
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


@pytest.mark.parametrize("network", [VELOCITY, EDM], ids=["velocity", "edm"])
def test_record_by_record_the_weights_are_the_same(network):
    schedule = make_schedule(Schedule(timesteps=50))
    model = build(network, SHAPE, 3, alpha_bar=schedule.alpha_bar)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    x, y = torch.randn(5, *SHAPE, generator=generator), torch.tensor([0, 1, 2, 0, 1])
    examples = denoising_examples(schedule, x, y, draws=3, low=1, high=50, generator=generator)
    trainable = dict(model.named_parameters())
    rows, slow = all_at_once(model, trainable, examples), one_by_one(model, trainable, examples)
    for name in trainable:
        torch.testing.assert_close(rows[name], slow[name], rtol=1e-4, atol=1e-5)


def test_it_learns_from_noised_latents_by_the_error_of_the_noise():
    """As it is for a network that says the same noise: dp-promise's first phase is weighed by itself."""
    schedule = make_schedule(Schedule(timesteps=50))
    x, _, t, _ = noised(schedule)
    saying = {"boundary": 25, "generator": torch.Generator().manual_seed(3)}
    result = renoising_loss(Told(0 * x, schedule), schedule, x, t, **saying)
    plain = renoising_loss(
        lambda x_t, t, _: schedule.noise(t) * x_t,
        schedule,
        x,
        t,
        **(saying | {"generator": torch.Generator().manual_seed(3)}),
    )
    torch.testing.assert_close(result, plain)


def test_without_a_schedule_no_velocity_network_is_built():
    with pytest.raises(ValueError, match="signal levels"):
        build(VELOCITY, SHAPE, 3)


DATA = 0.4
"""Standard deviation of the data in the tests of EDM."""


def edm_noised(records=64):
    """EDM's noise levels, images, noise, times, x_t, and by Karras et al. 2022 the image with noise that is not scaled, and its sigma."""
    schedule = make_schedule(Schedule(kind="edm", timesteps=200), limit=1e4)
    x, noise, t, x_t = noised(schedule, records)
    x, noise, level = DATA * x.double(), noise.double(), schedule.alpha_bar.double()[t].view(-1, 1, 1, 1)
    sigma = ((1 - level) / level).sqrt()
    return schedule, x, noise, t, (x + sigma * noise) / (1 + sigma**2).sqrt(), x + sigma * noise, sigma


def test_the_preconditioned_denoiser_is_that_of_table_1():
    """D = c_skip x + c_out F, its constants as printed, against the image that the predicted noise leaves."""
    schedule, _, _, t, x_t, whole, sigma = edm_noised()
    out = torch.randn(x_t.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    denoised = DATA**2 / (sigma**2 + DATA**2) * whole + sigma * DATA / (sigma**2 + DATA**2).sqrt() * out
    noise = EdmPrediction(schedule.alpha_bar.double(), DATA)(out, x_t, t)
    torch.testing.assert_close(whole - sigma * noise, denoised, rtol=1e-6, atol=1e-8)


def test_the_network_is_given_the_image_by_c_in():
    schedule, _, _, t, x_t, whole, sigma = edm_noised()
    given = EdmPrediction(schedule.alpha_bar.double(), DATA).scaled(x_t, t)
    torch.testing.assert_close(given, whole / (sigma**2 + DATA**2).sqrt(), rtol=1e-6, atol=0)


def test_its_input_and_what_it_learns_have_variance_1_at_every_time():
    """Karras et al. 2022, Eq. 117 and 118: the target of F is (x_0 - c_skip x) / c_out."""
    schedule, *_ = edm_noised()
    generator = torch.Generator().manual_seed(2)
    for time in (1, 40, 100, 160, 200):
        t, level = torch.full((4000,), time), schedule.alpha_bar.double()[time]
        x, noise = (torch.randn(4000, 1, 2, 2, generator=generator, dtype=torch.float64) for _ in range(2))
        sigma, x = ((1 - level) / level).sqrt(), DATA * x
        x_t = (x + sigma * noise) / (1 + sigma**2).sqrt()
        prediction = EdmPrediction(schedule.alpha_bar.double(), DATA)
        zero, one = (prediction(torch.full_like(x, fill), x_t, t) for fill in (0.0, 1.0))
        target = (noise - zero) / (one - zero)
        assert float(prediction.scaled(x_t, t).std()) == pytest.approx(1, rel=0.03)
        assert float(target.std()) == pytest.approx(1, rel=0.03)


def test_its_loss_is_lambda_times_the_squared_error_of_the_image():
    """lambda = (sigma^2 + s^2) / (sigma s)^2 (Karras et al. 2022, Table 1), which makes it the squared error of F."""
    schedule, x, noise, t, x_t, whole, sigma = edm_noised()
    prediction = EdmPrediction(schedule.alpha_bar.double(), DATA)
    out = torch.randn(x_t.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.prediction = prediction

        def forward(self, x, t, y):
            return self.prediction(out, x, t)

    examples = Examples(*(part.unflatten(0, (-1, 4)) for part in (x_t, t, t, noise)))
    denoised = whole - sigma * prediction(out, x_t, t)
    weighed = (sigma**2 + DATA**2) / (sigma * DATA) ** 2 * (denoised - x).square()
    expected = weighed.flatten(1).mean(1).view(-1, 4).mean(1)
    torch.testing.assert_close(record_losses(Model(), examples), expected, rtol=1e-6, atol=0)
    target = (x - DATA**2 / (sigma**2 + DATA**2) * whole) * (sigma**2 + DATA**2).sqrt() / (sigma * DATA)
    torch.testing.assert_close(
        expected, (out - target).square().flatten(1).mean(1).view(-1, 4).mean(1), rtol=1e-6, atol=0
    )


def test_for_data_of_variance_1_edm_is_the_velocity_with_its_sign_turned():
    schedule, _, _, t, x_t, *_ = edm_noised()
    out, levels = torch.randn_like(x_t), schedule.alpha_bar.double()
    edm, velocity = EdmPrediction(levels, 1.0), VelocityPrediction(levels)
    torch.testing.assert_close(edm(-out, x_t, t), velocity(out, x_t, t))
    torch.testing.assert_close(edm.scaled(x_t, t), x_t)
    torch.testing.assert_close(edm.weights(t), 1 / levels[t])


@pytest.mark.parametrize("kind", ["mlp", "unet", "refinenet", "dit"])
def test_each_of_our_networks_sees_the_scaled_image(kind):
    network = Network(
        kind=kind, width=8, blocks=1, condition=8, heads=2, attention=(), prediction="edm", sigma_data=0.1
    )
    levels = make_schedule(Schedule(kind="edm", timesteps=50)).alpha_bar
    model = build(network, (1, 8, 8), 3, alpha_bar=levels)
    seen = []
    model.input.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(torch.ones(2, 1, 8, 8), torch.tensor([1, 50]), torch.tensor([0, 1]))
    given = seen[0].flatten(1).amax(1)
    assert given.tolist() == pytest.approx(
        (1 / (levels[[1, 50]] * 0.01 + 1 - levels[[1, 50]]).sqrt()).tolist(), rel=1e-5
    )


def test_edm_learns_a_gaussian():
    """Trained by its weighed loss and noise law, the clean image that it means is the posterior mean of Gaussian data."""
    schedule = make_schedule(Schedule(kind="edm", timesteps=100, law="lognormal"), limit=100.0)
    model = build(EDM.model_copy(update={"sigma_data": DATA, "width": 32}), (1, 1, 1), 1, alpha_bar=schedule.alpha_bar)
    optimiser, generator = torch.optim.Adam(model.parameters(), 3e-3), torch.Generator().manual_seed(0)
    for _ in range(300):
        x = 0.3 + DATA * torch.randn(256, 1, 1, 1, generator=generator)
        y = torch.zeros(256, dtype=torch.long)
        examples = denoising_examples(schedule, x, y, draws=1, low=1, high=100, generator=generator)
        optimiser.zero_grad()
        record_losses(model, examples).mean().backward()
        optimiser.step()
    x, t = 0.3 + DATA * torch.randn(500, 1, 1, 1, generator=generator), torch.full((500,), 40)
    noise = torch.randn(x.shape, generator=generator)
    x_t, level = add_noise(schedule, x, t, noise), float(schedule.alpha_bar[40])
    with torch.no_grad():
        result = predicted_image(schedule, x_t, t, model(x_t, t, torch.zeros(500, dtype=torch.long)))
    sigma = ((1 - level) / level) ** 0.5
    exact = (DATA**2 * x_t / level**0.5 + sigma**2 * 0.3) / (DATA**2 + sigma**2)
    assert float((result - exact).square().mean().sqrt()) < 0.1 * DATA * sigma / (DATA**2 + sigma**2) ** 0.5
