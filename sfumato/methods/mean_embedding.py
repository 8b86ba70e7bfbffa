"""What methods have in common that release the classes' mean embeddings once and let a one-step generator learn from them alone.

Each private record adds one vector of norm 1 at most to the sum of its class, its share in the count of the class among its numbers; the
sums leave once, with Gaussian noise, and are all that is paid. A method says which features these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import Field

from sfumato.config import MethodSection, SettingsOf, Training
from sfumato.methods.algorithm import without_gradients
from sfumato.methods.plan import (
    STAGE_EMBEDDING,
    UNCLAIMED,
    Blueprint,
    Claim,
    Embedding,
    Facts,
    Plan,
    Spend,
    calibrated,
    shared_spends,
)
from sfumato.privacy.accounting.events import Gaussian

if TYPE_CHECKING:  # to list settings takes no torch
    from collections.abc import Callable

    from torch import Generator, Tensor

    from sfumato.methods.parts import Parts

M = TypeVar("M", bound=MethodSection)


class GeneratorTraining(Training):
    """Training of the generator on noisy mean embeddings."""

    steps: int = Field(default=2000, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=640, ge=2)
    """Images per step, of all classes together; of each class at least two."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Peak learning rate of Adam."""
    ema_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay of the moving average of the weights."""


def planned_release(
    settings: SettingsOf[M], facts: Facts, how: Embedding, what: str, claim: Callable[[float, float], Claim]
) -> Plan:
    """The whole run: `what` is summed, and the paper's `claim` follows from the noise and delta; `BadInput` where the budget does not fit."""
    shared = shared_spends(settings)

    def spends(noise: float) -> list[Spend]:
        return [*shared, Spend(stage=STAGE_EMBEDDING, what=what, event=Gaussian(noise_multiplier=noise))]

    noise, certificate = calibrated(settings.privacy, spends)
    return Plan(
        method=settings.method.name,
        facts=facts,
        embedding=how,
        noise_multiplier=noise,
        generation=settings.generation,
        evaluations=1,
        spends=tuple(spends(noise)),
        privacy=settings.privacy,
        certificate=certificate,
        claim=claim(noise, settings.privacy.delta) if noise else UNCLAIMED,
    )


def generator_blueprint(settings: SettingsOf[M], shape: tuple[int, int, int], facts: Facts) -> Blueprint:
    """The generator: the run's network begun afresh, whose output is an image and no noise."""
    network = settings.network.model_copy(update={"prediction": "noise"})
    return Blueprint(network=network, shape=shape, classes=len(facts.classes))


@without_gradients
def drawn_at_once(settings: SettingsOf[M], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Images or latents `[b, c, h, w]` of the private classes y `[b]`, each by one evaluation of the generator."""
    import torch

    from sfumato.diffusion.objective import normal
    from sfumato.diffusion.samplers import one_step_images
    from sfumato.methods.parts import planned

    z = normal(torch.empty(len(y), *parts.shape, device=y.device), generator)
    return one_step_images(planned(parts.tuned), parts.schedule, z, y)
