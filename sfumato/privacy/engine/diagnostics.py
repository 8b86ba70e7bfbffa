"""Diagnostics of DP training before noise, from private records; INTERNAL, and only on request.

Not covered: paying for such numbers with noise.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from sfumato.config import Section
from sfumato.diffusion.objective import Examples, record_losses


class Seen(Section):
    """One step, without noise."""

    step: int
    records: int
    """Records in the Poisson batch."""
    not_finite: int
    """Records whose gradient was not finite and which contributed zero."""
    clipped: int
    """Records whose norm was above the clip."""
    median_norm: float | None
    """Median norm of finite gradients before clipping; None where there is none."""
    loss: float | None
    """Mean over the batch of the losses that are finite."""


Watch = Callable[[Seen], None]


@torch.no_grad()
def seen(model: nn.Module, examples: Examples, norms: Sequence[Tensor], *, step: int, clip: float) -> Seen:
    """Summarise a step's examples and the records' norms, `[b]` in parts."""
    every = torch.cat([torch.zeros(0, device=examples.x_t.device), *norms])
    finite = every[every.isfinite()]
    losses = record_losses(model, examples) if len(examples.y) else every
    return Seen(
        step=step,
        records=len(every),
        not_finite=len(every) - len(finite),
        clipped=int((finite > clip).sum()),
        median_norm=_mean_or_none(finite.median() if len(finite) else finite),
        loss=_mean_or_none(losses[losses.isfinite()]),
    )


def _mean_or_none(values: Tensor) -> float | None:
    return float(values.mean()) if values.numel() else None
