"""Seconds of one image in each kind of step that a planned run takes, on the machine that will do the work."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from sfumato.config import Network
from sfumato.costs import (
    TRAINING,
    Work,
    autoencoder_work,
    backbone_work,
    counted,
    denoiser_work,
    without_numbers,
    without_weights,
)
from sfumato.diffusion.schedule import make_schedule
from sfumato.evaluation.classifier import Classifier
from sfumato.evaluation.effort import classifier_work
from sfumato.methods import METHODS
from sfumato.methods.algorithm import design
from sfumato.methods.plan import Plan
from sfumato.networks.autoencoder import Shape, build_autoencoder, latent_shape
from sfumato.networks.backbone import BackboneNetwork
from sfumato.networks.build import build, resolved
from sfumato.networks.denoiser import class_rows, parameters_by_group, with_classes
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.recipe.probe import (
    PROBE_RECORDS,
    Probe,
    autoencoder_step,
    clipping_step,
    denoiser_forward,
    denoiser_step,
    examples_of,
    kernel_step,
    moving_step,
    reading_step,
)
from sfumato.recipe.stage_costs import needs_backbone
from sfumato.retrieval.features import make_encoder
from sfumato.retrieval.settings import Extractor
from sfumato.settings import Settings

NOISE_SECONDS = 6e-8
"""Seconds of the noise on one number, on the grid."""
NOTHING = Work(0.0, 0)


@dataclass(frozen=True)
class Learner:
    """A network that learns."""

    step: float
    """Seconds of one image in a training step."""
    work: Work
    """Of one forward pass."""
    update: float
    """Seconds of the optimiser in a step, however many images it has."""

    def seconds(self, steps: int, batch: float) -> float:
        """Seconds of so many steps of so many images."""
        return steps * (batch * self.step + self.update)

    @property
    def reading(self) -> float:
        """Seconds in which it reads an image, without gradients."""
        return self.step / TRAINING


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of one image in each kind of step; 0 for what a run has not."""

    coder: Learner
    """The autoencoder, there and back; its `reading` is both."""
    backbone: Learner
    denoiser: Learner
    forward: float
    """What the denoiser says of an image, without gradients."""
    own: Learner
    """The network that a method has of its own, else the denoiser."""
    own_forward: float
    extractor: float
    clipped: float
    """A noised copy of a private image, its gradient clipped."""
    noise: float
    """The noise of one private step, whatever its size."""
    small_cnn: float
    """What the small CNN, which judges, says of an image."""
    compared: float
    """A drawn image with one private record."""
    moved: float
    """A drawn image, one step to the mean embedding."""

    @property
    def half_coder(self) -> float:
        """Seconds in which an image is encoded, or decoded."""
        return self.coder.reading / 2


def step_seconds(settings: Settings, plan: Plan, probe: Probe) -> StepSeconds:
    """Seconds of each kind of step of `plan`, timed by `probe` or by its table."""
    image, shape, facts = plan.facts.shape, latent_shape(settings.latent, plan.facts.shape), plan.facts
    none = Learner(0.0, NOTHING, 0.0)
    coder = _coder(settings, image, shape, probe) if settings.latent.kind != "none" else none
    backbone = _backbone(settings, plan, probe) if needs_backbone(settings) else none
    levels = make_schedule(settings.schedule).alpha_bar
    # As with the other networks: only what is small enough to be timed is made.
    model = functools.cache(lambda: build(settings.network, shape, facts.learnt_classes, alpha_bar=levels))
    kind, work = _kind(settings.network, shape), denoiser_work(settings.network, shape, facts.learnt_classes)
    denoise = probe.per_image(kind, work, lambda n: denoiser_step(model(), settings, shape, n))
    forward = probe.per_image(kind, work, lambda n: denoiser_forward(model(), shape, n), training=False)
    denoiser = Learner(denoise, work, probe.update(work))
    extractor = _extractor(plan.retrieval.extractor, shape, probe) if plan.retrieval else 0.0
    own, own_forward = denoiser, forward
    if METHODS[settings.method.name].blueprint:
        own = _own(settings, plan, shape, probe)
        own_forward = own.reading
    private = plan.fine_tuning or settings.evaluation.baseline
    clipped, noise = _clipped(settings, plan, model, shape, probe) if private else (0.0, 0.0)
    reader, reads = (
        Classifier(image[0], len(facts.classes), side=max(image[1:])),
        classifier_work(image, len(facts.classes)),
    )
    compares, moves = plan.generation.images * plan.comparisons, plan.matching
    return StepSeconds(
        coder=coder,
        backbone=backbone,
        denoiser=denoiser,
        forward=forward,
        own=own,
        own_forward=own_forward,
        extractor=extractor,
        clipped=clipped,
        noise=noise,
        small_cnn=probe.per_image("classifier", reads, lambda n: reading_step(reader, n, image)) / TRAINING,
        compared=probe.untabled(lambda: kernel_step(shape)) / PROBE_RECORDS if compares else 0.0,
        moved=probe.untabled(functools.partial(moving_step, moves, shape)) if moves else 0.0,
    )


def _coder(settings: Settings, image: Shape, shape: Shape, probe: Probe) -> Learner:
    coder = functools.cache(lambda: build_autoencoder(settings.latent, image))
    work = autoencoder_work(settings.latent, image)
    step = probe.per_image(settings.latent.kind, work, lambda n: autoencoder_step(coder(), n, image, shape))
    return Learner(step, work, probe.update(work))


def _backbone(settings: Settings, plan: Plan, probe: Probe) -> Learner:
    image, classes = plan.facts.shape, plan.facts.public_classes
    work = backbone_work(settings.backbone, image, classes)
    network = functools.cache(lambda: BackboneNetwork(image, classes, width=settings.backbone.width))
    step = probe.per_image("backbone", work, lambda n: reading_step(network(), n, image))
    return Learner(step, work, probe.update(work))


def _extractor(how: Extractor, shape: Shape, probe: Probe) -> float:
    def made() -> nn.Module:
        return make_encoder(how, shape).eval()  # in training, batch normalisation refuses one image

    encoder = functools.cache(made)
    with without_numbers(shape):
        counts = made()
        work = counted(counts, lambda: counts(torch.zeros(1, *shape)))
    return probe.per_image("extractor", work, lambda n: reading_step(encoder(), n, shape))


def _own(settings: Settings, plan: Plan, shape: Shape, probe: Probe) -> Learner:
    blueprint = design(METHODS[settings.method.name], settings, shape, plan.facts)
    levels = make_schedule(settings.schedule).alpha_bar
    network = functools.cache(lambda: build(blueprint.network, blueprint.shape, blueprint.classes, alpha_bar=levels))
    kind = _kind(blueprint.network, blueprint.shape)
    work = denoiser_work(blueprint.network, blueprint.shape, blueprint.classes)
    step = probe.per_image(kind, work, lambda n: denoiser_step(network(), settings, blueprint.shape, n))
    return Learner(step, work, probe.update(work))


def _clipped(
    settings: Settings, plan: Plan, made: Callable[[], nn.Module], shape: Shape, probe: Probe
) -> tuple[float, float]:
    """Seconds of one noised copy, its gradient clipped as it is on this machine, and of the noise of a step."""
    tuning, schedule, classes = settings.fine_tuning, make_schedule(settings.schedule), plan.facts.learnt_classes
    draws = tuning.draws * (tuning.images_per_group if plan.facts.unit else 1)

    def private(model: nn.Module) -> nn.Module:
        """The denoiser with a row for each private class."""
        rows = class_rows(model)
        return with_classes(model, rows.new_zeros(len(plan.facts.classes), rows.shape[1]))

    @functools.cache
    def tuned() -> tuple[nn.Module, dict[str, nn.Parameter]]:
        model = private(made())
        return model, trainable_parameters(model, tuning.trainable)

    def step(images: int) -> None:
        copies = min(draws, images)
        clipping_step(*tuned(), examples_of(schedule, images // copies, shape, copies), settings)

    with without_weights():
        sizes = parameters_by_group(private(build(settings.network, shape, classes, alpha_bar=schedule.alpha_bar)))
    kind, work = _kind(settings.network, shape), denoiser_work(settings.network, shape, classes)
    noise = sum(sizes.get(group, 0) for group in tuning.trainable) * NOISE_SECONDS
    return probe.per_image(kind, work, step, together=draws), noise


def _kind(network: Network, shape: Shape) -> str:
    return resolved(network, shape[1]).kind
