"""The white-box test: does the mechanism do what the ledger entry says, number by number?

The attacker sees every noisy number that a mechanism releases, knows all records, and looks for one more (Nasr et al. 2023). The
test runs the code that the run used, with and without a made-up image, and compares its output with the entry's noise
multiplier, sample rate and clip by a likelihood ratio over all numbers. That is far sharper than guessing coins, where a
hundred right guesses show an epsilon of 3.5 and no more: a million noise values reveal noise that is 1 % too small.

If it finds no fault: the noise in the output is at least what the entry says, on every tensor, drawn independently in each
step, and normal; a record moves the sum by one clip at most; and records take part no more often than the entry says. A
sound mechanism fails the test with a probability of at most `FALSE_ALARM`.

Promise: no private image is used, and nothing is spent. Not covered: faults that show on other records, sizes or machines
alone; how random the generator is, beyond repeats; noise below the clip's rounding.
"""

import contextlib
import copy
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from scipy import stats
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sfumato.config import FineTuning, Relation
from sfumato.diffusion.objective import Corrupt, Examples
from sfumato.images import to_unit
from sfumato.latents import PIXELS, Codec
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import AnyEvent, SubsampledGaussian
from sfumato.privacy.auditing.canaries import make_canaries
from sfumato.privacy.auditing.findings import FALSE_ALARM, Fit
from sfumato.privacy.engine.dp_sgd import train_privately
from sfumato.privacy.noise import system_generator, system_source
from sfumato.privacy.units import Units

TESTS = 6
"""Number of tests that share that probability: noise in all, in each tensor, repeats, shape, contribution, rate."""
LEVEL = FALSE_ALARM / TESTS
NUMBERS = 1_000_000
"""Smallest number of noise values to examine, within `STEPS`."""
STEPS = (8, 64)
"""Smallest and largest number of noisy steps for that."""
QUIET = 1e-6
"""Noise multiplier at which a sum shows what went into it."""
QUIET_STEPS, TAKING_PART = 8, 32
"""Steps in which participation is counted, and the expected number of records in each."""
ALONE_STEPS = 4
"""Steps with a single record that takes part in each."""
LOUD = 1e4
"""Factor on the targets of a made-up record, so large that its gradient is always clipped."""
SLACK = 2e-3
"""Tolerance of a contribution above the clip, for rounding, which is paid for with the clip."""
FEWEST = 64
"""Smallest number of values by which two tensors are compared."""
MOST = 1e6
"""Largest cost that is reported; larger ones are reported as this."""


def play_training(
    model: nn.Module,
    shape: tuple[int, int, int],
    corrupt: Corrupt,
    settings: FineTuning,
    event: SubsampledGaussian,
    *,
    delta: float,
    relation: Relation = "add_remove",
    physical_batch: int,
    device: torch.device | str = "cpu",
    codec: Codec = PIXELS,
    each: int = 0,
) -> Fit:
    """Run DP-SGD as `event` prices it on `model` with a made-up image of `shape` (c, h, w), and test it against the entry.

    Weights stand still meanwhile (a learning rate of 0). `each`: pictures of a group, where groups are the unit. `BadInput`
    where the engine refuses the model.

    Many parameters: each is what the engine is given, and the entry that prices it.
    """
    canaries_made = make_canaries(2, shape=shape, classes=1)
    image = codec.encode(to_unit(canaries_made.pixels[:1]).to(device))
    label = torch.as_tensor(canaries_made.labels[:1]).to(device)
    lying = _exaggerated(corrupt)
    fixed = lying(image, label, system_generator(device))
    frozen = {"rate_rows": 0.0, "rate_other": 0.0, "warm_up": 0}

    def sums(steps: int, records: int, rate: float, noise: float, examples: Corrupt) -> list[list[Tensor]]:
        """The released sums of each step in units of the clip, tensor by tensor."""
        changes = {**frozen, "steps": steps, "sample_rate": rate}
        x, y, units = _made_up(image, label, records, each)
        with _released() as seen:
            train_privately(
                copy.deepcopy(model).to(device),
                x,
                y,
                examples,
                settings.model_copy(update=changes),
                noise_multiplier=noise,
                source=system_source(),
                pairs=system_generator(device),
                expected_batch=1.0,
                physical_batch=physical_batch,
                units=units,
            )
        return [[value / settings.clip for value in step] for step in seen]

    rate, z = event.sample_rate, event.noise_multiplier
    records = max(1, math.ceil(TAKING_PART / rate))
    alone = max(_length(step) for step in sums(ALONE_STEPS, 1, 1.0, QUIET, lying))
    moved = sum(_length(step) for step in sums(QUIET_STEPS, records, rate, QUIET, _always(fixed)))
    first = sums(1, 0, rate, z, _always(fixed))
    size = sum(value.numel() for value in first[0])
    steps = min(max(STEPS[0], math.ceil(NUMBERS / size)), STEPS[1])
    noise = [[value / z for value in step] for step in first + sums(steps - 1, 0, rate, z, _always(fixed))]
    noisy = noise_faults(noise)
    faults = noisy.faults
    coins = records * QUIET_STEPS
    if alone > 1 + SLACK:
        faults.append(f"one record moved the sum by {alone:.3f} clips")
    if moved * (1 - SLACK) > float(stats.binom.isf(LEVEL, coins, rate)):
        faults.append(
            f"{coins} chances at a rate of {rate:g} moved the sum by {moved:.1f} clips, not {coins * rate:.1f}"
        )
    least = float(stats.beta.ppf(LEVEL, max(1, int(moved)), coins - int(moved) + 1)) if 1 <= moved < coins else rate
    shown = event.model_copy(
        update={"noise_multiplier": z * max(noisy.at_most, 1 / MOST) / max(alone, 1 / MOST), "sample_rate": least}
    )
    return Fit(
        what="DP-SGD",
        numbers=size * steps,
        noise=noisy.deviation,
        noise_at_most=noisy.at_most,
        contribution=alone,
        rate_at_least=least / rate,
        epsilon=cost([shown], delta, relation) if moved else 0.0,
        priced=cost([event], delta, relation),
        delta=delta,
        faults=tuple(faults),
    )


class NoiseTest(NamedTuple):
    """The test of noise that should be standard normal."""

    deviation: float
    at_most: float
    """Upper confidence limit of the deviation."""
    faults: list[str]
    """What is wrong with it, in words."""


def noise_faults(steps: list[list[Tensor]]) -> NoiseTest:
    """The test of noise that should be standard normal: for each step the tensors of that step, `[...]` each.

    The same tensors in each step. The sum of squares of n such numbers is a chi-square with n degrees of freedom.
    """
    tensors = [torch.stack([step[i].flatten().double().cpu() for step in steps]) for i in range(len(steps[0]))]
    faults = []
    squares, count = sum(float(one.square().sum()) for one in tensors), sum(one.numel() for one in tensors)
    at_most = _at_most(squares, count, LEVEL)
    seen = math.sqrt(squares / count)
    if at_most < 1:
        faults.append(f"the noise is at most {at_most:.4f} of what the entry says")
    for place, one in enumerate(tensors):
        limit = _at_most(float(one.square().sum()), one.numel(), LEVEL / len(tensors))
        if limit < 1 <= at_most:
            faults.append(f"the noise on tensor {place} is at most {limit:.4f} of what the entry says")
    faults += _repeats(tensors)
    every = torch.cat([one.flatten() for one in tensors])
    some = every[:: max(1, len(every) // NUMBERS)]
    deviation = float(some.std())
    if deviation and float(stats.kstest((some / deviation).numpy(), "norm").pvalue) < LEVEL:
        faults.append("the noise is not of normal shape")
    return NoiseTest(seen, at_most, faults)


def _repeats(tensors: list[Tensor]) -> list[str]:
    """Noise that comes again in another step, or in another tensor of the same step; `tensors` are `[steps, n]` each."""
    rows = torch.cat(tensors, 1)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1 / MOST)
    alike = (rows @ rows.T).fill_diagonal_(0).abs() * math.sqrt(rows.shape[1])
    pairs = [
        (one[:, :least], other[:, :least])
        for place, one in enumerate(tensors)
        for other in tensors[:place]
        if one.shape[0] * (least := min(one.shape[1], other.shape[1])) >= FEWEST
    ]
    beside = [
        abs(float((one * other).sum() / (one.norm() * other.norm()).clamp(min=1 / MOST))) * math.sqrt(one.numel())
        for one, other in pairs
    ]
    compared = len(rows) * (len(rows) - 1) // 2 + len(pairs)
    limit = float(stats.norm.isf(LEVEL / (2 * max(1, compared)))) * (1 + SLACK)
    faults = []
    if float(alike.max()) > limit:
        faults.append("the noise of one step comes again in another")
    if max(beside, default=0.0) > limit:
        faults.append("the noise of one tensor comes again in another")
    return faults


def _at_most(squares: float, count: int, level: float) -> float:
    """The upper confidence limit of the deviation of `count` normal numbers with this sum of squares."""
    return math.sqrt(squares / float(stats.chi2.ppf(level, count)))


def cost(events: Sequence[AnyEvent], delta: float, relation: Relation) -> float:
    """The price of the events, at most `MOST`."""
    return min(MOST, accountant.epsilon(events, delta, relation))


def _length(step: list[Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in step))


def _exaggerated(corrupt: Corrupt) -> Corrupt:
    """The method's own examples with targets so large that every gradient is clipped."""

    def examples(x: Tensor, y: Tensor, generator: torch.Generator) -> Examples:
        corrupted = corrupt(x, y, generator)
        return Examples(corrupted.x_t, corrupted.t, corrupted.y, LOUD * (corrupted.target + 1))

    return examples


def _always(example: Examples) -> Corrupt:
    """The same example for every record, so that all have the same gradient."""

    def examples(x: Tensor, y: Tensor, generator: torch.Generator) -> Examples:
        return example.map(lambda part: part.expand(len(x), *part.shape[1:]))

    return examples


def _made_up(image: Tensor, label: Tensor, records: int, each: int) -> tuple[Tensor, Tensor, Units | None]:
    """A number of records, or of groups of `each` where that is not 0, all of one picture."""
    count = records * max(1, each)
    x, y = image.expand(count, *image.shape[1:]), label.expand(count)
    if not each:
        return x, y, None
    first = torch.arange(records, device=image.device) * each
    order = torch.arange(count, device=image.device)
    return x, y, Units(order, first, torch.full_like(first, each), each)


@contextlib.contextmanager
def _released() -> Iterator[list[list[Tensor]]]:
    """The gradients of this thread's optimiser at each step, tensor by tensor: all that leaves a private sum."""
    seen: list[list[Tensor]] = []
    here = threading.get_ident()

    def note(optimiser: torch.optim.Optimizer, *_: Any) -> None:
        if threading.get_ident() == here:
            seen.append([p.grad.detach().clone() for group in optimiser.param_groups for p in group["params"]])

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()
