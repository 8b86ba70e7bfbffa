"""The squared norm of each record's gradient for one parameter, and later its share of the clipped sum.

A norm must never be too small, whatever the input. Where gradients are in memory, the norm is computed from the very numbers
that are summed. Where it comes from Gram matrices, positions that nearly cancel leave only rounding errors: so the
bound of that error is added, and a record for which the bound is not negligible is computed again, first in float64,
then from its gradient. A record whose norm is not finite contributes zero.

Everything here runs in float32 or better, whatever the autocast. Not covered: rounding in adding one record's share
to the others'.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.privacy.engine.layers import HALVES, Conv, Matrix, Saved

GRAM_ERROR = 2.0
"""Bound of the rounding error of an entry of the product of two Gram matrices, in units of epsilon (two roundings)."""
SUM_ERROR = 2.0
"""Bound of the rounding error of the weighted sum, in units of epsilon times the sum of the positions' norms."""
TOLERANCE = 1e-5
"""Largest relative part of the norm that error bounds may make up before a record is computed more exactly."""
COARSE_POSITIONS = 64
"""Up to so many positions a float32 Gram norm is mostly exact enough; beyond, float64 is used at once."""

BLOCK = 256
"""Number of values that are squared and summed in their own precision; the sums of blocks are added in float64."""


@dataclass(frozen=True, eq=False)
class Weighed:
    """Squared norms and the weighted sum for one parameter, held until the factors are known."""

    squares: Tensor
    """`[b]`, squared norms of the records' gradients, never too small; not finite where the gradient is not."""
    total: Callable[[Tensor, Tensor | None], Tensor]
    """From factors `[b]` to the weighted sum; which records `[b]` are finite in all their gradients, if not all are."""


def weigh_gradients(rows: Tensor) -> Weighed:
    """Norms and weighted sum from gradients `[b, ...]` in memory."""
    flat = fine(rows.flatten(1))
    squares = squared_norms(flat)

    def total(factors: Tensor, finite: Tensor | None) -> Tensor:
        clean = flat if finite is None else flat.where(finite[:, None], 0.0)
        return (factors @ clean).view(rows.shape[1:])

    return Weighed(squares, total)


def squared_norms(flat: Tensor) -> Tensor:
    """Squared norms `[b]` of `[b, n]`, to about a rounding error however large n is.

    Added up in float32 alone, those of millions of numbers came out too small: by 2e-3 of the norm at 35 million.
    """
    whole = flat.shape[1] // BLOCK * BLOCK
    blocks = torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, BLOCK)), dim=2) if whole else flat[:, :0]
    rest = torch.linalg.vector_norm(flat[:, whole:], dim=1, keepdim=True)
    return torch.cat([blocks, rest], 1).double().square().sum(1).to(flat.dtype)


def weigh(layer: Matrix, way: str, saved: Saved, q: Tensor, records: int) -> Weighed:
    """Norms `[b]` and weighted sum, of the weight's shape, for a layer's weight, computed in this `way`, one of `layer.ways`.

    The b = `records` records of K copies have saved inputs and output gradients `q` of `[b * K * m, ...]`, the rows of a record side by side.
    """
    if way != "gram":
        return weigh_gradients(layer.gradients(way, saved, q, records))
    direct_way = layer.ways(saved, q, records)[0]
    positions = q.numel() // (records * (q.shape[1] if isinstance(layer, Conv) else q.shape[-1]))
    first = torch.float64 if positions > COARSE_POSITIONS else q.dtype
    squares, doubtful = gram_norms(layer, saved, q, records, first)
    subset = doubtful.nonzero()[:, 0]
    if len(subset) and first != torch.float64:
        finer, still = gram_norms(layer, *chosen(saved, q, subset, records), len(subset), torch.float64)
        squares = squares.index_put((subset,), finer)
        doubtful = doubtful.index_put((subset,), still)
    subset = doubtful.nonzero()[:, 0]
    exact = None
    if len(subset):
        exact = weigh_gradients(layer.gradients(direct_way, *chosen(saved, q, subset, records), len(subset)))
        squares = squares.index_put((subset,), exact.squares)

    def total(factors: Tensor, finite: Tensor | None) -> Tensor:
        usable = factors if exact is None else factors.index_fill(0, subset, 0.0)
        a, gradient = saved, q * spread(usable, q)
        if finite is not None:
            gradient = gradient.where(spread(finite, q), 0.0)
            a = tuple(part.where(spread(finite, part), torch.zeros_like(part)) for part in saved)
        summed = layer.total(a, gradient)
        rest = None if finite is None else finite[subset]
        return summed if exact is None else summed + exact.total(factors[subset], rest)

    return Weighed(squares, total)


def gram_norms(layer: Matrix, saved: Saved, q: Tensor, records: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Squared norms `[b]` with their error bound added, and bool `[b]`, where that bound is more than `TOLERANCE` of the norm."""
    inputs, outputs = layer.grams(saved, q, records, dtype)
    squares = (inputs * outputs).sum((1, 2)).clamp(min=0)
    reach = (inputs.diagonal(dim1=1, dim2=2).clamp(min=0) * outputs.diagonal(dim1=1, dim2=2).clamp(min=0)).sqrt().sum(1)
    bounded = (squares + GRAM_ERROR * torch.finfo(dtype).eps * reach.square()).sqrt()
    bounded = bounded + SUM_ERROR * torch.finfo(q.dtype).eps * reach
    doubtful = bounded > (1 + TOLERANCE) * squares.sqrt()
    return bounded.square().to(q.dtype), doubtful


def chosen(saved: Saved, q: Tensor, subset: Tensor, records: int) -> tuple[Saved, Tensor]:
    """The rows `[n * K * m, ...]` of the records at `subset` int64 `[n]` only, from those `[records * K * m, ...]` of all."""

    def pick(part: Tensor) -> Tensor:
        return part.view(records, -1, *part.shape[1:])[subset].flatten(0, 1)

    return tuple(pick(part) for part in saved), pick(q)


def spread(values: Tensor, part: Tensor) -> Tensor:
    """Values `[b]` repeated for each row of `part` `[b * K * m, ...]`, ready to be multiplied: `[b * K * m, 1, ...]`."""
    return values.repeat_interleave(len(part) // len(values)).view(-1, *[1] * (part.dim() - 1))


def fine(part: Tensor) -> Tensor:
    """A tensor of any shape in float32 or better: half precision becomes float32."""
    return part.float() if part.dtype in HALVES else part
