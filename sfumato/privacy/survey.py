"""Looks a model over before any record does: who mixes records is refused by name, who has no rule is named.

A few made-up images, the same for every model, go through a copy of it whose weights were moved a little, so that
layers that begin at zero show what they do. The probe finds layers through which one record's result depends on
another record, layers that remember records in buffers, and parameters that no gradient can reach. Not covered: a
model that behaves otherwise on real images than on made-up ones.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from sfumato.diffusion.objective import Examples, record_losses
from sfumato.errors import BadInput
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.privacy.capture import Capture, Unknown, Use
from sfumato.privacy.layers import Saved

RECORDS, COPIES = 3, 2
"""Made-up records of a probe; the middle one is watched."""
WATCHED = 1
MOVE = 0.1
"""How far the copy's weights are moved."""
CLOSE = 1e-4
"""Relative difference up to which two results count as the same."""
SMALLEST_CLIP = 1e-12
"""Below this, squares of float32 numbers that matter would vanish."""


@dataclass(frozen=True)
class Survey:
    """What is known of a model and its trainable parameters."""

    missing: str
    """Which use of a parameter has no rule, so that gradients are taken record by record; empty if all have."""
    silent: frozenset[str]
    """Trainable parameters that no gradient reaches."""


_known: WeakKeyDictionary[nn.Module, dict[tuple, Survey]] = WeakKeyDictionary()


def survey(model: nn.Module, trainable: Mapping[str, Tensor], shape: tuple[int, ...]) -> Survey:
    """What is known of a model for images of `shape` `[c, h, w]`; `BadInput` where clipping would not be sound."""
    modes = tuple(module.training for module in model.modules())
    key = (tuple(shape), modes, tuple((name, id(parameter)) for name, parameter in trainable.items()))
    found = _known.setdefault(model, {})
    if key not in found:
        refuse_mixers(model, trainable)
        found[key] = _probe(model, tuple(trainable), tuple(shape))
    return found[key]


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
    model = checkpoint_blocks(copy.deepcopy(model), False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = None
            if parameter.is_floating_point():
                parameter.add_(MOVE * wave(parameter, parameter.shape))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    examples = _made_up(shape, like)
    _refuse_mixing(model, examples)
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, buffers[name]):
            raise BadInput(
                f"buffer {name!r} changes when the model is used and would remember private records unprotected: use "
                "layers without running statistics, or .eval()"
            )
    parameters = dict(model.named_parameters())
    return _reached(model, {name: parameters[name] for name in trainable}, examples)


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
        found = torch.autograd.grad(loss, [*capture.leaves, *trainable.values()], allow_unused=True)
        for name, gradient in zip(trainable, found[len(capture.leaves) :], strict=True):
            if gradient is not None:
                return Survey(f"{name} is used in an unknown way", frozenset())
    return Survey(spilled[0] if spilled else "", frozenset(set(trainable) - reached))


def _refuse_mixing(model: nn.Module, examples: Examples) -> None:
    """Compares the watched record's results, layer by layer, among two different sets of other records.

    Layers of dropout are silent meanwhile; results that differ by themselves are passed over.
    """
    heard: list[dict[str, Tensor]] = []
    names = {module: f"layer {name!r} ({type(module).__name__})" for name, module in model.named_modules()}

    def listen(module: nn.Module, _, out) -> None:
        if isinstance(out, Tensor) and out.dim() and len(out) % examples.y.numel() == 0 and len(out):
            heard[-1][f"{len(heard[-1])} {names[module]}"] = out.detach().reshape(RECORDS, -1)[WATCHED]

    handles = [module.register_forward_hook(listen) for module in model.modules()]
    others = examples.x_t.clone()
    for record in range(RECORDS):
        if record != WATCHED:
            others[record] = -2 * others[record] + 1
    dropouts = [module for module in model.modules() if isinstance(module, _DropoutNd) and module.training]
    for dropout in dropouts:
        dropout.eval()
    for x_t in (examples.x_t, examples.x_t, others):
        heard.append({})
        with torch.no_grad():
            model(x_t.flatten(0, 1), examples.t.flatten(), examples.y.flatten())
    for handle in handles:
        handle.remove()
    for dropout in dropouts:
        dropout.train()
    for (name, one), again, other in zip(heard[0].items(), heard[1].values(), heard[2].values(), strict=True):
        if _close(one, again) and not _close(one, other):  # what differs by itself is drawn at random
            raise BadInput(
                f"{name.split(' ', 1)[1]} mixes records: one record's result depends on the others, which no clipping bounds; "
                "use a layer that looks at one record at a time, such as nn.GroupNorm or nn.LayerNorm"
            )


def _close(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().nan_to_num().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True)


def _made_up(shape: tuple[int, ...], like: Tensor) -> Examples:
    count = (RECORDS, COPIES)
    ones = torch.ones(count, dtype=torch.long, device=like.device)
    return Examples(wave(like, (*count, *shape)), ones, 0 * ones, wave(like, (*count, *shape)).flip(0))


def wave(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Numbers between -1 and 1 that look irregular and are the same each time."""
    at = torch.arange(torch.Size(shape).numel(), device=like.device, dtype=torch.float64)
    return (at.square() * 0.37 + at).sin().to(like.dtype).view(shape)
