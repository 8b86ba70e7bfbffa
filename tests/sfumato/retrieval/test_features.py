"""The extractor: what h is shown, how views move, and that training by contrast brings like images together."""

import math

import pytest
import torch
from sklearn.datasets import load_digits

from sfumato.config import Schedule
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import make_schedule
from sfumato.retrieval.features import OneStep, class_contrast, make_encoder, random_views, train_extractor
from sfumato.retrieval.settings import Extractor

SCHEDULE = make_schedule(Schedule(timesteps=50))
STILL = Extractor(rotation=0, scale=0, shift=0)
LITTLE = Extractor(steps=2, batch=16, width=4, features=4)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def digits(count=300):
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images[:count] / 8 - 1).float().view(-1, 1, 8, 8), torch.from_numpy(labels[:count]).long()


def silent_denoiser(x, t, y):
    """Predicts no noise at all: the one-step image is x_t / sqrt(alpha_bar_t), clamped."""
    return torch.zeros_like(x)


def test_the_denoiser_is_asked_at_the_wanted_time_without_a_class():
    requested = []

    def denoise(x, t, y):
        requested.append((x, t, y))
        return torch.zeros_like(x)

    x = torch.rand(5, 1, 4, 4)
    clean, noise = OneStep(SCHEDULE, denoise).image(x, 30, generator())
    ((x_t, t, y),) = requested
    level = SCHEDULE.alpha_bar[30]
    torch.testing.assert_close(x_t, level.sqrt() * x + (1 - level).sqrt() * noise)
    assert t.tolist() == [30] * 5 and y.tolist() == [NO_CLASS] * 5
    torch.testing.assert_close(clean, (x_t / level.sqrt()).clamp(-1, 1))


def test_a_perfect_denoiser_gives_the_image_back():
    x = torch.rand(5, 1, 4, 4) * 2 - 1
    level = SCHEDULE.alpha_bar[40]

    def oracle(x_t, t, y):
        return (x_t - level.sqrt() * x) / (1 - level).sqrt()

    one_step = OneStep(SCHEDULE, oracle)
    clean, noise = one_step.image(x, 40, generator())
    torch.testing.assert_close(clean, x, rtol=1e-4, atol=1e-4)
    assert float(noise.std()) == pytest.approx(1, abs=0.3) and len(noise.unique()) == noise.numel()
    torch.testing.assert_close(one_step.guess(level.sqrt() * x + (1 - level).sqrt() * noise, 40), clean)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 7), (1, 28, 28), (1, 2, 2), (1, 9, 5)])
def test_features_are_unit_vectors_for_every_size(shape):
    encoder = make_encoder(Extractor(width=4, features=6), shape)
    result = encoder(torch.randn(4, *shape))
    assert result.shape == (4, 6)
    torch.testing.assert_close(result.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 8, 8), (3, 32, 32)])
def test_a_resnet_18_reads_latents_and_images_as_512_numbers(shape):
    encoder = make_encoder(Extractor(kind="resnet18", features=512), shape, seed=1).eval()
    result = encoder(torch.randn(3, *shape))
    assert result.shape == (3, 512)
    torch.testing.assert_close(result.norm(dim=1), torch.ones(3))
    again = make_encoder(Extractor(kind="resnet18", features=512), shape, seed=1).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in encoder.state_dict().items())
    assert sum(p.numel() for p in encoder.parameters()) > 11e6, "as published, but for the first layer and the last"


def test_other_features_than_those_of_a_resnet_18_are_refused():
    with pytest.raises(ValueError, match="kind=resnet18 gives 512; set features=512"):
        Extractor(kind="resnet18")


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
        return train_extractor(settings, OneStep(SCHEDULE, silent_denoiser), x, y, times=[5], seed=seed)

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
    requested = []

    def denoise(x, t, y):
        requested.append((len(x), set(t.tolist()), set(y.tolist())))
        return torch.zeros_like(x)

    train_extractor(LITTLE, OneStep(SCHEDULE, denoise), *digits(40), times=[37], seed=0)
    assert requested == [(32, {37}, {NO_CLASS})] * 2


def test_h_may_learn_for_several_times_and_for_the_class():
    requested = []

    def denoise(x, t, y):
        requested.append((set(t.tolist()), set(y.tolist())))
        return torch.zeros_like(x)

    x, y = digits(40)
    long = LITTLE.model_copy(update={"steps": 30})
    train_extractor(long, OneStep(SCHEDULE, denoise, conditional=True), x, y, times=[37, 20, 5], seed=0)
    assert {time for times, _ in requested for time in times} == {37, 20, 5} and all(
        len(times) == 1 for times, _ in requested
    )
    assert {label for _, labels in requested for label in labels} == set(y.tolist())


def test_contrast_of_classes_is_the_formula_and_ignores_a_view_without_a_fellow():
    """Khosla et al. 2020, Eq. 2, view by view."""
    features, labels = torch.randn(7, 5, generator=generator()), torch.tensor([0, 1, 0, 2, 1, 0, 3])
    unit, terms = features / features.norm(dim=1, keepdim=True), []
    for one in range(7):
        others = [other for other in range(7) if other != one]
        whole = sum(math.exp(float(unit[one] @ unit[other]) / 0.3) for other in others)
        alike = [other for other in others if labels[other] == labels[one]]
        shares = [math.log(math.exp(float(unit[one] @ unit[other]) / 0.3) / whole) for other in alike]
        terms.append(-sum(shares) / max(1, len(shares)))
    assert float(class_contrast(features, labels, 0.3)) == pytest.approx(sum(terms) / 7, rel=1e-5)


def test_contrast_of_classes_learns_where_that_of_views_does_not():
    """At a time where two views of an image share hardly anything, the classes still do."""
    x, y = digits(900)

    def result(contrast):
        settings = Extractor(steps=60, batch=128, width=8, features=16, contrast=contrast)
        encoder, _ = train_extractor(settings, OneStep(SCHEDULE, silent_denoiser), x[:600], y[:600], times=[8], seed=0)
        near = (encoder(x[600:]) @ encoder(x[:600]).T).argmax(1)
        return float((y[:600][near] == y[600:]).float().mean())

    assert result("classes") > result("views")


PHOTO = STILL.model_copy(update={"edge": "border"})


def test_an_edge_is_drawn_out_where_the_settings_say_so():
    white = torch.ones(50, 3, 16, 16)
    moved = PHOTO.model_copy(update={"rotation": 20, "scale": 0.3, "shift": 0.3})
    torch.testing.assert_close(random_views(white, moved, generator()), white)


def test_half_of_the_views_are_mirrored():
    x = torch.rand(1, 3, 8, 8, generator=generator()).repeat(200, 1, 1, 1)
    seen = random_views(x, PHOTO.model_copy(update={"mirror": True}), generator())
    same = (seen - x).abs().flatten(1).amax(1) < 1e-5
    mirrored = (seen - x.flip(3)).abs().flatten(1).amax(1) < 1e-5
    assert (same ^ mirrored).all() and 60 < int(same.sum()) < 140


def test_a_crop_shows_a_part_of_the_image_alone():
    ramp = torch.linspace(-1, 1, 32).expand(300, 1, 32, 32)
    seen = random_views(ramp, PHOTO.model_copy(update={"crop": 0.5}), generator())[:, 0, 0]
    span = seen[:, -1] - seen[:, 0]
    assert 0.9 < span.min() < 1.2 and 1.7 < span.max() < 2, "between half the side and all of it"
    assert seen.min() < -0.95 and seen.max() > 0.95, "wherever it lies"


def test_jitter_changes_light_and_colour_and_stays_in_range():
    grey = torch.zeros(400, 3, 4, 4)
    seen = random_views(grey, PHOTO.model_copy(update={"jitter": 0.3}), generator())
    assert seen.abs().max() <= 1 and len(seen[:, :, 0, 0].unique(dim=0)) == 400
    channels = seen[:, :, 0, 0]
    assert (channels[:, 0] - channels[:, 1]).abs().max() > 0.1, "channels change apart"
    assert torch.equal(seen[:, :, 0, 0], seen[:, :, 3, 3]), "and pixels do not"
