"""Every sampler against data whose exact noise prediction is known: a Gaussian, and a single image."""

import itertools
import math

import pytest
import torch

from sfumato.config import Generation, Schedule
from sfumato.diffusion.samplers import NO_CLASS, ancestral, ddim, dpm_solver, evaluations, guided, heun, pndm, solve
from sfumato.diffusion.schedule import make_schedule, time_grid

T = 1000
SCHEDULE = make_schedule(Schedule(timesteps=T))
LEVEL = SCHEDULE.alpha_bar.double()
MEAN, SPREAD = 0.2, 0.15


def gaussian_data(spread):
    """The exact noise prediction where every pixel of the data is N(MEAN, spread^2)."""

    def denoise(x, t, y):
        level = LEVEL[t].view(-1, 1, 1, 1)
        off = x.double() - level.sqrt() * MEAN
        return ((1 - level).sqrt() * off / (level * spread**2 + 1 - level)).float()

    return denoise


def start(count=2000, seed=0):
    return torch.randn(count, 1, 1, 1, generator=torch.Generator().manual_seed(seed))


def walk(x, times, denoise, eta=0.0, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return ddim(SCHEDULE, denoise, x, torch.zeros(len(x), dtype=torch.long), times, eta=eta, generator=generator)


def test_more_steps_come_closer_to_the_exact_flow():
    x = start()
    exact = MEAN + SPREAD * (x - LEVEL[T].sqrt() * MEAN) / (LEVEL[T] * SPREAD**2 + 1 - LEVEL[T]).sqrt()
    errors = [
        float((walk(x, time_grid(T, 0, steps), gaussian_data(SPREAD)) - exact).square().mean().sqrt())
        for steps in (10, 50, 250, 1000)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 8 * errors[3]
    assert errors[3] < 0.02 * SPREAD


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_stochastic_walks_end_at_the_data_too(eta):
    x = walk(start(6000), time_grid(T, 0, T), gaussian_data(SPREAD), eta=eta)
    assert float(x.mean()) == pytest.approx(MEAN, abs=0.01)
    assert float(x.std()) == pytest.approx(SPREAD, rel=0.05)


def test_with_eta_one_a_step_has_the_variance_of_ancestral_sampling():
    """Ho et al. 2020, Eq. 7: (1 - ab_s) / (1 - ab_t) (1 - ab_t / ab_s)."""
    t, s, x = 200, 120, torch.full((40_000, 1, 1, 1), 0.6)
    drawn = walk(x, [t, s], gaussian_data(0.0), eta=1.0)
    ratio = float(LEVEL[t] / LEVEL[s])
    variance = float((1 - LEVEL[s]) / (1 - LEVEL[t])) * (1 - ratio)
    weight = float((1 - LEVEL[s]) / (1 - LEVEL[t])) * math.sqrt(ratio)
    mean = weight * 0.6 + MEAN * float(LEVEL[s].sqrt() * (1 - ratio) / (1 - LEVEL[t]))
    assert float(drawn.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / 40_000))
    assert float(drawn.mean()) == pytest.approx(mean, abs=5 * math.sqrt(variance / 40_000))


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
def test_a_walk_that_stops_early_keeps_the_noise_level_of_its_last_time(eta):
    """For a single image, x_s ~ N(sqrt(ab_s) x, 1 - ab_s) whatever eta and however many steps."""
    level = float(LEVEL[T])
    x = math.sqrt(level) * MEAN + math.sqrt(1 - level) * start(40_000)
    drawn = walk(x, time_grid(T, 300, 7), gaussian_data(0.0), eta=eta)
    assert float(drawn.var()) == pytest.approx(float(1 - LEVEL[300]), rel=0.04)
    assert float(drawn.mean()) == pytest.approx(float(LEVEL[300].sqrt()) * MEAN, abs=0.02)


def test_without_noise_two_lists_of_times_equal_one():
    x, early, late = start(50), [1000, 850, 700, 500], [500, 310, 150, 7, 0]
    once = walk(x, [*early, *late[1:]], gaussian_data(SPREAD))
    twice = walk(walk(x, early, gaussian_data(SPREAD), seed=8), late, gaussian_data(SPREAD), seed=9)
    assert torch.equal(once, twice)


def test_with_noise_the_generator_alone_decides():
    x = start(50)
    one, same, other = (walk(x, [1000, 500, 250], gaussian_data(SPREAD), eta=1.0, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(one, same) and not torch.allclose(one, other)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_whatever_the_network_says_the_image_ends_in_range(eta):
    def nonsense(x, t, y):
        return 30 * torch.sin(1000 * x)

    assert walk(start(500), time_grid(T, 0, 9), nonsense, eta=eta).abs().max() <= 1


def test_guidance_moves_away_from_the_null_row():
    """Ho and Salimans 2022, Eq. 6: (1 + w) e(x, y) - w e(x)."""

    def denoise(x, t, y):
        return x * t.view(-1, 1, 1, 1) + torch.where(y == NO_CLASS, 100.0, y.float()).view(-1, 1, 1, 1)

    x, t, y = torch.rand(3, 1, 2, 2), torch.tensor([1, 2, 3]), torch.tensor([4, 0, 7])
    result = guided(denoise, 0.5)(x, t, y)
    torch.testing.assert_close(result, 1.5 * denoise(x, t, y) - 0.5 * denoise(x, t, torch.full((3,), NO_CLASS)))


def test_without_guidance_the_null_row_is_not_paid_for():
    requested = []

    def denoise(x, t, y):
        requested.append(y)
        return x

    guided(denoise, 0.0)(torch.rand(2, 1, 1, 1), torch.ones(2), torch.tensor([1, 2]))
    assert [y.tolist() for y in requested] == [[1, 2]]


# DPM-Solver++(2M)


def exact_flow(x, now, after):
    """Where the deterministic walk takes Gaussian data: it keeps its place among the standard deviations."""
    spread_now, spread_after = ((LEVEL[t] * SPREAD**2 + 1 - LEVEL[t]).sqrt() for t in (now, after))
    return LEVEL[after].sqrt() * MEAN + spread_after / spread_now * (x.double() - LEVEL[now].sqrt() * MEAN)


def fast_walk(x, times, denoise, eta=0.0, seed=None):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    y = torch.zeros(len(x), dtype=torch.long)
    return dpm_solver(SCHEDULE, denoise, x, y, times, eta=eta, generator=generator)


def error(result, x, times):
    return float((result - exact_flow(x, times[0], times[-1])).square().mean().sqrt())


def test_the_error_falls_with_the_square_of_the_number_of_steps():
    x = start()
    grids = [time_grid(T, 200, steps) for steps in (10, 20, 40)]
    fast = [error(fast_walk(x, times, gaussian_data(SPREAD)), x, times) for times in grids]
    assert all(3 < coarse / fine < 6 for coarse, fine in itertools.pairwise(fast)), fast
    slow = [error(walk(x, times, gaussian_data(SPREAD)), x, times) for times in grids]
    assert all(1.5 < coarse / fine < 2.5 for coarse, fine in itertools.pairwise(slow)), slow


@pytest.mark.parametrize("stop", [200, 20])
@pytest.mark.parametrize("steps", [5, 10, 20, 50])
def test_at_equal_steps_it_comes_closer_than_ddim(steps, stop):
    x, times = start(), time_grid(T, stop, steps)
    fast = error(fast_walk(x, times, gaussian_data(SPREAD)), x, times)
    assert fast < 0.75 * error(walk(x, times, gaussian_data(SPREAD)), x, times)


@pytest.mark.parametrize("steps", [5, 10, 20, 50])
def test_all_the_way_to_0_too_though_the_last_step_is_of_first_order(steps):
    x, times = start(), time_grid(T, 0, steps)
    fast = error(fast_walk(x, times, gaussian_data(SPREAD)), x, times)
    assert fast < error(walk(x, times, gaussian_data(SPREAD)), x, times)


@pytest.mark.parametrize("times", [[1000, 400], [1000, 0], [1, 0], [300, 0], [1000, 999]])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_single_step_is_that_of_ddim(times, eta):
    x, denoise = start(50), gaussian_data(SPREAD)
    result = fast_walk(x, times, denoise, eta=eta, seed=3)
    torch.testing.assert_close(result, walk(x, times, denoise, eta=eta, seed=3), rtol=1e-4, atol=1e-4)


def test_a_list_with_one_time_goes_nowhere_and_asks_nothing():
    assert torch.equal(fast_walk(start(5), [700], None), start(5))


@pytest.mark.parametrize("times", [[1000, 0], [1000, 500, 0], [1000, 998, 3, 2, 1, 0]])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_walk_to_0_ends_at_the_last_predicted_image_itself(times, eta):
    """For a single image every prediction is that image, and nothing is left of the noise."""
    result = fast_walk(start(100), times, gaussian_data(0.0), eta=eta, seed=3)
    torch.testing.assert_close(result, torch.full_like(result, MEAN), rtol=0, atol=1e-4)


@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_a_stochastic_fast_walk_has_the_spread_of_the_data_in_fewer_steps(eta):
    times = time_grid(T, 100, 15)
    fast, slow = (go(start(40_000), times, gaussian_data(SPREAD), eta=eta, seed=1) for go in (fast_walk, walk))
    true = math.sqrt(float(LEVEL[100] * SPREAD**2 + 1 - LEVEL[100]))
    assert float(fast.mean()) == pytest.approx(float(LEVEL[100].sqrt()) * MEAN, abs=0.01)
    assert float(fast.std()) == pytest.approx(true, rel=0.03)
    assert abs(float(fast.std()) - true) < 0.5 * abs(float(slow.std()) - true)


def test_one_prediction_for_each_step_and_none_at_0():
    requested = []

    def denoise(x, t, y):
        requested.append((set(t.tolist()), y.tolist()))
        return 0.1 * x

    dpm_solver(SCHEDULE, denoise, start(2), torch.tensor([4, 7]), [1000, 600, 90, 0])
    assert requested == [({t}, [4, 7]) for t in (1000, 600, 90)]


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_whatever_the_network_says_a_fast_image_ends_in_range_too(eta):
    def nonsense(x, t, y):
        return 30 * torch.sin(1000 * x)

    assert fast_walk(start(500), time_grid(T, 0, 9), nonsense, eta=eta, seed=1).abs().max() <= 1


def test_a_second_list_of_times_starts_anew():
    """What was predicted on the public walk says nothing about the private one."""
    x, denoise = start(50), gaussian_data(SPREAD)
    early, late = [1000, 850, 700, 500], [500, 310, 150, 7, 0]
    twice = fast_walk(fast_walk(x, early, denoise), late, denoise)
    assert not torch.allclose(twice, fast_walk(x, [*early, *late[1:]], denoise), atol=1e-6)


def test_the_settings_choose_the_solver_and_its_noise():
    x, y, times, denoise = start(20), torch.zeros(20, dtype=torch.long), [1000, 600, 200, 0], gaussian_data(SPREAD)

    def chosen(seed=1, **settings):
        generator = torch.Generator().manual_seed(seed)
        return solve(Generation(**settings), SCHEDULE, denoise, x, y, times, generator=generator)

    assert Generation().solver == "ddim"
    assert torch.equal(chosen(), walk(x, times, denoise, eta=Generation().eta))
    assert torch.equal(chosen(eta=0.5), walk(x, times, denoise, eta=0.5))
    assert torch.equal(chosen(solver="dpm++", eta=0.0), fast_walk(x, times, denoise)), "it needs no generator"
    assert torch.equal(chosen(solver="dpm++", eta=1.0), fast_walk(x, times, denoise, eta=1.0, seed=1))
    assert torch.equal(chosen(solver="pndm"), linear_walk(x, times, denoise)), "it needs no generator"
    assert torch.equal(chosen(solver="ddpm"), ancestral_walk(x, times, denoise))
    assert torch.equal(chosen(solver="ddpm", eta=0.3), ancestral_walk(x, times, denoise)), "its variance is its own"
    assert not torch.allclose(chosen(solver="dpm++", seed=1), chosen(solver="dpm++", seed=2))


# PNDM


def linear_walk(x, times, denoise):
    return pndm(SCHEDULE, denoise, x, torch.zeros(len(x), dtype=torch.long), times)


def test_the_error_of_pndm_falls_with_the_square_of_the_number_of_steps_or_faster():
    """Liu et al. 2022, section 3.3: second-order convergence; the fourth-order parts make it faster where steps are long."""
    x = start()
    grids = [time_grid(T, 200, steps) for steps in (5, 10, 20, 40)]
    errors = [error(linear_walk(x, times, gaussian_data(SPREAD)), x, times) for times in grids]
    assert all(coarse / fine > 3 for coarse, fine in itertools.pairwise(errors)), errors
    slow = [error(walk(x, times, gaussian_data(SPREAD)), x, times) for times in grids]
    assert errors[0] < slow[0] / 3 and errors[-1] < slow[-1] / 100


@pytest.mark.parametrize("steps", [5, 10, 20, 50])
def test_pndm_comes_closer_than_ddim_all_the_way_to_0(steps):
    x, times = start(), time_grid(T, 0, steps)
    result = error(linear_walk(x, times, gaussian_data(SPREAD)), x, times)
    assert result < 0.9 * error(walk(x, times, gaussian_data(SPREAD)), x, times)


def test_pndm_written_out():
    """Three steps that look ahead, then four predictions weighted 55, -59, 37, -9 (Liu et al. 2022, Eq. 12 and 13)."""
    requested = []

    def denoise(x, t, y):
        level, image = LEVEL[t].view(-1, 1, 1, 1), 0.9 * torch.sin(3 * x.double() + t.view(-1, 1, 1, 1) / 50)
        requested.append((int(t[0]), x, ((x - level.sqrt() * image) / (1 - level).sqrt()).float()))
        return requested[-1][2]

    def moved(x, e, t, s):
        return LEVEL[s].sqrt() * (x - (1 - LEVEL[t]).sqrt() * e) / LEVEL[t].sqrt() + (1 - LEVEL[s]).sqrt() * e

    times = [600, 560, 520, 480, 440, 400]
    x = 0.1 * start(40)
    result = linear_walk(x, times, denoise)
    ahead = [time for now in (600, 560, 520) for time in (now, now - 20, now - 20, now - 40)]
    assert [time for time, _, _ in requested] == [*ahead, 480, 440]
    here, firsts = x.double(), []
    for step, (now, after) in enumerate(itertools.pairwise(times)):
        e = requested[4 * step][2].double() if step < 3 else requested[12 + step - 3][2].double()
        firsts = [e, *firsts]
        if step < 3:
            two, three, four = (requested[4 * step + k][2].double() for k in (1, 2, 3))
            e = (e + 2 * two + 2 * three + four) / 6
        else:
            e = (55 * firsts[0] - 59 * firsts[1] + 37 * firsts[2] - 9 * firsts[3]) / 24
        here = moved(here, e, now, after)
    torch.testing.assert_close(result.double(), here, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("times", [[700], [1, 0], [1000, 0], [300, 2, 1, 0], [1000, 500, 0], list(range(9, -1, -1))])
def test_the_evaluations_of_every_solver_are_counted_and_none_is_at_0(times):
    for solver in ("ddim", "dpm++", "ddpm", "pndm"):
        requested = []

        def denoise(x, t, y, requested=requested):
            requested.append(int(t[0]))
            return 0.1 * x

        settings, generator = Generation(solver=solver), torch.Generator().manual_seed(0)
        result = solve(
            settings, SCHEDULE, denoise, start(2), torch.zeros(2, dtype=torch.long), times, generator=generator
        )
        assert len(requested) == evaluations(settings, times) and result.isfinite().all(), solver
        assert min(requested, default=1) >= 1
        if times[-1] == 0:
            assert result.abs().max() <= 1


def test_a_single_image_is_reached_by_pndm():
    result = linear_walk(start(100), time_grid(T, 0, 7), gaussian_data(0.0))
    torch.testing.assert_close(result, torch.full_like(result, MEAN), rtol=0, atol=1e-4)


# Ancestral sampling


def ancestral_walk(x, times, denoise, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return ancestral(SCHEDULE, denoise, x, torch.zeros(len(x), dtype=torch.long), times, generator=generator)


def test_the_error_of_ancestral_sampling_falls_with_the_number_of_steps():
    """Its variance is too large for data of small spread, by as much as the steps are long; its mean is right."""
    true, off = math.sqrt(float(LEVEL[200] * SPREAD**2 + 1 - LEVEL[200])), []
    for steps in (10, 20, 40):
        result = ancestral_walk(start(100_000), time_grid(T, 200, steps), gaussian_data(SPREAD))
        assert float(result.mean()) == pytest.approx(MEAN * float(LEVEL[200].sqrt()), abs=0.01)
        off.append(float(result.std()) - true)
    assert all(1.6 < coarse / fine < 2.6 for coarse, fine in itertools.pairwise(off)), off
    whole = ancestral_walk(start(20_000), time_grid(T, 0, T), gaussian_data(SPREAD))
    assert float(whole.std()) == pytest.approx(SPREAD, rel=0.03)
    assert float(whole.mean()) == pytest.approx(MEAN, abs=0.005)


def test_for_data_of_unit_variance_ancestral_sampling_is_exact_at_any_number_of_steps():
    """Ho et al. 2020, section 3.2: beta is the right variance for x_0 ~ N(0, I)."""
    wide, narrow = 1e-3 * torch.ones(60_000, 1, 1, 1), [900, 600]

    def denoise(x, t, y):
        return (1 - LEVEL[t]).sqrt().float().view(-1, 1, 1, 1) * x

    result = ancestral_walk(wide, narrow, denoise)
    ratio = float(LEVEL[900] / LEVEL[600])
    assert float(result.var()) == pytest.approx(1 - ratio, rel=0.03), "all that the forward step added"
    torch.testing.assert_close(float(result.mean()), 1e-3 * math.sqrt(ratio), rtol=0, atol=0.02)


EDM = make_schedule(Schedule(kind="edm"), limit=10.0)


def edm_gaussian(x, t, y):
    """The exact noise prediction where every pixel is N(MEAN, SPREAD^2), on EDM's noise levels."""
    level = EDM.alpha_bar.double()[t].view(-1, 1, 1, 1)
    off = x.double() - level.sqrt() * MEAN
    return ((1 - level).sqrt() * off / (level * SPREAD**2 + 1 - level)).float()


def heun_walk(x, steps, churn=0.0, between=(0.0, math.inf)):
    generator = torch.Generator().manual_seed(1)
    y = torch.zeros(len(x), dtype=torch.long)
    return heun(EDM, edm_gaussian, x, y, time_grid(T, 0, steps), churn=churn, between=between, generator=generator)


def test_heun_comes_to_the_exact_flow_sooner_than_ddim():
    """Its error falls with the square of the number of steps; for a Gaussian the flow is known."""
    x = start()
    level = float(EDM.alpha_bar[T])
    exact = MEAN + SPREAD * (x - level**0.5 * MEAN) / (level * SPREAD**2 + 1 - level) ** 0.5
    y, generator = torch.zeros(len(x), dtype=torch.long), torch.Generator()
    straight, twice = [], []
    for steps in (20, 40, 80):
        one = ddim(EDM, edm_gaussian, x, y, time_grid(T, 0, steps), generator=generator)
        straight.append(float((one - exact).square().mean().sqrt()))
        twice.append(float((heun_walk(x, steps) - exact).square().mean().sqrt()))
    assert twice[0] > 3 * twice[1] > 9 * twice[2]
    assert straight[0] < 2.5 * straight[1] < 6.25 * straight[2]
    assert all(better < worse / 2 for better, worse in zip(twice, straight, strict=True))


@pytest.mark.parametrize(("churn", "between"), [(20, (0.0, math.inf)), (100, (0.05, 50.0)), (1e9, (0.1, 5.0))])
def test_churned_walks_end_at_the_data_too(churn, between):
    x = heun_walk(start(20_000), 200, churn, between)
    assert float(x.mean()) == pytest.approx(MEAN, abs=5 * SPREAD / 20_000**0.5)
    assert float(x.std()) == pytest.approx(SPREAD, rel=0.04)


def test_a_churned_step_is_that_of_algorithm_2():
    """As printed, with noise levels sigma and images that are not scaled, for one step that adds noise and is no last one."""
    x, churn, (now, after) = start(30, seed=5), 0.4, (600, 480)
    result = heun(
        EDM,
        edm_gaussian,
        x,
        torch.zeros(30, dtype=torch.long),
        [now, after],
        churn=churn,
        generator=torch.Generator().manual_seed(2),
    )
    level = EDM.alpha_bar.double()
    sigma = ((1 - level) / level).sqrt()
    hat = 1 + int((sigma[1:].log() - (1.4 * sigma[now]).log()).abs().argmin())
    assert float(sigma[hat] / sigma[now]) == pytest.approx(1.4, rel=0.01)

    def slope(whole, time):
        """(x - D(x; sigma)) / sigma."""
        denoised = (SPREAD**2 * whole + sigma[time] ** 2 * MEAN) / (SPREAD**2 + sigma[time] ** 2)
        return (whole - denoised) / sigma[time]

    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).double()
    raised = x.double() * (1 + sigma[now] ** 2).sqrt() + (sigma[hat] ** 2 - sigma[now] ** 2).sqrt() * noise
    first = slope(raised, hat)
    second = slope(raised + (sigma[after] - sigma[hat]) * first, after)
    whole = raised + (sigma[after] - sigma[hat]) * (first + second) / 2
    torch.testing.assert_close(result.double(), whole / (1 + sigma[after] ** 2).sqrt(), rtol=1e-4, atol=1e-4)


def test_outside_its_bounds_and_at_zero_churn_adds_nothing():
    x = start(20)
    plain = heun_walk(x, 30)
    assert torch.equal(heun_walk(x, 30, 50, (100.0, 200.0)), plain) and not torch.equal(heun_walk(x, 30, 50), plain)


def test_heun_asks_twice_in_each_step_but_the_last():
    requested = []

    def counting(x, t, y):
        requested.append(int(t[0]))
        return edm_gaussian(x, t, y)

    generation, times = Generation(solver="heun", churn=5), time_grid(T, 0, 12)
    solve(
        generation,
        EDM,
        counting,
        start(2),
        torch.zeros(2, dtype=torch.long),
        times,
        generator=torch.Generator().manual_seed(0),
    )
    assert len(requested) == evaluations(generation, times) == 23 and min(requested) > 0


def test_on_edms_times_ddim_is_the_papers_step():
    """x + (sigma' - sigma) (x - D) / sigma, on images that are not scaled (Karras et al. 2022, Algorithm 1, first order)."""
    x, now, after = start(30), 700, 400
    result = ddim(EDM, edm_gaussian, x, torch.zeros(30, dtype=torch.long), [now, after], generator=torch.Generator())
    level = EDM.alpha_bar.double()
    sigma = ((1 - level) / level).sqrt()
    whole = x.double() * (1 + sigma[now] ** 2).sqrt()
    denoised = (SPREAD**2 * whole + sigma[now] ** 2 * MEAN) / (SPREAD**2 + sigma[now] ** 2)
    whole = whole + (sigma[after] - sigma[now]) * (whole - denoised) / sigma[now]
    torch.testing.assert_close(result.double(), whole / (1 + sigma[after] ** 2).sqrt(), rtol=1e-4, atol=1e-4)
