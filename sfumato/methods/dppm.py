"""DPPM: score matching whose projection vectors are exchanged at random, and Hamiltonian sampling (Liu et al. 2024).

Each label becomes a row of the image by a fixed code, so that a network learns images and labels as one (Fig. 5). The
network is the score of a density, trained by sliced score matching; each random projection vector is replaced, by k-ary
randomised response, with one of the k vectors nearest to it (Eq. 6), and the paper concludes epsilon-DP for the network
and its images (Theorem 1). Images are drawn by leapfrog steps along the score (Algorithm 2), and their labels are read from
their rows: the network decides which classes come, and how often.

`objective` says where Eq. 7 is minimised: `plain`, on the images themselves, as printed; `annealed`, on images with noise of
every level of the schedule, with the level as an input of the network, as is usual for score networks (Song and Ermon 2019).
`mechanism=dp_sgd` is a sound variant: the same network and sampler, trained by DP-SGD on the squared error of the noise.

Not covered: any guarantee for the training data without `dp_sgd`. There is none at any epsilon; see `EVENT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from sfumato.config import LATER, MethodSection, Network, Pretraining, SettingsOf, Training
from sfumato.errors import BadInput
from sfumato.methods.algorithm import Algorithm, without_gradients
from sfumato.methods.plan import (
    STAGE_TRAINING,
    UNCLAIMED,
    Blueprint,
    Claim,
    Facts,
    OwnStart,
    Plan,
    Spend,
    calibrated,
    refuse_infinite,
    shared_spends,
    tuning_spends,
)
from sfumato.methods.voting import nearest_image_class, voting
from sfumato.privacy.accounting.events import Uncertified
from sfumato.privacy.accounting.gdp import checked_count

if TYPE_CHECKING:  # to list settings takes no torch
    from torch import Generator, Tensor, nn

    from sfumato.diffusion.objective import Corrupt, Examples
    from sfumato.diffusion.schedule import NoiseSchedule
    from sfumato.diffusion.score_matching import Score
    from sfumato.methods.parts import Parts


class Voting(NamedTuple):
    """Votes for a public class of one's own each, as `sfumato.methods.voting` asks for them."""

    votes: bool
    vote_noise: float
    distinct: bool = True


FEWEST_CHOICES = 2
"""k >= 2 (Eq. 6)."""
ONE_LEVEL = 1
"""The time that the network gets where there are no noise levels."""

EVENT = Uncertified(
    reason="the randomised response acts on projection vectors that are drawn without looking at the data, while the "
    "loss uses the private images as they are: nothing bounds or hides what one record contributes"
)
"""The event of training on private data; `accountant.epsilon([EVENT], delta)` is infinite."""

PROMISE = """\
The paper claims pure epsilon-DP for the network and every image drawn from it, because the projection vectors of its \
score-matching loss pass through a k-ary randomised response: at epsilon 1 and k = 10 a vector stays itself with \
probability 0.232. Nothing can be certified at any epsilon. Those vectors are random numbers drawn without looking at \
the data, so randomising them hides no record, while the loss and its gradient use each private image as it is, \
neither clipped nor noised. The proof bounds the probability of a vector and carries the bound over to the image beside it. \
The honest epsilon for the training data is infinite, and what is drawn from such a network stays internal. With \
DP-SGD in its place, PLD certifies the same network."""
"""The paper's claim, the certificate, and why they differ (Markdown)."""


class SlicedTraining(Training):
    """Training by Eq. 7."""

    steps: int = Field(default=5000, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=128, ge=1)
    """Expected images per step, b."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak learning rate of Adam, gamma."""
    warm_up: int = Field(default=50, ge=0)
    """Steps over which the learning rate rises."""
    ema_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay of the moving average of the weights."""


class ScoreNetwork(Network):
    """A RefineNet; the paper's are 128 wide with 2 blocks a level and multipliers [1, 2, 2, 2], at 256x256 [1, 2, 2, 2, 4] (Fig. 4)."""

    kind: Literal["mlp", "unet", "refinenet"] = "refinenet"
    """The paper's, or one of the denoisers."""
    width: int = Field(default=16, ge=1)
    """Channels of the first level."""
    blocks: int = Field(default=1, ge=1)
    """Residual blocks per level."""
    condition: int = Field(default=32, ge=2, multiple_of=2)
    """Length of the vector that carries the noise level."""
    prediction: Annotated[Literal["noise"], LATER] = "noise"
    """A score is learnt from images alone, at any noise or at none."""


class Method(MethodSection):
    """DPPM's own settings; how it draws is `generation.hamiltonian`."""

    name: Literal["dppm"] = "dppm"
    """Score matching with exchanged projections, Hamiltonian sampling."""
    mechanism: Literal["randomised_response", "dp_sgd"] = "randomised_response"
    """`randomised_response`: as published, without a certificate; `dp_sgd`: the same network and sampler by DP-SGD
    (`fine_tuning`), certified."""
    objective: Literal["plain", "annealed"] = "annealed"
    """Where Eq. 7 is asked for: on the images, or on images with noise of every level of the schedule. `plain` has no minimum
    where data fill no volume, as labels in a row never do. For `randomised_response`."""
    k: int = Field(default=10, ge=FEWEST_CHOICES)
    """Number of vectors that a projection vector may become, itself counted; the larger, the less often it stays."""
    energy: Annotated[Literal["line", "exact"], LATER] = "line"
    """How the Metropolis test knows by how much the log density grew: `line` integrates the score along the path, whose error is as large as
    what it tests; `exact` makes the network the gradient of an energy, which gives that number itself and learns at about three times the
    cost. For `randomised_response`."""
    label_rows: int = Field(default=1, ge=1)
    """Rows of an image, or of its latent, that hold its label."""
    labels: Annotated[Literal["drawn", "given"], LATER] = "drawn"
    """`drawn`: the network draws the label with the image, as published, and each class as often as it has learnt; `given`: the rows follow the
    code of a wanted label, with the noise of each level, and the network draws the image alone. For networks that know noise levels."""
    start: Annotated[Literal["nothing", "public", "voted"], LATER] = "nothing"
    """What private training starts from: `nothing`, as published; `public`, the score network after it has learnt the public images with the
    rows of their labels (`method.pretraining`), to which the codes of the private classes are new; `voted`, the same, where each private
    class takes over the code of a public class of its own, by the assignment with the most of its records' noisy votes. Then a part of it
    may learn (`fine_tuning.trainable`), through adapters too (`fine_tuning.rank`). For `dp_sgd`."""
    vote_noise: Annotated[float, Field(gt=0), LATER] = 6.0
    """For `start=voted`: noise on each count of the votes, in records."""
    pretraining: Annotated[Pretraining, LATER] = Pretraining()
    """For a public start; the network knows no classes but by the rows, so `label_dropout` has no effect."""
    network: ScoreNetwork = ScoreNetwork()
    """The score network."""
    training: SlicedTraining = SlicedTraining()
    """For `randomised_response`."""


def response_probabilities(epsilon: float, k: int) -> tuple[float, float]:
    """(keep, other): the chance that a vector stays itself, and that it becomes one given other of its k candidates.

    Liu et al. 2024, Eq. 6: e^eps / (e^eps + k - 1) and 1 / (e^eps + k - 1), so that keep + (k - 1) other = 1. `epsilon`
    >= 0, may be infinite; `k` >= 2. Written with e^-eps, so that nothing overflows.
    """
    epsilon, choices = _checked_epsilon(epsilon), checked_count("k", k)
    if choices < FEWEST_CHOICES:
        raise BadInput(f"k = {k}: must be {FEWEST_CHOICES} or more")
    odds = math.exp(-epsilon)
    keep = 1 / (1 + (choices - 1) * odds)
    return keep, keep * odds


def claim(epsilon: float) -> Claim:
    """Theorem 1 of Liu et al. 2024: the epsilon of the randomised response, unchanged, with delta 0."""
    source = "Liu et al. 2024, Theorem 1: the randomised response's epsilon; it acts on vectors that hold no data"
    return Claim(epsilon=_checked_epsilon(epsilon), source=source)


def _checked_epsilon(epsilon: float) -> float:
    if not epsilon >= 0:
        raise BadInput(f"epsilon = {epsilon}: must be 0 or more")
    return float(epsilon)


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where k, the batch, the label's rows or the trained groups do not fit."""
    method, tuning, privacy = settings.method, settings.fine_tuning, settings.privacy
    _check(settings, facts)
    sampling, shared = settings.generation.hamiltonian, shared_spends(settings)
    tests = 2 if method.energy == "exact" else 0
    evaluations = sampling.iterations * (sampling.steps + 1 + tests)
    if method.mechanism == "randomised_response":
        refuse_infinite(privacy, "method.mechanism=randomised_response", "the paper's training is its random answer")
        what = f"sliced score matching, projection vectors exchanged among {method.k}"
        return Plan(
            method=method.name,
            facts=facts,
            generation=settings.generation,
            evaluations=evaluations,
            privacy=privacy,
            plain=Training(**method.training.model_dump()),
            spends=(*shared, Spend(stage=STAGE_TRAINING, what=what, event=EVENT)),
            certificate=None,
            claim=claim(privacy.epsilon),
        )

    votes, ask = voting(Voting(method.start == "voted", method.vote_noise), settings, facts, time=0)

    def spends(noise: float) -> list[Spend]:
        return [*shared, *ask, *tuning_spends(tuning, privacy, "DP-SGD on the score network", noise)]

    noise, certificate = calibrated(privacy, spends)
    source = "not in the paper: DP-SGD in place of the randomised response, and so the certificate's own number"
    return Plan(
        method=method.name,
        facts=facts,
        generation=settings.generation,
        evaluations=evaluations,
        privacy=privacy,
        own_start=public_start(settings, facts),
        votes=votes,
        fine_tuning=tuning,
        noise_multiplier=noise,
        spends=tuple(spends(noise)),
        certificate=certificate,
        claim=Claim(epsilon=certificate.epsilon, source=source) if certificate else UNCLAIMED,
    )


def _check(settings: SettingsOf[Method], facts: Facts) -> None:
    from sfumato.costs import denoiser_work
    from sfumato.label_rows import label_codes
    from sfumato.networks.autoencoder import latent_shape

    method, shape = settings.method, latent_shape(settings.latent, facts.shape)
    own = blueprint(settings, shape, facts)
    if method.start == "voted" and facts.public_classes < max(len(facts.classes), FEWEST_CHOICES):
        raise BadInput(
            f"method.start=voted needs a public class for each of the {len(facts.classes)} private ones, and two at least, and there are "
            f"{facts.public_classes}: use more public classes, or method.start=public"
        )
    known = facts.public_classes if method.start != "nothing" else 0
    label_codes(len(facts.classes) + known, rows_shape(settings, shape))
    denoiser_work(own.network, own.shape, own.classes)  # refuses what does not fit, and holds no weights
    if method.mechanism == "dp_sgd":
        if method.energy == "exact":
            raise BadInput(
                "method.energy=exact is learnt by gradients of gradients, which method.mechanism=dp_sgd cannot clip record by record: use "
                "method.energy=line"
            )
        if method.start == "nothing" and ("rest" not in settings.fine_tuning.trainable or settings.fine_tuning.rank):
            raise BadInput(
                f"fine_tuning.trainable={list(settings.fine_tuning.trainable)} with rank {settings.fine_tuning.rank} would leave most "
                "of the network as it was drawn at random, since it begins afresh: use --set fine_tuning.trainable=[film,time,rest] "
                "--set fine_tuning.rank=0, or method.start=public"
            )
        return
    if method.start != "nothing":
        raise BadInput(
            f"method.start={method.start} is for method.mechanism=dp_sgd: the paper's training begins afresh, and takes no public images; use "
            "method.start=nothing"
        )
    if method.labels == "given" and method.objective == "plain":
        raise BadInput(
            "method.labels=given needs a score at every noise level, and method.objective=plain learns it at none: use method.labels=drawn"
        )
    batch = method.training.batch
    if batch > facts.records:
        raise BadInput(f"method.training.batch={batch} is more than the {facts.records} private records: use fewer")
    if method.k > batch:
        raise BadInput(
            f"method.k={method.k} is more than the method.training.batch={batch} vectors that it chooses from: lower k, or raise "
            "the batch"
        )


def blueprint(settings: SettingsOf[Method], shape: tuple[int, int, int], facts: Facts) -> Blueprint:
    """The score network for images or latents of `shape` with the rows of their label; classes are no input of it."""
    network = Network(**settings.method.network.model_dump())
    if settings.method.energy == "exact":
        network = network.model_copy(update={"prediction": "energy"})
    return Blueprint(network=network, shape=joint_shape(settings, shape), classes=1)


def public_start(settings: SettingsOf[Method], facts: Facts) -> OwnStart | None:
    """What the score network learns from public images before private ones; None where it begins afresh."""
    from sfumato.networks.autoencoder import latent_shape

    if settings.method.start == "nothing":
        return None
    return OwnStart(
        blueprint=blueprint(settings, latent_shape(settings.latent, facts.shape), facts),
        training=settings.method.pretraining,
        rows=settings.method.label_rows,
        before=len(facts.classes),
        classes=facts.public_classes,
    )


def joint_shape(settings: SettingsOf[Method], shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Shape of images of `shape` with the rows of their labels."""
    return shape[0], shape[1] + settings.method.label_rows, shape[2]


def rows_shape(settings: SettingsOf[Method], shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Shape of a label's rows beside images of `shape`."""
    return shape[0], settings.method.label_rows, shape[2]


def codes_of(settings: SettingsOf[Method], parts: Parts) -> Tensor:
    """The codes of the private classes, `[classes, c, rows, w]`: their own, or those of the public classes that they voted for."""
    from sfumato.label_rows import label_codes

    count, shape = len(parts.facts.classes), rows_shape(settings, parts.shape)
    if parts.winners is None:
        return label_codes(count, shape)
    return label_codes(count + parts.facts.public_classes, shape)[count:][parts.winners.cpu()]


def joined(settings: SettingsOf[Method], parts: Parts, x: Tensor, y: Tensor) -> Tensor:
    """u: images x `[b, c, h, w]` with the rows of their labels y `[b]` below."""
    from sfumato.label_rows import with_rows

    return with_rows(x, y, codes_of(settings, parts))


def labels(settings: SettingsOf[Method], parts: Parts, u: Tensor) -> tuple[Tensor, Tensor]:
    """The images `[b, c, h, w]` in u, clamped to their range, and the labels `[b]` whose codes are nearest to their rows."""
    import torch

    x, rows = u.split([parts.shape[1], settings.method.label_rows], 2)
    limit, codes = parts.schedule.limit, codes_of(settings, parts).to(u.device)
    return x.clamp(-limit, limit), torch.cdist(rows.flatten(1), codes.flatten(1)).argmin(1)


def score_at(schedule: NoiseSchedule, model: nn.Module, t: Tensor) -> Score:
    """The score of noised images x_t `[b, ...]` at times t `[b]`: minus the predicted noise over its level."""
    import torch

    from sfumato.diffusion.samplers import NO_CLASS

    return lambda x_t: -model(x_t, t, torch.full_like(t, NO_CLASS)) / schedule.noise(t)


def score_alone(model: nn.Module) -> Score:
    """The score of the images themselves."""
    import torch

    from sfumato.diffusion.samplers import NO_CLASS

    def score(u: Tensor) -> Tensor:
        t = torch.full((len(u),), ONE_LEVEL, device=u.device)
        return -model(u, t, torch.full_like(t, NO_CLASS))

    return score


def log_density(model: nn.Module, t: int, noise: float) -> Callable[[Tensor], Tensor] | None:
    """The log density of images x_t `[b, ...]` with this noise, `[b]` up to a constant, where the network has an energy."""
    import torch

    from sfumato.diffusion.samplers import NO_CLASS
    from sfumato.networks.energy import EnergyGradient

    if not isinstance(model, EnergyGradient):
        return None

    def density(x_t: Tensor) -> Tensor:
        times = torch.full((len(x_t),), t, device=x_t.device)
        return -model.energy(x_t, times, torch.full_like(times, NO_CLASS)) / noise

    return density


def loss(settings: SettingsOf[Method], parts: Parts) -> Callable[[nn.Module, Tensor, Tensor, Generator], Tensor]:
    """Algorithm 1, lines 4 to 12: Eq. 7 with exchanged projections, of each image, `[b]`; b may be 0."""
    from sfumato.diffusion.objective import normal, uniform_times
    from sfumato.diffusion.schedule import add_noise
    from sfumato.diffusion.score_matching import exchanged, sliced_losses

    method, schedule = settings.method, parts.schedule
    keep, _ = response_probabilities(settings.privacy.epsilon, method.k)

    def losses(model: nn.Module, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
        u = joined(settings, parts, x, y)
        # A Poisson batch may hold fewer images than k; vectors cost nothing.
        drawn = normal(u.new_empty(max(len(u), method.k), math.prod(u.shape[1:])), generator)
        answered = exchanged(drawn, keep=keep, k=method.k, generator=generator)
        v, answered = (vectors[: len(u)].view_as(u) for vectors in (drawn, answered))
        if method.objective == "plain":
            return sliced_losses(score_alone(model), u, v, answered)
        t = uniform_times(len(u), 1, schedule.timesteps, generator, u.device)
        x_t = add_noise(schedule, u, t, normal(u, generator))
        # Weighed by the noise, so that all levels count alike.
        return schedule.noise(t).flatten().square() * sliced_losses(score_at(schedule, model, t), x_t, v, answered)

    return losses


def corrupt(settings: SettingsOf[Method], parts: Parts) -> Corrupt:
    """For DP-SGD: plain denoising of images with their labels, on all times 1..T."""
    import torch

    from sfumato.diffusion.objective import denoising_examples
    from sfumato.diffusion.samplers import NO_CLASS

    def examples(x: Tensor, y: Tensor, generator: Generator) -> Examples:
        horizon, draws = settings.schedule.timesteps, settings.fine_tuning.draws
        u, none = joined(settings, parts, x, y), torch.full_like(y, NO_CLASS)
        return denoising_examples(parts.schedule, u, none, draws=draws, low=1, high=horizon, generator=generator)

    return examples


@without_gradients
def draw(settings: SettingsOf[Method], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """b images with the rows of their labels, `[b, c, h + rows, w]` (Algorithm 2).

    The values of y `[b]` play no part, unless labels are given: the network draws each class as often as it has learnt.
    """
    import torch

    from sfumato.diffusion.hamiltonian import Dynamics, walked
    from sfumato.diffusion.objective import normal
    from sfumato.methods.parts import planned

    sampling, method, schedule = settings.generation.hamiltonian, settings.method, parts.schedule
    alone = method.mechanism == "randomised_response" and method.objective == "plain"
    given = codes_of(settings, parts).to(y.device)[y] if method.labels == "given" else None

    def at(factor: float) -> Dynamics:
        model = planned(parts.tuned)
        if alone:
            return Dynamics(score_alone(model), sampling.step_size * factor, log_density(model, ONE_LEVEL, 1.0))
        t, noise = level(schedule, min(sampling.start, sampling.noise * factor))
        signal, times = float(schedule.alpha_bar[t]) ** 0.5, torch.full((len(y),), t, device=y.device)
        if given is not None:
            return Dynamics(
                wanted(score_at(schedule, model, times), given, signal, noise),
                sampling.step_size * noise / sampling.noise,
            )
        score, density = score_at(schedule, model, times), log_density(model, t, float(schedule.noise(times[:1])))
        # Of images with noise added, u + noise z, which are x_t over the signal.
        return Dynamics(
            lambda u: signal * score(signal * u),
            sampling.step_size * noise / sampling.noise,
            density and (lambda u: density(signal * u)),
        )

    start = normal(torch.empty(len(y), *joint_shape(settings, parts.shape), device=y.device), generator)
    return walked(sampling, at, sampling.start * start, generator=generator)


def wanted(score: Score, codes: Tensor, signal: float, noise: float) -> Score:
    """The score of images with their rows, u + noise z, where the label of each is known: that of the network for the image, and of a Gaussian
    around its code `[b, c, rows, w]` for the rows.

    `score` is that of signal (u + noise z).
    """
    import torch

    def known(u: Tensor) -> Tensor:
        height = u.shape[2] - codes.shape[2]
        return torch.cat([signal * score(signal * u)[:, :, :height], (codes - u[:, :, height:]) / noise**2], 2)

    return known


def level(schedule: NoiseSchedule, noise: float) -> tuple[int, float]:
    """The time at which the noise on an image of full signal is nearest to `noise`, in ratio, and that noise."""
    signal = schedule.alpha_bar[1:].double()
    ratios = ((1 - signal) / signal).sqrt()
    nearest = int((ratios.log() - math.log(noise)).abs().argmin())
    return nearest + 1, float(ratios[nearest])


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    corrupt=corrupt,
    loss=loss,
    labels=labels,
    blueprint=blueprint,
    ballot=nearest_image_class,
    distinct=lambda settings: settings.method.start == "voted",
)
