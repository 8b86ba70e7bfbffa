"""Moments alone: the public denoiser draws, and affine maps move its images to the private classes.

Nothing is trained on private images. Noisy counts, means and covariances of the private classes take the whole budget
(`sfumato.alignment`); images that the public model draws without a class have the mean and covariance of the public images, and
a class's map gives them those of the class. It takes minutes on any CPU, draws any number of images, and is the baseline for
every method that trains.

Of no paper. Kin: the noisy means and covariances of Gaussian models (Dwork and Roth 2014, section 3.5.1, for the mechanism),
and colour transfer by optimal transport (Pitie and Kokaram 2007), for the map.

Not covered: features of a class beyond mean and covariance, or, with `alignment.cells` or `clusters`, beyond those of its cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sfumato.config import MethodSection, SettingsOf
from sfumato.methods.algorithm import Algorithm, without_gradients
from sfumato.methods.plan import STAGE_MOMENTS, UNCLAIMED, Claim, Facts, Plan, certified, shared_spends
from sfumato.methods.sampling import network_evaluations, walk
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import MomentEvents

if TYPE_CHECKING:  # to list settings takes no torch
    from torch import Generator, Tensor

    from sfumato.methods.parts import Parts

PROMISE = """\
No paper claims anything: the method is ours. It can be certified, and is simple to check: private images are opened \
once, and out come two histograms with discrete Gaussian noise (records of each class; how far they lie from the \
means), two sums with Gaussian noise, and, with `alignment.cells`, the sums of each round of k-means, each image's \
share in them bounded before the sum. PLD prices all of them, and they compose with whatever else is asked. All noise \
is fixed before the first. The number printed as a claim is what Gaussian differential privacy gives for Gaussians of \
the same noise, and lies close to the certificate. All else is post-processing, so any number of images is covered: \
the public model and the maps see public images and noisy numbers alone."""
"""The claim, the certificate, and why they differ (Markdown)."""


class Method(MethodSection):
    """The method has no settings of its own: see `alignment`."""

    name: Literal["moments"] = "moments"
    """Noisy class means and covariances alone; no private training."""


def claim(noise_multipliers: Sequence[float], delta: float) -> Claim:
    """The epsilon of Gaussian mechanisms with these noise multipliers, composed exactly (Dong et al. 2022, Corollary 3.3)."""
    mu = accountant.compose_gdp(1 / noise for noise in noise_multipliers)
    return Claim(
        epsilon=accountant.gdp_epsilon(mu, delta),
        source="no paper: Gaussian differential privacy of noisy counts, means and covariances, add/remove",
    )


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where the budget does not fit."""
    privacy, spends = settings.privacy, tuple(shared_spends(settings))
    events = [spend.event for spend in spends]
    paid = MomentEvents.of([spend.event for spend in spends if spend.stage == STAGE_MOMENTS])
    noise = [event.noise_multiplier for event in paid.paid for _ in range(getattr(event, "count", 1))]
    return Plan(
        method=settings.method.name,
        facts=facts,
        generation=settings.generation,
        evaluations=network_evaluations(settings, guided=False),
        spends=spends,
        privacy=privacy,
        certificate=certified(privacy, events),
        claim=claim(noise, privacy.delta) if all(noise) else UNCLAIMED,
    )


@without_gradients
def draw(settings: SettingsOf[Method], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Images or latents `[b, c, h, w]` in the public images' space for the private classes y `[b]`, by the public denoiser without a class."""
    import torch

    from sfumato.diffusion.objective import normal
    from sfumato.diffusion.samplers import NO_CLASS, solve

    x = normal(torch.empty(len(y), *parts.shape, device=y.device), generator)
    nobody = torch.full_like(y, NO_CLASS)
    return solve(settings.generation, parts.schedule, parts.public, x, nobody, walk(settings), generator=generator)


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    walk=walk,
    needs_moments=True,
)
