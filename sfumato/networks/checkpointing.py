"""Blocks whose activations are computed again in the backward pass instead of being held: less memory, more time.

A network offers it by calling its blocks through `block`; `checkpoint_blocks` switches it on (Chen et al. 2016).
Results do not change. Not covered: networks without blocks, where the switch does nothing.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SWITCH = "checkpointed"
"""Attribute of networks that offer it."""
_again: ContextVar[contextlib.AbstractContextManager[Any] | None] = ContextVar("again", default=None)


def checkpoint_blocks(model: nn.Module, on: bool) -> nn.Module:
    """Switch it on or off wherever the model offers it; returns the model."""
    for module in model.modules():
        if hasattr(module, SWITCH):
            setattr(module, SWITCH, on)
    return model


def is_checkpointed(model: nn.Module) -> bool:
    """Whether any part of the model recomputes its activations."""
    return any(getattr(module, SWITCH, False) for module in model.modules())


@contextlib.contextmanager
def recomputing_under(context: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Blocks called inside the block are later computed again inside `context`."""
    token = _again.set(context)
    try:
        yield
    finally:
        _again.reset(token)


def block(run: nn.Module, *inputs: Tensor, checkpointed: bool) -> Tensor:
    """`run(*inputs)`, tensors `[b, ...]`, its activations held or, where `checkpointed`, computed again in the backward pass."""
    if not checkpointed:
        return run(*inputs)
    contexts = contextlib.nullcontext(), _again.get() or contextlib.nullcontext()
    return checkpoint(run, *inputs, use_reentrant=False, context_fn=lambda: contexts)
