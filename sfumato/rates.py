"""Candidates for the learning rate: models trained by DP-SGD at several rates, and the votes of private records that choose one.

Every candidate is trained, and paid for, in full. Behind the door each private record votes for the candidate that denoises it best (`ballot`); the
histogram leaves with noise. All else here is post-processing of it.

Not covered: the noise and its price, see `sfumato.privacy.mechanisms.noisy_votes`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from sfumato.alignment import aligned
from sfumato.diffusion.objective import Corrupt, Examples, record_losses
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts, planned
from sfumato.settings import Settings

COPIES = 16
"""Noised copies of a record on which candidates are compared."""
SEED = 0
"""Of times and noise, which are public and the same for every record, so that a vote is a function of its record alone."""
TOGETHER = 64
"""Records whose copies are denoised at once."""


def ballot(settings: Settings, parts: Parts, models: Sequence[nn.Module]) -> Callable[[Tensor, Tensor], Tensor]:
    """From private images `[b, c, h, w]` and classes `[b]` to the model with the least loss on each, int64 `[b]` below the number of models.

    The loss is that of training. One that is not finite is the largest of all.
    """
    tuning = settings.fine_tuning.model_copy(update={"draws": COPIES})
    corrupt = planned(METHODS[settings.method.name].corrupt)(settings.model_copy(update={"fine_tuning": tuning}), parts)

    @torch.no_grad()
    def vote(x: Tensor, y: Tensor) -> Tensor:
        codec, (channels, height, width) = parts.codec, x.shape[1:]
        z = aligned(codec.encode(x), y, codec.largest_norm((channels, height, width)), parts.alignment)
        losses = [
            torch.stack([record_losses(model, shown) for model in models], 1)
            for shown in (examples(corrupt, *some) for some in zip(z.split(TOGETHER), y.split(TOGETHER), strict=True))
        ]
        return torch.cat(losses).nan_to_num(torch.inf, torch.inf).argmin(1)

    return vote


def examples(corrupt: Corrupt, x: Tensor, y: Tensor) -> Examples:
    """Noised copies of records `[b, c, h, w]` of the classes `[b]`: of each by itself, with the same public noise."""
    each = [
        corrupt(one, label, torch.Generator(x.device).manual_seed(SEED))
        for one, label in zip(x.split(1), y.split(1), strict=True)
    ]
    return Examples(*(torch.cat(parts) for parts in zip(*(vars(one).values() for one in each), strict=True)))


def elected(votes: Tensor) -> int:
    """The model with the most of the votes `[1, models]`; the first of several."""
    return int(votes[0].argmax())
