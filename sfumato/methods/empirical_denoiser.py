"""Empirical denoiser: what diffusion sampling reveals when it averages private images (Anonymous 2025).

The denoiser E[x | x_t] is the kernel-weighted mean of the private records, or of a random sample of them, each clipped;
the sampler's own noise makes a step a Gaussian mechanism (section 3.1). A public network takes the steps before, the
empirical denoiser one step or all the rest (section 3.4, appendix D). Here: what the paper claims for that, and the
attack success that it derives from an epsilon.

Not covered: a certificate. `accountant.subsampled_gaussian_epsilon` prices the same steps soundly, each with its own
noise. By the paper's convention the sensitivity 2C / (p_t |D|) is 1 at every sample rate; that a mean over a sample
moves further than a mean over all records is not counted.
"""

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field, ValidationError, model_validator

from sfumato.config import Section
from sfumato.errors import BadInput
from sfumato.methods.plan import Claim
from sfumato.privacy import accountant
from sfumato.privacy.gdp import checked_count, checked_delta, checked_rate

PROMISE = """\
The paper claims an epsilon for sampling with a denoiser that averages private images, by the central limit theorem of \
Gaussian differential privacy over all steps of all images. That theorem needs many steps that each reveal little. \
Here one step's mu reaches the hundreds, and the formula then tends to a constant however large it grows: the headline \
setting (10,000 images, sample rate 2e-5, one step after 93 %) is claimed at epsilon 3.85, while an exact privacy loss \
distribution of those very steps gives about 33,500 at delta 1e-5. In effect a record that is drawn is shown, so no \
useful epsilon holds at a delta below 1 - (1 - p)^N, here 0.18. Where a step's mu is small, an exact distribution can \
certify it."""
"""What the paper claims, what can be certified, and why they differ (Markdown)."""


class Grid(Section):
    """Noise levels of the sampler (Karras et al. 2022, Eq. 5), ending with a step to zero; the defaults are the paper's appendix D."""

    sigma_min: float = Field(default=0.002, gt=0, allow_inf_nan=False)
    """Smallest noise level before zero, in units of the images' values."""
    sigma_max: float = Field(default=80.0, gt=0, allow_inf_nan=False)
    """Noise level that sampling starts from; above `sigma_min`."""
    rho: float = Field(default=7.0, gt=0, allow_inf_nan=False)
    """How strongly the levels crowd towards `sigma_min`."""
    N: int = Field(default=39, ge=2)
    """Number of levels above zero, which is the number of steps."""
    sensitivity: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """2C / (p_t |D|), how far an exchange of one record moves the denoiser's mean; the paper's tables take 1."""

    @model_validator(mode="after")
    def _falling(self) -> "Grid":
        if self.sigma_max <= self.sigma_min:
            raise ValueError(f"sigma_max = {self.sigma_max} must be above sigma_min = {self.sigma_min}")
        return self

    def levels(self) -> np.ndarray:
        """`[N + 1]` falling noise levels: t_i = (max^(1/rho) + i / (N - 1) (min^(1/rho) - max^(1/rho)))^rho, then 0."""
        ends = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        return np.append(np.linspace(*ends, self.N) ** self.rho, 0.0)

    def mus(self) -> np.ndarray:
        """`[N]` Gaussian DP parameters: mu_i = sensitivity sqrt(2 dt_i / t_i^3), dt_i = t_i - t_{i+1} (section 3.2)."""
        levels = self.levels()
        return self.sensitivity * np.sqrt(-2 * np.diff(levels) / levels[:-1] ** 3)


class SamplerClaim(Claim):
    """The claim with its Gaussian differential privacy parameter."""

    mu: float
    """All empirical steps of all images together."""


def claim(
    sample_rate: float,
    percent: float,
    images: int,
    delta: float,
    single_step: bool,
    grid: Grid | Mapping[str, float] = Grid(),
) -> SamplerClaim:
    """What Anonymous 2025 prints in Tables 3 and 4: the epsilon of `images` images, empirical after `percent` % of the sampling.

    `single_step` takes one empirical step there (Table 4), else all that follow (Table 3); the first is the one from
    level round-half-up(percent (N + 1) / 100), `percent` from 0 to below 100. `sample_rate` below 1: Poisson samples,
    by the central limit of Appendix A (`accountant.subsampled_gaussian_clt`); exactly 1: all records, composed exactly
    (section 3.2). `grid` may be a dict with the fields of `Grid`.
    """
    rate, delta, count = checked_rate(sample_rate), checked_delta(delta), checked_count("images", images)
    grid = _checked_grid(grid)
    start = _start(percent, grid)
    mus = grid.mus()[start : start + 1 if single_step else None].tolist()
    if rate < 1:
        mu, how = (
            accountant.subsampled_gaussian_clt(mus, rate, count),
            "GDP central limit (Appendix A), Poisson samples",
        )
    else:
        mu, how = accountant.compose_gdp(mus) * math.sqrt(count), "GDP composition (section 3.2), all records"
    return SamplerClaim(
        epsilon=accountant.gdp_epsilon(mu, delta),
        source=f"Anonymous 2025 (How private is diffusion-based sampling?): {how}, replace-one",
        mu=mu,
    )


def attack_success(epsilon: float) -> float:
    """The largest probability with which an epsilon-DP release tells two data sets apart: 1 / (1 + e^-epsilon), Appendix G.

    `epsilon` >= 0, may be infinite. Delta is not counted.
    """
    if not epsilon >= 0:
        raise BadInput(f"epsilon = {epsilon}: must be 0 or more")
    return 1 / (1 + math.exp(-epsilon))


def _start(percent: float, grid: Grid) -> int:
    """Index of the noise level at which the empirical denoiser takes over."""
    if not 0 <= percent < 100:
        raise BadInput(f"percent = {percent}: must be from 0 to below 100")
    start = math.floor(percent * (grid.N + 1) / 100 + 0.5)
    if start >= grid.N:
        raise BadInput(f"percent = {percent}: leaves no empirical step on a grid of N = {grid.N} levels; choose less")
    return start


def _checked_grid(grid: Grid | Mapping[str, float]) -> Grid:
    if isinstance(grid, Grid):
        return grid
    try:
        return Grid.model_validate(dict(grid))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["grid", *map(str, first["loc"])])
        raise BadInput(f"{where} = {first['input']!r}: {first['msg']}") from None
