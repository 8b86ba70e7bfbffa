"""Results of a rehearsal, as a plain value that a record can hold without the libraries that compute it."""

from sfumato.config import Section

LEAST_UNIT = 1e-9
"""Distances below this count as 0."""


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
    model: bool = True
    """Whether there is a public model to draw from."""

    def numbers(self) -> dict[str, float]:
        """All measured numbers, by name."""
        values = {"nearness": self.nearness, **self.model_dump()}
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def nearness(self) -> float | None:
        """Position of the samples between other public images, 0, and a Gaussian's draws, 1; None where nothing was drawn.

        Where a Gaussian's draws lie as near as other public images, the distance of those serves as the unit.
        """
        if self.samples is None or self.real is None or self.gaussian is None:
            return None
        return (self.samples - self.real) / max(self.gaussian - self.real, self.real, LEAST_UNIT)
