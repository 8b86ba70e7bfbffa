"""What Table 1 of the DP ensemble builds into its U-Nets: residual blocks that change the sides, and dropout that a seed decides."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.adapters import Trunk
from sfumato.config import Network
from sfumato.networks.build import build
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.networks.layers import SeededDropout
from sfumato.networks.unet import ResBlock
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.validation import survey
from tests.oracle import WAYS, by, clipped, distance, loop, norm
from tests.sfumato.networks.test_attention import EXACT, SHAPE, records, stir

PAPER = Network(
    kind="unet", width=8, blocks=1, condition=8, multipliers=(1, 2), attention=(8, 4), head_channels=4, resampling="block", dropout=0.3
)  # fmt: skip
"""As in Table 1 of Anonymous 2023, in small."""


def awake(settings=PAPER):
    model = build(settings, SHAPE, 4)
    stir(model)
    return model


def dropouts(model, seed=None):
    layers = [layer for layer in model.modules() if isinstance(layer, SeededDropout)]
    for place, layer in enumerate(layers):
        layer.seed = None if seed is None else seed + place
    return layers


def halved(x):
    return (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4


def doubled(x):
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


@pytest.mark.parametrize(("way", "change"), [("down", halved), ("up", doubled)])
def test_both_paths_of_a_block_change_their_sides_before_any_convolution(way, change):
    torch.manual_seed(0)
    layer = ResBlock(4, 6, 8, resample=way)
    stir(layer)
    x, condition = torch.randn(3, 4, 6, 4), torch.randn(3, 8)
    hidden = layer.conv1(change(F.silu(layer.norm1(x))))
    hidden = layer.conv2(F.silu(layer.modulate(layer.norm2(hidden), condition)))
    torch.testing.assert_close(layer(x, condition), layer.skip(change(x)) + hidden)


def test_sides_are_changed_by_blocks_in_place_of_convolutions():
    model, plain = awake(), awake(PAPER.model_copy(update={"resampling": "convolution"}))
    assert [type(one) for one in (*model.shrink, *model.grow)] == [ResBlock, nn.Identity, ResBlock, nn.Identity]
    assert [type(one) for one in (*plain.shrink, *plain.grow)] == [nn.Conv2d, nn.Identity, nn.Conv2d, nn.Identity]
    assert len(list(model.parameters())) > len(list(plain.parameters()))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_records_are_those_of_one_record_at_a_time(way):
    model, examples = awake(), records(5, draws=2)
    trainable = dict(model.named_parameters())
    known = survey(model, trainable, SHAPE)
    assert known.missing == "" and not known.silent, "every layer has a rule, and every parameter learns"
    each = loop(model, trainable, examples)
    clip = float(sorted(norm(gradient) for gradient in each)[2])
    result = clipped_sum(model, trainable, examples, clip=clip, chunk=3, choose=by(way))
    assert distance(result, clipped(each, clip)) < EXACT


def test_dropout_begins_as_nothing_and_a_seed_decides_its_mask():
    layer, x = SeededDropout(0.3), torch.ones(200, 500)
    assert layer(x) is x
    before = torch.random.get_rng_state()
    layer.seed = 5
    one, again = layer(x), layer(x)
    assert torch.equal(one, again) and torch.equal(before, torch.random.get_rng_state())
    assert float((one == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert one.unique().tolist() == pytest.approx([0, 1 / 0.7]), "the mean stays"
    layer.seed = 6
    assert not torch.equal(layer(x), one)


def test_every_block_has_dropout_and_none_without_it():
    blocks = [layer for layer in awake().modules() if isinstance(layer, ResBlock)]
    assert len(dropouts(awake())) == len(blocks) == 2 + 1 + 4 + 2
    assert not dropouts(awake(PAPER.model_copy(update={"dropout": 0.0})))


def test_a_recomputed_block_drops_the_same_numbers():
    gradients = []
    for on in (False, True):
        model = checkpoint_blocks(awake(), on)
        dropouts(model, seed=3)
        x, t, y = torch.ones(3, *SHAPE), torch.tensor([5, 50, 500]), torch.tensor([0, 1, 2])
        model(x, t, y).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_heads_of_an_ensemble_stand_on_such_a_network():
    """They read the input of the last layer, which is that of the image's own size."""
    model = awake()
    noise, features = Trunk(model)(torch.randn(3, *SHAPE), torch.tensor([5, 50, 500]))
    assert noise.shape == (3, *SHAPE) and features.shape == (3, 8 * 8 * 8)
