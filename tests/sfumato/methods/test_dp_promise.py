"""dp-promise's claim: the checked numbers, the authors' own settings, Theorem 2 written out slowly, and its edges."""

import math

import pytest
from mpmath import mp, mpf

from sfumato.errors import BadInput
from sfumato.methods import dp_promise
from sfumato.privacy.accountant import dp_sgd_epsilon
from tests.vectors import facts

MNIST = {
    "records": 60_000, "dimension": 784, "batch_one": 32, "batch_two": 4096, "epochs_one": 3, "epochs_two": 50,
    "boundary": 900, "noise_multiplier": 7.0, "delta": 1e-5,
}  # fmt: skip
CIFAR = MNIST | {"records": 50_000, "dimension": 3 * 32**2}
CELEBA_32 = CIFAR | {"records": 202_599, "epochs_one": 2, "epochs_two": 30, "delta": 1e-6}
CELEBA_64 = CELEBA_32 | {"dimension": 3 * 64**2, "batch_one": 16, "epochs_one": 1, "epochs_two": 15, "boundary": 950}


def claim_of(inputs):
    names = {
        "n": "records", "d": "dimension", "B1": "batch_one", "B2": "batch_two", "epochs1": "epochs_one",
        "epochs2": "epochs_two", "S": "boundary", "sigma": "noise_multiplier", "T": "timesteps", "delta": "delta",
        "beta_start": "beta_start", "beta_end": "beta_end",
    }  # fmt: skip
    return dp_promise.claim(**{ours: inputs[theirs] for theirs, ours in names.items()})


@pytest.mark.parametrize("name", ["000-P1", "000-P2"])
def test_the_checked_numbers(name):
    inputs, expected, near = facts(name)
    found = claim_of(inputs)
    assert found.mu_base == near(expected["mu_base"])
    assert (found.mu_one, found.mu_two, found.mu) == tuple(near(expected[key]) for key in ("mu1", "mu2", "mu"))
    assert found.epsilon == near(expected["eps"])
    assert "Theorem 2" in found.source


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        (MNIST, {"noise_multiplier": 38.4, "epochs_one": 2}, 0.2),
        (MNIST, {"noise_multiplier": 7.0}, 1),
        (MNIST, {"noise_multiplier": 1.13}, 10),
        (CIFAR, {"noise_multiplier": 7.89, "epochs_one": 2, "boundary": 925}, 1),
        (CIFAR, {"noise_multiplier": 1.94}, 5),
        (CIFAR, {"noise_multiplier": 1.19}, 10),
        (CELEBA_32, {"noise_multiplier": 3.66}, 1),
        (CELEBA_32, {"noise_multiplier": 1.01}, 5),
        (CELEBA_32, {"noise_multiplier": 0.73}, 10),
        (CELEBA_64, {"noise_multiplier": 2.83}, 1),
        (CELEBA_64, {"noise_multiplier": 0.825}, 5),
        (CELEBA_64, {"noise_multiplier": 0.632}, 10),
    ],
)
def test_the_authors_settings_give_the_epsilon_that_they_are_named_after(base, changes, named):
    """Settings and names: github.com/deabfc/dp-promise, configs/dp_promise; noise is rounded up there."""
    assert 0.98 * named < dp_promise.claim(**base | changes).epsilon <= named


def slowly(run, timesteps=1000, beta_start=1e-4, beta_end=0.02):
    """Eqs. 13 to 18 with fifty digits: mu_base, mu_1, mu_2, mu and epsilon."""
    with mp.workdps(50):
        level, slope = mpf(1), (mpf(beta_end) - mpf(beta_start)) / (timesteps - 1)
        for time in range(1, run["boundary"] + 1):
            level *= 1 - (mpf(beta_start) + slope * (time - 1))
        base = 2 * mp.sqrt(run["dimension"] * level / (1 - level))
        phases = []
        for number, mu in (("one", base), ("two", 1 / mpf(run["noise_multiplier"]))):
            batches = -(-run["records"] // run[f"batch_{number}"])
            steps = run[f"epochs_{number}"] * batches
            phases.append(mp.sqrt(steps * (mp.exp(mu**2) - 1)) / batches)
        mu = mp.sqrt(sum(phase**2 for phase in phases))

        def excess(eps):
            return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu) - mpf(run["delta"])

        low, high = mpf(0), mu**2 + 50 * mu
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return [float(value) for value in (base, *phases, mu, low)]


@pytest.mark.parametrize(
    ("run", "schedule"),
    [
        (CELEBA_64, {}),
        (MNIST | {"boundary": 600, "epochs_one": 1}, {}),
        (MNIST | {"records": 1437, "dimension": 64, "batch_one": 100, "batch_two": 2000, "boundary": 700}, {}),
        (CIFAR | {"boundary": 180, "delta": 1e-7}, {"timesteps": 200, "beta_start": 5e-4, "beta_end": 0.1}),
        (MNIST | {"epochs_one": 0, "noise_multiplier": 1e3}, {}),
    ],
)
def test_theorem_2_written_out(run, schedule):
    found = dp_promise.claim(**run, **schedule)
    values = [found.mu_base, found.mu_one, found.mu_two, found.mu, found.epsilon]
    assert values == pytest.approx(slowly(run, **schedule), rel=1e-9)
    assert all(type(value) is float for value in values)


def test_more_noise_anywhere_claims_less():
    usual = dp_promise.claim(**MNIST)
    assert dp_promise.claim(**MNIST | {"noise_multiplier": 8.0}).epsilon < usual.epsilon
    assert dp_promise.claim(**MNIST | {"boundary": 950}).mu_one < usual.mu_one
    assert dp_promise.claim(**MNIST | {"epochs_two": 0}).mu_two == 0
    assert dp_promise.claim(**MNIST | {"batch_two": 10**6}).mu_two > usual.mu_two, "all records in each step"


def test_a_boundary_without_noise_claims_nothing():
    nearly_clean = dp_promise.claim(**MNIST | {"boundary": 1})
    assert nearly_clean.mu_base > 5000 and nearly_clean.mu_one == nearly_clean.epsilon == math.inf
    assert dp_promise.claim(**MNIST, beta_start=1e-18, beta_end=1e-18).mu_base == math.inf


def test_the_numbers_of_the_promise():
    """Phase I as if each noised image were released (vector 000-P4), and Phase II by two accountants (000-P3)."""
    inputs, expected, near = facts("000-P4")
    two_epochs = dp_promise.claim(**MNIST | {"epochs_one": 2, "epochs_two": 0})
    assert (inputs["d"], inputs["S"], inputs["N"]) == (784, 900, 2 * 1875)
    assert two_epochs.epsilon == near(expected["paper_claim_eps"])
    said = [f"{two_epochs.epsilon:.2f}", f"{expected['eps_replace_one_alpha_S']:.1f}"]
    said += [f"{expected['add_remove_delta_floor']:.2f}"]
    inputs, expected, near = facts("000-P3")
    by_limit = dp_promise.claim(**MNIST | {"epochs_one": 0, "noise_multiplier": inputs["sigma"]}).epsilon
    by_pld = dp_sgd_epsilon(inputs["sigma"], inputs["q"], inputs["steps"], inputs["delta"])
    assert by_limit == near(expected["clt"]) and by_pld == near(expected["pld_add_remove"]) and by_pld > by_limit
    said += [f"{by_limit:.2f}", f"{by_pld:.2f}"]
    assert [number for number in said if number not in dp_promise.PROMISE] == []


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"records": 0}, "records = 0"),
        ({"dimension": -3}, "dimension = -3"),
        ({"batch_one": 0}, "batch_one = 0"),
        ({"batch_two": 1.5}, "batch_two = 1.5"),
        ({"epochs_one": -1}, "epochs_one = -1"),
        ({"epochs_two": math.nan}, "epochs_two = nan"),
        ({"boundary": 0}, "boundary = 0: must be a time from 1 to 1000"),
        ({"boundary": 1001}, "boundary = 1001: must be a time from 1 to 1000"),
        ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"timesteps": 1}, "timesteps = 1: must be 2 or more"),
        ({"beta_start": 0.0}, "beta_start = 0.0"),
        ({"beta_end": 1.0}, "beta_end = 1.0"),
    ],
)
def test_bad_input_is_named_in_one_line(change, culprit):
    with pytest.raises(BadInput, match=culprit) as refusal:
        dp_promise.claim(**MNIST | change)
    assert "\n" not in str(refusal.value)
