"""Computes every record's norm from one forward and one backward pass over all copies of all records.

The K copies of a record are folded into its positions, so that the gradient of their mean costs no more than theirs.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from sfumato.diffusion.objective import Examples, record_losses
from sfumato.networks.checkpointing import is_checkpointed, recomputing_under
from sfumato.privacy.engine.autotune import Choose
from sfumato.privacy.engine.capture import Capture, Use
from sfumato.privacy.engine.layers import Affine, Saved
from sfumato.privacy.engine.norms import Weighed, chosen, fine, weigh, weigh_gradients

SMALL = 16_384
"""Gradients of up to this many numbers are concatenated with others, since work per tensor costs more than a copy."""
Bundles = dict[tuple[str, ...], Weighed]
"""Names -> what is known of their gradients, laid one after the other where there are several names."""


def weigh_records(
    model: nn.Module,
    trainable: Mapping[str, Tensor],
    examples: Examples,
    *,
    choose: Choose,
    group_of: Callable[[str], str],
    only: int | None = None,
) -> Bundles:
    """Norms `[b]` and sums of the b records of `examples`, or `[1]` of the one at `only`, by parameter; those that no gradient reached are missing.

    Only names of one group share a bundle. Raises `Unknown` for a use of a parameter for which there is no rule.
    """
    records = len(examples.y) if only is None else 1
    place = torch.tensor([0 if only is None else only], device=examples.y.device)
    weighed: Bundles = {}
    summed: dict[str, Tensor] = {}

    def add(name: str, rows: Tensor) -> None:
        summed[name] = summed[name] + rows if name in summed else rows

    def take(use: Use, saved: Saved, gradient: Tensor) -> None:
        device = gradient.device.type
        # Entering a context costs as much as a small layer, so only where there is something to switch off.
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            if only is not None:
                saved, gradient = chosen(saved, gradient, place, len(examples.y))
            saved, q = tuple(fine(part) for part in saved), fine(gradient).contiguous()
            if isinstance(use.layer, Affine):
                for name, rows in zip((use.weight, use.bias), use.layer.affine(saved, q, records), strict=True):
                    if name and rows is not None:
                        add(name, rows)
                return
            if use.bias:
                add(use.bias, use.layer.bias(saved, q, records))
            if not use.weight:
                return
            # Norms do not add up, gradients do: of a weight that is used twice they are kept.
            once = times[use.weight] == 1
            way = choose(use.layer, saved, q, records) if once else use.layer.ways(saved, q, records)[0]
            if way == "gram":
                weighed[use.weight,] = weigh(use.layer, way, saved, q, records)
                return
            rows = use.layer.gradients(way, saved, q, records)
            if once and rows.numel() > SMALL:  # its norm now, while it is in the processor's cache
                weighed[use.weight,] = weigh_gradients(rows)
            else:
                add(use.weight, rows)

    recomputed = is_checkpointed(model)
    capture = Capture(trainable, examples.y.numel(), take, recomputed=recomputed)
    with capture, recomputing_under(capture):
        total = record_losses(model, examples).sum()
    times = Counter(name for use in capture.uses for name in use.names)
    inputs = {name: p for name, p in trainable.items() if p.requires_grad}
    if total.requires_grad:
        gradients = torch.autograd.grad(total, [*capture.leaves, *inputs.values()], allow_unused=True)
        for name, gradient in zip(inputs, gradients[len(capture.leaves) :], strict=True):
            if gradient is not None:
                raise AssertionError(f"the parameter {name} was reached by a way that cannot be weighed")
    return weighed | bundled(summed, group_of)


def bundled(rows: Mapping[str, Tensor], group_of: Callable[[str], str]) -> Bundles:
    """Gradients `[b, ...]` by name, the small ones of a group side by side."""
    bundles: Bundles = {}
    small: dict[str, dict[str, Tensor]] = {}
    for name, each in rows.items():
        if each.numel() <= SMALL:
            small.setdefault(group_of(name), {})[name] = each.reshape(len(each), -1)
        else:
            bundles[name,] = weigh_gradients(each)
    return bundles | {tuple(parts): weigh_gradients(torch.cat(list(parts.values()), 1)) for parts in small.values()}
