"""dp-promise: the checked numbers of its claim, the authors' own settings, three kinds of Phase I, and the leak of one."""

import itertools
import math

import pytest
import torch
from mpmath import mp, mpf

from sfumato.config import Schedule
from sfumato.diffusion.objective import denoising_examples, record_losses, renoising_loss
from sfumato.diffusion.schedule import add_noise, make_schedule, signal_levels
from sfumato.errors import BadInput
from sfumato.methods import dp_promise
from sfumato.methods.plan import STAGE_PHASE_ONE, STAGE_TUNING, Facts
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.accountant import dp_sgd_epsilon
from sfumato.privacy.accounting.events import NoisedRecords
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.settings import resolve
from tests.spends import KEYS
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
    result = claim_of(inputs)
    assert result.mu_base == near(expected["mu_base"])
    assert (result.mu_one, result.mu_two, result.mu) == tuple(near(expected[key]) for key in ("mu1", "mu2", "mu"))
    assert result.epsilon == near(expected["eps"])
    assert "Theorem 2" in result.source


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
    result = dp_promise.claim(**run, **schedule)
    values = [result.mu_base, result.mu_one, result.mu_two, result.mu, result.epsilon]
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
    stated = [f"{two_epochs.epsilon:.2f}", f"{expected['eps_replace_one_alpha_S']:.1f}"]
    stated += [f"{expected['add_remove_delta_floor']:.2f}"]
    inputs, expected, near = facts("000-P3")
    by_limit = dp_promise.claim(**MNIST | {"epochs_one": 0, "noise_multiplier": inputs["sigma"]}).epsilon
    by_pld = dp_sgd_epsilon(inputs["sigma"], inputs["q"], inputs["steps"], inputs["delta"])
    assert by_limit == near(expected["clt"]) and by_pld == near(expected["pld_add_remove"]) and by_pld > by_limit
    stated += [f"{by_limit:.2f}", f"{by_pld:.2f}"]
    stated += [f"({accountant.gdp_epsilon(two_epochs.mu_base, 1e-5):.1f} there"]
    assert [number for number in stated if number not in dp_promise.PROMISE] == []


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


# The plan

ONCE = ["method.phase_one=noised_once", "privacy.relation=replace_one"]
AS_PUBLISHED = ["method.phase_one=paper"]


def planned(*changes):
    settings, facts, _ = preflight(resolve("dp-promise", changes=changes))
    return plan_for(settings, facts)


def test_the_phases_split_the_times_at_the_boundary(world):
    x, y = torch.rand(500, 1, 8, 8) * 2 - 1, torch.arange(500) % 10
    tiny = world("dp-promise", "schedule.timesteps=50", "method.boundary=0.3")
    times = dp_promise.corrupt(tiny.settings, tiny.parts)(x, y, torch.Generator().manual_seed(0)).t
    assert dp_promise.boundary(tiny.settings) == 15 and set(times.flatten().tolist()) == set(range(1, 15))
    assert tiny.plan.phase_one is None, "off by default, which is certified under both relations"


def test_a_noised_copy_is_priced_once_and_composed_with_phase_two():
    plan = planned(*ONCE, "method.boundary=0.8")
    first, second = plan.spends
    assert (first.stage, second.stage) == (STAGE_PHASE_ONE, STAGE_TUNING)
    level = signal_levels(Schedule())[800]
    mu = 2 * math.sqrt(64 * level / (1 - level))
    assert first.event == NoisedRecords(noise_multiplier=first.event.noise_multiplier)
    assert first.event.noise_multiplier == pytest.approx(2 / mu, rel=1e-12)
    certificate = plan.certificate
    terms = certificate.delta, "replace_one"
    assert accountant.epsilon([first.event], *terms) == pytest.approx(accountant.gdp_epsilon(mu, certificate.delta))
    assert 9.9 <= certificate.epsilon <= 10 and certificate.relation == "replace_one"
    assert certificate.epsilon == pytest.approx(accountant.epsilon([first.event, second.event], *terms))
    alone = planned(ONCE[1])
    assert plan.noise_multiplier > alone.noise_multiplier, "Phase II pays for Phase I with more noise"
    assert plan.phase_one.noised_once and plan.phase_one.boundary == 800 and plan.lacking == ""
    assert "Proposition 2 once" in plan.claim.source and math.isfinite(plan.claim.epsilon)


def test_phase_one_as_published_has_a_claim_and_no_certificate():
    plan = planned(*AS_PUBLISHED, "privacy.epsilon=3", "method.training.steps=50")
    assert plan.certificate is None and plan.claim.epsilon == pytest.approx(3, rel=1e-6)
    assert "one step can show" in plan.lacking and plan.spends[0].event.kind == "uncertified"
    assert not plan.phase_one.noised_once
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize(
    ("target", "noise", "epochs"), [(1, 7.0, 3), (10, 1.13, 3), (0.2, 38.4, 2)], ids=["eps 1", "eps 10", "eps 0.2"]
)
def test_the_claim_finds_the_noise_that_the_authors_chose(target, noise, epochs):
    changes = [
        *("fine_tuning.sample_rate=0.0666666667", "fine_tuning.steps=750", "method.training.batch=32"),
        *(f"method.training.steps={epochs * 1875}", "privacy.delta=1e-5", f"privacy.epsilon={target}"),
    ]
    settings = resolve("dp-promise", changes=[*AS_PUBLISHED, *changes])
    facts = Facts(records=60_000, classes=tuple("0123456789"), public_classes=10, shape=(1, 28, 28))
    assert dp_promise.plan(settings, facts).noise_multiplier == pytest.approx(noise, rel=0.01)


SIZES = {"mnist": 60_000, "fashion": 60_000, "cifar10": 50_000, "celeba32": 162_770, "celeba64": 162_770}
"""Records of the training part of the source of each preset."""


@pytest.mark.parametrize(
    ("name", "target", "epochs", "boundary"),
    [
        ("mnist", 0.2, (2, 50), 0.9),
        ("mnist", 1, (3, 50), 0.9),
        ("fashion", 0.2, (2, 50), 0.9),
        ("fashion", 10, (3, 50), 0.9),
        ("cifar10", 1, (2, 50), 0.925),
        ("cifar10", 5, (3, 50), 0.9),
        ("celeba32", 10, (2, 30), 0.9),
        ("celeba64", 1, (1, 15), 0.95),
    ],
)
def test_presets_are_the_official_code_at_the_size_of_their_source(name, target, epochs, boundary):
    settings = resolve("dp-promise", f"promise-{name}", [f"privacy.epsilon={target}"])
    phases = (settings.method.training, settings.fine_tuning)
    assert [phase.steps for phase in phases] == [
        count * math.ceil(SIZES[name] / phase.batch) for count, phase in zip(epochs, phases, strict=True)
    ]
    assert settings.method.boundary == boundary and settings.method.training.ema_decay == 0.9999
    steps = sum(phase.steps for phase in phases)
    assert settings.fine_tuning.ema_decay == pytest.approx((1 + steps) / (10 + steps), abs=1e-3)


@pytest.mark.parametrize(
    ("name", "target", "noise"),
    [("mnist", 10, 1.13), ("fashion", 1, 7.0), ("mnist", 0.2, 38.4), ("cifar10", 10, 1.19), ("cifar10", 1, 7.89)],
)
def test_presets_claim_their_epsilon_at_the_noise_of_the_official_code(name, target, noise):
    rate = 1 / math.ceil(SIZES[name] / 4096)  # as the authors' code has it
    changes = [f"privacy.epsilon={target}", "fine_tuning.batch=0", f"fine_tuning.sample_rate={rate}"]
    settings = resolve("dp-promise", f"promise-{name}", [*AS_PUBLISHED, *changes])
    shape = (1, 28, 28) if name in ("mnist", "fashion") else (3, 32, 32)
    facts = Facts(records=SIZES[name], classes=tuple("0123456789"), public_classes=10, shape=shape)
    assert dp_promise.plan(settings, facts).noise_multiplier == pytest.approx(noise, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "stated"),
    [
        (["method.boundary=1.5"], "method.boundary"),
        (["method.boundary=0.001"], "S must lie above 1"),
        ([*ONCE, "method.boundary=1"], "lower method.boundary"),
        (["method.phase_one=noised_once"], "--set privacy.relation=replace_one"),
        ([*ONCE, "method.boundary=0.3"], "by itself: raise method.boundary"),
        ([*ONCE, "method.boundary=0.8", "privacy.epsilon=0.5"], "by itself: raise method.boundary"),
        ([*AS_PUBLISHED, "method.boundary=0.5"], "for Phase I alone"),
        ([*ONCE, "method.training.batch=2000"], "2000 is more than the 1437 private records"),
        (["fine_tuning.trainable=[rows,time]"], "leave `time` out"),
        (["method.phase_one=twice"], "noised_once"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_named_in_one_line(changes, stated):
    with pytest.raises(BadInput) as refusal:
        planned(*changes)
    assert stated in str(refusal.value) and "\n" not in str(refusal.value)


# What is paid, and what may leave


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


LITTLE = [
    *("method.training.steps=3", "method.training.batch=20", "method.boundary=0.9"),
    *("schedule.beta_start=2e-3", "schedule.beta_end=0.4"),
]
"""The fifty times of the tiny world reach as much noise as a thousand do by default."""


def test_a_run_on_noised_copies_is_certified_under_an_exchange_and_nothing_else(world, access_to, ledger):
    tiny = world("dp-promise", *ONCE, *LITTLE)
    parts, entries = tiny.pay(access_to(ledger))
    assert set(entries.values()) == {"DP"} and len(entries) == 2
    total = ledger.total("digits", tiny.plan.certificate.delta)
    assert total.relation == "replace_one" and total.epsilon == pytest.approx(tiny.plan.certificate.epsilon, rel=1e-9)
    assert ledger.total("digits", tiny.plan.certificate.delta, "add_remove").epsilon == math.inf
    assert ledger.replay() == []
    assert not torch.equal(parts.started.input.weight, tiny.parts.public.input.weight), "Phase I trains"
    assert_time_stays(parts)


def test_a_run_with_phase_one_as_published_stays_internal(world, access_to, ledger):
    tiny = world("dp-promise", *AS_PUBLISHED, *LITTLE)
    parts, entries = tiny.pay(access_to(ledger))
    assert list(entries.values()) == ["INTERNAL", "DP"]
    assert ledger.total("digits").epsilon == math.inf
    first = next(entry for entry in ledger.entries() if entry.kind == "reserve")
    assert first.body["stage"] == STAGE_PHASE_ONE and "one step can show" in first.body["why"]
    assert parts.started is not None and all(p.isfinite().all() for p in parts.tuned.parameters())
    assert not torch.equal(parts.started.input.weight, parts.public.input.weight)
    assert_time_stays(parts)


def assert_time_stays(parts):
    """Neither phase trains the network on the time."""
    public, started, tuned = (model.condition.time.state_dict() for model in (parts.public, parts.started, parts.tuned))
    assert all(torch.equal(public[name], started[name]) and torch.equal(public[name], tuned[name]) for name in public)


# The leak of Phase I

T, S, MEMBERS = 1000, 900, 3
SCHEDULE = make_schedule(Schedule(timesteps=T))


def residuals(gradient, images):
    """How much of each image lies outside what one step of a linear denoiser shows.

    The gradient of |z - W x_t|^2 at W = 0 is a sum of z x_t'. In its antisymmetric part the terms z z' cancel, so that
    its range is spanned by the records' noises and by what they were added to.
    """
    left, sizes, _ = torch.linalg.svd(gradient - gradient.T)
    seen = left[:, sizes > 1e-9 * sizes[0]]
    flat = images.flatten(1)
    return ((flat - flat @ seen @ seen.T).norm(dim=1) / flat.norm(dim=1)).tolist()


def linear_step(loss_of):
    weight = torch.zeros(64, 64, dtype=torch.float64, requires_grad=True)
    loss = loss_of(lambda x, t, y: (x.flatten(1) @ weight.T).view_as(x))
    return torch.autograd.grad(loss, weight)[0]


def test_one_step_of_phase_one_shows_who_was_in_it_and_one_on_noised_copies_does_not():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 1, 8, 8, generator=generator, dtype=torch.float64) * 2 - 1, torch.full((60,), -1)
    members, others = x[:MEMBERS], x[MEMBERS:]
    examples = denoising_examples(SCHEDULE, members, y[:MEMBERS], draws=1, low=S, high=T, generator=generator)
    published = linear_step(lambda model: record_losses(model, examples).sum())
    assert max(residuals(published, members)) < 1e-6 and min(residuals(published, others)) > 0.5

    noise = torch.randn(members.shape, generator=generator, dtype=torch.float64)
    latents = add_noise(SCHEDULE, members, torch.full((MEMBERS,), S), noise)
    again = linear_step(
        lambda model: renoising_loss(model, SCHEDULE, latents, y[:MEMBERS], boundary=S, generator=generator)
    )
    assert max(residuals(again, latents)) < 1e-6, "it shows the noised copies, which are paid for"
    assert min(residuals(again, x)) > 0.5, "and members no more than others"
