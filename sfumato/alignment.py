"""Moment alignment: an affine map per class that takes private images, or their latents, to where the public ones lie.

What a mechanism let out with noise (`sfumato.privacy.mechanisms.noisy_moments`: counts, sums and second moments of each class)
becomes a mean and a covariance of each class that know their noise; all of it is post-processing. A class's map is the
optimal transport between two Gaussians (Dowson and Landau 1982): the class's, and that of the public images. Methods train
and draw where the maps lead, and what they draw is taken back.

Estimates shrink twice: what all classes have in common towards the public images, each class towards what they have in
common. What is shrunk towards is first brought to the level at which it is seen, along coarse and fine directions each. In its
eigenvectors, each number keeps the share of its deviation that is signal and not noise; how much signal there is follows from
the deviations themselves (empirical Bayes). A class with few records, or none, is thus left with the shared covariance, which
the facts say.

With `clusters`, each class consists of cells, one for each centroid of the public images, with a count and a mean of its own.

Not covered: classes whose shape no affine map of the public images has; more than `MOST_NUMBERS` numbers.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.config import Alignment
from sfumato.diffusion.objective import Draws, normal
from sfumato.errors import BadInput
from sfumato.images import ImageSet, shape_of, to_unit
from sfumato.latents import Codec, within

MOST_NUMBERS, MOST_ENTRIES = 1024, 2**28
"""Numbers of an image or latent, and of all second moments together, that can be aligned."""
CHUNK = 4096
"""Records looked at together."""
CLUSTERED = 20_000
"""Public images that the centroids are found from, at most."""
FLAT = 1e-3
"""Least variance along a direction, as a share of the mean one."""
NARROWEST, WIDEST = 5e-3, 50.0
"""Between which a class's variance along a direction lies, as a multiple of what it is shrunk towards."""
OWN = 0.1
"""A class has a covariance of its own where it keeps at least so much of what sets it apart."""
FEWEST = 2.0
"""A class with fewer records than that, or than so many times the noise on their number, counts as empty."""
FIT_ROUNDS = 20
"""Of the fixed point that says how much signal there is."""
UNSURE, ALIKE = 0.5, 0.25
"""How far, relatively, a total variance is expected to lie from what it is shrunk towards; and that of a band of directions, of one class
and of all."""


@dataclass(frozen=True)
class Reference:
    """Where the public images lie, as the denoisers see them; float64, d numbers each."""

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

    def cells(self, deviations: Tensor) -> Tensor:
        """The nearest centroid of each of `[n, d]`, int64 `[n]`."""
        if len(self.centroids) == 1:
            return torch.zeros(len(deviations), dtype=torch.long, device=deviations.device)
        centroids, exact = self.centroids.to(deviations.device), "donot_use_mm_for_euclid_dist"
        parts = deviations.split(CHUNK)  # pair by pair, so that where a record lies does not depend on those beside it
        return torch.cat([torch.cdist(part.double(), centroids, compute_mode=exact).argmin(1) for part in parts])


@dataclass(frozen=True)
class Moments:
    """What the mechanism lets out, with its noise; in deviations from the public mean."""

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


@dataclass(frozen=True)
class ClassMaps:
    """The affine maps; on the device of what they are applied to."""

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
    """`[classes]`, from 0 to 1: how much of what sets a class's covariance apart is its own."""

    def to_public(self, z: Tensor, y: Tensor) -> Tensor:
        """Records z `[b, ...]` of the classes y `[b]` where the public ones lie, each by itself."""
        deviations = z.flatten(1) - self.reference.mean.to(z)
        centres = self.centres.to(z)[y, self.reference.cells(deviations)]
        return (self._turned(deviations - centres, y, self.there) + self.reference.mean.to(z)).view_as(z)

    def to_private(self, x: Tensor, y: Tensor, generator: Draws | None) -> Tensor:
        """What was drawn there for the classes y `[b]`, taken back; where classes have cells, to one by its weight, or to the likeliest
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
        found = torch.empty_like(deviations)
        for label in y.unique().tolist():
            of = y == label
            found[of] = deviations[of] @ maps[label].to(deviations)
        return found

    @property
    def shared(self) -> list[int]:
        """The classes that have too few records, or too much noise, for a covariance of their own."""
        return torch.nonzero(self.own < OWN)[:, 0].tolist()


def encoded(images: ImageSet, codec: Codec, maps: ClassMaps | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images as the denoisers see them `[n, c, h, w]`, aligned where there are maps, and labels `[n]`: each record by itself.

    Their norm is `codec.largest_norm` at most.
    """
    x, y = codec.encode(to_unit(images.pixels).to(device)), torch.as_tensor(images.labels).to(device)
    return (aligned(x, y, codec.largest_norm(shape_of(to_unit(images.pixels[:1]))), maps), y)


def aligned(z: Tensor, y: Tensor, largest_norm: float, maps: ClassMaps | None) -> Tensor:
    """Records z `[b, ...]` of the classes y `[b]` where the public ones lie, with a norm of at most `largest_norm`."""
    return z if maps is None else within(maps.to_public(z, y), largest_norm)


def refuse_size(shape: tuple[int, int, int], classes: int) -> None:
    """`BadInput` for images or latents of too many numbers to have covariances."""
    numbers = math.prod(shape)
    if numbers > MOST_NUMBERS or classes * numbers**2 > MOST_ENTRIES:
        raise BadInput(
            f"alignment.kind=moments takes second moments of {classes} classes of {numbers} numbers each, more than can be held or "
            f"paid for (at most {MOST_NUMBERS} numbers): denoise smaller latents (latent.kind=kl), or use alignment.kind=none"
        )


# ------------------------------------------------------------------------------------------------------- public side


def measured(z: Tensor, y: Tensor, settings: Alignment, *, seed: int) -> Reference:
    """Where public images or latents z `[n, ...]` with labels y `[n]` lie."""
    from scipy.cluster.vq import kmeans2

    flat, y = z.flatten(1).cpu(), y.cpu()
    mean = flat.double().mean(0)
    away = flat - mean.to(flat)
    centroids = torch.zeros(1, len(mean), dtype=torch.float64)
    if settings.clusters > 1:
        order = torch.randperm(len(away), generator=torch.Generator().manual_seed(seed))[:CLUSTERED]
        found, _ = kmeans2(away[order].double().numpy(), settings.clusters, minit="++", seed=seed)
        centroids = torch.from_numpy(found)
    reference = Reference(mean, _second(away), _second(away), centroids, 0.0, 0.0)
    inner = away - (centroids.to(away)[reference.cells(away)] if settings.clusters > 1 else _class_means(away, y)[y])
    radius = float(away.double().norm(dim=1).quantile(settings.quantile))
    return Reference(mean, reference.covariance, _second(inner), centroids, radius, settings.residual * radius)


def _class_means(x: Tensor, y: Tensor) -> Tensor:
    classes = int(y.max()) + 1
    sums = x.new_zeros(classes, x.shape[1]).index_add_(0, y, x)
    return sums / torch.bincount(y, minlength=classes).clamp(min=1)[:, None]


def _second(x: Tensor) -> Tensor:
    """Mean of the outer products of `[n, d]`, float64 `[d, d]`."""
    found = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for part in x.split(CHUNK):
        found += part.double().T @ part.double()
    return found / len(x)


# -------------------------------------------------------------------------------------------------- symmetric noise


def packed(matrices: Tensor) -> Tensor:
    """Symmetric `[..., d, d]` as vectors `[..., d (d + 1) / 2]` of the same l2 norm: what is not on the diagonal times sqrt(2).

    Noise of one deviation on all of a vector's numbers is then, on the matrix, smaller by sqrt(2) off the diagonal.
    """
    row, column = torch.triu_indices(matrices.shape[-1], matrices.shape[-1])
    return matrices[..., row, column] * torch.where(row == column, 1.0, math.sqrt(2)).to(matrices)


def unpacked(vectors: Tensor) -> Tensor:
    """The symmetric matrices of which `packed` made these vectors."""
    size = (math.isqrt(8 * vectors.shape[-1] + 1) - 1) // 2
    row, column = torch.triu_indices(size, size)
    values = vectors / torch.where(row == column, 1.0, math.sqrt(2)).to(vectors)
    found = vectors.new_zeros(*vectors.shape[:-1], size, size)
    found[..., row, column] = values
    found[..., column, row] = values
    return found


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


def _signal(found: Tensor, noise: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    """What of deviations `[..., d]` with `noise` `[..., 1]` on each number is signal, if that has the spectrum of the public images."""
    energy = (found.square().sum(-1, keepdim=True) - found.shape[-1] * noise.square()).clamp(min=0)
    signal = energy / values.sum() * values
    return (found @ vectors) * (signal / (signal + noise.square())) @ vectors.T


def unknown(counts: Tensor, noise: float, reference: Reference) -> Tensor:
    """`[classes]`, about how much the noise of the centres adds to each number's second moment, a record."""
    number = counts.double().clamp(min=1)
    each = (noise / number).square().clamp(max=float(reference.covariance.trace() / len(reference.mean)))
    return (each * number).sum(1) / number.sum(1)


def covariances(found: Moments, reference: Reference) -> tuple[Tensor, Tensor]:
    """The covariance around its centres of each class `[classes, d, d]`, and how much of it is its own `[classes]`."""
    classes = len(found.counts)
    number = found.counts.double().sum(1).clamp(min=1)
    seconds, together = unpacked(found.seconds), float(number.sum())
    extra = unknown(found.counts, found.mean_noise, reference)
    diagonal = torch.eye(seconds.shape[-1], dtype=seconds.dtype)
    vectors = torch.linalg.eigh(reference.inner).eigenvectors

    def estimate(seen: Tensor, prior: Tensor, noise: float, records: float, unsure: float) -> tuple[Tensor, float]:
        level = levelled(prior, seen, vectors, noise=noise, records=records, unsure=unsure)
        return shrunk(seen, level, noise=noise, records=records)

    shared = seconds.sum(0) / together - float((extra * number).sum() / together) * diagonal
    everyone, _ = estimate(
        shared, reference.inner, found.second_noise * math.sqrt(classes) / together, together, UNSURE
    )
    least = FEWEST * max(1.0, found.count_noise * math.sqrt(found.counts.shape[1]))
    each = [
        (everyone, 0.0)
        if float(count) < least
        else estimate(
            second / count - more * diagonal, everyone, float(found.second_noise / count), float(count), ALIKE
        )
        for second, count, more in zip(seconds, number, extra, strict=True)
    ]
    return torch.stack([one for one, _ in each]), torch.tensor([own for _, own in each])


def shrunk(seen: Tensor, prior: Tensor, *, noise: float, records: float) -> tuple[Tensor, float]:
    """A covariance `[d, d]` from one that was `seen` with `noise` on its diagonal (1 / sqrt(2) of it elsewhere), of so many records, and
    a `prior` one; and the share, 0 to 1, of what sets it apart that is kept.

    In the prior's eigenvectors a number's deviation from the prior has variance kappa p_i p_j, p being the prior's eigenvalues, as if
    the covariance were drawn around it (Wishart), and besides that of the noise and of so few records.
    """
    values, vectors = torch.linalg.eigh(prior)
    values = values.clamp(min=FLAT * float(values.mean()))
    turned = vectors.T @ seen @ vectors
    twice = 1 + torch.eye(len(values), dtype=seen.dtype)
    scale = torch.outer(values, values)
    signal, other = scale * twice, twice * (noise**2 / 2) + scale * twice / records
    apart = turned - torch.diag(values)
    kappa = 1.0
    for _ in range(FIT_ROUNDS):
        weight = signal / (kappa * signal + other).square()
        kappa = max(0.0, float((weight * (apart.square() - other)).sum() / (weight * signal).sum()))
    kept = kappa * signal / (kappa * signal + other)
    root = values.sqrt()
    relative, turn = torch.linalg.eigh(torch.diag(torch.ones_like(values)) + kept * apart / torch.outer(root, root))
    relative = (turn * relative.clamp(NARROWEST, WIDEST)) @ turn.T
    own = float((kept * signal).sum() / signal.sum())
    return vectors @ (root[:, None] * relative * root) @ vectors.T, own


def levelled(prior: Tensor, seen: Tensor, vectors: Tensor, *, noise: float, records: float, unsure: float) -> Tensor:
    """A prior covariance `[d, d]` brought to the level at which one was `seen`: all of it, then band by band of the directions `vectors`
    `[d, d]`, the public images' eigenvectors by rising variance; `unsure` is how far bands are expected to lie apart.

    Images far from the public ones may have as much variance in coarse shapes and a tenth in fine ones: one level for all would fill
    them with the public images' texture. A band holds twice as many directions as the one of more variance above it, so that what no
    direction shows by itself shows in their sum. The directions are public: in the eigenvectors of what was itself made from the noisy
    moments, the noise would be taken for variance.
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
    """By what to multiply variances `[m]` so that their sum is the one `seen`, as far as noise and chance let it be told."""
    total = max(float(values.sum()), math.ulp(0.0))
    doubt = math.sqrt(len(values) * noise**2 + 2 * float(values.square().sum()) / records) / total
    return max(NARROWEST, 1 + (float(seen.sum()) / total - 1) / (1 + (doubt / unsure) ** 2))


def fitted(found: Moments, reference: Reference) -> ClassMaps:
    """The maps that follow from noisy moments."""
    own_covariances, own = covariances(found, reference)
    there, back = zip(*(transport(one, reference.covariance) for one in own_covariances), strict=True)
    counts = found.counts.double().clamp(min=0)
    weights = torch.where(counts.sum(1, keepdim=True) > 0, counts, torch.ones_like(counts))
    return ClassMaps(
        reference,
        centres(found.counts, found.sums, found.mean_noise, reference),
        torch.stack(there),
        torch.stack(back),
        weights / weights.sum(1, keepdim=True),
        own,
    )


def transport(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric matrix `[d, d]` that turns covariance `start` into `end` and moves least, and its inverse.

    T = A^(-1/2) (A^(1/2) B A^(1/2))^(1/2) A^(-1/2); eigenvalues are held above `FLAT` of their mean.
    """
    root, inverse = _power(start, 0.5), _power(start, -0.5)
    middle = root @ _power(end, 1.0) @ root
    return inverse @ _power(middle, 0.5, 0.0) @ inverse, root @ _power(middle, -0.5, 0.0) @ root


def _power(matrix: Tensor, power: float, least: float = FLAT) -> Tensor:
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    values = values.clamp(min=max(least * float(values.mean()), torch.finfo(values.dtype).tiny))
    return (vectors * values**power) @ vectors.T
