"""A network whose prediction is the gradient of an energy, so that its score is that of a density which is known up to a constant.

The energy of an image x at a time t is half the squared distance between x and what a denoiser f of any kind puts out for it,

    E(x, t) = |x - f(x, t)|^2 / 2,

and the predicted noise is its gradient in x (Salimans and Ho 2021, section 2: as good as a network that puts the noise out itself). The
log density at that noise level is -E over the noise, up to a constant. An evaluation takes a forward and a backward pass, and training
differentiates once more. Not covered: training by DP-SGD, whose engine knows the gradients of outputs, not those of gradients.
"""

import torch
from torch import Tensor, nn

from sfumato.config import ParameterGroup
from sfumato.networks.denoiser import as_denoiser


class EnergyGradient(nn.Module):
    """Predicts the noise in x `[b, c, h, w]` at times t `[b]` for classes y `[b]` as the gradient of an energy; returns `[b, c, h, w]`."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def energy(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """|x - f(x, t)|^2 / 2 of each image, `[b]`."""
        return (x - self.inner(x, t, y)).flatten(1).square().sum(1) / 2

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """See the class. Differentiable in x and the weights where gradients are enabled."""
        learning = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            if not (learning and x.requires_grad):
                x = x.detach().clone().requires_grad_()
            # Copies, since what was made in inference mode takes no part in a gradient.
            total = self.energy(x, t.clone(), y.clone()).sum()
            (gradient,) = torch.autograd.grad(total, x, create_graph=learning)
        return gradient

    def class_rows(self) -> Tensor:
        """`[classes, width]`."""
        return as_denoiser(self.inner).class_rows()

    def exchange_rows(self, rows: Tensor) -> None:
        """Rows `[classes, width]` in place of its own."""
        as_denoiser(self.inner).exchange_rows(rows)

    def group_of(self, name: str) -> ParameterGroup:
        """The group of the parameter of this name."""
        return as_denoiser(self.inner).group_of(name.removeprefix("inner."))
