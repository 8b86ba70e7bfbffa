"""RAPID: retrieval-augmented training of differentially private diffusion models (Jiang et al. 2025).

A denoiser learns public images; part of them becomes a knowledge base of trajectories. A private image is noised to
time k, the most similar public trajectory is looked up, and the denoiser learns under DP-SGD to walk from that
trajectory's latent at time v to the private image (Eq. 5). To draw an image, the public denoiser walks from T to k,
retrieval jumps from k to v, and the fine-tuned denoiser walks from v to 0 (section 3.4).

Certificate: PLD of the DP-SGD steps and, where votes are taken, of their histogram. Beyond the paper: the votes (each
private record names its nearest public class; the noisy winner starts the class row, guides T to k and confines
retrieval; on request no two classes share one) and the mean of the m nearest. Not covered: trajectories other than the forward process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sfumato.config import Extractor, MethodSection, SettingsOf
from sfumato.errors import BadInput
from sfumato.methods.algorithm import Algorithm, without_gradients
from sfumato.methods.plan import (
    STAGE_TUNING,
    STAGE_VOTES,
    Claim,
    Facts,
    Plan,
    Retrieval,
    Spend,
    Votes,
    calibrated,
    shared_spends,
)
from sfumato.privacy.accounting.events import DiscreteHistogram, SubsampledGaussian
from sfumato.privacy.accounting.gdp import checked_count, checked_delta, checked_positive

if TYPE_CHECKING:  # to list settings takes no torch
    from torch import Generator, Tensor

    from sfumato.diffusion.objective import Corrupt, Examples
    from sfumato.diffusion.schedule import NoiseSchedule
    from sfumato.methods.parts import Parts

PROMISE = """\
The paper claims that one fine-tuning step with noise multiplier z is (alpha, 2 alpha / z^2)-RDP (Proposition 1), that \
steps compose, and that better accountants improve on this. Private images enter through DP-SGD and nothing else, so \
the run can be certified by PLD for any number of images. The two numbers lie far apart because Proposition 1 bounds an \
exchange of records and does not count that a step sees a random sample: for 60,000 records, batch 64, 200 epochs and \
z = 1.86 it gives epsilon 110,000 at delta 1e-5, where PLD certifies 1.0 under add/remove and 2.0 under replace-one. \
Retrieval for a training record happens inside its own clipped gradient; retrieval while drawing reads public \
images only. Votes for public classes, where taken, are paid for with noise of their own."""
"""The paper's claim, the certificate, and why they differ (Markdown)."""


class Method(MethodSection):
    """RAPID's own settings; the defaults are the paper's."""

    name: Literal["rapid"] = "rapid"
    """Retrieval-augmented DP fine-tuning."""
    k: float = Field(default=0.8, gt=0, le=1)
    """Time of the query, as a share of T."""
    v: float = Field(default=0.2, gt=0, lt=1)
    """Time at which the retrieved trajectory is resumed, as a share of T; below k."""
    reference: float = Field(default=0.5, gt=0, lt=1)
    """Share of the public images that form the knowledge base; the rest pretrains the denoiser."""
    trajectories: int = Field(default=0, ge=0)
    """Most trajectories in the knowledge base, drawn at random from the reference share; 0 takes them all."""
    nearest: int = Field(default=1, ge=1)
    """Number m of nearest trajectories that are averaged."""
    votes: bool = False
    """Take votes for the public class that resembles each private class; needed for retrieval by class."""
    vote_noise: float = Field(default=6.0, gt=0)
    """Noise on each count of the votes, in records."""
    distinct: bool = False
    """Give each private class a public class of its own, by the assignment with the most votes. It reads the noisy votes alone. Classes
    that share a winner start from one row and retrieve the same images, and little training tells them apart poorly."""
    extractor: Extractor = Extractor()
    """The contrastive feature extractor."""


def claim(noise_multiplier: float, steps: int, delta: float) -> Claim:
    """Jiang et al. 2025, Proposition 1, composed over the steps.

    A step is (alpha, 2 alpha / z^2)-RDP for noise multiplier z; T steps give epsilon = 2 alpha T / z^2 + log(1/delta)/(alpha - 1),
    smallest at alpha = 1 + z sqrt(log(1/delta) / (2 T)). z > 0, T >= 0.
    """
    noise, delta = checked_positive("noise_multiplier", noise_multiplier), checked_delta(delta)
    ratio = math.sqrt(2 * checked_count("steps", steps)) / noise
    epsilon = ratio * ratio + 2 * ratio * math.sqrt(-math.log(delta))
    source = "Jiang et al. 2025, Proposition 1 over all steps: RDP, replace-one, without amplification by sampling"
    return Claim(epsilon=epsilon, source=source)


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where k, v or the budget do not fit."""
    from sfumato.diffusion.samplers import evaluations

    method, tuning, privacy = settings.method, settings.fine_tuning, settings.privacy
    if method.v >= method.k:
        raise BadInput(
            f"method.v={method.v} is not below method.k={method.k}: resume (v) later than you query (k), v < k <= 1"
        )
    query_time, resume_time = times(settings)
    if resume_time >= query_time:
        raise BadInput(
            f"method.v={method.v} and method.k={method.k} are times {resume_time} and {query_time} of "
            f"{settings.schedule.timesteps}: move them apart, or raise schedule.timesteps"
        )
    if method.votes and method.distinct and facts.public_classes < len(facts.classes):
        raise BadInput(
            f"method.distinct=true needs {len(facts.classes)} public classes, one for each private class, and there are "
            f"{facts.public_classes}: use more public classes, or method.distinct=false"
        )
    if method.votes and facts.public_classes < 2:
        raise BadInput(
            "method.votes=true asks which public class each private class resembles, and the public images are one class: use --set "
            "method.votes=false"
        )
    if method.votes and settings.alignment.kind != "none":
        raise BadInput(
            "method.votes=true asks which public class each private class resembles, and alignment.kind=moments takes each to where all "
            "public ones lie: use --set method.votes=false, or alignment.kind=none"
        )
    votes = Votes(noise_multiplier=method.vote_noise, time=query_time) if method.votes else None
    ask = Spend(
        stage=STAGE_VOTES, what="votes for public classes", event=DiscreteHistogram(noise_multiplier=method.vote_noise)
    )

    shared = shared_spends(settings)

    def spends(noise: float) -> list[Spend]:
        steps = SubsampledGaussian(noise_multiplier=noise, sample_rate=tuning.sample_rate, steps=tuning.steps)
        tune = Spend(stage=STAGE_TUNING, what="DP-SGD with retrieved trajectories (Eq. 5)", event=steps)
        return [*shared, *([ask] if method.votes else []), tune]

    noise, certificate = calibrated(privacy, spends)
    early, late = walks(settings)
    return Plan(
        method=method.name,
        facts=facts,
        retrieval=Retrieval(
            extractor=method.extractor,
            time=query_time,
            by_class=method.votes,
            reference=method.reference,
            trajectories=method.trajectories,
        ),
        votes=votes,
        fine_tuning=tuning,
        noise_multiplier=noise,
        generation=settings.generation,
        evaluations=evaluations(settings.generation, early)
        + 1
        + evaluations(settings.generation, late) * (2 if settings.generation.guidance else 1),
        spends=tuple(spends(noise)),
        privacy=privacy,
        certificate=certificate,
        claim=claim(noise, tuning.steps, privacy.delta),
    )


def times(settings: SettingsOf[Method]) -> tuple[int, int]:
    """k and v as diffusion times."""
    horizon = settings.schedule.timesteps
    return max(2, round(settings.method.k * horizon)), max(1, round(settings.method.v * horizon))


def walks(settings: SettingsOf[Method]) -> tuple[list[int], list[int]]:
    """The two lists of times: T to k by the public denoiser, v to 0 by the fine-tuned one."""
    from sfumato.diffusion.schedule import time_grid

    (query, resume), horizon, generation = times(settings), settings.schedule.timesteps, settings.generation

    def share(way: int) -> int:
        return max(1, round(generation.steps * way / horizon))

    early = (
        time_grid(horizon, query, generation.early_steps or share(horizon - query)) if query < horizon else [horizon]
    )
    return list(early), list(time_grid(resume, 0, generation.late_steps or share(resume)))


def retrieved_noise(schedule: NoiseSchedule, x: Tensor, latent: Tensor, time: int) -> Tensor:
    """ehat = (xhat_v - sqrt(alpha_bar_v) x) / sqrt(1 - alpha_bar_v): the noise from x to the retrieved latent (Eq. 5)."""
    import torch

    t = torch.full((len(x),), time, device=x.device)
    return (latent - schedule.signal(t) * x) / schedule.noise(t)


def ballot(parts: Parts) -> Callable[[Tensor, Tensor], Tensor]:
    """From images `[b, c, h, w]`, of whatever class, to the public class of the nearest public reference image `[b]`, by pixels.

    A base of latents is compared as the images that they decode to.
    """
    import torch

    from sfumato.methods.parts import planned

    base = planned(parts.base)
    images, labels = parts.codec.decode(base.images).flatten(1), base.labels

    def vote(x: Tensor, y: Tensor) -> Tensor:
        return labels[torch.cdist(x.flatten(1), images).argmin(1)]

    return vote


def corrupt(settings: SettingsOf[Method], parts: Parts) -> Corrupt:
    """Eq. 5: K points of a private record on the lines from retrieved latents to it, with the retrieved noise."""
    import torch

    from sfumato.diffusion.objective import grouped, repeat_records, uniform_times
    from sfumato.retrieval.features import one_step_image

    schedule, draws = parts.schedule, settings.fine_tuning.draws
    query_time, resume_time = times(settings)

    def examples(x: Tensor, y: Tensor, generator: Generator) -> Examples:
        copies, labels = repeat_records(x, y, draws)
        with torch.no_grad():
            clean, _ = one_step_image(schedule, parts.public, copies, query_time, generator)
            latent = look_up(settings, parts, clean, labels)
        noise = retrieved_noise(schedule, copies, latent, resume_time)
        t = uniform_times(len(copies), 1, resume_time, generator, x.device)
        return grouped(schedule.signal(t) * copies + schedule.noise(t) * noise, t, labels, noise, draws=draws)

    return examples


def look_up(settings: SettingsOf[Method], parts: Parts, clean: Tensor, y: Tensor) -> Tensor:
    """Latents at time v of the trajectories whose keys are nearest to the features of images `clean` `[b, c, h, w]`."""
    from sfumato.methods.parts import planned

    classes = parts.public_class(y) if settings.method.votes else None
    base = planned(parts.base)
    rows = base.search(planned(parts.encoder)(clean), settings.method.nearest, classes)
    return base.value(parts.schedule, rows, times(settings)[1])


@without_gradients
def draw(settings: SettingsOf[Method], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Images or latents `[b, c, h, w]` of the private classes y `[b]`: walk, retrieve, resume (section 3.4)."""
    import torch

    from sfumato.diffusion.objective import normal
    from sfumato.diffusion.samplers import guided, solve
    from sfumato.methods.parts import planned
    from sfumato.retrieval.features import clean_guess

    schedule, generation = parts.schedule, settings.generation
    early, late = walks(settings)
    x = normal(torch.empty(len(y), *parts.shape, device=y.device), generator)
    x = solve(generation, schedule, parts.public, x, parts.public_class(y), early, generator=generator)
    latent = look_up(settings, parts, clean_guess(schedule, parts.public, x, early[-1]), y)
    tuned = guided(planned(parts.tuned), generation.guidance)
    return solve(generation, schedule, tuned, latent, y, late, generator=generator)


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    corrupt=corrupt,
    ballot=ballot,
    distinct=lambda settings: settings.method.distinct,
    retrieves=lambda settings: settings.method.extractor,
)
