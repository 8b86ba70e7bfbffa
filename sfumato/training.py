"""The public training loop: Adam, warm-up, decay and a moving average, on images that anyone may see.

Used for everything trained on public data, and on private images once enough noise has been added to them. Private
images themselves are trained on in `sfumato.privacy.engine.dp_sgd` alone, or without a certificate in a mechanism.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sfumato.config import SEEDS, ParameterGroup, Pretraining, Training
from sfumato.diffusion.objective import denoising_examples, record_losses, renoising_loss
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import NoiseSchedule
from sfumato.errors import Stopped
from sfumato.networks.denoiser import groups_of
from sfumato.networks.layers import SeededDropout
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper, TrainingState

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
    """A moving average that forgets the initial weights even in a short training: at first its decay is less than `decay`."""

    def averaged(averages: Any, weights: Any, count: Tensor | int) -> None:
        now = min(decay, (1 + int(count)) / (YOUNG + int(count)))
        get_ema_multi_avg_fn(now)(averages, weights, count)

    return AveragedModel(model, multi_avg_fn=averaged)


HALVES = {"cuda": torch.bfloat16}
"""How a device rounds the operands of products where no gradient is clipped; sums, norms and weights stay float32."""


def half_products(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Inside the block a GPU rounds operands of products to bfloat16, several times as fast; other devices change nothing.

    For losses whose gradients nobody clips: public images, what was paid for, and members of an ensemble, whose answers are clipped
    instead. It holds for this thread, and never for a step of DP-SGD, which is exact.
    """
    half = HALVES.get(device.type)
    return torch.autocast(device.type, dtype=half) if half else contextlib.nullcontext()


def batches(records: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless index batches `[batch]`, shuffled again after each pass; the incomplete last batch is dropped."""
    batch = min(batch, records)
    while True:
        order = torch.randperm(records, generator=generator)
        yield from order[: records - records % batch].view(-1, batch)


@dataclass(frozen=True, eq=False)
class Resumable:
    """Everything that a training needs to resume to the same weights: the keeper of its state, and its sources of randomness."""

    keeper: Keeper
    feed: Iterator[Tensor]
    """Index batches, of which each step takes one."""
    generator: torch.Generator
    """Draws everything else."""


def state_of(
    model: nn.Module,
    average: AveragedModel,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
    losses: Tensor,
) -> dict[str, Tensor]:
    """The state of a public training by name: weights, moving average, moments, generator, losses `[step]`; copies on the CPU."""
    state = {f"model/{name}": value for name, value in model.state_dict().items()}
    state |= {f"average/{name}": value for name, value in average.state_dict().items()}
    for number, moments in optimiser.state_dict()["state"].items():
        state |= {f"adam/{number}/{name}": value for name, value in moments.items()}
    state |= {_generator_of(generator): generator.get_state(), "losses": losses}
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def restored(
    state: TrainingState | None,
    model: nn.Module,
    average: AveragedModel,
    optimiser: torch.optim.Optimizer,
    resumable: Resumable,
    losses: Tensor,
) -> int:
    """Restore what `state_of` copied, the losses `[steps]` in place; returns the step, 0 where there is no state, or one of another kind of device."""
    if state is None or _generator_of(resumable.generator) not in state.tensors:
        return 0
    tensors = state.tensors

    def below(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    model.load_state_dict(below("model/"))
    average.load_state_dict(below("average/"))
    moments: dict[int, dict[str, Tensor]] = {}
    for path, value in below("adam/").items():
        number, name = path.split("/")
        moments.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    resumable.generator.set_state(tensors[_generator_of(resumable.generator)])
    for _ in range(state.step):
        next(resumable.feed)
    losses[: state.step] = tensors["losses"]
    return state.step


def _generator_of(generator: torch.Generator) -> str:
    return f"generator/{generator.device.type}"


def train(
    model: Model,
    loss_of_step: Callable[[], Tensor],
    *,
    steps: int,
    learning_rate: float,
    warm_up: int,
    final_rate: float,
    ema_decay: float,
    weight_decay: float = 0.0,
    progress: Progress = silent,
    resumable: Resumable | None = None,
) -> tuple[Model, list[float]]:
    """Minimise `loss_of_step`, which gives one loss `[]`, over the model's parameters; returns the averaged model and the loss at each step.

    A `resumable` training stores its state now and then, and starts from the stored one; it raises `Stopped`, at a stored state, on request.

    Many parameters: its callers hold rates and steps in different sections, beside what shows and interrupts the training.
    """
    device = next(model.parameters()).device
    # A GPU waits for the many small kernels of an unfused step.
    optimiser = torch.optim.Adam(
        model.parameters(),
        lr=learning_rate,
        weight_decay=weight_decay,
        decoupled_weight_decay=True,
        fused=device.type == "cuda",
    )
    factor = warm_then_decay(warm_up, steps, final_rate)
    average = young_average(model, ema_decay)
    # One tensor of all: a small one a step, kept between the large ones of each step, scatters the heap, which then grows by gigabytes.
    losses = torch.zeros(steps, device=device)
    first = restored(resumable.keeper.load(), model, average, optimiser, resumable, losses) if resumable else 0
    until = first
    for step in range(first, steps):
        if resumable and (step == until or resumable.keeper.stopping()):
            if step > first:
                state = state_of(model, average, optimiser, resumable.generator, losses[:step])
                resumable.keeper.save(TrainingState(step, state))
            if resumable.keeper.stopping():
                raise Stopped(f"stopped after step {step} of {steps} and saved; the same command goes on from there")
            until = step + resumable.keeper.stretch(step)
        loss = loss_of_step()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * factor(step)
        optimiser.step()
        average.update_parameters(model)
        losses[step] = loss.detach()
        progress(step + 1, steps)
    # torch's average does not say that it holds a copy of the very model.
    return cast("Model", average.module), losses.tolist()


def pretrain(
    model: nn.Module,
    schedule: NoiseSchedule,
    images: Tensor,
    labels: Tensor,
    settings: Pretraining,
    *,
    seed: int,
    progress: Progress = silent,
    keeper: Keeper | None = None,
) -> tuple[nn.Module, list[float]]:
    """Train a denoiser on public images `[n, c, h, w]` with labels `[n]`; returns the averaged model and the losses.

    A share of the labels is dropped, so that the network also learns to denoise without a class; what the network itself drops follows from
    the seed, too. With a `keeper` it can stop and resume to the same weights.

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    generator = torch.Generator(images.device).manual_seed(seed)
    feed = batches(len(images), settings.batch, torch.Generator().manual_seed(seed))
    dropouts = [layer for layer in model.modules() if isinstance(layer, SeededDropout)]

    def loss_of_step() -> Tensor:
        index = next(feed).to(images.device)
        if dropouts:
            seeds = torch.randint(SEEDS, (len(dropouts),), generator=generator, device=images.device)
            for layer, own in zip(dropouts, seeds.tolist(), strict=True):
                layer.seed = own
        dropped = torch.rand(len(index), generator=generator, device=images.device) < settings.label_dropout
        y = labels[index].masked_fill(dropped, NO_CLASS)
        examples = denoising_examples(
            schedule, images[index], y, draws=1, low=1, high=schedule.timesteps, generator=generator
        )
        with half_products(images.device):
            return record_losses(model, examples).mean()

    resumable = Resumable(keeper, feed, generator) if keeper else None
    try:
        return train_denoiser(model, loss_of_step, settings, progress=progress, resumable=resumable)
    finally:
        for layer in dropouts:
            layer.seed = None


def denoiser_training(
    model: nn.Module,
    schedule: NoiseSchedule,
    settings: Pretraining,
    *,
    seed: int,
    idle: nn.Module | None = None,
    progress: Progress = silent,
) -> Callable[[Tensor, Tensor], nn.Module]:
    """`pretrain` as a function of images `[n, c, h, w]` and labels `[n]`; without images it gives `idle`, or the model as it is.

    Many parameters: those of `pretrain`, and what stands in for it.
    """

    def train_on(images: Tensor, labels: Tensor) -> nn.Module:
        begun, steps = model, settings
        if not len(images):
            begun, steps = idle or model, settings.model_copy(update={"steps": 0})
        trained, _ = pretrain(begun.to(images.device), schedule, images, labels, steps, seed=seed, progress=progress)
        return trained

    return train_on


def train_denoiser(
    model: nn.Module,
    loss_of_step: Callable[[], Tensor],
    settings: Training,
    *,
    fixed: Collection[ParameterGroup] = (),
    progress: Progress = silent,
    resumable: Resumable | None = None,
) -> tuple[nn.Module, list[float]]:
    """`model` without its `fixed` groups trained on the losses `[]` of `loss_of_step` as the settings say; returns the averaged model, frozen, and the
    loss at each step. `Stopped` where a `resumable` training is to stop."""
    group_of = groups_of(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(group_of(name) not in fixed)
    trained, losses = train(
        model,
        loss_of_step,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        warm_up=settings.warm_up,
        final_rate=settings.final_rate,
        ema_decay=settings.ema_decay,
        weight_decay=settings.weight_decay,
        progress=progress,
        resumable=resumable,
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
    fixed: Collection[ParameterGroup] = (),
    progress: Progress = silent,
) -> tuple[nn.Module, list[float]]:
    """Train the times `boundary` + 1..T on images `[n, c, h, w]` to which the noise of time `boundary` was added, without classes.

    `noised` are x_S / sqrt(alpha_bar_S) for S = `boundary`. Returns the averaged model and the losses. Nothing but the noised
    images is used, so this is post-processing of them.

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    latents = schedule.signal(torch.tensor([boundary], device=noised.device)) * noised
    generator = torch.Generator(noised.device).manual_seed(seed)
    feed = batches(len(noised), settings.batch, torch.Generator().manual_seed(seed))

    def loss_of_step() -> Tensor:
        latent = latents[next(feed).to(noised.device)]
        y = torch.full((len(latent),), NO_CLASS, device=noised.device)
        return renoising_loss(model, schedule, latent, y, boundary=boundary, generator=generator)

    return train_denoiser(model, loss_of_step, settings, fixed=fixed, progress=progress)


def unlabelled_losses(schedule: NoiseSchedule, boundary: int) -> Callable[..., Tensor]:
    """The loss of each image, `[b]`, for denoising on the times `boundary`..T without classes (Wang et al. 2024, Algorithm 1,
    Phase I); called with a model, images `[b, c, h, w]`, labels that it ignores, and a generator."""

    def losses(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        none, last = torch.full_like(y, NO_CLASS), schedule.timesteps
        examples = denoising_examples(schedule, x, none, draws=1, low=boundary, high=last, generator=generator)
        return record_losses(model, examples)

    return losses
