"""Moment alignment: an affine map per class from private images, or their latents, to the public images' space.

The noisy counts, sums and second moments of each class (`sfumato.privacy.mechanisms.noisy_moments`) give a mean and a covariance
of each class that account for the noise; all of it is post-processing. A class's map is the optimal transport between two
Gaussians (Dowson and Landau 1982): the class's, and that of the public images. Methods train and draw in the public images'
space, and the inverse maps take drawn images back.

Estimates shrink twice: the covariance shared by all classes towards that of the public images, and each class's towards the
shared one (`sfumato.covariances`). A class with few records, or none, thus gets the shared covariance, which the facts state.

With `clusters`, each class consists of cells, one for each centroid of the public images, with a count and a mean of its own.
With `cells`, noised k-means finds them among the records of the class, from draws out of its noisy covariance on; what their centres
explain is taken from that covariance, which thus needs no second payment.

Not covered: classes whose distribution no affine map of the public images, or mixture of them, matches; more than `MOST_NUMBERS` numbers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.config import Alignment
from sfumato.covariances import ALIKE, FLAT, NARROWEST, UNSURE, coloured, levelled, power, shrunk, transport
from sfumato.diffusion.objective import Draws, normal
from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.latents import Codec, latents_of, within

MOST_NUMBERS, MOST_ENTRIES = 1024, 2**28
"""Numbers of an image or latent, and of all second moments together, that can be aligned."""
CHUNK = 4096
"""Records per batch."""
CLUSTERED = 20_000
"""Largest number of public images for k-means."""
OWN = 0.1
"""A class has a covariance of its own where it keeps at least this share of its deviation from the prior."""
FEWEST = 2.0
"""A class with fewer records than this, or than this many times the noise on its count, counts as empty."""
FINENESS, BINS = 2**0.125, 40
"""Ratio of one distance of the histogram to the next shorter one, and their number, from R downwards."""
CLEAR = 10.0
"""A histogram says something where its sum is this many times the noise on it."""
COUNT_SHARE = 0.1
"""Share of a record's squared norm that goes to the count of its cell, in a round of k-means."""
DRAWS, EXTRA_CELLS = 20, 100
"""Draws for each cell that k-means starts from, and the number of cells that it gets draws for beyond those there are, so that few cells start from
thousands of draws too."""


@dataclass(frozen=True)
class Reference:
    """Mean, covariance and bounds of the public images as the denoisers see them; float64, d numbers each."""

    mean: Tensor
    """`[d]`"""
    covariance: Tensor
    """`[d, d]`"""
    inner: Tensor
    """`[d, d]`, covariance inside the public classes, or around the centroids where these are several."""
    centroids: Tensor
    """`[k, d]`, minus the mean; one of zeros without clusters."""
    radius: float
    """R: no record's distance from the mean counts as more."""
    residual: float
    """r: no record's distance from the mean of its class, or cell, counts as more."""
    shape: tuple[int, int, int] | tuple[()] = ()
    """Channels, height and width of what was measured; () in a released model, whose maps are made."""

    def cells(self, deviations: Tensor) -> Tensor:
        """The nearest centroid of each of `[n, d]`, int64 `[n]`."""
        if len(self.centroids) == 1:
            return torch.zeros(len(deviations), dtype=torch.long, device=deviations.device)
        together = torch.zeros(len(deviations), dtype=torch.long, device=deviations.device)
        return nearest(deviations, together, self.centroids[None])


EMPTY = torch.zeros(0)
"""In the place of what was not asked."""


@dataclass(frozen=True)
class Moments:
    """The noisy moments that the mechanism releases, with its noise; in deviations from the public mean."""

    counts: Tensor
    """int64 `[classes, k]`, of the records, or groups, of each cell; may lie below 0."""
    sums: Tensor
    """float64 `[classes, k, d]`"""
    seconds: Tensor
    """float64 `[classes, d (d + 1) / 2]`, second moments around the cells' centres, as `packed`."""
    count_noise: float
    """Parameter of the noise on each count."""
    mean_noise: float
    """Standard deviation of the noise on each number of the sums."""
    second_noise: float
    """The same of the packed second moments."""
    residual: float
    """No record's distance from the mean of its class, or cell, counted as more in them: the reference's r, or what `distances` say."""
    distances: Tensor = EMPTY
    """int64 `[BINS]`, how many records lie nearer to the mean of their class than R, R / FINENESS, ... and not nearer than the next."""
    rounds: Tensor = EMPTY
    """float64 `[rounds, classes, cells, d + 1]`, of each round of k-means the sums of each cell, and its count; as `weighed` has them."""
    round_noise: float = 0.0
    """Standard deviation of the noise on each of these numbers."""


@dataclass(frozen=True)
class ClassMaps:
    """The affine maps; they run on the device of their inputs."""

    reference: Reference
    centres: Tensor
    """`[classes, k, d]`, minus the public mean."""
    there: Tensor
    """`[classes, d, d]`, symmetric: from a class to the public images."""
    back: Tensor
    """`[classes, d, d]`, its inverse."""
    weights: Tensor
    """`[classes, k]`, how often each cell is drawn; rows sum to 1."""
    own: Tensor
    """`[classes]`, from 0 to 1: the share of its deviations from the shared covariance, brought to its level and colours, that a class keeps."""

    def to_public(self, z: Tensor, y: Tensor) -> Tensor:
        """Records z `[b, ...]` of the classes y `[b]` mapped to the public images' space, each by itself."""
        deviations = z.flatten(1) - self.reference.mean.to(z)
        own = self.centres.shape[1] != len(self.reference.centroids)
        cells = nearest(deviations, y, self.centres) if own else self.reference.cells(deviations)
        centres = self.centres.to(z)[y, cells]
        return (self._turned(deviations - centres, y, self.there) + self.reference.mean.to(z)).view_as(z)

    def to_private(self, x: Tensor, y: Tensor, generator: Draws | None) -> Tensor:
        """Images drawn for the classes y `[b]` mapped back; where classes have cells, to one drawn by its weight, or to the likeliest
        without a generator."""
        cells = self.weights.to(x).argmax(1)[y]
        if generator is not None and self.weights.shape[1] > 1:
            drawn = torch.special.ndtr(normal(x.new_empty(len(y), 1), generator))
            cells = torch.searchsorted(self.weights.to(x).cumsum(1)[y], drawn)[:, 0].clamp(
                max=self.weights.shape[1] - 1
            )
        mean, centres = self.reference.mean.to(x), self.centres.to(x)[y, cells]
        return (self._turned(x.flatten(1) - mean, y, self.back) + centres + mean).view_as(x)

    def _turned(self, deviations: Tensor, y: Tensor, maps: Tensor) -> Tensor:
        turned = torch.empty_like(deviations)
        for label in y.unique().tolist():
            of = y == label
            turned[of] = deviations[of] @ maps[label].to(deviations)
        return turned

    @property
    def shared(self) -> list[int]:
        """The classes that have too few records, or too much noise, for a covariance of their own."""
        return torch.nonzero(self.own < OWN)[:, 0].tolist()


def nearest(deviations: Tensor, y: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre `[classes, k, d]` of the class of each of `[n, d]`, int64 `[n]`: pair by pair,
    so that where a record lies does not depend on those beside it."""
    cells, exact = torch.zeros_like(y), "donot_use_mm_for_euclid_dist"
    for label in y.unique().tolist():
        for part in torch.nonzero(y == label)[:, 0].split(CHUNK):
            apart = torch.cdist(deviations[part].double(), centres[label].to(deviations.device), compute_mode=exact)
            cells[part] = apart.argmin(1)
    return cells


def encoded(images: ImageSet, codec: Codec, maps: ClassMaps | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images as the denoisers see them `[n, c, h, w]`, aligned where there are maps, and labels `[n]`: each record by itself.

    Their norm is `codec.largest_norm` at most.
    """
    x, y = latents_of(codec, images.pixels, device), torch.as_tensor(images.labels).to(device)
    return (aligned(x, y, codec.largest_norm(images.pixels.shape[1:]), maps), y)


def aligned(z: Tensor, y: Tensor, largest_norm: float, maps: ClassMaps | None) -> Tensor:
    """Records z `[b, ...]` of the classes y `[b]` mapped to the public images' space, with a norm of at most `largest_norm`."""
    return z if maps is None else within(maps.to_public(z, y), largest_norm)


def refuse_size(shape: tuple[int, int, int], classes: int) -> None:
    """`BadInput` for images or latents of too many numbers to have covariances."""
    numbers, most = math.prod(shape), min(MOST_NUMBERS, math.isqrt(MOST_ENTRIES // max(1, classes)))
    if numbers > most:
        raise BadInput(
            f"alignment.kind=moments takes second moments of {classes} classes of {numbers} numbers each, more than can be held or "
            f"paid for (at most {most} numbers of so many classes): use a smaller data.size, a larger latent.patch, fewer latent.channels, or "
            "alignment.kind=none with another method than moments"
        )


# ------------------------------------------------------------------------------------------------------- public side


def measured(z: Tensor, y: Tensor, settings: Alignment, *, seed: int) -> Reference:
    """The reference from public images or latents z `[n, ...]` with labels y `[n]`."""
    flat, y = z.flatten(1).cpu(), y.cpu()
    mean = flat.double().mean(0)
    away = flat - mean.to(flat)
    centroids = torch.zeros(1, len(mean), dtype=torch.float64)
    if settings.clusters > 1:
        centroids = centroids_of(away, settings.clusters, seed)
    reference = Reference(mean, _second(away), _second(away), centroids, 0.0, 0.0)
    inner = away - (centroids.to(away)[reference.cells(away)] if settings.clusters > 1 else _class_means(away, y)[y])
    radius = float(away.double().norm(dim=1).quantile(settings.quantile))
    channels, height, width = z.shape[1:]
    residual = settings.residual * radius
    return Reference(mean, reference.covariance, _second(inner), centroids, radius, residual, (channels, height, width))


def centroids_of(points: Tensor, count: int, seed: int) -> Tensor:
    """The centroids of k-means on public points `[n, d]`, `CLUSTERED` of them at most, float64 `[count, d]`."""
    from scipy.cluster.vq import kmeans2

    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:CLUSTERED]
    return torch.from_numpy(kmeans2(points[order].double().numpy(), count, minit="++", seed=seed)[0])


def _class_means(x: Tensor, y: Tensor) -> Tensor:
    classes = int(y.max()) + 1
    sums = x.new_zeros(classes, x.shape[1]).index_add_(0, y, x)
    return sums / torch.bincount(y, minlength=classes).clamp(min=1)[:, None]


def _second(x: Tensor) -> Tensor:
    """Mean of the outer products of `[n, d]`, float64 `[d, d]`."""
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for part in x.split(CHUNK):
        total += part.double().T @ part.double()
    return total / len(x)


# -------------------------------------------------------------------------------------------------- symmetric noise


def packed(matrices: Tensor) -> Tensor:
    """Symmetric `[..., d, d]` as vectors `[..., d (d + 1) / 2]` of the same l2 norm: what is not on the diagonal times sqrt(2).

    Noise of one deviation on all of a vector's numbers is then, on the matrix, smaller by sqrt(2) off the diagonal.
    """
    row, column = torch.triu_indices(matrices.shape[-1], matrices.shape[-1])
    return matrices[..., row, column] * torch.where(row == column, 1.0, math.sqrt(2)).to(matrices)


def unpacked(vectors: Tensor) -> Tensor:
    """The inverse of `packed`: symmetric matrices `[..., d, d]` from vectors `[..., d (d + 1) / 2]`."""
    # the whole number d with d (d + 1) / 2 numbers
    size = (math.isqrt(8 * vectors.shape[-1] + 1) - 1) // 2
    row, column = torch.triu_indices(size, size)
    values = vectors / torch.where(row == column, 1.0, math.sqrt(2)).to(vectors)
    matrices = vectors.new_zeros(*vectors.shape[:-1], size, size)
    matrices[..., row, column] = values
    matrices[..., column, row] = values
    return matrices


# ------------------------------------------------------------------------------------------------------- estimates


def centres(counts: Tensor, sums: Tensor, noise: float, reference: Reference) -> Tensor:
    """The mean of each cell `[classes, k, d]`, minus the public mean, from noisy counts and sums with `noise` on each number."""
    classes, _, _ = sums.shape
    values, vectors = torch.linalg.eigh(reference.covariance)
    values = values.clamp(min=FLAT * float(values.mean()))
    number = counts.double().clamp(min=1)[..., None]
    together = counts.double().sum(0).clamp(min=1)[:, None]
    shared = reference.centroids + _signal(
        sums.sum(0) / together - reference.centroids, noise * math.sqrt(classes) / together, values, vectors
    )
    return shared + _signal(sums / number - shared, noise / number, values, vectors)


def _signal(deviations: Tensor, noise: Tensor, values: Tensor, vectors: Tensor, most: float = math.inf) -> Tensor:
    """The signal in deviations `[..., d]` with `noise` `[..., 1]` on each number, if it has the spectrum of the variances `values` along
    `vectors`, and at most so many times of them."""
    energy = (deviations.square().sum(-1, keepdim=True) - deviations.shape[-1] * noise.square()).clamp(min=0)
    signal = (energy / values.sum()).clamp(max=most) * values
    return (deviations @ vectors) * (signal / (signal + noise.square()).clamp(min=math.ulp(0.0))) @ vectors.T


def unknown(counts: Tensor, noise: float, reference: Reference) -> Tensor:
    """`[classes]`, the approximate second moment per number and record that the centres' noise adds."""
    number = counts.double().clamp(min=1)
    each = (noise / number).square().clamp(max=float(reference.covariance.trace() / len(reference.mean)))
    return (each * number).sum(1) / number.sum(1)


def covariances(moments: Moments, reference: Reference) -> tuple[Tensor, Tensor]:
    """The covariance of each class around its centres `[classes, d, d]`, and the share of it that is its own `[classes]`."""
    classes = len(moments.counts)
    number = moments.counts.double().sum(1).clamp(min=1)
    seconds, together = unpacked(moments.seconds), float(number.sum())
    extra = unknown(moments.counts, moments.mean_noise, reference)
    diagonal = torch.eye(seconds.shape[-1], dtype=seconds.dtype)
    vectors = torch.linalg.eigh(reference.inner).eigenvectors

    def estimate(seen: Tensor, prior: Tensor, noise: float, records: float, unsure: float) -> tuple[Tensor, float]:
        level = levelled(prior, seen, vectors, noise=noise, records=records, unsure=unsure)
        if reference.shape and reference.shape[0] > 1 and reference.shape[1:] != (1, 1):
            level = coloured(level, seen, reference.shape, noise=noise, records=records)
        return shrunk(seen, level, noise=noise, records=records)

    shared = seconds.sum(0) / together - float((extra * number).sum() / together) * diagonal
    everyone, _ = estimate(
        shared, reference.inner, moments.second_noise * math.sqrt(classes) / together, together, UNSURE
    )
    least = FEWEST * max(1.0, moments.count_noise * math.sqrt(moments.counts.shape[1]))
    each = [
        (everyone, 0.0)
        if float(count) < least
        else estimate(
            second / count - more * diagonal, everyone, float(moments.second_noise / count), float(count), ALIKE
        )
        for second, count, more in zip(seconds, number, extra, strict=True)
    ]
    return torch.stack([one for one, _ in each]), torch.tensor([own for _, own in each])


def fitted(moments: Moments, reference: Reference) -> ClassMaps:
    """The maps computed from noisy moments."""
    own_covariances, own = covariances(moments, reference)
    middle = centres(moments.counts, moments.sums, moments.mean_noise, reference)
    counts = moments.counts.double()
    if len(moments.rounds):
        away, counts = refined(moments.rounds[-1], moments, own_covariances)
        middle = middle + away
        own_covariances = unexplained(own_covariances, away, _shares(counts))
    there, back = zip(*(transport(one, reference.covariance) for one in own_covariances), strict=True)
    return ClassMaps(reference, middle, torch.stack(there), torch.stack(back), _shares(counts), own)


def _shares(counts: Tensor) -> Tensor:
    """Noisy counts `[classes, k]` as shares; even ones where a class has none."""
    counts = counts.clamp(min=0)
    weights = torch.where(counts.sum(1, keepdim=True) > 0, counts, torch.ones_like(counts))
    return weights / weights.sum(1, keepdim=True)


# ------------------------------------------------------------------------------------------------------- own cells


def reaches(radius: float) -> Tensor:
    """The distances of the histogram `[BINS]`, from R downwards."""
    return radius / FINENESS ** torch.arange(BINS, dtype=torch.float64)


def bound_of(distances: Tensor, noise: float, reference: Reference, within_it: float) -> float:
    """The least distance of a noisy histogram `[BINS]` that holds so large a share of the records; r of the reference where it says little."""
    total = float(distances.sum())
    if total < CLEAR * noise * math.sqrt(BINS):
        return reference.residual
    holding = distances.double().flip(0).cumsum(0).flip(0)  # all that lie nearer than each
    return float(reaches(reference.radius)[torch.nonzero(holding >= within_it * total).max()])


def starting(spreads: Tensor, cells: int) -> Tensor:
    """Where k-means begins: centres `[classes, cells, d]`, minus the class's mean, of draws with the covariances `[classes, d, d]`."""
    from scipy.cluster.vq import kmeans2

    generator, centres = torch.Generator().manual_seed(0), []
    for spread in spreads:
        size = DRAWS * (cells + EXTRA_CELLS), len(spread)
        drawn = torch.randn(size, generator=generator, dtype=torch.float64) @ power(spread, 0.5)
        centres.append(torch.from_numpy(kmeans2(drawn.numpy(), cells, minit="++", seed=0)[0]))
    return torch.stack(centres)


def weighed(residuals: Tensor, residual: float) -> Tensor:
    """What records with these residuals `[n, d]`, of norm r at most, add to their cell in a round of k-means: `[n, d + 1]`, of norm r at most."""
    count = residuals.new_full((len(residuals), 1), math.sqrt(COUNT_SHARE) * residual)
    return torch.cat([math.sqrt(1 - COUNT_SHARE) * residuals, count], 1)


def refined(noisy: Tensor, moments: Moments, spreads: Tensor) -> tuple[Tensor, Tensor]:
    """Centres `[classes, cells, d]`, minus the class's mean, and counts `[classes, cells]` from the noisy sums of a round
    `[classes, cells, d + 1]`. A centre's deviation shrinks towards the class's mean as far as it is noise, direction by direction of the
    class's covariance of `spreads` `[classes, d, d]`, and is taken to vary no more than records do."""
    count_scale = math.sqrt(COUNT_SHARE) * moments.residual
    counts, sums = noisy[..., -1] / count_scale, noisy[..., :-1] / math.sqrt(1 - COUNT_SHARE)
    number = counts.clamp(min=max(1.0, moments.round_noise / count_scale))[..., None]
    noise = moments.round_noise / math.sqrt(1 - COUNT_SHARE) / number
    moved = []
    for label, spread in enumerate(spreads):
        values, vectors = torch.linalg.eigh(spread)
        moved.append(_signal(sums[label] / number[label], noise[label], values.clamp(min=0), vectors, most=1.0))
    return torch.stack(moved), counts


def unexplained(spreads: Tensor, away: Tensor, shares: Tensor) -> Tensor:
    """The covariances `[classes, d, d]` less what centres `away` `[classes, cells, d]` with these `shares` explain of them; along no direction less
    than `NARROWEST` of it is left."""
    left = []
    for spread, centres, share in zip(spreads, away, shares, strict=True):
        root, inverse = power(spread, 0.5), power(spread, -0.5)
        explained = inverse @ (centres.mT * share) @ centres @ inverse
        values, vectors = torch.linalg.eigh((explained + explained.mT) / 2)
        left.append(root @ (vectors * (1 - values).clamp(min=NARROWEST)) @ vectors.mT @ root)
    return torch.stack(left)
