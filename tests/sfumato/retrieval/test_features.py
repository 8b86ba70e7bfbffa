"""The extractor: what h is shown, how views move, and that training by contrast brings like images together."""

import pytest
import torch
from sklearn.datasets import load_digits

from sfumato.config import Extractor, Schedule
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import make_schedule
from sfumato.retrieval.features import clean_guess, make_encoder, one_step_image, random_views, train_extractor

SCHEDULE = make_schedule(Schedule(timesteps=50))
STILL = Extractor(rotation=0, scale=0, shift=0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def digits(count=300):
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images[:count] / 8 - 1).float().view(-1, 1, 8, 8), torch.from_numpy(labels[:count]).long()


def silent_denoiser(x, t, y):
    """Predicts no noise at all: the one-step image is x_t / sqrt(alpha_bar_t), clamped."""
    return torch.zeros_like(x)


def test_the_denoiser_is_asked_at_the_wanted_time_without_a_class():
    asked = []

    def denoise(x, t, y):
        asked.append((x, t, y))
        return torch.zeros_like(x)

    x = torch.rand(5, 1, 4, 4)
    clean, noise = one_step_image(SCHEDULE, denoise, x, 30, generator())
    ((x_t, t, y),) = asked
    level = SCHEDULE.alpha_bar[30]
    torch.testing.assert_close(x_t, level.sqrt() * x + (1 - level).sqrt() * noise)
    assert t.tolist() == [30] * 5 and y.tolist() == [NO_CLASS] * 5
    torch.testing.assert_close(clean, (x_t / level.sqrt()).clamp(-1, 1))


def test_a_perfect_denoiser_gives_the_image_back():
    x = torch.rand(5, 1, 4, 4) * 2 - 1
    level = SCHEDULE.alpha_bar[40]

    def oracle(x_t, t, y):
        return (x_t - level.sqrt() * x) / (1 - level).sqrt()

    clean, noise = one_step_image(SCHEDULE, oracle, x, 40, generator())
    torch.testing.assert_close(clean, x, rtol=1e-4, atol=1e-4)
    assert float(noise.std()) == pytest.approx(1, abs=0.3) and len(noise.unique()) == noise.numel()
    torch.testing.assert_close(clean_guess(SCHEDULE, oracle, level.sqrt() * x + (1 - level).sqrt() * noise, 40), clean)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 7), (1, 28, 28), (1, 2, 2), (1, 9, 5)])
def test_features_are_unit_vectors_for_every_size(shape):
    encoder = make_encoder(Extractor(width=4, features=6), shape)
    found = encoder(torch.randn(4, *shape))
    assert found.shape == (4, 6)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))


def test_views_without_movement_are_the_images():
    x = torch.rand(6, 3, 9, 9) * 2 - 1
    torch.testing.assert_close(random_views(x, STILL, generator()), x, rtol=1e-5, atol=1e-5)


def test_what_moves_in_is_background_and_nothing_leaves_the_range():
    white = torch.ones(200, 1, 16, 16)
    seen = random_views(white, Extractor(rotation=20, scale=0.3, shift=0.3), generator())
    assert seen.min() == pytest.approx(-1, abs=1e-5) and seen.max() <= 1 + 1e-5
    assert len(seen.flatten(1).unique(dim=0)) > 190, "each image moves in its own way"


def test_a_view_shifts_by_at_most_the_share_of_the_side():
    """A column of light on a wide page: its centre of mass shows the shift."""
    side, share = 40, 0.2
    x = -torch.ones(400, 1, side, side)
    x[:, :, 15:25, 15:25] = 1
    seen = random_views(x, STILL.model_copy(update={"shift": share}), generator())[:, 0] + 1
    place = torch.arange(side) - (side - 1) / 2
    across = (seen.sum(1) * place).sum(1) / seen.sum((1, 2))
    down = (seen.sum(2) * place).sum(1) / seen.sum((1, 2))
    for shift in (across, down):
        assert share * side * 0.95 < shift.abs().max() <= share * side + 1e-3
        assert float(shift.mean()) == pytest.approx(0, abs=5 * share * side / 3**0.5 / 20)


@pytest.mark.parametrize(
    ("name", "value", "moves"), [("rotation", 90.0, True), ("scale", 0.5, True), ("scale", 0.0, False)]
)
def test_rotation_and_scale_do_what_they_say(name, value, moves):
    x = -torch.ones(50, 1, 21, 21)
    x[:, :, 9:12, 2:19] = 1  # a bar through the middle
    seen = random_views(x, STILL.model_copy(update={name: value}), generator())
    assert torch.allclose(seen, x, atol=1e-4) != moves
    torch.testing.assert_close(seen[:, :, 10, 10], torch.ones(50, 1), rtol=1e-4, atol=1e-4)  # the middle stays
    tall = (seen > 0).any(3).sum((1, 2))
    assert (tall.max() > 12) == (name == "rotation")


def test_training_pulls_views_together_and_is_repeatable():
    x, y = digits()
    settings = Extractor(steps=40, batch=64, width=8, features=16)

    def run(seed):
        torch.manual_seed(99 + seed)
        return train_extractor(settings, SCHEDULE, silent_denoiser, x, time=5, seed=seed)

    (one, losses), (two, again), (other, _) = run(3), run(3), run(4)
    assert len(losses) == 40 and sum(losses[-10:]) < 0.95 * sum(losses[:10])
    assert losses == again and all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    assert not any(p.requires_grad for p in one.parameters())
    features = one(x)
    likeness = features @ features.T - 2 * torch.eye(len(x))
    assert float((y[likeness.argmax(1)] == y).float().mean()) > 0.6, "neighbours are mostly of one class, untold"


def test_h_learns_from_latents_at_its_time():
    """The denoiser is asked for both views of a batch, at time k and no other."""
    asked = []

    def denoise(x, t, y):
        asked.append((len(x), set(t.tolist()), set(y.tolist())))
        return torch.zeros_like(x)

    train_extractor(
        Extractor(steps=2, batch=16, width=4, features=4), SCHEDULE, denoise, digits(40)[0], time=37, seed=0
    )
    assert asked == [(32, {37}, {NO_CLASS})] * 2
