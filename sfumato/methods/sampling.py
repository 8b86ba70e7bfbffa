"""Sampling as most methods do it: from noise at T to an image at 0, by the denoiser that learnt from private records.

Not covered: methods that ask several denoisers, or that begin elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfumato.config import MethodSection, SettingsOf
from sfumato.methods.algorithm import without_gradients

if TYPE_CHECKING:  # to list settings takes no torch
    from torch import Generator, Tensor

    from sfumato.methods.parts import Parts


def walk(settings: SettingsOf[MethodSection]) -> Sequence[int]:
    """The times of sampling, T to 0, in at most T steps."""
    from sfumato.diffusion.schedule import time_grid

    return time_grid(settings.schedule.timesteps, 0, settings.generation.steps)


def network_evaluations(settings: SettingsOf[MethodSection], *, guided: bool = True) -> int:
    """How often a denoiser is asked for one image of the whole walk: a second-order solver asks more than once a step, and guidance twice, with which
    `draw` draws and the public model does not."""
    from sfumato.diffusion.samplers import evaluations

    return evaluations(settings.generation, walk(settings)) * (2 if guided and settings.generation.guidance else 1)


@without_gradients
def draw(settings: SettingsOf[MethodSection], parts: Parts, y: Tensor, generator: Generator) -> Tensor:
    """Images or latents `[b, c, h, w]` of the private classes y `[b]`, guided as the settings say."""
    import torch

    from sfumato.diffusion.objective import normal
    from sfumato.diffusion.samplers import guided, solve
    from sfumato.methods.parts import planned

    generation = settings.generation
    x = normal(torch.empty(len(y), *parts.shape, device=y.device), generator)
    tuned = guided(planned(parts.tuned), generation.guidance)
    return solve(generation, parts.schedule, tuned, x, y, walk(settings), generator=generator)
