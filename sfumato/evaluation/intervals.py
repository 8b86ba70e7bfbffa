"""95 % intervals around scores, by bootstrap: the spread over other draws of the images, judged in the same way.

A score that is a mean over images (accuracy, coverage, ...) gets the percentiles of the means of its resamples. The
Frechet distance and the Inception score of a resample are biased, since it repeats images; for them the resamples give
the spread alone, and the interval is the score plus and minus 1.96 of it.

Not covered: the spread between training seeds, readers and synthetic sets; for the neighbour scores, that the
neighbourhoods would move too.
"""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from sfumato.errors import BadInput
from sfumato.evaluation.fidelity import between_gaussians, score_of_means

LEVEL = 0.95
WIDEST = 256
"""Largest number of features for which the Frechet distance is resampled; a resample takes time by their cube."""
BAGS = 400
"""Most bags of images from which a Gaussian is resampled: their products fit into 100 MB at the widest."""
Interval = tuple[float, float]


def mean_interval(values: np.ndarray, *, resamples: int, seed: int = 0) -> Interval:
    """Interval around the mean of values [n], n >= 1, each of one image.

    Where all are 0 or all are 1 a bootstrap shrinks to nothing, and Wilson's interval takes its place.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise BadInput(f"values of shape {list(values.shape)}: give one per image, [n] with n >= 1")
    if (values == values[0]).all() and values[0] in (0, 1):
        from scipy.stats import binomtest

        wilson = binomtest(int(values.sum()), len(values)).proportion_ci(LEVEL, method="wilson")
        return float(wilson.low), float(wilson.high)
    means = [counts @ values / len(values) for counts in _counts(len(values), resamples, seed)]
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def paired_interval(first: np.ndarray, second: np.ndarray, *, resamples: int, seed: int = 0) -> Interval:
    """Interval around mean(first) - mean(second), two rows [n] of 0 and 1 over the same n >= 1 images.

    A bootstrap of the differences image by image, so that images which both rows count alike leave no spread. Where these are all
    alike it shrinks to nothing, and Wilson's upper bound on the share of images that may still differ takes its place, to either side.
    """
    first, second = (np.asarray(row, dtype=np.float64) for row in (first, second))
    if first.shape != second.shape:
        raise BadInput(f"rows of shapes {list(first.shape)} and {list(second.shape)}: give the same images to both")
    difference = first - second
    if (difference == difference[0]).all():
        _, reach = mean_interval(np.zeros(len(difference)), resamples=resamples)
        return max(-1.0, float(difference[0]) - reach), min(1.0, float(difference[0]) + reach)
    return mean_interval(difference, resamples=resamples, seed=seed)


def score_interval(value: float, table: np.ndarray, *, resamples: int, seed: int = 0) -> Interval:
    """Interval around an Inception score from its table [n, 1 + c] (`sfumato.evaluation.fidelity.inception_score`)."""
    scores = [score_of_means(counts @ table / len(table)) for counts in _counts(len(table), resamples, seed)]
    return around(value, float(np.std(scores, ddof=1)), least=1.0)


def frechet_interval(
    value: float, features_a: Tensor, features_b: Tensor, *, resamples: int, seed: int = 0
) -> Interval:
    """Interval around a Frechet distance between features [n, d] and [m, d]; both sets are resampled."""
    sides = [
        _resampled_gaussians(features.double().numpy(), resamples, seed + place)
        for place, features in enumerate((features_a, features_b))
    ]
    distances = [between_gaussians(*first, *second) for first, second in zip(*sides, strict=True)]
    return around(value, float(np.std(distances, ddof=1)), least=0.0)


def around(value: float, error: float, *, least: float = -np.inf) -> Interval:
    """The value plus and minus 1.96 standard errors; not below `least`."""
    from scipy.stats import norm

    reach = float(norm.ppf((1 + LEVEL) / 2) * error)
    return max(value - reach, least), value + reach


def _counts(images: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each image is drawn, float [images], once for each resample."""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(rng.integers(images, size=images), minlength=images).astype(np.float64)


def _resampled_gaussians(table: np.ndarray, resamples: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Mean [d] and a root [d, d] of the covariance of each resample of rows [n, d].

    What is drawn is one of at most `BAGS` bags of rows, dealt at random: the rows' products are then summed once and not for each resample. The
    spread over bags is that over rows but for what `BAGS` equal draws know of a spread, about 1 / sqrt(2 * BAGS) of it.
    """
    middle = table.mean(axis=0)
    dealt = np.random.default_rng([seed, len(table)]).permutation(table - middle)
    bags = np.array_split(dealt, min(BAGS, len(dealt)))
    sizes = np.array([len(bag) for bag in bags], dtype=np.float64)
    sums = np.stack([bag.sum(axis=0) for bag in bags])
    products = np.stack([(bag.T @ bag).ravel() for bag in bags]).astype(np.float32)
    for counts in _counts(len(bags), resamples, seed):
        rows = counts @ sizes
        mean = counts @ sums / rows
        second = (counts.astype(np.float32) @ products).reshape(table.shape[1], -1).astype(np.float64)
        values, vectors = np.linalg.eigh((second - rows * np.outer(mean, mean)) / (rows - 1))
        yield middle + mean, np.sqrt(values.clip(0))[:, None] * vectors.T
