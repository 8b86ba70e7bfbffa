"""Per-record clipping: the sum of gradients in which no record weighs more than `clip`.

The gradient of a record is that of its loss averaged over its K noised copies, so K costs no privacy. One forward and
one backward over all copies give every record's norm (`folded`), in a way that is sound for any input (`norms`); the
clipped sum then comes from the saved inputs and gradients. A model without a rule is computed record by record (`per_record`),
one that mixes records is refused (`validation`). A record whose gradient is not finite contributes zero.

Three rules scale a gradient g down, and under each of them a record's contribution has an l2 norm of at most `clip`:

- `flat`: g min(1, clip / |g|);
- `per_group`: each of the G groups of parameters by itself to clip / sqrt(G) (McMahan et al. 2018);
- `automatic`: g clip / (|g| + gamma), so that clip only sets the scale (Bu et al. 2023).
"""

import functools
import operator
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from sfumato.config import LEAST_GAMMA, Clipping
from sfumato.diffusion.objective import Examples
from sfumato.networks.denoiser import groups_of
from sfumato.privacy.engine.arithmetic import exact_products
from sfumato.privacy.engine.autotune import Choose, fastest
from sfumato.privacy.engine.capture import Unknown
from sfumato.privacy.engine.folded import Bundles, bundled, weigh_records
from sfumato.privacy.engine.norms import fine
from sfumato.privacy.engine.per_record import gradients_of_records
from sfumato.privacy.engine.validation import refuse_clip, survey

Gradients = dict[str, Tensor]
"""Parameter name -> gradient, of the parameter's shape."""
GAMMA = 0.01
"""Default stability constant of automatic clipping (Bu et al. 2023, section 5)."""


@exact_products()
def clipped_sum(
    model: nn.Module,
    trainable: Mapping[str, Tensor],
    examples: Examples,
    *,
    clip: float,
    chunk: int,
    rule: Clipping = "flat",
    gamma: float = GAMMA,
    choose: Choose = fastest,
    tell_norms: Callable[[Tensor], None] | None = None,
) -> Gradients:
    """Sum over the b records of `examples` of their gradients, each scaled down to an l2 norm of at most `clip`.

    `trainable` names the parameters of `model` that are differentiated. At most `chunk` records are in memory at once,
    which changes the sum by rounding only. An empty batch gives zeros. `tell_norms` receives the records' norms `[b]` before
    clipping, in parts: without noise, so INTERNAL.

    Many parameters: the gradients of a step, and each rule by which they are clipped.
    """
    refuse_clip(clip)
    group_of = groups_of(model)
    known = survey(model, trainable, examples.x_t.shape[2:])
    total = {name: torch.zeros_like(p, dtype=fine(p).dtype) for name, p in trainable.items()}
    for start in range(0, len(examples.y), chunk):
        part = examples.map(operator.itemgetter(slice(start, start + chunk)))
        add_clipped(
            total,
            _weighed(model, trainable, part, choose, group_of, folded=not known.missing),
            clip=clip,
            rule=rule,
            gamma=gamma,
            group_of=group_of,
            silent=known.silent,
            tell_norms=tell_norms,
        )
    return total


def add_clipped(
    total: Gradients,
    weighed: Bundles,
    *,
    clip: float,
    rule: Clipping,
    gamma: float,
    group_of: Callable[[str], str],
    silent: Collection[str],
    tell_norms: Callable[[Tensor], None] | None = None,
) -> None:
    """Add to `total`, in place, the clipped gradients of the b records in `weighed`; those that are not finite add nothing.

    `tell_norms` receives the records' norms `[b]` before clipping. An `AssertionError` where a parameter of `total` has received no norm and is
    not `silent`, since nothing would bound it.

    Many parameters: the gradients of a step, and each rule by which they are clipped.
    """
    bounded = {name for names in weighed for name in names}
    for name in total:
        if name not in bounded and name not in silent:
            raise AssertionError(f"the parameter {name} has received no norm in this step, so nothing bounds it")
    if not weighed:
        return
    squares = [(group_of(names[0]), one.squares) for names, one in weighed.items()]
    finite = torch.stack([value for _, value in squares]).isfinite().all(0)
    if tell_norms:
        tell_norms(total_of([value for _, value in squares]).sqrt())
    factors = factors_of(squares, clip, rule, gamma, {group_of(name) for name in total})
    some = None if finite.all() else finite
    with torch.autocast(finite.device.type, enabled=False):  # half precision could exceed the clip
        for (names, one), (group, _) in zip(weighed.items(), squares, strict=True):
            factor = factors[group] if some is None else factors[group].where(finite, 0.0)
            pieces = one.total(factor, some).flatten().split([total[name].numel() for name in names])
            for name, piece in zip(names, pieces, strict=True):
                total[name] += piece.view_as(total[name])


def _weighed(
    model: nn.Module,
    trainable: Mapping[str, Tensor],
    part: Examples,
    choose: Choose,
    group_of: Callable[[str], str],
    *,
    folded: bool,
) -> Bundles:
    if folded:
        try:
            return weigh_records(model, trainable, part, choose=choose, group_of=group_of)
        except Unknown:  # a branch that the survey has not seen
            pass
    return bundled(gradients_of_records(model, trainable, part), group_of)


def factors_of(
    squares: list[tuple[str, Tensor]], clip: float, rule: Clipping, gamma: float, groups: set[str]
) -> dict[str, Tensor]:
    """Group -> factors `[b]` from pairs of a group and squared norms `[b]`; `groups` are all there are."""
    if rule == "per_group":
        share = clip / len(groups) ** 0.5
        return {group: clip_factors([value for own, value in squares if own == group], share) for group, _ in squares}
    parts = [value for _, value in squares]
    one = automatic_factors(parts, clip, gamma) if rule == "automatic" else clip_factors(parts, clip)
    return dict.fromkeys(groups, one)


def total_of(parts: list[Tensor]) -> Tensor:
    """The sum of one tensor `[b]` or more of that shape."""
    return functools.reduce(operator.add, parts)


def clip_factors(squares: list[Tensor], clip: float) -> Tensor:
    """min(1, clip / norm) for each record over all its squared norms `[b]`: `[b]`, 0 where the norm is not finite.

    The norm times the factor is at most `clip`.
    """
    norms = total_of(squares).sqrt()
    factors = (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return factors.where(norms.isfinite(), 0.0)


def automatic_factors(squares: list[Tensor], clip: float, gamma: float) -> Tensor:
    """clip / (norm + gamma) for each record: `[b]`, 0 where the norm is not finite.

    The norm times the factor is below `clip`, also where the squares of a small gradient vanish in float32, whose norm is then at most some 1e-18.
    """
    if not gamma >= LEAST_GAMMA:
        raise ValueError(f"gamma = {gamma:g}: from {LEAST_GAMMA:g} up, since squares below 1e-45 vanish in float32")
    norms = total_of(squares).sqrt()
    return (clip / (norms + gamma)).where(norms.isfinite(), 0.0)
