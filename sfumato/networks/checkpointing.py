"""Blocks whose activations are computed again in the backward pass instead of being held: less memory, more time.

A network offers it by calling its blocks through `block`; `checkpoint_blocks` switches it on (Chen et al. 2016).
Results do not change. Not covered: networks without blocks, where the switch does nothing.
"""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SWITCH = "checkpointed"
"""Attribute of networks that offer it."""


def checkpoint_blocks(model: nn.Module, on: bool) -> nn.Module:
    """Switch it on or off wherever the model offers it; returns the model."""
    for module in model.modules():
        if hasattr(module, SWITCH):
            setattr(module, SWITCH, on)
    return model


def is_checkpointed(model: nn.Module) -> bool:
    """Whether any part of the model recomputes its activations."""
    return any(getattr(module, SWITCH, False) for module in model.modules())


def block(run: nn.Module, *inputs: Tensor, checkpointed: bool) -> Tensor:
    """`run(*inputs)`, its activations held or not."""
    return checkpoint(run, *inputs, use_reentrant=False) if checkpointed else run(*inputs)
