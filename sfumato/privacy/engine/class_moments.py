"""The query behind class moments: counts, sums, distances, second moments and k-means, each bounded and noised.

Apart from the door and the ledger (`sfumato.privacy.mechanisms.noisy_moments` calls it and states its price), so that an audit can run on
made-up records the very code that a run pays for.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfumato import alignment
from sfumato.alignment import Moments, Reference
from sfumato.config import Alignment
from sfumato.images import ImageSet
from sfumato.latents import Codec, latents_of, within
from sfumato.privacy.accounting.events import DiscreteHistogram, Gaussian, MomentEvents
from sfumato.privacy.noise import Source, noised, reach
from sfumato.privacy.units import speakers
from sfumato.progress import Progress, silent


@dataclass(frozen=True)
class Records:
    """The private records as the query sees them, and who owns them."""

    away: Tensor
    """float32 `[n, d]`, minus the public mean, of norm R at most; finite."""
    y: Tensor
    """Classes, int64 `[n]`."""
    speaking: Tensor
    """One record of each unit, int64 `[u]`."""
    owner: Tensor
    """The unit of each record, int64 `[n]`."""

    def weights(self, place: Tensor) -> Tensor:
        """What each record weighs, float64 `[n]`: of a unit those that lie in the same `place` `[n]` as the one that speaks share 1."""
        there = place == place[self.speaking][self.owner]
        return there.double() / torch.bincount(self.owner[there], minlength=len(self.speaking))[self.owner]

    def residuals(self, part: Tensor, centres: Tensor, most: float) -> Tensor:
        """Records `part` minus their `centres` `[len(part), d]`, with a norm of `most` at most; float64."""
        return within(self.away[part].double() - centres, most)


def moments_of(
    images: ImageSet,
    events: MomentEvents,
    reference: Reference,
    settings: Alignment,
    *,
    classes: int,
    codec: Codec,
    device: torch.device,
    source: Source,
    progress: Progress = silent,
) -> Moments:
    """What `noisy_moments` lets out of `images`.

    Many parameters: what is read, by which mechanism, and the randomness that it draws from.
    """
    y, numbers = torch.as_tensor(images.labels), len(reference.mean)
    latents = latents_of(codec, images.pixels, device).flatten(1).cpu()
    away = (latents - reference.mean.to(latents)).nan_to_num(0.0, 0.0, 0.0)
    cell = reference.cells(away)
    away = within(away, reference.radius)
    records = Records(away, y, *speakers(images, source))

    shape = (classes, len(reference.centroids))
    place = y * shape[1] + cell
    counts = torch.bincount(place[records.speaking], minlength=shape[0] * shape[1])
    counts = counts + source.discrete_gaussian(counts.shape, events.counts.noise_multiplier)
    weight = records.weights(place)
    sums = torch.zeros(shape[0] * shape[1], numbers, dtype=torch.float64)
    for part in torch.arange(len(away)).split(alignment.CHUNK):
        sums.index_add_(0, place[part], weight[part, None] * away[part].double())
    noise, radius = events.means.noise_multiplier, reference.radius
    (sums,) = noised([sums], noise_multiplier=noise, norm=radius, numbers=sums.numel(), source=source)
    mean_noise = noise * reach(radius, sums.numel())
    centres = alignment.centres(counts.view(shape), sums.view(*shape, -1), mean_noise, reference)

    distances, residual = alignment.EMPTY, reference.residual
    if events.distances:
        distances = distances_of(records, centres[y, cell], events.distances, radius, source)
        residual = alignment.bound_of(distances, events.distances.noise_multiplier, reference, settings.inside)
    largest, seconds = residual**2, []
    noise = events.covariances.noise_multiplier
    size = classes * numbers * (numbers + 1) // 2
    for label in range(classes):
        total = torch.zeros(numbers, numbers, dtype=torch.float64)
        for part in torch.nonzero(y == label)[:, 0].split(alignment.CHUNK):
            left = records.residuals(part, centres[label, cell[part]], residual)
            total += (weight[part, None] * left).T @ left
        packed = [alignment.packed(total)]
        seconds += noised(packed, noise_multiplier=noise, norm=largest, numbers=size, source=source)
        progress(label + 1, classes)
    noises = events.counts.noise_multiplier, mean_noise, noise * reach(largest, size)
    moments = Moments(counts.view(shape), sums.view(*shape, -1), torch.stack(seconds), *noises, residual, distances)
    return k_means(records, moments, events.rounds, reference, settings.cells, source) if events.rounds else moments


def distances_of(records: Records, centres: Tensor, event: DiscreteHistogram, radius: float, source: Source) -> Tensor:
    """How many units lie nearer to their centres `[n, d]` than each of the `reaches` and not than the next, by the record that speaks; int64 `[BINS]`."""
    parts = records.speaking.split(alignment.CHUNK)
    apart = torch.cat([(records.away[part].double() - centres[part]).norm(dim=1) for part in parts])
    nearer = (apart[:, None] <= alignment.reaches(radius)).sum(1)
    histogram = torch.bincount((nearer - 1).clamp(min=0), minlength=alignment.BINS)
    return histogram + source.discrete_gaussian(histogram.shape, event.noise_multiplier)


def k_means(
    records: Records, moments: Moments, event: Gaussian, reference: Reference, cells: int, source: Source
) -> Moments:
    """The moments with the rounds of k-means in each class: a record adds to the nearest cell of its class, in each round."""
    spreads, _ = alignment.covariances(moments, reference)
    middle = alignment.centres(moments.counts, moments.sums, moments.mean_noise, reference)[:, 0]
    classes, numbers = middle.shape
    size, residual = classes * cells * (numbers + 1), moments.residual
    centres, rounds = alignment.starting(spreads, cells), []
    round_noise = event.noise_multiplier * reach(residual, size)
    for _ in range(event.count):
        cell = alignment.nearest(records.away, records.y, middle[:, None] + centres)
        place = records.y * cells + cell
        weight = records.weights(place)
        sums = torch.zeros(classes * cells, numbers + 1, dtype=torch.float64)
        for part in torch.arange(len(place)).split(alignment.CHUNK):
            left = records.residuals(part, middle[records.y[part]], residual)
            # What is weighed has norm r by its own formula: this bounds what rounding adds to it, and what a change of that formula might.
            added = within(alignment.weighed(left, residual), residual)
            sums.index_add_(0, place[part], weight[part, None] * added)
        (noisy,) = noised([sums], noise_multiplier=event.noise_multiplier, norm=residual, numbers=size, source=source)
        rounds.append(noisy.view(classes, cells, -1))
        moments = replace(moments, rounds=torch.stack(rounds), round_noise=round_noise)
        centres, _ = alignment.refined(rounds[-1], moments, spreads)
    return moments
