"""Privacy events: frozen, printable descriptions of privacy mechanisms.

An event says what a mechanism does to the worst pair of neighbouring data sets and nothing else; it is the only
currency between methods (which plan events), mechanisms (which carry them out), the accountant (which prices them) and
the ledger (which remembers them). Units: `noise_multiplier` is the standard deviation of the noise divided by the
largest l2 norm that one record can contribute.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field

from sfumato.config import NOT_HASHED, Relation, Section

NO_NOISE = "epsilon is infinite, since nothing is noised"
"""The reason of a mechanism without noise."""


class Event(Section):
    """Base of all events: frozen, refuses unknown fields, serialises to JSON."""

    def uncertified(self, relation: Relation) -> str:
        """The reason why no epsilon holds under `relation`; empty where one does. Noise of 0 hides nobody."""
        return NO_NOISE if getattr(self, "noise_multiplier", None) == 0 else ""


class Gaussian(Event):
    """A query on all records, each contributing a vector of l2 norm at most 1, plus Gaussian noise; `count` times."""

    kind: Literal["gaussian"] = "gaussian"
    noise_multiplier: float = Field(ge=0)
    count: int = Field(default=1, ge=0)


class Histogram(Event):
    """Counts in disjoint cells plus Gaussian noise on each: a record, or all records of a group together, adds at most 1 in all
    and nothing below 0.

    Adding one changes the counts by a vector of norm at most 1; exchanging one by at most sqrt(2), the distance of two
    corners of the simplex, and not by the 2 of a `Gaussian`, whose records may point in opposite directions.
    """

    kind: Literal["histogram"] = "histogram"
    noise_multiplier: float = Field(ge=0)


class DiscreteHistogram(Event):
    """Counts in cells plus discrete Gaussian noise on each, all integers: a record, or a group as a whole, adds 1 to exactly
    one cell.

    `noise_multiplier` is the parameter of the noise, whose mass at an integer x is proportional to
    exp(-x^2 / (2 noise_multiplier^2)). Adding a record moves one cell by 1, exchanging one moves two cells by 1 each:
    one, or two, such mechanisms in one dimension.
    """

    kind: Literal["discrete_histogram"] = "discrete_histogram"
    noise_multiplier: float = Field(ge=0)


class SubsampledGaussian(Event):
    """DP-SGD: `steps` Gaussian queries, each on a Poisson sample that holds a record with probability `sample_rate`."""

    kind: Literal["subsampled_gaussian"] = "subsampled_gaussian"
    noise_multiplier: float = Field(ge=0)
    sample_rate: float = Field(gt=0, le=1)
    steps: int = Field(ge=0)


class NoisedRecords(Event):
    """Every record is released, once, as a vector of l2 norm at most 1 plus Gaussian noise, in random order.

    Records are noised apart from each other, so exchanging one costs as much as one `Gaussian` (parallel composition).
    """

    kind: Literal["noised_records"] = "noised_records"
    noise_multiplier: float = Field(ge=0)

    def uncertified(self, relation: Relation) -> str:
        """Only an exchange leaves the number of vectors as it is."""
        if relation == "replace_one" or not self.noise_multiplier:
            return super().uncertified(relation)
        return "the noised records show how many there are, so they are priced under replace_one alone"


class Uncertified(Event):
    """An access to private data for which no sound accountant gives a finite epsilon."""

    kind: Literal["uncertified"] = "uncertified"
    reason: Annotated[str, NOT_HASHED]

    def uncertified(self, relation: Relation) -> str:
        """Its own reason, under both relations."""
        return self.reason


class MomentEvents(Section):
    """The events of the moments of all classes; `paid` has them in the order in which they are asked."""

    counts: DiscreteHistogram
    means: Gaussian
    distances: DiscreteHistogram | None = None
    """None: no histogram of distances bounds what counts for a covariance."""
    covariances: Gaussian
    rounds: Gaussian | None = None
    """Rounds of k-means; None: a class consists of no cells of its own."""

    @property
    def paid(self) -> tuple[DiscreteHistogram | Gaussian, ...]:
        """All of them."""
        events = (self.counts, self.means, self.distances, self.covariances, self.rounds)
        return tuple(event for event in events if event is not None)

    @classmethod
    def of(cls, events: Sequence[Event]) -> Self:
        """The same from `paid`; raises `ValueError` for other events."""
        whole = [event for event in events if isinstance(event, DiscreteHistogram)]
        gaussian = [event for event in events if isinstance(event, Gaussian)]
        if len(whole) + len(gaussian) < len(events) or not 1 <= len(whole) <= 2 or not 2 <= len(gaussian) <= 3:
            raise ValueError(f"no events of class moments: {[type(event).__name__ for event in events]}")
        return cls(
            counts=whole[0],
            means=gaussian[0],
            distances=whole[1] if len(whole) == 2 else None,
            covariances=gaussian[1],
            rounds=gaussian[2] if len(gaussian) == 3 else None,
        )


AnyEvent = Annotated[
    Gaussian | Histogram | DiscreteHistogram | SubsampledGaussian | NoisedRecords | Uncertified,
    Field(discriminator="kind"),
]
