"""Spot checks of some training steps: does a record's part of the sum depend on the records beside it?

The survey (`sfumato.privacy.engine.validation`) runs made-up images before any record is used. It would miss a network that keeps
those apart and mixes real records, which no clipping bounds. So in a share of the steps, spread evenly over a training and
known beforehand, one record of the batch is computed several times: beside its own batch and beside others at the same
places (with the same dropout masks), and, with dropout off, in its batch, among nine and alone. Its part of the clipped sum
must be the same each time but for rounding, and the network must keep no state between two passes.

All this happens before the step's noise is drawn. The outcome can only stop the training: that it stopped is the one bit that
leaves. The choice of steps and of places in the batch depends on no record. Not covered: a network that mixes records in other
steps or at other places only.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.config import FineTuning
from sfumato.diffusion.objective import Examples
from sfumato.errors import BadInput
from sfumato.networks.denoiser import groups_of
from sfumato.privacy.engine.capture import Unknown
from sfumato.privacy.engine.clipping import add_clipped
from sfumato.privacy.engine.folded import weigh_records
from sfumato.privacy.engine.layers import Matrix, Saved
from sfumato.privacy.engine.norms import fine
from sfumato.privacy.engine.repeating import Quiet, changed, put_back, same_luck, snapshot, unnoticed

LEAST_CHECKS = 5
"""Smallest number of steps that are checked, however short the training."""
AMONG = 9
"""Size of the smaller batch."""
EQUAL = 1e-4
"""Largest distance, in units of the clip, between two sums that count as the same."""
TURN = (math.sqrt(5) - 1) / 2
"""Distance of the checked places as a share of a batch, chosen so that they spread over it evenly."""


def checked_steps(steps: int, share: float) -> dict[int, int]:
    """Checked steps, from 0, -> number of checks before: a share of all steps, at least `LEAST_CHECKS`, spread evenly from the first on."""
    count = min(steps, max(LEAST_CHECKS, math.ceil(share * steps)))
    return {turn * steps // count: turn for turn in range(count)}


def spot_check(
    model: nn.Module,
    trainable: Mapping[str, Tensor],
    examples: Examples,
    settings: FineTuning,
    *,
    turn: int,
    physical_batch: int,
) -> None:
    """`BadInput` where the network mixes or remembers the b records of this batch; `turn`, 0 for the first check, chooses the record to check.

    `physical_batch` is the number of records that a pass takes at once: the record is checked among those of its own pass.
    """
    records = len(examples.y)
    if not records:
        return
    place = int(records * (turn * TURN % 1))
    first = place // physical_batch * physical_batch
    looked = _Looked(examples.map(lambda field: field[first : first + physical_batch]), place - first)
    device = examples.x_t.device
    with torch.autocast(device.type, enabled=False), unnoticed(device):
        if _mixes(model, trainable, looked, settings):
            # Differences by rounding vanish in double precision; differences by mixing do not.
            if _mixes_exactly(copy.deepcopy(model).double(), trainable, looked, settings):
                raise BadInput(
                    f"the network {type(model).__name__} mixes private records: what one of them adds to a step changed with those "
                    "beside it, which no clipping bounds, so training stopped before that step: use layers that look at one "
                    "record at a time, such as nn.GroupNorm, and keep nothing between calls"
                )


@dataclass(frozen=True)
class _Looked:
    """A batch `[b]` and the place of the record to check."""

    examples: Examples
    place: int

    def finer(self) -> "_Looked":
        """In double precision."""
        return _Looked(
            self.examples.map(lambda field: field.double() if field.is_floating_point() else field), self.place
        )

    def exchanged(self) -> "_Looked":
        """Beside other images at the same places, with times and classes of their neighbours."""
        own = torch.arange(len(self.examples.y), device=self.examples.y.device)
        at = own.clone()
        others = own != self.place
        at[others] = at[others].roll(1)
        moved = self.examples.map(lambda field: field[at])
        apart = others.view(-1, *[1] * (moved.x_t.dim() - 1))
        return _Looked(
            Examples(torch.where(apart, 1 - 2 * moved.x_t, moved.x_t), moved.t, moved.y, moved.target), self.place
        )

    def among(self, size: int) -> "_Looked":
        """With the records that follow it alone, `size` in all."""
        at = (self.place + torch.arange(size, device=self.examples.y.device)) % len(self.examples.y)
        return _Looked(self.examples.map(lambda field: field[at]), 0)


def _mixes(model: nn.Module, trainable: Mapping[str, Tensor], looked: _Looked, settings: FineTuning) -> bool:
    """Whether the record's part of the sum, or what the model holds, depends on the others."""
    device, records = looked.examples.x_t.device, len(looked.examples.y)
    with unnoticed(device) as luck:

        def part(looked: _Looked) -> Tensor:
            put_back(device, luck)
            return contribution(model, trainable, looked.examples, looked.place, settings)

        def differs(one: Tensor, other: Tensor) -> bool:
            return not float((one - other).norm()) <= EQUAL * settings.clip

        try:
            whole = part(looked)
        except Unknown:
            return False  # such a batch is computed record by record, each by itself
        drawn, held = not same_luck(device, luck), snapshot(model)
        try:
            if differs(whole, part(looked.exchanged())) or changed(held, snapshot(model)):
                return True
            with Quiet():
                whole = part(looked) if drawn else whole
                return any(differs(whole, part(looked.among(size))) for size in (AMONG, 1) if size < records)
        except Unknown:
            return True  # it takes another path beside other records


def _mixes_exactly(model: nn.Module, trainable: Mapping[str, Tensor], looked: _Looked, settings: FineTuning) -> bool:
    """The same check in double precision; a network that cannot run in it counts as mixing."""
    parameters = dict(model.named_parameters())
    try:
        return _mixes(model, {name: parameters[name] for name in trainable}, looked.finer(), settings)
    except RuntimeError:
        return True


def contribution(
    model: nn.Module, trainable: Mapping[str, Tensor], examples: Examples, place: int, settings: FineTuning
) -> Tensor:
    """The contribution of the record at `place`, 0 to b - 1, to the clipped sum over b `examples`: all parameters concatenated, `[numbers]`, with an
    l2 norm of at most `settings.clip` up to rounding. Raises `Unknown` for a use of a parameter for which there is no rule."""
    group_of = groups_of(model)
    weighed = weigh_records(model, trainable, examples, choose=_first, group_of=group_of, only=place)
    total = {name: torch.zeros_like(p, dtype=fine(p).dtype) for name, p in trainable.items()}
    add_clipped(
        total,
        weighed,
        clip=settings.clip,
        rule=settings.clipping,
        gamma=settings.clipping_gamma,
        group_of=group_of,
        silent=total,
    )
    return torch.cat([value.flatten() for value in total.values()])


def _first(layer: Matrix, saved: Saved, q: Tensor, records: int) -> str:
    """The way that serves any shape: for one record, time does not matter."""
    return layer.ways(saved, q, records)[0]
