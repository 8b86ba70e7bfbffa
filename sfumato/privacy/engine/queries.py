"""The priced queries behind the open door: class counts, votes, central images, noised copies, mean embeddings, a linear head. Moments of classes
have a file of their own (`class_moments`).

This file bounds and noises each query, apart from the door and the ledger (`sfumato.privacy.mechanisms` calls the queries and
states their prices), so that an audit can run on made-up records the very code that a run pays for.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato import alignment
from sfumato.alignment import ClassMaps, Reference
from sfumato.config import Judge
from sfumato.images import ImageSet, shape_of, to_unit
from sfumato.judge import unit
from sfumato.latents import Codec, latents_of, within
from sfumato.privacy.accounting.events import DiscreteHistogram, Gaussian, NoisedRecords, SubsampledGaussian
from sfumato.privacy.engine.linear_head import train_head
from sfumato.privacy.noise import Source, noised
from sfumato.privacy.units import one_by_one, one_of_each, owners, units_of

CHUNK = 1024
"""Records looked at together."""
Note = Callable[[Tensor, Tensor], None]
"""Called with a head `[classes, d]` and the noisy sum of gradients at it; both are paid for."""


def counted(images: ImageSet, event: DiscreteHistogram, *, classes: int, source: Source) -> Tensor:
    """The number of records, or groups, of each class with noise, int64 `[classes]`."""
    voters = one_of_each(images, source)
    return histogram(torch.as_tensor(voters.labels), event, cells=classes, source=source)


def histogram(places: Tensor, event: DiscreteHistogram, *, cells: int, source: Source) -> Tensor:
    """How many of `places` `[n]`, one for each record or group, are each of `cells`, with noise, int64 `[cells]`."""
    counts = torch.bincount(places.cpu(), minlength=cells)
    return counts + source.discrete_gaussian(counts.shape, event.noise_multiplier)


def voted(
    images: ImageSet,
    event: DiscreteHistogram,
    ballot: Callable[[Tensor, Tensor], Tensor],
    *,
    classes: int,
    options: int,
    device: torch.device,
    source: Source,
) -> Tensor:
    """How many records, or groups, of each class chose each option, with noise, int64 `[classes, options]`; of all together with `classes` 1.

    Many parameters: what is read, by which mechanism, and the randomness that it draws from.
    """
    voters = one_of_each(images, source)
    x, y = to_unit(voters.pixels), torch.as_tensor(voters.labels)
    parts = zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    chosen = torch.cat([ballot(part.to(device), of.to(device)).cpu() for part, of in parts])
    rows = y if classes > 1 else torch.zeros_like(y)
    return histogram(rows * options + chosen, event, cells=classes * options, source=source).view(classes, options)


def learnt_head(
    images: ImageSet,
    event: Gaussian,
    read: Callable[[Tensor], Tensor],
    settings: Judge,
    *,
    classes: int,
    records: int,
    device: torch.device,
    source: Source,
    note: Note | None = None,
) -> Tensor:
    """A linear head `[classes, d + 1]`, float64, by as many noisy full-batch gradients as the event pays for; `note` receives each.

    Many parameters: what is read, by which mechanism, and the randomness that it draws from.
    """
    parts = to_unit(images.pixels).split(CHUNK)
    x = torch.cat([unit(read(part.to(device))).cpu() for part in parts])
    numbers = classes * x.shape[1]

    def with_noise(head: Tensor, total: Tensor) -> Tensor:
        (noisy,) = noised([total], noise_multiplier=event.noise_multiplier, norm=1.0, numbers=numbers, source=source)
        if note:
            note(head, noisy)
        return noisy

    return train_head(
        settings,
        x,
        torch.as_tensor(images.labels),
        units_of(images, each=1),
        classes=classes,
        steps=event.count,
        expected=max(1, records),
        noised=with_noise,
    )


def central_sums(
    images: ImageSet,
    event: Gaussian | SubsampledGaussian,
    reference: Reference,
    *,
    classes: int,
    codec: Codec,
    device: torch.device,
    source: Source,
) -> Tensor:
    """Sums of each class and cell as `codec` has the records, in deviations from the public mean, with noise: float64 `[rounds, classes, cells, d]`.

    A `Gaussian` takes everybody, once; a `SubsampledGaussian` another Poisson sample of the units in each of its steps.

    Many parameters: what is read, by which mechanism, and the randomness that it draws from.
    """
    y, owner = torch.as_tensor(images.labels), owners(images)
    cells, numbers = len(reference.centroids), len(reference.mean)
    latents = latents_of(codec, images.pixels, device).flatten(1).cpu()
    away = (latents - reference.mean.to(latents)).nan_to_num(0.0, 0.0, 0.0)
    place = y * cells + reference.cells(away)
    bounded = within(away, reference.radius)
    # The members of a unit share a weight of 1, whatever their classes and cells, so that it adds a norm of R at most.
    members = torch.bincount(owner)
    weight = 1 / members[owner].double()

    rounds, rate = (event.steps, event.sample_rate) if isinstance(event, SubsampledGaussian) else (1, 1.0)
    released = []
    for _ in range(rounds):
        taken = source.coins((len(members),), rate)[owner]
        total = torch.zeros(classes * cells, numbers, dtype=torch.float64)
        for part in taken.nonzero()[:, 0].split(alignment.CHUNK):
            total.index_add_(0, place[part], weight[part, None] * bounded[part].double())
        noise = event.noise_multiplier
        released += noised([total], noise_multiplier=noise, norm=reference.radius, numbers=total.numel(), source=source)
    return torch.stack(released).view(rounds, classes, cells, numbers)


def noised_copies(
    images: ImageSet,
    event: NoisedRecords,
    *,
    released: int,
    codec: Codec,
    maps: ClassMaps | None,
    device: torch.device,
    source: Source,
) -> Tensor:
    """Every record as `codec` and `maps` have it with noise, `[released, ...]`, in random order: grey images fill up, and of more a random choice is made.

    Many parameters: what is read, by which mechanism, and the randomness that it draws from.
    """
    x = to_unit(one_by_one(images).pixels).clamp(-1, 1)
    blank = x.new_zeros(max(0, released - len(x)), *x.shape[1:])
    order = source.order(max(len(x), released))[:released]
    labels = torch.cat([torch.as_tensor(images.labels), torch.zeros(len(blank), dtype=torch.long)])[order]
    x = torch.cat([x, blank])[order]
    largest_norm = codec.largest_norm(shape_of(x))
    x = finite(alignment.aligned(codec.encode(x.to(device)), labels.to(device), largest_norm, maps)).cpu()
    numbers, noise = max(1, x[:1].numel()), event.noise_multiplier
    (copies,) = noised([x], noise_multiplier=noise, norm=largest_norm, numbers=numbers, source=source)
    return copies


def finite(x: Tensor) -> Tensor:
    """Records `[n, ...]` with zeros in place of one that is not finite: no norm would bound it, and noise would not hide it."""
    sound = x.flatten(1).isfinite().all(1)
    return x.where(sound.view(-1, *[1] * (x.dim() - 1)), 0.0)


def embedded(
    images: ImageSet,
    event: Gaussian,
    embed: Callable[[Tensor, Tensor], Tensor],
    *,
    classes: int,
    count_share: float,
    device: torch.device,
    source: Source,
) -> Tensor:
    """The sum over each class of the records' features, which `embed` gives, and of a constant, with noise: float64 `[classes, d + 1]`.

    Many parameters: what is read, by which mechanism, and the randomness that it draws from.
    """
    y, owner, x = torch.as_tensor(images.labels), owners(images), to_unit(images.pixels)
    # The members of a unit share a weight of 1, whatever their classes, so that it adds a norm of 1 at most.
    weight = 1 / torch.bincount(owner)[owner].double()
    sums = []
    for part in torch.arange(len(y)).split(CHUNK):
        features = embed(x[part].to(device), y[part].to(device)).cpu().double().nan_to_num(0.0, 0.0, 0.0)
        constant = features.new_full((len(part), 1), math.sqrt(count_share))
        record = torch.cat([math.sqrt(1 - count_share) * within(features, 1.0), constant], 1)
        total = record.new_zeros(classes, record.shape[1])
        sums.append(total.index_add_(0, y[part], weight[part, None] * within(record, 1.0)))
    total = torch.stack(sums).sum(0)
    noise = event.noise_multiplier
    (total,) = noised([total], noise_multiplier=noise, norm=1.0, numbers=total.numel(), source=source)
    return total
