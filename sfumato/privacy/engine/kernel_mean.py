"""The empirical denoiser: a clipped kernel mean of private records in place of E[x | x_t] (Anonymous 2025, Eq. 5).

A record x_i adds v_i = (x_i - c) p(x_t | x_i) / p_t(x_t), scaled down to a norm of at most `clip`; the sum over a Poisson
sample, divided by a number that is known beforehand, is added to c. The paper clips before it divides by p_t, so that
its sensitivity grows without bound as p_t(x_t) falls; here the order is turned round, and one record moves the mean by
at most `clip / expected`, added or removed, whatever x_t, c and p_t are: these come from public data and from what
was released before. (With a constant p_t the two are the same, clip and all.) That is what `contribution` says and what
a step is priced by; its noise comes from the sampler.

All in logarithms, and in blocks of records, so that neither a tiny density nor a large collection overflows.
"""

import math

import torch
from torch import Tensor

from sfumato.diffusion.objective import Randomness

BLOCK = 2048
"""Records whose distances are held in memory at once."""
ROUNDING = 1e-10
"""Relative error of a squared distance in float64, with a wide margin: norms are taken for so much larger."""
LEAST = 1e-200
"""Stands for a squared norm of 0, which has no logarithm."""


def contribution(clip: float, expected: float) -> float:
    """The largest distance by which one record, added or removed, moves `kernel_mean`."""
    return clip / expected


@torch.inference_mode()
def kernel_mean(
    records: Tensor,
    x: Tensor,
    sigma: float,
    *,
    clip: float | Tensor,
    expected: float | Tensor,
    log_density: Tensor,
    centre: Tensor,
    labels: Tensor | None = None,
    wanted: Tensor | None = None,
    sample_rate: float = 1.0,
    longest: float = math.inf,
    source: Randomness,
) -> Tensor:
    """The clipped kernel mean of `records` `[n, ...]` at `x` `[b, ...]` and noise level `sigma` > 0, as float32 `[b, ...]`.

    `log_density` `[b]` is log p_t(x) less the log of the kernel's peak (`log_peak`), `centre` `[b, ...]` is c. `expected` is the number
    of terms that the sum is divided by; it and `clip` may be numbers of each image, `[b]`. With `labels` `[n]` and `wanted` `[b]` only records of the wanted class count.
    Each image draws a Poisson sample of its own with probability `sample_rate`. What is added to c is brought to a norm
    of at most `longest`: a projection, by which no two sums come to lie further apart.

    Many parameters: each is a tensor, or a number of one formula.
    """
    if (labels is None) != (wanted is None):
        raise ValueError("labels and wanted go together: give both or none")
    flat, middle = x.flatten(1).double(), centre.flatten(1).double()
    log_clip, divisor = (torch.as_tensor(n, device=x.device).double().view(-1, 1) for n in (clip, expected))
    log_clip = log_clip.log()
    total = torch.zeros_like(flat)
    for start in range(0, len(records), BLOCK):
        block = records[start : start + BLOCK].flatten(1).double()
        log_weight = -squared_distances(flat, block) / (2 * sigma**2) - log_density.double()[:, None]
        sizes = middle.square().sum(1, keepdim=True) + block.square().sum(1)
        norm = (squared_distances(middle, block) + ROUNDING * sizes + LEAST).sqrt()
        weight = torch.minimum(log_weight, log_clip - norm.log()).exp()
        if labels is not None and wanted is not None:
            weight = weight * (wanted[:, None] == labels[start : start + BLOCK])
        if sample_rate < 1:
            weight = weight * source.coins(weight.shape, sample_rate).to(weight.device)
        total += weight @ block - weight.sum(1, keepdim=True) * middle
    moved = total / divisor
    length = moved.norm(dim=1, keepdim=True).clamp(min=longest) / longest if math.isfinite(longest) else 1.0
    return (middle + moved / length).float().view_as(x)


def squared_distances(x: Tensor, z: Tensor) -> Tensor:
    """`[b, n]` squared distances between rows of `x` `[b, d]` and of `z` `[n, d]`, never negative."""
    return (x.square().sum(1, keepdim=True) + z.square().sum(1) - 2 * x @ z.T).clamp(min=0)


def log_peak(sigma: float, dimensions: int) -> float:
    """log of p(x | x) for the kernel p(x_t | x_0) = N(x_t; x_0, sigma^2 I)."""
    return -dimensions / 2 * math.log(2 * math.pi * sigma**2)


@torch.inference_mode()
def log_kernel_density(images: Tensor, x: Tensor, sigma: float) -> Tensor:
    """log of the mean kernel of public `images` `[n, ...]` at `x` `[b, ...]`, less the log of its peak: `[b]`."""
    flat, blocks = x.flatten(1).double(), []
    for block in images.flatten(1).split(BLOCK):
        blocks.append((-squared_distances(flat, block.double()) / (2 * sigma**2)).logsumexp(1))
    return torch.stack(blocks).logsumexp(0) - math.log(len(images))
