"""What a rehearsal finds, as a plain value that a record can hold without the libraries that found it."""

from sfumato.config import Section

LEAST_UNIT = 1e-9
"""Distances below this are none."""


class RehearsalFindings(Section):
    """The numbers of a rehearsal; None where there was nothing to measure."""

    held_out: int
    """Public images that nothing learnt from."""
    images: int = 0
    """Images in each set of which a distance is stated."""
    directions: int = 0
    """Directions of the features along which they are compared."""
    samples: float | None = None
    """Frechet distance of public samples to held-out public images."""
    real: float | None = None
    """Of other held-out public images."""
    gaussian: float | None = None
    """Of draws from a Gaussian fitted to public pixels, or latents."""
    error: float | None = None
    """Root mean squared error per pixel of what comes back of held-out images."""
    spread: float | None = None
    """The same of the mean image."""
    read: float | None = None
    """Share of held-out images that the classifier reads right."""
    read_after: float | None = None
    """The same after the autoencoder."""
    survives: float | None = None
    """What it reads beyond chance after, as a share of what it reads beyond it before."""
    retrieval: float | None = None
    """Share of held-out images that find a key of their own class."""
    chance: float | None = None
    """What chance gives."""
    model: bool = True
    """Whether there is a public model to draw from."""

    def numbers(self) -> dict[str, float]:
        """What was measured, by name."""
        found = {"nearness": self.nearness, **self.model_dump()}
        return {name: float(value) for name, value in found.items() if value is not None}

    @property
    def nearness(self) -> float | None:
        """Where the samples lie between other public images, 0, and a Gaussian's draws, 1; None where nothing was drawn.

        Where a Gaussian draws such images as well as anything, the distance of other public images serves as the unit.
        """
        if self.samples is None or self.real is None or self.gaussian is None:
            return None
        return (self.samples - self.real) / max(self.gaussian - self.real, self.real, LEAST_UNIT)
