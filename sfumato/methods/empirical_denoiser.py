"""Empirical denoiser: diffusion sampling that averages private images in place of a trained network (Anonymous 2025).

Inside a window of noise levels the denoiser E[x | x_t] is the clipped kernel mean of the private records, or of a random
sample of them; the sampler's own noise makes a step a Gaussian mechanism (section 3.1). A public network takes the
steps before the window and after it (section 3.4, appendix D). Nothing is trained on private records; every image pays
for its own steps, or a few trajectories of each class are paid for once and any number of images branches from their ends.

Certificate: exact PLD over the steps and over the requested images. Beyond the paper, as the default: terms are clipped after
the division by p_t, which bounds a step's cost whatever p_t is; p_t is estimated from public images; deviations from the
public network's prediction are averaged in place of images; an image is drawn from the records of its own class alone, so
that a record pays for the images of one class. With `pay=class` the paid trajectories end with the window, at points that are
kept: all that the public network makes of them is post-processing. With `pay=cluster` a class consists of cells around centroids of public
images, which share no record, so that one pays for the trajectories of its own cell; how many records a cell has is counted with noise, and
nothing else depends on it. Not covered, with `pay=image`: more images than requested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

from pydantic import Field, ValidationError

from sfumato.class_shares import most_of_one
from sfumato.config import LATER, MethodSection, SettingsOf
from sfumato.edm_levels import Levels
from sfumato.errors import BadInput
from sfumato.marks import PROTOTYPES, not_for
from sfumato.methods.algorithm import Algorithm, without_gradients
from sfumato.methods.plan import (
    ANY_NUMBER,
    STAGE_DRAWING,
    Certificate,
    Claim,
    Facts,
    Plan,
    Spend,
    calibrated,
    noise_of_votes,
    refuse_infinite,
    shared_spends,
)
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import DiscreteHistogram, Gaussian, SubsampledGaussian
from sfumato.privacy.accounting.gdp import FAR_FROM_LIMIT, Closeness, checked_count, checked_delta, checked_rate

if TYPE_CHECKING:  # to list settings takes neither torch nor numpy
    import numpy as np
    from torch import Generator, Tensor

    from sfumato.diffusion.objective import Draws, Randomness
    from sfumato.methods.parts import Parts
    from sfumato.partition import Partition
    from sfumato.privacy.auditing.played import Played

WHOLE = 100
"""All of the sampling, as the percentages of the settings count it."""
DENSITY_IMAGES = 4096
"""Public images, evenly over all of them, whose kernel density is p_t."""
FAR = 1e3
"""Value of each pixel of an audit's record, which is clipped; the public images lie at its square."""
POINT_GRID = 2.0**-8
"""Points are rounded to multiples of this, half a grey level of a pixel: the digits below, which float32 rounds as it adds the noise, stay
inside as they do where images leave."""
SHOWN = 0.999
"""Share of the largest fitting C that a message names, so that it still fits with four digits."""

PROMISE = """\
The paper claims an epsilon for sampling with a denoiser that averages private images, by the central limit theorem of \
Gaussian differential privacy. That needs many steps that each reveal little; here one step's mu reaches the hundreds. The headline setting (10,000 images, \
sample rate 2e-5) is claimed at epsilon 3.85, while its exact privacy loss distribution gives about 33,600 at delta 1e-5: a record that is drawn is shown. \
Beside each claim stand kappa_3, which the theorem needs to vanish, and gamma, its error (Dong et al. 2022): 7.4e12 and 1.25 there; from 1/2 on it \
says nothing. A run can be certified, exactly, where steps are clipped so hard, at noise levels so large, that all of them together meet the target: those \
of all images or, with `method.pay=class`, of a few trajectories from which any number branches."""
"""The paper's claim, the certificate, and why they differ (Markdown)."""


class Grid(Levels):
    """Noise levels and the cost of a step at each, by the paper."""

    sensitivity: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """2C / (p_t |D|), how far an exchange of one record moves the denoiser's mean; the paper's tables take 1."""

    def mus(self) -> np.ndarray:
        """`[N]` Gaussian DP parameters: mu_i = sensitivity sqrt(2 dt_i / t_i^3), dt_i = t_i - t_{i+1} (section 3.2)."""
        import numpy as np

        levels = self.levels()
        return self.sensitivity * np.sqrt(-2 * np.diff(levels) / levels[:-1] ** 3)


class Method(MethodSection):
    """The empirical denoiser's own settings; how many images are drawn is `generation.images`."""

    name: Literal["empirical-denoiser"] = "empirical-denoiser"
    """A clipped kernel mean of private records as the denoiser."""
    grid: Levels = Levels()
    """Noise levels that sampling passes."""
    percent: float = Field(default=45.0, ge=0, lt=100)
    """The empirical denoiser takes over after this share of the sampling, in percent."""
    until: float = Field(default=67.5, gt=0, le=100)
    """The public network takes over again after this share; 100: never."""
    single_step: bool = False
    """Take one empirical step (Table 4), whatever `until` says."""
    clip: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """C, the largest norm of one record's term x_0 p(x_t|x_0) / p_t; none takes the largest that the budget bears."""
    sample_rate: float = Field(default=1.0, gt=0, le=1)
    """p, the probability with which a record takes part in one step of one image; 1 takes all."""
    density: Literal["public", "constant"] = "public"
    """p_t: `beta` times the kernel density of the public images at x_t, or `beta` itself as in the paper's experiments. Certificates do
    not depend on it, since terms are clipped after the division."""
    beta: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Less lets records weigh more, up to C each; useful where public images lie where private ones do not."""
    centre: Literal["public", "zero"] = "public"
    """What deviations are taken from and added to: the public network's prediction, or nothing as in the paper."""
    longest: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Largest distance between the mean and its centre; a longer one is cut to it, which costs nothing. None leaves it."""
    by_class: bool = True
    """Average records of the wanted class alone; otherwise, as in the paper, all records, and labels mean nothing."""
    pay: Annotated[Literal["image", "class", "cluster"], LATER] = "image"
    """What the empirical steps are paid for: each image, as in the paper, or a few trajectories of each class, or of each cluster of its records,
    once, from whose ends the public network then draws any number of images."""
    trajectories: Annotated[int, Field(ge=1), LATER] = 1
    """Paid trajectories of each class with `pay=class`, or of each cluster with `pay=cluster`; each image branches from one of them."""
    clusters: Annotated[int, Field(ge=2, le=256), LATER] = 4
    """With `pay=cluster`: clusters of public images by k-means on what the denoiser sees; the records of a class are parted by the nearest of them."""
    count_share: Annotated[float, Field(gt=0, lt=1), LATER] = 0.1
    """With `pay=cluster`: the share of the target epsilon that the number of records of each cluster costs, by which images are shared out and
    averages divided."""
    branch: Annotated[float | None, Field(ge=0, le=100), LATER, not_for(PROTOTYPES)] = None
    """With paid trajectories: the share of the sampling, in percent, that an image goes back to from the end of a paid trajectory, by fresh noise,
    before the public network draws it; less varies more and keeps less. Null: nowhere back, so that only the noise of the steps that are
    left tells the images of a trajectory apart."""


class SamplerClaim(Claim):
    """The claim with its Gaussian differential privacy parameter."""

    mu: float
    """All empirical steps of all images together."""
    kappa_3: float = 0.0
    """What the limit theorem needs to vanish (`accountant.subsampled_gaussian_closeness`); 0 where no limit is taken."""
    gamma: float = 0.0
    """How far the errors of a test may lie beside those of the limit; likewise. From 1/2 on the theorem says nothing."""


def claim(
    sample_rate: float,
    percent: float,
    images: int,
    delta: float,
    single_step: bool,
    grid: Grid | Mapping[str, float] = Grid(),
    until: float = 100.0,
) -> SamplerClaim:
    """The epsilon of `images` images, empirical after `percent` % of the sampling, as in Tables 3 and 4 of Anonymous 2025.

    `single_step` takes one empirical step there (Table 4), else all that follow (Table 3); the first is the one from
    level round-half-up(percent (N + 1) / 100), `percent` from 0 to below 100, and with `until` below 100 a public network
    takes over again at that share. `sample_rate` below 1: Poisson samples, by the central limit of Appendix A
    (`accountant.subsampled_gaussian_clt`), with the check of that limit (`accountant.subsampled_gaussian_closeness`); exactly 1: all
    records, composed exactly (section 3.2). `grid` may be a dict with the fields of `Grid`.

    Many parameters: each is a number of the paper's, by its name there.
    """
    rate, delta, count = checked_rate(sample_rate), checked_delta(delta), checked_count("images", images)
    grid = _checked_grid(grid)
    private = window(percent, until, single_step, grid.N)
    mus = grid.mus()[private.start : private.stop].tolist()
    paper = "Anonymous 2025 (How private is diffusion-based sampling?)"
    if rate == 1:
        mu = accountant.compose_gdp(mus) * math.sqrt(count)
        source = f"{paper}: GDP composition (section 3.2), all records, replace-one"
        return SamplerClaim(epsilon=accountant.gdp_epsilon(mu, delta), source=source, mu=mu)
    mu = accountant.subsampled_gaussian_clt(mus, rate, count)
    close = accountant.subsampled_gaussian_closeness(mus, rate, count)
    return SamplerClaim(
        epsilon=accountant.gdp_epsilon(mu, delta),
        source=f"{paper}: GDP central limit (Appendix A), Poisson samples, replace-one; {_validity(close, delta)}",
        mu=mu,
        kappa_3=close.kappa_3,
        gamma=close.gamma,
    )


def _validity(close: Closeness, delta: float) -> str:
    """Whether the limit theorem says anything about these steps, and how much."""
    numbers = f"kappa_3 = {close.kappa_3:.3g}, gamma = {close.gamma:.3g}"
    if not close.holds:
        return (
            f"claim outside the range where the limit holds: {numbers}, and from {FAR_FROM_LIMIT:g} on Theorem 3.4 of Dong et al. 2022 says "
            "nothing"
        )
    share = f"{close.gamma / delta:.2g} times delta"
    return f"{numbers}: the errors of a test may lie gamma beside the limit's, {share} (Dong et al. 2022, Theorem 3.4)"


def noise_scale(level: float, grid: Grid | Mapping[str, float] = Grid()) -> float:
    """Standard deviation of the noise that the step from the level nearest to `level` > 0 adds to its mean, in sensitivities: 1 / mu (Figure 3)."""
    import numpy as np

    if not level > 0:
        raise BadInput(f"level = {level}: must be above 0")
    own = _checked_grid(grid)
    return float(1 / own.mus()[np.abs(own.levels()[:-1] - level).argmin()])


def attack_success(epsilon: float) -> float:
    """The largest probability with which an epsilon-DP release tells two data sets apart: 1 / (1 + e^-epsilon), Appendix G.

    `epsilon` >= 0, may be infinite. Delta is not counted.
    """
    if not epsilon >= 0:
        raise BadInput(f"epsilon = {epsilon}: must be 0 or more")
    return 1 / (1 + math.exp(-epsilon))


def window(percent: float, until: float, single_step: bool, count: int) -> range:
    """The empirical ones of `count` steps; `BadInput` where there is none."""
    if not 0 <= percent < WHOLE:
        raise BadInput(f"percent = {percent}: must be from 0 to below 100")
    if not 0 < until <= WHOLE:
        raise BadInput(f"until = {until}: must lie above 0 and be at most 100")
    start, stop = _place(percent, count), _place(until, count)
    if start >= count:
        raise BadInput(f"percent = {percent}: leaves no empirical step on a grid of N = {count} levels; choose less")
    if single_step:
        return range(start, start + 1)
    if stop <= start:
        raise BadInput(
            f"until = {until}: leaves no empirical step after percent = {percent} on a grid of N = {count} levels; choose more"
        )
    return range(start, min(stop, count))


def _place(percent: float, count: int) -> int:
    """The place of a share of the sampling among `count` levels, rounded half up."""
    return math.floor(percent * (count + 1) / WHOLE + 0.5)


def _checked_grid(grid: Grid | Mapping[str, float]) -> Grid:
    if isinstance(grid, Grid):
        return grid
    try:
        return Grid.model_validate(dict(grid))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["grid", *map(str, first["loc"])])
        raise BadInput(f"{where} = {first['input']!r}: {first['msg']}") from None


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where window and clip do not fit the budget."""
    from sfumato.diffusion.edm import step_noise

    method, privacy = settings.method, settings.privacy
    refuse_infinite(privacy, f"method.name={method.name}", "the noise of its drawing is what hides a record")
    if settings.generation.classes != "uniform" and not method.by_class:
        raise BadInput(
            f"method.by_class=false draws from all records, whatever class an image is drawn for, so generation.classes="
            f"{settings.generation.classes} would mean nothing: use method.by_class=true, or generation.classes=uniform"
        )
    if settings.alignment.kind != "none" and not method.by_class:
        raise BadInput(
            "method.by_class=false draws from the records of all classes, and alignment.kind=moments takes back what was drawn of one: "
            "use method.by_class=true, or alignment.kind=none"
        )
    _check_payment(method)
    steps, images = empirical_steps(method), paying(settings, facts)
    shared = [*shared_spends(settings), *_counting_cells(settings)]

    def spends(noise: float, count: int = images) -> list[Spend]:
        """The steps at `noise` = expected / C, the reciprocal of a record's largest share of a mean."""
        what = ("trajectory" if count == 1 else "trajectories") if method.pay != "image" else "images"
        whose = "cluster" if method.pay == "cluster" else "class"
        images_paid = f"{count} {what} of a {whose}" if method.by_class else f"{count} {what}"
        return shared + [
            Spend(
                stage=STAGE_DRAWING,
                what=f"step from noise level {sigma:.3g}, {images_paid}",
                event=_event(method, step_noise(sigma, after) * noise, count),
            )
            for sigma, after in steps
        ]

    relative, certificate = _priced(settings, facts, spends)
    clip = expected_terms(settings.method, facts) / relative
    grid = Grid(**method.grid.model_dump(), sensitivity=2 * clip / _records(method, facts))
    terms = (method.sample_rate, method.percent, images, privacy.delta, method.single_step, grid, method.until)
    paper_claim = claim(*terms)
    prototypes = points_of_each(method) * len(facts.classes) if method.pay != "image" else 0
    evaluations, comparisons = _work(settings, facts, prototypes)
    covered = ANY_NUMBER if prototypes else settings.generation.images
    return Plan(
        method=method.name,
        facts=facts,
        prototypes=prototypes,
        public_images=method.density == "public" or method.pay == "cluster",
        generation=settings.generation,
        evaluations=evaluations,
        comparisons=comparisons,
        spends=tuple(spends(relative)),
        privacy=privacy,
        certificate=certificate and certificate.model_copy(update={"images": covered}),
        claim=Claim(epsilon=paper_claim.epsilon, source=f"{paper_claim.source}; C = {clip:.4g}"),
    )


def _check_payment(method: Method) -> None:
    """Refuse settings of paid trajectories where there are none, or that would branch from where no record has been seen."""
    usual, of_clusters = type(method)(), ("clusters", "count_share")
    idle = ("trajectories", "branch", *of_clusters) if method.pay == "image" else ()
    for name in idle if method.pay != "class" else of_clusters:
        if (value := getattr(method, name)) != getattr(usual, name):
            why = "each image pays for its own steps" if method.pay == "image" else "classes stay whole"
            use = "cluster" if name in of_clusters else "class"
            raise BadInput(
                f"method.{name}={value} means nothing where {why} (method.pay={method.pay}): use method.pay={use}, or leave it out"
            )
    if method.pay == "image":
        return
    if not method.by_class:
        raise BadInput(
            f"method.by_class=false averages the records of all classes, so that method.pay={method.pay} would pay for the same trajectory under each "
            "name: use method.by_class=true, or method.pay=image"
        )
    branching(method)


def _counting_cells(settings: SettingsOf[Method]) -> list[Spend]:
    """The spend for the number of records of each cluster, where they pay: its share of the target epsilon."""
    method, privacy = settings.method, settings.privacy
    if method.pay != "cluster":
        return []
    noise = noise_of_votes(method.count_share * privacy.epsilon, privacy.delta, privacy.relation)
    what = f"number of private records of each of {method.clusters} clusters of each class, with noise"
    return [Spend(stage=STAGE_DRAWING, what=what, event=DiscreteHistogram(noise_multiplier=noise))]


def points_of_each(method: Method) -> int:
    """Points of each class that images branch from, where trajectories are paid for."""
    return method.trajectories * (method.clusters if method.pay == "cluster" else 1)


def branching(method: Method) -> tuple[int, int]:
    """Places in the levels where a paid trajectory ends and where the way of an image begins; `BadInput` where that is later."""
    private = window(method.percent, method.until, method.single_step, method.grid.N)
    latest = min(private.stop, method.grid.N - 1)  # a public step is left, whose noise tells images apart
    if method.branch is None:
        return private.stop, latest
    begin = _place(method.branch, method.grid.N)
    if begin > latest:
        raise BadInput(
            f"method.branch={method.branch:g} lies behind the empirical steps, and noise can be added on the way back alone: use at most "
            f"{WHOLE * latest / (method.grid.N + 1):.4g}, or leave it out"
        )
    return private.stop, begin


def _work(settings: SettingsOf[Method], facts: Facts, prototypes: int) -> tuple[int, int]:
    """Network evaluations and comparisons with records for one image; each image's share of those of the prototypes, rounded up."""
    method, steps = settings.method, len(empirical_steps(settings.method))
    public = method.grid.N if method.centre == "public" else method.grid.N - steps
    if not prototypes:
        return public, steps * facts.records
    share = prototypes / settings.generation.images
    return method.grid.N - branching(method)[1] + math.ceil(public * share), math.ceil(steps * facts.records * share)


def empirical_steps(method: Method) -> list[tuple[float, float]]:
    """Start and end noise level of each step of the empirical denoiser."""
    pairs = list(itertools.pairwise(method.grid.levels().tolist()))
    return [pairs[i] for i in window(method.percent, method.until, method.single_step, method.grid.N)]


def paying(settings: SettingsOf[Method], facts: Facts) -> int:
    """Number of paid trajectories that one record takes part in: those of its class or cluster, or the images of the largest class."""
    generation = settings.generation
    if settings.method.pay != "image":
        return settings.method.trajectories
    return most_of_one(generation, len(facts.classes)) if settings.method.by_class else generation.images


def expected_terms(method: Method, facts: Facts) -> float:
    """The divisor of a sum of terms: their expected number, from public counts; with `pay=cluster` that of a cluster if all were equal."""
    return method.sample_rate * _records(method, facts)


def _records(method: Method, facts: Facts) -> float:
    cells = method.clusters if method.pay == "cluster" else 1
    return facts.records / (len(facts.classes) * cells) if method.by_class else float(facts.records)


def _event(method: Method, noise_multiplier: float, images: int) -> Gaussian | SubsampledGaussian:
    if method.sample_rate < 1:
        return SubsampledGaussian(noise_multiplier=noise_multiplier, sample_rate=method.sample_rate, steps=images)
    return Gaussian(noise_multiplier=noise_multiplier, count=images)


class Spends(Protocol):
    """The spends at a noise multiplier, for every image of a class that may be requested."""

    def __call__(self, noise: float, count: int = ...) -> list[Spend]:
        """All spends for `count` images of a class; by default as many as the settings request."""


def _priced(settings: SettingsOf[Method], facts: Facts, spends: Spends) -> tuple[float, Certificate | None]:
    """expected / C and its certificate: calibrated where C is open, else checked against the budget."""
    from sfumato.privacy.engine.kernel_mean import contribution

    privacy, clip = settings.privacy, settings.method.clip
    if clip is None:
        return calibrated(privacy, spends)
    terms = expected_terms(settings.method, facts)
    share = contribution(clip, terms)

    def priced(count: int) -> accountant.Priced:
        events = [spend.event for spend in spends(1 / share, count)]
        return accountant.priced(events, privacy.delta, privacy.relation)

    price = priced(paying(settings, facts))
    if price.epsilon > privacy.epsilon:
        fitting = terms / calibrated(privacy, spends)[0]
        raise BadInput(_too_dear(settings, facts, price.epsilon, lambda count: priced(count).epsilon, fitting))
    return terms / clip, Certificate(
        **price._asdict(),
        delta=privacy.delta,
        relation=privacy.relation,
    )


def _images_of(settings: SettingsOf[Method], facts: Facts, most: int) -> int:
    """Largest number of images such that no class gets more than `most`."""
    generation, classes = settings.generation, len(facts.classes)
    fits = most * classes if generation.classes == "uniform" else generation.images * most // paying(settings, facts)
    while fits and most_of_one(generation.model_copy(update={"images": fits}), classes) > most:
        fits -= 1
    return fits


def _too_dear(
    settings: SettingsOf[Method], facts: Facts, epsilon: float, cost: Callable[[int], float], clip: float
) -> str:
    """The refusal with what would fit: fewer images, by bisection, or a smaller C."""
    method, low, high = settings.method, 0, paying(settings, facts)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= settings.privacy.epsilon else (low, middle)
    paid, way = f"generation.images={settings.generation.images}", f"ask for at most {low} images"
    if method.by_class:
        way = f"ask for at most {_images_of(settings, facts, low)} images"
    if method.pay != "image":
        paid, way = f"method.trajectories={method.trajectories}", f"use at most {low} trajectories of a {method.pay}"
    return (
        f"method.clip={method.clip:g} with {paid} would cost epsilon {epsilon:.4g}, above "
        f"privacy.epsilon={settings.privacy.epsilon:g}: {way}, or take method.clip={SHOWN * clip:.4g} or less, or "
        "end the window sooner (method.until)"
    )


@without_gradients
def draw_privately(
    settings: SettingsOf[Method], parts: Parts, private: tuple[Tensor, Tensor], y: Tensor, source: Randomness
) -> Tensor:
    """Images or latents `[b, c, h, w]` of the classes y `[b]`: the end of their `trajectory`; with `pay=class` or `cluster` the points where its
    empirical steps end, on a grid. With `pay=cluster` the labels of the records and y are cells, not classes."""
    walk = trajectory(settings, parts, private, y, source)
    if settings.method.pay != "image":
        *_, last = itertools.islice(walk, branching(settings.method)[0])
        return (last.end / POINT_GRID).round() * POINT_GRID
    *_, last = walk
    return last.end.clamp(-parts.schedule.limit, parts.schedule.limit)


def partition(settings: SettingsOf[Method], parts: Parts) -> Partition | None:
    """The clusters of each class with `pay=cluster`, by the public images as the denoiser sees them."""
    from sfumato.methods.parts import planned
    from sfumato.partition import partition_of

    method = settings.method
    if method.pay != "cluster":
        return None
    (event,) = (event for event in parts.paid if isinstance(event, DiscreteHistogram))
    return partition_of(
        planned(parts.images),
        method.clusters,
        classes=len(parts.facts.classes),
        each=method.trajectories,
        noise=event.noise_multiplier,
        seed=settings.seed,
    )


@without_gradients
def finish(settings: SettingsOf[Method], parts: Parts, points: Tensor, source: Randomness) -> Tensor:
    """Images or latents `[b, c, h, w]`, one from each of the `points` at which paid trajectories end, by the public network alone."""
    return _onwards(settings.method, parts, points, branching(settings.method)[0], source)


@without_gradients
def draw(settings: SettingsOf[Method], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Images or latents `[b, c, h, w]` of the private classes y `[b]`, each from a point of its class, with fresh noise up to the level of
    `branch` and from there by the public network alone.

    `parts.prototypes` holds `points_of_each` of each class, class by class, those of clusters as often as their noisy counts say. Nothing else of private records is used (post-processing).
    """
    import torch

    from sfumato.diffusion.objective import normal
    from sfumato.methods.parts import planned

    method, levels, each = settings.method, settings.method.grid.levels().tolist(), points_of_each(settings.method)
    end, begin = branching(method)
    points = planned(parts.prototypes)[y * each + torch.randint(each, y.shape, generator=generator, device=y.device)]
    x = points + math.sqrt(levels[begin] ** 2 - levels[end] ** 2) * normal(points, generator)
    return _onwards(method, parts, x, begin, generator)


def _onwards(method: Method, parts: Parts, x: Tensor, begin: int, generator: Draws) -> Tensor:
    """The images that x `[b, c, h, w]` at the level with the place `begin` becomes by the public network, asked for no class."""
    from sfumato.diffusion.edm import clean_image, noisy_step
    from sfumato.diffusion.samplers import NO_CLASS

    nobody = x.new_full((len(x),), NO_CLASS).long()
    for sigma, after in itertools.pairwise(method.grid.levels().tolist()[begin:]):
        x = noisy_step(x, clean_image(parts.schedule, parts.public, x, nobody, sigma), sigma, after, generator)
    return x.clamp(-parts.schedule.limit, parts.schedule.limit)


class SamplerStep(NamedTuple):
    """One step of a trajectory."""

    sigma: float
    """Noise level where it begins."""
    image: Tensor
    """`[b, c, h, w]`, the clean images that it expects."""
    end: Tensor
    """`[b, c, h, w]`, where it ends."""


@without_gradients
def trajectory(
    settings: SettingsOf[Method], parts: Parts, private: tuple[Tensor, Tensor], y: Tensor, source: Randomness
) -> Iterator[SamplerStep]:
    """Eq. 1 from sigma_max to 0, step by step, for images of the classes y `[b]`.

    Inside the window the expected images depend on the records without noise and may not leave; the ends of steps may. A record's
    share of them follows from the events in `parts.paid`, so that drawing spends what was paid.
    """
    import torch

    from sfumato.diffusion.edm import clean_image, noisy_step, step_noise
    from sfumato.diffusion.objective import normal
    from sfumato.diffusion.samplers import NO_CLASS

    method, levels = settings.method, settings.method.grid.levels().tolist()
    paid = [event for event in parts.paid if isinstance(event, Gaussian | SubsampledGaussian)]
    prices = dict(zip(empirical_steps(method), paid, strict=True))
    _check_paid(method, paid, y)
    x = levels[0] * normal(torch.empty(len(y), *parts.shape, device=y.device), source)
    for step in itertools.pairwise(levels):
        sigma, after = step
        image = torch.zeros_like(x)
        if step not in prices or method.centre == "public":
            image = clean_image(parts.schedule, parts.public, x, torch.full_like(y, NO_CLASS), sigma)
        if step in prices:
            share = step_noise(sigma, after) / prices[step].noise_multiplier
            image = _empirical(method, parts, private, (x, y), image, sigma=sigma, share=share, source=source)
        x = noisy_step(x, image, sigma, after, source)
        yield SamplerStep(sigma, image, x)


def _check_paid(method: Method, paid: Sequence[Gaussian | SubsampledGaussian], y: Tensor) -> None:
    """No record may take part in more images than were paid for."""
    import torch

    needed = int(torch.bincount(y, minlength=1).max()) if method.by_class else len(y)
    covered = min(event.count if isinstance(event, Gaussian) else event.steps for event in paid)
    if needed > covered:
        raise ValueError(f"a record would take part in {needed} images, and {covered} are paid for")


def _empirical(
    method: Method,
    parts: Parts,
    private: tuple[Tensor, Tensor],
    at: tuple[Tensor, Tensor],
    centre: Tensor,
    *,
    sigma: float,
    share: float,
    source: Randomness,
) -> Tensor:
    """The kernel mean at `at` = (x, y); one record moves it by `share` at most.

    Many parameters: each is a tensor, or a number of one formula.
    """
    import torch

    from sfumato.methods.parts import planned
    from sfumato.privacy.engine.kernel_mean import kernel_mean, log_kernel_density, log_peak

    (x, y), expected = at, torch.tensor(expected_terms(method, parts.facts), dtype=torch.float64)
    if parts.cell_counts is not None:  # paid for: each record's share of the mean stays what it is
        expected = method.sample_rate * parts.cell_counts.double().clamp(min=1)[y.cpu()]
    if method.density == "public":
        images = planned(parts.images)
        density = log_kernel_density(images[:: -(-len(images) // DENSITY_IMAGES)], x, sigma)
    else:
        density = x.new_full((len(x),), -log_peak(sigma, x[0].numel()))
    mean = kernel_mean(
        private[0],
        x,
        sigma,
        clip=share * expected,
        expected=expected,
        log_density=density + math.log(method.beta),
        centre=centre,
        labels=private[1] if method.by_class else None,
        wanted=y if method.by_class else None,
        sample_rate=method.sample_rate,
        longest=method.longest or math.inf,
        source=source,
    )
    return mean.clamp(-parts.schedule.limit, parts.schedule.limit)


@without_gradients
def worst_case(settings: SettingsOf[Method], parts: Parts, present: Tensor, source: Randomness) -> Played:
    """`trajectory` of one image per entry of `present` `[b]`, from no record, or where that is True from one of the largest weight;
    for an audit.

    The record lies far away, and the public images, whose density it is compared with, farther still, so that its term is
    clipped at each step. The public network implies an image of zeros, mid-grey.
    """
    import torch

    from sfumato.privacy.auditing.played import Played, StandIn

    method, levels = settings.method, settings.method.grid.levels().tolist()
    paid = [event for event in parts.paid if isinstance(event, Gaussian | SubsampledGaussian)]
    prices = dict(zip(empirical_steps(method), range(len(paid)), strict=True))
    level = levels[0]

    def public(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return x * math.sqrt(1 + level**2) / level

    # Many games at once, each of fewer images than were paid for.
    enough = [event.model_copy(update={_times(event): len(present)}) for event in paid]
    stands = replace(parts, public=StandIn(public), images=torch.full((1, *parts.shape), FAR**2), paid=tuple(enough))
    own = settings.model_copy(update={"method": method.model_copy(update={"density": "public"})})
    walks = []
    for there in (False, True):
        record = torch.full((int(there), *parts.shape), FAR)
        y = torch.zeros(int((present == there).sum()), dtype=torch.long)
        walks.append(trajectory(own, stands, (record, torch.zeros(len(record), dtype=torch.long)), y, source))
    before, residuals, shifts, events = None, [], [], []
    for step in itertools.pairwise(levels):
        level, after = step
        x = torch.empty(len(present), *parts.shape)
        for of, walk in zip((~present, present), walks, strict=True):
            x[of] = next(walk).end
        if step in prices and before is not None:
            pull, noise = 2 * (level - after) / level, math.sqrt(2 * level * (level - after))
            residuals.append((x - (1 - pull) * before).flatten(1) / noise)
            shifts.append(1 / paid[prices[step]].noise_multiplier)
            events.append(prices[step])
        before = x
    return Played(torch.stack(residuals), torch.tensor(shifts), tuple(events))


def _times(event: Gaussian | SubsampledGaussian) -> str:
    """The field of an event with the number of images that it pays for."""
    return "count" if isinstance(event, Gaussian) else "steps"


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    draw_privately=draw_privately,
    keeps_points=lambda settings: settings.method.pay != "image",
    finish=finish,
    partition=partition,
    worst_case=worst_case,
)
