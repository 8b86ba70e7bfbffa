"""Attention over the positions of a map, and a spatial transformer, which attends to the class too and mixes features.

`Attention` is that of the U-Net by default. `SpatialTransformer` is latent diffusion's (Rombach et al. 2022, appendix E.2.1), which
RAPID takes over (Jiang et al. 2025, Table 7): blocks of attention over positions, cross-attention to the class embedding, and a gated
feed-forward layer, each added to what it reads. No layer mixes records, and the clipping engine has rules for all of them. Not covered:
conditions of more than one token.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.layers import norm
from sfumato.networks.transformer import EXPANSION, Heads


class Attention(nn.Module):
    """Self-attention over positions in `heads` heads, which divide the channels, added to its input."""

    def __init__(self, channels: int, heads: int = 1):
        super().__init__()
        self.heads = heads
        self.norm = norm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        """`[b, channels, h, w]` -> the same shape."""
        rows = self.norm(x).flatten(2).transpose(1, 2)
        # [b, heads, positions, channels / heads] each
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(rows).chunk(3, 2))
        # Spelt out, because the fused attention has no rule for per-record gradients.
        mixed = (query @ key.transpose(2, 3) / query.shape[3] ** 0.5).softmax(3) @ value
        return x + self.out(mixed.transpose(1, 2).flatten(2)).transpose(1, 2).reshape(x.shape)


class ClassAttention(nn.Module):
    """Cross-attention of positions to the class embedding, which is a single token.

    The weights over one token are 1, whatever position asks and whatever the token answers with, so that every position receives the
    token's value: queries, keys, their normalisation and the number of heads change no number and receive no gradient, and are left out.
    """

    def __init__(self, embedding: int, width: int):
        super().__init__()
        self.value = nn.Linear(embedding, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, token: Tensor) -> Tensor:
        """What each position receives, `[b, 1, width]`, from class embeddings `[b, embedding]`."""
        return self.out(self.value(token))[:, None]


class GatedFeedForward(nn.Module):
    """Two linear layers at each position, between which one half of the features gates the other (Shazeer 2020, GEGLU)."""

    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Linear(width, 2 * EXPANSION * width)
        self.outer = nn.Linear(EXPANSION * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`[b, positions, width]` -> the same shape."""
        features, gate = self.inner(x).chunk(2, 2)
        return self.outer(features * F.gelu(gate))


class SpatialBlock(nn.Module):
    """Attention over positions, to the class where there is an `embedding` of it, and a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int, embedding: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.over_positions = Heads(width, heads)
        self.to_class = ClassAttention(embedding, width) if embedding else None
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = GatedFeedForward(width)

    def forward(self, x: Tensor, token: Tensor | None) -> Tensor:
        """x `[b, positions, width]`, class embeddings `[b, embedding]` -> `[b, positions, width]`."""
        x = x + self.over_positions(self.norm1(x))
        if self.to_class is not None and token is not None:
            x = x + self.to_class(token)
        return x + self.feed_forward(self.norm2(x))


class SpatialTransformer(nn.Module):
    """`depth` blocks over the positions of a map between two linear layers, added to its input; the second begins at zero."""

    def __init__(self, channels: int, heads: int, depth: int, embedding: int):
        """`embedding` is the length of a class row, 0 where no class is attended to; `heads` divide the channels."""
        super().__init__()
        self.norm = norm(channels)
        self.inner = nn.Linear(channels, channels)
        self.blocks = nn.ModuleList(SpatialBlock(channels, heads, embedding) for _ in range(depth))
        self.outer = nn.Linear(channels, channels)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, x: Tensor, token: Tensor | None = None) -> Tensor:
        """x `[b, channels, h, w]`, class embeddings `[b, embedding]` -> `[b, channels, h, w]`."""
        rows = self.inner(self.norm(x).flatten(2).transpose(1, 2))
        for each in self.blocks.children():
            rows = each(rows, token)
        return x + self.outer(rows).transpose(1, 2).reshape(x.shape)
