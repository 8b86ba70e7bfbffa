"""A small transformer over the positions of an image or latent: patches as tokens, conditioned by adaptive layer norm.

After Peebles and Xie 2023 (DiT with adaLN-Zero): each block attends over positions and then mixes features, both
shifted, scaled and gated by the condition, with gates that are zero at the start. Fixed sines and cosines of row and column
(Vaswani et al. 2017) encode positions, without parameters. No layer mixes records, and the clipping engine has rules for all of
them. Not covered: masks, sides that the patch does not divide.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.checkpointing import block
from sfumato.networks.layers import Condition, Conditioned, Film, time_features
from sfumato.networks.prediction import NoisePrediction, Prediction

EXPANSION = 4
"""Width between the two layers of a block that mixes features, in units of the width (Vaswani et al. 2017)."""


class Gates(nn.Module):
    """Scale, shift and gate for the two halves of a block, from the condition; all zero at the start (adaLN-Zero)."""

    def __init__(self, condition: int, width: int):
        super().__init__()
        self.film = nn.Linear(condition, 6 * width)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, condition: Tensor) -> tuple[Tensor, ...]:
        """Six tensors `[b, 1, width]` from the condition `[b, condition]`."""
        return self.film(F.silu(condition))[:, None].chunk(6, 2)


class Heads(nn.Module):
    """Self-attention over positions in several heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`[b, positions, width]` -> the same shape."""
        # [b, heads, positions, width / heads] each
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        # Spelt out, because the fused attention has no rule for per-record gradients.
        shares = (query * query.shape[-1] ** -0.5 @ key.transpose(2, 3)).softmax(3)
        return self.out((shares @ value).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention, then two linear layers at each position, each added through its gate."""

    def __init__(self, width: int, heads: int, condition: int):
        super().__init__()
        self.modulate = Gates(condition, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Heads(width, heads)
        self.inner = nn.Linear(width, EXPANSION * width)
        self.outer = nn.Linear(EXPANSION * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """x `[b, positions, width]`, condition `[b, condition]` -> `[b, positions, width]`."""
        scale, shift, gate, scale2, shift2, gate2 = self.modulate(condition)
        x = x + gate * self.attention(self.norm(x) * (1 + scale) + shift)
        return x + gate2 * self.outer(F.gelu(self.inner(self.norm(x) * (1 + scale2) + shift2), approximate="tanh"))


class Transformer(Conditioned):
    """Predicts the noise in x `[b, c, h, w]` at times t `[b]` for classes y `[b]`; returns `[b, c, h, w]`.

    Tokens are the `patch` x `patch` squares of x, whose sides they divide; `width` is divided by `heads` and by 4.
    """

    where: Tensor

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        width: int,
        blocks: int,
        heads: int,
        patch: int,
        condition: int,
    ):
        """A network for images of `shape` (c, h, w).

        Many parameters: each is a size of the network, by the name of its setting.
        """
        super().__init__()
        self.checkpointed = False
        self.patch, numbers = patch, shape[0] * patch**2
        self.condition = Condition(classes, condition)
        self.input = nn.Linear(numbers, width)
        self.register_buffer("where", positions(shape[1] // patch, shape[2] // patch, width), persistent=False)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, condition) for _ in range(blocks))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = Film(condition, width)
        self.output = nn.Linear(width, numbers)
        nn.init.zeros_(self.output.weight)
        self.prediction: Prediction = NoisePrediction()

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """See the class."""
        condition = self.condition(t, y)
        patch, (rows, columns) = self.patch, (side // self.patch for side in x.shape[2:])
        # [b, c, rows, patch, columns, patch] to [b, rows * columns, c * patch * patch], also for no images
        squares = (
            self.prediction.scaled(x, t)
            .unflatten(3, (columns, patch))
            .unflatten(2, (rows, patch))
            .permute(0, 2, 4, 1, 3, 5)
        )
        hidden = self.input(squares.flatten(3).flatten(1, 2)) + self.where
        for each in self.blocks.children():
            hidden = block(each, hidden, condition, checkpointed=self.checkpointed)
        hidden = self.modulate(self.norm(hidden).transpose(1, 2), condition).transpose(1, 2)
        out = self.output(hidden).unflatten(2, (-1, patch, patch)).unflatten(1, (rows, columns))
        return self.prediction(out.permute(0, 3, 1, 4, 2, 5).reshape(x.shape), x, t)


def positions(rows: int, columns: int, width: int) -> Tensor:
    """Sines and cosines that encode `rows * columns` positions, `[1, rows * columns, width]`: half of row, half of column."""
    each = [time_features(torch.arange(count), width // 2) for count in (rows, columns)]
    down = each[0][:, None].expand(rows, columns, -1)
    across = each[1][None].expand(rows, columns, -1)
    return torch.cat([down, across], 2).flatten(0, 1)[None]
