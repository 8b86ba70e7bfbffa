"""Sliced score matching with exchanged projections: Eq. 6 and 7 of Liu et al. 2024 (after Song et al. 2020).

A score s(u) is the gradient of a log density. Along a random direction v,

    v^T grad s(u) v + (v^T s(u))^2 / 2

has the expectation of |s(u) - true score|^2 / 2 up to a constant. DPPM takes another direction v^r in the first term.
The paper prints the formula with the gradient of an energy Q in the place of s; the signs are right where the
network's output is the score, -grad Q, and that is what it is here.

The second line of Eq. 7, which is minimised in the paper and here, does not follow from its first: by parts, the cross term of
(v^r^T true score - v^T s)^2 / 2 is v^r^T grad s(u) v, with v^r on one side alone. The first line would teach the share E[v^r^T v] / d of the
score, less of it the more vectors are exchanged; the second teaches all of it at every epsilon.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Score = Callable[[Tensor], Tensor]
"""u `[b, ...]` -> the gradient of the log density at u, `[b, ...]`; each record by itself."""


def exchanged(vectors: Tensor, *, keep: float, k: int, generator: torch.Generator) -> Tensor:
    """v^r: each row of `vectors` `[n, d]` stays itself with probability `keep`, else becomes one of its k - 1 nearest others.

    Nearest by the angle between them, each of those with the same probability (Liu et al. 2024, Eq. 6); n >= k >= 2.
    """
    unit = F.normalize(vectors, dim=1)
    nearest = (unit @ unit.t()).fill_diagonal_(-torch.inf).topk(k - 1, dim=1).indices
    count = len(vectors)
    chosen = torch.randint(k - 1, (count, 1), generator=generator, device=vectors.device)
    unchanged = torch.rand(count, generator=generator, device=vectors.device) < keep
    own = torch.arange(count, device=vectors.device)
    return vectors[torch.where(unchanged, own, nearest.gather(1, chosen)[:, 0])]


def curvature(score: Score, u: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """direction^T grad s(u) direction, `[b]`, and s(u) itself; both differentiable in the score's parameters.

    All `[b, ...]`. One product with the Jacobian per record, by automatic differentiation: no matrix is formed.
    """
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        value = score(u)
        along = torch.autograd.grad((value * direction).sum(), u, create_graph=True)[0]
    return (along * direction).flatten(1).sum(1), value


def sliced_losses(score: Score, u: Tensor, v: Tensor, answered: Tensor) -> Tensor:
    """Eq. 7 of Liu et al. 2024 for each record, `[b]`: v^r^T grad s(u) v^r + (v^T s(u))^2 / 2; v^r is `answered`, all `[b, ...]`."""
    bent, value = curvature(score, u, answered)
    return bent + (value * v).flatten(1).sum(1).square() / 2
