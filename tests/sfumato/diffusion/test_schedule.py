"""Signal levels against the product taken from scratch, the law of x_t, and the lists of times that samplers walk."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from sfumato.config import Schedule
from sfumato.diffusion.schedule import add_noise, make_schedule, mixture_law, predicted_image, time_grid, training_times


def product(betas):
    """[1, 1 - b1, (1 - b1)(1 - b2), ...] in plain Python."""
    levels = [1.0]
    for beta in betas:
        levels.append(levels[-1] * (1 - beta))
    return levels


def linear(steps, first, last):
    return [first + (last - first) * i / (steps - 1) for i in range(steps)]


def cosine(steps, offset, largest):
    def f(t):
        return math.cos((t / steps + offset) / (1 + offset) * math.pi / 2) ** 2

    return [min(1 - f(t) / f(t - 1), largest) for t in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("settings", "betas"),
    [
        (Schedule(), linear(1000, 1e-4, 0.02)),
        (Schedule(timesteps=7, beta_start=0.3, beta_end=0.01), linear(7, 0.3, 0.01)),
        (Schedule(kind="cosine"), cosine(1000, 0.008, 0.999)),
        (Schedule(kind="cosine", timesteps=25, cosine_offset=0.02, beta_max=0.5), cosine(25, 0.02, 0.5)),
    ],
)
def test_alpha_bar_is_the_product_of_one_minus_beta(settings, betas):
    schedule = make_schedule(settings)
    assert schedule.timesteps == settings.timesteps
    assert schedule.alpha_bar.tolist() == pytest.approx(product(betas), rel=1e-6)


def test_the_cosine_schedule_is_that_of_the_paper_until_beta_is_capped():
    schedule, settings = make_schedule(Schedule(kind="cosine")), Schedule(kind="cosine")

    def f(t):
        return math.cos((t / 1000 + settings.cosine_offset) / (1 + settings.cosine_offset) * math.pi / 2) ** 2

    for t in (1, 10, 500, 990):
        assert float(schedule.alpha_bar[t]) == pytest.approx(f(t) / f(0), rel=1e-5)  # Eq. 17
    assert float(schedule.alpha_bar[1000]) == pytest.approx(float(schedule.alpha_bar[999]) * 1e-3, rel=1e-4)


def test_times_are_one_based_and_zero_is_the_clean_image():
    schedule = make_schedule(Schedule(timesteps=10, beta_start=0.1, beta_end=0.5))
    x, noise = torch.rand(3, 1, 2, 2), torch.randn(3, 1, 2, 2)
    x_t = add_noise(schedule, x, torch.tensor([0, 1, 10]), noise)
    assert torch.equal(x_t[0], x[0])
    torch.testing.assert_close(x_t[1], math.sqrt(0.9) * x[1] + math.sqrt(0.1) * noise[1])
    level = math.prod(1 - (0.1 + 0.4 * i / 9) for i in range(10))
    torch.testing.assert_close(x_t[2], math.sqrt(level) * x[2] + math.sqrt(1 - level) * noise[2])


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("t", [1, 40, 100])
def test_x_t_has_the_mean_and_variance_of_the_forward_process(kind, t):
    settings, draws = Schedule(kind=kind, timesteps=100), 40_000
    schedule, generator = make_schedule(settings), torch.Generator().manual_seed(t)
    noise = torch.randn(draws, 1, 1, 1, generator=generator)
    x_t = add_noise(schedule, torch.full((draws, 1, 1, 1), 0.7), torch.full((draws,), t), noise)
    levels = product(linear(100, 1e-4, 0.02) if kind == "linear" else cosine(100, 0.008, 0.999))
    spread = math.sqrt(1 - levels[t])
    assert float(x_t.mean()) == pytest.approx(0.7 * math.sqrt(levels[t]), abs=5 * spread / math.sqrt(draws))
    assert float(x_t.var()) == pytest.approx(spread**2, rel=5 * math.sqrt(2 / draws))


def test_the_predicted_image_undoes_the_noise_and_stays_in_range():
    schedule, t = make_schedule(Schedule()), torch.tensor([1, 300, 700])
    x, noise = torch.rand(3, 1, 4, 4) * 1.8 - 0.9, torch.randn(3, 1, 4, 4)
    x_t = add_noise(schedule, x, t, noise)
    torch.testing.assert_close(predicted_image(schedule, x_t, t, noise), x, rtol=1e-4, atol=1e-4)
    assert predicted_image(schedule, 50 * x_t, t, noise).abs().max() == 1


@pytest.mark.parametrize(("start", "stop"), [(1000, 0), (400, 0), (1000, 500), (17, 3), (5, 4)])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 13, 100, 999, 5000])
def test_a_walk_falls_evenly_between_its_ends_without_repeats(start, stop, steps):
    walk = list(time_grid(start, stop, steps))
    assert (walk[0], walk[-1]) == (start, stop)
    gaps = [now - after for now, after in itertools.pairwise(walk)]
    assert min(gaps) >= 1 and max(gaps) - min(gaps) <= 1
    assert len(gaps) == min(steps, start - stop)


EDM = Schedule(kind="edm", law="lognormal")


def logarithms(schedule):
    """ln sigma of all times, by the signal levels."""
    levels = schedule.alpha_bar.double()[1:]
    return ((1 - levels) / levels).log() / 2


def test_edms_noise_levels_are_those_of_eq_5():
    """Karras et al. 2022, Eq. 5, counted from the other end; alpha_bar in float32 leaves 1 % of the smallest."""
    schedule = make_schedule(EDM)
    for t in (1, 2, 300, 777, 999, 1000):
        root = 80 ** (1 / 7) + (1000 - t) / 999 * (0.002 ** (1 / 7) - 80 ** (1 / 7))
        assert float(logarithms(schedule)[t - 1].exp()) == pytest.approx(root**7, rel=0.01)


def test_steps_over_edms_times_are_the_papers_steps():
    """Even steps over the times are even in the rho-th root of sigma."""
    sigma = logarithms(make_schedule(EDM)).exp()
    roots = [float(sigma[t - 1]) ** (1 / 7) for t in time_grid(1000, 0, 50) if t]
    gaps = [before - after for before, after in itertools.pairwise(roots)]
    assert max(gaps) == pytest.approx(min(gaps), rel=0.05)


@pytest.mark.parametrize(
    "settings",
    [EDM, EDM.model_copy(update={"law_mean": 0.3, "law_spread": 0.5}), EDM.model_copy(update={"kind": "linear"})],
    ids=["edm", "another mean and spread", "linear times"],
)
def test_the_logarithm_of_the_noise_is_normal(settings):
    schedule = make_schedule(settings)
    where = logarithms(schedule)
    mean = float(schedule.law @ where)
    assert float(schedule.law.sum()) == pytest.approx(1)
    assert mean == pytest.approx(settings.law_mean, abs=0.01)
    assert float(schedule.law @ (where - mean).square()) ** 0.5 == pytest.approx(settings.law_spread, rel=0.01)
    t = training_times(schedule, 20_000, 1, 1000, torch.Generator().manual_seed(0), torch.device("cpu"))
    drawn = where[t - 1]
    assert float(drawn.mean()) == pytest.approx(settings.law_mean, abs=5 * settings.law_spread / 20_000**0.5)
    assert float(drawn.std()) == pytest.approx(settings.law_spread, rel=0.03)


def test_times_trained_alone_keep_their_proportions():
    schedule, generator = (
        make_schedule(Schedule(kind="edm", timesteps=9, law="lognormal")),
        torch.Generator().manual_seed(0),
    )
    t = training_times(schedule, 40_000, 3, 6, generator, torch.device("cpu"))
    result, law = torch.bincount(t, minlength=10)[1:] / 40_000, schedule.law.clone()
    law[:2], law[6:] = 0, 0
    assert result.tolist() == pytest.approx((law / law.sum()).tolist(), abs=0.013)


def test_where_the_law_is_nearly_nothing_times_are_still_drawn():
    schedule = make_schedule(EDM.model_copy(update={"law_spread": 0.01}))
    t = training_times(schedule, 100, 990, 1000, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert int(t.min()) >= 990 and int(t.max()) <= 1000


def test_without_a_law_times_are_uniform_and_those_of_earlier_versions():
    schedule = make_schedule(Schedule())
    assert schedule.law is None
    drawn = training_times(schedule, 50, 3, 900, torch.Generator().manual_seed(4), torch.device("cpu"))
    assert torch.equal(drawn, torch.randint(3, 901, (50,), generator=torch.Generator().manual_seed(4)))


def test_a_mixture_draws_each_span_by_its_share_and_evenly_within():
    """The mixture of Ghalebikesabi et al. 2023 for CIFAR-10, in a histogram."""
    law = mixture_law(1000, (0, 30, 600, 800), (0.05, 0.9, 0.05))
    assert law.tolist() == pytest.approx([0.05 / 30] * 30 + [0.9 / 570] * 570 + [0.05 / 200] * 200 + [0] * 200)
    schedule, many = replace(make_schedule(Schedule()), law=law), 300_000
    t = training_times(schedule, many, 1, 1000, torch.Generator().manual_seed(0), torch.device("cpu"))
    drawn = torch.bincount(t, minlength=1001)[1:].double()
    expected = many * law[:800]
    chi = float(((drawn[:800] - expected).square() / expected).sum())
    assert abs(chi - 799) < 5 * (2 * 799) ** 0.5 and int(t.max()) == 800 and int(t.min()) == 1
    for above, last, share in ((0, 30, 0.05), (30, 600, 0.9), (600, 800, 0.05)):
        assert float(drawn[above:last].sum()) / many == pytest.approx(share, abs=0.003)


def test_of_shares_the_proportions_count():
    assert torch.equal(mixture_law(9, (2, 4, 9), (1, 3)), mixture_law(9, (2, 4, 9), (0.25, 0.75)))
    assert mixture_law(4, (0, 4), (7,)).tolist() == [0.25] * 4


def test_noise_levels_that_fall_are_refused():
    with pytest.raises(ValueError, match="sigma_max must be above"):
        Schedule(kind="edm", sigma_min=1, sigma_max=0.5)
