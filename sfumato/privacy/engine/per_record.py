"""Gradients record by record, for models without a rule in the folded engine: slower, but correct for any model.

All records at once by `vmap` over `grad` where torch supports it, one after the other otherwise.
"""

import operator
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sfumato.diffusion.objective import Examples, record_losses


def all_at_once(model: nn.Module, trainable: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
    """Name -> gradients `[b, *shape]`, by `vmap`."""
    fixed = {name: p.detach() for name, p in model.named_parameters() if name not in trainable}

    def loss(parameters: dict[str, Tensor], x_t: Tensor, t: Tensor, y: Tensor, target: Tensor) -> Tensor:
        def call(*inputs: Tensor) -> Tensor:
            return functional_call(model, {**fixed, **parameters}, inputs)

        return record_losses(call, Examples(x_t[None], t[None], y[None], target[None]), weights_of=model)[0]

    gradients = vmap(grad(loss), in_dims=(None, 0, 0, 0, 0), randomness="different")
    parameters = {name: p.detach() for name, p in trainable.items()}
    return gradients(parameters, examples.x_t, examples.t, examples.y, examples.target)


def one_by_one(model: nn.Module, trainable: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
    """Name -> gradients `[b, *shape]`, by an ordinary backward pass for each record."""
    rows: dict[str, list[Tensor]] = {name: [] for name in trainable}
    for record in range(len(examples.y)):
        loss = record_losses(model, examples.map(operator.itemgetter(slice(record, record + 1)))).sum()
        gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
        for (name, parameter), gradient in zip(trainable.items(), gradients, strict=True):
            rows[name].append(torch.zeros_like(parameter) if gradient is None else gradient)
    return {name: torch.stack(each) for name, each in rows.items()}


def gradients_of_records(model: nn.Module, trainable: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
    """Name -> gradients `[b, *shape]`, by `vmap` where the model supports it, else one by one."""
    try:
        return all_at_once(model, trainable, examples)
    except RuntimeError:  # an operation without a batching rule
        return one_by_one(model, trainable, examples)
