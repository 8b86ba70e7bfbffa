"""DP ensemble: sampling from many non-private diffusion models, clipped and averaged (Anonymous 2023).

k members are trained without protection, each on the private records that a keyed hash deals to its shard. At each
sampling step every member's prediction is clipped to norm C/2, the average stands in for the prediction, and the noise
that ancestral sampling adds anyway makes the step a Gaussian mechanism (Theorem 3.3). Formulation A averages predictions
of the noise, B of the clean image. The steps that cost most, the first and the last, depend least on the data and are
left to a public model.

Sensitivity: adding or removing a record changes the data of one member, and possibly all of its predictions; the average moves
by C/k at most. An exchange may change two members, which the accountant counts as twice that. Steps and images compose
exactly, as Gaussian differential privacy.

Beyond the paper: clipping applies to a prediction's deviation from the public model's (same sensitivity, shorter vectors, so
that clipping loses less), the norm may follow from the budget, and a few images per class can be drawn privately as prototypes
from which the public model then draws any number (post-processing; Meng et al. 2022, SDEdit), or from which it learns (distillation).
Members may be small heads behind the public network, which is asked once for all of them, so that there can be hundreds; and a
deviation may be projected on principal directions of public images before it is clipped. A projection fixed by public data brings
no vector outside the ball that it is clipped to afterwards, so the sensitivity is what it was.

A shard that lacks classes trains its member on the others, and the member of an empty shard is the public model: no run is
refused for a shard's content, which would reveal single records.

Not covered: a statement about the members, which are not private and never leave; about more images than were paid for.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field

from sfumato.config import LATER, MethodSection, Pretraining, Schedule, SettingsOf
from sfumato.errors import BadInput
from sfumato.marks import PROTOTYPES, not_for
from sfumato.methods.algorithm import Algorithm, without_gradients
from sfumato.methods.plan import (
    ANY_NUMBER,
    STAGE_DRAWING,
    Certificate,
    Claim,
    Facts,
    Members,
    Plan,
    Spend,
    refuse_infinite,
    shared_spends,
)
from sfumato.methods.sampling import draw as draw_by_one
from sfumato.methods.sampling import walk
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.accounting.gdp import checked_count, checked_delta, checked_positive

if TYPE_CHECKING:  # to list settings takes neither torch nor numpy
    import numpy as np
    from torch import Generator, Tensor

    from sfumato.diffusion.objective import Randomness
    from sfumato.methods.parts import Parts
    from sfumato.privacy.auditing.played import Played

Kind = Literal["cosine", "linear"]
"""Noise schedules: cosine (Nichol and Dhariwal 2021, Eq. 17) or linear (Ho et al. 2020)."""
Formulation = Literal["A", "B", "min"]
"""The averaged prediction: noise (A), clean image (B), or at each t the cheaper one."""

BASE_TIMESTEPS = 1000
"""T of the schedule that the models are trained on (Table 1), before sampling is respaced to fewer steps."""
FEWEST_STEPS = 2
"""Respacing keeps both ends of the base schedule."""
ROUNDING = 1e-9
"""Distance from an integer that rounding explains."""
DIGITS = 4
"""Significant digits of an advised radius."""
LOUD = 1e4
"""Value of the extreme member's prediction in an audit, which is clipped."""
TRAINING_IMAGES = 1000
"""Size of a set that is worth training on: the plan states how many members it needs."""

PROMISE = """\
The paper claims (epsilon, delta)-DP for each generated image: a step adds its sampling noise to the average of k \
clipped predictions, so it is a Gaussian mechanism of sensitivity C/k, and the steps compose exactly as Gaussian \
differential privacy. That holds, and can be certified, but only for the number of images that are released together. \
The paper prices one image, trusting that users do not share results; its setting of Figure 3 \
(cosine, k = 100, C = 110) costs epsilon 16.7 for one image and 579 for a hundred at delta 1e-5, because mu grows with the \
square root of the number. The last step adds no noise and has to be taken by a public model. With `method.prototypes` few images are paid \
for, from which public parts draw any number. The members themselves are not private."""
"""The paper's claim, the certificate, and why they differ (Markdown)."""


class MemberTraining(Pretraining):
    """Training of one member on its shard; by default made for about seventy records of the embedded digits."""

    steps: int = Field(default=400, ge=0)
    """Optimiser steps."""
    batch: int = Field(default=64, ge=1)
    """Records per step."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate of Adam."""
    warm_up: int = Field(default=20, ge=0)
    """Steps over which the learning rate rises."""
    ema_decay: float = Field(default=0.97, ge=0, lt=1)
    """Decay of the moving average of the weights."""


class Distillation(Pretraining):
    """Training of the public model on the prototypes, which have been paid for."""

    steps: int = Field(default=0, ge=0)
    """Optimiser steps; 0 draws from noised prototypes instead."""
    batch: int = Field(default=64, ge=1)
    """Prototypes per step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate of Adam."""
    ema_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay of the moving average of the weights."""


class Method(MethodSection):
    """The ensemble's own settings."""

    name: Literal["dp-ensemble"] = "dp-ensemble"
    """Models of disjoint shards, their predictions clipped and averaged."""
    members: int = Field(default=20, ge=1)
    """Number of shards and of models, k. The images that a budget pays for grow with its square."""
    key: str = Field(default="shards", min_length=1, max_length=16)
    """Key of the hash that deals records to shards; no secret."""
    training: MemberTraining = MemberTraining()
    """Training of each member, from the public denoiser on."""
    start: Annotated[Literal["public", "scratch"], LATER] = "public"
    """What a member's training begins with: the public denoiser, or a network of that size that has seen nothing (`scratch`; the paper's on MNIST)."""
    adapters: Annotated[int, Field(ge=0), LATER] = 0
    """Hidden numbers of a member that is a small head on the public denoiser's features, trained and asked together with all others; 0 trains a
    whole denoiser for each. Hundreds of members take heads."""
    abstain: Annotated[bool, LATER] = False
    """Heads say nothing of a class that their shard has no record of, and the average is over the number of members that have one, as the number of
    records and classes lets expect. For shards of a few records."""
    clipped: Literal["deviation", "prediction"] = "deviation"
    """`prediction`: what a member predicts, as in the paper; `deviation`: by how much it differs from the public model's."""
    directions: Annotated[int, Field(ge=0), LATER] = 0
    """Principal directions of the public images, or latents, that a deviation is projected on before it is clipped; 0 takes it as it is."""
    radius: float | None = Field(default=None, gt=0)
    """Norm that it is clipped to, C/2; null takes the largest that `privacy.epsilon` pays for."""
    formulation: Formulation = "min"
    """What is averaged: the predicted noise (A), the predicted clean image (B), or at each time what costs less (min)."""
    skip_first: float = Field(default=0.0, ge=0, le=1)
    """Share of the sampling steps, the first ones, that the public model takes."""
    skip_last: float = Field(default=0.08, ge=0, le=1)
    """Share of the sampling steps, the last ones, that the public model takes; at least one step, which adds no noise."""
    prototypes: int = Field(default=0, ge=0)
    """Images per class that are drawn privately and that the public model then draws any number from (`generation.redraw`); 0
    draws each image privately."""
    distillation: Annotated[Distillation, LATER, not_for(PROTOTYPES)] = Distillation()
    """Training of the public denoiser on the prototypes, from which it then draws any number from noise on."""


class SampledClaim(Claim):
    """The claim with its Gaussian differential privacy parameter."""

    mu: float
    """All private steps of all images together."""


@dataclass(frozen=True)
class Respaced:
    """Ancestral sampling on a thinned schedule, float64 `[steps]` each, from the last sampling step (entry 0) to the first."""

    times: Sequence[int]
    """The time that the step starts from."""
    level: np.ndarray
    """alpha_bar there."""
    before: np.ndarray
    """alpha_bar where it ends, 1 for entry 0."""

    @property
    def alpha(self) -> np.ndarray:
        """alpha_t of the thinned schedule, `[steps]`."""
        return self.level / self.before

    @property
    def sigma(self) -> np.ndarray:
        """Standard deviation of the noise that the step adds, `[steps]`: the posterior's (Ho et al. 2020, Eq. 7); 0 for entry 0."""
        import numpy as np

        return np.sqrt((1 - self.alpha) * (1 - self.before) / (1 - self.level))

    @property
    def of_image(self) -> np.ndarray:
        """Weight of the predicted clean image in the step's mean, `[steps]` (Ho et al. 2020, Eq. 7)."""
        import numpy as np

        return np.sqrt(self.before) * (1 - self.alpha) / (1 - self.level)

    @property
    def of_start(self) -> np.ndarray:
        """Weight of the image that the step starts from, `[steps]`."""
        import numpy as np

        return np.sqrt(self.alpha) * (1 - self.before) / (1 - self.level)

    @property
    def scales(self) -> tuple[np.ndarray, np.ndarray]:
        """(xi_A, xi_B), `[steps]` each: the step's noise relative to the predicted noise or image that is averaged (Eqs. 7 and 8)."""
        import numpy as np

        of_noise = (1 - self.alpha) / (np.sqrt(self.alpha) * np.sqrt(1 - self.level))
        return self.sigma / of_noise, self.sigma / self.of_image


def respaced(schedule: Schedule, steps: int) -> Respaced:
    """The schedule thinned to the times 1 + round(i (T - 1) / (steps - 1)), which keep both its ends; 2 <= `steps` <= T."""
    import numpy as np

    from sfumato.diffusion.schedule import signal_levels

    thinned = (i * (schedule.timesteps - 1) / (steps - 1) for i in range(steps))
    times = [1 + round(place) for place in thinned]
    level = signal_levels(schedule)[times]
    return Respaced(times, level, np.concatenate([[1.0], level[:-1]]))


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
    of_noise, of_image = respaced(Schedule(kind=schedule, timesteps=BASE_TIMESTEPS), count).scales
    return of_noise.tolist(), of_image.tolist()


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

    Many parameters: each is a number of the paper's, by its name there.
    """
    delta, reach = checked_delta(delta), checked_positive("clip_diameter", clip_diameter)
    models = checked_positive("members", checked_count("members", members))
    if formulation not in get_args(Formulation):
        raise BadInput(f"formulation = {formulation!r}: choose one of {', '.join(get_args(Formulation))}")
    of_noise, of_image = noise_scales(schedule, steps)
    first, last = checked_count("skip_first", skip_first), checked_count("skip_last", skip_last)
    if first + last > len(of_noise):
        raise BadInput(f"skip_first + skip_last = {first + last}: must be at most steps = {len(of_noise)}")
    one = reach * cost_of_one(of_noise, of_image, formulation, first, last) / models
    return _composed(one, checked_count("images", images), delta)


def cost_of_one(
    of_noise: Sequence[float], of_image: Sequence[float], formulation: Formulation, first: int, last: int
) -> float:
    """sqrt(sum_t 1 / xi_t^2) over the private steps of one image: its mu at k = C = 1; `math.inf` with a step without noise.

    Members are clipped by it, so that nothing of the accounting may be in it, whose code is in no cache key.
    """
    quietest = {"A": of_noise, "B": of_image, "min": list(map(max, of_noise, of_image))}[formulation]
    private = quietest[last : len(quietest) - first]
    return math.hypot(*(1 / scale if scale else math.inf for scale in private))


def _composed(one: float, images: int, delta: float) -> SampledClaim:
    mu = one * math.sqrt(images) if images else 0.0
    return SampledClaim(
        epsilon=accountant.gdp_epsilon(mu, delta),
        source=f"Anonymous 2023 (DP ensemble), Theorem 3.3: GDP over the steps of {images} image(s), one record in one member",
        mu=mu,
    )


# ---------------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True)
class Window:
    """The sampling steps that the members take."""

    grid: Respaced
    first: int
    """Steps of the public model at the beginning."""
    last: int
    """Steps of the public model at the end."""

    def private(self, index: int) -> bool:
        """Whether the members take the step at this place of the grid."""
        return self.last <= index < len(self.grid.times) - self.first

    @property
    def steps(self) -> int:
        """Number of steps that the members take."""
        return len(self.grid.times) - self.first - self.last

    def formulations(self, choice: Formulation) -> list[Formulation]:
        """A or B for each step of the grid: the chosen one, or the one with the larger noise."""
        if choice != "min":
            return [choice] * len(self.grid.times)
        return ["A" if a > b else "B" for a, b in zip(*self.grid.scales, strict=True)]


def window(settings: SettingsOf[Method]) -> Window:
    """The grid and the members' part of it, with at most T steps."""
    steps, method = min(settings.generation.steps, settings.schedule.timesteps), settings.method
    grid = respaced(settings.schedule, max(FEWEST_STEPS, steps))
    return Window(grid, round(method.skip_first * steps), round(method.skip_last * steps))


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where shards, sampler, window or budget do not fit."""
    method, privacy, generation = settings.method, settings.privacy, settings.generation
    _check(settings, facts)
    refuse_infinite(privacy, f"method.name={method.name}", "the noise of its drawing is what hides a record")
    paid = method.prototypes * len(facts.classes) or generation.images
    own, shared = window(settings), shared_spends(settings)
    events = [spend.event for spend in shared]
    # The noise multiplier that one image would need beside the shared events, and the one that it has at radius 1.
    needed = accountant.calibrate(
        privacy.epsilon, privacy.delta, lambda noise: [*events, Gaussian(noise_multiplier=noise)], privacy.relation
    )
    at_one = voices(settings, facts) / (2 * unit_cost(settings))
    radius = method.radius or at_one / (needed * math.sqrt(paid))
    noise = at_one / radius
    most = math.floor((noise / needed) ** 2 * (1 + ROUNDING))
    takes = least_members(settings, facts, 2 * unit_cost(settings) * radius * needed * math.sqrt(paid))
    thousand = least_members(settings, facts, 2 * unit_cost(settings) * radius * needed * math.sqrt(TRAINING_IMAGES))
    if most < paid:
        many = f"method.prototypes={method.prototypes} in each of {len(facts.classes)} classes"
        way = f"{most} such images: ask for no more," if most else "no such image:"
        raise BadInput(
            f"{many if method.prototypes else f'generation.images={paid}'} with method.radius={radius:g} would cost more than "
            f"privacy.epsilon={privacy.epsilon:g}, which pays for {way} "
            f"{f'take method.members={takes}, or' if takes else 'take'} method.radius={_down(at_one / (needed * math.sqrt(paid))):g}"
        )
    event = Gaussian(noise_multiplier=noise, count=paid)
    what = (
        f"{paid} {'prototypes' if method.prototypes else 'images'}, {own.steps} of {len(own.grid.times)} steps each by "
        f"{method.members} members, the {method.clipped} clipped to norm {radius:.4g}; epsilon {privacy.epsilon:g} pays for "
        f"{most} such images, and "
        + (
            f"{TRAINING_IMAGES:,} take {thousand} members"
            if thousand
            else f"no number of members pays for {TRAINING_IMAGES:,} at that norm"
        )
    )
    return Plan(
        method=method.name,
        facts=facts,
        members=Members(
            count=method.members,
            key=method.key,
            training=Pretraining(**method.training.model_dump()),
            adapters=method.adapters,
            scratch=method.start == "scratch",
        ),
        prototypes=paid if method.prototypes else 0,
        distillation=Pretraining(**method.distillation.model_dump()) if method.distillation.steps else None,
        public_images=bool(method.directions),
        generation=generation,
        evaluations=_evaluations(settings, own, paid),
        spends=(*shared, Spend(stage=STAGE_DRAWING, what=what, event=event)),
        privacy=privacy,
        certificate=Certificate(
            **accountant.priced([*events, event], privacy.delta, privacy.relation)._asdict(),
            delta=privacy.delta,
            relation=privacy.relation,
            images=ANY_NUMBER if method.prototypes else paid,
        ),
        claim=Claim(**_composed(1 / noise, paid, privacy.delta).model_dump(exclude={"mu"})),
    )


def unit_cost(settings: SettingsOf[Method]) -> float:
    """The mu of one image at k = C = 1 for the run's schedule, steps and window."""
    own = window(settings)
    of_noise, of_image = own.grid.scales
    return cost_of_one(of_noise.tolist(), of_image.tolist(), settings.method.formulation, own.first, own.last)


def _evaluations(settings: SettingsOf[Method], own: Window, paid: int) -> int:
    """Network evaluations for one image; of the prototypes, each image's share of them, rounded up."""
    from sfumato.diffusion.samplers import evaluations

    method, generation = settings.method, settings.generation
    of_members = 0 if method.adapters else method.members * (2 if generation.guidance else 1)
    one = own.steps * of_members + len(own.grid.times)
    if not method.prototypes:
        return one
    after = walk(settings) if method.distillation.steps else redraw_walk(settings)
    return evaluations(generation, after) + math.ceil(one * paid / generation.images)


def _down(value: float) -> float:
    """The next number down with few digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS)
    return math.floor(value / unit) * unit


def _check(settings: SettingsOf[Method], facts: Facts) -> None:
    method, generation = settings.method, settings.generation
    if method.members > facts.records:
        raise BadInput(
            f"method.members={method.members} is more than the {facts.records} private records: use fewer, so that members have "
            "records to learn from"
        )
    if method.abstain and not method.adapters:
        raise BadInput(
            "method.abstain=true is for members that are heads: set method.adapters, such as 64, or method.abstain=false"
        )
    if method.start == "scratch" and method.adapters:
        raise BadInput(
            f"method.start=scratch with method.adapters={method.adapters}: heads stand on the public denoiser: use method.start=public, or "
            "method.adapters=0"
        )
    if method.directions and method.clipped == "prediction":
        raise BadInput(
            f"method.directions={method.directions} with method.clipped=prediction would leave no other image possible than one of these "
            "directions: use method.clipped=deviation, or method.directions=0"
        )
    numbers = math.prod(facts.shape)
    if settings.latent.kind == "none" and method.directions > numbers:
        raise BadInput(
            f"method.directions={method.directions} is more than the {numbers} numbers of an image: use fewer, or 0 for all"
        )
    if method.distillation.steps and not method.prototypes:
        raise BadInput(
            f"method.distillation.steps={method.distillation.steps} has no paid images to learn from: set method.prototypes, the number of them in "
            "each class, or method.distillation.steps=0"
        )
    if generation.solver != "ddim" or generation.eta != 1:
        raise BadInput(
            f"generation.solver={generation.solver} with generation.eta={generation.eta:g}: the noise of ancestral sampling is what "
            "hides a record (none is added at eta 0), so use generation.solver=ddim with generation.eta=1"
        )
    if generation.steps < FEWEST_STEPS:
        raise BadInput(
            f"generation.steps={generation.steps}: use {FEWEST_STEPS} or more, the last for the public model"
        )
    own = window(settings)
    steps = len(own.grid.times)
    if not own.last:
        raise BadInput(
            f"method.skip_last={method.skip_last:g} of {steps} steps leaves the last one to the members, where no noise hides a "
            f"record: use method.skip_last={1 / steps:.2g} or more"
        )
    if own.steps < 1:
        raise BadInput(
            f"method.skip_first={method.skip_first:g} and method.skip_last={method.skip_last:g} leave none of {steps} steps to the "
            "members: lower one of them"
        )


def redraw_walk(settings: SettingsOf[Method]) -> Sequence[int]:
    """The times that the public model passes on the way from a noised prototype to an image."""
    from sfumato.diffusion.schedule import time_grid

    generation = settings.generation
    start = max(1, round(generation.redraw * settings.schedule.timesteps))
    return time_grid(start, 0, max(1, round(generation.redraw * generation.steps)))


@without_gradients
def draw_privately(
    settings: SettingsOf[Method], parts: Parts, private: tuple[Tensor, Tensor], y: Tensor, source: Randomness
) -> Tensor:
    """Images or latents `[b, c, h, w]` of the private classes y `[b]` by members and public model, from T to 0.

    The private records themselves are not used, only the members trained on them. `source` draws the mechanism's
    noise; the clipping norm follows from the paid event.
    """
    import torch

    from sfumato.diffusion.objective import normal

    (event,) = [event for event in parts.paid if isinstance(event, Gaussian)]
    if len(y) > event.count:
        raise ValueError(f"{len(y)} images are asked for and {event.count} are paid for")
    radius = voices(settings, parts.facts, counted(parts)) / (2 * unit_cost(settings) * event.noise_multiplier)
    own, basis = window(settings), directions_of(settings, parts)
    of_image, of_start, sigma = (w.tolist() for w in (own.grid.of_image, own.grid.of_start, own.grid.sigma))
    formulations = own.formulations(settings.method.formulation)
    x = normal(torch.empty(len(y), *parts.shape, device=y.device), source)
    for index in reversed(range(len(own.grid.times))):
        t, level = torch.full_like(y, own.grid.times[index]), float(own.grid.level[index])
        noise, features = public_prediction(parts, x, t)
        if own.private(index):
            image = averaged(settings, parts, x, t, y, level, noise, formulations[index], radius, basis, features)
        else:
            image = implied(x, noise, level, parts.schedule.limit)
        x = of_image[index] * image + of_start[index] * x
        if sigma[index]:
            x = x + sigma[index] * normal(x, source)
    return x


def voices(settings: SettingsOf[Method], facts: Facts, members: int = 0) -> float:
    """What the sum of the clipped vectors is divided by: the number of members (by default the settings'), or, where some abstain, of those that
    are to be expected to have a record of a class, of the public number of records, dealt to shards and classes alike.

    A constant of public numbers, so that one record, whether it gives its member a class or not, moves the average by twice the norm over it.
    """
    count = members or settings.method.members
    if not settings.method.abstain:
        return count
    return count * (1 - (1 - 1 / (count * len(facts.classes))) ** facts.records)


def least_members(settings: SettingsOf[Method], facts: Facts, wanted: float) -> int:
    """The least number of members whose sum is divided by `wanted` or more; 0 where members abstain and no number is enough."""
    if not settings.method.abstain:
        return math.ceil(wanted * (1 - ROUNDING))
    counts = range(1, facts.records + 1)
    place = bisect.bisect_left(counts, wanted * (1 - ROUNDING), key=lambda count: voices(settings, facts, count))
    return counts[place] if place < len(counts) else 0


def counted(parts: Parts) -> int:
    """The number of members."""
    return parts.heads.count if parts.heads else len(parts.members)


def directions_of(settings: SettingsOf[Method], parts: Parts) -> Tensor | None:
    """Orthonormal columns `[c h w, directions]` that span the principal directions of the public images; None for all directions."""
    import torch

    from sfumato.methods.parts import planned

    if not settings.method.directions:
        return None
    flat = planned(parts.images).flatten(1).double()
    covariance = torch.cov(flat.T)
    return torch.linalg.eigh(covariance).eigenvectors[:, -settings.method.directions :].flip(1).float()


def public_prediction(parts: Parts, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
    """The noise `[b, c, h, w]` that the public model predicts in x at times t `[b]`, and, where heads are members, its features of it."""
    import torch

    from sfumato.adapters import Trunk
    from sfumato.diffusion.samplers import NO_CLASS

    if parts.heads:
        return Trunk(parts.public)(x, t)
    return parts.public(x, t, torch.full_like(t, NO_CLASS)), None


def predictions(
    settings: SettingsOf[Method], parts: Parts, x: Tensor, t: Tensor, y: Tensor, public: Tensor, features: Tensor | None
) -> Iterator[Tensor]:
    """The noise that members predict, `[m, b, c, h, w]` of some of them at a time, each member's guided by itself.

    Many parameters: each is a tensor of one step, or what the run holds.
    """
    from sfumato.adapters import deviations
    from sfumato.diffusion.samplers import guided
    from sfumato.methods.parts import planned

    guidance = settings.generation.guidance
    if parts.heads:
        signal = parts.schedule.signal(t)
        abstain = settings.method.abstain
        for deviation in deviations(parts.heads, planned(features), y, guidance, abstain=abstain):
            yield public + signal * deviation
    for member in parts.members:  # not stacked: that is faster on a CPU for few tiny images alone, else much slower
        yield guided(member, guidance)(x, t, y)[None]


def implied(x: Tensor, noise: Tensor, level: float, limit: float) -> Tensor:
    """The clean image that x `[b, c, h, w]` at signal level alpha_bar = `level` and the predicted noise imply, clamped to `limit`.

    As `predicted_image`, with the level in double precision, from which the noise multiplier is worked out too.
    """
    return ((x - math.sqrt(1 - level) * noise) / math.sqrt(level)).clamp(-limit, limit)


def averaged(
    settings: SettingsOf[Method],
    parts: Parts,
    x: Tensor,
    t: Tensor,
    y: Tensor,
    level: float,
    public: Tensor,
    formulation: Formulation,
    radius: float,
    basis: Tensor | None = None,
    features: Tensor | None = None,
) -> Tensor:
    """The clean image `[b, c, h, w]` by the clipped average of all members at x `[b, c, h, w]`; `public` is the public noise, `features` what
    heads see of x.

    One member's vectors have norms of at most `radius`, so that the average moves by 2 radius / k at most, whatever the
    member predicts. Guidance combines a member's own predictions before they are clipped, and so does the projection on the columns of
    `basis` `[c h w, r]`, which public images alone have fixed: no clipped vector gets longer by what happens before. What is not finite
    counts as zero; clamping the result brings two results no farther apart.

    Many parameters: each is a tensor, or a number of one formula.
    """
    import torch

    from sfumato.latents import within

    limit = parts.schedule.limit

    def view(noise: Tensor) -> Tensor:
        return noise if formulation == "A" else implied(x, noise, level, limit)

    centre = view(public) if settings.method.clipped == "deviation" else torch.zeros_like(x)
    total = torch.zeros_like(x)
    for predicted in predictions(settings, parts, x, t, y, public, features):
        deviation = (view(predicted) - centre).nan_to_num(0.0, 0.0, 0.0).flatten(0, 1).flatten(1)
        if basis is not None:
            deviation = (deviation @ basis @ basis.T).nan_to_num(0.0, 0.0, 0.0)
        total += within(deviation, radius).view(predicted.shape).sum(0)
    average = centre + total / voices(settings, parts.facts, counted(parts))
    return implied(x, average, level, limit) if formulation == "A" else average.clamp(-limit, limit)


@without_gradients
def worst_case(settings: SettingsOf[Method], parts: Parts, present: Tensor, source: Randomness) -> Played:
    """`draw_privately` of one image per entry of `present` `[b]`, with one member that darkens the image, or brightens it where that is
    True, as far as it can; for an audit.

    Stand-ins replace the networks: the public model implies an image of zeros, mid-grey, and all other members predict no deviation. They are asked as
    whole denoisers and without a projection, which could only shorten what one says: behind both comes the same clipping.
    """
    import torch

    from sfumato.privacy.auditing.played import Played, StandIn

    (event,) = [event for event in parts.paid if isinstance(event, Gaussian)]
    limit, own, method = parts.schedule.limit, window(settings), settings.method
    formulations, among = own.formulations(method.formulation), method.members
    levels = dict(zip(own.grid.times, own.grid.level.tolist(), strict=True))
    kinds = dict(zip(own.grid.times, formulations, strict=True))
    seen: list[Tensor] = []

    def silent(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        if method.clipped == "prediction" and kinds[int(t[0])] == "A":
            return torch.zeros_like(x)
        return x / math.sqrt(1 - levels[int(t[0])])

    def public(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        seen.append(x)
        return x / math.sqrt(1 - levels[int(t[0])])

    def loud(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        sign = (
            torch.where(present, -LOUD, LOUD).repeat(len(x) // len(present)).view(-1, 1, 1, 1)
        )  # less noise is brighter
        return silent(x, t, y) + sign

    paid = (
        event.model_copy(update={"count": len(present)}),
    )  # many games at once, each of fewer images than were paid for
    members = (StandIn(loud), *(StandIn(silent),) * (among - 1))
    stands = replace(parts, public=StandIn(public), members=members, heads=None, paid=paid)
    settings = settings.model_copy(update={"method": method.model_copy(update={"directions": 0})})
    nothing = torch.zeros(0, *parts.shape), torch.zeros(0, dtype=torch.long)
    x = draw_privately(settings, stands, nothing, torch.zeros(len(present), dtype=torch.long), source)
    states = dict(zip(reversed(range(len(own.grid.times))), itertools.pairwise([*seen, x]), strict=True))
    reach = 1 / (unit_cost(settings) * event.noise_multiplier)  # 2 radius / k, as it is priced
    heard = voices(settings, parts.facts)
    root = math.sqrt(math.prod(parts.shape))
    residuals, shifts = [], []
    for index in filter(own.private, states):
        (before, after), level = states[index], float(own.grid.level[index])
        other = math.sqrt(1 - level)
        if formulations[index] == "A":
            prediction = (before / other if method.clipped == "deviation" else 0.0) + reach / 2 / root
            image = ((before - other * prediction) / math.sqrt(level)).clamp(-limit, limit)
        else:
            image = torch.full_like(before, -min(reach / 2, limit * root / heard) / root)
        mean = float(own.grid.of_image[index]) * image + float(own.grid.of_start[index]) * before
        residuals.append((after - mean).flatten(1) / float(own.grid.sigma[index]))
        scale = float(own.grid.scales["AB".index(formulations[index])][index])
        shifts.append(reach / scale)
    return Played(torch.stack(residuals), torch.tensor(shifts), (0,) * len(shifts))


@without_gradients
def draw(settings: SettingsOf[Method], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Images or latents `[b, c, h, w]` of the private classes y `[b]`, drawn by the public model from noised prototypes, or by what it became
    on them.

    `parts.prototypes` holds as many of each class, class by class. Nothing but them is used (post-processing).
    """
    import torch

    if parts.tuned is not None:
        return draw_by_one(settings, parts, y, generator)

    from sfumato.diffusion.objective import normal
    from sfumato.diffusion.samplers import NO_CLASS, solve
    from sfumato.diffusion.schedule import add_noise
    from sfumato.methods.parts import planned

    each, times = settings.method.prototypes, redraw_walk(settings)
    chosen = y * each + torch.randint(each, y.shape, generator=generator, device=y.device)
    start = planned(parts.prototypes)[chosen]
    x = add_noise(parts.schedule, start, torch.full_like(y, times[0]), normal(start, generator))
    nobody = torch.full_like(y, NO_CLASS)
    return solve(settings.generation, parts.schedule, parts.public, x, nobody, times, generator=generator)


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    draw_privately=draw_privately,
    keeps_points=lambda settings: settings.method.prototypes > 0,
    worst_case=worst_case,
    has_members=True,
)
