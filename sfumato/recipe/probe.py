"""Steps of a run, timed on zeros on the machine that will do the work.

The timed steps are small, so that the whole probe ends within `PROBE_SECONDS` and holds no more than `PROBE_BYTES` at once. What is too
large for that is taken from the fixed table of costs (`sfumato.costs`), and so is all work of a GPU, which small steps would not fill.
Not covered: how often each step is taken, which is `sfumato.recipe.estimate`.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sfumato.config import Matching
from sfumato.costs import HEAD_FEATURES, Cost, Work, drawing_seconds
from sfumato.costs import training_seconds as by_the_table
from sfumato.diffusion.objective import Examples, denoising_examples, record_losses
from sfumato.diffusion.schedule import make_schedule
from sfumato.fourier import random_features
from sfumato.matching import matched
from sfumato.methods.parts import Target
from sfumato.networks.autoencoder import Shape
from sfumato.networks.denoiser import groups_of
from sfumato.privacy.engine.autotune import fastest
from sfumato.privacy.engine.capture import Unknown
from sfumato.privacy.engine.clipping import GAMMA, add_clipped
from sfumato.privacy.engine.folded import bundled, weigh_records
from sfumato.privacy.engine.kernel_mean import kernel_mean
from sfumato.privacy.engine.per_record import gradients_of_records
from sfumato.privacy.noise import system_source
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
LEAST_SECONDS = 1e-9
"""Shortest time by the table that is divided by."""
STEP_SECONDS = 0.08
"""About how long one timed step may be, by the table."""
PROBE_BYTES = 0.1e9
"""Most that one timed step holds: a network's activations, weights and gradients."""
HELD = 4.0
"""Memory of a training step in units of its layers' outputs: outputs, norms, their gradients."""
HELD_WEIGHTS = 4.0
"""The same in units of its weights: these, their gradients, and the copies of both that convolutions put in order."""
BYTES = 4
"""Of a number."""


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

    def per_image(
        self, kind: str, work: Work, step: Callable[[int], Any], *, training: bool = True, together: int = 1
    ) -> float:
        """Seconds of one image in a step of `kind` whose forward pass is `work`: timed where that is small, by the table otherwise.

        A step has some multiple of `together` images, or fewer than that.
        """
        cost = self.table[kind]
        tabled = by_the_table(Cost(cost.work), work, 1) if training else drawing_seconds(cost, work, 1)
        free = PROBE_BYTES - HELD_WEIGHTS * BYTES * work.weights
        fitting = min(STEP_SECONDS / max(tabled, LEAST_SECONDS), free / (HELD * BYTES * max(work.numbers, 1.0)))
        if not self.times or fitting < 1 or time.perf_counter() - self.started > PROBE_SECONDS:
            return tabled * self.slower
        images = int(min(PROBE_IMAGES, fitting))
        images -= images % min(together, images)
        seconds = measured(functools.partial(step, images), images)
        self.ratios.append(seconds / max(tabled, LEAST_SECONDS))
        return seconds

    def untabled(self, step: Callable[[], Any], images: int = PROBE_IMAGES) -> float:
        """Seconds of one image in a step of `images` that the table does not know: timed here, even where a GPU will do the work."""
        return measured(step, images)

    def update(self, work: Work) -> float:
        """Seconds of an optimiser step and of the moving average, by the table."""
        cost = self.table["mlp"]
        return cost.step + work.weights / 1e9 * cost.weights

    def products(self, count: float) -> float:
        """Seconds of so many products of numbers, by the table."""
        return count * self.table["mlp"].work / 1e9

    def head(self, shape: Shape, adapters: int) -> float:
        """Seconds in which one head of an ensemble says what it has to of one image."""
        return self.products((HEAD_FEATURES + 1) * math.prod(shape) * adapters)


def measured(step: Callable[[], None], images: int) -> float:
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


def examples_of(schedule: Any, images: int, shape: Shape, draws: int = 1) -> Examples:
    """Examples of `images` zeros of `shape`, with `draws` times each, as a step has them."""
    x, y = torch.zeros(images, *shape), torch.zeros(images, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    return denoising_examples(schedule, x, y, draws=draws, low=1, high=schedule.timesteps, generator=generator)


def denoiser_step(model: nn.Module, settings: Settings, shape: Shape, images: int) -> None:
    """Loss and gradients of a denoiser, of so many images."""
    examples = examples_of(make_schedule(settings.schedule), images, shape)
    record_losses(model, examples).mean().backward()
    model.zero_grad()


@torch.inference_mode()
def denoiser_forward(model: nn.Module, shape: Shape, images: int) -> None:
    """What a denoiser says of so many images."""
    model(torch.zeros(images, *shape), torch.ones(images, dtype=torch.long), torch.zeros(images, dtype=torch.long))


def autoencoder_step(coder: nn.Module, images: int, image: Shape, latent: Shape) -> None:
    """There and back, and gradients, of so many images."""
    again, _, _ = coder(torch.zeros(images, *image), torch.zeros(images, *latent))
    again.mean().backward()
    coder.zero_grad()


def reading_step(network: nn.Module, images: int, shape: Shape) -> None:
    """Gradients of a network that reads so many images."""
    network(torch.zeros(images, *shape)).mean().backward()
    network.zero_grad()


def clipping_step(
    model: nn.Module, trainable: Mapping[str, torch.Tensor], examples: Examples, settings: Settings
) -> None:
    """The clipped gradients of made-up records; a model is not validated for them, which would take more than the step."""
    how, group_of = settings.fine_tuning, groups_of(model)
    try:
        weighed = weigh_records(model, trainable, examples, choose=fastest, group_of=group_of)
    except Unknown:
        weighed = bundled(gradients_of_records(model, trainable, examples), group_of)
    total = {name: torch.zeros_like(parameter) for name, parameter in trainable.items()}
    add_clipped(
        total, weighed, clip=how.clip, rule=how.clipping, gamma=GAMMA, group_of=group_of, silent=frozenset(trainable)
    )


def kernel_step(shape: Shape) -> None:
    """The noisy kernel mean of `PROBE_RECORDS` records for `PROBE_IMAGES` images."""
    x, records = torch.zeros(PROBE_IMAGES, *shape), torch.zeros(PROBE_RECORDS, *shape)
    even = torch.zeros(PROBE_IMAGES)
    kernel_mean(records, x, 1.0, clip=1.0, expected=1.0, log_density=even, centre=x, source=system_source())


def moving_step(how: Matching, shape: Shape) -> None:
    """One step that moves `PROBE_IMAGES` images to a mean embedding."""
    features = random_features(how, math.prod(shape), seed=0)
    target = Target(features.frequencies, torch.zeros(1, 2 * features.count), how.model_copy(update={"steps": 1}))
    matched(torch.zeros(PROBE_IMAGES, *shape), torch.zeros(PROBE_IMAGES), target, limit=1.0, seed=0)
