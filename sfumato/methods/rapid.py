"""RAPID: retrieval-augmented training of differentially private diffusion models (Jiang et al. 2025).

A denoiser learns public images; part of them becomes a knowledge base of trajectories. A private image is noised to
time k, the most similar public trajectory is looked up, and the denoiser learns under DP-SGD to walk from that
trajectory's latent at time v to the private image (Eq. 5). To draw an image, the public denoiser walks from T to k,
retrieval jumps from k to v, and the fine-tuned denoiser walks from v to 0 (section 3.4).

Certificate: PLD of the DP-SGD steps and, where votes are taken, of their histogram. Beyond the paper: the votes (each
private record names its nearest public class; the noisy winner starts the class row, guides T to k and confines
retrieval; on request no two classes share one), the mean of the m nearest, keys of several draws or of clean images, and a k that is
measured on held-out public images (`sfumato.retrieval.accuracy`). Where no neighbour can be found, one is taken at random, and as the
walk from T to k then decides nothing, it is skipped. Not covered: trajectories other than the forward process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from sfumato.config import LATER, MethodSection, SettingsOf
from sfumato.errors import BadInput
from sfumato.methods.algorithm import Algorithm, without_gradients
from sfumato.methods.plan import (
    UNCLAIMED,
    Claim,
    Facts,
    Plan,
    Retrieval,
    Spend,
    calibrated,
    shared_spends,
    tuning_spends,
)
from sfumato.methods.voting import nearest_class, voting
from sfumato.privacy.accounting.gdp import checked_count, checked_delta, checked_positive
from sfumato.retrieval.settings import Extractor, QuerySettings

if TYPE_CHECKING:  # to list settings takes no torch
    from torch import Generator, Tensor

    from sfumato.diffusion.objective import Corrupt, Examples
    from sfumato.diffusion.schedule import NoiseSchedule
    from sfumato.methods.parts import Parts
    from sfumato.retrieval.features import OneStep
    from sfumato.retrieval.knowledge_base import KnowledgeBase

PROMISE = """\
The paper claims that one fine-tuning step with noise multiplier z is (alpha, 2 alpha / z^2)-RDP (Proposition 1), that \
steps compose, and that better accountants improve on this. Private images enter through DP-SGD and nothing else, so \
the run can be certified by PLD for any number of images. The two numbers lie far apart because Proposition 1 bounds an \
exchange of records and does not count that a step sees a random sample: for 60,000 records, batch 64, 200 epochs and \
z = 1.86, an example of ours, it gives epsilon 110,000 at delta 1e-5, where PLD certifies 1.0 under add/remove and 2.0 under replace-one. \
Retrieval for a training record happens inside its own clipped gradient; retrieval while drawing reads public \
images only. Votes for public classes, where taken, are paid for with noise of their own."""
"""The paper's claim, the certificate, and why they differ (Markdown)."""


TUNING = {
    "retrieved": "DP-SGD with retrieved trajectories (Eq. 5)",
    "plain": "DP-SGD on the times up to v, with plain noise in the place of Eq. 5",
}
"""What is paid for, by what is learnt."""


class Method(MethodSection):
    """RAPID's own settings; the defaults are the paper's."""

    name: Literal["rapid"] = "rapid"
    """Retrieval-augmented DP fine-tuning."""
    k: float = Field(default=0.8, gt=0, le=1)
    """Time of the query, as a share of T."""
    v: float = Field(default=0.2, gt=0, lt=1)
    """Time at which the retrieved trajectory is resumed, as a share of T; below k."""
    times: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], LATER] = ()
    """Times of the query, as shares of T, that are measured on held-out public images, in place of `k`: the largest is taken at which the
    nearest key is of the right class 5 times as often as by chance (with few classes: half the way from chance to certainty). Where it is
    at none, trajectories are taken at random."""
    neighbour: Annotated[Literal["nearest", "random"], LATER] = "nearest"
    """`random`: a trajectory taken at random, of the voted class where votes are taken; the control for retrieval. There is no query then,
    and no walk from T to k."""
    query: Annotated[QuerySettings, LATER] = QuerySettings()
    """How queries and keys are made."""
    target: Annotated[Literal["retrieved", "plain"], LATER] = "retrieved"
    """The noise that is learnt at the times up to v: `retrieved` leads from the retrieved trajectory to the private image (Eq. 5); `plain`
    is fresh noise, as in plain DP-SGD, the control for Eq. 5. Drawing begins with a retrieved trajectory either way."""
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

    tuning, privacy = settings.fine_tuning, settings.privacy
    retrieval = planned_retrieval(settings, facts)
    votes, ask = voting(settings.method, settings, facts, time=retrieval.time)
    shared = shared_spends(settings)

    def spends(noise: float) -> list[Spend]:
        return [*shared, *ask, *tuning_spends(tuning, privacy, TUNING[settings.method.target], noise)]

    noise, certificate = calibrated(privacy, spends)
    early, late = walks(settings, min(retrieval.measured_times))
    query = evaluations(settings.generation, early) + 1 if retrieval.time else 0
    return Plan(
        method=settings.method.name,
        facts=facts,
        retrieval=retrieval,
        votes=votes,
        fine_tuning=tuning,
        noise_multiplier=noise,
        generation=settings.generation,
        evaluations=query + evaluations(settings.generation, late) * (2 if settings.generation.guidance else 1),
        spends=tuple(spends(noise)),
        privacy=privacy,
        certificate=certificate,
        claim=claim(noise, tuning.trainings * tuning.steps, privacy.delta) if noise else UNCLAIMED,
    )


def planned_retrieval(settings: SettingsOf[Method], facts: Facts) -> Retrieval:
    """The knowledge base; `BadInput` where times or keys do not fit."""
    method, resume = settings.method, resume_time(settings)
    shares = sorted(set(method.times or (method.k,)), reverse=True)
    for share in shares:
        name = "method.times" if method.times else "method.k"
        if method.v >= share:
            raise BadInput(
                f"method.v={method.v} is not below {name}={share}: resume (v) later than you query (k), v < k <= 1"
            )
        if resume >= time_of(settings, share):
            raise BadInput(
                f"method.v={method.v} and {name}={share} are times {resume} and {time_of(settings, share)} of "
                f"{settings.schedule.timesteps}: move them apart, or raise schedule.timesteps"
            )
    if facts.learnt_classes < 2 and (method.times or method.extractor.contrast == "classes"):
        name, instead = ("times", "k=0.8") if method.times else ("extractor.contrast", "extractor.contrast=views")
        raise BadInput(
            f"method.{name} goes by public classes, and the knowledge base has one: use --set method.{instead}"
            + (" --set method.times=[]" if method.times else "")
        )
    if method.query.clean_keys and method.query.key_draws > 1:
        raise BadInput(
            f"method.query.key_draws={method.query.key_draws} averages noised keys, and method.query.clean_keys=true has none: choose one"
        )
    if method.query.conditional and not method.votes:
        raise BadInput(
            "method.query.conditional=true asks for the public class of a private record, which votes alone say: use --set "
            "method.votes=true, or method.query.conditional=false"
        )
    if method.query.conditional and method.times:
        raise BadInput(
            "method.query.conditional=true brings back the class that was asked for, at every k, so method.times measures nothing: use "
            "--set method.times=[]"
        )
    times = tuple(time_of(settings, share) for share in shares) if method.neighbour == "nearest" else (0,)
    return Retrieval(
        extractor=method.extractor,
        time=times[0],
        times=times if method.times and times[0] else (),
        query=method.query,
        conditional=method.query.conditional,
        by_class=method.votes,
        reference=method.reference,
        trajectories=method.trajectories,
    )


def time_of(settings: SettingsOf[Method], share: float) -> int:
    """A time of the query, as a diffusion time."""
    return max(2, round(share * settings.schedule.timesteps))


def resume_time(settings: SettingsOf[Method]) -> int:
    """v as a diffusion time."""
    return max(1, round(settings.method.v * settings.schedule.timesteps))


def query_time(settings: SettingsOf[Method], base: KnowledgeBase) -> int:
    """k as a diffusion time: that of the base's keys."""
    return base.time or time_of(settings, settings.method.k)


def walks(settings: SettingsOf[Method], query: int) -> tuple[list[int], list[int]]:
    """The two lists of times: T to k = `query` by the public denoiser, v to 0 by the fine-tuned one."""
    from sfumato.diffusion.schedule import time_grid

    resume, horizon, generation = resume_time(settings), settings.schedule.timesteps, settings.generation

    def share(way: int) -> int:
        return max(1, round(generation.steps * way / horizon))

    early = (
        time_grid(horizon, query, generation.early_steps or share(horizon - query)) if query < horizon else [horizon]
    )
    return list(early), list(time_grid(resume, 0, generation.late_steps or share(resume)))


def retrieved_noise(schedule: NoiseSchedule, x: Tensor, latent: Tensor, time: int) -> Tensor:
    """ehat = (xhat_v - sqrt(alpha_bar_v) x) / sqrt(1 - alpha_bar_v), `[b, c, h, w]`: the noise from x to the retrieved `latent`, both of that
    shape, at `time` v, 1 to T (Jiang et al. 2025, Eq. 5)."""
    import torch

    t = torch.full((len(x),), time, device=x.device)
    return (latent - schedule.signal(t) * x) / schedule.noise(t)


def ballot(parts: Parts) -> Callable[[Tensor, Tensor], Tensor]:
    """From images `[b, c, h, w]`, of whatever class, to the public class of the nearest public reference image `[b]`, by pixels."""
    from sfumato.methods.parts import planned

    base = planned(parts.base)
    return nearest_class(parts, base.images, base.labels)


def corrupt(settings: SettingsOf[Method], parts: Parts) -> Corrupt:
    """K points `[b, K, c, h, w]` of private records `[b, c, h, w]` on the lines from retrieved latents to them, with the retrieved noise (Jiang et al.
    2025, Eq. 5); or plain noise."""
    import torch

    from sfumato.diffusion.objective import denoising_examples, grouped, repeat_records, uniform_times
    from sfumato.methods.parts import planned

    schedule, draws, base = parts.schedule, settings.fine_tuning.draws, planned(parts.base)
    resume = resume_time(settings)

    def plain(x: Tensor, y: Tensor, generator: Generator) -> Examples:
        return denoising_examples(schedule, x, y, draws=draws, low=1, high=resume, generator=generator)

    if settings.method.target == "plain":
        return plain

    def examples(x: Tensor, y: Tensor, generator: Generator) -> Examples:
        copies, labels = repeat_records(x, y, draws)
        with torch.no_grad():
            if base.has_keys:
                one_step, query = one_step_of(settings, parts), query_time(settings, base)
                clean, _ = one_step.image(copies, query, generator, parts.public_class(labels))
                latent = look_up(settings, parts, clean, labels)
            else:
                latent = take(settings, parts, labels, generator)
        noise = retrieved_noise(schedule, copies, latent, resume)
        t = uniform_times(len(copies), 1, resume, generator, x.device)
        return grouped(schedule.signal(t) * copies + schedule.noise(t) * noise, t, labels, noise, draws=draws)

    return examples


def one_step_of(settings: SettingsOf[Method], parts: Parts) -> OneStep:
    """The public denoiser as h looks through it."""
    from sfumato.retrieval.features import OneStep

    return OneStep(parts.schedule, parts.public, settings.method.query.conditional)


def look_up(settings: SettingsOf[Method], parts: Parts, clean: Tensor, y: Tensor) -> Tensor:
    """Latents `[b, c, h, w]` at time v of the trajectories whose keys are nearest to the features of images `clean` `[b, c, h, w]` of private
    classes y `[b]`."""
    from sfumato.methods.parts import planned

    classes = parts.public_class(y) if settings.method.votes else None
    base = planned(parts.base)
    rows = base.search(planned(parts.encoder)(clean), settings.method.nearest, classes)
    return base.value(parts.schedule, rows, resume_time(settings))


def take(settings: SettingsOf[Method], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Latents `[b, c, h, w]` at time v of trajectories taken at random, of the public classes that stand for private classes y `[b]`."""
    from sfumato.methods.parts import planned

    base = planned(parts.base)
    rows = base.taken(settings.method.nearest, parts.public_class(y), generator)
    return base.value(parts.schedule, rows, resume_time(settings))


@without_gradients
def query(settings: SettingsOf[Method], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Noised images or latents x_k `[b, c, h, w]`, walked from pure noise by the public denoiser, asked for the classes that stand for y `[b]`."""
    import torch

    from sfumato.diffusion.objective import normal
    from sfumato.diffusion.samplers import solve
    from sfumato.methods.parts import planned

    base = planned(parts.base)
    if not base.has_keys:
        raise BadInput(
            "this run chooses trajectories at random, so that no noised image decides and nothing can be continued: take a run that retrieves"
        )
    early, _ = walks(settings, query_time(settings, base))
    x = normal(torch.empty(len(y), *parts.shape, device=y.device), generator)
    return solve(
        settings.generation, parts.schedule, parts.public, x, parts.public_class(y), early, generator=generator
    )


@without_gradients
def resume(settings: SettingsOf[Method], parts: Parts, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    """Images or latents `[b, c, h, w]` of the private classes y `[b]` from noised ones x_k: retrieve, and walk on from time v."""
    from sfumato.methods.parts import planned

    early, _ = walks(settings, query_time(settings, planned(parts.base)))
    clean = one_step_of(settings, parts).guess(x, early[-1], parts.public_class(y))
    return walked_on(settings, parts, look_up(settings, parts, clean, y), y, generator)


def walked_on(settings: SettingsOf[Method], parts: Parts, latent: Tensor, y: Tensor, generator: Generator) -> Tensor:
    """The walk of the fine-tuned denoiser from latents at time v to images or latents of classes y `[b]`."""
    from sfumato.diffusion.samplers import guided, solve
    from sfumato.methods.parts import planned

    _, late = walks(settings, query_time(settings, planned(parts.base)))
    tuned = guided(planned(parts.tuned), settings.generation.guidance)
    return solve(settings.generation, parts.schedule, tuned, latent, y, late, generator=generator)


@without_gradients
def draw(settings: SettingsOf[Method], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Images or latents `[b, c, h, w]` of the private classes y `[b]`: walk, retrieve, resume (section 3.4); or take at random, resume."""
    from sfumato.methods.parts import planned

    if planned(parts.base).has_keys:
        return resume(settings, parts, query(settings, parts, y, generator), y, generator)
    return walked_on(settings, parts, take(settings, parts, y, generator), y, generator)


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    query=query,
    resume=resume,
    corrupt=corrupt,
    ballot=ballot,
    distinct=lambda settings: settings.method.distinct,
    retrieves=lambda settings: settings.method.extractor,
)
