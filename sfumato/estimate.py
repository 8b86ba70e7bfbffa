"""How long and how large: an estimate from a few timed steps on random images, on the machine that will do the work."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sfumato.diffusion.objective import denoising_examples, record_losses
from sfumato.diffusion.schedule import make_schedule
from sfumato.methods import METHODS
from sfumato.methods.parts import design
from sfumato.methods.plan import Plan
from sfumato.networks.autoencoder import Shape, build_autoencoder, latent_shape
from sfumato.networks.build import build
from sfumato.privacy.kernel_mean import kernel_mean
from sfumato.privacy.noise import system_source
from sfumato.settings import Settings

PROBE_IMAGES = 256
"""Images of one timed step."""
PROBE_RECORDS = 1024
"""Private records, stood in for by zeros, that a timed step compares each image with."""
PROBE_SECONDS = 0.5
"""About how long to measure."""
BACKWARD = 3.0
"""Cost of a training step in forward passes."""
PER_RECORD = 1.4
"""Cost of a step with per-record gradients, in ordinary training steps."""
OVERHEAD_SECONDS = 30.0
"""Start of the server, reading, judging, reporting."""
BYTES = 4
BASE_GIGABYTES = 1.0
"""The program itself."""


@dataclass(frozen=True)
class Estimate:
    """Rough figures, for planning."""

    minutes: float
    gigabytes: float


def estimate(settings: Settings, plan: Plan) -> Estimate:
    """Time and memory of the whole plan; a factor of two either way is normal."""
    latent, image = settings.latent, plan.facts.shape
    shape = latent_shape(latent, image)
    levels = make_schedule(settings.schedule).alpha_bar
    model = build(settings.network, shape, plan.facts.public_classes, alpha_bar=levels)
    copies = plan.facts.records * settings.fine_tuning.sample_rate * settings.fine_tuning.draws
    copies *= settings.fine_tuning.images_per_group if plan.facts.unit else 1
    private = settings.fine_tuning.steps * copies * PER_RECORD
    images = settings.pretraining.steps * settings.pretraining.batch + private * settings.evaluation.baseline
    own = private * bool(plan.fine_tuning) + plan.generation.images * plan.evaluations / BACKWARD
    if plan.phase_one:
        images += plan.phase_one.training.steps * plan.phase_one.training.batch
    kernel = plan.generation.images * plan.comparisons
    if plan.plain:
        own += plan.plain.steps * plan.plain.batch
    if plan.members:
        images += plan.members.count * plan.members.training.steps * plan.members.training.batch
    if plan.retrieval:
        images += plan.retrieval.extractor.steps * plan.retrieval.extractor.batch
    seconds = images * _measure(lambda: _denoiser_step(model, settings, shape)) + OVERHEAD_SECONDS
    made = design(METHODS[settings.method.name], settings, shape, plan.facts)
    other = build(made.network, made.shape, made.classes, alpha_bar=levels)
    seconds += own * _measure(lambda: _denoiser_step(other, settings, made.shape))
    seconds += kernel and kernel * _measure(lambda: _kernel_step(shape)) / PROBE_RECORDS
    if latent.kind != "none":
        coder = build_autoencoder(latent, image)
        seconds += latent.steps * latent.batch * _measure(lambda: _autoencoder_step(coder, image, shape))
    weights = sum(p.numel() for p in other.parameters())
    gigabytes = (settings.machine.physical_batch * weights + 10 * weights) * BYTES / 1e9 + BASE_GIGABYTES
    return Estimate(seconds / 60, gigabytes)


def _denoiser_step(model: nn.Module, settings: Settings, shape: Shape) -> None:
    generator = torch.Generator().manual_seed(0)
    schedule = make_schedule(settings.schedule)
    x, y = torch.zeros(PROBE_IMAGES, *shape), torch.zeros(PROBE_IMAGES, dtype=torch.long)
    examples = denoising_examples(schedule, x, y, draws=1, low=1, high=schedule.timesteps, generator=generator)
    record_losses(model, examples).mean().backward()


def _autoencoder_step(coder: nn.Module, image: Shape, latent: Shape) -> None:
    again, _, _ = coder(torch.zeros(PROBE_IMAGES, *image), torch.zeros(PROBE_IMAGES, *latent))
    again.mean().backward()


def _kernel_step(shape: Shape) -> None:
    x, records = torch.zeros(PROBE_IMAGES, *shape), torch.zeros(PROBE_RECORDS, *shape)
    choice: dict[str, Any] = {"clip": 1.0, "expected": 1.0, "log_density": torch.zeros(PROBE_IMAGES), "centre": x}
    kernel_mean(records, x, 1.0, **choice, source=system_source())


def _measure(step: Callable[[], None]) -> float:
    """Seconds of training per image, for a step of `PROBE_IMAGES` images."""
    step()  # the first only warms up
    rounds, started = 0, time.perf_counter()
    while not rounds or time.perf_counter() - started < PROBE_SECONDS:
        step()
        rounds += 1
    return (time.perf_counter() - started) / (rounds * PROBE_IMAGES)
