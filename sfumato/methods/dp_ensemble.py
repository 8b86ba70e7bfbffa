"""DP ensemble: sampling from many non-private diffusion models, clipped and averaged (Anonymous 2023).

k models are trained on disjoint parts of the private records. At each sampling step every model's prediction is
clipped to norm C/2, the average stands in for the prediction, and the noise that ancestral sampling adds anyway makes
the step a Gaussian mechanism (Theorem 3.3). Formulation A averages predictions of the noise, B of the clean image. The
steps that cost most, the first and the last, depend least on the data and are left to a public model.

Here: the noise scales and what they cost. The composition is exact, so that the claim holds once all images are counted.

Not covered: a statement about the models, which are not private and never leave, or about more images than were asked
for.
"""

import math
from typing import Literal, get_args

import numpy as np

from sfumato.config import Schedule
from sfumato.diffusion.schedule import signal_levels
from sfumato.errors import BadInput
from sfumato.methods.plan import Claim
from sfumato.privacy import accountant
from sfumato.privacy.gdp import checked_count, checked_delta, checked_positive

Kind = Literal["cosine", "linear"]
"""Noise schedules: cosine (Nichol and Dhariwal 2021, Eq. 17) or linear (Ho et al. 2020)."""
Formulation = Literal["A", "B", "min"]
"""What is averaged: the predicted noise (A), the predicted clean image (B), or at each t what costs less."""

BASE_TIMESTEPS = 1000
"""T of the schedule that the models are trained on (Table 1), before sampling is respaced to fewer steps."""
FEWEST_STEPS = 2
"""Respacing keeps both ends of the base schedule."""

PROMISE = """\
The paper claims (epsilon, delta)-DP for each generated image: a step adds its sampling noise to the average of k \
clipped predictions, so it is a Gaussian mechanism of sensitivity C/k, and the steps compose exactly as Gaussian \
differential privacy. That holds, and can be certified, but only for the number of images that are released together. \
The paper prices one image, trusting that users do not share results; its CIFAR-10 setting (cosine, 250 steps, \
k = 100, C = 110) costs epsilon 16.7 for one image and 579 for a hundred at delta 1e-5, because mu grows with the \
square root of the number. The last step adds no noise and has to be taken by a public model. The members themselves \
are not private."""
"""What the paper claims, what can be certified, and why they differ (Markdown)."""


class SampledClaim(Claim):
    """The claim with its Gaussian differential privacy parameter."""

    mu: float
    """All private steps of all images together."""


def noise_scales(schedule: Kind, steps: int) -> tuple[list[float], list[float]]:
    """(xi_A, xi_B): standard deviation of each step's noise relative to the prediction that is averaged (Eqs. 7 and 8).

    Lists over the respaced time, 0-based: entry 0 is the last sampling step, which adds no noise (both scales are 0).
    The base schedule of T = 1000 is thinned to the indices round(i 999 / (steps - 1)), 2 <= `steps` <= 1000, its betas
    are recomputed, and sigma_t^2 is the posterior variance (Ho et al. 2020, Eq. 7):

        xi_A = sqrt(alpha_t) sqrt(1 - abar_t) sigma_t / (1 - alpha_t),  xi_B = (1 - abar_t) sigma_t / (sqrt(abar_{t-1}) beta_t)
    """
    if schedule not in get_args(Kind):
        raise BadInput(f"schedule = {schedule!r}: choose one of {', '.join(get_args(Kind))}")
    count = checked_count("steps", steps)
    if not FEWEST_STEPS <= count <= BASE_TIMESTEPS:
        raise BadInput(f"steps = {steps}: must lie from {FEWEST_STEPS} to {BASE_TIMESTEPS}")
    base = signal_levels(Schedule(kind=schedule, timesteps=BASE_TIMESTEPS))[1:]
    level = base[[round(i * (BASE_TIMESTEPS - 1) / (count - 1)) for i in range(count)]]
    before = np.concatenate([[1.0], level[:-1]])
    alpha = level / before
    beta = 1 - alpha
    sigma = np.sqrt(beta * (1 - before) / (1 - level))
    noise_in_noise = np.sqrt(alpha) * np.sqrt(1 - level) * sigma / beta
    noise_in_image = (1 - level) * sigma / (np.sqrt(before) * beta)
    return noise_in_noise.tolist(), noise_in_image.tolist()


def claim(
    schedule: Kind,
    steps: int,
    clip_diameter: float,
    members: int,
    formulation: Formulation,
    skip_first: int,
    skip_last: int,
    images: int,
    delta: float,
) -> SampledClaim:
    """The epsilon of `images` images by Anonymous 2023, Theorem 3.3: mu = (C / k) sqrt(images sum_t 1 / xi_t^2).

    `clip_diameter` C is twice the norm that a prediction is clipped to; `members` k. A public model takes the first
    `skip_first` sampling steps (the largest t) and the last `skip_last` (the smallest t); it must take the last one, or
    the cost is `math.inf`. One record changes one member, whose prediction moves by C at most; an exchange that takes a
    record out of one part and puts another into a second changes two, and costs twice the mu.
    """
    delta, reach = checked_delta(delta), checked_positive("clip_diameter", clip_diameter)
    models = checked_positive("members", checked_count("members", members))
    if formulation not in get_args(Formulation):
        raise BadInput(f"formulation = {formulation!r}: choose one of {', '.join(get_args(Formulation))}")
    of_noise, of_image = noise_scales(schedule, steps)
    first, last = checked_count("skip_first", skip_first), checked_count("skip_last", skip_last)
    if first + last > len(of_noise):
        raise BadInput(f"skip_first + skip_last = {first + last}: must be at most steps = {len(of_noise)}")
    quietest = {"A": of_noise, "B": of_image, "min": list(map(max, of_noise, of_image))}[formulation]
    private = quietest[last : len(quietest) - first]
    one = accountant.compose_gdp(reach / models / scale if scale else math.inf for scale in private)
    count = checked_count("images", images)
    mu = one * math.sqrt(count) if count else 0.0
    return SampledClaim(
        epsilon=accountant.gdp_epsilon(mu, delta),
        source=f"Anonymous 2023 (DP ensemble), Theorem 3.3: GDP over the steps of {count} image(s), one record in one member",
        mu=mu,
    )
