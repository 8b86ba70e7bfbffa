"""Games against the priced queries: class counts, votes, moments of classes, central images, noised copies, mean embeddings, the
gradients of the paid judge.

The attacker knows all records but one, sees every noisy number that a query releases, and looks for a record that weighs as
much as the query allows: in a count, a sum and a second moment at once, or with a gradient that is clipped in every step. A game
runs the queries themselves, with their own noise (`sfumato.privacy.engine.queries`), on small made-up sets, and compares their
output with a slow sum over the known records, in units of the noise in the ledger entry:

- guesses of a fair coin per game, by the likelihood ratio over all numbers of all queries, bound epsilon whatever the noise is;
- the size, shape and independence of the noise, number by number (`sfumato.privacy.auditing.white_box`); integers are spread evenly
  over their share of the distribution, after which they are exactly normal if they follow the priced distribution;
- without noise, how far the record moves the output, which may not exceed what the entry says.

Promise: no private image is used, and nothing is spent; queries that do what their entries say are reported as faulty with a
probability of at most `FALSE_ALARM` each. Not covered: records other than the worst case of the price, many records, the networks
in front of a query, which simple features replace; rounding in sums of many records; the order of noised copies, of which a game has one.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato import alignment
from sfumato.alignment import Moments, Reference, packed
from sfumato.config import Alignment, Judge, Relation
from sfumato.images import MIDDLE, WHITE, ImageSet, to_unit
from sfumato.latents import PIXELS
from sfumato.privacy.accounting.events import AnyEvent, DiscreteHistogram, Gaussian, MomentEvents, NoisedRecords
from sfumato.privacy.auditing.audit import epsilon_lower_bound
from sfumato.privacy.auditing.findings import Bound, Fit
from sfumato.privacy.auditing.games import GAMES
from sfumato.privacy.auditing.white_box import MOST, SLACK, cost, noise_faults
from sfumato.privacy.engine import queries
from sfumato.privacy.engine.class_moments import moments_of
from sfumato.privacy.noise import Source, system_source

CLASSES, OPTIONS, SIDE = 20, 5, 4
"""Classes, options of a vote and pixels of a side in the made-up sets."""
ALIGNED, CELLS = 4, 2
"""Classes whose moments are taken, and cells of each."""
FEATURES = 4
"""Number of features that the judge sees."""
COUNTED = 0.25
"""Share of a record's squared norm that goes to the count of its class, of mean embeddings."""
KNOWN = 8
"""Number of units that the attacker knows to be there."""
GREY = 128
"""Grey level of the first of them, next to the middle, so that they weigh little; each further one is a level lighter."""
PLAYS = 120
"""Plays without the record whose noise is examined, at least `GAMES` / 2."""
ENOUGH = 100_000
"""Largest number of noise values that are examined."""
RADIUS, RESIDUAL = 2.0, 1.5
"""R and r of the made-up public images; the record lies farther out than both."""
REACH = 1e-9
"""Least share of the law that a whole number is taken to stand for, so that none is infinitely far out."""
TAIL = 40
"""Standard deviations beyond which a discrete Gaussian's mass is negligible."""
CPU = torch.device("cpu")


class Part(NamedTuple):
    """Numbers that one look releases, less the known records' part, in units of the noise in the entry."""

    event: int
    """Number of the query's event that pays for them."""
    look: int
    """Numbers of the same event and look are of one sensitivity."""
    residual: Tensor
    """`[...]`, standard normal without the record."""
    shift: Tensor
    """Of the same shape, the record's move of them according to the entry."""


@dataclass(frozen=True)
class Query:
    """A query that a run paid for, to be played with made-up records."""

    what: str
    events: tuple[AnyEvent, ...]
    play: Callable[[bool, Source], list[Part]]
    """Maps whether the record takes part and the source of randomness to the observed parts."""
    quiet: tuple[tuple[int, tuple[int, ...]], ...]
    """Pairs of the number of noisy draws before all further draws are silent, and the events that are examined then."""


class QuietAfter(Source):
    """A source whose noise is zero after the first few draws."""

    def __init__(self, source: Source, loud: int):
        self._within, self._loud = source, loud

    def words(self, count: int) -> np.ndarray:
        """The words of the source, uint64 `[count]`."""
        return self._within.words(count)

    def steps(self, shape: Sequence[int], scale: float) -> Tensor:
        """Zeros float64 `[*shape]` after the first noisy draws."""
        self._loud -= 1
        return self._within.steps(shape, scale) if self._loud >= 0 else torch.zeros(*shape, dtype=torch.float64)

    def discrete_gaussian(self, shape: Sequence[int], sigma: float) -> Tensor:
        """Zeros int64 `[*shape]` after the first noisy draws."""
        self._loud -= 1
        if self._loud >= 0:
            return self._within.discrete_gaussian(shape, sigma)
        return torch.zeros(*shape, dtype=torch.int64)


# ------------------------------------------------------------------------------------------------------- the queries


def counting(event: DiscreteHistogram, *, each: int = 1) -> Query:
    """Class counts; a unit of `each` records, all of one class."""
    known = torch.bincount(torch.arange(KNOWN) % CLASSES, minlength=CLASSES)

    def play(there: bool, source: Source) -> list[Part]:
        noisy = queries.counted(made_up(there, each), event, classes=CLASSES, source=source)
        return [_whole(event, noisy - known, record=0)]

    return Query("class counts", (event,), play, ((0, (0,)),))


def voting(event: DiscreteHistogram, *, each: int = 1) -> Query:
    """Votes; the record's is for the last option, of those known for the first."""
    known = torch.zeros(CLASSES, OPTIONS, dtype=torch.int64)
    known[:, 0] = torch.bincount(torch.arange(KNOWN) % CLASSES, minlength=CLASSES)

    def ballot(x: Tensor, y: Tensor) -> Tensor:
        return (x.flatten(1).amax(1) > 0.5).long() * (OPTIONS - 1)

    def play(there: bool, source: Source) -> list[Part]:
        voters = made_up(there, each)
        noisy = queries.voted(voters, event, ballot, classes=CLASSES, options=OPTIONS, device=CPU, source=source)
        return [_whole(event, (noisy - known).flatten(), record=OPTIONS - 1)]

    return Query("class votes", (event,), play, ((0, (0,)),))


def copying(event: NoisedRecords, *, each: int = 1) -> Query:
    """Noised copies, of one record: a white image, exchanged for a black one, which lies as far away as two can."""
    del each  # a person with several images is refused by the mechanism

    def play(there: bool, source: Source) -> list[Part]:
        pixels = np.full((1, 1, SIDE, SIDE), WHITE if there else 0, np.uint8)
        one = ImageSet(pixels, np.zeros(1, np.int64), ("0",))
        noisy = queries.noised_copies(one, event, released=1, codec=PIXELS, maps=None, device=CPU, source=source)
        unit = event.noise_multiplier * PIXELS.largest_norm((1, SIDE, SIDE))
        white, black = (to_unit(np.full((1, 1, SIDE, SIDE), level, np.uint8)).double() for level in (WHITE, 0))
        return [Part(0, 0, (noisy - black).flatten() / unit, (white - black).flatten() / unit)]

    return Query("noised copies", (event,), play, ((0, (0,)),))


def _whole(event: DiscreteHistogram, residual: Tensor, *, record: int) -> Part:
    shift = torch.zeros(residual.shape, dtype=torch.float64)
    shift[record] = 1 / event.noise_multiplier
    return Part(0, 0, residual.double() / event.noise_multiplier, shift)


def taking_moments(events: MomentEvents, *, each: int = 1) -> Query:
    """Moments of classes; the record lies so far out that it weighs R in its sum, and as much as it may in its second moment and in each round."""
    numbers, settings = SIDE**2, Alignment(cells=CELLS)
    where = _reference(1 if events.rounds else CELLS)
    row, column = torch.triu_indices(numbers, numbers)
    diagonal, paid = row == column, events.paid
    names = [name for name in MomentEvents.model_fields if getattr(events, name)]
    others, record = made_up(False, classes=ALIGNED), made_up(True).subset(slice(1))

    def play(there: bool, source: Source) -> list[Part]:
        moments = moments_of(
            made_up(there, each, classes=ALIGNED),
            events,
            where,
            settings,
            classes=ALIGNED,
            codec=PIXELS,
            device=CPU,
            source=source,
        )
        counts, sums, seconds = (
            (seen.double(), torch.zeros_like(seen, dtype=torch.float64), torch.zeros_like(seen, dtype=torch.float64))
            for seen in (moments.counts, moments.sums, moments.seconds)
        )
        distances = [moments.distances.double(), *(torch.zeros_like(moments.distances.double()) for _ in range(2))]
        rounds = [moments.rounds, torch.zeros_like(moments.rounds), torch.zeros_like(moments.rounds)]
        # Residuals are taken around the centres that the noisy counts and sums give, and the rounds' cells are those of the round before.
        centres = alignment.centres(moments.counts, moments.sums, moments.mean_noise, where)
        nearest = cells_of_rounds(moments, where) if events.rounds else []
        for to, members in ((1, others), (2, record)):
            for pixels, label in zip(members.pixels, members.labels.tolist(), strict=True):
                v = torch.from_numpy(pixels).flatten().double() / MIDDLE - 1
                cell = int((v - where.centroids).norm(dim=1).argmin())
                v = _shortened(v, RADIUS)
                apart = v - centres[label, cell]
                residual = _shortened(apart, moments.residual)
                counts[to][label, cell] += 1
                sums[to][label, cell] += v
                seconds[to][label] += packed(torch.outer(residual, residual))
                if events.distances:
                    reached = int((float(apart.norm()) <= alignment.reaches(RADIUS)).sum())
                    distances[to][max(0, reached - 1)] += 1
                for number, places in enumerate(nearest):
                    own = int((apart - places[label]).norm(dim=1).argmin())
                    rounds[to][number, label, own] += alignment.weighed(residual[None], moments.residual)[0]

        def part(name: str, look: int, size: float, numbers_of: Sequence[Tensor]) -> Part:
            seen, known, shift = numbers_of
            unit = paid[names.index(name)].noise_multiplier * size
            return Part(names.index(name), look, ((seen - known) / unit).flatten(), (shift / unit).flatten())

        parts = [part("counts", 0, 1, counts), part("means", 0, RADIUS, sums)]
        if events.distances:
            parts.append(part("distances", 0, 1, distances))
        parts += [
            part("covariances", 0, moments.residual**2, [one[label, some] for one in seconds])
            for label in range(ALIGNED)
            for some in (diagonal, ~diagonal)
        ]
        if events.rounds:
            parts += [
                part("rounds", number, moments.residual, [one[number] for one in rounds])
                for number in range(len(moments.rounds))
            ]
        return parts

    # The record weighs in full where what decides on its cell is silent: all at once, or the second moments and rounds after the rest.
    first = 3 if events.distances else 2
    later = tuple(names.index(name) for name in ("covariances", "rounds") if name in names)
    return Query("class moments", paid, play, ((0, tuple(range(len(paid)))), (first, later)))


def cells_of_rounds(moments: Moments, where: Reference) -> list[Tensor]:
    """The cells' centres `[classes, cells, d]`, minus the class's mean, that each round of k-means has asked with."""
    spreads, _ = alignment.covariances(moments, where)
    first = alignment.starting(spreads, moments.rounds.shape[2])
    return [first, *(alignment.refined(noisy, moments, spreads)[0] for noisy in moments.rounds[:-1])]


def _reference(cells: int = CELLS) -> Reference:
    """Made-up public images with cells."""
    numbers = SIDE**2
    eye, centroids = torch.eye(numbers, dtype=torch.float64), torch.zeros(cells, numbers, dtype=torch.float64)
    centroids[:, 0] = torch.linspace(-0.5, 0.5, cells) if cells > 1 else 0
    return Reference(torch.zeros(numbers, dtype=torch.float64), eye, eye, centroids, RADIUS, RESIDUAL)


def _shortened(v: Tensor, most: float) -> Tensor:
    return v * min(1.0, most / max(float(v.norm()), 1 / MOST))


def summing(event: Gaussian, *, each: int = 1) -> Query:
    """Central images of cells; the record lies so far out that it weighs R in its sum."""
    where = _reference()

    def play(there: bool, source: Source) -> list[Part]:
        members = made_up(there, each, classes=ALIGNED)
        sums = queries.central_sums(members, event, where, classes=ALIGNED, codec=PIXELS, device=CPU, source=source)
        residual, shift = sums[0], torch.zeros_like(sums[0])
        others, record = made_up(False, classes=ALIGNED), made_up(True).subset(slice(1))
        for of, sign, to in ((others, -1, residual), (record, 1, shift)):
            for pixels, label in zip(of.pixels, of.labels.tolist(), strict=True):
                v = torch.from_numpy(pixels).flatten().double() / MIDDLE - 1
                cell = int((v - where.centroids).norm(dim=1).argmin())
                to[label, cell] += sign * _shortened(v, RADIUS)
        unit = event.noise_multiplier * RADIUS
        return [Part(0, 0, (residual / unit).flatten(), (shift / unit).flatten())]

    return Query("central images", (event,), play, ((0, (0,)),))


def embedding_sums(event: Gaussian, *, each: int = 1) -> Query:
    """Mean embeddings; the record's features are longer than any may be, and weigh as much as they can beside the count."""
    counts, features = math.sqrt(COUNTED), math.sqrt(1 - COUNTED)

    def read(x: Tensor, y: Tensor) -> Tensor:
        return RADIUS * torch.nn.functional.one_hot((x.flatten(1).amax(1) > 0.5).long(), FEATURES).to(x)

    def play(there: bool, source: Source) -> list[Part]:
        members = made_up(there, each, classes=ALIGNED)
        sums = queries.embedded(members, event, read, classes=ALIGNED, count_share=COUNTED, device=CPU, source=source)
        known = torch.bincount(torch.arange(KNOWN) % ALIGNED, minlength=ALIGNED)
        residual, shift = sums.clone(), torch.zeros_like(sums)
        residual[:, 0] -= features * known
        residual[:, -1] -= counts * known
        shift[0, 1], shift[0, -1] = features, counts
        unit = event.noise_multiplier
        return [Part(0, 0, (residual / unit).flatten(), (shift / unit).flatten())]

    return Query("mean embeddings", (event,), play, ((0, (0,)),))


def learning_head(event: Gaussian, settings: Judge, *, each: int = 1) -> Query:
    """The judge's gradients; those known have the record's features and another class, so that its own always wants to be longer."""
    seen = torch.ones(FEATURES + 1, dtype=torch.float64)
    x = seen / seen.norm()

    def read(images: Tensor) -> Tensor:
        return images.new_ones(len(images), FEATURES)  # a constant joins them, and they are scaled to norm 1

    def play(there: bool, source: Source) -> list[Part]:
        members, parts = made_up(there, each, label=1), list[Part]()

        def note(head: Tensor, noisy: Tensor) -> None:
            known, own = (_gradient(head, x, label, settings.scale) for label in (1, 0))
            unit = event.noise_multiplier
            residual = (noisy - KNOWN * known) / unit
            parts.append(Part(0, len(parts), residual.flatten(), (own / unit).flatten()))

        queries.learnt_head(
            members, event, read, settings, classes=CLASSES, records=KNOWN + 1, device=CPU, source=source, note=note
        )
        return parts

    return Query("paid judge", (event,), play, ((0, (0,)),))


def _gradient(head: Tensor, x: Tensor, label: int, scale: float) -> Tensor:
    """The gradient of one record alone, clipped to norm 1."""
    away = (scale * head @ x).softmax(0)
    away[label] -= 1
    gradient = torch.outer(away, x)
    return gradient / max(1.0, float(gradient.norm()))


def made_up(there: bool, each: int = 1, *, classes: int = CLASSES, label: int | None = None) -> ImageSet:
    """The record, or a group of `each` equal ones, if it is `there`: white, of class 0. Then the known records: grey, of `label`, or
    of all classes in turn."""
    grey = np.full((KNOWN, 1, SIDE, SIDE), GREY, np.uint8)
    grey += np.arange(KNOWN, dtype=np.uint8)[:, None, None, None]
    known = np.arange(KNOWN) % classes if label is None else np.full(KNOWN, label)
    record = each if there else 0
    pixels = np.concatenate([np.full((record, 1, SIDE, SIDE), WHITE, np.uint8), grey])
    labels = np.concatenate([np.zeros(record, np.int64), known.astype(np.int64)])
    groups = np.concatenate([np.zeros(record, np.int64), 1 + np.arange(KNOWN)]) if each > 1 else None
    return ImageSet(pixels, labels, tuple(str(name) for name in range(classes)), groups)


# --------------------------------------------------------------------------------------------------------- the games


def queries_of(
    counts: Sequence[AnyEvent],
    votes: Sequence[AnyEvent],
    moments: Sequence[AnyEvent],
    judge: Sequence[AnyEvent],
    settings: Judge | None,
    *,
    each: int,
    central: Sequence[AnyEvent] = (),
    embedding: Sequence[AnyEvent] = (),
    copies: Sequence[AnyEvent] = (),
) -> list[Query]:
    """The queries that a run paid for with these events; kinds of events that only earlier versions had are not played, nor are central images
    of Poisson samples, whose coins a game does not know.

    Many parameters: the events of each stage by its name.
    """
    queries_paid = [
        make(event, each=each)
        for make, events in ((counting, counts), (voting, votes))
        for event in events
        if isinstance(event, DiscreteHistogram)
    ]
    with contextlib.suppress(ValueError):
        queries_paid.append(taking_moments(MomentEvents.of(moments), each=each))
    for make_sums, events in ((summing, central), (embedding_sums, embedding)):
        queries_paid += [make_sums(event, each=each) for event in events if isinstance(event, Gaussian)]
    queries_paid += [copying(event, each=each) for event in copies if isinstance(event, NoisedRecords)]
    usual = settings or Judge()
    return [*queries_paid, *(learning_head(event, usual, each=each) for event in judge if isinstance(event, Gaussian))]


def play_queries(
    queries_played: Sequence[Query], *, delta: float, relation: Relation = "add_remove"
) -> tuple[list[Fit], Bound]:
    """Play all queries of a run in each game; return their fits to the entries and the bound from guessing coins on all together."""
    games = min(GAMES, int(1 / (2 * delta)))
    coins = system_source().coins((games,), 0.5)
    scores, empty = torch.zeros(games, dtype=torch.float64), [list[list[Part]]() for _ in queries_played]
    for game, there in enumerate(coins.tolist()):
        for query, without in zip(queries_played, empty, strict=True):
            parts = query.play(there, system_source())
            scores[game] += float(log_likelihood_ratio(parts))
            if not there:
                without.append(parts)
    fits = [_fit(query, without, delta, relation) for query, without in zip(queries_played, empty, strict=True)]
    return fits, epsilon_lower_bound(scores, coins, delta=delta)


def log_likelihood_ratio(parts: Iterable[Part]) -> Tensor:
    """The log likelihood ratio with and without the record, `[]`; for normals and discrete Gaussians the sum of r s - s^2 / 2 over all numbers of
    residuals r `[...]` and shifts s of the same shape."""
    return torch.stack([(part.residual * part.shift - part.shift.square() / 2).sum() for part in parts]).sum()


def _fit(query: Query, empty: list[list[Part]], delta: float, relation: Relation) -> Fit:
    numbers = sum(part.residual.numel() for part in query.play(False, QuietAfter(system_source(), 0)))
    while len(empty) < PLAYS and len(empty) * numbers < ENOUGH:
        empty.append(query.play(False, system_source()))
    noise = [[_normal(part, query.events[part.event]) for part in parts] for parts in empty]
    noisy = noise_faults(noise)
    faults = noisy.faults
    moved = [0.0] * len(query.events)
    for loud, events in query.quiet:
        for there in (False, True):
            each = _moves(query, query.play(there, QuietAfter(system_source(), loud)))
            if there:
                moved = [max(old, each[i]) if i in events else old for i, old in enumerate(moved)]
            elif max(each[i] for i in events) > SLACK:
                faults.append("without the record it lets out something else than its entry says of the others")
    paid = sum(
        event.count if isinstance(event, Gaussian) else 1
        for event in query.events
        if not isinstance(event, DiscreteHistogram)
    )
    if (
        looks := len({(p.event, p.look) for p in empty[0] if not isinstance(query.events[p.event], DiscreteHistogram)})
    ) > paid:
        faults.append(f"it looks {looks} times, and {paid} are paid for")
    for most, event in zip(moved, query.events, strict=True):
        if most > 1 + SLACK:
            faults.append(f"one record moved the {event.kind} by {most:.3f} of what its entry says")
    shown = [
        event.model_copy(update={"noise_multiplier": _noise(event) * max(noisy.at_most, 1 / MOST) / most})
        for event, most in zip(query.events, moved, strict=True)
        if most > 1 / MOST
    ]
    return Fit(
        what=query.what,
        numbers=numbers * len(empty),
        noise=noisy.deviation,
        noise_at_most=noisy.at_most,
        contribution=max(moved),
        epsilon=cost(shown, delta, relation) if shown else 0.0,
        priced=cost(query.events, delta, relation),
        delta=delta,
        faults=tuple(dict.fromkeys(faults)),
    )


def _moves(query: Query, parts: Sequence[Part]) -> list[float]:
    """The largest move in one look by event, relative to what one record may add."""
    squares: dict[tuple[int, int], float] = {}
    for part in parts:
        key = part.event, part.look
        squares[key] = squares.get(key, 0.0) + float(part.residual.square().sum())
    return [
        max(math.sqrt(square) * _noise(one) / _far(one) for (event, _), square in squares.items() if event == number)
        for number, one in enumerate(query.events)
    ]


def _noise(event: AnyEvent) -> float:
    assert isinstance(event, Gaussian | DiscreteHistogram | NoisedRecords)  # `queries_of` takes no other
    return event.noise_multiplier


def _far(event: AnyEvent) -> float:
    """How far one record may move a query, in norms of a record: an exchange, which noised records alone play, by two."""
    return 2.0 if isinstance(event, NoisedRecords) else 1.0


def _normal(part: Part, event: AnyEvent) -> Tensor:
    """Residuals that are standard normal where the noise has the law of the event."""
    if not isinstance(event, DiscreteHistogram):
        return part.residual
    sigma = event.noise_multiplier
    whole = (part.residual * sigma).round()
    most = max(1, math.ceil(TAIL * sigma))
    whole = whole.clamp(-most, most)
    mass = (-torch.arange(-most, 1).double().square() / (2 * sigma**2)).exp()
    below = torch.cat([mass.new_zeros(1), mass.cumsum(0)]) / (2 * mass.sum() - 1)
    at = most - whole.abs().long()  # by symmetry, in the lower half, where nothing is lost
    within = system_source().words(whole.numel()).astype(np.float64) / 2.0**64
    share = below[at] + torch.from_numpy(within) * (below[at + 1] - below[at])
    normal = torch.special.ndtri(share.clamp(REACH, 1 - REACH))
    return torch.where(whole > 0, -normal, normal)
