"""DP-SGD: Poisson batches, clipped sums, Gaussian noise, Adam.

What it costs is `SubsampledGaussian(noise_multiplier, sample_rate, steps)`: in each of the `steps` steps a record, or a
whole group where records have groups (`sfumato.privacy.units`), takes part with probability `sample_rate`, moves the sum by at most `clip`, and the sum,
rounded to a grid, receives noise of standard deviation `noise_multiplier` times the clip and what rounding adds to it
(`sfumato.privacy.noise`) on every number that can receive gradient. Dividing by the *expected* batch, Adam,
decay and averaging are post-processing. Not covered here: opening the data, the ledger and the price
(`sfumato.privacy.mechanisms`).
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from sfumato.config import FineTuning
from sfumato.diffusion.objective import Corrupt, Examples
from sfumato.networks.denoiser import groups_of
from sfumato.networks.low_rank import adapted, merged
from sfumato.privacy.engine.arithmetic import exact_products
from sfumato.privacy.engine.clipping import Gradients, clipped_sum
from sfumato.privacy.engine.diagnostics import Watch, seen
from sfumato.privacy.engine.spot_check import checked_steps, spot_check
from sfumato.privacy.engine.validation import refuse_clip, refuse_mixers, survey
from sfumato.privacy.noise import Source, noised
from sfumato.privacy.units import Units, single_records, unit_examples
from sfumato.progress import Progress, silent
from sfumato.resuming import TrainingState
from sfumato.training import moving_average, warm_then_decay

NO_MEMORY = "allocate memory"
"""Words of torch's error where a CPU has no memory left."""
DRAWN_FROM = "average"
"""Name, in a state, of the moving average that images are drawn from."""
AVERAGED = "averaged"
"""Name, in a state, of the number of steps in the moving average."""


def trainable_parameters(model: nn.Module, groups: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """The parameters of `model` that belong to `groups`; all others are frozen in place."""
    group_of = groups_of(model)
    chosen = {name: p for name, p in model.named_parameters() if group_of(name) in groups}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return chosen


def poisson_sample(records: int, sample_rate: float, source: Source) -> Tensor:
    """Positions of the records that take part, int64 `[n]` in rising order on the CPU: each of the `records` does by itself with probability
    `sample_rate`, 0 to 1, so that n may be 0."""
    return source.coins((records,), sample_rate).nonzero()[:, 0]


def add_gaussian(total: Gradients, *, noise_multiplier: float, clip: float, source: Source) -> Gradients:
    """The sum of clipped gradients, each of its parameter's shape, rounded to the grid, plus noise on it: `noise_multiplier` times what one
    record can then move (`noised`)."""
    numbers = sum(value.numel() for value in total.values())
    parts = noised(list(total.values()), noise_multiplier=noise_multiplier, norm=clip, numbers=numbers, source=source)
    return dict(zip(total, parts, strict=True))


class Others(Protocol):
    """Further processes with records of their own (`sfumato.privacy.engine.distributed`)."""

    def begin(self, model: nn.Module) -> None:
        """Give them the model."""

    def lead(self, trainable: Mapping[str, nn.Parameter]) -> None:
        """Begin a step at all of them, from these weights."""

    def total(self, own: Gradients) -> Gradients:
        """The sum of this process's clipped gradients and theirs, each of its parameter's shape."""


class Checkpoint(Protocol):
    """Decides before each stretch of steps how far training goes."""

    def go_on(self, step: int, take: Callable[[], dict[str, Tensor]]) -> int:
        """The step up to which to train, after `step` steps; `take` copies the state, tensors by name as `state_of` has them. May raise `Stopped`."""

    def stopping(self) -> bool:
        """Whether `go_on` should be called now."""


def state_of(
    trainable: Mapping[str, nn.Parameter],
    averages: Mapping[str, AveragedModel],
    optimiser: torch.optim.Optimizer,
) -> dict[str, Tensor]:
    """The state of a training by name: weights, moving averages and moments, each of its parameter's shape, and counters `[]`; copies on the CPU."""
    state: dict[str, Tensor] = {AVERAGED: averages[DRAWN_FROM].n_averaged}
    for kind, average in averages.items():
        averaged = dict(average.module.named_parameters())
        state |= {f"{kind}/{name}": averaged[name] for name in trainable}
    for name, parameter in trainable.items():
        state[f"weight/{name}"] = parameter
        state |= {f"adam-{key}/{name}": value for key, value in optimiser.state[parameter].items()}
    return {name: value.detach().cpu().clone() for name, value in state.items()}


@torch.no_grad()
def restore(
    tensors: Mapping[str, Tensor],
    trainable: Mapping[str, nn.Parameter],
    averages: Mapping[str, AveragedModel],
    optimiser: torch.optim.Optimizer,
) -> None:
    """Put back what `state_of` copied, in place; a `KeyError` where something is missing."""
    for kind, average in averages.items():
        averaged = dict(average.module.named_parameters())
        average.n_averaged.copy_(tensors[AVERAGED])
        for name in trainable:
            averaged[name].copy_(tensors[f"{kind}/{name}"])
    moments = {key.split("/", 1)[0] for key in tensors if key.startswith("adam-")}
    for name, parameter in trainable.items():
        parameter.copy_(tensors[f"weight/{name}"])
        optimiser.state[parameter] = {
            # Adam counts its steps on the CPU, its moments lie beside the weights
            key.removeprefix("adam-"): tensors[f"{key}/{name}"].to("cpu" if key == "adam-step" else parameter.device)
            for key in moments
        }


def fitting_sum(
    model: nn.Module,
    trainable: Mapping[str, Tensor],
    examples: Examples,
    settings: FineTuning,
    physical_batch: int,
    note: Callable[[str], None] | None = None,
    norms: list[Tensor] | None = None,
) -> tuple[Gradients, int]:
    """The clipped sum with as many records at once as memory holds, and that number; the sum does not depend on it.

    The records' norms `[b]` before clipping are added, in parts, to a list `norms`; INTERNAL.

    Many parameters: the gradients of a step, and each rule by which they are clipped.
    """
    while True:
        if norms is not None:
            norms.clear()
        try:
            total = clipped_sum(
                model,
                trainable,
                examples,
                clip=settings.clip,
                chunk=physical_batch,
                rule=settings.clipping,
                gamma=settings.clipping_gamma,
                tell_norms=None if norms is None else norms.append,
            )
            return total, physical_batch
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if physical_batch == 1 or not (isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error)):
                raise
        physical_batch //= 2
        if note:
            note(f"memory is too small for machine.physical_batch={2 * physical_batch}: going on with {physical_batch}")


@exact_products()
def train_privately(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    corrupt: Corrupt,
    settings: FineTuning,
    *,
    noise_multiplier: float,
    source: Source,
    pairs: torch.Generator,
    expected_batch: float,
    physical_batch: int,
    progress: Progress = silent,
    note: Callable[[str], None] | None = None,
    start: TrainingState | None = None,
    checkpoint: Checkpoint | None = None,
    watch: Watch | None = None,
    units: Units | None = None,
    others: Others | None = None,
    keep: Callable[[float, nn.Module], None] | None = None,
) -> nn.Module:
    """Fine-tune `model` on records x `[n, c, h, w]`, y `[n]`; returns the averaged model.

    `units` are sampled and clipped as wholes; without them each record is. `source` draws everything that the price rests on;
    `pairs` draws times, the noise of training pairs and the initial weights of adapters.

    `start` is the state to resume from. `checkpoint` decides before each stretch of steps how far training goes, or stops it.

    `corrupt` makes the noised examples of a batch. The progress callback receives step numbers alone: no loss, no norm. `note` is
    called once if a layer makes clipping slow. `watch` receives each step's diagnostics without noise: INTERNAL. `others` are
    processes that sample the records that are not in x. `keep` receives each further average, with its decay. `BadInput` for a model that
    mixes records.

    Many parameters: all that DP-SGD rests on is named where it is called: records, noise, clipping, randomness, and who watches.
    """
    if settings.rank:
        model = adapted(model, settings.trainable, settings.rank, pairs)
    trainable = trainable_parameters(model, settings.trainable)
    refuse_clip(settings.clip)
    refuse_mixers(model, trainable)
    group_of = groups_of(model)
    rows = [p for name, p in trainable.items() if group_of(name) == "rows"]
    other = [p for name, p in trainable.items() if group_of(name) != "rows"]
    groups = [{"params": rows, "lr": settings.rate_rows}, {"params": other, "lr": settings.rate_other}]
    groups = [{**group, "initial_lr": group["lr"]} for group in groups if group["params"]]
    optimiser = torch.optim.Adam(groups)
    averages = {DRAWN_FROM: moving_average(model, settings.ema_decay)}
    averages |= {further(decay): moving_average(model, decay) for decay in settings.averages}
    units = single_records(len(x), x.device) if units is None else units
    first = start.step if start else 0
    if start:
        restore(start.tensors, trainable, averages, optimiser)
    factor = warm_then_decay(settings.warm_up, settings.steps, settings.final_rate)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, factor, last_epoch=first - 1)
    if others:
        others.begin(model)
    until, checks = first, checked_steps(settings.steps, settings.checked)
    for step in range(first, settings.steps):
        if checkpoint and (step == until or checkpoint.stopping()):
            until = checkpoint.go_on(step, lambda: state_of(trainable, averages, optimiser))
        if others:
            others.lead(trainable)
        index = poisson_sample(len(units), settings.sample_rate, source).to(x.device)
        examples = unit_examples(units, index, x, y, corrupt, source, pairs)
        if step == first:  # what the model sees of a record may be larger than the record
            known = survey(model, trainable, examples.x_t.shape[2:])
            if known.missing and note:
                note(f"gradients are computed record by record, which is slow: {known.missing}")
        norms: list[Tensor] = []
        observed = norms if watch else None
        total, physical_batch = fitting_sum(model, trainable, examples, settings, physical_batch, note, observed)
        if others:
            total = others.total(total)
        if step == first or step in checks:
            turn = checks.get(step, step)
            spot_check(model, trainable, examples, settings, turn=turn, physical_batch=physical_batch)
        if watch:
            watch(seen(model, examples, norms, step=step + 1, clip=settings.clip))
        noisy = add_gaussian(total, noise_multiplier=noise_multiplier, clip=settings.clip, source=source)
        for name, parameter in trainable.items():
            parameter.grad = (noisy[name] / expected_batch).to(parameter.dtype)
        optimiser.step()
        rate.step()
        for average in averages.values():
            average.update_parameters(model)
        progress(step + 1, settings.steps)
    if keep:
        for decay in settings.averages:
            keep(decay, merged(averages[further(decay)].module))
    return merged(averages[DRAWN_FROM].module)


def further(decay: float) -> str:
    """What a further moving average is called in the state of a training."""
    return f"average-{decay!r}"
