"""Eq. 6 and 7 of DPPM: the product with the Jacobian against a dense one, the frequencies of the response, what both leave open."""

import math

import pytest
import torch
from scipy.stats import chi2, kstest

from sfumato.config import Network
from sfumato.diffusion.score_matching import curvature, exchanged, sliced_losses
from sfumato.networks.build import build


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(params=["refinenet", "mlp", "unet"])
def network(request):
    """A small network with random weights, in double precision."""
    settings = Network(kind=request.param, width=8, blocks=1, multipliers=(1, 2), condition=8, attention=())
    model = build(settings, (1, 6, 4), 1).double()
    model.condition.time.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def test_the_curvature_is_that_of_the_dense_jacobian(network):
    u, v = (drawn(3, 1, 6, 4, seed=seed, dtype=torch.float64) for seed in (2, 3))
    t, y = torch.tensor([3, 50, 900]), torch.zeros(3, dtype=torch.long)
    result, score = curvature(lambda x: network(x, t, y), u, v)
    for record in range(3):
        one = slice(record, record + 1)
        jacobian = torch.autograd.functional.jacobian(lambda x, one=one: network(x, t[one], y[one]), u[one])
        expected = v[record].flatten() @ jacobian.view(24, 24) @ v[record].flatten()
        torch.testing.assert_close(result[record], expected)
    torch.testing.assert_close(score, network(u, t, y))


def test_the_loss_can_be_differentiated_in_the_weights(network):
    """Against finite differences: a third derivative, through convolutions and group normalisation."""
    u, v, answered = (drawn(2, 1, 6, 4, seed=seed, dtype=torch.float64) for seed in (2, 3, 4))
    t, y = torch.tensor([3, 900]), torch.zeros(2, dtype=torch.long)

    def loss():
        return sliced_losses(lambda x: network(x, t, y), u, v, answered).sum()

    weights = [p for name, p in network.named_parameters() if name.endswith("weight") and "rows" not in name]
    gradients = torch.autograd.grad(loss(), weights, allow_unused=True)
    for parameter, gradient in list(zip(weights, gradients, strict=True))[::5]:
        direction, step = drawn(*parameter.shape, seed=7, dtype=torch.float64), 1e-5
        with torch.no_grad():
            parameter.add_(step * direction)
            up = loss().item()
            parameter.sub_(2 * step * direction)
            down = loss().item()
            parameter.add_(step * direction)
        assert (gradient * direction).sum().item() == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-5)


def test_of_no_records_there_are_no_losses(network):
    u, none = torch.zeros(0, 1, 6, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    losses = sliced_losses(lambda x: network(x, none, none), u, u, u)
    assert losses.shape == (0,)
    losses.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in network.parameters())


@pytest.mark.parametrize(("keep", "k"), [(0.5, 2), (0.232, 10), (1.0, 3), (0.0, 4)])
def test_a_vector_stays_or_becomes_one_of_its_nearest_as_often_as_it_should(keep, k):
    vectors, generator, rounds = drawn(20, 5), torch.Generator().manual_seed(1), 4000
    similar = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=2)
    counts = torch.zeros(20, 20)
    for _ in range(rounds):
        result = exchanged(vectors, keep=keep, k=k, generator=generator)
        which = (result[:, None] == vectors[None]).all(2)
        assert (which.sum(1) == 1).all(), "each is one of the vectors as they are"
        counts += which
    nearest = similar.argsort(1, descending=True)[:, :k]
    assert counts.gather(1, nearest).sum() == 20 * rounds, "nothing but the k nearest, itself the first of them"
    expected = torch.tensor([keep] + [(1 - keep) / (k - 1)] * (k - 1)) * rounds
    seen = counts.gather(1, nearest)[:, expected > 0]
    excess = ((seen - expected[expected > 0]).square() / expected[expected > 0]).sum().item()
    assert excess < chi2.isf(1e-6, 20 * k)


@pytest.mark.parametrize("k", [2, 10, 16])
def test_an_exchanged_vector_is_as_normal_as_the_first(k):
    """Why the response changes no expectation: the nearest by angle has a direction like any other, and a length of its own."""
    generator = torch.Generator().manual_seed(2)
    result = torch.cat(
        [
            exchanged(torch.randn(16, 3, generator=generator), keep=0.1, k=k, generator=generator)[:1]
            for _ in range(3000)
        ]
    )
    for axis in range(3):
        assert kstest(result[:, axis].numpy(), "norm").pvalue > 1e-4
    assert kstest(result.square().sum(1).numpy(), chi2(3).cdf).pvalue > 1e-4


@pytest.mark.parametrize("k", [2, 8])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, math.inf])
def test_the_expectation_of_eq_7_does_not_depend_on_epsilon(epsilon, k):
    """The leak, first half: at every epsilon the network is trained to be the very same score of the very same records.

    The expectation is tr(grad s) + |s|^2 / 2, here of a score that is neither linear nor a gradient.
    """
    mix = drawn(4, 4, seed=5)
    u = drawn(32, 4, seed=6)

    def score(x):
        return torch.sin(x @ mix) - x

    jacobian = torch.stack([torch.autograd.functional.jacobian(score, record) for record in u])
    expected = (jacobian.diagonal(dim1=1, dim2=2).sum(1) + score(u).square().sum(1) / 2).mean()
    keep = 1 / (1 + (k - 1) * math.exp(-epsilon))
    generator, rounds, result = torch.Generator().manual_seed(3), 1000, []
    for _ in range(rounds):
        v = torch.randn(u.shape, generator=generator)
        answered = exchanged(v, keep=keep, k=k, generator=generator)
        result.append(sliced_losses(score, u, v, answered).mean().detach())
    result = torch.stack(result)
    error = result.std() / math.sqrt(rounds)
    assert abs(result.mean() - expected) < 4.5 * error and error < 0.04 * abs(expected)


def test_the_two_lines_of_eq_7_are_not_one_loss():
    """Of data N(0, I) and the scores -c u both are parabolas in c: the first is least at E[v^r v] / d, the second at 1, the whole score."""
    generator, numbers, keep = torch.Generator().manual_seed(4), 6, 0.2
    u, v = (torch.randn(40_000, numbers, generator=generator) for _ in range(2))
    parts = [exchanged(part, keep=keep, k=5, generator=generator) for part in v.split(50)]
    answered = torch.cat(parts)

    def first(c):
        return ((answered * -u).sum(1) - (v * -c * u).sum(1)).square().mean() / 2

    def second(c):
        return sliced_losses(lambda x: -c * x, u, v, answered).mean().detach()

    def least(loss):
        before, at, after = (float(loss(c)) for c in (0.0, 0.5, 1.0))
        return 0.5 - 0.25 * (after - before) / (after - 2 * at + before)

    share = float((answered * v).sum(1).mean()) / numbers
    assert 0.5 < share < 0.9, "neighbours by angle are much alike, and not the same"
    assert least(first) == pytest.approx(share, abs=0.03) and least(second) == pytest.approx(1, abs=0.03)
