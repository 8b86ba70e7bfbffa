"""Per-record clipping: the sum of gradients in which no record weighs more than `clip`.

The gradient of a record is that of its loss averaged over its K noised copies, so K costs no privacy. One forward and
one backward over all copies give every record's norm (`folded`), by a way that is sound for any input (`weighing`); the
clipped sum then comes from what was kept. Models for which there is no rule are computed record by record. A record
whose gradient is not finite contributes zero.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sfumato.diffusion.objective import Examples
from sfumato.privacy.capture import Unknown
from sfumato.privacy.choice import Choose, fastest
from sfumato.privacy.folded import weigh_records
from sfumato.privacy.per_record import gradients_of_records
from sfumato.privacy.weighing import weigh_kept

Gradients = dict[str, Tensor]
"""Parameter name -> gradient, of the parameter's shape."""


def clipped_sum(
    model: nn.Module,
    trainable: Mapping[str, Tensor],
    examples: Examples,
    *,
    clip: float,
    chunk: int,
    choose: Choose = fastest,
) -> Gradients:
    """Sum over the b records of `examples` of their gradients, each scaled down to an l2 norm of at most `clip`.

    `trainable` names the parameters of `model` that are differentiated. At most `chunk` records' gradients are in
    memory at once. An empty batch gives zeros.
    """
    total = {name: torch.zeros_like(p) for name, p in trainable.items()}
    for start in range(0, len(examples.y), chunk):
        part = examples.map(lambda field, at=start: field[at : at + chunk])
        try:
            weighed = weigh_records(model, trainable, part, choose=choose)
        except Unknown:
            weighed = {n: weigh_kept(r) for n, r in gradients_of_records(model, trainable, part).items()}
        factors = clip_factors([w.squares for w in weighed.values()], clip)
        for name, one in weighed.items():
            total[name] += one.total(factors)
    return total


def clip_factors(squares, clip: float) -> Tensor:
    """min(1, clip / norm) for each record over all its gradients `[b, ...]`: `[b]`, 0 where the norm is not finite."""
    squares = sum(squares)
    factors = (clip / squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)).clamp(max=1.0)
    return torch.where(squares.isfinite(), factors, torch.zeros_like(factors))
