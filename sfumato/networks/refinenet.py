"""A RefineNet of dilated residual blocks: the score network of DPPM and of noise-conditional score matching.

Levels of residual blocks look ever further (after Song and Ermon 2019, appendix A): the second halves the side, those
after it keep theirs and double the dilation. Refine blocks then merge the levels from the last to the first (Lin et al.
2017): adapt each, bring them to one size and add, add what ever wider averages show, adapt. Group normalisation with
feature-wise modulation; SiLU and average pooling, so that second derivatives exist everywhere. No layer mixes records.
"""

import functools
import itertools
import operator
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.errors import BadInput
from sfumato.networks.layers import Condition, Conditioned, norm
from sfumato.networks.prediction import NoisePrediction, Prediction
from sfumato.networks.unet import ResBlock

POOL, POOLINGS = 5, 2
"""Side of a window, and number of windows one after the other, in a chain of poolings (Lin et al. 2017, section 3.2)."""


class RefineBlock(nn.Module):
    """Merges levels, finest first, of `inputs` channels each into `outputs` channels at the finest one's size."""

    def __init__(self, inputs: Sequence[int], outputs: int, condition: int):
        super().__init__()
        self.adapt = nn.ModuleList(ResBlock(channels, channels, condition) for channels in inputs)
        self.merge = nn.ModuleList(nn.Conv2d(channels, outputs, 3, padding=1) for channels in inputs)
        self.chain = nn.ModuleList(nn.Conv2d(outputs, outputs, 3, padding=1) for _ in range(POOLINGS))
        self.finish = ResBlock(outputs, outputs, condition)

    def forward(self, levels: Sequence[Tensor], condition: Tensor) -> Tensor:
        """`[b, inputs[i], h_i, w_i]` each -> `[b, outputs, h_0, w_0]`."""
        adapted = [adapt(level, condition) for adapt, level in zip(self.adapt, levels, strict=True)]
        parts = [merge(level) for merge, level in zip(self.merge, adapted, strict=True)]
        hidden = functools.reduce(operator.add, (fitted(part, levels[0]) for part in parts))
        wider = hidden = F.silu(hidden)
        for convolve in self.chain:
            wider = convolve(F.avg_pool2d(wider, POOL, stride=1, padding=POOL // 2))
            hidden = hidden + wider
        return self.finish(hidden, condition)


def fitted(part: Tensor, like: Tensor) -> Tensor:
    """`part` `[b, c, ...]` enlarged to the sides of `like`, where they differ."""
    if part.shape[2:] == like.shape[2:]:
        return part
    return F.interpolate(part, size=like.shape[2:], mode="bilinear", align_corners=False)


class RefineNet(Conditioned):
    """Predicts the noise, or minus the score, of x `[b, c, h, w]` at times t `[b]` for classes y `[b]`; returns `[b, c, h, w]`.

    `multipliers` gives the channels of each level in units of `width`, `refine` those of each refine block from the last level on, empty
    those of its level; blocks beyond the levels refine the merged image alone. Any sides will do. `BadInput` for fewer blocks than levels.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        width: int,
        multipliers: tuple[int, ...],
        blocks: int,
        condition: int,
        refine: tuple[int, ...] = (),
    ):
        """A network for images of `shape` (c, h, w).

        Many parameters: each is a size of the network, by the name of its setting.
        """
        super().__init__()
        if refine and len(refine) < len(multipliers):
            raise BadInput(
                f"network.refine={list(refine)} has fewer blocks than the {len(multipliers)} levels of network.multipliers: give one for "
                "each, or none"
            )
        self.condition = Condition(classes, condition)
        self.input = nn.Conv2d(shape[0], width, 3, padding=1)
        self.levels, self.refine = nn.ModuleList(), nn.ModuleList()
        channels = [width * multiplier for multiplier in multipliers]
        for level, (inputs, outputs) in enumerate(zip([width, *channels], channels, strict=False)):
            sizes = [inputs] + [outputs] * blocks
            reach = 2 ** max(0, level - 1)
            self.levels.append(
                nn.ModuleList(ResBlock(a, b, condition, dilation=reach) for a, b in itertools.pairwise(sizes))
            )
        levels, merged = channels[::-1], list[int]()
        for place, outputs in enumerate([width * multiplier for multiplier in refine] or levels):
            self.refine.append(RefineBlock([*levels[place : place + 1], *merged], outputs, condition))
            merged = [outputs]
        self.norm, self.output = norm(merged[0]), nn.Conv2d(merged[0], shape[0], 3, padding=1)
        nn.init.zeros_(self.output.weight)
        self.prediction: Prediction = NoisePrediction()

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """See the class."""
        condition = self.condition(t, y)
        hidden, seen = self.input(self.prediction.scaled(x, t)), []
        for level, blocks in enumerate(self.levels):
            if level == 1:
                hidden = F.avg_pool2d(hidden, 2, ceil_mode=True)
            for block in blocks.children():
                hidden = block(hidden, condition)
            seen.append(hidden)
        levels, merged = seen[::-1], list[Tensor]()
        for place, refine in enumerate(self.refine):
            merged = [refine([*levels[place : place + 1], *merged], condition)]
        return self.prediction(self.output(F.silu(self.norm(merged[0]))), x, t)
