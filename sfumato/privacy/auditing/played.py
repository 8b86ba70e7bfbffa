"""Values that a sampler played in an audit returns; apart from the tests of them, so that a change of those makes no run pay again."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from sfumato.diffusion.objective import Randomness


class StandIn(nn.Module):
    """Stands in for a network in a game: a function of images `[b, c, h, w]`, times `[b]` and labels `[b]`."""

    def __init__(self, answer: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """The function's value `[b, c, h, w]`."""
        return self.answer(x, t, y)


@dataclass(frozen=True)
class Played:
    """The outputs of the paid steps in one play, less what the attacker expects without the record."""

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
"""Maps whether the record takes part, for each image `[b]`, and the source of randomness to the observations."""
