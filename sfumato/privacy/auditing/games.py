"""A game for samplers whose own noise hides the records: did the worst record (or ensemble member) take part in drawing these images?

The attacker sees x_T ... x_0, knows everything else, and computes from the claimed noise how much likelier each step is with
the record than without it; the sum of the log ratios over steps and images is the most powerful test (Neyman and Pearson).
The method plays its own sampler with its own clipping (`worst_case`), so that the test runs the code that draws. A game yields:

- guesses of a fair coin per game, which bound epsilon whatever the noise is (`sfumato.privacy.auditing.audit`);
- how large the noise is, from all its numbers (`sfumato.privacy.auditing.white_box`);
- how far the record moves each step, from a play without noise.

Promise: no private image is used, and nothing is spent; a sampler that does what its entries say is reported as faulty with a
probability of at most `FALSE_ALARM`. Not covered: records and members other than the worst case of the price; the networks,
which stand-ins replace; how images are distributed over classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from sfumato.config import Relation
from sfumato.diffusion.objective import Randomness
from sfumato.privacy.accounting.events import AnyEvent, Gaussian, SubsampledGaussian
from sfumato.privacy.auditing.audit import epsilon_lower_bound
from sfumato.privacy.auditing.findings import Bound, Fit
from sfumato.privacy.auditing.played import Play, Played
from sfumato.privacy.auditing.white_box import LEVEL, MOST, NUMBERS, cost, noise_faults
from sfumato.privacy.noise import system_source

GAMES = 100
"""Games, each with a coin."""
IMAGES = 20
"""Images of a game, at most."""
AT_ONCE = 128_000
"""Numbers of all images of all games together, about."""
PARTS = 8
"""Parts of the images without the record whose noise is compared."""
CHANCES = 1000
"""Approximate number of times that a record is expected to take part in a play that counts participation."""
DRAWN_SLACK = 0.01
"""Tolerance of a step's move above its price: the rounding of a small difference in float32."""
Drawing = Gaussian | SubsampledGaussian
"""Kinds of events of a sampler's step."""


@dataclass(frozen=True)
class Noiseless:
    """A source with fair coins but without noise, which shows what a step does by itself."""

    source: Randomness

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Zeros `[*shape]`."""
        return torch.zeros(*shape)

    def coins(self, shape: Sequence[int], rate: float) -> Tensor:
        """The coins of the source, bool `[*shape]`."""
        return self.source.coins(shape, rate)


def log_likelihood_ratios(played: Played, events: Sequence[Drawing]) -> Tensor:
    """Log likelihood ratio of each image with and without the record, by the ledger entries' noise: `[images]`.

    A step's is log(1 - p + p exp(m s - m^2 / 2)), s the observation along the record's direction, m its shift, p its sample rate.
    """
    shifts = played.shifts[:, None].double()
    exponents = played.along.double() * shifts - shifts.square() / 2
    rates = _rates(played, events)[:, None]
    return torch.logaddexp(torch.log1p(-rates).expand_as(exponents), rates.log() + exponents).sum(0)


def play_drawing(
    play: Play, events: Sequence[AnyEvent], *, numbers: int, delta: float, relation: Relation = "add_remove"
) -> tuple[Fit, Bound]:
    """Play a sampler that has paid `events`; return its fit to the entries and the bound from guessing coins.

    `numbers` is the size of an image. A game draws a few images; where more were paid for, it tests part of the promise.
    """
    paid = [event for event in events if isinstance(event, Drawing)]
    games = min(GAMES, int(1 / (2 * delta)))
    images = min(IMAGES, *(_count(event) for event in paid), max(1, AT_ONCE // (games * numbers)))
    coins = system_source().coins((games,), 0.5)
    present = coins.repeat_interleave(images)
    played = play(present, system_source())
    scores = log_likelihood_ratios(played, paid).view(games, images).sum(1)
    bound = epsilon_lower_bound(scores, coins, delta=delta)
    empty = played.residuals[:, ~present][:, : math.ceil(NUMBERS / (numbers * len(played.shifts)))]
    if empty.shape[1] < PARTS:
        empty = play(torch.zeros(PARTS, dtype=torch.bool), system_source()).residuals
    each = empty.shape[1] // PARTS
    noisy = noise_faults([list(part) for part in empty[:, : PARTS * each].split(each, 1)])
    moves = _contributions(play, paid)
    shown = [
        event.model_copy(
            update={"noise_multiplier": event.noise_multiplier * max(noisy.at_most, 1 / MOST) / max(share, 1 / MOST)}
            | ({"sample_rate": event.sample_rate * moves.rate} if isinstance(event, SubsampledGaussian) else {})
        )
        for event, share in zip(paid, moves.largest, strict=True)
    ]
    fit = Fit(
        what="drawing",
        numbers=empty[:, : PARTS * each].numel(),
        noise=noisy.deviation,
        noise_at_most=noisy.at_most,
        contribution=max(moves.largest),
        rate_at_least=moves.rate,
        epsilon=cost(shown, delta, relation) if max(moves.largest) > 1 / MOST else 0.0,
        priced=cost(paid, delta, relation),
        delta=delta,
        faults=(*noisy.faults, *moves.faults),
    )
    return fit, bound


class _Moves(NamedTuple):
    """What a record does to a drawing without noise."""

    largest: list[float]
    """For each event, the largest move relative to its price."""
    rate: float
    """How often the record takes part, at least, relative to the sample rate."""
    faults: list[str]
    """What is wrong, in words."""


def _contributions(play: Play, events: Sequence[Drawing]) -> _Moves:
    """The largest move by a record relative to its price, by event, and how often it takes part.

    From plays without noise, in which an image's step shows whether the record took part.
    """
    quiet = Noiseless(system_source())
    there = torch.ones(1, dtype=torch.bool)
    absent = play(~there, quiet)
    rates = _rates(absent, events)
    images = math.ceil(CHANCES / float(rates.sum())) if float(rates.min()) < 1 else 1
    played = play(there.expand(images), quiet)
    moved, shifts = (played.residuals - absent.residuals).norm(dim=2), played.shifts
    relative = moved.amax(1) / shifts
    faults, rate = [], 1.0
    if float(relative.max()) > 1 + DRAWN_SLACK:
        faults.append(f"the record moved a step by {float(relative.max()):.3f} of what its entry says")
    if images > 1:
        participated, chances, expected = int((moved > shifts[:, None] / 2).sum()), moved.numel(), float(rates.mean())
        if participated > stats.binom.isf(LEVEL, chances, expected):
            faults.append(f"the record took part in {participated} of {chances} chances at a rate of {expected:.3g}")
        least = float(stats.beta.ppf(LEVEL, max(1, participated), chances - participated + 1)) if participated else 0.0
        rate = max(1 / MOST, min(least / expected, 1 / float(rates.max())))
    shares = []
    for which in range(len(events)):
        own = torch.tensor([of == which for of in played.events])
        size = float(shifts[own].norm())
        shares.append(float((relative * shifts)[own].norm()) / size if size else 0.0)
    return _Moves(shares, rate, faults)


def _rates(played: Played, events: Sequence[Drawing]) -> Tensor:
    """`[steps]`, how likely a record takes part in each."""
    return torch.tensor([_rate(events[which]) for which in played.events], dtype=torch.float64)


def _rate(event: Drawing) -> float:
    return event.sample_rate if isinstance(event, SubsampledGaussian) else 1.0


def _count(event: Drawing) -> int:
    return event.steps if isinstance(event, SubsampledGaussian) else event.count
