"""Central images: means of private images with noise, on which the denoiser warms up before DP-SGD (Li et al. 2025, DP-FETA).

Behind the door the images of each class are summed, in deviations from the mean of the public images and clipped, and noise joins the sums
(`sfumato.privacy.mechanisms.noisy_sums`). All here is post-processing of them: a sum divided by a public constant is a central image, and plain
training on a few of these teaches the denoiser where each class lies, at the large times where an image is little more than that.

The paper takes Poisson samples of a class; cells around centroids of the public images are ours. Not covered: noised frequency features.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.alignment import Reference
from sfumato.config import Central, ParameterGroup
from sfumato.diffusion.objective import denoising_examples, record_losses
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.latents import within
from sfumato.methods.parts import Parts, untuned
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.privacy.noise import reach
from sfumato.progress import Progress, silent
from sfumato.training import train

BATCH = 64
"""Central images in a step."""
WARM_UP, FINAL_RATE, EMA_DECAY = 0.1, 0.05, 0.9
"""Share of the steps over which the learning rate rises, share of it at the last step, decay of the averaged weights."""
LABEL_DROPOUT = 0.1
"""Share of central images that are shown without their class."""


@dataclass(frozen=True)
class CentralImages:
    """Central images of all classes, as the denoisers see them."""

    x: Tensor
    """`[n, c, h, w]`"""
    y: Tensor
    """`[n]`, their classes."""
    weights: Tensor
    """`[n]`, how often each is shown, 1 in all for each class; all 0 for a class of which nothing stands out from the noise."""


def expected_records(event: Gaussian | SubsampledGaussian, sums: Tensor, records: int) -> float:
    """The public constant that sums `[rounds, classes, cells, d]` are divided by: records in each, were they evenly spread."""
    _, classes, cells, _ = sums.shape
    rate = event.sample_rate if isinstance(event, SubsampledGaussian) else 1.0
    return max(1.0, rate * records / (classes * cells))


def central_images(
    sums: Tensor,
    event: Gaussian | SubsampledGaussian,
    reference: Reference,
    *,
    records: int,
    shape: tuple[int, int, int],
    limit: float,
) -> CentralImages:
    """Central images of noisy sums `[rounds, classes, cells, d]`, each with the share of its length that is no noise (James and Stein 1961).

    `limit` is the largest absolute value of a number. An image is shown as often as its sum is long, noise aside: cells with few records count for
    little.

    Many parameters: each is a tensor, or a number of one formula.
    """
    rounds, classes, cells, numbers = sums.shape
    noise = event.noise_multiplier * reach(reference.radius, classes * cells * numbers)
    length = sums.square().sum(-1)
    signal = (length - numbers * noise**2).clamp(min=0)
    share = signal / length.clamp(min=math.ulp(0.0))
    means = share[..., None] * sums / expected_records(event, sums, records)
    x = (reference.mean + within(means.view(-1, numbers), reference.radius)).clamp(-limit, limit)
    weights = signal.sqrt() / signal.sqrt().sum((0, 2), keepdim=True).clamp(min=math.ulp(0.0))
    y = torch.arange(classes)[None, :, None].expand(rounds, classes, cells)
    return CentralImages(x.float().view(-1, *shape), y.flatten(), weights.flatten())


def warmed(
    parts: Parts,
    images: CentralImages,
    central: Central,
    groups: tuple[ParameterGroup, ...],
    *,
    seed: int,
    progress: Progress = silent,
) -> tuple[nn.Module, list[float]]:
    """The denoiser so far, with rows for the private classes, after plain training of `groups` on central images; and its losses.

    Where nothing stands out from the noise it stays as it is.
    """
    model, last = untuned(parts), parts.schedule.timesteps
    trainable_parameters(model, groups)
    device = next(model.parameters()).device
    x, y, weights = images.x.to(device), images.y.to(device), images.weights.to(device)
    generator = torch.Generator(device).manual_seed(seed)

    def loss_of_step() -> Tensor:
        index = torch.multinomial(weights, BATCH, replacement=True, generator=generator)
        dropped = torch.rand(BATCH, generator=generator, device=device) < LABEL_DROPOUT
        shown, low = y[index].masked_fill(dropped, NO_CLASS), max(1, round(central.since * last))
        examples = denoising_examples(parts.schedule, x[index], shown, draws=1, low=low, high=last, generator=generator)
        return record_losses(model, examples).mean()

    model, losses = train(
        model,
        loss_of_step,
        steps=central.steps if float(weights.sum()) else 0,
        learning_rate=central.learning_rate,
        warm_up=round(WARM_UP * central.steps),
        final_rate=FINAL_RATE,
        ema_decay=EMA_DECAY,
        progress=progress,
    )
    return model.eval().requires_grad_(False), losses
