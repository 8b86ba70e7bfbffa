import math

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance

from sfumato.errors import BadInput
from sfumato.evaluation import fidelity
from sfumato.evaluation.classifier import features
from sfumato.evaluation.fidelity import (
    frechet_distance,
    inception_score,
    kernel_distance,
    neighbours,
)


def normal(n, d, *, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(n, mean, root, *, seed=0):
    """A sample [n, d] whose empirical mean and covariance are exactly `mean` and root' root."""
    sample = normal(n, len(mean), seed=seed)
    white = torch.linalg.qr(sample - sample.mean(0))[0] * math.sqrt(n - 1)
    return white @ root + mean


# Frechet distance


def test_frechet_of_independent_gaussians_is_the_textbook_sum():
    scale_a, scale_b = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([3.0, 1.0, 0.5]).double()
    mean_a, mean_b = torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor([1.0, 1.0, 0.0]).double()
    a, b = gaussian(50, mean_a, scale_a.diag()), gaussian(80, mean_b, scale_b.diag(), seed=1)
    expected = ((mean_a - mean_b) ** 2).sum() + ((scale_a - scale_b) ** 2).sum()  # 5 + 5
    assert frechet_distance(a, b) == pytest.approx(float(expected), rel=1e-9)


def test_frechet_of_two_correlated_planes_has_a_closed_form():
    root_a, root_b = torch.tensor([[1.0, 0.7], [0.0, 2.0]]).double(), torch.tensor([[0.3, -1.0], [1.5, 0.2]]).double()
    a, b = gaussian(40, torch.zeros(2).double(), root_a), gaussian(30, torch.ones(2).double(), root_b, seed=1)
    A, B = root_a.T @ root_a, root_b.T @ root_b
    trace_of_root = torch.sqrt((A @ B).trace() + 2 * torch.sqrt(A.det() * B.det()))  # of any 2 x 2 matrix
    assert frechet_distance(a, b) == pytest.approx(float(2 + A.trace() + B.trace() - 2 * trace_of_root), rel=1e-9)


def test_frechet_agrees_with_the_matrix_root_and_with_torchmetrics():
    mixing = normal(12, 12, seed=3)
    a, b = normal(300, 12) @ mixing, normal(200, 12, seed=1) @ mixing.T + 0.3
    A, B = np.cov(a.numpy(), rowvar=False), np.cov(b.numpy(), rowvar=False)
    slow = float(((a.mean(0) - b.mean(0)) ** 2).sum()) + np.trace(A + B - 2 * np.real(sqrtm(A @ B)))
    assert frechet_distance(a, b) == pytest.approx(slow, rel=1e-8)

    metric = FrechetInceptionDistance(feature=Unchanged(12), normalize=True).set_dtype(torch.float64)
    metric.update(a, real=True)
    metric.update(b, real=False)
    assert frechet_distance(a, b) == pytest.approx(float(metric.compute()), rel=1e-6)


class Unchanged(nn.Module):
    """An 'extractor' for features that are there already."""

    def __init__(self, width):
        super().__init__()
        self.num_features = width

    def forward(self, features):
        return features


def test_frechet_is_zero_on_equal_sets_symmetric_and_blind_to_order():
    a, b = normal(100, 20), normal(60, 20, seed=1) * 2
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-10)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-10)
    assert frechet_distance(a.flip(0), b) == pytest.approx(frechet_distance(a, b), rel=1e-10)


def test_frechet_survives_constant_and_repeated_features_and_few_images():
    a, b = normal(40, 3), normal(50, 3, seed=1) * 1.5 + 1
    plain = frechet_distance(a, b)
    padded = torch.cat([a, torch.ones(40, 5)], 1), torch.cat([b, torch.ones(50, 5)], 1)
    assert frechet_distance(*padded) == pytest.approx(plain)
    assert frechet_distance(torch.cat([a, a], 1), torch.cat([b, b], 1)) == pytest.approx(2 * plain, rel=1e-9)
    few, fewer = normal(5, 64), normal(2, 64, seed=1)
    slow = (
        np.square(few.numpy().mean(0) - fewer.numpy().mean(0)).sum()
        + float(few.var(0).sum() + fewer.var(0).sum())
        - 2 * np.sqrt(np.linalg.eigvals(np.cov(few.T.numpy()) @ np.cov(fewer.T.numpy())).real.clip(0)).sum()
    )
    assert frechet_distance(few, fewer) == pytest.approx(slow, rel=1e-6)
    assert frechet_distance(torch.zeros(9, 4), torch.zeros(7, 4) + 2) == pytest.approx(16)


def test_frechet_takes_a_far_offset_in_float64():
    a, b = normal(100, 8), normal(100, 8, seed=1) * 1.1
    assert frechet_distance(a + 1e5, b + 1e5) == pytest.approx(frechet_distance(a, b), rel=1e-6)


# Kernel distance


def slow_kernel_distance(a, b):
    """Lemma 6 of Gretton et al. 2012, one pair at a time."""

    def kernel(x, y):
        return (sum(p * q for p, q in zip(x, y, strict=True)) / len(x) + 1) ** 3

    a, b = a.tolist(), b.tolist()
    within = [sum(kernel(s[i], s[j]) for i in range(len(s)) for j in range(len(s)) if i != j) for s in (a, b)]
    across = sum(kernel(x, y) for x in a for y in b)
    return within[0] / len(a) / (len(a) - 1) + within[1] / len(b) / (len(b) - 1) - 2 * across / len(a) / len(b)


def test_kernel_distance_is_its_definition_and_torchmetrics_with_all_images_in_one_subset():
    a, b = normal(30, 5), normal(24, 5, seed=1) * 1.5 + 0.3
    assert kernel_distance(a, b)[0] == pytest.approx(slow_kernel_distance(a, b), rel=1e-9)
    metric = KernelInceptionDistance(feature=Unchanged(5), subsets=1, subset_size=24).set_dtype(torch.float64)
    metric.update(a[:24], real=True)
    metric.update(b, real=False)
    assert kernel_distance(a[:24], b)[0] == pytest.approx(float(metric.compute()[0]), rel=1e-6)


def test_kernel_distance_is_unbiased_at_any_size():
    """Of two standard Gaussians, one shifted by s: E k(x, y) over independent x and y has a closed form."""

    def expected(a, b):  # E (x.y / d + 1)^3 with x ~ N(a, 1), y ~ N(b, 1): z = x.y has these moments
        d, dot, both = len(a), float(a @ b), float(a @ a + b @ b)
        second = dot**2 + both + d
        third = dot**3 + 3 * dot * (both + d) + 6 * dot
        return 1 + 3 * dot / d + 3 * second / d**2 + third / d**3

    shift, zero = torch.full((3,), 0.8).double(), torch.zeros(3).double()
    truth = expected(zero, zero) + expected(shift, shift) - 2 * expected(zero, shift)
    for size in (4, 40):
        result = [
            kernel_distance(normal(size, 3, seed=2 * i), normal(size + 1, 3, seed=2 * i + 1) + shift)
            for i in range(600)
        ]
        values, errors = np.array(result).T
        standard_error = values.std(ddof=1) / math.sqrt(len(values))
        assert abs(values.mean() - truth) < 3 * standard_error, (values.mean(), truth)
        assert standard_error < 0.2 * truth, "a bias as large as the distance would have been seen"
    assert errors.mean() == pytest.approx(values.std(ddof=1), rel=0.25)


def test_the_error_of_the_kernel_distance_is_not_too_small_for_two_sets_of_one_source():
    result = np.array([kernel_distance(normal(40, 4, seed=2 * i), normal(60, 4, seed=2 * i + 1)) for i in range(200)])
    assert np.median(result[:, 1]) > 0.9 * result[:, 0].std(ddof=1)


# Inception score


def test_inception_score_of_sure_and_of_clueless_classifiers():
    sure = torch.eye(4).repeat(5, 1)
    assert inception_score(sure)[0] == pytest.approx(4)
    assert inception_score(sure[:1].repeat(9, 1))[0] == pytest.approx(1)
    assert inception_score(torch.full((9, 4), 0.25))[0] == pytest.approx(1)
    assert inception_score(torch.tensor([[0.9, 0.1], [0.1, 0.9]]))[0] == pytest.approx(
        2 * math.exp(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    )


@pytest.mark.parametrize("images", [7, 100, 700])
def test_inception_score_of_images_that_are_all_alike_is_no_less_than_one(images):
    """Rounding took it below for half of all such sets, and `Scores`, which knows that this cannot be, refused them."""
    for seed in range(20):
        one = torch.rand(1, 10, generator=torch.Generator().manual_seed(seed)).softmax(1)
        assert inception_score(one.repeat(images, 1))[0] >= 1


@pytest.mark.filterwarnings("ignore:std")
def test_inception_score_is_torchmetrics_with_one_split():
    logits = normal(200, 7) * 2
    metric = InceptionScore(feature=Unchanged(7), splits=1).set_dtype(torch.float64)
    metric.update(logits)
    value, table = inception_score(logits.softmax(1))
    assert value == pytest.approx(float(metric.compute()[0]), rel=1e-6)
    assert table.shape == (200, 8) and fidelity.score_of_means(table.mean(0)) == value


# Neighbourhoods, against loops written from the definitions


def distance(x, y):
    return math.sqrt(sum((p - q) ** 2 for p, q in zip(x, y, strict=True)))


def radius(points, i, k):
    """Distance from points[i] to its k-th nearest other point."""
    return sorted(distance(points[i], points[j]) for j in range(len(points)) if j != i)[k - 1]


def slow_scores(real, synthetic, k):
    """(coverage, precision, recall, density) by Naeem et al. 2020, one pair at a time."""
    real, synthetic = real.tolist(), synthetic.tolist()
    inside = [[distance(x, y) < radius(real, i, k) for y in synthetic] for i, x in enumerate(real)]
    inside_synthetic = [[distance(x, y) < radius(synthetic, j, k) for j, y in enumerate(synthetic)] for x in real]
    covered = sum(any(row) for row in inside) / len(real)
    precise = sum(any(row[j] for row in inside) for j in range(len(synthetic))) / len(synthetic)
    recalled = sum(any(row) for row in inside_synthetic) / len(real)
    return covered, precise, recalled, sum(map(sum, inside)) / (k * len(synthetic))


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize(
    "real, synthetic",
    [
        (normal(30, 4), normal(24, 4, seed=1)),
        (normal(20, 20), normal(33, 20, seed=1) * 0.5),
        (normal(25, 2).mul(2).round(), normal(25, 2, seed=1).mul(2).round()),  # a grid: ties and repeated points
        (normal(25, 18).round(), normal(25, 18, seed=1).round()),
        (normal(15, 3), normal(15, 3)),  # equal sets: every rim is touched
        (normal(15, 20), normal(15, 20)),
    ],
    ids=["plane", "wide", "grid", "wide grid", "copy", "wide copy"],
)
def test_neighbour_scores_agree_with_their_definitions(real, synthetic, k):
    covered, precise, recalled, density = slow_scores(real, synthetic, k)
    result = neighbours(real, synthetic, k=k)
    assert (len(result.covered), len(result.precise)) == (len(real), len(synthetic))
    assert [rows.mean() for rows in result] == pytest.approx([covered, recalled, precise, density])


def test_making_the_table_of_distances_in_pieces_changes_nothing(monkeypatch):
    real, synthetic = normal(600, 3), normal(500, 3, seed=1)
    whole, distance = neighbours(real, synthetic), kernel_distance(real, synthetic)
    monkeypatch.setattr(fidelity, "WORKING_MEGABYTES", 0.1)  # 20 rows at a time
    for rows, expected in zip(neighbours(real, synthetic), whole, strict=True):
        assert np.array_equal(rows, expected)
    assert kernel_distance(real, synthetic) == pytest.approx(distance, rel=1e-9)


def test_a_collapsed_set_is_precise_and_covers_little():
    real = normal(200, 4)
    collapsed = real[:1] + 1e-3 * normal(200, 4, seed=1)
    result = neighbours(real, collapsed)
    assert result.precise.all() and result.recalled.mean() < 0.05 and result.covered.mean() < 0.1
    assert not neighbours(real, real + 100).covered.any()


def test_fidelity_tells_real_digits_from_noise(digits, reader):
    real, other, noise = (
        features(reader, images)
        for images in (
            digits.test,
            digits.train,
            torch.rand(500, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1,
        )
    )
    assert frechet_distance(real, other) < 0.1 * frechet_distance(real, noise)
    assert neighbours(real, other).covered.mean() > 0.95 and neighbours(real, noise).covered.mean() < 0.4
    assert abs(kernel_distance(real, other)[0]) < 0.1 * kernel_distance(real, noise)[0]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: frechet_distance(normal(1, 3), normal(9, 3)), "first features: 1 images are too few"),
        (lambda: frechet_distance(normal(9, 3), normal(0, 3)), "second features: 0 images are too few"),
        (lambda: frechet_distance(normal(9, 3), normal(9, 4)), "3 and 4 wide"),
        (lambda: frechet_distance(normal(9, 3)[0], normal(9, 3)), "one row per image"),
        (lambda: frechet_distance(normal(9, 3) / 0, normal(9, 3)), "NaN or infinite"),
        (lambda: neighbours(normal(5, 3), normal(9, 3)), "real features: 5 images are too few .* it needs 6 or more"),
        (lambda: neighbours(normal(6, 3), normal(5, 3)), "synthetic features: 5 images"),
        (lambda: neighbours(normal(6, 3), normal(6, 3), k=0), "k = 0"),
        (lambda: neighbours(normal(6, 3), normal(6, 2)), "3 and 2 wide"),
        (lambda: kernel_distance(normal(1, 3), normal(6, 3)), "real features: 1 images"),
        (lambda: kernel_distance(normal(6, 3), normal(6, 2)), "3 and 2 wide"),
        (lambda: inception_score(torch.full((3, 2), float("nan"))), "class probabilities: some are NaN"),
    ],
)
def test_refuses_with_one_line_and_no_number(call, message):
    with pytest.raises(BadInput, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
