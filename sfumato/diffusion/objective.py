"""Training examples of a denoiser, and one loss per record.

An objective may not look across records: `Examples` holds `draws` noised copies of each record side by side, and the
loss is averaged over a record's own copies only. That is what makes the gradient of one record a function of that
record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from sfumato.diffusion.schedule import NoiseSchedule, add_noise, training_times
from sfumato.networks.prediction import error_weights


@dataclass(frozen=True)
class Examples:
    """Noised copies of b records, K each."""

    x_t: Tensor
    """`[b, K, c, h, w]`, what the denoiser sees."""
    t: Tensor
    """`[b, K]`, 1-based diffusion times."""
    y: Tensor
    """`[b, K]`, class indices."""
    target: Tensor
    """`[b, K, c, h, w]`, the noise to be predicted."""

    def map(self, change: Callable[[Tensor], Tensor]) -> "Examples":
        """The same change to every field `[b, K, ...]` (a slice, a device)."""
        return Examples(change(self.x_t), change(self.t), change(self.y), change(self.target))


Corrupt = Callable[[Tensor, Tensor, torch.Generator], Examples]
"""From records x `[b, c, h, w]` and y `[b]` to examples; each record's copies may depend on that record alone."""


def repeat_records(x: Tensor, y: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """Each record `draws` times in a row: `[b * K, c, h, w]` and `[b * K]`."""
    return x.repeat_interleave(draws, 0), y.repeat_interleave(draws, 0)


class Randomness(Protocol):
    """The source of a sampler whose own noise hides the records (`sfumato.privacy.noise.Source`)."""

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normals `[*shape]`, on the CPU."""

    def coins(self, shape: Sequence[int], rate: float) -> Tensor:
        """Independent coins, bool `[*shape]`, that fall True with probability `rate`, 0 to 1, on the CPU."""


Draws = torch.Generator | Randomness
"""An ordinary generator for post-processing, or the randomness that a price rests on."""


def normal(like: Tensor, generator: Draws | None) -> Tensor:
    """Standard normal noise of the shape `[...]`, device and type of `like`."""
    if generator is not None and not isinstance(generator, torch.Generator):
        return generator.normal(like.shape).to(like)
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def uniform_times(count: int, low: int, high: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """`[count]` times drawn uniformly from low..high, both included."""
    return torch.randint(low, high + 1, (count,), generator=generator, device=device)


def denoising_examples(
    schedule: NoiseSchedule, x: Tensor, y: Tensor, *, draws: int, low: int, high: int, generator: torch.Generator
) -> Examples:
    """Plain denoising of records x `[b, c, h, w]` with classes y `[b]` (Ho et al. 2020, Eq. 14): K = `draws` copies of each, `[b, K, ...]`, every one
    with a time t from `low` to `high`, 1 to T and both included, by the schedule's law, and with fresh noise.

    Many parameters: each is a tensor, or a number of one formula.
    """
    copies, labels = repeat_records(x, y, draws)
    t = training_times(schedule, len(copies), low, high, generator, x.device)
    noise = normal(copies, generator)
    return grouped(add_noise(schedule, copies, t, noise), t, labels, noise, draws=draws)


def grouped(x_t: Tensor, t: Tensor, y: Tensor, target: Tensor, *, draws: int) -> Examples:
    """Examples from flat `[b * K, ...]` tensors whose K copies of a record stand in a row."""
    return Examples(*(part.unflatten(0, (-1, draws)) for part in (x_t, t, y, target)))


def record_losses(
    model: Callable[[Tensor, Tensor, Tensor], Tensor], examples: Examples, *, weights_of: nn.Module | None = None
) -> Tensor:
    """Mean squared error of the predicted noise, averaged over a record's copies and pixels: one loss per record `[b]`.

    For a network that predicts anything but the noise the error of each copy is weighed, so that it is that of its output. `weights_of`
    is the network where `model` only calls it.
    """
    shape = examples.x_t.shape[:2]
    predicted = model(examples.x_t.flatten(0, 1), examples.t.flatten(), examples.y.flatten()).unflatten(0, shape)
    errors = (predicted - examples.target).square()
    weights = error_weights(model if weights_of is None else weights_of, examples.t)
    if weights is not None:
        errors = errors * weights.view(*shape, *[1] * (errors.dim() - 2))
    return errors.flatten(1).mean(1)


def renoising_loss(
    model: nn.Module, schedule: NoiseSchedule, latent: Tensor, y: Tensor, *, boundary: int, generator: torch.Generator
) -> Tensor:
    """Denoising learnt from latents x_S `[b, c, h, w]` at time S = `boundary` alone: a mean over records and pixels.

    The forward transition to t, uniform on S + 1..T, is x_t = sqrt(r) x_S + sqrt(1 - r) z with r = alpha_bar[t] /
    alpha_bar[S]. The score of x_t is -E[z | x_t] / sqrt(1 - r) (Tweedie), so the noise prediction that belongs to it is
    eps = sqrt((1 - alpha_bar[t]) / (1 - r)) E[z | x_t]. The loss compares z with eps sqrt((1 - r) / (1 - alpha_bar[t])):
    regressing eps on its own target would let the variance grow without bound as t comes down to S, where r is 1. A network
    that predicts the velocity learns from the same error: weighed by 1 / alpha_bar, its variance would have no bound either,
    since most of the noise that is in x_S already cannot be predicted.
    """
    t = uniform_times(len(latent), boundary + 1, schedule.timesteps, generator, latent.device)
    signal_ratio = schedule.signal(t) / schedule.signal(torch.full_like(t, boundary))
    fresh = (1 - signal_ratio.square()).sqrt()
    noise = normal(latent, generator)
    predicted = model(signal_ratio * latent + fresh * noise, t, y)
    return (fresh / schedule.noise(t) * predicted - noise).square().mean()
