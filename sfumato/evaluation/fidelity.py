"""Distances and neighbourhoods between a synthetic image set and real images in a space of features.

`frechet_distance` compares two Gaussians fitted to the features, `kernel_distance` (KID) all their moments up to the
third. `coverage`, precision, recall and density count neighbours (Naeem et al. 2020, "Reliable Fidelity and Diversity
Metrics for Generative Models", and its package `prdc`): a real image's neighbourhood is the open ball that reaches to
its k-th nearest other real image. `inception_score` asks a classifier how sure and how varied the images are.

Each score stands beside the numbers of single images that it is the mean of, where it is one: `sfumato.evaluation.
intervals` resamples those.

Label: each number here looks at private images without noise, or through a classifier that did, and is INTERNAL.
Not covered: whether single records were copied; a synthetic set that repeats the real images scores best of all.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato.errors import BadInput

TIE = 1e-9
"""Relative gap below which two distances are the same, so that rounding never decides whether a ball holds its rim."""
BYTES, BYTES_OF_A_MEGABYTE = 8, 2**20
"""Bytes of a float64, and of a megabyte as scikit-learn counts it."""
WORKING_MEGABYTES = 64
"""Memory for the table of distances between two sets, which is made in pieces."""
KERNEL_DEGREE, KERNEL_OFFSET = 3, 1.0
"""The kernel of KID: (x.y / d + 1)^3 with d features (Binkowski et al. 2018, Section 4)."""


class Neighbours(NamedTuple):
    """Each image's contribution to the neighbour scores, whose means are the scores."""

    covered: np.ndarray
    """bool [n], real images with a synthetic one in their neighbourhood: coverage."""
    recalled: np.ndarray
    """bool [n], real images in some synthetic image's neighbourhood: recall."""
    precise: np.ndarray
    """bool [m], synthetic images in some real image's neighbourhood: precision."""
    held: np.ndarray
    """float [m], real neighbourhoods that hold a synthetic image, divided by k: density."""


def frechet_distance(features_a: Tensor, features_b: Tensor) -> float:
    """Frechet distance between Gaussians fitted to two sets of features, [n, d] and [m, d]; n, m >= 2; INTERNAL.

    |mean_a - mean_b|^2 + tr(A + B - 2 (A B)^(1/2)) with the covariances A, B (Heusel et al. 2017, Eq. 6), in float64.
    Where A = R'R and B = S'S, the trace of the root is the sum of the singular values of R S': no root of a matrix is
    taken, so constant features and n <= d do no harm. Few images bias it upwards: compare sets of about the same size.
    """
    a, b = _table(features_a, "first features", 2), _table(features_b, "second features", 2)
    _same_width(a, b)
    root_a, root_b = (np.linalg.qr(x - x.mean(0), mode="r") / np.sqrt(len(x) - 1) for x in (a, b))
    return between_gaussians(a.mean(0), root_a, b.mean(0), root_b)


def between_gaussians(mean_a: np.ndarray, root_a: np.ndarray, mean_b: np.ndarray, root_b: np.ndarray) -> float:
    """Squared Frechet distance of two Gaussians from means [d] and roots R [r, d] of their covariances R'R."""
    shared = np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum()
    squared = np.square(mean_a - mean_b).sum() + np.square(root_a).sum() + np.square(root_b).sum() - 2 * shared
    return max(float(squared), 0.0)


def kernel_distance(real_features: Tensor, synthetic_features: Tensor) -> tuple[float, float]:
    """KID of features [n, d] and [m, d], n, m >= 2, and its standard error over draws of the images; INTERNAL.

    The unbiased estimate of the squared maximum mean discrepancy under the kernel (x.y / d + 1)^3, so it may be below 0
    (Binkowski et al. 2018; Gretton et al. 2012, Lemma 6). It uses all pairs at once; the mean over random subsets, which
    torchmetrics takes to save memory, has the same expectation and spreads more. The error needs no resamples: it adds up
    both terms of Hoeffding's decomposition, that of single images, which leads where the sets differ, and that of pairs;
    for two sets of one source it is too large rather than too small.
    """
    real, synthetic = _table(real_features, "real features", 2), _table(synthetic_features, "synthetic features", 2)
    _same_width(real, synthetic)
    n, m = len(real), len(synthetic)
    own_real, _, pairs_real = _kernel_means(real, real)
    own_synthetic, _, pairs_synthetic = _kernel_means(synthetic, synthetic)
    across_real, across_synthetic, pairs_across = _kernel_means(real, synthetic)
    value = own_real.mean() + own_synthetic.mean() - 2 * across_real.mean()
    single = 4 * ((own_real - across_real).var(ddof=1) / n + (own_synthetic - across_synthetic).var(ddof=1) / m)
    double = 2 * pairs_real / (n * (n - 1)) + 2 * pairs_synthetic / (m * (m - 1)) + 4 * pairs_across / (n * m)
    return float(value), float(np.sqrt(single + double))


def inception_score(probabilities: Tensor) -> tuple[float, np.ndarray]:
    """exp of the mean divergence KL(p(y|x) | p(y)) of class probabilities [n, c] (Salimans et al. 2016), in [1, c].

    Also the table [n, 1 + c] whose column means decide it (`score_of_means`): each image's sum of p log p, then its p.
    All images are one split; published scores are means over ten.
    """
    p = _table(probabilities, "class probabilities", 1)
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    table = np.column_stack([(p * logs).sum(1), p])
    return score_of_means(table.mean(0)), table


def score_of_means(means: np.ndarray) -> float:
    """The Inception score from the column means [1 + c] of its table; 1 or more, also where rounding would have it below."""
    mean = means[1:][means[1:] > 0]
    return max(1.0, float(np.exp(means[0] - (mean * np.log(mean)).sum())))


def neighbours(real_features: Tensor, synthetic_features: Tensor, *, k: int = 5) -> Neighbours:
    """Coverage, recall, precision and density of features [n, d] and [m, d], n, m > k, image by image; INTERNAL.

    Coverage: share of real images with a synthetic one in their neighbourhood; it rises with m, so compare only sets of
    the same size. Precision: share of synthetic images in some real image's neighbourhood. Recall: share of real images in some
    synthetic image's (Kynkaanniemi et al. 2019). Density: how many real neighbourhoods hold a synthetic image, on
    average, divided by k; it may exceed 1 (Naeem et al. 2020).
    """
    from sklearn.metrics import pairwise_distances_chunked
    from sklearn.neighbors import NearestNeighbors

    real = _table(real_features, "real features", k + 1)
    synthetic = _table(synthetic_features, "synthetic features", k + 1)
    _same_width(real, synthetic)
    real_radii, synthetic_radii = _radii(real, k), _radii(synthetic, k)
    holders, recalled = [], np.zeros(len(real), dtype=bool)
    start = 0
    for distances in pairwise_distances_chunked(synthetic, real, working_memory=WORKING_MEGABYTES):
        stop = start + len(distances)
        holders.append((distances < real_radii).sum(1))
        recalled |= (distances < synthetic_radii[start:stop, None]).any(0)
        start = stop
    held = np.concatenate(holders)
    nearest = NearestNeighbors(n_neighbors=1).fit(synthetic).kneighbors(real)[0][:, 0]
    return Neighbours(nearest < real_radii, recalled, held > 0, held / k)


def _kernel_means(rows: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean kernel of each row [n] and of each other [m], and the variance of single kernels that these leave unexplained.

    Where both are one array, an image's kernel to itself is left out. The table [n, m] is made in pieces.
    """
    piece = max(1, int(WORKING_MEGABYTES * BYTES_OF_A_MEGABYTE / (BYTES * len(others))))
    by_row, by_other, squares = np.zeros(len(rows)), np.zeros(len(others)), 0.0
    for start in range(0, len(rows), piece):
        base = rows[start : start + piece] @ others.T
        base /= rows.shape[1]
        base += KERNEL_OFFSET
        table = base.copy()
        for _ in range(KERNEL_DEGREE - 1):  # products, since a power costs several times as much
            table *= base
        if others is rows:
            table[range(len(table)), range(start, start + len(table))] = 0
        by_row[start : start + piece] = table.sum(1)
        by_other += table.sum(0)
        squares += np.vdot(table, table)
    alone = int(others is rows)
    by_row, by_other = by_row / (len(others) - alone), by_other / (len(rows) - alone)
    mean_square = squares / (len(rows) * (len(others) - alone))
    unexplained = mean_square - np.square(by_row).mean() - np.square(by_other).mean() + by_row.mean() ** 2
    return by_row, by_other, max(float(unexplained), 0.0)


def _table(features: Tensor, name: str, least: int) -> np.ndarray:
    """Features as float64 [n, d] with n >= least, all finite."""
    table = torch.as_tensor(features).detach().cpu().double().numpy()
    if table.ndim != 2 or table.shape[1] == 0:
        raise BadInput(f"{name}: shape {list(table.shape)}; give [n, d], one row per image")
    if len(table) < least:
        raise BadInput(f"{name}: {len(table)} images are too few for this score; it needs {least} or more")
    if not np.isfinite(table).all():
        raise BadInput(f"{name}: some are NaN or infinite; look for broken images or a broken classifier")
    return table


def _same_width(a: np.ndarray, b: np.ndarray) -> None:
    if a.shape[1] != b.shape[1]:
        raise BadInput(f"features are {a.shape[1]} and {b.shape[1]} wide; take both sets from one classifier")


def _radii(features: np.ndarray, k: int) -> np.ndarray:
    """Distance from each row to its k-th nearest other row, [n], a hair shorter, so that the rim lies outside."""
    from sklearn.neighbors import NearestNeighbors

    if k < 1:
        raise BadInput(f"k = {k}: a neighbourhood needs k >= 1")
    return NearestNeighbors(n_neighbors=k).fit(features).kneighbors()[0][:, -1] * (1 - TIE)
