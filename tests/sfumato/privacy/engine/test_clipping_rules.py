"""Flat, per group, automatic: what each does to a record, and that none lets more than the clip through."""

import pytest
import torch

from sfumato.networks.layers import Conditioned
from sfumato.privacy.engine.clipping import automatic_factors, clip_factors, clipped_sum
from tests.oracle import loop, norm
from tests.sfumato.privacy.engine.test_clipping import ALL, awake, crafted, digits

GROUP_OF = Conditioned.group_of
RULES = ("flat", "per_group", "automatic")


def plain(model):
    """The oracle's loop needs time features in float64."""
    model.condition.time[0].register_forward_pre_hook(lambda layer, inputs: (inputs[0].to(layer.weight.dtype),))
    return model


def by_hand(gradient, rule, clip, gamma):
    """One record's share."""
    if rule == "automatic":
        return {name: clip * g / (norm(gradient) + gamma) for name, g in gradient.items()}
    if rule == "flat":
        return {name: g * min(1.0, clip / float(norm(gradient))) for name, g in gradient.items()}
    groups = {GROUP_OF(None, name) for name in gradient}
    share = clip / len(groups) ** 0.5
    norms = {group: norm({n: g for n, g in gradient.items() if GROUP_OF(None, n) == group}) for group in groups}
    return {name: g * min(1.0, share / max(float(norms[GROUP_OF(None, name)]), 1e-300)) for name, g in gradient.items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("groups", [ALL, ("rows", "film")], ids=str)
@pytest.mark.parametrize("kind", ["mlp", "unet"])
def test_each_rule_is_what_it_says(kind, groups, rule):
    model, trainable = awake(kind, groups)
    examples = digits(9, 2)
    each = loop(plain(model), trainable, examples)
    clip = float(sorted(map(norm, each))[4])
    shares = [by_hand(gradient, rule, clip, 0.05) for gradient in each]
    expected = {name: sum(share[name] for share in shares) for name in trainable}
    result = clipped_sum(model, trainable, examples, clip=clip, chunk=4, rule=rule, gamma=0.05)
    assert float(norm({n: result[n] - expected[n] for n in expected})) < 1e-5 * float(norm(expected))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clip", [1e-6, 0.05, 100.0])
def test_no_record_contributes_more_than_the_clip(clip, rule):
    model, trainable = awake("mlp")
    examples, reached = crafted().map(lambda field: field[::5]), 0
    for record in range(len(examples.y)):
        alone = examples.map(lambda field, at=record: field[at : at + 1])
        result = float(norm(clipped_sum(model, trainable, alone, clip=clip, chunk=1, rule=rule)))
        assert result <= clip * (1 + 1e-6)
        reached += result > 0.5 * clip
    assert reached > 6, "some at the edge of float32 are left out or not, as a sum happens to be ordered"


@pytest.mark.parametrize("rule", RULES)
def test_a_record_that_is_not_finite_in_one_group_is_out_of_all(rule):
    model, trainable = awake("mlp")
    examples = digits(3, 1)
    examples.target[1, 0, 0, 0, 0] = float("nan")
    rest = examples.map(lambda field: field[[0, 2]])
    result, expected = (clipped_sum(model, trainable, part, clip=0.1, chunk=3, rule=rule) for part in (examples, rest))
    assert float(norm({n: result[n] - expected[n] for n in result})) < 1e-6 * float(norm(expected))


def test_factors_by_hand():
    squares = [torch.tensor([9.0, 0.0, float("inf")]), torch.tensor([16.0, 0.0, 1.0])]
    assert clip_factors(squares, 2.0).tolist() == pytest.approx([0.4, 1.0, 0.0])
    assert automatic_factors(squares, 2.0, 0.1).tolist() == pytest.approx([2 / 5.1, 20.0, 0.0])
