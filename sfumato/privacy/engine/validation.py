"""Validates a model before it sees a record: a model that mixes records is refused by name, a layer without a rule is named.

A few made-up images, the same for every model, go through a copy of it with slightly perturbed weights, so that layers
initialised at zero take effect. Times, classes and the number of images vary, and the same dropout masks are drawn every
time, so that two passes differ in the other images alone. The probe finds layers through which one record's result depends
on another record or on the number of records, state that a model carries from one pass to the next, and parameters that no
gradient can reach. Not covered: a model that behaves differently on real images, for which training checks some of its own
steps (`sfumato.privacy.engine.spot_check`).
"""

import bisect
import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sfumato.diffusion.objective import Examples, record_losses
from sfumato.errors import BadInput
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.privacy.engine.capture import Capture, Unknown, Use
from sfumato.privacy.engine.layers import Saved
from sfumato.privacy.engine.repeating import Quiet, changed, put_back, same_luck, snapshot, unnoticed

RECORDS, COPIES = 3, 2
"""Made-up records of the probe for gradients; the middle one is watched."""
CROWDS = (13, 37)
"""Numbers of made-up images of the probe for mixing, of which the first with room for all classes is used; primes, because no other
axis of a tensor is likely to be as long."""
FEW = 9
"""A smaller batch, in which each image must give the same result."""
ALONE = 3
"""Number of images that also go through by themselves."""
TIMES = (1000, 250, 50, 10, 1)
"""Largest diffusion times, tried in turn until the model accepts one."""
STEPS_OF_TIME = 7
"""Number of different times among the images, evenly spread by ratio."""
WATCHED = 1
MOVE = 0.1
"""Size of the perturbation of the copy's weights."""
CLOSE = 1e-4
"""Relative difference up to which two results count as the same."""
ROUNDING = 1e-3
"""Relative difference up to which float64 decides: a layer that divides by a small deviation enlarges the rounding of float32, which differs with
the number of images on some processors."""
CURVE = 0.37
"""Growth of the frequency of the made-up numbers from one to the next: no fraction of a turn, so that they never repeat."""
SMALLEST_CLIP = 1e-12
"""Below this, squares of float32 numbers that matter would vanish."""


@dataclass(frozen=True)
class Survey:
    """Result of the validation of a model and its trainable parameters."""

    missing: str
    """The use of a parameter that has no rule, so that gradients are computed record by record; empty if all have one."""
    silent: frozenset[str]
    """Trainable parameters that no gradient reaches."""


_known: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], Survey]] = WeakKeyDictionary()


def survey(model: nn.Module, trainable: Mapping[str, Tensor], shape: tuple[int, ...]) -> Survey:
    """Validate a model for images of `shape` `[c, h, w]`; `BadInput` where clipping would not be sound."""
    modes = tuple(module.training for module in model.modules())
    key = (tuple(shape), modes, tuple((name, id(parameter)) for name, parameter in trainable.items()))
    surveys = _known.setdefault(model, {})
    if key not in surveys:
        refuse_mixers(model, trainable)
        surveys[key] = _probe(model, tuple(trainable), tuple(shape))
    return surveys[key]


def refuse_clip(clip: float) -> None:
    """`BadInput` for a clip that bounds nothing."""
    if not SMALLEST_CLIP <= clip < float("inf"):
        raise BadInput(
            f"fine_tuning.clip={clip:g} cannot bound a record in float32: use a number from {SMALLEST_CLIP:g} up, such "
            "as the median norm of gradients on public images"
        )


def refuse_mixers(model: nn.Module, trainable: Mapping[str, Tensor]) -> None:
    """`BadInput` for layers that are known to mix records or to remember them, and for packed projections."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise BadInput(
                f"layer {name!r} ({kind}) normalises over the batch, so that one record's gradient depends on the "
                f"others: use nn.GroupNorm, or freeze its statistics with .eval()"
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
            raise BadInput(
                f"layer {name!r} ({kind}) keeps running statistics of private records: use track_running_stats=False, "
                "or nn.GroupNorm"
            )
        learnt = [f"{name}.{own}".strip(".") in trainable for own, _ in module.named_parameters()]
        if isinstance(module, nn.MultiheadAttention) and any(learnt):
            raise BadInput(
                f"layer {name!r} ({kind}) packs its projections into one parameter: use an nn.Linear for each of query, key "
                "and value (or one of three times the width) with scaled_dot_product_attention, or freeze it"
            )


def _probe(model: nn.Module, trainable: tuple[str, ...], shape: tuple[int, ...]) -> Survey:
    # On the CPU, where a class or a time that the model does not know is an error that can be caught.
    model = checkpoint_blocks(copy.deepcopy(model).cpu(), False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = None
            if parameter.is_floating_point():
                parameter.add_(MOVE * wave(parameter, parameter.shape))
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    fresh, untouched = copy.deepcopy(model), copy.deepcopy(model)
    with torch.autocast("cpu", enabled=False), unnoticed(like.device):
        crowd = _crowd(copy.deepcopy(model), shape, like)
        try:
            _refuse_mixing(model, fresh, crowd)
        except BadInput:
            if not _is_rounding(untouched, crowd):
                raise
        parameters = dict(model.named_parameters())
        return _reached(model, {name: parameters[name] for name in trainable}, _made_up(shape, like))


def _reached(model: nn.Module, trainable: Mapping[str, Tensor], examples: Examples) -> Survey:
    reached: set[str] = set()
    spilled: list[str] = []

    def take(use: Use, saved: Saved, q: Tensor) -> None:
        reached.update(use.names)
        each = q.reshape(RECORDS, -1)
        if any(each[record].any() for record in range(RECORDS) if record != WATCHED):
            spilled.append(f"{use.names[0]} meets an input whose first axis is not that of the batch")

    try:
        with Capture(trainable, examples.y.numel(), take) as capture:
            loss = record_losses(model, examples)[WATCHED]
    except Unknown as unknown:
        return Survey(str(unknown), frozenset())
    if loss.requires_grad:
        gradients = torch.autograd.grad(loss, [*capture.leaves, *trainable.values()], allow_unused=True)
        for name, gradient in zip(trainable, gradients[len(capture.leaves) :], strict=True):
            if gradient is not None:
                return Survey(f"{name} is used in an unknown way", frozenset())
    return Survey(spilled[0] if spilled else "", frozenset(set(trainable) - reached))


Crowd = tuple[Tensor, Tensor, Tensor]
"""Made-up images `[n, c, h, w]`, times `[n]` and classes `[n]`."""


def _is_rounding(untouched: nn.Module, crowd: Crowd) -> bool:
    """Whether what made a model refused is small, and gone in float64; a model that cannot compute in float64 stays refused."""
    (x, t, y), precise = crowd, copy.deepcopy(untouched).double()
    try:
        _refuse_mixing(copy.deepcopy(untouched), untouched, crowd, close=ROUNDING)
        _refuse_mixing(copy.deepcopy(precise), precise, (x.double(), t, y))
    except (BadInput, RuntimeError, TypeError):
        return False
    return True


def _refuse_mixing(model: nn.Module, fresh: nn.Module, crowd: Crowd, close: float = CLOSE) -> None:
    """Compare every image's results, layer by layer, in batches of different images and of different sizes.

    `fresh` is the same model, not used before; `close` the relative difference up to which results count as the same.
    """
    everyone = torch.arange(len(crowd[1]))
    device = everyone.device
    with unnoticed(device) as luck:

        def results(rows: Tensor, fixed: Tensor, model: nn.Module = model) -> dict[str, Tensor]:
            """Layer -> results of the images at `rows`; all but those at `fixed` are exchanged for others."""
            put_back(device, luck)
            others = torch.ones_like(everyone, dtype=torch.bool).index_fill(0, fixed, False)
            x, t, y = _exchanged(crowd, others)
            return _results(model, (x[rows], t[rows], y[rows]))

        whole = results(everyone, everyone)
        drawn = not same_luck(device, luck)
        _refuse_unequal(whole, results(everyone, everyone), everyone, everyone, AGAIN, close)
        results(everyone, everyone[:0], fresh)
        _refuse_memory(snapshot(model), snapshot(fresh))
        before = snapshot(model)
        for half in (everyone[::2], everyone[1::2]):
            _refuse_unequal(whole, results(everyone, half), half, half, MIXES, close)
        _refuse_memory(before, snapshot(model))
        with Quiet():
            if drawn:
                whole = results(everyone, everyone)
                if not same_luck(device, luck):
                    raise BadInput(
                        f"{type(model).__name__} draws at random by other means than dropout, so that nobody can tell "
                        "whether it mixes records: use nn.Dropout, or draw nothing"
                    )
            few = [torch.arange(at, at + FEW) % len(everyone) for at in range(0, len(everyone), FEW)]
            for rows in (*few, *everyone[:ALONE].split(1)):
                fewer: dict[str, Tensor] = {}
                with contextlib.suppress(ValueError):  # torch's of a single image whose groups have one value each
                    fewer = results(rows, everyone)
                _refuse_unequal(whole, fewer, rows, torch.arange(len(rows)), MIXES, close)


AGAIN = (
    "{layer} gives another result for the same images: what it draws or remembers between calls could hold private records; use "
    "nn.Dropout for chance, and keep nothing"
)
MIXES = (
    "{layer} mixes records: one record's result depends on the others, which no clipping bounds; use a layer that looks at one "
    "record at a time, such as nn.GroupNorm or nn.LayerNorm"
)


def _refuse_memory(before: Mapping[str, object], after: Mapping[str, object]) -> None:
    if name := changed(before, after):
        raise BadInput(
            f"buffer or attribute {name!r} changes when the model is used and would remember private records unprotected: use "
            "layers without running statistics, or .eval(), and keep nothing between calls"
        )


def _results(model: nn.Module, crowd: Crowd) -> dict[str, Tensor]:
    """Layer, in the order of the calls -> its output for each image, `[n, ...]`; layers with other outputs are left out."""
    results: dict[str, Tensor] = {}
    names = {module: f"layer {name!r} ({type(module).__name__})" for name, module in model.named_modules()}

    def note(name: str, part: object) -> None:
        if isinstance(part, Tensor) and part.dim() and len(part) and len(part) % len(crowd[1]) == 0:
            results[f"{len(results)} {name}"] = part.detach().clone().reshape(len(crowd[1]), -1)

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        note(f"{type(model).__name__}, before {names[module]},", inputs[0] if inputs else None)

    def after(module: nn.Module, _: Any, out: Any) -> None:
        note(names[module], out)

    handles = [module.register_forward_pre_hook(before) for module in model.modules()]
    handles += [module.register_forward_hook(after) for module in model.modules()]
    try:
        with torch.no_grad():
            model(*crowd)
    finally:
        for handle in handles:
            handle.remove()
    return results


def _refuse_unequal(
    one: dict[str, Tensor], other: dict[str, Tensor], rows: Tensor, there: Tensor, message: str, close: float
) -> None:
    """`BadInput` where the results of the images at `rows` of one pass are not those at `there` of another."""
    for name in one:
        if name in other and one[name].shape[1:] == other[name].shape[1:]:
            if not _close(one[name][rows], other[name][there], close):
                raise BadInput(message.format(layer=name.split(" ", 1)[1]))


def _exchanged(crowd: Crowd, others: Tensor) -> Crowd:
    """Other images, with the times and classes of their neighbours, where `others` `[n]` says so."""
    x, t, y = crowd
    at = torch.arange(len(t))
    at[others] = at[others].roll(1)
    return torch.where(others.view(-1, *[1] * (x.dim() - 1)), 1 - 2 * x, x), t[at], y[at]


def _crowd(model: nn.Module, shape: tuple[int, ...], like: Tensor) -> Crowd:
    """A batch large enough for the probe, with different times and classes, all of which the model accepts."""

    def takes(t: int, y: int) -> bool:
        try:
            with torch.no_grad():
                model(wave(like, (2, *shape)), torch.tensor([t, t]), torch.tensor([y, y]))
        except (IndexError, RuntimeError):
            return False
        return True

    latest = next((t for t in TIMES if takes(t, 0)), 1)
    classes = bisect.bisect_left(range(1, CROWDS[-1]), True, key=lambda y: not takes(1, y)) + 1
    count = next(count for count in CROWDS if classes <= count)
    at = torch.arange(count)
    t = (latest ** ((at % STEPS_OF_TIME) / (STEPS_OF_TIME - 1))).round().long()
    return wave(like, (count, *shape)), t, at % classes


def _close(one: Tensor, other: Tensor, close: float) -> bool:
    if torch.equal(one, other):  # most of them, and in a fifth of the time
        return True
    scale = float(one.abs().nan_to_num().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=close, atol=close * scale, equal_nan=True)


def _made_up(shape: tuple[int, ...], like: Tensor) -> Examples:
    count = (RECORDS, COPIES)
    ones = torch.ones(count, dtype=torch.long, device=like.device)
    return Examples(wave(like, (*count, *shape)), ones, 0 * ones, wave(like, (*count, *shape)).flip(0))


def wave(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Irregular numbers `[*shape]` between -1 and 1, the same each time, of the type and device of `like`."""
    at = torch.arange(torch.Size(shape).numel(), device=like.device, dtype=torch.float64)
    return (at.square() * CURVE + at).sin().to(like.dtype).view(shape)
