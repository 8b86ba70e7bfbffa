"""Results of a rehearsal, as a plain value that a record can hold without the libraries that compute it."""

from sfumato.config import Section

LEAST_UNIT = 1e-9
"""Distances below this count as 0."""


class RetrievalFindings(Section):
    """Retrieval of held-out public images at one time k; shares of queries."""

    time: int
    """k."""
    share: float
    """k as a share of T."""
    first: float
    """The nearest key is of the query's own class."""
    five: float
    """One of the nearest five is."""
    chance: float
    """`first` by chance."""
    chance_five: float
    """`five` by chance."""
    reference: float
    """The likeliest class under the base's own images is the query's; no upper bound."""
    labelled_first: float
    """`first` where the query was asked for its own class, as the paper measures it."""
    labelled_five: float
    """`five` of the same."""
    echo: float
    """`labelled_first` of queries that are nothing but noise: what the label alone brings back."""


class RehearsalFindings(Section):
    """The numbers of a rehearsal; None where there was nothing to measure."""

    held_out: int
    """Number of public images that no stage learnt from."""
    images: int = 0
    """Images in each set of which a distance is stated."""
    directions: int = 0
    """Directions of the features along which they are compared."""
    samples: float | None = None
    """Frechet distance of public samples to held-out public images."""
    real: float | None = None
    """The same of other held-out public images."""
    gaussian: float | None = None
    """The same of draws from a Gaussian fitted to public pixels, or latents."""
    error: float | None = None
    """Root mean squared error per pixel of reconstructed held-out images."""
    spread: float | None = None
    """The same of the mean image."""
    read: float | None = None
    """Share of held-out images that the classifier reads correctly."""
    read_after: float | None = None
    """The same after the autoencoder."""
    survives: float | None = None
    """Accuracy above chance after the autoencoder, as a share of that before."""
    retrieval: float | None = None
    """Share of held-out images that find a key of their own class."""
    chance: float | None = None
    """The same share by chance."""
    by_time: tuple[RetrievalFindings, ...] = ()
    """Retrieval at each time that was measured, largest first."""
    query_time: int | None = None
    """The time at which trajectories are looked up; 0 where they are taken at random."""
    model: bool = True
    """Whether there is a public model to draw from."""

    def numbers(self) -> dict[str, float]:
        """All measured numbers, by name."""
        values = {"nearness": self.nearness, **self.model_dump(exclude={"by_time"})}
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def nearness(self) -> float | None:
        """Position of the samples between other public images, 0, and a Gaussian's draws, 1; None where nothing was drawn.

        Where a Gaussian's draws lie as near as other public images, the distance of those serves as the unit.
        """
        if self.samples is None or self.real is None or self.gaussian is None:
            return None
        return (self.samples - self.real) / max(self.gaussian - self.real, self.real, LEAST_UNIT)
