"""dp-promise: a private diffusion model whose large times are trained without DP-SGD (Wang et al. 2024).

Phase I trains the times S..T on noised private images with an ordinary optimiser and counts the diffusion noise itself
as a Gaussian mechanism (Proposition 2); Phase II trains the times 1..S-1 with DP-SGD; the two compose as Gaussian
differential privacy (Theorem 2). Here: what the paper claims, and why Phase I earns no certificate.

Not covered: a certificate. Phase II alone has one: its steps are `SubsampledGaussian` events.
"""

import math

from sfumato.config import Schedule
from sfumato.diffusion.schedule import signal_levels
from sfumato.errors import BadInput
from sfumato.methods.plan import Claim
from sfumato.privacy import accountant
from sfumato.privacy.gdp import checked_count, checked_delta, checked_positive

PIXEL_RANGE = 2.0
"""How far one value of an image can move: images lie in [-1, 1] (section 5.1)."""
FEWEST_TIMES = 2
"""A linear schedule has two ends."""

PROMISE = """\
The paper claims (epsilon, delta)-DP for the whole run by composing two central-limit formulas, one for the noise that \
diffusion adds to the images of Phase I and one for the DP-SGD of Phase II. Only Phase II can be certified. In Phase I \
the loss compares the prediction with the noise that was drawn, so a gradient depends on more than the noised image \
and a single step can leak membership. Even if nothing but the noised images were \
released, the Phase I of two epochs on MNIST that the formula prices at epsilon 0.12 would cost 10.1 under replace-one \
at delta 1e-5, and under add/remove no delta below 0.86 would hold. For Phase II at noise 1.13, the limit formula says \
9.94 where PLD gives 10.41."""
"""What the paper claims, what can be certified, and why they differ (Markdown)."""


class TwoPhaseClaim(Claim):
    """The claim with the Gaussian differential privacy (GDP) parameters that it is made of."""

    mu_base: float
    """One private image noised once to time S."""
    mu_one: float
    """Phase I."""
    mu_two: float
    """Phase II."""
    mu: float
    """Both phases."""


def claim(
    records: int,
    dimension: int,
    batch_one: int,
    batch_two: int,
    epochs_one: int,
    epochs_two: int,
    boundary: int,
    noise_multiplier: float,
    delta: float,
    timesteps: int = 1000,
    beta_start: float = 1e-4,
    beta_end: float = 0.02,
) -> TwoPhaseClaim:
    """The epsilon of Wang et al. 2024, Theorem 2, from mu_1 (Eq. 15) and mu_2 (Eq. 16). A claim, never a certificate.

    `dimension` d is channels x height x width; `boundary` S, the smallest time of Phase I, lies in 1..`timesteps`; betas
    are linear and lie between 0 and 1. Batches are expected sizes: a phase draws a record with probability
    p = 1 / ceil(n / batch) and takes epochs x ceil(n / batch) steps, as in the authors' code. One noised image is
    2 sqrt(d alpha_bar_S / (1 - alpha_bar_S))-GDP (Proposition 2). `math.inf` where exp(mu_base^2) exceeds a float.
    """
    delta, noise = checked_delta(delta), checked_positive("noise_multiplier", noise_multiplier)
    dimension = _at_least_one("dimension", dimension)
    level = _level(boundary, timesteps, beta_start, beta_end)
    mu_base = PIXEL_RANGE * math.sqrt(dimension * level / (1 - level)) if level < 1 else math.inf
    mu_one = _phase(mu_base, records, "batch_one", batch_one, "epochs_one", epochs_one)
    mu_two = _phase(1 / noise, records, "batch_two", batch_two, "epochs_two", epochs_two)
    mu = accountant.compose_gdp([mu_one, mu_two])
    return TwoPhaseClaim(
        epsilon=accountant.gdp_epsilon(mu, delta),
        source="Wang et al. 2024, Theorem 2: GDP central limit, add/remove, Poisson sampling; Phase I taken for a "
        "Gaussian mechanism, which its loss is not",
        mu_base=mu_base,
        mu_one=mu_one,
        mu_two=mu_two,
        mu=mu,
    )


def _level(boundary: int, timesteps: int, beta_start: float, beta_end: float) -> float:
    """alpha_bar at time `boundary` of the linear schedule."""
    last, time = checked_count("timesteps", timesteps), checked_count("boundary", boundary)
    if last < FEWEST_TIMES:
        raise BadInput(f"timesteps = {timesteps}: must be {FEWEST_TIMES} or more")
    if not 1 <= time <= last:
        raise BadInput(f"boundary = {boundary}: must be a time from 1 to {last}")
    for name, beta in (("beta_start", beta_start), ("beta_end", beta_end)):
        if not 0 < beta < 1:
            raise BadInput(f"{name} = {beta}: must lie between 0 and 1, both excluded")
    settings = Schedule(kind="linear", timesteps=last, beta_start=float(beta_start), beta_end=float(beta_end))
    return float(signal_levels(settings)[time])


def _phase(mu: float, records: int, batch_name: str, batch: int, epochs_name: str, epochs: int) -> float:
    """The mu of one phase by Lemma 3 (Eq. 14), each step mu-GDP on the records that it draws."""
    batches = math.ceil(_at_least_one("records", records) / _at_least_one(batch_name, batch))
    return accountant.poisson_clt([mu], 1 / batches, checked_count(epochs_name, epochs) * batches)


def _at_least_one(name: str, value: int) -> int:
    return int(checked_positive(name, checked_count(name, value)))
