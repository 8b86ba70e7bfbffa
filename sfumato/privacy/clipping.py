"""Per-record clipping: the sum of gradients in which no record weighs more than `clip`.

The gradient of a record is that of its loss averaged over its K noised copies, so K costs no privacy. One forward and
one backward over all copies give every record's norm (`folded`), by a way that is sound for any input (`weighing`); the
clipped sum then comes from what was kept. A model for which there is no rule is computed record by record (`per_record`),
one that mixes records is refused (`survey`). A record whose gradient is not finite contributes zero.

Three rules scale a gradient g down, and under each of them a record's contribution has an l2 norm of at most `clip`:

- `flat`: g min(1, clip / |g|);
- `per_group`: each of the G groups of parameters by itself to clip / sqrt(G) (McMahan et al. 2018);
- `automatic`: g clip / (|g| + gamma), so that clip only sets the scale (Bu et al. 2023).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sfumato.config import Clipping
from sfumato.diffusion.objective import Examples
from sfumato.networks.build import parameter_group
from sfumato.privacy.capture import Unknown
from sfumato.privacy.choice import Choose, fastest
from sfumato.privacy.folded import weigh_records
from sfumato.privacy.per_record import gradients_of_records
from sfumato.privacy.survey import refuse_clip, survey
from sfumato.privacy.weighing import Weighed, weigh_kept

Gradients = dict[str, Tensor]
"""Parameter name -> gradient, of the parameter's shape."""
GAMMA = 0.01
"""Default stability constant of automatic clipping (Bu et al. 2023, section 5)."""


def clipped_sum(
    model: nn.Module,
    trainable: Mapping[str, Tensor],
    examples: Examples,
    *,
    clip: float,
    chunk: int,
    rule: Clipping = "flat",
    gamma: float = GAMMA,
    group_of: Callable[[str], str] = parameter_group,
    choose: Choose = fastest,
) -> Gradients:
    """Sum over the b records of `examples` of their gradients, each scaled down to an l2 norm of at most `clip`.

    `trainable` names the parameters of `model` that are differentiated. At most `chunk` records are in memory at once,
    which changes the sum by rounding only. An empty batch gives zeros.
    """
    refuse_clip(clip)
    known = survey(model, trainable, examples.x_t.shape[2:])
    total = {name: torch.zeros_like(p) for name, p in trainable.items()}
    for start in range(0, len(examples.y), chunk):
        part = examples.map(lambda field, at=start: field[at : at + chunk])
        weighed = _weighed(model, trainable, part, choose, folded=not known.missing)
        for name in trainable:
            if name not in weighed and name not in known.silent:
                raise AssertionError(f"the parameter {name} has received no norm in this step, so nothing bounds it")
        if weighed:
            squares = {name: one.squares for name, one in weighed.items()}
            finite = torch.stack(list(squares.values())).isfinite().all(0)
            factors = factors_of(squares, clip, rule, gamma, group_of, trainable)
            some = None if finite.all() else finite
            with torch.autocast(examples.x_t.device.type, enabled=False):  # half precision could exceed the clip
                for name, one in weighed.items():
                    factor = factors[name] if some is None else factors[name].where(finite, 0.0)
                    total[name] += one.total(factor, some)
    return total


def _weighed(
    model: nn.Module, trainable: Mapping[str, Tensor], part: Examples, choose: Choose, *, folded: bool
) -> dict[str, Weighed]:
    if folded:
        try:
            return weigh_records(model, trainable, part, choose=choose)
        except Unknown:  # a branch that the survey has not seen
            pass
    return {name: weigh_kept(rows) for name, rows in gradients_of_records(model, trainable, part).items()}


def factors_of(
    squares: Mapping[str, Tensor],
    clip: float,
    rule: Clipping,
    gamma: float,
    group_of: Callable[[str], str],
    trainable: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Name -> factors `[b]` from name -> squared norms `[b]`."""
    if rule == "per_group":
        share = clip / len({group_of(name) for name in trainable}) ** 0.5
        parts: dict[str, list[Tensor]] = {}
        for name, value in squares.items():
            parts.setdefault(group_of(name), []).append(value)
        factors = {group: clip_factors(values, share) for group, values in parts.items()}
        return {name: factors[group_of(name)] for name in squares}
    parts_of_all = list(squares.values())
    one = automatic_factors(parts_of_all, clip, gamma) if rule == "automatic" else clip_factors(parts_of_all, clip)
    return dict.fromkeys(squares, one)


def clip_factors(squares: list[Tensor], clip: float) -> Tensor:
    """min(1, clip / norm) for each record over all its squared norms `[b]`: `[b]`, 0 where the norm is not finite.

    The norm times the factor is at most `clip`.
    """
    norms = sum(squares).sqrt()
    factors = (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return factors.where(norms.isfinite(), 0.0)


def automatic_factors(squares: list[Tensor], clip: float, gamma: float) -> Tensor:
    """clip / (norm + gamma) for each record: `[b]`, 0 where the norm is not finite.

    The norm times the factor is below `clip` for any gamma > 0.
    """
    norms = sum(squares).sqrt()
    return (clip / (norms + gamma)).where(norms.isfinite(), 0.0)
