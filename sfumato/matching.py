"""Matching: drawn images move until each class of them has the noisy mean embedding of the private class.

The squared distance of two mean embeddings falls fast where every image of a class goes down its own gradient (a flow of the maximum
mean discrepancy; Arbel et al. 2019): some tens of steps of Adam, no network. What the embedding says nothing of stays as it was drawn, so
whatever method drew the images says how they look, and the private records' mean embedding where they lie. All here is post-processing
of sums that left with noise (`sfumato.fourier`), and so covers any number of images.

Not covered: classes of so few records that their embedding hardly stands out from its noise.
"""

import torch
from torch import Tensor

from sfumato.fourier import FourierFeatures
from sfumato.methods.parts import Target
from sfumato.progress import Progress, silent
from sfumato.training import warm_then_decay

CHUNK = 2000
"""Images whose features are taken at once."""
BETAS = (0.9, 0.99)
"""Of Adam: gradients shrink by orders of magnitude as the images arrive, so it should forget the first ones."""
LEFT = 0.05
"""Share of the first step's length at the last step."""
FEWEST = 500
"""Images of a class that move together, at least: fewer would all go to the middle of the class."""


def completed(y: Tensor) -> Tensor:
    """Classes `[b]` to draw in place of `y` `[n]`: these first, then as many more as each class that occurs lacks of `FEWEST`."""
    classes, numbers = y.unique(return_counts=True)
    lacking = (FEWEST - numbers).clamp(min=0)
    return torch.cat([y, classes.repeat_interleave(lacking)])


def matched(
    x: Tensor, y: Tensor, to: Target, *, limit: float, seed: int, progress: Progress = silent
) -> tuple[Tensor, list[float]]:
    """Images or latents x `[b, c, h, w]` of classes y `[b]`, moved; and the squared distance of all classes at each step.

    Each step looks at `how.at_once` of the frequencies, chosen anew. `limit` is the largest absolute value of a number.
    """
    how, features, means = to.how, FourierFeatures(to.frequencies), to.means.to(x)
    moving = x.detach().clone().requires_grad_(True)
    places = [(y == label).nonzero()[:, 0] for label in range(len(means))]
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam([moving], lr=how.step, betas=BETAS)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, warm_then_decay(1, how.steps, LEFT))
    distances = []
    for number in range(how.steps):
        chosen = torch.randperm(features.count, generator=generator)[: how.at_once]
        seen, wanted = features.some(chosen), features.of_some(means, chosen)
        moving.grad, distance = torch.zeros_like(moving), 0.0
        for place, mean in zip(places, wanted, strict=True):
            if not len(place):
                continue
            parts = place.split(CHUNK)
            with torch.no_grad():
                away = torch.stack([seen(moving[part]).sum(0) for part in parts]).sum(0) / len(place) - mean
            distance += float(away.square().sum())
            for part in parts:
                one = moving.detach()[part].requires_grad_(True)
                (moving.grad[part],) = torch.autograd.grad((seen(one) @ away).sum(), one)
        distances.append(distance)
        optimiser.step()
        rate.step()
        with torch.no_grad():
            moving.clamp_(-limit, limit)
        progress(number + 1, how.steps)
    return moving.detach(), distances
