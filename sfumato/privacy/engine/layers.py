"""Rules of the clipping engine for each kind of layer: how to run it, and several ways to per-record gradients of its weight.

Each kind is a frozen value, so that a choice of way can be remembered for it. For b records of K copies, a layer saw
inputs `a` `[b * K * m, ...]` and received output gradients `q` of the same first axis (m rows per copy, mostly 1); with
P = K * m * positions,

- a *direct* way gives the gradients themselves, `[b, *weight]`;
- *grams* give the two matrices U, V `[b, P, P]` of inner products of inputs and of output gradients, of which the
  squared norm is sum(U * V) (Goodfellow 2015; Li et al. 2022), and `total` gives the weighted sum over records at the
  cost of one ordinary weight gradient.

`forward` gives the output and what is saved (the input first), `ways` those that can serve for the given shapes, `gradients` those of the
records by one direct way, `bias` the gradients of a shift, `[b, outputs]`; `least_dim` is the smallest number of axes of an input. Normalisations and free parameters
have only scales and shifts, whose gradients are small and always computed (`affine`).

Not here: the choice of the way (`autotune`), and making norms sound (`norms`).
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Saved = tuple[Tensor, ...]
"""Tensors that a layer saves from its forward pass; its input comes first."""


@dataclass(frozen=True)
class Linear:
    """x W^T + b over any leading axes, or x W where `turned`."""

    turned: bool = False
    least_dim = 2

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Saved]:
        return (x @ weight if self.turned else F.linear(x, weight, bias)), (x,)

    def ways(self, saved: Saved, q: Tensor, records: int) -> tuple[str, ...]:
        positions = q.numel() // (records * q.shape[-1])
        return affordable(positions, saved[0].shape[-1] * q.shape[-1], ("product",))

    def gradients(self, way: str, saved: Saved, q: Tensor, records: int) -> Tensor:
        a, q = rows_of(saved[0], records), rows_of(q, records)
        return a.transpose(1, 2) @ q if self.turned else q.transpose(1, 2) @ a

    def grams(self, saved: Saved, q: Tensor, records: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        a, q = (rows_of(part, records).to(dtype) for part in (saved[0], q))
        return a @ a.transpose(1, 2), q @ q.transpose(1, 2)

    def total(self, saved: Saved, q: Tensor) -> Tensor:
        a, q = saved[0].flatten(0, -2), q.flatten(0, -2)
        return a.t() @ q if self.turned else q.t() @ a

    def bias(self, saved: Saved, q: Tensor, records: int) -> Tensor:
        return rows_of(q, records).sum(1)


@dataclass(frozen=True)
class Embed:
    """Rows of a table, by index."""

    count: int
    padding: int = -1
    """A row that receives no gradient, or -1."""
    least_dim = 1

    def forward(self, x: Tensor, weight: Tensor, bias: None) -> tuple[Tensor, Saved]:
        return F.embedding(x, weight), (x,)

    def ways(self, saved: Saved, q: Tensor, records: int) -> tuple[str, ...]:
        return affordable(saved[0].numel() // records, self.count * q.shape[-1], ("scatter",))

    def _parts(self, saved: Saved, q: Tensor) -> tuple[Tensor, Tensor]:
        index = saved[0]
        return index.flatten(), (q * (index != self.padding).unsqueeze(-1)).flatten(0, -2)

    def gradients(self, way: str, saved: Saved, q: Tensor, records: int) -> Tensor:
        index, q = self._parts(saved, q)
        record = torch.arange(records, device=q.device).repeat_interleave(len(index) // records)
        rows = q.new_zeros(records * self.count, q.shape[-1])
        return rows.index_add_(0, record * self.count + index, q).view(records, self.count, -1)

    def grams(self, saved: Saved, q: Tensor, records: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        index, q = self._parts(saved, q)
        index, q = index.view(records, -1), q.view(records, -1, q.shape[-1]).to(dtype)
        return (index[:, :, None] == index[:, None]).to(dtype), q @ q.transpose(1, 2)

    def total(self, saved: Saved, q: Tensor) -> Tensor:
        index, q = self._parts(saved, q)
        return q.new_zeros(self.count, q.shape[-1]).index_add_(0, index, q)

    def bias(self, saved: Saved, q: Tensor, records: int) -> Tensor:
        raise AssertionError("a table has no bias")


@dataclass(frozen=True)
class GroupNorm:
    """Group normalisation with scale and shift per channel."""

    groups: int
    eps: float
    least_dim = 2

    def forward(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Saved]:
        x = x.float() if x.dtype in HALVES else x
        n, c = x.shape[:2]
        out, mean, inverse = torch.native_group_norm(
            x.contiguous(), weight, bias, n, c, x[0, 0].numel(), self.groups, self.eps
        )
        return out, (x, mean, inverse)

    def affine(self, saved: Saved, q: Tensor, records: int) -> tuple[Tensor, Tensor]:
        """Gradients of scale and shift for each record, `[records, c]` both.

        The rows are laid side by side as channels of one image, each with groups of its own, so that torch's own rule
        keeps them apart.
        """
        x, mean, inverse = saved
        n, c = x.shape[:2]
        ones = q.new_ones(n * c)  # torch 2.11 asks for a weight, though these two gradients do not depend on it
        _, scale, shift = torch.ops.aten.native_group_norm_backward(
            q.view(1, n * c, -1), x.contiguous().view(1, n * c, -1), mean.view(1, -1), inverse.view(1, -1), ones,
            1, n * c, x[0, 0].numel(), n * self.groups, (False, True, True),
        )  # fmt: skip
        return scale.view(records, -1, c).sum(1), shift.view(records, -1, c).sum(1)


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalisation with scale and shift over the last axes."""

    shape: tuple[int, ...]
    eps: float

    @property
    def least_dim(self) -> int:
        return 1 + len(self.shape)

    def forward(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Saved]:
        x = x.float() if x.dtype in HALVES else x
        out, mean, inverse = torch.native_layer_norm(x, self.shape, weight, bias, self.eps)
        return out, (x, mean, inverse)

    def affine(self, saved: Saved, q: Tensor, records: int) -> tuple[Tensor, Tensor]:
        """Gradients of scale and shift for each record, `[records, *shape]` both."""
        x, mean, inverse = saved
        scale = (q * (x - mean) * inverse).view(records, -1, *self.shape).sum(1)
        return scale, q.view(records, -1, *self.shape).sum(1)


@dataclass(frozen=True)
class Entrywise:
    """A free scale or shift: x * weight, or x + weight where `added`, the weight repeated for each row."""

    shape: tuple[int, ...]
    """Shape of the weight."""
    added: bool

    @property
    def least_dim(self) -> int:
        return len(self.shape) + (self.shape[:1] != (1,))

    def forward(self, x: Tensor, weight: Tensor, bias: None) -> tuple[Tensor, Saved]:
        return (x + weight if self.added else x * weight), (x,)

    def affine(self, saved: Saved, q: Tensor, records: int) -> tuple[Tensor, None]:
        """Gradients of the weight for each record, `[records, *shape]`, and none of a bias."""
        each = (q if self.added else q * saved[0]).unflatten(0, (records, -1)).sum(1)
        row = (1,) * (q.dim() - len(self.shape)) + self.shape
        return each.sum_to_size(records, *row[1:]).view(records, *self.shape), None


@dataclass(frozen=True)
class Conv:
    """Convolution in one to three dimensions, or its transpose."""

    weight: tuple[int, ...]
    """Shape of the weight."""
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    extra: tuple[int, ...]
    """Output padding of a transposed convolution."""
    groups: int

    @property
    def least_dim(self) -> int:
        return len(self.weight)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Saved]:
        axes = len(self.stride) - 1
        run: Callable[..., Tensor]
        if self.transposed:
            run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes]
            out = run(x, weight, bias, self.stride, self.padding, self.extra, self.groups, self.dilation)
        else:
            run = (F.conv1d, F.conv2d, F.conv3d)[axes]
            out = run(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return out, (x,)

    def ways(self, saved: Saved, q: Tensor, records: int) -> tuple[str, ...]:
        positions = q.numel() // (records * q.shape[1])
        ways = ("loop", "grouped", "product") if self._pointwise else ("loop", "grouped")
        if self.transposed or self.groups > 1:
            return ways
        if positions <= PATCHES_TO_GRADIENT * self.weight[0]:
            ways = (*ways, "patches")
        return affordable(positions, math.prod(self.weight), ways)

    @property
    def _pointwise(self) -> bool:
        ones = {*self.weight[2:], *self.stride, self.groups}
        return ones == {1} and not any(self.padding) and not self.transposed

    def gradients(self, way: str, saved: Saved, q: Tensor, records: int) -> Tensor:
        a = saved[0]
        if way == "product":
            each = q.flatten(2) @ a.flatten(2).transpose(1, 2)
            return each.view(records, -1, *self.weight).sum(1) if len(q) > records else each.view(-1, *self.weight)
        if way == "patches":
            return self._from_patches(a, q, records)
        if way == "loop":
            parts = zip(a.unflatten(0, (records, -1)), q.unflatten(0, (records, -1)), strict=True)
            return torch.stack([self._backward(one, gradient, 1) for one, gradient in parts])
        # Records side by side as groups of channels, so that torch keeps their gradients apart.
        a, q = (beside(part, records) for part in (a, q))
        return self._backward(a, q, records).view(records, *self.weight)

    def _from_patches(self, a: Tensor, q: Tensor, records: int) -> Tensor:
        """One product over all patches of a record, laid out with channels last so that they are copied in runs."""
        kernel, out = self.weight[2:], q.shape[2:]
        a = padded(a, self.padding).movedim(1, -1).contiguous()
        first, *grid, last = a.stride()
        rows = [step * stride for step, stride in zip(grid, self.stride, strict=True)]
        taps = [step * dilation for step, dilation in zip(grid, self.dilation, strict=True)]
        patches = a.as_strided((len(a), *out, *kernel, a.shape[-1]), (first, *rows, *taps, last))
        q = q.movedim(1, -1).reshape(records, -1, q.shape[1])
        each = q.transpose(1, 2) @ patches.reshape(records, q.shape[1], -1)
        return each.view(records, self.weight[0], *kernel, -1).movedim(-1, 2)

    def _backward(self, a: Tensor, q: Tensor, times: int) -> Tensor:
        shape = (times * self.weight[0], *self.weight[1:])
        like = a.new_empty(shape)  # only its shape is read
        return torch.ops.aten.convolution_backward(
            q, a, like, None, self.stride, self.padding, self.dilation, self.transposed, self.extra,
            times * self.groups, (False, True, False),
        )[1]  # fmt: skip

    def grams(self, saved: Saved, q: Tensor, records: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """U and V `[b, P, P]`: inner products of patches as a sum over taps of those of shifted positions, so that nothing is unfolded."""
        a, q = saved[0].to(dtype), q.to(dtype)
        a = padded(a, self.padding)
        grid, out = a.shape[2:], q.shape[2:]
        flat = a.view(records, -1, a.shape[1], grid.numel()).transpose(1, 2).flatten(2)
        between = (flat.transpose(1, 2) @ flat).view(records, -1, *grid, flat.shape[2] // grid.numel(), *grid)
        patches = None
        for tap in itertools.product(*(range(size) for size in self.weight[2:])):
            window = [
                slice(at * step, at * step + stride * (size - 1) + 1, stride)
                for at, step, stride, size in zip(tap, self.dilation, self.stride, out, strict=True)
            ]
            part = between[(slice(None), slice(None), *window, slice(None), *window)]
            patches = part.clone() if patches is None else patches.add_(part)
        assert patches is not None  # a filter has a tap
        q = q.view(records, -1, q.shape[1], out.numel()).transpose(1, 2).flatten(2)
        return patches.view(records, q.shape[2], q.shape[2]), q.transpose(1, 2) @ q

    def total(self, saved: Saved, q: Tensor) -> Tensor:
        return self._backward(saved[0], q, 1)

    def bias(self, saved: Saved, q: Tensor, records: int) -> Tensor:
        return q.flatten(2).sum(2).view(records, -1, q.shape[1]).sum(1)


Matrix = Linear | Embed | Conv
"""Kinds whose weight mixes features, with several ways to a norm."""
Affine = GroupNorm | LayerNorm | Entrywise
"""Kinds with a scale and a shift."""
Layer = Matrix | Affine
"""All kinds that have rules."""
HALVES = {torch.float16, torch.bfloat16}
"""Number formats that are too coarse for norms."""
GRAM_POSITIONS = 512
"""Beyond this many positions a Gram matrix is never the cheaper way and takes too much memory."""


def affordable(positions: int, weights: int, ways: tuple[str, ...]) -> tuple[str, ...]:
    """The direct ways, and `gram` where its matrices are no larger than a few gradients."""
    small = positions <= GRAM_POSITIONS and positions**2 <= GRAM_TO_GRADIENT * weights
    return (*ways, "gram") if small else ways


GRAM_TO_GRADIENT = 4
"""Largest Gram matrix in units of the gradient; larger ones cost more than the gradient itself."""


PATCHES_TO_GRADIENT = 4
"""Largest copy of all patches of a record in units of its gradient."""


def padded(part: Tensor, padding: tuple[int, ...]) -> Tensor:
    """Images `[b, c, *sides]` with `padding[i]` zeros at both ends of side i."""
    return F.pad(part, [side for pad in reversed(padding) for side in (pad, pad)])


def rows_of(part: Tensor, records: int) -> Tensor:
    """`[records * ..., features]` as `[records, P, features]`."""
    return part.reshape(records, -1, part.shape[-1])


def beside(part: Tensor, records: int) -> Tensor:
    """`[records * K, channels, ...]` as `[K, records * channels, ...]`."""
    split = part.reshape(records, -1, *part.shape[1:])
    return split.transpose(0, 1).reshape(split.shape[1], -1, *part.shape[2:])
