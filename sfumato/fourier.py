"""Random Fourier features: vectors of norm 1 whose products come near a Gaussian kernel (Rahimi and Recht 2007), and mean embeddings of classes.

Frequencies are public. Not covered: the noise on sums of private features, see `sfumato.privacy.mechanisms.noisy_embedding`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.config import Matching
from sfumato.methods.plan import Embedding

SURE = 2.0
"""Deviations of its noise below which a count is taken for so many, since a mean over fewer records would be noise alone."""


@dataclass(frozen=True, eq=False)
class FourierFeatures:
    """Random Fourier features of images `[b, c, h, w]`, [cos, sin] / sqrt(m): `[b, 2 m]`, of norm 1."""

    frequencies: Tensor
    """`[c h w, m]`"""

    @property
    def count(self) -> int:
        """m"""
        return self.frequencies.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        angles = x.flatten(1) @ self.frequencies.to(x)
        return torch.cat([angles.cos(), angles.sin()], 1) / math.sqrt(self.count)

    def some(self, chosen: Tensor) -> "FourierFeatures":
        """Those of the `chosen` frequencies int64 `[k]` alone, of norm 1 again."""
        return FourierFeatures(self.frequencies[:, chosen])

    def of_some(self, means: Tensor, chosen: Tensor) -> Tensor:
        """Mean embeddings `[classes, 2 m]` as the chosen frequencies alone show them."""
        return means[:, torch.cat([chosen, chosen + self.count])] * math.sqrt(self.count / len(chosen))


def random_features(how: Embedding | Matching, numbers: int, seed: int) -> FourierFeatures:
    """Random Fourier features of images, or latents, with so many `numbers`.

    The product of two images' features comes near the mean over `how.length_scales` of exp(-|x - y|^2 / (2 l^2)), with each l in units
    of sqrt(numbers). The frequencies follow from the seed, and are public.
    """
    scales = torch.tensor(how.length_scales).repeat_interleave(math.ceil(how.frequencies / len(how.length_scales)))
    generator = torch.Generator().manual_seed(seed)
    return FourierFeatures(torch.randn(numbers, len(scales), generator=generator) / (scales * math.sqrt(numbers)))


def class_means(sums: Tensor, count_share: float, *, noise_multiplier: float) -> Tensor:
    """The mean embedding of each class `[classes, d]`, from noisy sums `[classes, d + 1]` with the count in the last place."""
    count = sums[:, -1:] / math.sqrt(count_share)
    least = max(1.0, SURE * noise_multiplier / math.sqrt(count_share))
    return (sums[:, :-1] / math.sqrt(1 - count_share) / count.clamp(min=least)).float()
