"""A linear head on public features, trained by full-batch gradients of which each record, or group, adds at most 1.

A record's features have a norm of at most 1 and its gradient is their outer product with (probabilities - its class), so
that the norm is a product of two and nothing has to be estimated. Where records have groups, a group adds the mean of its members'
gradients, clipped once more. All in float64: what a record adds exceeds 1 by rounding alone, which is below 1e-15.

Not covered: rounding inside sums over records, as everywhere (`sfumato.privacy.noise`).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.config import Judge
from sfumato.privacy.units import Units

AT_ONCE = 1024
"""Groups whose gradients are in memory at once."""


def clipped_gradient(head: Tensor, x: Tensor, y: Tensor, units: Units, scale: float) -> Tensor:
    """The sum over units of the gradient of the softmax loss of logits `scale` x head^T, over `scale`, each clipped to norm 1: `[classes, d]`.

    `head` `[classes, d]`, features `x` `[n, d]` of norm at most 1, classes `y` `[n]`; all float64 but `y`. That of a group is the mean over its
    records. A record whose gradient is not finite adds nothing.
    """
    away = (scale * x @ head.T).softmax(1)
    away[torch.arange(len(y)), y] -= 1
    norms = away.norm(dim=1) * x.norm(dim=1)
    sound = norms.isfinite()[:, None]
    away, x = away.where(sound, 0.0), x.where(sound, 0.0)
    if len(units.order) == len(units):
        return (away / norms.where(sound[:, 0], 1.0).clamp(min=1)[:, None]).T @ x
    total = torch.zeros_like(head)
    for start in range(0, len(units), AT_ONCE):
        size = units.size[start : start + AT_ONCE]
        first = int(units.first[start])
        rows = units.order[first : first + int(size.sum())]
        owner = torch.repeat_interleave(torch.arange(len(size)), size)
        each = (away[rows, :, None] * x[rows, None, :]) / size[owner, None, None]
        means = torch.zeros(len(size), *head.shape, dtype=head.dtype).index_add_(0, owner, each)
        total += (means / means.flatten(1).norm(dim=1).clamp(min=1)[:, None, None]).sum(0)
    return total


def train_head(
    settings: Judge,
    x: Tensor,
    y: Tensor,
    units: Units,
    *,
    classes: int,
    steps: int,
    expected: int,
    noised: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The mean of the heads `[classes, d]` of the second half of the steps, by gradient descent with momentum.

    `noised` receives the head and the clipped sum of each step and returns the sum with noise; nothing reads the records after it but
    the next step. `expected` is the public number of units by which sums are divided.

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    head = torch.zeros(classes, x.shape[1], dtype=torch.float64)
    velocity, mean, averaged = torch.zeros_like(head), torch.zeros_like(head), max(1, steps - steps // 2)
    for step in range(steps):
        noisy = noised(head, clipped_gradient(head, x, y, units, settings.scale))
        velocity = settings.momentum * velocity + noisy / expected
        head = head - settings.learning_rate * velocity
        if step >= steps - averaged:
            mean = mean + head / averaged
    return mean
