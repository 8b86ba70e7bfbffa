import math

import numpy as np
import pytest
import torch

from sfumato.errors import BadInput
from sfumato.evaluation.fidelity import frechet_distance, inception_score
from sfumato.evaluation.intervals import around, frechet_interval, mean_interval, paired_interval, score_interval


def normal(n, d, *, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_bootstrapped_accuracy_has_the_binomials_interval():
    right = np.arange(360) < 306  # 85 %
    low, high = mean_interval(right, resamples=2000)
    half = 1.96 * math.sqrt(0.85 * 0.15 / 360)
    assert (low, high) == pytest.approx((0.85 - half, 0.85 + half), abs=0.006)


def test_all_right_and_all_wrong_keep_wilsons_interval():
    z = 1.959964
    assert mean_interval(np.ones(10), resamples=20) == pytest.approx((10 / (10 + z * z), 1))
    assert mean_interval(np.zeros(10), resamples=20) == pytest.approx((0, z * z / (10 + z * z)))
    assert mean_interval(np.full(10, 0.3), resamples=20) == pytest.approx((0.3, 0.3))


@pytest.mark.parametrize("values", [np.ones(0), np.ones((3, 2))])
def test_an_interval_needs_one_value_per_image(values):
    with pytest.raises(BadInput, match="one per image"):
        mean_interval(values, resamples=20)


def test_an_interval_covers_the_truth_nearly_as_often_as_it_says():
    rng = np.random.default_rng(1)
    result = [mean_interval(rng.random(200) < 0.7, resamples=100, seed=i) for i in range(300)]
    assert 0.90 <= np.mean([low <= 0.7 <= high for low, high in result]) <= 0.98


def test_equal_seeds_draw_equal_resamples():
    values = normal(50, 1)[:, 0].numpy()
    first, again, other = (mean_interval(values, resamples=50, seed=seed) for seed in (0, 0, 1))
    assert first == again != other


def answers(n=300):
    """Two classifiers that mostly err on the same images: 1 where one is right."""
    rng = np.random.default_rng(3)
    both = (rng.random(n) < 0.8).astype(float)
    return both, np.where(rng.random(n) < 0.1, 1 - both, both)


def test_a_paired_interval_is_that_of_resampled_images_one_after_another():
    first, second = answers()
    rng, means = np.random.default_rng(0), []
    for _ in range(2000):
        drawn = [int(image) for image in rng.integers(300, size=300)]
        means.append(sum(first[i] for i in drawn) / 300 - sum(second[i] for i in drawn) / 300)
    expected = np.quantile(means, [0.025, 0.975])
    assert paired_interval(first, second, resamples=2000) == pytest.approx(tuple(expected), abs=1e-9)
    low, high = paired_interval(second, first, resamples=2000)
    assert (-high, -low) == pytest.approx(tuple(expected), abs=1e-9)


def test_pairs_that_err_on_the_same_images_have_a_narrow_interval():
    first, second = answers()
    low, high = paired_interval(first, second, resamples=500)
    apart = [mean_interval(row, resamples=500) for row in (first, second)]
    assert high - low < 0.8 * math.hypot(*(top - bottom for bottom, top in apart))


def test_a_paired_interval_without_a_difference_is_no_point():
    row = np.array([1.0] * 90 + [0.0] * 10)
    wilson = 1.959964**2 / (100 + 1.959964**2)
    assert paired_interval(row, row, resamples=50) == pytest.approx((-wilson, wilson))
    assert paired_interval(np.ones(100), np.zeros(100), resamples=50) == pytest.approx((1 - wilson, 1))
    with pytest.raises(BadInput, match=r"shapes \[100\] and \[3\]"):
        paired_interval(row, np.ones(3), resamples=50)


def test_the_frechet_interval_is_as_wide_as_fresh_draws_spread():
    def draw(seed):
        return normal(300, 4, seed=2 * seed), normal(200, 4, seed=2 * seed + 1) * 1.2 + 0.5

    values = [frechet_distance(*draw(seed)) for seed in range(100)]
    low, high = frechet_interval(values[0], *draw(0), resamples=200)
    assert (low + high) / 2 == pytest.approx(values[0])
    assert (high - low) / (2 * 1.96) == pytest.approx(np.std(values, ddof=1), rel=0.35)


def test_more_images_than_bags_spread_as_images_drawn_one_by_one():
    a, b = normal(3000, 6) * 0.7 + 30, normal(2500, 6, seed=1)
    rng, distances = np.random.default_rng(5), []
    for _ in range(300):
        distances.append(frechet_distance(a[rng.integers(3000, size=3000)], b[rng.integers(2500, size=2500)]))
    value = frechet_distance(a, b)
    low, high = frechet_interval(value, a, b, resamples=300)
    assert (low + high) / 2 == pytest.approx(value)
    assert (high - low) / (2 * 1.96) == pytest.approx(np.std(distances, ddof=1), rel=0.2)


def test_the_frechet_interval_ends_at_zero_and_takes_constant_features():
    a, b = normal(50, 3), normal(50, 3, seed=1)
    padded = [torch.cat([x, torch.ones(50, 2)], 1) for x in (a, b)]
    value = frechet_distance(a, b)
    result = frechet_interval(value, a, b, resamples=30)
    assert result[0] == 0 < result[1] and frechet_interval(value, *padded, resamples=30) == pytest.approx(result)


def test_the_inception_scores_interval_is_as_wide_as_fresh_draws_spread():
    values, tables = zip(
        *(inception_score((normal(400, 5, seed=seed) * 2).softmax(1)) for seed in range(100)), strict=True
    )
    low, high = score_interval(values[0], tables[0], resamples=200)
    assert (high - low) / (2 * 1.96) == pytest.approx(np.std(values, ddof=1), rel=0.35)


def test_around_stays_above_the_least():
    assert around(1.0, 1.0) == pytest.approx((-0.96, 2.96), abs=1e-3)
    assert around(1.0, 1.0, least=0.0)[0] == 0
