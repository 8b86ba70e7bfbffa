"""The clipped kernel mean: against a plain loop, at the edges of floating point, and how far one record can move it."""

import math

import pytest
import torch

from sfumato import sources
from sfumato.images import to_unit
from sfumato.privacy.engine import kernel_mean as module
from sfumato.privacy.engine.kernel_mean import contribution, kernel_mean, log_kernel_density, log_peak
from tests.seeded import Scripted, seeded_source

SHAPE = (1, 8, 8)


def noise():
    return seeded_source(5)


def digits(count=40):
    result = sources.load("digits", sources.Reading(part="train")).subset(slice(count))
    return to_unit(result.pixels), torch.from_numpy(result.labels)


def questions(count=6, sigma=1.0):
    x, y = digits(count)
    generator = torch.Generator().manual_seed(1)
    return x + sigma * torch.randn(x.shape, generator=generator), y


def slowly(records, x, sigma, *, clip, expected, log_density, centre, retained=None):
    """Term by term in float64, as the paper writes it; the density of a kernel relative to its peak."""
    result = []
    for at, middle, level in zip(x.double(), centre.double(), log_density.double(), strict=True):
        total = torch.zeros_like(at)
        for number, record in enumerate(records.double()):
            term = (record - middle) * math.exp(-float((at - record).square().sum()) / (2 * sigma**2) - float(level))
            if retained is None or retained[len(result), number]:
                total += term / max(1.0, float(term.norm()) / clip)
        result.append(middle + total / expected)
    return torch.stack(result)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("clip", [1e-3, 2.0, 1e6])
@pytest.mark.parametrize("block", [7, 1000])
def test_it_is_the_mean_that_the_paper_writes(sigma, clip, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", block)
    records, labels = digits()
    x, wanted = questions(sigma=sigma)
    log_density = log_kernel_density(records[:11].flip(-1), x, sigma)
    centre = 0.3 * x.tanh()
    common = {"clip": clip, "expected": 13.0, "log_density": log_density, "centre": centre}
    result = kernel_mean(records, x, sigma, **common, source=noise())
    torch.testing.assert_close(result.double(), slowly(records, x, sigma, **common), rtol=1e-5, atol=1e-5)
    assert result.dtype == torch.float32 and result.shape == x.shape
    result = kernel_mean(records, x, sigma, **common, labels=labels, wanted=wanted, source=noise())
    same = wanted[:, None] == labels[None]
    torch.testing.assert_close(
        result.double(), slowly(records, x, sigma, **common, retained=same), rtol=1e-5, atol=1e-5
    )


def test_without_clipping_and_with_its_own_density_it_is_the_bayes_denoiser():
    records, _ = digits()
    x, _ = questions()
    weights = (-torch.cdist(x.flatten(1).double(), records.flatten(1).double()).square() / 2).softmax(1)
    bayes = (weights @ records.flatten(1).double()).view_as(x)
    for centre in (torch.zeros_like(x), x):
        density = log_kernel_density(records, x, 1.0)
        result = kernel_mean(
            records, x, 1.0, clip=1e9, expected=40.0, log_density=density, centre=centre, source=noise()
        )
        torch.testing.assert_close(result.double(), bayes, rtol=1e-5, atol=1e-5)


def test_the_public_density_is_a_mean_of_kernels(monkeypatch):
    records, _ = digits()
    x, _ = questions()
    plain = (-torch.cdist(x.flatten(1).double(), records.flatten(1).double()).square() / 8).exp().mean(1).log()
    for block in (9, 1000):
        monkeypatch.setattr(module, "BLOCK", block)
        torch.testing.assert_close(log_kernel_density(records, x, 2.0), plain, rtol=1e-9, atol=1e-9)
    normal = torch.distributions.MultivariateNormal(torch.zeros(64), 4 * torch.eye(64))
    assert log_peak(2.0, 64) == pytest.approx(float(normal.log_prob(torch.zeros(64))), rel=1e-6)


@pytest.mark.parametrize("level", [-1e6, -800.0, 0.0, 800.0, 1e6])
@pytest.mark.parametrize("sigma", [1e-3, 80.0])
def test_extreme_densities_neither_overflow_nor_exceed_the_clip(level, sigma):
    records, _ = digits()
    x, _ = questions()
    common = {"clip": 3.0, "expected": 4.0, "log_density": torch.full((6,), level), "source": noise()}
    result = kernel_mean(records, x, sigma, centre=torch.zeros_like(x), **common)
    assert result.isfinite().all() and result.flatten(1).norm(dim=1).max() <= 40 * contribution(3.0, 4.0) * (1 + 1e-6)
    if level == 1e6:
        assert not result.any(), "where the density is huge nothing is left of any record"
    if level == -1e6 and sigma == 80.0:
        whole = (records.flatten(1) / records.flatten(1).norm(dim=1, keepdim=True)).sum(0) * 3 / 4
        torch.testing.assert_close(result[0].flatten(), whole, rtol=1e-4, atol=1e-4)


def test_at_a_tiny_noise_level_the_weights_keep_their_digits():
    """Squared distances of thousands, differences of them in the sixth digit: float32 would get these weights wrong."""
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(3072, generator=generator).sign()
    records = torch.stack([base, base + 1e-4, base - 2e-4])
    x, sigma = (base + 3e-5)[None], 0.02
    density = log_kernel_density(records, x, sigma)
    result = kernel_mean(
        records, x, sigma, clip=1e9, expected=3.0, log_density=density, centre=base[None], source=noise()
    )
    weights = (-(x.double() - records.double()).square().sum(1) / (2 * sigma**2)).softmax(0)
    expected = weights @ (records.double() - base.double())
    torch.testing.assert_close((result - base).double()[0], expected, rtol=2e-2, atol=1e-6)


# How far one record moves the mean


@pytest.mark.parametrize("record", ["far", "near", "at the centre", "nearly at the centre"])
@pytest.mark.parametrize("level", [-1e5, -30.0, 0.0])
def test_one_record_more_moves_the_mean_by_the_contribution_at_most(record, level):
    records, _ = digits()
    x, _ = questions(1)
    centre = torch.zeros_like(x)
    extra = {
        "far": torch.ones_like(x),
        "near": x.clone(),
        "at the centre": centre.clone(),
        "nearly at the centre": centre + 1e-9,
    }[record]
    common = {"clip": 2.5, "expected": 8.0, "log_density": torch.tensor([level]), "centre": centre}
    without = kernel_mean(records, x, 0.8, **common, source=noise())
    moved = kernel_mean(torch.cat([records, extra]), x, 0.8, **common, source=noise()) - without
    assert float(moved.norm()) <= contribution(2.5, 8.0) * (1 + 1e-5)
    if record in ("far", "near") and level < -1000:
        assert float(moved.norm()) == pytest.approx(contribution(2.5, 8.0), rel=1e-5), "the bound is attained"


def test_an_exchange_moves_it_by_twice_that_and_no_less_can_be_promised():
    records, _ = digits()
    x = torch.zeros(1, *SHAPE)
    one, other = torch.full_like(x, 0.7), torch.full_like(x, -0.7)
    common = {
        "clip": 2.0, "expected": 5.0, "log_density": torch.tensor([-1e5]), "centre": torch.zeros_like(x),
    }  # fmt: skip
    means = [kernel_mean(torch.cat([records, extra]), x, 2.0, **common, source=noise()) for extra in (one, other)]
    assert float((means[0] - means[1]).norm()) == pytest.approx(2 * contribution(2.0, 5.0), rel=1e-5)


@pytest.mark.parametrize("longest", [0.05, 1.0])
def test_bringing_a_long_sum_back_moves_no_two_further_apart(longest):
    records, _ = digits()
    x, _ = questions()
    common = {"clip": 2.0, "expected": 5.0, "log_density": torch.full((6,), -1e4), "centre": 0.1 * x}
    one, two = (kernel_mean(part, x, 1.0, **common, longest=longest, source=noise()) for part in (records, records[1:]))
    free = [kernel_mean(part, x, 1.0, **common, source=noise()) for part in (records, records[1:])]
    assert ((one - 0.1 * x).flatten(1).norm(dim=1) <= longest * (1 + 1e-4)).all()
    assert ((one - two).flatten(1).norm(dim=1) <= (free[0] - free[1]).flatten(1).norm(dim=1) * (1 + 1e-4)).all()


def test_a_record_of_another_class_moves_nothing():
    records, labels = digits()
    x, _ = questions(2)
    common = {"clip": 2.5, "expected": 8.0, "log_density": torch.full((2,), -1e4), "centre": torch.zeros_like(x)}
    wanted = torch.tensor([3, 4])
    without = kernel_mean(records, x, 1.0, **common, labels=labels, wanted=wanted, source=noise())
    more = (torch.cat([records, x[:1]]), torch.cat([labels, torch.tensor([3])]))
    result = kernel_mean(more[0], x, 1.0, **common, labels=more[1], wanted=wanted, source=noise())
    assert torch.equal(result[1], without[1]) and not torch.equal(result[0], without[0])


# Poisson samples


def test_each_image_draws_a_sample_of_its_own():
    records, _ = digits()
    x = torch.zeros(4000, *SHAPE)
    common = {"clip": 1.0, "expected": 1.0, "log_density": torch.full((4000,), -1e5), "centre": torch.zeros_like(x)}
    alone = kernel_mean(records[:1], x, 1.0, **common, sample_rate=0.3, source=noise())
    taken = alone.flatten(1).any(1).double()
    assert abs(float(taken.mean()) - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 4000)
    pair = kernel_mean(records[:2], x, 1.0, **common, sample_rate=0.5, source=noise())
    kinds = len(pair.flatten(1).mul(1e4).round().unique(dim=0))
    assert kinds == 4, "two records take part apart from each other"


def test_empty_samples_and_no_records_leave_the_centre():
    records, labels = digits()
    x, _ = questions(3)
    common = {"clip": 1.0, "expected": 1.0, "log_density": torch.zeros(3), "centre": 0.2 * x}
    for changes in ({"sample_rate": 1e-12}, {"labels": labels, "wanted": torch.tensor([70, 71, 72])}):
        assert torch.equal(kernel_mean(records, x, 1.0, **common, **changes, source=noise()), common["centre"])
    assert torch.equal(kernel_mean(records[:0], x, 1.0, **common, source=noise()), common["centre"])


@pytest.mark.parametrize("rate", [1e-9, 1e-8])
def test_a_rate_below_2_to_the_minus_24_is_what_is_drawn(rate):
    """It was rounded down to 0, so that training saw nothing."""
    records, limit = digits()[0][:2], int(rate * 2**64)
    x = torch.zeros(2, *SHAPE)
    common = {"clip": 1.0, "expected": 1.0, "log_density": torch.full((2,), -1e5), "centre": torch.zeros_like(x)}
    words = Scripted(limit - 1, limit, limit, limit)
    result = kernel_mean(records, x, 1.0, **common, sample_rate=rate, source=words)
    assert result[0].any() and not result[1].any(), "one coin of four lies below"
