"""Labels as rows of an image: a fixed code for each class, and a network that learns public images with the rows of theirs.

A code is a row of a Hadamard matrix or its negative, so that any two differ in about half of their places. Private classes have the first
codes, public ones those after them, and the codes of a class are the same whatever other classes there are.
"""

import math

import torch
from torch import Tensor, nn

from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import NoiseSchedule
from sfumato.errors import BadInput
from sfumato.methods.plan import OwnStart
from sfumato.networks.build import build
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper
from sfumato.training import pretrain


def label_codes(classes: int, shape: tuple[int, int, int]) -> Tensor:
    """The fixed embedding matrix: a code of values -1 and 1 for each class, `[classes, *shape]`.

    Rows of a Hadamard matrix and their negatives, repeated to fill the shape, so that any two differ in about half of
    their places (first-order Reed-Muller codes). `BadInput` where there are more classes than these.
    """
    length = math.prod(shape)
    codes = torch.ones(1, 1)
    while 2 * len(codes) <= length:
        codes = torch.cat([torch.cat([codes, codes], 1), torch.cat([codes, -codes], 1)])
    codes = torch.cat([codes, -codes])
    if classes > len(codes):
        raise BadInput(
            f"method.label_rows={shape[1]} of {shape[2]} numbers and {shape[0]} channel(s) hold {len(codes)} codes for {classes} "
            "classes: use more rows"
        )
    return codes[:classes, torch.arange(length) % codes.shape[1]].view(classes, *shape)


def with_rows(x: Tensor, y: Tensor, codes: Tensor) -> Tensor:
    """Images x `[b, c, h, w]` with the codes `[classes, c, rows, w]` of their classes y `[b]` below: `[b, c, h + rows, w]`."""
    return torch.cat([x, codes.to(x.device)[y]], 2)


def start_learnt(
    start: OwnStart,
    schedule: NoiseSchedule,
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
    progress: Progress = silent,
    keeper: Keeper | None = None,
) -> tuple[nn.Module, list[float]]:
    """The network of `start` after its training on public images x `[n, c, h, w]` of classes y `[n]`; and the losses.

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    own = start.blueprint
    codes = label_codes(start.before + start.classes, (x.shape[1], start.rows, x.shape[3]))[start.before :]
    model = build(own.network, own.shape, own.classes, seed=seed, alpha_bar=schedule.alpha_bar).to(x.device)
    none = torch.full_like(y, NO_CLASS)  # classes are in the image and nowhere else
    return pretrain(
        model, schedule, with_rows(x, y, codes), none, start.training, seed=seed, progress=progress, keeper=keeper
    )
