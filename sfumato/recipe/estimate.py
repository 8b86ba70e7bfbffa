"""An estimate of time and memory from a few timed steps on zeros, on the machine that will do the work.

It counts every stage of the plan; the timed steps are small, so that the whole probe ends within `PROBE_SECONDS` and holds no more
than `PROBE_BYTES` at once. A network too large for that is estimated by the fixed table of costs (`sfumato.costs`), and so is all
work of a GPU, which small steps would not fill. The estimate changes no setting. Not covered: other work on the machine, and downloads.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sfumato import sources
from sfumato.central import BATCH as CENTRAL_BATCH
from sfumato.config import Matching
from sfumato.costs import (
    COSTS,
    HEAD_FEATURES,
    TRAINING,
    Cost,
    Work,
    autoencoder_work,
    backbone_work,
    counted,
    denoiser_work,
    drawing_seconds,
    without_numbers,
)
from sfumato.costs import training_seconds as by_the_table
from sfumato.diffusion.objective import Examples, denoising_examples, record_losses
from sfumato.diffusion.schedule import make_schedule
from sfumato.evaluation.classifier import BATCH_IMAGES, Classifier, default_steps
from sfumato.evaluation.effort import FEW, classifier_work, judging_seconds
from sfumato.evaluation.nearest import MOST_PUBLIC
from sfumato.fourier import random_features
from sfumato.held_out import MOST, SHARE
from sfumato.matching import FEWEST, matched
from sfumato.methods import METHODS
from sfumato.methods.algorithm import design
from sfumato.methods.parts import Target
from sfumato.methods.plan import STAGE_VOTES, Members, Plan
from sfumato.methods.sampling import network_evaluations
from sfumato.networks.autoencoder import Shape, build_autoencoder, latent_shape
from sfumato.networks.backbone import BackboneNetwork
from sfumato.networks.build import build
from sfumato.networks.denoiser import class_rows, with_classes
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.engine.kernel_mean import kernel_mean
from sfumato.privacy.noise import system_source
from sfumato.rates import COPIES
from sfumato.recipe.judging import FULL_ALONE, judged_sets
from sfumato.recipe.stage_costs import has_public_model, needs_backbone
from sfumato.rehearsal import set_size
from sfumato.retrieval.features import make_encoder
from sfumato.settings import Settings

PROBE_IMAGES = 256
"""Most images of one timed step."""
PROBE_RECORDS = 1024
"""Private records, replaced by zeros, that a timed step compares each image with."""
PROBE_SECONDS = 5.0
"""After this time no further step is timed, and the table of costs serves for the rest; a step that has begun still ends."""
EACH_SECONDS = 0.05
"""About how long one kind of step is timed."""
FEWEST_ROUNDS, LONGEST_SECONDS = 3, 1.5
"""Rounds of one kind of step, unless they take longer than this."""
STEP_SECONDS = 0.08
"""About how long one timed step may be, by the table."""
PROBE_BYTES = 0.4e9
"""Most that one timed step holds, of a network's activations."""
HELD = 4.0
"""Memory of a training step in units of its layers' outputs: outputs, norms, their gradients."""
CHECKS = 1.1
"""Spot checks and bookkeeping, in private steps without."""
OVERHEAD_SECONDS = 20.0
"""Start of the server, reading, reporting."""
PUBLIC_IMAGES = 20_000
"""Assumed number of public images where it is unknown."""
PUBLIC_STAGES = (
    "autoencoder",
    "backbone",
    "denoiser",
    "own network",
    "extractor",
    "knowledge base",
    "features",
    "rehearsal",
)
BYTES = 4
COPIES_OF_WEIGHTS, COPIES_READ, COPIES_DRAWN = 10, 3, 2
"""Times that weights (with gradients, the optimiser's state, the average), images that are read, and drawn images are in memory at once."""
DRAWN_SECONDS = 3.5e-7
"""Seconds to draw one pixel of a public image, in colour and then in grey, and to look at it."""
BASE_GIGABYTES = 1.0
"""Memory of the program itself."""


@dataclass(frozen=True)
class Estimate:
    """Rough figures, for planning."""

    stages: tuple[tuple[str, float], ...]
    """Seconds of each stage, in the order of the run."""
    gigabytes: float

    @property
    def minutes(self) -> float:
        """All stages, and what lies between them."""
        return (sum(seconds for _, seconds in self.stages) + OVERHEAD_SECONDS) / 60

    @property
    def public_minutes(self) -> float:
        """Minutes of the stages on public images alone, whose results another run with the same public settings reuses."""
        return sum(seconds for name, seconds in self.stages if name in PUBLIC_STAGES) / 60


@dataclass
class Probe:
    """Times steps, and stops timing when its time is over."""

    table: dict[str, Cost]
    times: bool = True
    """Whether steps are timed at all; otherwise the table serves for all."""
    started: float = field(default_factory=time.perf_counter)
    ratios: list[float] = field(default_factory=list)
    """Seconds of each timed step in units of the table's."""

    @property
    def slower(self) -> float:
        """The median of these ratios."""
        return statistics.median(self.ratios) if self.ratios else 1.0

    def per_image(self, kind: str, work: Work, step: Callable[[int], Any], *, training: bool = True) -> float:
        """Seconds of one image in a step of `kind` whose forward pass is `work`: timed where that is small, by the table otherwise."""
        cost = self.table[kind]
        tabled = by_the_table(Cost(cost.work), work, 1) if training else drawing_seconds(cost, work, 1)
        fitting = min(STEP_SECONDS / max(tabled, 1e-9), PROBE_BYTES / (HELD * BYTES * max(work.numbers, 1.0)))
        if not self.times or fitting < 1 or time.perf_counter() - self.started > PROBE_SECONDS:
            return tabled * self.slower
        images = int(min(PROBE_IMAGES, fitting))
        seconds = _measure(functools.partial(step, images), images)
        self.ratios.append(seconds / max(tabled, 1e-9))
        return seconds


def estimate(settings: Settings, plan: Plan, *, gpu: bool = False) -> Estimate:
    """Time and memory of the whole plan, stage by stage, on this machine or on its GPU; a factor of 1.5 either way is normal."""
    latent, image, facts = settings.latent, plan.facts.shape, plan.facts
    shape = latent_shape(latent, image)
    levels = make_schedule(settings.schedule).alpha_bar
    probe = Probe(COSTS["gpu" if gpu else "cpu"], times=not gpu)
    public = settings.recipe.public_images or PUBLIC_IMAGES
    stages: dict[str, float] = {}

    coder_forward, backbone = 0.0, 0.0
    if latent.kind != "none":
        coder, work = build_autoencoder(latent, image), autoencoder_work(latent, image)
        step = probe.per_image(latent.kind, work, lambda n: _autoencoder_step(coder, n, image, shape))
        coder_forward = step / 3
        steps = 0 if latent.from_ else latent.steps
        stages["autoencoder"] = steps * (latent.batch * step + _update(probe, work)) + public * coder_forward
    if needs_backbone(settings):
        work = backbone_work(settings.backbone, image, facts.public_classes)
        network = BackboneNetwork(image, facts.public_classes, width=settings.backbone.width)
        backbone = probe.per_image("backbone", work, lambda n: _read(network, n, image))
        stages["backbone"] = settings.backbone.steps * (settings.backbone.batch * backbone + _update(probe, work))
        if latent.kind != "none" and latent.perceptual:
            stages["autoencoder"] += latent.steps * latent.batch * backbone
        if settings.judge.use != "none":
            # The private images once, and the drawn ones twice: to label them, and to see where the judge agrees.
            stages["judge"] = ((facts.images or facts.records) + 2 * plan.generation.images) * backbone / TRAINING

    if facts.clusters and sources.is_drawn(settings.data.public):
        stages["search for public images"] = settings.selection.candidates * math.prod(image[1:]) * DRAWN_SECONDS
    model = build(settings.network, shape, facts.learnt_classes, alpha_bar=levels)
    kind, work = _kind(settings.network, shape), denoiser_work(settings.network, shape, facts.learnt_classes)
    denoise = probe.per_image(kind, work, lambda n: _denoiser_step(model, settings, shape, n))
    forward = probe.per_image(kind, work, lambda n: _forward(model, shape, n), training=False)
    pretraining = settings.pretraining
    stages["denoiser"] = pretraining.steps * (pretraining.batch * denoise + _update(probe, work))

    if plan.retrieval:
        extractor = plan.retrieval.extractor
        encoder = make_encoder(extractor, shape)
        with without_numbers(shape):
            seen = counted(
                make_encoder(extractor, shape), lambda: make_encoder(extractor, shape)(torch.zeros(1, *shape))
            )
        step = probe.per_image("extractor", seen, lambda n: _read(encoder, n, shape))
        view = step + forward + coder_forward / 2 + math.prod(image) * VIEW_SECONDS
        if plan.retrieval.time:
            stages["extractor"] = extractor.steps * (2 * extractor.batch * view + CONTRAST_SECONDS * extractor.batch**2)
        looks = len(plan.retrieval.measured_times) * plan.retrieval.query.key_draws if plan.retrieval.time else 0
        base = public * plan.retrieval.reference
        keyed = min(base, plan.retrieval.trajectories or base)
        stages["knowledge base"] = keyed * looks * (forward + step / 3) + base * coder_forward / 2

    if settings.alignment.kind != "none" or plan.central:
        each = coder_forward / 2 + math.prod(shape) ** 2 * probe.table["mlp"].work / 1e9
        stages["moments"] = (public + (facts.images or facts.records)) * each

    blueprint = design(METHODS[settings.method.name], settings, shape, facts)
    own, drawn, own_work = denoise, forward, work
    if METHODS[settings.method.name].blueprint:
        # Only a network that is small enough to be timed is made.
        other = functools.cache(lambda: build(blueprint.network, blueprint.shape, blueprint.classes, alpha_bar=levels))
        own_kind, own_work = (
            _kind(blueprint.network, blueprint.shape),
            denoiser_work(blueprint.network, blueprint.shape, blueprint.classes),
        )
        own = probe.per_image(own_kind, own_work, lambda n: _denoiser_step(other(), settings, blueprint.shape, n))
        drawn = own / 3
    if plan.own_start:
        learnt = plan.own_start.training
        stages["own network"] = learnt.steps * (learnt.batch * own + _update(probe, own_work))
    if plan.phase_one:
        training = plan.phase_one.training
        stages["first phase"] = training.steps * (training.batch * denoise + _update(probe, work))
    if warm := plan.central:
        stages["warm-up"] = warm.steps * (CENTRAL_BATCH * denoise + _update(probe, work))
    if how := plan.evolution:
        rounds, drawn_each = len(plan.events(STAGE_VOTES)), network_evaluations(settings, guided=False) * forward
        shown = coder_forward / 2 + backbone / TRAINING
        stages["candidates"] = how.candidates * (drawn_each + rounds * (shown + how.variation * drawn_each))
        stages["votes"] = rounds * (facts.images or facts.records) * (backbone / TRAINING + coder_forward / 2)
        training = how.training
        stages["distillation"] = training.steps * (training.batch * denoise + _update(probe, work))
    if plan.embedding:
        training = plan.embedding.training
        looked_at = backbone + coder_forward * TRAINING / 2 if plan.embedding.features == "perceptual" else 0.0
        stages["training"] = training.steps * (training.batch * (own + looked_at) + _update(probe, own_work))
    if plan.plain:
        stages["training"] = plan.plain.steps * (plan.plain.batch * own + _update(probe, own_work))
    if plan.members:
        training = plan.members.training
        each = training.steps * (training.batch * denoise + _update(probe, work))
        if plan.members.adapters:  # the network is only asked, and the heads beside it are small
            each = training.steps * training.batch * (forward + TRAINING * heads_of(plan.members, shape, probe))
        stages[f"{plan.members.count} members"] = plan.members.count * each
    if plan.distillation:
        training = plan.distillation
        stages["distillation"] = training.steps * (training.batch * denoise + _update(probe, work))
    if plan.fine_tuning or settings.evaluation.baseline:
        private = private_seconds(settings, plan, model, shape, probe, kind, work)
        private += facts.records * coder_forward / 2
        if plan.fine_tuning:
            tuning = settings.fine_tuning
            looked_up = tuning.steps * _copies(settings, plan) * forward * bool(plan.retrieval and plan.retrieval.time)
            stages["DP-SGD"] = tuning.trainings * (private + looked_up)
            if tuning.rates:
                stages["votes for rates"] = facts.records * COPIES * (tuning.trainings + bool(looked_up)) * forward

    chosen_from = plan.judge.keep if plan.judge and plan.judge.use == "filter" else 1.0
    drawing = plan.generation.images / chosen_from * (plan.evaluations * drawn + coder_forward / 2)
    if plan.members and plan.members.adapters:
        guided = 2 if plan.generation.guidance else 1
        answers = plan.members.count * guided * settings.generation.steps * (plan.prototypes or plan.generation.images)
        drawing += answers * heads_of(plan.members, shape, probe)
    if plan.generation.refine:
        drawing += plan.generation.images * plan.generation.refine_steps * forward
    if kernel := plan.generation.images * plan.comparisons:
        drawing += kernel * _measure(lambda: _kernel_step(shape), PROBE_IMAGES) / PROBE_RECORDS
    stages["drawing"] = drawing
    if plan.matching:
        moving = max(plan.generation.images, FEWEST * len(facts.classes)) * plan.matching.steps
        stages["matching"] = moving * _measure(functools.partial(_moving_step, plan.matching, shape), PROBE_IMAGES)
    each = network_evaluations(settings) * forward + coder_forward / 2
    of_public = network_evaluations(settings, guided=False) * forward + coder_forward / 2
    judged, sizes = min(settings.evaluation.images, plan.generation.images), judged_sets(settings, facts)
    stages["drawing for comparison"] = min(judged, FEW) * of_public if has_public_model(settings) else 0.0
    if plan.fine_tuning:
        stages["drawing for comparison"] += len(plan.fine_tuning.averages) * judged * each
    if sizes.full > FULL_ALONE:
        stages["drawing for comparison"] += judged * each + private
    read = reading_seconds(image, len(facts.classes), probe)
    stages["features"] = default_steps(public) * BATCH_IMAGES * read * TRAINING
    held_out = min(MOST, round(public * SHARE))
    samples = set_size(held_out, settings.rehearsal.images) if has_public_model(settings) else 0
    stages["rehearsal"] = samples * (of_public + 2 * read + coder_forward) + held_out * (read + coder_forward)
    looked = backbone / TRAINING
    stages["judging"] = judging_seconds(settings.evaluation, sizes, judged, probe.table) * probe.slower
    stages["judging"] += (sizes.full + sizes.brief + sizes.ceilings) * judged * (looked + coder_forward / 2)
    stages["nearest public images"] = min(public, MOST_PUBLIC) * (looked or read)
    records = (facts.images or facts.records) + sizes.test
    stages["copies"] = plan.generation.images * records * math.prod(image) * probe.table["mlp"].work / 1e9
    numbers: float = COPIES_OF_WEIGHTS * own_work.weights
    if plan.fine_tuning or settings.evaluation.baseline:
        numbers += settings.machine.physical_batch * own_work.weights  # a gradient of each record
    read_in = COPIES_READ * (public + (facts.images or facts.records))
    numbers += (read_in + COPIES_DRAWN * plan.generation.images / chosen_from) * math.prod(image)
    return Estimate(tuple(stages.items()), numbers * BYTES / 1e9 + BASE_GIGABYTES)


def private_seconds(
    settings: Settings, plan: Plan, model: nn.Module, shape: Shape, probe: Probe, kind: str, work: Work
) -> float:
    """Seconds of DP-SGD with these settings: gradients clipped record by record, as they are computed on this machine, and noise.

    Many parameters: each is measured or planned by itself, and the time is their product.
    """
    tuning, levels = settings.fine_tuning, make_schedule(settings.schedule)
    rows = class_rows(model).new_zeros(len(plan.facts.classes), class_rows(model).shape[1])
    tuned = with_classes(model, rows)
    trainable = trainable_parameters(tuned, tuning.trainable)
    draws = tuning.draws * (tuning.images_per_group if plan.facts.unit else 1)

    def step(images: int) -> None:
        records = max(1, images // draws)
        x, y = torch.zeros(records, *shape), torch.zeros(records, dtype=torch.long)
        examples = grouped_examples(levels, x, y, draws)
        clipped_sum(
            tuned, trainable, examples, clip=tuning.clip, chunk=settings.machine.physical_batch, rule=tuning.clipping
        )

    per_copy = probe.per_image(kind, work, step)
    noise = sum(weights.numel() for weights in trainable.values()) * NOISE_SECONDS
    return tuning.steps * (_copies(settings, plan) * per_copy * CHECKS + noise + _update(probe, work))


def grouped_examples(schedule: Any, x: torch.Tensor, y: torch.Tensor, draws: int) -> Examples:
    """Examples of records as a private step has them."""
    generator = torch.Generator().manual_seed(0)
    return denoising_examples(schedule, x, y, draws=draws, low=1, high=len(schedule.alpha_bar) - 1, generator=generator)


VIEW_SECONDS = 1.0e-7
"""Seconds per number of a rotated, scaled and shifted view."""
CONTRAST_SECONDS = 1.5e-7
"""Seconds per pair of images that the contrastive loss compares."""
NOISE_SECONDS = 6e-8
"""Seconds of the noise on one number, on the grid."""


def heads_of(members: Members, shape: Shape, probe: Probe) -> float:
    """Seconds in which one head says what it has to of one image."""
    products = (HEAD_FEATURES + 1) * math.prod(shape) * members.adapters
    return products * probe.table["mlp"].work / 1e9


def reading_seconds(image: Shape, classes: int, probe: Probe) -> float:
    """Seconds in which the small CNN reads an image."""
    reader, work = Classifier(image[0], classes, side=max(image[1:])), classifier_work(image, classes)
    return probe.per_image("classifier", work, lambda n: _read(reader, n, image)) / TRAINING


def _copies(settings: Settings, plan: Plan) -> float:
    """Noised copies of private images in a step."""
    tuning = settings.fine_tuning
    expected = tuning.batch or plan.facts.records * tuning.sample_rate
    return expected * tuning.draws * (tuning.images_per_group if plan.facts.unit else 1)


def _kind(network: Any, shape: Shape) -> str:
    from sfumato.networks.build import resolved

    return resolved(network, shape[1]).kind


def _update(probe: Probe, work: Work) -> float:
    """Seconds of an optimiser step and of the moving average."""
    cost = probe.table["mlp"]
    return cost.step + work.weights / 1e9 * cost.weights


def _denoiser_step(model: nn.Module, settings: Settings, shape: Shape, images: int) -> None:
    generator = torch.Generator().manual_seed(0)
    schedule = make_schedule(settings.schedule)
    x, y = torch.zeros(images, *shape), torch.zeros(images, dtype=torch.long)
    examples = denoising_examples(schedule, x, y, draws=1, low=1, high=schedule.timesteps, generator=generator)
    record_losses(model, examples).mean().backward()


@torch.inference_mode()
def _forward(model: nn.Module, shape: Shape, images: int) -> None:
    model(torch.zeros(images, *shape), torch.ones(images, dtype=torch.long), torch.zeros(images, dtype=torch.long))


def _autoencoder_step(coder: nn.Module, images: int, image: Shape, latent: Shape) -> None:
    again, _, _ = coder(torch.zeros(images, *image), torch.zeros(images, *latent))
    again.mean().backward()


def _read(network: nn.Module, images: int, shape: Shape) -> None:
    network(torch.zeros(images, *shape)).mean().backward()


def _kernel_step(shape: Shape) -> None:
    x, records = torch.zeros(PROBE_IMAGES, *shape), torch.zeros(PROBE_RECORDS, *shape)
    even = torch.zeros(PROBE_IMAGES)
    kernel_mean(records, x, 1.0, clip=1.0, expected=1.0, log_density=even, centre=x, source=system_source())


def _moving_step(how: Matching, shape: Shape) -> None:
    features = random_features(how, math.prod(shape), seed=0)
    target = Target(features.frequencies, torch.zeros(1, 2 * features.count), how.model_copy(update={"steps": 1}))
    matched(torch.zeros(PROBE_IMAGES, *shape), torch.zeros(PROBE_IMAGES), target, limit=1.0, seed=0)


def _measure(step: Callable[[], None], images: int) -> float:
    """Seconds per image of `step`, in the quickest of a few rounds.

    The smaller of wall time and processor time counts: wall time includes other work, and processor time adds up threads.
    """
    seconds: list[float] = []
    started = time.perf_counter()
    # The first round warms up, and may validate the network or choose between ways to compute; alone it says little.
    while len(seconds) < FEWEST_ROUNDS or time.perf_counter() - started < EACH_SECONDS:
        wall, own = time.perf_counter(), time.process_time()
        step()
        seconds.append(min(time.perf_counter() - wall, time.process_time() - own))
        if len(seconds) > 1 and time.perf_counter() - started > LONGEST_SECONDS:
            break
    return min(seconds) / images
