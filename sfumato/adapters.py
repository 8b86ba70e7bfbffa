"""Many members of an ensemble at once: small heads behind one frozen public network, which runs once for all of them.

A member is a hidden layer and an output on the features that the public network has before its own last layer, with a scale and a shift of
the hidden layer for each private class; it predicts by how much the noise differs from what the public network predicts of no
class. HeadStack of many members are stacked, so that training and asking them are a few large products in place of a loop.

Members stay apart: every number of a head, its gradient and its state in the optimiser belong to one member, each member's examples
and their noise are drawn from its own shard by a generator of its own, and all they share is public and frozen. So one record
changes one member, and a member is the same whether it is trained alone or among a thousand.

Not covered: members whose whole network learns (`sfumato.training.denoiser_training`); images of other sides than the head was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.config import Pretraining
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import NoiseSchedule, add_noise, training_times
from sfumato.networks.layers import rows_of
from sfumato.progress import Progress, silent
from sfumato.training import train

POSITIONS = 8
"""Largest side of a feature map that heads see; larger ones are averaged over as many cells a side."""
TRAINED_AT_ONCE = 64
"""Members that are trained together; more take more memory and no less time."""
NUMBERS_AT_ONCE = 2**22
"""Numbers of the predictions that exist at the same time."""
LARGEST_WEIGHT = 50.0
"""Errors of the noise weigh 1 / alpha_bar, as much as errors of the velocity (Salimans and Ho 2022), but no more than this."""
APART = 10_007
"""Between the seeds of two members."""


class Trunk:
    """A frozen public network that also gives the input of its last linear or convolutional layer."""

    def __init__(self, public: nn.Module):
        self.public = public
        self.last = [m for m in public.modules() if isinstance(m, nn.Linear | nn.Conv2d)][-1]

    def __call__(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The noise `[b, c, h, w]` that it predicts in x `[b, c, h, w]` at times t `[b]` of no class, and features `[b, f]` of it."""
        seen: list[Tensor] = []
        hook = self.last.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        try:
            noise = self.public(x, t, torch.full_like(t, NO_CLASS))
        finally:
            hook.remove()
        return noise, flat(seen[-1])


def flat(features: Tensor) -> Tensor:
    """Features `[b, f]`, maps `[b, c, h, w]` or tokens `[b, n, d]` as `[b, numbers]`; of a map at most `POSITIONS` cells a side."""
    if features.dim() == len("bchw") and max(features.shape[2:]) > POSITIONS:
        rows, columns = (min(side, POSITIONS) for side in features.shape[2:])
        features = F.adaptive_avg_pool2d(features, (rows, columns))
    return features.flatten(1)


class HeadStack(nn.Module):
    """`count` heads on features `[f]`, each its own weights; together they are the members of an ensemble.

    Outputs are zero until they learn, so that a member without records is the public network. `known` `[count, classes]` is 1 for each
    class of which a member has a record.
    """

    def __init__(
        self, count: int, features: int, shape: tuple[int, int, int], classes: int, width: int, *, seed: int = 0
    ):
        """`width` numbers in the hidden layer of each; all begin alike, by the seed.

        Many parameters: each is a size of the heads.
        """
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        first = torch.randn(features, width, generator=generator) / features**0.5
        self.down = nn.Parameter(first.repeat(count, 1, 1))
        self.rows = nn.Parameter(torch.zeros(count, classes, 2 * width))
        self.up = nn.Parameter(torch.zeros(count, width, shape[0] * shape[1] * shape[2]))
        self.known: Tensor
        self.register_buffer("known", torch.zeros(count, classes))

    @property
    def count(self) -> int:
        """The number of members."""
        return len(self.down)

    def forward(self, features: Tensor, y: Tensor) -> Tensor:
        """For features `[k, b, f]` and classes y `[k, b]`, each member's own, what they put out: `[k, b, c, h, w]`; negative classes read
        the mean row."""
        return self.answers(torch.bmm(features, self.down), self.of_classes(y))

    def outputs(self, features: Tensor, y: Tensor, guidance: float, part: slice) -> Tensor:
        """What the members of `part` put out for the same features `[b, f]` and classes y `[b]`, guided: `[m, b, c, h, w]`."""
        down = self.down[part]
        hidden = (features @ down.transpose(0, 1).flatten(1)).unflatten(1, (len(down), -1)).transpose(0, 1)
        wanted = self.answers(hidden, self.of_classes(y.expand(len(down), -1), part), part)
        if not guidance:
            return wanted
        null = self.answers(hidden, self.of_classes(torch.full_like(y, NO_CLASS).expand(len(down), -1), part), part)
        return (1 + guidance) * wanted - guidance * null

    def of_classes(self, y: Tensor, part: slice = slice(None)) -> Tensor:
        """Scales and shifts `[k, b, 2 width]` of classes y `[k, b]`."""
        conditions: Tensor = torch.vmap(rows_of)(self.rows[part], y)
        return conditions

    def answers(self, hidden: Tensor, condition: Tensor, part: slice = slice(None)) -> Tensor:
        """From hidden numbers `[k, b, width]` and scales with shifts `[k, b, 2 width]` to outputs `[k, b, c, h, w]`."""
        scale, shift = condition.chunk(2, 2)
        out: Tensor = torch.bmm(F.silu(hidden * (1 + scale) + shift), self.up[part])
        return out.view(*out.shape[:2], *self.shape)


Shard = tuple[Tensor, Tensor]
"""The records `[n, c, h, w]` of one member, and their classes `[n]`."""


def deviations(
    heads: HeadStack, features: Tensor, y: Tensor, guidance: float, *, abstain: bool = False
) -> Iterator[Tensor]:
    """By how much members' noise differs from the public one, over the root of the signal level: `[m, b, c, h, w]` of some members at a time, for
    features `[b, f]` of the trunk and classes y `[b]`; guided as by `sfumato.diffusion.samplers.guided`. With `abstain` a member says nothing
    of a class that it has no record of.
    """
    each = max(1, NUMBERS_AT_ONCE // max(1, len(y) * heads.up.shape[2]))
    for first in range(0, heads.count, each):
        part = slice(first, first + each)
        out = heads.outputs(features, y, guidance, part)
        yield out * heads.known[part][:, y].view(*out.shape[:2], 1, 1, 1) if abstain else out


def heads_for(
    trunk: Trunk, shape: tuple[int, int, int], classes: int, *, count: int, width: int, seed: int = 0
) -> HeadStack:
    """Untrained heads for the features that the trunk gives of images or latents of this shape.

    Many parameters: each is a size of the heads.
    """
    where = next(trunk.public.parameters()).device
    with torch.no_grad():
        _, features = trunk(torch.zeros(1, *shape, device=where), torch.ones(1, dtype=torch.long, device=where))
    return HeadStack(count, features.shape[1], shape, classes, width, seed=seed).to(where)


def heads_trained(
    trunk: Trunk,
    schedule: NoiseSchedule,
    shards: Sequence[Shard],
    settings: Pretraining,
    *,
    classes: int,
    width: int,
    seed: int,
    progress: Progress = silent,
) -> HeadStack:
    """A head for each shard, trained on it alone to predict the noise; a head of an empty shard stays as it begins.

    `TRAINED_AT_ONCE` members are trained together. Each draws its examples, with replacement, from its own shard.

    Many parameters: data, the settings of the training, and what shows or interrupts it.
    """
    trained: list[HeadStack] = []
    for first in range(0, len(shards), TRAINED_AT_ONCE):
        part = shards[first : first + TRAINED_AT_ONCE]
        examples = Feed(schedule, part, settings, [seed + APART * (first + place) for place in range(len(part))])
        channels, height, width_of_image = part[0][0].shape[1:]
        heads = heads_for(trunk, (channels, height, width_of_image), classes, count=len(part), width=width, seed=seed)

        def show(done: int, steps: int, before: int = first, now: int = len(part)) -> None:
            progress(before * steps + now * done, len(shards) * steps)

        averaged, _ = train(
            heads,
            loss_of(heads, trunk, schedule, examples),
            steps=settings.steps,
            learning_rate=settings.learning_rate,
            warm_up=settings.warm_up,
            final_rate=settings.final_rate,
            ema_decay=settings.ema_decay,
            weight_decay=settings.weight_decay,
            progress=show,
        )
        averaged.known = torch.stack([classes_in(y, classes) for _, y in part])
        trained.append(averaged)
    return joined(trained)


def classes_in(y: Tensor, classes: int) -> Tensor:
    """1 for each class that is among y `[n]`, else 0: `[classes]`."""
    return (torch.bincount(y, minlength=classes) > 0).float()


def joined(parts: Sequence[HeadStack]) -> HeadStack:
    """One stack, frozen, of the members of several."""
    whole = parts[0]
    for name, parameter in list(whole.named_parameters()):
        stacked = torch.cat([part.get_parameter(name).detach() for part in parts])
        setattr(whole, name, nn.Parameter(stacked, requires_grad=False))
        del parameter
    whole.known = torch.cat([part.known for part in parts])
    return whole.eval()


class Feed:
    """Noised examples of all shards, a batch at a time, each shard's by a generator of its own."""

    def __init__(self, schedule: NoiseSchedule, shards: Sequence[Shard], settings: Pretraining, seeds: Sequence[int]):
        self.schedule, self.shards, self.settings = schedule, shards, settings
        self.generators = [
            torch.Generator(x.device).manual_seed(seed) for (x, _), seed in zip(shards, seeds, strict=True)
        ]
        self.filled = torch.tensor([float(len(x) > 0) for x, _ in shards], device=shards[0][0].device)
        """`[k]`, 1 for each shard with records."""

    def __call__(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Noised records `[k, b, c, h, w]`, times `[k, b]`, classes `[k, b]`, of which some are dropped, and the noise."""
        drawn = [
            self._of_shard(shard, generator) for shard, generator in zip(self.shards, self.generators, strict=True)
        ]
        x, t, y, noise = (torch.stack(part) for part in zip(*drawn, strict=True))
        noised = add_noise(self.schedule, x.flatten(0, 1), t.flatten(), noise.flatten(0, 1))
        return noised.view_as(x), t, y, noise

    def _of_shard(self, shard: Shard, generator: torch.Generator) -> tuple[Tensor, ...]:
        (records, classes), many = shard, self.settings.batch
        device = records.device
        places = torch.rand(many, generator=generator, device=device)
        dropped = torch.rand(many, generator=generator, device=device) < self.settings.label_dropout
        t = training_times(self.schedule, many, 1, self.schedule.timesteps, generator, device)
        noise = torch.randn(many, *records.shape[1:], generator=generator, device=device)
        if not len(records):
            return torch.zeros_like(noise), t, torch.full_like(t, NO_CLASS), noise
        index = (places * len(records)).long().clamp(max=len(records) - 1)
        return records[index], t, classes[index].masked_fill(dropped, NO_CLASS), noise


def loss_of(heads: HeadStack, trunk: Trunk, schedule: NoiseSchedule, feed: Feed) -> Callable[[], Tensor]:
    """The loss of a step: the sum over members of the mean squared error of each one's predicted noise, weighed by `LARGEST_WEIGHT`.

    A head learns its part of the noise over the root of the signal level, which has the scale of data at every time. The loss, `[]`, is a sum,
    so that each member's gradient is that of its own. An empty shard adds nothing.
    """

    def loss_of_step() -> Tensor:
        x, t, y, noise = feed()
        with torch.no_grad():
            public, features = trunk(x.flatten(0, 1), t.flatten())
        signal = schedule.signal(t.flatten()).unflatten(0, t.shape)
        predicted = public.view_as(noise) + signal * heads(features.unflatten(0, t.shape), y)
        weights = 1 / signal.square().clamp(min=1 / LARGEST_WEIGHT)
        each: Tensor = (weights * (predicted - noise).square()).flatten(1).mean(1)
        return (each * feed.filled).sum()

    return loss_of_step
