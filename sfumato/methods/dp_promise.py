"""dp-promise: a private diffusion model whose large times are trained without DP-SGD (Wang et al. 2024).

Phase I trains the times S..T on noised private images with an ordinary optimiser, without labels; Phase II starts from
its averaged weights and trains the times 1..S-1 with DP-SGD, with labels. Both keep the network on
the time as it is (section 5.2). Images are drawn by the result alone (Algorithm 2): rho is `generation.eta`, T' `generation.steps`, w
`generation.guidance`.

Certificate: none with the paper's Phase I, whose loss uses the drawn noise, so that a step reveals more than the noised image
does. Two variants are certified by PLD: no Phase I at all, and a Phase I on a copy of each image that was noised to S once
(`NoisedRecords`, under replace_one, composed with Phase II). Not covered: Phase I with labels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sfumato.config import MethodSection, ParameterGroup, Schedule, SettingsOf, Training
from sfumato.errors import BadInput
from sfumato.methods.algorithm import Algorithm
from sfumato.methods.plan import (
    STAGE_PHASE_ONE,
    UNCLAIMED,
    Claim,
    Facts,
    PhaseOne,
    Plan,
    Spend,
    calibrated,
    shared_spends,
    tuning_spends,
)
from sfumato.methods.sampling import draw, network_evaluations, walk
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import AnyEvent, NoisedRecords, Uncertified
from sfumato.privacy.accounting.gdp import checked_count, checked_delta, checked_positive

if TYPE_CHECKING:  # to list settings takes no torch
    from torch import Generator, Tensor

    from sfumato.diffusion.objective import Corrupt, Examples
    from sfumato.methods.parts import Parts

FIXED: tuple[ParameterGroup, ...] = ("time",)
"""Groups that neither phase trains: the network on the time stays as public images taught it (section 5.2)."""
PIXEL_RANGE = 2.0
"""Range of one value of an image: images lie in [-1, 1] (section 5.1)."""
FEWEST_TIMES = 2
"""A linear schedule has two ends."""
NOISE_RANGE = (1e-3, 1e6)
"""Noise multipliers between which the claim is brought to its target."""
MOST_CLAIMED, CLOSE = 1e9, 1e-9
"""Stands for an infinite claim in that search, which needs numbers; and the error of the noise's logarithm at which it ends."""
LEAK = Uncertified(
    reason="the loss of Phase I compares the prediction with the noise that was drawn, so that one step can show whether "
    "an image was trained on"
)
"""The event of the paper's Phase I."""

PROMISE = """\
The paper claims (epsilon, delta)-DP for the whole run by composing two central-limit formulas, one for the noise that \
diffusion adds to the images of Phase I and one for the DP-SGD of Phase II. Of these, Phase II alone can be certified. \
In Phase I the loss uses the noise that was drawn, so a single step can leak membership. Even if nothing but the noised \
images were released, the Phase I of two epochs on MNIST that the formula prices at epsilon 0.12 would cost 10.1 under \
replace-one at delta 1e-5, and under add/remove no delta below 0.86 would hold. For Phase II at noise 1.13, the limit \
formula says 9.94 where PLD gives 10.41. Certified instead: no Phase I, or one trained on a copy of each image that is \
noised once (4.0 there, replace-one)."""
"""The paper's claim, the certificate, and why they differ (Markdown)."""


class PhaseOneTraining(Training):
    """Phase I; by default three epochs of the embedded digits, at the batch and rate of the paper (section 6.2)."""

    steps: int = Field(default=135, ge=0)
    """Optimiser steps N_1."""
    batch: int = Field(default=32, ge=1)
    """Expected images per step, m_1."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Peak learning rate of Adam, eta_1."""
    warm_up: int = Field(default=10, ge=0)
    """Steps over which the learning rate rises."""
    ema_decay: float = Field(default=0.97, ge=0, lt=1)
    """Decay of the moving average of the weights, with which Phase II goes on."""


class Method(MethodSection):
    """dp-promise's own settings."""

    name: Literal["dp-promise"] = "dp-promise"
    """Large times on noised images, small times by DP-SGD."""
    phase_one: Literal["paper", "noised_once", "off"] = "off"
    """`paper`: as published, without a certificate; `noised_once`: on one noised copy of each image, certified under replace_one;
    `off`: Phase II alone, the large times as public pretraining left them."""
    boundary: float = Field(default=0.9, gt=0, le=1)
    """S, the smallest time of Phase I, as a share of T."""
    training: PhaseOneTraining = PhaseOneTraining()
    """Phase I."""


class TwoPhaseClaim(Claim):
    """The claim with its Gaussian differential privacy (GDP) parameters."""

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

    Many parameters: each is a number of the paper's, by its name there.
    """
    delta, noise = checked_delta(delta), checked_positive("noise_multiplier", noise_multiplier)
    mu_base = one_image(_at_least_one("dimension", dimension), _level(boundary, timesteps, beta_start, beta_end))
    mu_one = _phase(mu_base, records, "batch_one", batch_one, "epochs_one", epochs_one)
    mu_two = _phase(1 / noise, records, "batch_two", batch_two, "epochs_two", epochs_two)
    return composed(mu_base, mu_one, mu_two, delta)


def one_image(dimension: float, level: float) -> float:
    """The mu of one image of `dimension` values noised to signal level alpha_bar = `level` (Proposition 2)."""
    return PIXEL_RANGE * math.sqrt(dimension * level / (1 - level)) if level < 1 else math.inf


def composed(mu_base: float, mu_one: float, mu_two: float, delta: float, reason: str = "") -> TwoPhaseClaim:
    """The claim of Theorem 2; `reason` adds to the source of the number."""
    mu = accountant.compose_gdp([mu_one, mu_two])
    return TwoPhaseClaim(
        epsilon=accountant.gdp_epsilon(mu, delta),
        source="Wang et al. 2024, Theorem 2: GDP central limit, add/remove, Poisson sampling; "
        + (reason or "Phase I taken for a Gaussian mechanism, which its loss is not"),
        mu_base=mu_base,
        mu_one=mu_one,
        mu_two=mu_two,
        mu=mu,
    )


def _level(boundary: int, timesteps: int, beta_start: float, beta_end: float) -> float:
    """alpha_bar at time `boundary` of the linear schedule."""
    from sfumato.diffusion.schedule import signal_levels

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


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where S, the relation, the trained groups or the budget do not fit."""
    from sfumato.diffusion.schedule import signal_levels
    from sfumato.networks.autoencoder import largest_norm

    method, tuning, privacy = settings.method, settings.fine_tuning, settings.privacy
    start = boundary(settings)
    _check(settings, facts, start)
    level = float(signal_levels(settings.schedule)[start])
    base = one_image(largest_norm(settings.latent, facts.shape) ** 2, level)
    # A certificate is relative to the norm of one image, of which an exchange moves the release by two.
    events: dict[str, list[AnyEvent]] = {
        "off": [],
        "paper": [LEAK],
        "noised_once": [NoisedRecords(noise_multiplier=PIXEL_RANGE / base)],
    }
    what = {"paper": f"Phase I: plain training on times {start} to {settings.schedule.timesteps}"}
    what["noised_once"] = f"Phase I: each image noised once to time {start}"

    shared = shared_spends(settings)

    def spends(noise: float) -> list[Spend]:
        first = [Spend(stage=STAGE_PHASE_ONE, what=what[method.phase_one], event=e) for e in events[method.phase_one]]
        return [
            *shared,
            *first,
            *tuning_spends(tuning, privacy, f"Phase II: DP-SGD on times 1 to {start - 1}", noise),
        ]

    if method.phase_one == "paper" and privacy.epsilon != math.inf:
        noise, certificate = noise_of_claim(settings, facts, base), None
    else:
        noise, certificate = calibrated(privacy, spends)
    training = Training(**method.training.model_dump())
    first = PhaseOne(boundary=start, noised_once=method.phase_one == "noised_once", training=training, fixed=FIXED)
    return Plan(
        method=method.name,
        facts=facts,
        phase_one=None if method.phase_one == "off" else first,
        fine_tuning=tuning,
        noise_multiplier=noise,
        generation=settings.generation,
        evaluations=network_evaluations(settings),
        spends=tuple(spends(noise)),
        privacy=privacy,
        certificate=certificate,
        claim=claim_of(settings, facts, base, noise) if noise else UNCLAIMED,
    )


def boundary(settings: SettingsOf[Method]) -> int:
    """S as a diffusion time."""
    return round(settings.method.boundary * settings.schedule.timesteps)


def _check(settings: SettingsOf[Method], facts: Facts, start: int) -> None:
    from sfumato.diffusion.schedule import signal_levels
    from sfumato.networks.autoencoder import largest_norm

    method, horizon = settings.method, settings.schedule.timesteps
    boundary = f"method.boundary={method.boundary:g} is time {start} of schedule.timesteps={horizon}"
    if start < FEWEST_TIMES:
        raise BadInput(f"{boundary} and leaves no time to Phase II: S must lie above 1, raise method.boundary")
    if set(FIXED) & set(settings.fine_tuning.trainable):
        raise BadInput(
            f"fine_tuning.trainable={list(settings.fine_tuning.trainable)} holds the network on the time, which both phases keep as "
            "it is: leave `time` out"
        )
    if method.phase_one != "off" and method.training.batch > facts.records:
        raise BadInput(
            f"method.training.batch={method.training.batch} is more than the {facts.records} private records: use fewer"
        )
    if method.phase_one != "noised_once":
        return
    if start == horizon:
        raise BadInput(f"{boundary} and leaves no time to Phase I, which here begins above S: lower method.boundary")
    if settings.privacy.relation != "replace_one":
        raise BadInput(
            f"method.phase_one=noised_once has no certificate under privacy.relation={settings.privacy.relation}, because the "
            "noised images show how many records there are: use --set privacy.relation=replace_one"
        )
    base = one_image(largest_norm(settings.latent, facts.shape) ** 2, float(signal_levels(settings.schedule)[start]))
    alone = accountant.gdp_epsilon(base, settings.privacy.delta)
    if alone >= settings.privacy.epsilon:
        raise BadInput(
            f"{boundary}, where noising each image once costs epsilon {alone:.4g} of privacy.epsilon={settings.privacy.epsilon:g} by "
            "itself: raise method.boundary"
        )


def mus(settings: SettingsOf[Method], facts: Facts, base: float, noise: float) -> tuple[float, float]:
    """mu_1 and mu_2 of the planned run: the numbers that the paper composes (Lemmas 4 and 5)."""
    method, tuning = settings.method, settings.fine_tuning
    rate = min(1.0, method.training.batch / facts.records)
    first = {"off": 0.0, "noised_once": base, "paper": accountant.poisson_clt([base], rate, method.training.steps)}
    return first[method.phase_one], accountant.poisson_clt(
        [1 / noise], tuning.sample_rate, tuning.trainings * tuning.steps
    )


def claim_of(settings: SettingsOf[Method], facts: Facts, base: float, noise: float) -> Claim:
    """The claim of the paper's analysis for the planned run."""
    reasons = {
        "off": "Phase II alone",
        "noised_once": "Proposition 2 once in place of Phase I, where a record is exchanged",
        "paper": "",
    }
    two_phases = composed(
        base, *mus(settings, facts, base, noise), settings.privacy.delta, reasons[settings.method.phase_one]
    )
    return Claim(epsilon=two_phases.epsilon, source=two_phases.source)


def noise_of_claim(settings: SettingsOf[Method], facts: Facts, base: float) -> float:
    """The noise at which the claim is the target, as the authors choose it; `BadInput` where Phase I alone claims more."""
    from scipy.optimize import brentq

    target, delta = settings.privacy.epsilon, settings.privacy.delta
    low, high = map(math.log, NOISE_RANGE)

    def excess(log_noise: float) -> float:
        epsilon = accountant.gdp_epsilon(accountant.compose_gdp(mus(settings, facts, base, math.exp(log_noise))), delta)
        return min(epsilon, MOST_CLAIMED) - target

    if (least := excess(high) + target) >= target:
        raise BadInput(
            f"method.boundary={settings.method.boundary:g} and method.training.steps={settings.method.training.steps}: the paper "
            f"claims epsilon {least:.4g} for Phase I alone, of privacy.epsilon={target:g}; raise the boundary or take fewer steps"
        )
    return NOISE_RANGE[0] if excess(low) < 0 else math.exp(brentq(excess, low, high, xtol=CLOSE))


def corrupt(settings: SettingsOf[Method], parts: Parts) -> Corrupt:
    """Phase II: plain denoising on the times 1..S-1, with labels (Algorithm 1, lines 9 to 12)."""
    from sfumato.diffusion.objective import denoising_examples

    def examples(x: Tensor, y: Tensor, generator: Generator) -> Examples:
        draws, high = settings.fine_tuning.draws, boundary(settings) - 1
        return denoising_examples(parts.schedule, x, y, draws=draws, low=1, high=high, generator=generator)

    return examples


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    walk=walk,
    corrupt=corrupt,
)
