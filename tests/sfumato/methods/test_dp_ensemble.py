"""The ensemble's noise scales from the ancestral step itself, Theorem 3.3, the printed figures, and its edges."""

import math

import pytest

from sfumato.errors import BadInput
from sfumato.methods import dp_ensemble
from sfumato.privacy.accounting.accountant import gdp_delta, gdp_epsilon
from tests.vectors import facts

CIFAR = {
    "schedule": "cosine", "steps": 250, "clip_diameter": 110, "members": 100, "formulation": "A", "skip_first": 25,
    "skip_last": 25, "images": 1, "delta": 1e-5,
}  # fmt: skip
FORMULATIONS = ("A", "B", "min")


@pytest.mark.parametrize("name", ["003-P1", "003-P2"])
def test_the_checked_costs(name):
    inputs, expected, near = facts(name)
    result = dp_ensemble.claim(
        inputs["schedule"], inputs["steps"], inputs["C"], inputs["k"], inputs["formulation"],
        inputs["skip_first_steps"], inputs["skip_last_steps"], inputs["n_samples"], inputs["delta"],
    )  # fmt: skip
    assert (result.mu, result.epsilon) == (near(expected["mu"]), near(expected["eps"]))
    assert "Theorem 3.3" in result.source


def test_the_checked_scales():
    inputs, expected, near = facts("003-P3")
    of_noise, of_image = dp_ensemble.noise_scales(inputs["schedule"], inputs["steps"])
    assert of_noise[inputs["t_index_0based"]] == near(expected["xi_A"])
    assert of_image[inputs["t_index_0based"]] == near(expected["xi_B"])


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        ({}, 16.7),  # section 4, 32x32 images, formulation A
        ({"schedule": "linear", "formulation": "B", "skip_first": 0, "skip_last": 50}, 7.3),  # Figure 4
    ],
)
def test_printed_figures(changes, printed):
    assert dp_ensemble.claim(**CIFAR | changes).epsilon == pytest.approx(printed, abs=0.05)


def level(schedule, time, horizon=1000):
    """alpha_bar of the base schedule by plain products."""

    def cosine(t):
        return math.cos((t / horizon + 0.008) / 1.008 * math.pi / 2) ** 2

    product = 1.0
    for t in range(1, time + 1):
        if schedule == "linear":
            product *= 1 - (1e-4 + (0.02 - 1e-4) * (t - 1) / (horizon - 1))
        else:
            product *= 1 - min(1 - cosine(t) / cosine(t - 1), 0.999)
    return product


def slow_scales(schedule, steps, index):
    """Noise over weight of the prediction, from Bayes' rule for x_{t-1} given x_t and the predicted clean image.

    x_{t-1} ~ N(sqrt(before) x_0, 1 - before) beforehand, x_t ~ N(sqrt(alpha) x_{t-1}, 1 - alpha) observed.
    """
    now = level(schedule, 1 + round(index * 999 / (steps - 1)))
    before = level(schedule, 1 + round((index - 1) * 999 / (steps - 1))) if index else 1.0
    alpha = now / before
    precision = 1 / (1 - before) + alpha / (1 - alpha)

    def mean(x_t, x_0):
        return (math.sqrt(before) * x_0 / (1 - before) + math.sqrt(alpha) * x_t / (1 - alpha)) / precision

    def clean(x_t, noise):
        return (x_t - math.sqrt(1 - now) * noise) / math.sqrt(now)

    sigma = math.sqrt(1 / precision)
    return sigma / abs(mean(0.0, clean(0.0, 1.0)) - mean(0.0, clean(0.0, 0.0))), sigma / (
        mean(0.0, 1.0) - mean(0.0, 0.0)
    )


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [10, 55, 250, 1000])
def test_scales_are_those_of_the_ancestral_step(schedule, steps):
    of_noise, of_image = dp_ensemble.noise_scales(schedule, steps)
    assert len(of_noise) == len(of_image) == steps and of_noise[0] == of_image[0] == 0.0
    assert all(type(scale) is float for scale in [*of_noise, *of_image])
    for index in {1, 2, steps // 3, steps // 2, steps - 2, steps - 1}:
        expected = slow_scales(schedule, steps, index)
        assert (of_noise[index], of_image[index]) == pytest.approx(expected, rel=1e-9)


def test_formulation_b_is_the_quieter_until_the_signal_prevails():
    """B's noise is A's times sqrt(1 - alpha_bar_t) / sqrt(alpha_bar_t): it is the larger while noise outweighs signal (Figure 2)."""
    for schedule in ("linear", "cosine"):
        of_noise, of_image = dp_ensemble.noise_scales(schedule, 250)
        for index in range(1, 250):
            now = level(schedule, 1 + round(index * 999 / 249))
            assert of_image[index] / of_noise[index] == pytest.approx(math.sqrt((1 - now) / now), rel=1e-9)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize(("steps", "first", "last", "images"), [(30, 3, 2, 1), (50, 0, 10, 7), (12, 5, 1, 1000)])
def test_the_claim_adds_up_the_private_steps(schedule, formulation, steps, first, last, images):
    total = 0.0
    for t in range(last, steps - first):
        a, b = slow_scales(schedule, steps, t)
        cost = {"A": 1 / a, "B": 1 / b, "min": min(1 / a, 1 / b)}[formulation]
        total += images * (60 / 40 * cost) ** 2
    result = dp_ensemble.claim(schedule, steps, 60, 40, formulation, first, last, images, 1e-6)
    assert result.mu == pytest.approx(math.sqrt(total), rel=1e-9)
    assert result.epsilon == gdp_epsilon(result.mu, 1e-6)
    assert gdp_delta(result.mu, result.epsilon) == pytest.approx(1e-6, rel=1e-6)


def test_the_first_sampling_steps_are_those_of_the_largest_t():
    """Under formulation A and the cosine schedule the very first step is dear, under B it is nearly free."""
    skipped, taken = (dp_ensemble.claim(**CIFAR | {"skip_first": first}).epsilon for first in (1, 0))
    assert taken > 100 * skipped
    skipped, taken = (dp_ensemble.claim(**CIFAR | {"skip_first": f, "formulation": "B"}).epsilon for f in (1, 0))
    assert taken == pytest.approx(skipped, rel=1e-3)


def test_the_cheaper_formulation_at_each_step_is_the_cheapest():
    a, b, least = (dp_ensemble.claim(**CIFAR | {"formulation": name}).mu for name in FORMULATIONS)
    assert least < min(a, b)


def test_what_costs_more_costs_more():
    usual = dp_ensemble.claim(**CIFAR)
    assert dp_ensemble.claim(**CIFAR | {"images": 4}).mu == pytest.approx(2 * usual.mu)
    assert dp_ensemble.claim(**CIFAR | {"clip_diameter": 220}).mu == pytest.approx(2 * usual.mu)
    assert dp_ensemble.claim(**CIFAR | {"members": 50}).mu == pytest.approx(2 * usual.mu)
    assert dp_ensemble.claim(**CIFAR | {"skip_last": 24}).mu > usual.mu


def test_the_last_step_has_no_noise_and_nothing_costs_nothing():
    for formulation in FORMULATIONS:
        everything = dp_ensemble.claim(**CIFAR | {"skip_last": 0, "formulation": formulation})
        assert everything.mu == everything.epsilon == math.inf
        for free in ({"images": 0, "skip_last": 0}, {"skip_first": 225}):
            nothing = dp_ensemble.claim(**CIFAR | {"formulation": formulation} | free)
            assert nothing.mu == nothing.epsilon == 0.0


def test_the_numbers_of_the_promise():
    one, hundred = dp_ensemble.claim(**CIFAR), dp_ensemble.claim(**CIFAR | {"images": 100})
    assert f"{one.epsilon:.1f} for one" in dp_ensemble.PROMISE
    assert f"{hundred.epsilon:.0f} for a hundred" in dp_ensemble.PROMISE


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"schedule": "quadratic"}, "schedule = 'quadratic': choose one of cosine, linear"),
        ({"steps": 1}, "steps = 1: must lie from 2 to 1000"),
        ({"steps": 1001}, "steps = 1001: must lie from 2 to 1000"),
        ({"steps": 10.5}, "steps = 10.5"),
        ({"clip_diameter": 0}, "clip_diameter = 0"),
        ({"members": 0}, "members = 0"),
        ({"formulation": "C"}, "formulation = 'C': choose one of A, B, min"),
        ({"skip_first": -1}, "skip_first = -1"),
        ({"skip_last": 226}, "skip_first \\+ skip_last = 251: must be at most steps = 250"),
        ({"images": -1}, "images = -1"),
        ({"delta": 0.0}, "delta = 0.0"),
    ],
)
def test_bad_input_is_named_in_one_line(change, culprit):
    with pytest.raises(BadInput, match=culprit) as refusal:
        dp_ensemble.claim(**CIFAR | change)
    assert "\n" not in str(refusal.value)
