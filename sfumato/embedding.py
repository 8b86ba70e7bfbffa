"""Mean embeddings: a generator learns from the noisy sums of the private records' features alone, class by class.

Features are random ones of a Gaussian kernel (Rahimi and Recht 2007), whose frequencies are public, or those of a network that learnt from
public images alone (`sfumato.perceptual`). Behind the door each private record adds its features to the sum of its class (`embedder`); the sums
leave with noise. All else here is post-processing of them:
the classes' mean embeddings (`sfumato.fourier`), and a one-step generator whose images come to have the same (`fitted`; Harder et al.
2021, section 3). `sfumato.matching` moves drawn images themselves instead.

Not covered: the noise and its price, see `sfumato.privacy.mechanisms.noisy_embedding`.
"""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sfumato.alignment import ClassMaps, aligned
from sfumato.backbone import Backbone
from sfumato.diffusion.objective import normal
from sfumato.diffusion.samplers import one_step_images
from sfumato.fourier import random_features
from sfumato.images import shape_of
from sfumato.latents import Codec
from sfumato.methods.parts import Parts, planned
from sfumato.methods.plan import Embedding
from sfumato.perceptual import perceptual_features
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper
from sfumato.training import Resumable, train_denoiser

Features = Callable[[Tensor], Tensor]
"""From images or latents `[b, c, h, w]` to features `[b, d]` of norm 1, each by itself; differentiable."""
FEWEST = 2
"""Images of a class in a step, at least: one alone has no mean square without itself."""


def features_of(how: Embedding, parts: Parts, backbone: Backbone | None, *, seed: int) -> Features:
    """The features that a plan sums: of a kernel, whose frequencies follow from the seed, or of the public classifier `backbone`."""
    if how.features == "fourier":
        return random_features(how, math.prod(parts.shape), seed)
    return perceptual_features(planned(backbone), how, parts.codec)


def embedder(features: Features, codec: Codec, maps: ClassMaps | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """From private images `[b, c, h, w]` and their classes `[b]` to their features `[b, d]`, as `codec` has them and, where classes are
    aligned, where the public images lie; each image by itself."""

    def embed(images: Tensor, y: Tensor) -> Tensor:
        return features(aligned(codec.encode(images), y, codec.largest_norm(shape_of(images)), maps))

    return embed


def distances(features: Tensor, means: Tensor) -> Tensor:
    """The squared distance `[classes]` of the mean embedding of images from `means` `[classes, d]`, by their features `[classes, m, d]`, m > 1.

    Without bias: the mean over pairs of *different* images stands for the square of their mean, so that a small batch does not
    want images more alike than the class is.
    """
    many = features.shape[1]
    total, own = features.sum(1), features.square().sum((1, 2))
    square = (total.square().sum(1) - own) / (many * (many - 1))
    return square - 2 * (total * means).sum(1) / many + means.square().sum(1)


def fitted(
    model: nn.Module,
    parts: Parts,
    features: Features,
    means: Tensor,
    how: Embedding,
    *,
    seed: int,
    progress: Progress = silent,
    keeper: Keeper | None = None,
) -> tuple[nn.Module, list[float]]:
    """`model` trained as a one-step generator so that its images of each class have the mean embedding `means` `[classes, d]`; and its losses.

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    device = next(model.parameters()).device
    means, classes = means.to(device), len(means)
    each = max(FEWEST, how.training.batch // classes)
    y = torch.arange(classes, device=device).repeat_interleave(each)
    generator = torch.Generator(device).manual_seed(seed)

    def loss_of_step() -> Tensor:
        z = normal(torch.empty(len(y), *parts.shape, device=device), generator)
        drawn = one_step_images(model, parts.schedule, z, y)
        return distances(features(drawn).view(classes, each, -1), means).sum()

    resumable = Resumable(keeper, itertools.repeat(y), generator) if keeper else None
    return train_denoiser(model, loss_of_step, how.training, progress=progress, resumable=resumable)
