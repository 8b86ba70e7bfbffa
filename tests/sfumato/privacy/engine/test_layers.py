"""Every layer kind, by every way that it has, on nets from a generator, against the loop over records."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.validation import survey
from tests.oracle import WAYS, Wrapped, by, clipped, distance, loop, norm, pictures

EXACT = 1e-5


class Tokens(nn.Module):
    """Pixels as words of a table, so that a net of images can have one."""

    def __init__(self, count, width, padding=None):
        super().__init__()
        self.count, self.table = count, nn.Embedding(count, width, padding_idx=padding)

    def forward(self, x):
        return self.table((x.flatten(1) * 2).round().long().remainder(self.count))


class Attention(nn.Module):
    """Self-attention over pixels from linear layers, by torch's fused function."""

    def __init__(self, channels, heads=1):
        super().__init__()
        self.heads, self.qkv, self.out = (
            heads,
            nn.Linear(channels, 3 * channels, bias=False),
            nn.Linear(channels, channels),
        )

    def forward(self, x):
        rows = self.qkv(x.flatten(2).transpose(1, 2)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*rows).transpose(1, 2).flatten(2)
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


class Lora(nn.Module):
    """A frozen linear layer with a trainable low-rank part beside it."""

    def __init__(self, inputs, outputs, rank=2):
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Twice(nn.Module):
    """One layer called twice, the second time with its weight tied into another one."""

    def __init__(self, layer, other=None):
        super().__init__()
        self.layer, self.other = layer, other

    def forward(self, x):
        x = F.silu(self.layer(x))
        return (self.other or self.layer)(x)


class Turned(nn.Module):
    """x W, and a product over rows that hold several positions of a record one after the other."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels) / 3)
        self.shared = nn.Linear(channels, channels)

    def forward(self, x):
        rows = x.flatten(2).transpose(1, 2) @ self.weight
        return self.shared(rows.reshape(-1, rows.shape[2])).view_as(rows)


class Free(nn.Module):
    """A free scale and a free shift, each broadcast in its own way."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(3, 1, 1)), nn.Parameter(torch.randn(1, 1, 1, 6))
        self.once, self.grown = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(3, 4, 6))

    def forward(self, x):
        x = self.shift + torch.mul(self.scale, x) * self.once
        return x.mean(2, keepdim=True) * self.grown + self.scale


def tied():
    one, two = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
    two.weight = one.weight
    return Twice(one, two)


FIXED = {
    "linear": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(108, 7), nn.ReLU(inplace=True), nn.Linear(7, 9, bias=False)
    ),
    "linear on positions": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 4)),
    "conv": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.SiLU(inplace=True), nn.Conv2d(4, 3, 1)),
    "strided conv": lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
    "dilated conv": lambda: nn.Conv2d(3, 4, 3, padding=2, dilation=2),
    "grouped conv": lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 4, 2, groups=2, padding="valid")),
    "same conv": lambda: nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"),
    "conv on lines": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 4, 5, stride=3, padding=2, dilation=2)),
    "conv in space": lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 2, 2, padding=1)),
    "transposed conv": lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1, dilation=1),
    "grouped transposed": lambda: nn.Sequential(nn.Flatten(2), nn.ConvTranspose1d(3, 6, 4, stride=2, groups=3)),
    "group norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.GroupNorm(1, 4)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm((6, 6)), nn.Flatten(2), nn.LayerNorm(36, bias=False)),
    "table": lambda: nn.Sequential(Tokens(5, 4), nn.Linear(4, 3)),
    "padded table": lambda: Tokens(5, 4, padding=2),
    "free scales and shifts": Free,
    "attention": lambda: nn.Sequential(nn.Conv2d(3, 4, 1), Attention(4, heads=2)),
    "adapter": lambda: nn.Sequential(nn.Flatten(), Lora(108, 8), nn.Tanh(), Lora(8, 6)),
    "called twice": lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 6), Twice(nn.Linear(6, 6))),
    "tied weight": tied,
    "table twice": lambda: nn.Sequential(Tokens(4, 36), Twice(nn.Linear(36, 36))),
    "product": lambda: Turned(3),
}
"""One net for each kind of layer and each thing that may happen to it."""


def check(net, names, draws, way, records=5, shape=(3, 6, 6)):
    model = Wrapped(net)
    examples = pictures(records, draws, shape)
    trainable = {name: p for name, p in model.named_parameters() if names(name)}
    assert survey(model, trainable, shape).missing == ""
    each = loop(model, trainable, examples)
    clip = float(sorted(norm(gradient) for gradient in each)[records // 2])  # some are scaled down, some are not
    result = clipped_sum(model, trainable, examples, clip=clip, chunk=3, choose=by(way))
    assert distance(result, clipped(each, clip)) < EXACT


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("kind", FIXED)
def test_each_kind_of_layer_by_each_way(kind, draws, way):
    torch.manual_seed(0)
    check(FIXED[kind](), lambda name: "frozen" not in name, draws, way)


@st.composite
def nets(draw):
    """A random chain of layers on pictures, and which of its parameters learn."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    channels, layers = 3, []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["conv", "transposed", "norm", "attention", "act", "pointwise"]))
        groups = draw(st.sampled_from([1, 1, channels]))
        wide = groups * draw(st.integers(1, 4))
        if kind == "conv":
            kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
            padding = draw(st.integers(kernel - 1, 3))
            bias = draw(st.booleans())
            layers.append(nn.Conv2d(channels, wide, kernel, stride, padding, dilation, groups, bias))
            channels = wide
        elif kind == "transposed":
            layers.append(
                nn.ConvTranspose2d(channels, wide, draw(st.integers(1, 3)), draw(st.integers(1, 2)), groups=groups)
            )
            channels = wide
        elif kind == "pointwise":
            layers.append(nn.Conv2d(channels, wide, 1))
            channels = wide
        elif kind == "norm":
            layers.append(nn.GroupNorm(draw(st.sampled_from([1, channels])), channels))
        elif kind == "attention":
            layers.append(Attention(channels))
        else:
            layers.append(draw(st.sampled_from([nn.SiLU(), nn.Tanh(), nn.AvgPool2d(2, ceil_mode=True)])))
    layers += [nn.Flatten(2), nn.AdaptiveAvgPool1d(5), nn.Linear(5, draw(st.integers(1, 4)))]
    net = nn.Sequential(*layers)
    count = len(list(net.parameters()))
    return net, [True, *draw(st.lists(st.booleans(), min_size=count - 1, max_size=count - 1))]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(nets(), st.sampled_from([1, 2, 4]), st.sampled_from(WAYS))
def test_random_nets_are_exact_to_rounding(made, draws, way):
    net, learns = made
    chosen = {name for (name, _), learn in zip(Wrapped(net).named_parameters(), learns, strict=True) if learn}
    check(net, chosen.__contains__, draws, way)
