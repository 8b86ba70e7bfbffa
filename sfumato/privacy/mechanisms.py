"""The mechanisms on private images, each beside its price.

A mechanism opens the door, uses the records, adds noise from the operating system, and lets only the noisy result out. The
queries themselves are in `sfumato.privacy.engine.queries`, where an audit runs them on made-up records. The price is the event
that stands beside the mechanism, reserved in the ledger before the door opens.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from sfumato.alignment import ClassMaps, Moments, Reference, encoded
from sfumato.config import Alignment, FineTuning, Judge, ParameterGroup, Training
from sfumato.diffusion.objective import Corrupt
from sfumato.errors import Stopped
from sfumato.images import ImageSet
from sfumato.latents import PIXELS, Codec
from sfumato.partition import Partition
from sfumato.privacy.accounting.events import (
    AnyEvent,
    DiscreteHistogram,
    Gaussian,
    MomentEvents,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from sfumato.privacy.door import Access, Payment, Visit, joining, note_look, spending
from sfumato.privacy.engine import queries
from sfumato.privacy.engine.class_moments import moments_of
from sfumato.privacy.engine.diagnostics import Seen
from sfumato.privacy.engine.distributed import Team, help_training
from sfumato.privacy.engine.dp_sgd import poisson_sample, train_privately
from sfumato.privacy.noise import DISCRETE, OF_SAMPLER, ON_GRID, Source, system_source
from sfumato.privacy.units import Units, every_few, one_by_one, units_of
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper, TrainingState
from sfumato.training import train_denoiser

MOST_LOST = 0.05
"""Largest stretch of steps as a share of all, which is the most that a crash makes a run pay twice."""
CPU = torch.device("cpu")
Loss = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]
"""From a model, images `[b, c, h, w]` and labels `[b]` to the loss of each, `[b]`; b may be 0."""
Result = TypeVar("Result", Tensor, nn.Module, ImageSet, Moments)


@dataclass(frozen=True)
class Paid(Generic[Result]):
    """The result of a mechanism, with the hashes of the ledger entries that it stands on, and their labels."""

    result: Result
    entries: Mapping[str, str]
    payment: Payment | None = None
    """The payment to commit once the result is stored."""
    watched: "Watched | None" = None
    averages: Mapping[float, nn.Module] = field(default_factory=dict)
    """Of DP-SGD: further moving averages of the same steps, by their decay."""


@dataclass(frozen=True)
class Watched:
    """Diagnostics of training without noise, with the look that they stand on; INTERNAL."""

    steps: list[Seen]
    entries: Mapping[str, str]


def noisy_votes(
    access: Access,
    event: DiscreteHistogram,
    ballot: Callable[[Tensor, Tensor], Tensor],
    *,
    classes: int,
    options: int,
    device: torch.device,
    source: Source | None = None,
) -> Paid[Tensor]:
    """A histogram `[classes, options]`, int64: each record adds 1 to one cell of its own class, then every cell gets noise.

    With `classes` 1 the classes are not told apart, and a record adds 1 to one cell of the one row.
    Of a group one record votes, drawn at random, so that a group adds 1 to one cell too and all stays whole.

    Price: `DiscreteHistogram(noise_multiplier)`, since one record or group adds 1 to one cell. `ballot` maps images `[b, c, h, w]` and
    their classes `[b]` to options `[b]`, each image by itself.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    with spending(access, [event], insecure=source is not None, arithmetic=DISCRETE) as visit:
        source = source or system_source()
        votes = queries.voted(
            visit.images, event, ballot, classes=classes, options=options, device=device, source=source
        )
        entries = visit.entries
    return Paid(votes, entries, visit.payment)


def noisy_counts(
    access: Access, event: DiscreteHistogram, *, classes: int, source: Source | None = None
) -> Paid[Tensor]:
    """The number of records of each class with noise on each, int64 `[classes]`; it may fall below 0.

    Of a group one record counts, drawn at random, so that these are numbers of groups.

    Price: `DiscreteHistogram(noise_multiplier)`: one record or group adds 1 to one count, and exchanging one takes 1 from one and adds
    it to another at most.
    """
    with spending(access, [event], insecure=source is not None, arithmetic=DISCRETE) as visit:
        noisy = queries.counted(visit.images, event, classes=classes, source=source or system_source())
        entries = visit.entries
    return Paid(noisy, entries, visit.payment)


def noisy_head(
    access: Access,
    event: Gaussian,
    read: Callable[[Tensor], Tensor],
    settings: Judge,
    *,
    classes: int,
    records: int,
    device: torch.device,
    source: Source | None = None,
) -> Paid[Tensor]:
    """A linear head `[classes, d + 1]`, float64, on the features that `read` gives of images, with a constant and scaled to norm 1.

    Price: `Gaussian(noise_multiplier, count)`: the sum of a step holds one gradient of norm 1 at most of each record, or group, whose
    members' mean counts. `read` maps images `[b, c, h, w]` to features `[b, d]`, each image by itself. `records` is the public count of records, or of
    groups where they have some, which sums are divided by.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    with spending(access, [event], insecure=source is not None, arithmetic=ON_GRID) as visit:
        source = source or system_source()
        head = queries.learnt_head(
            visit.images, event, read, settings, classes=classes, records=records, device=device, source=source
        )
        entries = visit.entries
    return Paid(head, entries, visit.payment)


def noisy_moments(
    access: Access,
    events: MomentEvents,
    reference: Reference,
    settings: Alignment,
    *,
    classes: int,
    codec: Codec = PIXELS,
    device: torch.device = CPU,
    source: Source | None = None,
    progress: Progress = silent,
) -> Paid[Moments]:
    """Count, sum and second moment of each class as `codec` has the records, in deviations from the public mean, with noise on each; where
    there are events for them, a histogram of distances that bounds the second moments, and rounds of k-means in each class.

    Price: one of the `events` each, since classes, and the cells that they consist of, have no record in common. A record adds 1 to one
    count, a vector of norm R at most to one sum, and to one second moment, which is taken around what the *noisy* counts and sums say
    the cells' centres are, the outer product of a vector of norm r at most with itself, of norm r^2 at most as it is `packed`.
    R is public, and r is, or follows from the noisy histogram, in which a record adds 1 to one number. In a round a record adds a vector
    of norm r at most, its count included, to the sum of one cell, whose centres follow from noisy sums alone.
    Norms are bounded after the subtractions, and what is not finite counts as zero, so that no record adds
    more whatever the codec makes of it. An exchange moves each by twice that at most.

    A group adds no more than a record: one of its records, drawn at random, says in which cell it counts, and how far out it lies, and the mean of
    those of its records that lie there stands for it, in the sums and in the second moment.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    with spending(access, events.paid, insecure=source is not None, arithmetic=f"{DISCRETE}; {ON_GRID}") as visit:
        moments = moments_of(
            visit.images,
            events,
            reference,
            settings,
            classes=classes,
            codec=codec,
            device=device,
            source=source or system_source(),
            progress=progress,
        )
        entries = visit.entries
    return Paid(moments, entries, visit.payment)


def noisy_sums(
    access: Access,
    event: Gaussian | SubsampledGaussian,
    reference: Reference,
    *,
    classes: int,
    codec: Codec = PIXELS,
    device: torch.device = CPU,
    source: Source | None = None,
) -> Paid[Tensor]:
    """Sums of the records of each class and cell, in deviations from the public mean, with noise: float64 `[rounds, classes, cells, d]`.

    Price: `event`. A record lies in one class and one cell, and adds there a vector of norm R at most, which is public: the norm is bounded
    after the subtraction, and what is not finite counts as zero. Of a group the mean of all its members counts, which adds R at most over all
    classes and cells together. A record that may be in m sums, of m Poisson samples, pays for m. An exchange moves a sum by 2 R at most. No number
    of records is used: who divides the sums does it by a public constant.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    with spending(access, [event], insecure=source is not None, arithmetic=ON_GRID) as visit:
        source = source or system_source()
        sums = queries.central_sums(
            visit.images, event, reference, classes=classes, codec=codec, device=device, source=source
        )
        entries = visit.entries
    return Paid(sums, entries, visit.payment)


def noisy_embedding(
    access: Access,
    event: Gaussian,
    embed: Callable[[Tensor, Tensor], Tensor],
    *,
    classes: int,
    count_share: float,
    device: torch.device = CPU,
    source: Source | None = None,
) -> Paid[Tensor]:
    """Sums of the records' features over each class, and of a constant, which counts them, with noise: float64 `[classes, d + 1]`.

    Price: `event`. A record lies in one class, and adds there a vector of norm 1 at most: its features, bounded to norm 1, what is not finite
    counting as zero, times sqrt(1 - count_share), and sqrt(count_share). Of a group the mean of all its members counts, which adds 1 at most
    over all classes together. An exchange moves the sums by 2 at most. `embed` maps images `[b, c, h, w]` and their classes `[b]` to
    features `[b, d]`, each image by itself.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    with spending(access, [event], insecure=source is not None, arithmetic=ON_GRID) as visit:
        source = source or system_source()
        sums = queries.embedded(
            visit.images, event, embed, classes=classes, count_share=count_share, device=device, source=source
        )
        entries = visit.entries
    return Paid(sums, entries, visit.payment)


def noised_records(
    access: Access,
    event: NoisedRecords,
    *,
    records: int | None = None,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
    device: torch.device = CPU,
    source: Source | None = None,
) -> Paid[Tensor]:
    """Every record as `codec` has it with Gaussian noise, `[records, ...]`, once, in random order and without its label.

    Price: `NoisedRecords(noise_multiplier)`: a record has a norm of at most `codec.largest_norm`, sqrt(d) for an image of
    d values, which, with what rounding to a grid adds to it (`noised`), the noise on each value is a multiple of. The order is random because a source's own order tells of the labels, and because a record
    exchanged for one that sorts elsewhere would move all those between.

    Exactly `records` of them are let out, a public constant (None: as many as there are): where fewer are there, grey images fill up,
    and of more a random choice is made. Otherwise the number would show that a record was exchanged for one which its hash
    holds out.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    with spending(access, [event], insecure=source is not None, arithmetic=ON_GRID) as visit:
        source = source or system_source()
        number = len(visit.images) if records is None else records + (len(access.canaries) if access.canaries else 0)
        copies = queries.noised_copies(
            visit.images, event, released=number, codec=codec, maps=maps, device=device, source=source
        )
        entries = visit.entries
    return Paid(copies, entries, visit.payment)


def unprotected(
    access: Access,
    event: Uncertified,
    model: nn.Module,
    loss: Loss,
    settings: Training,
    *,
    sample_rate: float,
    device: torch.device,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
    fixed: Collection[ParameterGroup] = (),
    source: Source | None = None,
    progress: Progress = silent,
) -> Paid[nn.Module]:
    """`model` without its `fixed` groups trained plainly on the images: no clipping, no noise, the mean of `loss` over Poisson batches.

    Price: none that can be certified (`Uncertified`); the result is INTERNAL.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    with spending(access, [event], insecure=source is not None) as visit:
        source = source or system_source()
        generator = source.generator(device)
        x, y = encoded(one_by_one(visit.images), codec, maps, device)

        def loss_of_step() -> Tensor:
            index = poisson_sample(len(x), sample_rate, source).to(device)
            return loss(model, x[index], y[index], generator).sum() / max(1, len(index))

        trained, _ = train_denoiser(model.to(device), loss_of_step, settings, fixed=fixed, progress=progress)
        entries = visit.entries
    return Paid(trained, entries, visit.payment)


def drawn(
    access: Access,
    events: Sequence[AnyEvent],
    draw: Callable[[Tensor, Tensor, Source, Tensor | None], ImageSet],
    *,
    device: torch.device,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
    partition: Partition | None = None,
    source: Source | None = None,
) -> Paid[ImageSet]:
    """Images drawn by a sampler whose steps are the mechanism: its noise hides each record, and nothing else does.

    Price: `events`, which count every step of every image. `draw` maps the private records `[n, ...]` as `codec` has them and their
    labels `[n]` to the images, with the noise of the source that it is given; how far one record moves a step is its
    method's to bound.

    With a `partition` the labels are cells in place of classes, a record in one alone, by itself and by what is public. The first of the events then
    is a histogram: how many records there are in each cell, with noise, is the last argument of `draw`, int64 `[cells]`, which has no other
    way to a number of records; without one it is None.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    arithmetic = f"{DISCRETE}; {OF_SAMPLER}" if partition else OF_SAMPLER
    with spending(access, events, insecure=source is not None, arithmetic=arithmetic) as visit:
        source, counts = source or system_source(), None
        x, y = encoded(visit.images, codec, maps, device)
        x = queries.finite(x)
        if partition:
            (event,) = (one for one in events if isinstance(one, DiscreteHistogram))
            y = partition.cells_of(x, y)
            counts = queries.histogram(y, event, cells=partition.cells, source=source)
        images = draw(x, y, source, counts)
        entries = visit.entries
    return Paid(images, entries, visit.payment)


def fine_tuned(
    access: Access,
    event: SubsampledGaussian,
    model: nn.Module,
    corrupt: Corrupt,
    settings: FineTuning,
    *,
    records: int,
    device: torch.device,
    physical_batch: int,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
    source: Source | None = None,
    progress: Progress = silent,
    keeper: Keeper | None = None,
    note: Callable[[str], None] | None = None,
    watch: bool = False,
    gather: Callable[[str], Team | None] = lambda reservation: None,
) -> Paid[nn.Module]:
    """`model` fine-tuned by DP-SGD, from the state that `keeper` holds, if it holds one.

    Price: `SubsampledGaussian(noise_multiplier, sample_rate, steps)`, see `sfumato.privacy.engine.dp_sgd`. `records` is the
    public count of records, or of groups where they have some, which sets the expected batch by which sums are divided.
    `codec` turns each record, by itself, into the model's space; it costs nothing, since it was made without private data. Nor do
    the `maps` of aligned classes, which are paid for already. With `watch`, the steps' diagnostics without noise come beside the
    model and are INTERNAL. `settings.averages` are post-processing of the same noisy steps. `gather` maps the hash of the reservation to the processes that train together, this one first among
    them, or to None.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    settings = settings.model_copy(update={"steps": event.steps, "sample_rate": event.sample_rate})
    state = keeper.load() if keeper else None
    left = [event.model_copy(update={"steps": event.steps - (state.step if state else 0)})]
    settles = state.reservation if state else ""
    with spending(access, left, insecure=source is not None, arithmetic=ON_GRID, settles=settles) as visit:
        entries = {**(state.entries if state else {}), **visit.entries}
        watched = Watched([], note_look(access, f"{access.purpose}: losses and norms")) if watch else None
        team = gather(visit.hash)
        x, y, units = _records(visit, codec, maps, settings, device, team)
        source, averages = source or system_source(), dict[float, nn.Module]()
        try:
            trained = train_privately(
                model.to(device),
                x,
                y,
                corrupt,
                settings,
                noise_multiplier=event.noise_multiplier,
                source=source,
                pairs=source.generator(device),
                expected_batch=event.sample_rate * records,
                physical_batch=physical_batch,
                progress=progress,
                note=note,
                start=state,
                checkpoint=_Stretches(keeper, visit, event, entries, state.step if state else 0) if keeper else None,
                watch=watched.steps.append if watched else None,
                units=units,
                others=team,
                keep=averages.__setitem__,
            )
        finally:
            if team:
                team.dismiss()
    return Paid(trained, entries, visit.payment, watched, averages)


def fine_tuned_beside(
    access: Access,
    event: SubsampledGaussian,
    model: nn.Module,
    corrupt: Corrupt,
    settings: FineTuning,
    *,
    reservation: str,
    team: Team,
    device: torch.device,
    physical_batch: int,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
    source: Source | None = None,
) -> None:
    """Take part in `fine_tuned` as one of the other processes; the first one has reserved under this hash and pays for all.

    It returns nothing: the clipped sums go to the first process alone, which adds the noise.

    Many parameters: what a mechanism does to private records is named where it is called, and hides in no other value.
    """
    settings = settings.model_copy(update={"steps": event.steps, "sample_rate": event.sample_rate})
    with joining(access, reservation) as visit:
        x, y, units = _records(visit, codec, maps, settings, device, team)
        source = source or system_source()
        help_training(
            model.to(device),
            x,
            y,
            corrupt,
            settings,
            source=source,
            pairs=source.generator(device),
            physical_batch=physical_batch,
            units=units,
            team=team,
        )


class _Encoded(NamedTuple):
    """Private records as the model sees them."""

    x: Tensor
    """`[n, c, h, w]`"""
    y: Tensor
    """`[n]`, their labels."""
    units: Units


def _records(
    visit: Visit, codec: Codec, maps: ClassMaps | None, settings: FineTuning, device: torch.device, team: Team | None
) -> _Encoded:
    """The records that this process draws for."""
    images = every_few(visit.images, team.part) if team else visit.images
    x, y = encoded(images, codec, maps, device)
    return _Encoded(x, y, units_of(images, each=settings.images_per_group, device=device))


@dataclass(frozen=True)
class _Stretches:
    """Stores the state between stretches of steps, and writes each stretch to the ledger before it begins."""

    keeper: Keeper
    visit: Visit
    event: SubsampledGaussian
    entries: Mapping[str, str]
    first: int

    def go_on(self, step: int, take: Callable[[], dict[str, Tensor]]) -> int:
        """The end of the next stretch after `step`; `take` copies the tensors to be stored by name. `Stopped` where a stop was requested."""
        stopping = self.stopping()
        if step > self.first:
            self.keeper.save(TrainingState(step, take(), self.entries, self.visit.hash))
        if stopping:
            steps = self.event.steps
            raise Stopped(
                f"stopped after step {step} of {steps} and saved; {step} steps are paid for, and the same command goes on from there",
                events=(self._steps(step),),
            )
        most = max(1, int(MOST_LOST * self.event.steps))
        until = min(self.event.steps, step + min(most, self.keeper.stretch(step)))
        self.visit.allow([self._steps(until)])
        return until

    def stopping(self) -> bool:
        """Whether to stop before the next step."""
        return self.keeper.stopping()

    def _steps(self, until: int) -> SubsampledGaussian:
        """The steps up to `until` under this reservation."""
        return self.event.model_copy(update={"steps": until - self.first})
