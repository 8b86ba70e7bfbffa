"""Data-parallel DP-SGD: several processes, each with a part of the records, one sum and one noise.

Every record, or group where records have groups, belongs to one process. At each step the first process sends its weights; every
process samples its own records at the sample rate and sums their clipped gradients; the first process adds these sums, adds
noise and updates the weights. So it alone holds the optimiser, the moving average and the checkpoints, and can resume with
any number of other processes.

Promise: the sum before noise is the one that a single process with all records would have. Each record takes part with the
same probability, independently of all others, whichever process samples it, and moves the sum by at most `clip`. The price is
therefore the same `SubsampledGaussian`. The noise is drawn once, from the system's entropy, in the first process, which it
never leaves.

Not covered: sums without noise, and the weights, travel between the processes as they are (gloo has no encryption), so
these belong on one machine or in a closed network; a process that dies ends the training at all of them (`Parted`).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

# Before a group exists: this module binds the present group as a default argument of its functions. Imported later, by an
# optimiser, it would keep the group's threads alive beyond `leave`, and one that outlives the interpreter aborts the process.
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sfumato.config import FineTuning
from sfumato.diffusion.objective import Corrupt
from sfumato.networks.low_rank import adapted
from sfumato.privacy.engine.arithmetic import exact_products
from sfumato.privacy.engine.clipping import Gradients
from sfumato.privacy.engine.dp_sgd import fitting_sum, poisson_sample, trainable_parameters
from sfumato.privacy.engine.spot_check import checked_steps, spot_check
from sfumato.privacy.noise import Source
from sfumato.privacy.units import Units, single_records, unit_examples

PATIENCE = 336
"""How long a process waits for the first one instead of torch's default of half an hour: a week, since public stages come first."""
FIRST = 0
"""Rank of the process that adds the noise."""


class Parted(RuntimeError):
    """Another process of the training has ended, and with it the training."""


@dataclass(frozen=True)
class Team:
    """The processes of a training, as one of them sees them."""

    rank: int
    """Number of this process, from 0."""
    size: int

    @property
    def part(self) -> slice:
        """The units (records or whole groups), in their order, that this process samples."""
        return slice(self.rank, None, self.size)

    def tell(self, text: str = "") -> str:
        """Send a text from the first process to all; each returns it."""
        data = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8)
        length = torch.tensor([len(text.encode())])
        _show(length)
        data = data if self.rank == FIRST else torch.empty(max(1, int(length)), dtype=torch.uint8)
        _show(data)
        return bytes(data[: int(length)].tolist()).decode()

    @torch.no_grad()
    def begin(self, model: nn.Module) -> None:
        """Give every process the first one's parameters and buffers."""
        for value in model.state_dict().values():
            shown = value.detach().cpu().contiguous()
            _show(shown)
            value.copy_(shown)

    def lead(self, trainable: Mapping[str, nn.Parameter]) -> None:
        """As the first process: another step, from these weights."""
        self._go_on(True)
        _show(parameters_to_vector(trainable.values()).detach().cpu())

    @torch.no_grad()
    def follow(self, trainable: Mapping[str, nn.Parameter]) -> bool:
        """As another process: wait for the next step and take its weights; False where there is none."""
        if not self._go_on(True):
            return False
        weights = parameters_to_vector(trainable.values()).cpu()
        _show(weights)
        vector_to_parameters(weights.to(next(iter(trainable.values())).device), trainable.values())
        return True

    def dismiss(self) -> None:
        """As the first process: end the training. Silent where the others are gone."""
        with contextlib.suppress(RuntimeError):
            self._go_on(False)

    def farewell(self) -> None:
        """As the first process: end the work. Silent where the others are gone."""
        with contextlib.suppress(RuntimeError):
            self.tell()

    def total(self, own: Gradients) -> Gradients:
        """In the first process the sum over all of them, each gradient of its parameter's shape `[...]`; meaningless in the others."""
        flat = torch.cat([value.flatten() for value in own.values()]).cpu()
        _meet(dist.reduce, flat)
        parts = flat.split([value.numel() for value in own.values()])
        return {name: part.view_as(own[name]).to(own[name].device) for name, part in zip(own, parts, strict=True)}

    def _go_on(self, more: bool) -> bool:
        flag = torch.tensor([int(more)])
        _show(flag)
        return bool(flag)


def _show(values: Tensor) -> None:
    _meet(dist.broadcast, values)


def _meet(exchange: Callable[[Tensor, int], object], values: Tensor) -> None:
    """Exchange values with the first process, or as the first with all."""
    with _all_there():
        exchange(values, FIRST)


@contextlib.contextmanager
def _all_there() -> Iterator[None]:
    """`Parted` where another process is gone."""
    try:
        yield
    except RuntimeError as error:
        raise Parted(
            "another process that torchrun started has ended, so this one ends too: finished stages are kept, and the same "
            "command goes on from the last saved state"
        ) from error


def join(rank: int, size: int) -> Team:
    """Meet the other processes that torchrun started; `Parted` where one of them ended before all had met."""
    with _all_there():
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=PATIENCE * default_pg_timeout)
    return Team(rank, size)


def leave() -> None:
    """Part from them."""
    if dist.is_initialized():
        dist.destroy_process_group()


@exact_products()
def help_training(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    corrupt: Corrupt,
    settings: FineTuning,
    *,
    source: Source,
    pairs: torch.Generator,
    physical_batch: int,
    team: Team,
    units: Units | None = None,
) -> None:
    """Compute clipped sums for the first process's `train_privately` with this process's records x `[n, c, h, w]`, y `[n]`.

    `model`, `corrupt` and `settings` equal those of the first process; `source` samples records and `pairs` noises them, and both
    belong to this process alone. `units` are the units of its records, as in `train_privately`.

    Many parameters: each is a parameter of `train_privately`, by the same name.
    """
    units = single_records(len(x), x.device) if units is None else units
    if settings.rank:
        model = adapted(model, settings.trainable, settings.rank, pairs)
    trainable = trainable_parameters(model, settings.trainable)
    team.begin(model)
    checks, step = checked_steps(settings.steps, settings.checked), 0
    while team.follow(trainable):
        index = poisson_sample(len(units), settings.sample_rate, source).to(x.device)
        examples = unit_examples(units, index, x, y, corrupt, source, pairs)
        total, physical_batch = fitting_sum(model, trainable, examples, settings, physical_batch)
        if step in checks:  # its own count: after a stop, too, its first step is looked at
            spot_check(model, trainable, examples, settings, turn=checks[step], physical_batch=physical_batch)
        team.total(total)
        step += 1
