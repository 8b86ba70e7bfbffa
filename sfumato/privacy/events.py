"""What private data was paid with: frozen, printable descriptions of privacy mechanisms.

An event says what a mechanism does to the worst pair of neighbouring data sets and nothing else; it is the only
currency between methods (which plan events), mechanisms (which carry them out), the accountant (which prices them) and
the ledger (which remembers them). Units: `noise_multiplier` is the standard deviation of the noise divided by the
largest l2 norm that one record can contribute.
"""

from typing import Annotated, Literal

from pydantic import Field

from sfumato.config import Section


class Event(Section):
    """Base of all events: frozen, refuses unknown fields, serialises to JSON."""


class Gaussian(Event):
    """A query on all records, each contributing a vector of l2 norm at most 1, plus Gaussian noise; `count` times."""

    kind: Literal["gaussian"] = "gaussian"
    noise_multiplier: float = Field(gt=0)
    count: int = Field(default=1, ge=0)


class SubsampledGaussian(Event):
    """DP-SGD: `steps` Gaussian queries, each on a Poisson sample that holds a record with probability `sample_rate`."""

    kind: Literal["subsampled_gaussian"] = "subsampled_gaussian"
    noise_multiplier: float = Field(gt=0)
    sample_rate: float = Field(gt=0, le=1)
    steps: int = Field(ge=0)


class Uncertified(Event):
    """An access to private data for which no sound accountant gives a finite epsilon."""

    kind: Literal["uncertified"] = "uncertified"
    reason: str


AnyEvent = Annotated[Gaussian | SubsampledGaussian | Uncertified, Field(discriminator="kind")]
