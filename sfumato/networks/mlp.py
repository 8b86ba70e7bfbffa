"""A residual network on the pixels of tiny images: the denoiser of the embedded default.

On 8x8 images a CPU runs it many times faster than a U-Net of similar size. Not meant above 16x16.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.layers import Condition, Conditioned, Film
from sfumato.networks.prediction import NoisePrediction, Prediction


class ResidualBlock(nn.Module):
    """x + W2 silu(W1 film(norm(x)))."""

    def __init__(self, width: int, condition: int):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = Film(condition, width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        nn.init.zeros_(self.outer.weight)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """x `[b, width]`, condition `[b, condition]` -> `[b, width]`."""
        return x + self.outer(F.silu(self.inner(self.modulate(self.norm(x), condition))))


class PixelMlp(Conditioned):
    """Predicts the noise in x `[b, c, h, w]` at times t `[b]` for classes y `[b]`; returns `[b, c, h, w]`."""

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int, blocks: int, condition: int):
        super().__init__()
        pixels = shape[0] * shape[1] * shape[2]
        self.condition = Condition(classes, condition)
        self.input = nn.Linear(pixels, width)
        self.blocks = nn.ModuleList(ResidualBlock(width, condition) for _ in range(blocks))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.output = nn.Linear(width, pixels)
        nn.init.zeros_(self.output.weight)
        self.prediction: Prediction = NoisePrediction()

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """See the class."""
        condition = self.condition(t, y)
        hidden = self.input(self.prediction.scaled(x, t).flatten(1))
        for block in self.blocks:
            hidden = block(hidden, condition)
        return self.prediction(self.output(self.norm(hidden)).view_as(x), x, t)
