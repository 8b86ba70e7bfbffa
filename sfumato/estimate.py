"""How long and how large: an estimate from a few timed steps on random images, on the machine that will do the work."""

import time
from dataclasses import dataclass

import torch

from sfumato.diffusion.objective import denoising_examples, record_losses
from sfumato.diffusion.schedule import make_schedule
from sfumato.methods.plan import Plan
from sfumato.networks.build import build
from sfumato.settings import Settings

PROBE_IMAGES = 256
"""Images of one timed step."""
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
    model = build(settings.network, plan.facts.shape, plan.facts.public_classes)
    second_per_image = _measure(model, settings, plan)
    tuning = plan.fine_tuning
    copies = plan.facts.records * tuning.sample_rate * tuning.draws
    images = (
        settings.pretraining.steps * settings.pretraining.batch
        + tuning.steps * copies * PER_RECORD * (2 if settings.evaluation.baseline else 1)
        + plan.generation.images * plan.evaluations / BACKWARD
    )
    if plan.phase_one:
        images += plan.phase_one.training.steps * plan.phase_one.training.batch
    if plan.retrieval:
        images += plan.retrieval.extractor.steps * plan.retrieval.extractor.batch
    weights = sum(p.numel() for p in model.parameters())
    gigabytes = (settings.machine.physical_batch * weights + 10 * weights) * BYTES / 1e9 + BASE_GIGABYTES
    return Estimate((images * second_per_image + OVERHEAD_SECONDS) / 60, gigabytes)


def _measure(model: torch.nn.Module, settings: Settings, plan: Plan) -> float:
    """Seconds of training per image."""
    generator = torch.Generator().manual_seed(0)
    schedule = make_schedule(settings.schedule)
    x, y = torch.zeros(PROBE_IMAGES, *plan.facts.shape), torch.zeros(PROBE_IMAGES, dtype=torch.long)
    rounds, started = 0, None
    while started is None or time.perf_counter() - started < PROBE_SECONDS:
        examples = denoising_examples(schedule, x, y, draws=1, low=1, high=schedule.timesteps, generator=generator)
        record_losses(model, examples).mean().backward()
        if started is None:
            started = time.perf_counter()  # the first round only warms up
        else:
            rounds += 1
    return (time.perf_counter() - started) / (rounds * PROBE_IMAGES)
