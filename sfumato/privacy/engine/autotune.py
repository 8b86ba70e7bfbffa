"""Chooses how a layer's norms are computed: the way that was fastest when its shapes first occurred.

The choice affects speed alone: every way gives the same sum up to rounding, and each is sound by itself
(`sfumato.privacy.engine.norms`). It holds for as long as the program runs.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfumato.privacy.engine.layers import Matrix, Saved
from sfumato.privacy.engine.norms import weigh

Choose = Callable[[Matrix, Saved, Tensor, int], str]
"""From a layer, what it saved, its output gradient and the number of records to the name of a way."""
ROUNDS = 2
"""Timed rounds per way, after one that warms up."""
WORTH = 1.4
"""How much slower Gram matrices may be than gradients in memory: allocating memory costs time too, which repeated measurements in
the same memory do not show."""

_chosen: dict[tuple[Any, ...], str] = {}


def fastest(layer: Matrix, saved: Saved, q: Tensor, records: int) -> str:
    """The way that took the least time for these shapes, batches of up to twice the size counted as one shape.

    The layer saw inputs `saved` and received output gradients `q`, both `[records * K * m, ...]` (`sfumato.privacy.engine.layers`).
    """
    key = (layer, saved[0].shape[1:], q.shape[1:], len(q) // records, records.bit_length(), q.dtype, q.device)
    if key not in _chosen:
        ways = layer.ways(saved, q, records)
        if len(ways) == 1:
            return ways[0]
        seconds = {way: measured(layer, way, saved, q, records) for way in ways}
        if "gram" in seconds:
            seconds["gram"] /= WORTH
        _chosen[key] = min(seconds, key=seconds.__getitem__)
    return _chosen[key]


def measured(layer: Matrix, way: str, saved: Saved, q: Tensor, records: int) -> float:
    """Seconds for the norms `[records]` and the weighted sum in this `way`, the least of `ROUNDS`."""
    factors = torch.ones(records, dtype=q.dtype, device=q.device)
    least = float("inf")
    for _ in range(1 + ROUNDS):
        settle(q.device)
        start = time.perf_counter()
        weigh(layer, way, saved, q, records).total(factors, None)
        settle(q.device)
        least = min(least, time.perf_counter() - start)
    return least


def settle(device: torch.device) -> None:
    """Wait for what an accelerator still has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
