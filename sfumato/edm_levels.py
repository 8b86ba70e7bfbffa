"""The falling noise levels of a sampler (Karras et al. 2022), as settings; lists them without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from sfumato.section import Section

if TYPE_CHECKING:  # settings are listed without it
    import numpy as np


class Levels(Section):
    """Noise levels of the sampler (Karras et al. 2022, Eq. 5), ending with a step to zero; the defaults are the paper's appendix D."""

    sigma_min: float = Field(default=0.002, gt=0, allow_inf_nan=False)
    """Smallest noise level before zero, in units of the images' values."""
    sigma_max: float = Field(default=80.0, gt=0, allow_inf_nan=False)
    """Noise level that sampling starts from; above `sigma_min`."""
    rho: float = Field(default=7.0, gt=0, allow_inf_nan=False)
    """How strongly the levels crowd towards `sigma_min`."""
    N: int = Field(default=39, ge=2)
    """Number of levels above zero, which is the number of steps."""

    @model_validator(mode="after")
    def _falling(self) -> Levels:
        if self.sigma_max <= self.sigma_min:
            raise ValueError(f"sigma_max = {self.sigma_max} must be above sigma_min = {self.sigma_min}")
        return self

    def levels(self) -> np.ndarray:
        """`[N + 1]` falling noise levels: t_i = (max^(1/rho) + i / (N - 1) (min^(1/rho) - max^(1/rho)))^rho, then 0."""
        import numpy as np

        ends = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        return np.append(np.linspace(*ends, self.N) ** self.rho, 0.0)
