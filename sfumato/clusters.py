"""Clusters of public images that look alike: private records vote for them, and the public denoiser learns from images of the winners alone.

A drawn source holds few images like a given private set, and any number may be drawn of it. So the public images are parted by k-means on their looks (`looks`,
`centroids_of`); behind the door each private record votes for the cluster that it is nearest to (`ballot`), and the histogram leaves with noise
(`sfumato.privacy.mechanisms.noisy_votes`). All else is post-processing of it: the clusters that stand out of the noise win (`winners`), and public images are taken
of each in the proportion of its votes (`quotas`, `taken`), drawn anew as long as there are too few. They get new classes, as many whoever wins (`of_kinds`).

Not covered: what no public image looks like. Votes choose among public images, and make none.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.held_out import positions
from sfumato.images import ImageSet, to_unit
from sfumato.retrieval.knowledge_base import searching
from sfumato.selection import Ballot, withheld_first

CELLS = 7
"""Cells along each side of an image whose colour and contrast are its looks."""
CONTRAST = 2.0
"""Weight of a cell's contrast beside its colours: at 0 smooth images are taken for rough ones."""
ROUNDS = 20
"""Rounds of k-means."""
RECORDS_PER_NOISE = 1.5
"""Records per cluster, in units of the noise on a vote, where their number follows the records: fewer drown in it, more blur the looks."""
IMAGES_IN_CLUSTER = 10
"""Public images per cluster, at least, where their number follows the records."""
FEWEST, MOST = 8, 2000
"""Limits of that number."""
CHUNK = 4096
"""Images looked at together."""
LEAST = 1000
"""Images that are chosen at least, where there are so many: of fewer a network learns each by heart."""
MOST_KINDS = 8
"""Classes that the chosen images get. Few: what is drawn without a class follows from their mean."""


def clusters_for(records: int, noise: float, images: int) -> int:
    """How many clusters of so many public images the records can tell apart at such a noise on each vote; 0 where these are too few."""
    count = min(MOST, images // IMAGES_IN_CLUSTER, round(records / (RECORDS_PER_NOISE * noise)))
    return count if count >= FEWEST else 0


def kinds_of(clusters: int) -> int:
    """The number of classes of what is chosen among so many clusters, known before the votes."""
    return min(clusters, MOST_KINDS)


def looks(images: Tensor) -> Tensor:
    """Colours and contrasts of the cells of images `[b, c, h, w]` in [-1, 1]: `[b, (c + 1) * CELLS**2]`."""
    colours, grey = F.adaptive_avg_pool2d(images, CELLS), images.mean(1, keepdim=True)
    square = F.adaptive_avg_pool2d(grey.square(), CELLS) - F.adaptive_avg_pool2d(grey, CELLS).square()
    return torch.cat([colours, CONTRAST * square.clamp(min=0).sqrt()], 1).flatten(1)


def looks_of(images: ImageSet) -> Tensor:
    """The looks `[n, d]` of a set."""
    parts = [looks(to_unit(images.pixels[first : first + CHUNK])) for first in range(0, len(images), CHUNK)]
    return torch.cat(parts)


def centroids_of(points: Tensor, count: int, seed: int) -> Tensor:
    """The centroids `[count, d]` of k-means on public looks `[n, d]`, by FAISS."""
    if count > len(points):
        raise ValueError(f"{len(points)} public images do not make {count} clusters")
    means = searching().Kmeans(
        points.shape[1], count, niter=ROUNDS, seed=seed, min_points_per_centroid=1, max_points_per_centroid=len(points)
    )
    means.train(np.ascontiguousarray(points.float().numpy()))
    return torch.from_numpy(means.centroids)


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """The cluster of each look `[n, d]`, int64 `[n]`."""
    return torch.cat([torch.cdist(part, centroids).argmin(1) for part in points.split(CHUNK)])


def ballot(centroids: Tensor) -> Ballot:
    """From images `[b, c, h, w]` in [-1, 1] and their classes `[b]`, which are not looked at, to the nearest cluster of each, int64 `[b]`.

    Distances are sums of squares, slower than those by a matrix product, whose rounding would depend on who stands beside a record.
    """

    def vote(x: Tensor, y: Tensor) -> Tensor:
        return torch.cdist(looks(x), centroids.to(x.device), compute_mode="donot_use_mm_for_euclid_dist").argmin(1)

    return vote


def winners(votes: Tensor, noise: float, threshold: float) -> Tensor:
    """The votes `[clusters]` of those clusters that have more than `threshold` deviations of the noise; 0 elsewhere."""
    return torch.where(votes > threshold * noise, votes, 0)


def quotas(votes: Tensor, images: int) -> Tensor:
    """The number of images that each cluster may have of so many, in the proportion of votes of which one at least is above 0: int64 `[clusters]`."""
    return (votes.double() / votes.sum() * images).round().long()


def taken(clusters: Tensor, open_places: Tensor) -> Tensor:
    """Positions, in ascending order, of the images with these `clusters` `[n]` for which their cluster has open places: the first ones of each."""
    order = clusters.argsort(stable=True)
    sizes = clusters.bincount(minlength=len(open_places))
    rank = torch.arange(len(clusters)) - (sizes.cumsum(0) - sizes)[clusters[order]]
    return order[rank < open_places[clusters[order]]].sort().values


def gathered(public: ImageSet, further: Iterable[ImageSet], centroids: Tensor, won: Tensor, seed: int) -> ImageSet:
    """As many images as `public` has, or fewer, of the clusters around `centroids` `[clusters, d]` in the proportion of what they `won`, `[clusters]`, 0
    or more: of its own, then of `further` sets, which are asked for until there are enough. Below `LEAST` others of its own stand beside them;
    where nothing was won, all of its own.

    They are ordered so that of those which `held_out(images, seed)` withholds as many as possible were withheld before too, or not there.
    """
    learnt, withheld = (part.numpy() for part in positions(len(public), seed))
    if not won.any():
        return public.subset(withheld_first(np.concatenate([withheld, learnt]), seed))
    places = quotas(won, len(public))

    def chosen(images: ImageSet) -> np.ndarray:
        clusters = nearest(looks_of(images), centroids)
        some = taken(clusters, places)
        places.sub_(clusters[some].bincount(minlength=len(places)))
        return some.numpy()

    own, unseen = (part[chosen(public.subset(part))] for part in (learnt, withheld))
    fresh, more = [public.subset(unseen)], iter(further)
    while places.any() and (images := next(more, None)):
        fresh.append(images.subset(chosen(images)))
    lacking = max(0, LEAST - len(own) - sum(map(len, fresh)))
    others = np.setdiff1d(np.arange(len(public)), np.concatenate([own, unseen]))
    beside = np.random.default_rng(seed).permutation(others)[:lacking]
    parts = [*fresh, public.subset(own), public.subset(beside)]
    pixels, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("pixels", "labels"))
    return ImageSet(pixels, labels, public.classes).subset(withheld_first(np.arange(len(labels)), seed))


def of_kinds(images: ImageSet, count: int) -> ImageSet:
    """The images with so many new classes of equal size, up to one, in place of their own, in whose order they are cut: none is without images,
    and how many there are tells nothing."""
    order = images.labels.argsort(kind="stable")
    labels = np.empty_like(images.labels)
    labels[order] = np.arange(len(images)) * count // len(images)
    return ImageSet(images.pixels, labels, tuple(f"kind {number + 1}" for number in range(count)))
