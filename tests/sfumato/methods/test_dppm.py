"""DPPM's randomised response against the checked numbers, what it leaves open, its labels, and the sibling that is certified."""

import itertools
import math
from fractions import Fraction

import pytest
import torch

from sfumato.diffusion.score_matching import exchanged, sliced_losses
from sfumato.errors import BadInput
from sfumato.label_rows import label_codes
from sfumato.methods import dppm
from sfumato.methods.algorithm import begun
from sfumato.methods.plan import STAGE_TUNING, STAGE_VOTES
from sfumato.networks.energy import EnergyGradient
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import SubsampledGaussian
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.engine.validation import survey
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.settings import resolve
from tests.oracle import clipped, distance, loop
from tests.refusals import refused
from tests.spends import KEYS
from tests.vectors import facts

SOUND = ("method.mechanism=dp_sgd", "fine_tuning.trainable=[film,time,rest]")


def planned(*changes):
    settings, known, _ = preflight(resolve("dppm", changes=changes))
    return plan_for(settings, known)


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["004-P1", "004-P2"])
def test_the_checked_probabilities(name):
    inputs, expected, near = facts(name)
    keep, other = dppm.response_probabilities(inputs["eps"], inputs["k"])
    assert (keep, other) == (near(expected["p_keep"]), near(expected["p_other"]))


@pytest.mark.parametrize("k", [2, 3, 5, 10, 20, 1000])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 0.1, 1.0, 5.0, 20.0, 100.0])
def test_eq_6_in_exact_fractions(epsilon, k):
    grown = Fraction(math.exp(epsilon))
    keep, other = dppm.response_probabilities(epsilon, k)
    assert keep == pytest.approx(float(grown / (grown + k - 1)), rel=1e-12)
    assert other == pytest.approx(float(1 / (grown + k - 1)), rel=1e-12)
    assert keep + (k - 1) * other == pytest.approx(1, rel=1e-12)
    assert type(keep) is type(other) is float


def test_nothing_overflows():
    assert dppm.response_probabilities(700.0, 5) == pytest.approx((1.0, math.exp(-700)))
    for huge in (1e4, 1e300, math.inf):
        assert dppm.response_probabilities(huge, 5) == (1.0, 0.0)


def test_the_claim_is_the_epsilon_of_the_response():
    for epsilon in (1, 10.0):
        keep, other = dppm.response_probabilities(epsilon, 10)
        assert dppm.claim(epsilon).epsilon == pytest.approx(math.log(keep / other), rel=1e-12)
    assert "Theorem 1" in dppm.claim(1.0).source


def test_there_is_no_certificate():
    inputs, expected, _ = facts("004-P3")
    assert not expected["certified"] and expected["eps_training_data"] == "infinity"
    assert dppm.claim(inputs["eps"]).epsilon == inputs["eps"]
    for relation in ("add_remove", "replace_one"):
        assert accountant.epsilon([dppm.EVENT], 1e-5, relation) == math.inf
    assert "without looking at the data" in dppm.EVENT.reason


def test_the_number_of_the_promise():
    inputs, _, _ = facts("004-P1")
    assert f"{dppm.response_probabilities(inputs['eps'], inputs['k'])[0]:.3f}" in dppm.PROMISE


@pytest.mark.parametrize(
    ("call", "culprit"),
    [
        (lambda: dppm.response_probabilities(-0.1, 5), "epsilon = -0.1: must be 0 or more"),
        (lambda: dppm.response_probabilities(math.nan, 5), "epsilon = nan"),
        (lambda: dppm.response_probabilities(1.0, 1), "k = 1: must be 2 or more"),
        (lambda: dppm.response_probabilities(1.0, 2.5), "k = 2.5"),
        (lambda: dppm.claim(-1.0), "epsilon = -1.0"),
    ],
)
def test_bad_input_is_named_in_one_line(call, culprit):
    with pytest.raises(BadInput, match=culprit) as refusal:
        call()
    assert "\n" not in str(refusal.value)


# What the response leaves open


def turned(matrix):
    """The antisymmetric part."""
    return (matrix - matrix.T) / 2


def outside(record, weights):
    """How much of a record lies outside the plane in which the antisymmetric part of the weights turns, as a share."""
    plane = torch.linalg.svd(turned(weights))[0][:, :2]
    return float((record - plane @ (plane.T @ record)).norm() / record.norm())


def released(records, *, epsilon, k=10, steps=1, seed=0):
    """The weights of a linear score after gradient steps on Eq. 7, from a symmetric start that anyone may know."""
    generator = torch.Generator().manual_seed(seed)
    keep, _ = dppm.response_probabilities(epsilon, k)
    weights = torch.diag(torch.arange(1.0, 13.0))
    for _ in range(steps):
        v = torch.randn(records.shape, generator=generator)
        answered = exchanged(v, keep=keep, k=k, generator=generator)
        weights = weights.detach().requires_grad_()
        loss = sliced_losses(lambda u, a=weights: u @ a.T, records, v, answered).mean()
        weights = weights - 0.01 * torch.autograd.grad(loss, weights)[0]
    return weights.detach()


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 10.0])
def test_one_record_decides_the_antisymmetric_part_of_the_weights(epsilon):
    """The leak, second half: without the record it is nothing at all, with it the record can be told from any other.

    The response enters Eq. 7 by v^r v^r^T alone, which is symmetric; (v^T A u) v u^T is not, and turns in the plane of v
    and the record u. So no delta below 1 holds, at any epsilon.
    """
    member, other = numbers(2, 12, seed=1)
    without = torch.zeros(20, 12)
    joined = torch.cat([without[1:], member[None]])
    assert turned(released(without, epsilon=epsilon)).abs().max() < 1e-6
    weights = released(joined, epsilon=epsilon)
    assert turned(weights).norm() > 1e-3
    assert outside(member, weights) < 1e-4 and outside(other, weights) > 0.5


def test_more_steps_do_not_hide_it():
    member = numbers(12, seed=1)
    without = torch.zeros(20, 12)
    joined = torch.cat([without[1:], member[None]])
    assert turned(released(without, epsilon=0.1, steps=30)).abs().max() < 1e-5
    assert turned(released(joined, epsilon=0.1, steps=30)).norm() > 1e-2


# Labels as rows


def test_labels_are_read_back_from_their_rows_through_noise(world):
    tiny = world("dppm", "method.label_rows=2")
    x, y = numbers(200, 1, 8, 8).clamp(-1, 1), torch.arange(200) % 10
    u = dppm.joined(tiny.settings, tiny.parts, x, y)
    assert u.shape == (200, 1, 10, 8) and u.abs().max() <= 1
    again, labels = dppm.labels(tiny.settings, tiny.parts, u)
    assert torch.equal(again, x) and torch.equal(labels, y)
    noisy, labels = dppm.labels(tiny.settings, tiny.parts, u + 0.3 * numbers(*u.shape, seed=1))
    assert torch.equal(labels, y) and noisy.abs().max() <= 1


# Plans


def test_as_published_it_is_planned_without_a_certificate():
    plan = planned("privacy.epsilon=3")
    assert plan.certificate is None and plan.fine_tuning is None and plan.noise_multiplier is None
    assert [spend.event for spend in plan.spends] == [dppm.EVENT] and plan.claim.epsilon == 3
    assert plan.plain.steps == dppm.SlicedTraining().steps and "without looking at the data" in plan.lacking
    requested = planned("generation.hamiltonian.iterations=7", "generation.hamiltonian.steps=5")
    assert requested.evaluations == 42


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_the_sound_sibling_is_certified_by_its_steps(relation):
    plan = planned(*SOUND, f"privacy.relation={relation}", "fine_tuning.steps=40")
    (event,) = (spend.event for spend in plan.spends)
    assert isinstance(event, SubsampledGaussian) and event.steps == 40 and plan.plain is None
    assert event.noise_multiplier == plan.noise_multiplier
    priced = accountant.epsilon([event], plan.privacy.delta, relation)
    assert 9.9 < plan.certificate.epsilon <= 10 and plan.certificate.epsilon == pytest.approx(priced)
    assert plan.claim.epsilon == plan.certificate.epsilon and "not in the paper" in plan.claim.source


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        (["method.k=200"], r"method\.k=200 is more than the method\.training\.batch=\d+ vectors"),
        (["method.k=1"], r"method\.k.* 1: input should be greater than or equal to 2"),
        (["privacy.epsilon=-1"], r"privacy\.epsilon.* -1: input should be greater than 0"),
        (["method.training.batch=2000"], r"batch=2000 is more than the 1437 private records: use fewer"),
        (["method.label_rows=0"], r"method\.label_rows.* 0"),
        (
            [SOUND[0]],
            r"trainable=\['rows', 'film'\] with rank 0 would leave most of the network .*: use --set fine_tuning\.trainable=",
        ),
        ([*SOUND, "fine_tuning.rank=2"], r"with rank 2 would leave .*: use .*--set fine_tuning\.rank=0"),
        (["method.mechanism=dpsgd"], r"method\.mechanism"),
        (
            [*SOUND, "method.energy=exact"],
            r"method\.energy=exact is learnt by gradients of gradients.*: use method\.energy=line",
        ),
        (["method.energy=curve"], r"method\.energy"),
        (["network.prediction=energy"], r"network\.prediction=energy is for the score network.*: use noise"),
        (["generation.hamiltonian.step_size=0"], r"generation\.hamiltonian\.step_size"),
        (["generation.hamiltonian.iterations=0"], r"generation\.hamiltonian\.iterations"),
        (["generation.hamiltonian.momentum=cauchy"], r"generation\.hamiltonian\.momentum"),
        (["method.network.kind=unet", "method.network.multipliers=[1,2]"], r"9x8 do not allow"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes, culprit):
    with refused(culprit):
        planned(*changes)


# Training and drawing


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


def test_a_score_network_that_is_changed_in_part_stays_a_refinenet():
    changed = resolve("dppm", "rapid-mnist", ["method.network.width=8"]).method.network
    assert (changed.kind, changed.width, changed.blocks) == ("refinenet", 8, 1)


@pytest.mark.parametrize("objective", ["plain", "annealed"])
def test_every_record_has_a_loss_of_its_own(objective, world):
    """Also of a Poisson batch that is smaller than k, or empty."""
    tiny = world("dppm", f"method.objective={objective}")
    model, _ = begun(dppm.ALGORITHM, tiny.settings, tiny.parts)
    losses = dppm.loss(tiny.settings, tiny.parts)
    x, y = numbers(24, 1, 8, 8), torch.arange(24) % 10
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * numbers(*parameter.shape, seed=1))

    def ask(x, y):
        return losses(model, x, y, torch.Generator().manual_seed(1))

    other = x.clone()
    other[7] = -other[7]
    one, two = ask(x, y), ask(other, y)
    moved = (one != two).nonzero().flatten().tolist()
    assert one.shape == (24,) and one.isfinite().all() and moved == [7]
    for count in (3, 0):
        few = ask(x[:count], y[:count])
        assert few.shape == (count,)
        few.sum().backward()


def test_the_plain_form_is_eq_7_of_the_images_themselves(world):
    """By hand: the same vectors, each exchanged, and the network told one time."""
    tiny = world("dppm", "method.objective=plain", "method.k=4", "privacy.epsilon=2")
    model, _ = begun(dppm.ALGORITHM, tiny.settings, tiny.parts)
    x, y = numbers(6, 1, 8, 8), torch.arange(6)
    result = dppm.loss(tiny.settings, tiny.parts)(model, x, y, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(6, 72, generator=generator)
    answered = exchanged(v, keep=dppm.response_probabilities(2.0, 4)[0], k=4, generator=generator)
    u = dppm.joined(tiny.settings, tiny.parts, x, y)
    none, first = torch.full((6,), -1), torch.ones(6, dtype=torch.long)
    expected = sliced_losses(lambda u: -model(u, first, none), u, v.view_as(u), answered.view_as(u))
    torch.testing.assert_close(result, expected)


def test_drawing_finds_the_score_at_every_level(world):
    """With the exact noise prediction for one Gaussian blob, what is drawn is that blob."""
    changes = ["schedule.timesteps=1000", "generation.hamiltonian.iterations=40", "generation.hamiltonian.steps=3"]
    tiny = world("dppm", *changes)
    centre, spread = 0.4, 0.3

    class Exact(torch.nn.Module):
        def forward(self, x_t, t, y):
            signal, noise = tiny.parts.schedule.signal(t), tiny.parts.schedule.noise(t)
            return noise * (x_t - signal * centre) / ((signal * spread) ** 2 + noise**2)

    parts = type(tiny.parts)(**(vars(tiny.parts) | {"tuned": Exact()}))
    drawn = dppm.draw(tiny.settings, parts, torch.zeros(400), torch.Generator().manual_seed(0))
    assert drawn.shape == (400, 1, 9, 8)
    assert drawn.mean().item() == pytest.approx(centre, abs=0.02)
    assert drawn.std().item() == pytest.approx(math.hypot(spread, 0.05), rel=0.05)


PUBLIC_START = (
    "method.mechanism=dp_sgd", "method.start=voted", "method.label_rows=4", "method.network.kind=mlp", "method.pretraining.steps=40",
    "fine_tuning.trainable=[film,rest]", "fine_tuning.rank=2",
)  # fmt: skip


def test_the_sibling_goes_on_from_a_public_network_with_the_codes_that_were_voted_for(world, access_to, ledger):
    tiny = world("dppm", *PUBLIC_START, "method.labels=given")
    assert [spend.stage for spend in tiny.plan.spends] == [STAGE_VOTES, STAGE_TUNING] and tiny.plan.certificate
    model, built = begun(dppm.ALGORITHM, tiny.settings, tiny.parts)
    assert built.shape == (1, 12, 8) and all(parameter.requires_grad for parameter in model.parameters())
    learnt = tiny.parts.own.state_dict()
    assert all(torch.equal(value, learnt[name]) for name, value in model.state_dict().items())
    parts, entries = tiny.pay(access_to(ledger))
    assert set(entries.values()) == {"DP"} and len(set(parts.winners.tolist())) == 10
    every = label_codes(62, (1, 4, 8))
    assert torch.equal(dppm.codes_of(tiny.settings, parts), every[10:][parts.winners])
    assert torch.equal(dppm.codes_of(tiny.settings, tiny.parts), every[:10]), "without votes they are new to it"
    moved = [name for name, value in parts.tuned.state_dict().items() if not torch.equal(value, learnt[name])]
    assert moved and all(".film." in name or not name.startswith("condition.") for name in moved)
    y = torch.tensor([3, 3, 0, 9, 7, 1])
    u = dppm.draw(tiny.settings, parts, y, torch.Generator().manual_seed(0))
    assert torch.equal(dppm.labels(tiny.settings, parts, u)[1], y)


def test_public_classes_have_codes_after_those_of_the_private_ones():
    settings, known, _ = preflight(resolve("dppm", changes=[*PUBLIC_START, "evaluation.baseline=false"]))
    start = dppm.public_start(settings, known)
    assert (start.before, start.classes, start.rows, start.training.steps) == (10, 52, 4, 40)
    assert dppm.public_start(resolve("dppm"), known) is None


def test_given_labels_are_drawn_with_the_exact_score_of_their_rows(world):
    """Images of a label, where the exact network says that they are brighter with the first code than with the second."""
    changes = ["schedule.timesteps=1000", "generation.hamiltonian.iterations=40", "generation.hamiltonian.steps=3"]
    tiny = world("dppm", *changes, "method.labels=given")
    codes = dppm.codes_of(tiny.settings, tiny.parts)[:2]
    spread, means = 0.3, torch.tensor([0.5, -0.5])

    class Exact(torch.nn.Module):
        """Two blobs, each with its code: by how likely x_t is from either."""

        def forward(self, x_t, t, y):
            signal, noise = tiny.parts.schedule.signal(t), tiny.parts.schedule.noise(t)
            centres = torch.cat([means.view(2, 1, 1, 1).expand(2, 1, 8, 8), codes], 2)
            widths = torch.tensor([spread] * 8 + [0.0]).view(1, 1, 9, 1)
            variance = (signal * widths) ** 2 + noise**2
            pulls = [(x_t - signal * centre) / variance for centre in centres]
            far = torch.stack([-(pull**2 * variance).flatten(1).sum(1) / 2 for pull in pulls])
            return noise * sum(w.view(-1, 1, 1, 1) * pull for w, pull in zip(far.softmax(0), pulls, strict=True))

    parts = type(tiny.parts)(**(vars(tiny.parts) | {"tuned": Exact()}))
    y = torch.arange(200) % 2
    drawn, labels = dppm.labels(
        tiny.settings, parts, dppm.draw(tiny.settings, parts, y, torch.Generator().manual_seed(0))
    )
    assert torch.equal(labels, y)
    for label in (0, 1):
        assert drawn[y == label].mean().item() == pytest.approx(float(means[label]), abs=0.05)


@pytest.mark.parametrize("objective", ["plain", "annealed"])
def test_a_network_with_an_energy_learns_and_draws_by_its_own_density(objective, world, access_to, ledger, monkeypatch):
    """The test of each iteration takes the log density whose gradient the steps follow."""
    tiny = world("dppm", "method.energy=exact", f"method.objective={objective}")
    sampling = tiny.settings.generation.hamiltonian
    assert tiny.plan.evaluations == sampling.iterations * (sampling.steps + 3)
    parts, entries = tiny.pay(access_to(ledger))
    assert set(entries.values()) == {"INTERNAL"} and isinstance(parts.tuned, EnergyGradient)
    moves = []

    def noted(settings, at, x, *, generator):
        moves.extend((at(4.0), at(1.0)))
        return x

    monkeypatch.setattr("sfumato.diffusion.hamiltonian.walked", noted)
    u = dppm.draw(tiny.settings, parts, torch.zeros(5), torch.Generator().manual_seed(0)).clone()
    for one in moves:
        u = u.requires_grad_()
        (slope,) = torch.autograd.grad(one.log_density(u).sum(), u)
        torch.testing.assert_close(one.score(u), slope)


@pytest.mark.parametrize("kind", ["refinenet", "mlp"])
def test_the_sibling_learns_from_images_with_their_labels_one_by_one(kind, world, access_to, ledger):
    """An MLP takes images with their rows and no others."""
    tiny = world("dppm", *SOUND, f"method.network.kind={kind}", "method.network.width=8")
    x, y = numbers(24, 1, 8, 8), torch.arange(24) % 10
    corrupt = dppm.corrupt(tiny.settings, tiny.parts)
    one, two = (corrupt(part, y, torch.Generator().manual_seed(1)) for part in (x, torch.cat([-x[:1], x[1:]])))
    assert one.x_t.shape == (24, 2, 1, 9, 8) and (one.y == -1).all(), "classes are in the image and nowhere else"
    assert torch.equal(one.x_t[1:], two.x_t[1:]) and not torch.equal(one.x_t[0], two.x_t[0])
    level = tiny.parts.schedule.alpha_bar[one.t][..., None, None, None]
    undone = (one.x_t - (1 - level).sqrt() * one.target) / level.sqrt()
    u = dppm.joined(tiny.settings, tiny.parts, x, y)[:, None]
    torch.testing.assert_close(undone, u.expand_as(undone), rtol=1e-2, atol=1e-2)
    parts, entries = tiny.pay(access_to(ledger))
    assert set(entries.values()) == {"DP"} and parts.tuned.output.weight.any()
    drawn = dppm.draw(tiny.settings, parts, torch.zeros(5), torch.Generator().manual_seed(0))
    assert drawn.shape == (5, 1, 9, 8) and drawn.isfinite().all()


def test_the_clipping_engine_knows_every_layer_of_the_score_network(world):
    """No layer falls back on single records; the clipped sum is that of the slow oracle."""
    tiny = world("dppm", *SOUND, "method.network.multipliers=[1,2,2]")
    model, built = begun(dppm.ALGORITHM, tiny.settings, tiny.parts)
    # The oracle computes in double precision; sines of the time are always single.
    model.condition.time.register_forward_pre_hook(lambda time, inputs: (inputs[0].to(time[0].weight.dtype),))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * numbers(*parameter.shape, seed=2))
    trainable = trainable_parameters(model, tiny.settings.fine_tuning.trainable)
    known = survey(model, trainable, built.shape)
    assert not known.missing and not known.silent
    x, y = numbers(5, 1, 8, 8), torch.arange(5)
    examples = dppm.corrupt(tiny.settings, tiny.parts)(x, y, torch.Generator().manual_seed(1))
    result = clipped_sum(model, trainable, examples, clip=0.5, chunk=3)
    assert distance(result, clipped(loop(model, trainable, examples), 0.5)) < 1e-4
