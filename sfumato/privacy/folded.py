"""One forward and one backward over all copies of all records, from which every record's norm is known.

The K copies of a record are folded into its positions, so that the gradient of their mean costs no more than theirs.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from sfumato.diffusion.objective import Examples, record_losses
from sfumato.privacy.capture import Capture, Use
from sfumato.privacy.choice import Choose
from sfumato.privacy.layers import Norm, Saved
from sfumato.privacy.weighing import Weighed, fine, weigh, weigh_kept


def weigh_records(
    model: nn.Module, trainable: Mapping[str, Tensor], examples: Examples, *, choose: Choose
) -> dict[str, Weighed]:
    """Name -> what is known of the b records of `examples`; parameters that no gradient reached are missing.

    Raises `Unknown` for a use of a parameter for which there is no rule.
    """
    records = len(examples.y)
    weighed: dict[str, Weighed] = {}
    summed: dict[str, Tensor] = {}

    def add(name: str, rows: Tensor) -> None:
        summed[name] = summed[name] + rows if name in summed else rows

    def take(use: Use, saved: Saved, gradient: Tensor) -> None:
        device = gradient.device.type
        # Entering a context costs as much as a small layer, so only where there is something to switch off.
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            saved, q = tuple(fine(part) for part in saved), fine(gradient).contiguous()
            if isinstance(use.layer, Norm):
                for name, rows in zip((use.weight, use.bias), use.layer.affine(saved, q, records), strict=True):
                    if name:
                        add(name, rows)
                return
            if use.bias:
                add(use.bias, use.layer.bias(saved, q, records))
            if use.weight and times[use.weight] > 1:  # norms do not add up, gradients do
                add(use.weight, use.layer.kept(use.layer.ways(saved, q, records)[0], saved, q, records))
            elif use.weight:
                way = choose(use.layer, saved, q, records)
                weighed[use.weight] = weigh(use.layer, way, saved, q, records)

    with Capture(trainable, examples.y.numel(), take) as capture:
        total = record_losses(model, examples).sum()
    times = Counter(name for use in capture.uses for name in use.names)
    inputs = {name: p for name, p in trainable.items() if p.requires_grad}
    if total.requires_grad:
        found = torch.autograd.grad(total, [*capture.leaves, *inputs.values()], allow_unused=True)
        for name, gradient in zip(inputs, found[len(capture.leaves) :], strict=True):
            if gradient is not None:
                raise AssertionError(f"the parameter {name} was reached by a way that cannot be weighed")
    return weighed | {name: weigh_kept(rows) for name, rows in summed.items()}
