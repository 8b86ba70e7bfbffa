"""Plain DP-SGD fine-tuning of a publicly pretrained denoiser: the baseline that every paper compares with.

After Dockhorn et al. 2023 (noise multiplicity K) and Ghalebikesabi et al. 2023 (public pretraining): all diffusion
times, K noised copies per record averaged before clipping. The trained parameters are a setting (`fine_tuning.trainable`,
`fine_tuning.rank`), so that the presets `dpdm`, `dp-diffusion`, `dp-ldm` and `lora` are this one method; the EDM form in which
Dockhorn et al. denoise is one of schedule, network and solver, and so of every method (`schedule.kind`, `network.prediction`, `generation.solver`). Votes for public classes, from
whose rows the private ones then start, are an option beyond the papers: the control for any method that takes them. Certificate: PLD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from sfumato.config import LATER, MethodSection, SettingsOf
from sfumato.methods.algorithm import Algorithm
from sfumato.methods.plan import UNCLAIMED, Claim, Facts, Plan, Spend, calibrated, shared_spends, tuning_spends
from sfumato.methods.sampling import draw, network_evaluations, walk
from sfumato.methods.voting import nearest_image_class, voting
from sfumato.privacy.accounting import accountant

if TYPE_CHECKING:  # to list settings takes no torch
    from torch import Generator, Tensor

    from sfumato.diffusion.objective import Corrupt, Examples
    from sfumato.methods.parts import Parts

PROMISE = """\
The papers claim the epsilon that Renyi accounting (RDP) gives for the noisy steps, under add/remove with Poisson \
sampling. The run can be certified: every access to private images is one of those steps, and PLD prices them tightly. \
RDP is a sound bound and the looser of the two: noise 1.13, sample rate 1/15 and 750 steps are 11.3 by RDP and 10.4 by \
PLD at delta 1e-5. The central-limit formula that some papers quote errs the other way: 9.9 for the same run, and at \
small sample rates a fraction of the truth (noise 0.5, rate 1e-4, 10,000 steps: 0.24 for 1.18), so it certifies \
nothing here. Exchanging a record instead of adding or removing one costs more, 18.7 for the first run."""
"""The papers' claim, the certificate, and why they differ (Markdown)."""


class Method(MethodSection):
    """Plain DP-SGD has no settings of its own but votes, which no paper takes with it."""

    name: Literal["dp-sgd"] = "dp-sgd"
    """DP-SGD on all diffusion times."""
    votes: Annotated[bool, LATER] = False
    """Take votes for the public class that resembles each private class, whose row it then starts from."""
    vote_noise: Annotated[float, Field(gt=0), LATER] = 6.0
    """Noise on each count of the votes, in records."""
    distinct: Annotated[bool, LATER] = False
    """Give each private class a public class of its own, by the assignment with the most votes. It reads the noisy votes alone."""


def claim(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> Claim:
    """The epsilon that Dockhorn et al. 2023 report: Renyi accounting of the Poisson-subsampled Gaussian (Opacus)."""
    epsilon = accountant.dp_sgd_epsilon(noise_multiplier, sample_rate, steps, delta, accountant="rdp")
    return Claim(epsilon=epsilon, source="Dockhorn et al. 2023: RDP accountant, add/remove, Poisson sampling")


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where the budget does not fit."""
    tuning, privacy = settings.fine_tuning, settings.privacy
    shared = shared_spends(settings)
    votes, ask = voting(settings.method, settings, facts, time=0)

    def spends(noise: float) -> list[Spend]:
        return [*shared, *ask, *tuning_spends(tuning, privacy, "DP-SGD on all diffusion times", noise)]

    noise, certificate = calibrated(privacy, spends)
    return Plan(
        method=settings.method.name,
        facts=facts,
        votes=votes,
        fine_tuning=tuning,
        noise_multiplier=noise,
        generation=settings.generation,
        evaluations=network_evaluations(settings),
        spends=tuple(spends(noise)),
        privacy=privacy,
        certificate=certificate,
        claim=claim(noise, tuning.sample_rate, tuning.trainings * tuning.steps, privacy.delta) if noise else UNCLAIMED,
    )


def corrupt(settings: SettingsOf[Method], parts: Parts) -> Corrupt:
    """Plain denoising on all times 1..T."""
    from sfumato.diffusion.objective import denoising_examples

    def examples(x: Tensor, y: Tensor, generator: Generator) -> Examples:
        horizon = settings.schedule.timesteps
        return denoising_examples(
            parts.schedule, x, y, draws=settings.fine_tuning.draws, low=1, high=horizon, generator=generator
        )

    return examples


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    walk=walk,
    corrupt=corrupt,
    ballot=nearest_image_class,
    distinct=lambda settings: settings.method.distinct,
    controls=("method.votes=true",),
    is_baseline=True,
)
