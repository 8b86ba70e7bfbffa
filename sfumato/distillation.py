"""What the public denoiser learns from images that were paid for: post-processing of them, which covers any number of images.

Not covered: whether it copies them. So few images are learnt by heart, and what is drawn is near to one of them; none is a record.
"""

import torch
from torch import nn

from sfumato.config import Pretraining
from sfumato.methods.parts import Parts, planned, untuned
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper
from sfumato.training import pretrain


def learnt_from_prototypes(
    parts: Parts, training: Pretraining, *, seed: int, progress: Progress = silent, keeper: Keeper | None = None
) -> tuple[nn.Module, list[float]]:
    """The public denoiser, with rows for the private classes, after plain training on the prototypes; and its losses.

    `parts.prototypes` `[n, c, h, w]` are as many of each class, class by class.
    """
    x = planned(parts.prototypes)
    classes = len(parts.facts.classes)
    y = torch.arange(classes, device=x.device).repeat_interleave(len(x) // classes)
    model = untuned(parts).to(x.device)
    return pretrain(model, parts.schedule, x, y, training, seed=seed, progress=progress, keeper=keeper)
