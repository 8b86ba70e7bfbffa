"""Attention of the U-Net: heads against torch's own, one token against whole cross-attention, gradients of records against a loop over them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.config import Network
from sfumato.diffusion.objective import Examples
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.errors import BadInput
from sfumato.networks.attention import Attention, ClassAttention, SpatialTransformer
from sfumato.networks.build import build
from sfumato.networks.denoiser import class_rows, groups_of, with_classes
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.validation import survey
from tests.oracle import WAYS, by, clipped, distance, loop, norm

PLAIN = Network(kind="unet", width=8, blocks=1, condition=8, multipliers=(1, 2), attention=(8, 4))
RAPID = {"attention_heads": 2, "transformer": 2, "class_input": "cross_attention", "embedding": 5}
"""As RAPID's MNIST has them (Jiang et al. 2025, Table 7), two blocks deep."""
OPTIONS = {
    "heads": {"attention_heads": 4},
    "head channels": {"head_channels": 4},
    "transformer": {"transformer": 1},
    "cross-attention": RAPID,
}
EACH = pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
SHAPE, EXACT = (1, 8, 8), 1e-5


def awake(changes, shape=SHAPE, classes=4):
    """A network whose zero-initialised layers are random."""
    model = build(PLAIN.model_copy(update=changes), shape, classes)
    stir(model)
    return model


def stir(module, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def records(count, draws=1, shape=SHAPE):
    """Examples of different times and classes, no class among them."""
    generator = torch.Generator().manual_seed(3)
    x, target = (torch.randn(count, draws, *shape, generator=generator) for _ in range(2))
    t = torch.randint(1, 1000, (count, draws), generator=generator)
    y = (torch.arange(count)[:, None] - 1).expand(count, draws)
    return Examples(x, t, y, target)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_heads_are_those_of_torchs_own_attention(heads):
    torch.manual_seed(0)
    layer, x = Attention(16, heads), torch.randn(3, 16, 4, 5)
    stir(layer)
    rows = layer.norm(x).flatten(2).transpose(1, 2)
    query, key, value = (part.view(3, 20, heads, -1).transpose(1, 2) for part in layer.qkv(rows).chunk(3, 2))
    mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(3, 20, 16)
    torch.testing.assert_close(layer(x), x + layer.out(mixed).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_attention_to_one_token_needs_no_queries_and_no_keys(heads):
    """Whole cross-attention with any queries and keys puts out the same, and these receive no gradient."""
    torch.manual_seed(heads)
    short = ClassAttention(5, 16)
    whole = nn.MultiheadAttention(16, heads, kdim=5, vdim=5, bias=True, batch_first=True)
    with torch.no_grad():
        whole.v_proj_weight.copy_(short.value.weight)
        whole.in_proj_bias[32:].zero_()
        whole.out_proj.weight.copy_(short.out.weight)
        whole.out_proj.bias.copy_(short.out.bias)
    positions, token = torch.randn(3, 20, 16), torch.randn(3, 1, 5)
    out, _ = whole(positions, token, token)
    torch.testing.assert_close(out, short(token[:, 0]).expand(3, 20, 16))
    out.square().sum().backward()
    assert whole.q_proj_weight.grad.abs().max() < 1e-4 and whole.k_proj_weight.grad.abs().max() < 1e-4
    assert whole.v_proj_weight.grad.any()


def test_a_spatial_transformer_begins_as_nothing_and_adds_its_blocks_in_turn():
    torch.manual_seed(0)
    layer, x, token = SpatialTransformer(16, 2, 2, 5), torch.randn(2, 16, 3, 3), torch.randn(2, 5)
    assert torch.equal(layer(x, token), x)
    stir(layer)
    rows = layer.inner(layer.norm(x).flatten(2).transpose(1, 2))
    for one in layer.blocks:
        rows = rows + one.over_positions(one.norm1(rows))
        rows = rows + one.to_class.out(one.to_class.value(token)).unsqueeze(1)
        wide, gate = one.feed_forward.inner(one.norm2(rows)).split(64, 2)
        rows = rows + one.feed_forward.outer(wide * F.gelu(gate))
    torch.testing.assert_close(layer(x, token), x + layer.outer(rows).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("way", WAYS)
@EACH
def test_gradients_of_records_are_those_of_one_record_at_a_time(changes, way):
    model, examples = awake(changes), records(5, draws=2)
    trainable = dict(model.named_parameters())
    known = survey(model, trainable, SHAPE)
    assert known.missing == "" and not known.silent, "every layer has a rule, and every parameter learns"
    each = loop(model, trainable, examples)
    clip = float(sorted(norm(gradient) for gradient in each)[2])  # some are scaled down, some are not
    result = clipped_sum(model, trainable, examples, clip=clip, chunk=3, choose=by(way))
    assert distance(result, clipped(each, clip)) < EXACT


def test_the_class_enters_by_cross_attention_alone_and_by_rows_of_their_own_length():
    model = awake(RAPID)
    assert class_rows(model).shape == (4, 5)
    t = torch.tensor([7, 7])
    same = model.condition(t, torch.tensor([0, 3]))
    assert torch.equal(same[0], same[1]), "the vector of the time knows no class"
    x = torch.randn(1, *SHAPE).expand(2, -1, -1, -1)
    one, other = model(x, t, torch.tensor([0, 3]))
    assert not torch.allclose(one, other, atol=1e-4)
    for layer in model.modules():
        if isinstance(layer, ClassAttention):
            nn.init.zeros_(layer.out.weight)
    one, other = model(x, t, torch.tensor([0, 3]))
    torch.testing.assert_close(one, other)


def test_no_class_is_the_mean_row_and_other_rows_can_take_their_place():
    model = awake(RAPID)
    rows, x, t = class_rows(model), torch.randn(1, *SHAPE), torch.tensor([500])
    none = model(x, t, torch.tensor([NO_CLASS]))
    with_classes(model, torch.cat([rows, rows.mean(0, keepdim=True)]))
    torch.testing.assert_close(model(x, t, torch.tensor([4])), none)


@EACH
def test_all_of_it_is_attention_to_those_who_choose_what_learns(changes):
    model, plain = awake(changes), awake({})
    sizes = {
        name: {one for one, _ in net.named_parameters() if groups_of(net)(one) == "rest"}
        for name, net in {"with": model, "without": plain}.items()
    }
    assert sizes["with"] == sizes["without"]
    assert {groups_of(model)(name) for name, _ in model.named_parameters() if ".attention." in name} == {"attention"}


@pytest.mark.parametrize(
    ("changes", "wrong", "way"),
    [
        ({"attention_heads": 3}, r"network.attention_heads=3 does not divide the 8 channels", {"attention_heads": 2}),
        ({"head_channels": 16}, r"network.head_channels=16 does not divide the 8 channels", {"head_channels": 8}),
        ({"class_input": "cross_attention"}, r"without transformer blocks: set network.transformer=1", {"transformer": 1}),
        (
            {**RAPID, "attention": (7,)},
            r"network.attention=\[7\] holds none of the sides of the levels, \[8, 4\]",
            {"attention": (4,)},
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_the_way_out_works(changes, wrong, way):
    with pytest.raises(BadInput, match=wrong):
        awake(changes)
    assert awake({**changes, **way})(torch.randn(1, *SHAPE), torch.tensor([5]), torch.tensor([0])).isfinite().all()
