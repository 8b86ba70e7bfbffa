"""Covariances: a noisy one shrunk towards a prior, a prior brought to the level and the colours of a noisy one, transport between two.

Matrices alone, and no private image: the noise on them is known, and all that is done to them is post-processing. An estimate begins
with a prior, here the covariance of public images, and approaches what was seen only as far as that is signal. First few numbers move,
which many noisy ones tell together: the total variance, that of bands of directions (`levelled`), and how channels vary together in
bands of spatial frequencies (`coloured`). Then each number moves by itself (`shrunk`).
"""

import math

import torch
from torch import Tensor

FLAT = 1e-3
"""Least variance along a direction, as a share of the mean one."""
TINY = torch.finfo(torch.float64).tiny
"""In the place of a number above 0 that rounding made nothing."""
NO_VARIANCE = 1e-12
"""Variance of a band of public images up to which rounding alone made it; a factor on it would be of any size."""
NARROWEST, WIDEST = 5e-3, 50.0
"""Bounds of a variance along a direction, as a multiple of the prior's."""
AS_PRIOR = 1.0
"""Kappa of deviations that are as large as the prior itself."""
FIT_ROUNDS = 20
"""Iterations of the fixed point that estimates the amount of signal."""
BY_CHANCE = 2.0
"""Standard deviations of kappa up to which it may be noise alone, and counts as 0."""
UNSURE, ALIKE = 0.5, 0.25
"""Expected relative deviation of a total variance from the prior's, and of a band of directions, for all classes together and for one."""


def shrunk(seen: Tensor, prior: Tensor, *, noise: float, records: float) -> tuple[Tensor, float]:
    """A covariance `[d, d]` shrunk from one `seen` with `noise` on its diagonal (1 / sqrt(2) of it elsewhere) of a number of `records`
    towards a `prior`; and the share, 0 to 1, of its deviation that it keeps.

    In the prior's eigenvectors a number's deviation from the prior has variance kappa p_i p_j, p being the prior's eigenvalues, as if
    the covariance were drawn around it (Wishart), plus the variance of the noise and of sampling few records. Kappa fits the
    deviations themselves (empirical Bayes), from what noise alone would make of it up to deviations as large as the prior: where numbers
    are few, chance would take it anywhere.
    """
    values, vectors = torch.linalg.eigh(prior)
    values = values.clamp(min=max(FLAT * float(values.mean()), TINY))
    turned = vectors.T @ seen @ vectors
    twice = 1 + torch.eye(len(values), dtype=seen.dtype)
    scale = torch.outer(values, values)
    signal, other = scale * twice, twice * (noise**2 / 2) + scale * twice / records
    apart = turned - torch.diag(values)
    kappa = 1.0
    for _ in range(FIT_ROUNDS):
        weight = signal / (kappa * signal + other).square()
        kappa = min(AS_PRIOR, max(0.0, float((weight * (apart.square() - other)).sum() / (weight * signal).sum())))
    if kappa < BY_CHANCE * math.sqrt(2 / max(float((signal / other).square().sum()), TINY)):
        kappa = 0.0
    share = kappa * signal / (kappa * signal + other)
    root = values.sqrt()
    relative, turn = torch.linalg.eigh(torch.diag(torch.ones_like(values)) + share * apart / torch.outer(root, root))
    relative = (turn * relative.clamp(NARROWEST, WIDEST)) @ turn.T
    own = float((share * signal).sum() / signal.sum())
    return vectors @ (root[:, None] * relative * root) @ vectors.T, own


def levelled(prior: Tensor, seen: Tensor, vectors: Tensor, *, noise: float, records: float, unsure: float) -> Tensor:
    """A prior covariance `[d, d]` brought to the level at which one was `seen`: all of it, then band by band of the directions `vectors`
    `[d, d]`, the public images' eigenvectors by rising variance; `unsure` is how far bands are expected to lie apart.

    Images far from the public ones may have as much variance in coarse shapes and a tenth in fine ones: one level for all would fill
    them with the public images' texture. A band holds twice as many directions as the next one of more variance, so that signal too
    weak in single directions shows in their sum. The directions are public: in eigenvectors computed from the noisy moments, noise
    would count as variance.
    """
    size = len(vectors)
    bands = [2**power for power in range(size.bit_length())]
    bands[-1] = size - sum(bands[:-1])
    shown = (vectors.T @ seen @ vectors).diagonal()
    for sizes, expected in (([size], UNSURE), (bands[::-1], unsure)):
        own = (vectors.T @ prior @ vectors).diagonal().split(sizes)
        parts = zip(own, shown.split(sizes), strict=True)
        levels = torch.cat(
            [one.new_full((len(one),), _level(one, other, noise, records, expected)) for one, other in parts]
        )
        scale = (vectors * levels.sqrt()) @ vectors.T
        prior = scale @ prior @ scale
    return prior


def _level(values: Tensor, seen: Tensor, noise: float, records: float, unsure: float) -> float:
    """The factor on variances `[m]` that brings their sum to the one `seen`, as far as noise and chance allow; 1 where there is no variance to scale."""
    total = float(values.sum())
    if total <= NO_VARIANCE:
        return 1.0
    doubt = math.sqrt(len(values) * noise**2 + 2 * float(values.square().sum()) / records) / total
    return max(NARROWEST, 1 + (float(seen.sum()) / total - 1) / (1 + (doubt / unsure) ** 2))


def coloured(prior: Tensor, seen: Tensor, shape: tuple[int, int, int], *, noise: float, records: float) -> Tensor:
    """A prior covariance `[d, d]` of images of this shape (c, h, w), whose channels come to vary together as in the one `seen`, band by band of
    spatial frequencies.

    Colours of private images may lie on a line where those of public ones are of every kind. One number of a noisy covariance says
    little of that. In a basis of cosines each frequency has a block `[c, c]`; their mean over a band has less noise than one of them (and
    counts here as if they were independent and as strong as each other). It is `shrunk`, and one map for the band turns the prior's mean into
    it. Where in the image a prior varies more than elsewhere stays. A band in which the prior has no variance stays as it is.
    """
    channels, height, width = shape
    basis, bands = torch.kron(torch.eye(channels).double(), cosines(height, width)), octaves(height, width)
    before, after = (_blocks(basis @ one @ basis.T, channels) for one in (prior, seen))
    turn = before.new_zeros(channels, len(bands), channels, len(bands))
    least = FLAT**2 * float(prior.trace()) / len(bands)
    for band in bands.unique():
        own = torch.nonzero(bands == band)[:, 0]
        start, end = before[own].mean(0), after[own].mean(0)
        if float(start.trace()) <= least:
            turn[:, own, :, own] = torch.eye(channels).double()
            continue
        end, _ = shrunk(end, start, noise=noise / math.sqrt(len(own)), records=records * len(own))
        turn[:, own, :, own] = transport(start, end)[0]
    turned = basis.T @ turn.reshape(prior.shape) @ basis
    return turned @ prior @ turned.T


def cosines(height: int, width: int) -> Tensor:
    """The orthonormal basis of a discrete cosine transform (DCT-II) of images, float64 `[h w, h w]`, a wave in each row."""
    both = []
    for size in (height, width):
        along = torch.arange(size, dtype=torch.float64)
        waves = torch.cos(math.pi * along[:, None] * (along + 0.5) / size) * math.sqrt(2 / size)
        waves[0] /= math.sqrt(2)
        both.append(waves)
    return torch.kron(both[0], both[1])


def octaves(height: int, width: int) -> Tensor:
    """The band of each of these waves, int64 `[h w]`: 0 is the mean of an image, then each holds frequencies twice as high as the one before."""
    highest = torch.maximum(torch.arange(height)[:, None], torch.arange(width)).flatten()
    return torch.where(highest > 0, 1 + highest.clamp(min=1).log2().floor().long(), 0)


def _blocks(covariance: Tensor, channels: int) -> Tensor:
    """The covariances of the channels at each frequency, `[h w, c, c]`."""
    each = len(covariance) // channels
    return covariance.reshape(channels, each, channels, each).diagonal(dim1=1, dim2=3).permute(2, 0, 1)


def transport(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric matrix `[d, d]` that turns covariance `start` into `end` and moves least, and its inverse.

    T = A^(-1/2) (A^(1/2) B A^(1/2))^(1/2) A^(-1/2); eigenvalues are held above `FLAT` of their mean.
    """
    root, inverse = power(start, 0.5), power(start, -0.5)
    middle = root @ power(end, 1.0) @ root
    return inverse @ power(middle, 0.5, 0.0) @ inverse, root @ power(middle, -0.5, 0.0) @ root


def power(matrix: Tensor, exponent: float, least: float = FLAT) -> Tensor:
    """A power of a symmetric `[d, d]` whose eigenvalues are held above so large a share of their mean."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    values = values.clamp(min=max(least * float(values.mean()), TINY))
    raised: Tensor = (vectors * values**exponent) @ vectors.T
    return raised
