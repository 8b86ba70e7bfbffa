"""The public training loop: Adam, warm-up, decay and a moving average, on images that anyone may see.

Used for everything trained on public data, and on private images once enough noise has been added to them. Private
images themselves are trained on in `sfumato.privacy.engine.dp_sgd` alone, or without a certificate in a mechanism.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sfumato.config import Pretraining, Training
from sfumato.diffusion.objective import denoising_examples, record_losses, renoising_loss
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import NoiseSchedule
from sfumato.progress import Progress, silent

Model = TypeVar("Model", bound=nn.Module)


def warm_then_decay(warm_up: int, steps: int, final: float) -> Callable[[int], float]:
    """Factor of the learning rate at a step: rises linearly over `warm_up` steps, then falls linearly to `final`."""

    def factor(step: int) -> float:
        rise = min(1.0, (step + 1) / max(1, warm_up))
        fall = 1 - (1 - final) * step / max(1, steps)
        return rise * fall

    return factor


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of the weights; call `update_parameters` after each step, read `.module`."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


YOUNG = 10
"""Steps over which a young average is nearly the last weights: its decay is at most (1 + n) / (`YOUNG` + n) after n steps."""


def young_average(model: nn.Module, decay: float) -> AveragedModel:
    """The same, but in a short training it does not remember where the weights began: at first its decay is less than `decay`."""

    def averaged(averages: Any, weights: Any, count: Tensor | int) -> None:
        now = min(decay, (1 + int(count)) / (YOUNG + int(count)))
        get_ema_multi_avg_fn(now)(averages, weights, count)

    return AveragedModel(model, multi_avg_fn=averaged)


def batches(records: int, batch: int, generator: torch.Generator) -> Iterable[Tensor]:
    """Endless index batches `[batch]`, a fresh shuffle each time the records run out; the incomplete rest is dropped."""
    batch = min(batch, records)
    while True:
        order = torch.randperm(records, generator=generator)
        yield from order[: records - records % batch].view(-1, batch)


def train(
    model: Model,
    loss_of_step: Callable[[], Tensor],
    *,
    steps: int,
    learning_rate: float,
    warm_up: int,
    final_rate: float,
    ema_decay: float,
    progress: Progress = silent,
) -> tuple[Model, list[float]]:
    """Minimise `loss_of_step` over the model's parameters; returns the averaged model and the loss at each step."""
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, warm_then_decay(warm_up, steps, final_rate))
    average = young_average(model, ema_decay)
    losses = []
    for step in range(steps):
        loss = loss_of_step()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        rate.step()
        average.update_parameters(model)
        losses.append(loss.detach())
        progress(step + 1, steps)
    # torch's average does not say that it holds a copy of the very model.
    return cast("Model", average.module), torch.stack(losses).tolist() if losses else []


def pretrain(
    model: nn.Module,
    schedule: NoiseSchedule,
    images: Tensor,
    labels: Tensor,
    settings: Pretraining,
    *,
    seed: int,
    progress: Progress = silent,
) -> tuple[nn.Module, list[float]]:
    """Train a denoiser on public images `[n, c, h, w]` with labels `[n]`; returns the averaged model and the losses.

    A share of the labels is dropped, so that the network also learns to denoise without a class.
    """
    generator = torch.Generator(images.device).manual_seed(seed)
    feed = iter(batches(len(images), settings.batch, torch.Generator().manual_seed(seed)))

    def loss_of_step() -> Tensor:
        index = next(feed).to(images.device)
        dropped = torch.rand(len(index), generator=generator, device=images.device) < settings.label_dropout
        y = labels[index].masked_fill(dropped, NO_CLASS)
        examples = denoising_examples(
            schedule, images[index], y, draws=1, low=1, high=schedule.timesteps, generator=generator
        )
        return record_losses(model, examples).mean()

    return train_denoiser(model, loss_of_step, settings, progress=progress)


def denoiser_training(
    model: nn.Module, schedule: NoiseSchedule, settings: Pretraining, *, seed: int, progress: Progress = silent
) -> Callable[[Tensor, Tensor], nn.Module]:
    """`pretrain` for images and labels that come later; where these are none, the model stays as it is."""

    def train_on(images: Tensor, labels: Tensor) -> nn.Module:
        steps = settings if len(images) else settings.model_copy(update={"steps": 0})
        trained, _ = pretrain(model.to(images.device), schedule, images, labels, steps, seed=seed, progress=progress)
        return trained

    return train_on


def train_denoiser(
    model: nn.Module, loss_of_step: Callable[[], Tensor], settings: Training, *, progress: Progress = silent
) -> tuple[nn.Module, list[float]]:
    """All of `model` trained as the settings say; returns the averaged model, frozen, and the losses."""
    trained, losses = train(
        model.requires_grad_(True),
        loss_of_step,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        warm_up=settings.warm_up,
        final_rate=settings.final_rate,
        ema_decay=settings.ema_decay,
        progress=progress,
    )
    return trained.eval().requires_grad_(False), losses


def train_on_noised(
    model: nn.Module,
    schedule: NoiseSchedule,
    noised: Tensor,
    settings: Training,
    *,
    boundary: int,
    seed: int,
    progress: Progress = silent,
) -> tuple[nn.Module, list[float]]:
    """Train the times `boundary` + 1..T on images `[n, c, h, w]` to which the noise of time `boundary` was added, without classes.

    `noised` are x_S / sqrt(alpha_bar_S) for S = `boundary`. Returns the averaged model and the losses. Nothing but the noised
    images is used, so this is post-processing of them.
    """
    latents = schedule.signal(torch.tensor([boundary], device=noised.device)) * noised
    generator = torch.Generator(noised.device).manual_seed(seed)
    feed = iter(batches(len(noised), settings.batch, torch.Generator().manual_seed(seed)))

    def loss_of_step() -> Tensor:
        latent = latents[next(feed).to(noised.device)]
        y = torch.full((len(latent),), NO_CLASS, device=noised.device)
        return renoising_loss(model, schedule, latent, y, boundary=boundary, generator=generator)

    return train_denoiser(model, loss_of_step, settings, progress=progress)


def unlabelled_losses(schedule: NoiseSchedule, boundary: int) -> Callable[..., Tensor]:
    """The loss of each image, `[b]`, for denoising on the times `boundary`..T without classes (Wang et al. 2024, Algorithm 1,
    Phase I); called with a model, images `[b, c, h, w]`, labels that it ignores, and a generator."""

    def losses(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        times = {"low": boundary, "high": schedule.timesteps}
        examples = denoising_examples(schedule, x, torch.full_like(y, NO_CLASS), draws=1, generator=generator, **times)
        return record_losses(model, examples)

    return losses
