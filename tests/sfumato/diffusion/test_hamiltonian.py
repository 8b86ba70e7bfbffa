"""Leapfrog steps are reversible, their energy is known, and what they draw has the density whose score they were given."""

import math

import pytest
import torch
from scipy.stats import kstest, rayleigh

from sfumato.config import Hamiltonian
from sfumato.diffusion.hamiltonian import Dynamics, kinetic, leapfrog, momentum, walked


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCALES = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def gaussian(x):
    """The score of independent normal numbers with deviations `SCALES` and mean 1."""
    return -(x - 1) / SCALES**2


def quartic(x):
    """The score of exp(-sum of x^4 / 4)."""
    return -(x**3)


@pytest.mark.parametrize("score", [gaussian, quartic])
def test_the_way_back_is_the_way_there(score):
    x, p = drawn(7, 3), drawn(7, 3, seed=1)
    there, arrived, grown = leapfrog(score, x, p, step=0.2, steps=9)
    back, returned, lost = leapfrog(score, there, -arrived, step=0.2, steps=9)
    torch.testing.assert_close((back, -returned), (x, p))
    torch.testing.assert_close(lost, -grown)


def test_steps_are_those_of_the_paper():
    x, p, step = drawn(2, 3), drawn(2, 3, seed=1), 0.3
    half = p + step / 2 * gaussian(x)
    there = x + step * half
    result = leapfrog(gaussian, x, p, step=step, steps=1)
    torch.testing.assert_close(result[:2], (there, half + step / 2 * gaussian(there)))


def test_the_density_gained_by_a_gaussian_is_exact():
    x, p = drawn(5, 3), drawn(5, 3, seed=1)
    there, _, grown = leapfrog(gaussian, x, p, step=0.4, steps=6)

    def log_density(x):
        return -((x - 1) / SCALES).square().sum(1) / 2

    torch.testing.assert_close(grown, log_density(there) - log_density(x))


def test_elsewhere_it_is_as_good_as_the_steps_are_short():
    """Second order: half the step, a quarter of the error."""
    x, p = drawn(5, 3), drawn(5, 3, seed=1)
    errors = []
    for steps in (40, 80, 160):
        there, _, grown = leapfrog(quartic, x, p, step=2 / steps, steps=steps)
        errors.append(float((grown - (x**4 - there**4).sum(1) / 4).abs().max()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2) and errors[1] / errors[2] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("score", [gaussian, quartic, lambda x: x.roll(1, 1) - x])
def test_energy_is_lost_to_the_second_order_and_compares_scores_at_both_ends(score):
    """Of any field, be it a gradient or not; nearly nothing where steps are short."""
    x, p = drawn(50, 3), drawn(50, 3, seed=1)
    for step in (0.01, 0.3):
        there, arrived, grown = leapfrog(score, x, p, step=step, steps=10)
        gain = grown + kinetic(p) - kinetic(arrived)
        torch.testing.assert_close(gain, step**2 / 8 * (score(x).square() - score(there).square()).sum(1))


@pytest.mark.parametrize("step_size", [0.2, 0.45])
def test_what_is_drawn_from_a_gaussian_score_is_that_gaussian(step_size):
    """Also with steps so long that the test has something to undo."""
    settings = Hamiltonian(iterations=60, steps=4, step_size=step_size)
    generator = torch.Generator().manual_seed(3)
    x = 3 * torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    result = walked(settings, lambda _: Dynamics(gaussian, step_size), x, generator=generator)
    for axis, scale in enumerate(SCALES.tolist()):
        assert kstest(result[:, axis].numpy(), "norm", args=(1, scale)).pvalue > 1e-4


def test_the_metropolis_test_is_what_makes_long_steps_right():
    settings = Hamiltonian(iterations=60, steps=3, step_size=0.9, metropolis=False)
    generator = torch.Generator().manual_seed(3)

    def spread(settings):
        x = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
        return walked(settings, lambda _: Dynamics(gaussian, 0.9), x, generator=generator)[:, 0].std().item()

    assert spread(settings) > 0.65 > 0.55 > spread(settings.model_copy(update={"metropolis": True})) > 0.45


def test_a_known_density_takes_the_place_of_the_integral():
    """Where they disagree, the density decides: by the integral of this score every short step would be kept."""
    settings = Hamiltonian(iterations=60, steps=4, step_size=0.4)
    forbidden = Dynamics(gaussian, 0.4, lambda x: torch.where(x[:, 0] > 1, -math.inf, 0.0).double())
    x = drawn(4000, 3).clamp(max=0.9)
    result = walked(settings, lambda _: forbidden, x, generator=torch.Generator().manual_seed(3))
    assert result[:, 0].max() <= 1 < result[:, 1].max() and not torch.equal(result, x)


def test_steps_that_lead_nowhere_are_never_kept():
    """The first iterations are M^2 times as long as the last, which no density bears."""
    x = drawn(20, 3)
    for metropolis in (True, False):
        settings = Hamiltonian(iterations=30, steps=60, step_size=0.5, metropolis=metropolis)
        result = walked(
            settings, lambda factor: Dynamics(quartic, 0.5 * factor), x, generator=torch.Generator().manual_seed(0)
        )
        assert result.isfinite().all()


def test_iterations_are_told_how_far_they_are():
    """(M / m)^2, and N + 1 questions in each."""
    requested, factors = [], []

    def at(factor):
        factors.append(factor)
        return Dynamics(lambda x: requested.append(len(x)) or gaussian(x), 0.1)

    walked(Hamiltonian(iterations=4, steps=5), at, drawn(6, 3), generator=torch.Generator().manual_seed(0))
    assert factors == pytest.approx([16, 4, 16 / 9, 1]) and requested == [6] * 24


@pytest.mark.parametrize("kind", ["gaussian", "rayleigh", "uniform"])
def test_momenta_have_the_distribution_that_they_are_named_after(kind):
    result = momentum(kind, torch.empty(200, 50), torch.Generator().manual_seed(0)).flatten().numpy()
    assert result.shape == (10_000,) and abs((result**2).mean() - 1) < 0.05 and abs(result.mean()) < 0.05
    if kind == "gaussian":
        assert kstest(result, "norm").pvalue > 1e-4
    if kind == "rayleigh":
        assert kstest(abs(result), rayleigh(scale=math.sqrt(0.5)).cdf).pvalue > 1e-4
    if kind == "uniform":
        assert kstest(result, "uniform", args=(-math.sqrt(3), 2 * math.sqrt(3))).pvalue > 1e-4
