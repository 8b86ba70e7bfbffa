"""Per-record clipping: the sum of gradients in which no record weighs more than `clip`.

The gradient of a record is that of its loss averaged over its K noised copies, so K costs no privacy. Each record's
gradient is computed on its own (`vmap` over `grad`) and kept until it is clipped: exact, and sound for any input
because the norm is taken of the very numbers that are summed. A record whose gradient is not finite contributes zero.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sfumato.diffusion.objective import Examples, record_losses

Gradients = dict[str, Tensor]
"""Parameter name -> gradient, of the parameter's shape."""


def clipped_sum(
    model: nn.Module, trainable: Mapping[str, Tensor], examples: Examples, *, clip: float, chunk: int
) -> Gradients:
    """Sum over the b records of `examples` of their gradients, each scaled down to an l2 norm of at most `clip`.

    `trainable` names the parameters of `model` that are differentiated. At most `chunk` records' gradients are in
    memory at once. An empty batch gives zeros.
    """
    names = list(trainable)
    total = {name: torch.zeros_like(trainable[name]) for name in names}
    fixed = {name: p.detach() for name, p in model.named_parameters() if name not in trainable}

    def loss(parameters: Gradients, x_t: Tensor, t: Tensor, y: Tensor, target: Tensor) -> Tensor:
        def call(*inputs: Tensor) -> Tensor:
            return functional_call(model, {**fixed, **parameters}, inputs)

        return record_losses(call, Examples(x_t[None], t[None], y[None], target[None]))[0]

    gradients = vmap(grad(loss), in_dims=(None, 0, 0, 0, 0))
    parameters = {name: p.detach() for name, p in trainable.items()}
    for start in range(0, len(examples.y), chunk):
        part = examples.map(lambda field, at=start: field[at : at + chunk])
        each = gradients(parameters, part.x_t, part.t, part.y, part.target)
        factors = clip_factors([each[name] for name in names], clip)
        for name in names:
            rows = each[name].flatten(1).nan_to_num(0.0, 0.0, 0.0)
            total[name] += (factors @ rows).view_as(total[name])
    return total


def clip_factors(gradients: list[Tensor], clip: float) -> Tensor:
    """min(1, clip / norm) for each record over all its gradients `[b, ...]`: `[b]`, 0 where the norm is not finite."""
    squares = sum(g.flatten(1).square().sum(1) for g in gradients)
    factors = (clip / squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)).clamp(max=1.0)
    return torch.where(squares.isfinite(), factors, torch.zeros_like(factors))
