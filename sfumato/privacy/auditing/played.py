"""What an audit's play of a sampler shows; apart from its judges, so that a change of these makes no run pay again."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from sfumato.diffusion.objective import Randomness


class StandIn(nn.Module):
    """Takes a network's place in a game: answers by a function of images `[b, c, h, w]`, times `[b]` and labels `[b]`."""

    def __init__(self, answer: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """What the function says."""
        return self.answer(x, t, y)


@dataclass(frozen=True)
class Played:
    """What the steps that are paid for let out in one play, less what who attacks expects without the record."""

    residuals: Tensor
    """`[steps, images, numbers]` in units of the noise that the entry says: standard normal without the record."""
    shifts: Tensor
    """`[steps]`, how far the record moves them as the entry says, in the same units; all in the direction of equal numbers."""
    events: tuple[int, ...]
    """`[steps]`, which of the events pays for the step."""

    @property
    def along(self) -> Tensor:
        """`[steps, images]`, the residuals in that direction."""
        return self.residuals.sum(2) / math.sqrt(self.residuals.shape[2])


Play = Callable[[Tensor, Randomness], Played]
"""From whether the record is there, for each image `[b]`, and the randomness to what is seen."""
