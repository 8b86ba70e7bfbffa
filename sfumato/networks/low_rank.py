"""Low-rank adapters: a frozen linear layer beside a narrow trained pair that begins at zero (Hu et al. 2022).

Each adapter is two linear calls of its own, never a merged weight, so that per-record gradients know it. After training
it is merged into the layer it stands beside, and the network is an ordinary one again. Not covered: convolutions and
embeddings, which learn as they are.
"""

import torch
from torch import Tensor, nn

from sfumato.networks.denoiser import groups_of

SLOPE = 5**0.5
"""Slope of Kaiming's law for the first matrix: that of torch's own linear layers, so that a small one starts as they do (Hu et al. 2022, section 4.1)."""


class LowRank(nn.Module):
    """frozen(x) + up(down(x)), with `rank` numbers between."""

    def __init__(self, frozen: nn.Linear, rank: int, generator: torch.Generator | None):
        super().__init__()
        where = {"device": frozen.weight.device, "dtype": frozen.weight.dtype}
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False, **where)
        self.up = nn.Linear(rank, frozen.out_features, bias=False, **where)
        nn.init.kaiming_uniform_(self.down.weight, a=SLOPE, generator=generator)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """As the frozen layer, `[..., inputs]` -> `[..., outputs]`."""
        return self.frozen(x) + self.up(self.down(x))

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The frozen layer with the adapter added to its weight, in place."""
        self.frozen.weight += self.up.weight @ self.down.weight
        return self.frozen


def adapted(
    model: nn.Module, groups: tuple[str, ...], rank: int, generator: torch.Generator | None = None
) -> nn.Module:
    """Put an adapter beside every linear layer of these parameter groups, in place, and return the model.

    Its outputs are unchanged until the adapters learn. `generator` draws their initial weights.
    """
    group_of = groups_of(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and group_of(f"{name}.weight") in groups:
            _exchange(model, name, LowRank(module, rank, generator))
    return model


def merged(model: nn.Module) -> nn.Module:
    """Merge every adapter into its layer, in place, and return the model, which has the shape it had before."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LowRank):
            _exchange(model, name, module.merged())
    return model


def _exchange(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, own = name.rpartition(".")
    setattr(model.get_submodule(owner), own, module)
