"""How close a synthetic image set comes to real images: distances and neighbourhoods in a space of features.

`frechet_distance` compares two Gaussians fitted to the features. `coverage`, precision, recall and density count
neighbours (Naeem et al. 2020, "Reliable Fidelity and Diversity Metrics for Generative Models", and its package `prdc`):
a real image's neighbourhood is the open ball that reaches to its k-th nearest other real image. `share_readable` asks a
classifier for the wanted class.

Label: each number here looks at private images without noise, or through a classifier that did, and is INTERNAL.
Not covered: whether single records were copied; a synthetic set that repeats the real images scores best of all.
"""

import numpy as np
import torch
from sklearn.metrics import pairwise_distances_chunked
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sfumato.errors import BadInput
from sfumato.evaluation.classifier import Classifier, check_images, predict

TIE = 1e-9
"""Relative gap below which two distances are the same, so that rounding never decides whether a ball holds its rim."""
WORKING_MEGABYTES = 64
"""Memory for the table of distances between two sets, which is made in pieces."""


def frechet_distance(features_a: Tensor, features_b: Tensor) -> float:
    """Frechet distance between Gaussians fitted to two sets of features, [n, d] and [m, d]; n, m >= 2; INTERNAL.

    |mean_a - mean_b|^2 + tr(A + B - 2 (A B)^(1/2)) with the covariances A, B (Heusel et al. 2017, Eq. 6), in float64.
    Where A = R'R and B = S'S, the trace of the root is the sum of the singular values of R S': no root of a matrix is
    taken, so constant features and n <= d do no harm. Few images bias it upwards: compare sets of about the same size.
    """
    a, b = _table(features_a, "first features", 2), _table(features_b, "second features", 2)
    _same_width(a, b)
    root_a, root_b = (np.linalg.qr(x - x.mean(0), mode="r") / np.sqrt(len(x) - 1) for x in (a, b))
    shared = np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum()
    squared = np.square(a.mean(0) - b.mean(0)).sum() + np.square(root_a).sum() + np.square(root_b).sum() - 2 * shared
    return max(float(squared), 0.0)


def coverage(real_features: Tensor, synthetic_features: Tensor, *, k: int = 5) -> float:
    """Share of real images with a synthetic one in their neighbourhood, in [0, 1] (Naeem et al. 2020); INTERNAL.

    Features [n, d] and [m, d], n > k, m >= 1. It rises with m: compare only synthetic sets of the same size.
    """
    real = _table(real_features, "real features", k + 1)
    synthetic = _table(synthetic_features, "synthetic features", 1)
    _same_width(real, synthetic)
    nearest = NearestNeighbors(n_neighbors=1).fit(synthetic).kneighbors(real)[0][:, 0]
    return float((nearest < _radii(real, k)).mean())


def precision_recall_density(
    real_features: Tensor, synthetic_features: Tensor, *, k: int = 5
) -> tuple[float, float, float]:
    """(precision, recall, density) of features [n, d] and [m, d], n, m > k; INTERNAL.

    Precision: share of synthetic images in some real image's neighbourhood. Recall: share of real images in some
    synthetic image's (Kynkaanniemi et al. 2019). Density: how many real neighbourhoods hold a synthetic image, on
    average, divided by k; it may exceed 1 (Naeem et al. 2020).
    """
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
    return float((held > 0).mean()), float(recalled.mean()), float(held.mean() / k)


def share_readable(classifier: Classifier, images: Tensor, wanted_labels: Tensor) -> float:
    """Share of images [n, c, h, w] in [-1, 1] that the classifier reads as wanted (int64 [n]), in [0, 1].

    INTERNAL where the classifier learnt from private images.
    """
    check_images(images, wanted_labels, classifier.head.out_features, name="images to read")
    return float((predict(classifier, images).argmax(1) == wanted_labels.cpu()).double().mean())


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
    if k < 1:
        raise BadInput(f"k = {k}: a neighbourhood needs k >= 1")
    return NearestNeighbors(n_neighbors=k).fit(features).kneighbors()[0][:, -1] * (1 - TIE)
