"""From noise to images: deterministic and stochastic DDIM over any falling list of times.

Every sampler is a function of one denoiser contract, `denoise(x, t, y) -> predicted noise`, and a list of times;
"retrieve and resume" is the same sampler called twice with two lists.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sfumato.diffusion.objective import normal
from sfumato.diffusion.schedule import NoiseSchedule, predicted_image

Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x `[b, c, h, w]`, t `[b]`, y `[b]`) -> predicted noise `[b, c, h, w]`."""

NO_CLASS = -1
"""The class index that asks a network for its null row, the mean of its class rows."""


def guided(denoise: Denoiser, weight: float) -> Denoiser:
    """Classifier-free guidance: (1 + w) times the wanted class's prediction minus w times the null row's.

    Post-processing of the released weights (Ho and Salimans 2022, Eq. 6, with the mean of the class rows as null row).
    """
    if weight == 0:
        return denoise

    def predict(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        wanted, null = denoise(
            torch.cat([x, x]), torch.cat([t, t]), torch.cat([y, y.new_full(y.shape, NO_CLASS)])
        ).chunk(2)
        return (1 + weight) * wanted - weight * null

    return predict


@torch.inference_mode()
def ddim(
    schedule: NoiseSchedule,
    denoise: Denoiser,
    x: Tensor,
    y: Tensor,
    times: Sequence[int],
    *,
    eta: float = 0.0,
    generator: torch.Generator,
) -> Tensor:
    """Walk `x` `[b, c, h, w]` from `times[0]` down to `times[-1]` (Song et al. 2021, Eq. 12 and 16).

    `eta` 0 is deterministic, 1 has the variance of ancestral sampling. Ends at the image in [-1, 1] when the last time
    is 0.
    """
    for now, after in itertools.pairwise(times):
        t, s = (torch.full((len(x),), time, device=x.device) for time in (now, after))
        image = predicted_image(schedule, x, t, denoise(x, t, y))
        noise = (x - schedule.signal(t) * image) / schedule.noise(t)
        spread = (
            eta * schedule.noise(s) / schedule.noise(t) * (1 - (schedule.signal(t) / schedule.signal(s)) ** 2).sqrt()
        )
        x = schedule.signal(s) * image + (schedule.noise(s) ** 2 - spread**2).clamp(min=0).sqrt() * noise
        if eta > 0:
            x = x + spread * normal(x, generator)
    return x
