"""The denoisers keep one contract: shapes, the null row, named groups, and a refusal where the levels do not fit."""

import pytest
import torch

from sfumato.config import Network
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.errors import BadInput
from sfumato.networks.build import build, resolved
from sfumato.networks.denoiser import groups_of, parameters_by_group, with_classes
from sfumato.privacy.engine.dp_sgd import trainable_parameters

MLP = Network(kind="mlp", width=16, blocks=2, condition=8)
UNET = Network(kind="unet", width=8, blocks=1, condition=8, multipliers=(1, 2), attention=(7, 8, 4))
REFINE = Network(kind="refinenet", width=8, blocks=1, condition=8, multipliers=(1, 2, 2))
DIT = Network(kind="dit", width=16, blocks=2, condition=8, heads=2)
EACH = pytest.mark.parametrize("settings", [MLP, UNET, REFINE, DIT], ids=["mlp", "unet", "refinenet", "dit"])


def awake(settings, shape, classes=5):
    """A network whose zero-initialised layers are random."""
    model = build(settings, shape, classes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def ask(model, shape, y):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(len(y), *shape, generator=generator)
    return model(x, torch.randint(1, 1000, (len(y),), generator=generator), y)


@EACH
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 6, 10)])
def test_the_answer_has_the_shape_of_the_image_also_for_none(settings, shape):
    model = awake(settings, shape)
    for count in (3, 1, 0):
        assert ask(model, shape, torch.arange(count)).shape == (count, *shape)


@pytest.mark.parametrize(
    ("side", "multipliers", "levels"), [(28, (1, 2, 2), [28, 14, 7]), (7, (1,), [7]), (12, (1, 1, 2), [12, 6, 3])]
)
def test_the_unet_takes_sides_that_become_odd(side, multipliers, levels):
    settings = UNET.model_copy(update={"multipliers": multipliers, "attention": (levels[-1],)})
    model = awake(settings, (1, side, side))
    sides = []
    for stage in model.modules():
        if type(stage).__name__ == "Attention":
            stage.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    assert ask(model, (1, side, side), torch.tensor([0, 1])).shape == (2, 1, side, side)
    assert set(sides) == {levels[-1]}, "attention stands at the sides that were asked for"


@pytest.mark.parametrize(("side", "levels"), [(28, 4), (8, 5), (9, 2), (17, 3)])
def test_levels_that_do_not_fit_are_refused_and_the_way_out_works(side, levels):
    settings = UNET.model_copy(update={"multipliers": (1,) * levels, "attention": (), "width": 16})
    with pytest.raises(BadInput, match=rf"halves its input {levels - 1} times.*{side}x{side}") as refusal:
        build(settings, (1, side, side), 3)
    advised = int(str(refusal.value).rsplit("data.size=", 1)[1])
    assert ask(build(settings, (1, advised, advised), 3), (1, advised, advised), torch.tensor([0])).isfinite().all()


@EACH
def test_no_class_reads_the_mean_of_the_rows(settings):
    model = awake(settings, (1, 8, 8))
    none = ask(model, (1, 8, 8), torch.tensor([NO_CLASS, 2]))
    rows = torch.cat([model.condition.rows.weight, model.condition.rows.weight.mean(0, keepdim=True)])
    with_classes(model, rows)
    torch.testing.assert_close(none, ask(model, (1, 8, 8), torch.tensor([5, 2])))
    assert not torch.allclose(none[:1], ask(model, (1, 8, 8), torch.tensor([0, 2]))[:1], atol=1e-4)


@EACH
def test_time_and_class_both_matter(settings):
    model, x = awake(settings, (1, 8, 8)), torch.randn(1, 1, 8, 8).repeat(3, 1, 1, 1)
    result = model(x, torch.tensor([10, 900, 10]), torch.tensor([0, 0, 1]))
    assert not torch.allclose(result[0], result[1], atol=1e-4) and not torch.allclose(result[0], result[2], atol=1e-4)


@EACH
def test_every_parameter_belongs_to_one_group(settings):
    model = build(settings, (1, 8, 8), 5)
    sizes = parameters_by_group(model)
    assert sum(sizes.values()) == sum(p.numel() for p in model.parameters())
    assert sizes["rows"] == 5 * 8
    assert set(sizes) == {"rows", "film", "time", "rest"} | ({"attention"} if settings in (UNET, DIT) else set())
    films = sum(p.numel() for m in model.modules() if type(m).__name__ in ("Film", "Gates") for p in m.parameters())
    assert sizes["film"] == films > 0


@pytest.mark.parametrize("settings", [UNET, DIT], ids=["unet", "dit"])
@pytest.mark.parametrize("groups", [("rows",), ("film",), ("attention",), ("time",), ("rest",), ("rows", "film")])
def test_gradient_reaches_the_chosen_groups_and_no_other(settings, groups):
    model = awake(settings, (1, 8, 8))
    chosen = trainable_parameters(model, groups)
    ask(model, (1, 8, 8), torch.arange(5)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert (name in chosen) == (groups_of(model)(name) in groups) == parameter.requires_grad
        assert (parameter.grad is not None and bool(parameter.grad.any())) == (name in chosen), name


@EACH
def test_a_class_moves_its_own_row_alone(settings):
    model = awake(settings, (1, 8, 8))
    ask(model, (1, 8, 8), torch.tensor([1, 3, 1])).square().mean().backward()
    assert model.condition.rows.weight.grad.abs().sum(1).gt(0).tolist() == [False, True, False, True, False]


def test_other_rows_replace_the_classes_as_a_copy():
    model, rows = build(MLP, (1, 8, 8), 26).requires_grad_(False), torch.randn(3, 8)
    assert with_classes(model, rows) is model
    assert parameters_by_group(model)["rows"] == 3 * 8 and model.condition.rows.weight.requires_grad
    with torch.no_grad():
        model.condition.rows.weight.zero_()
    assert rows.any(), "the public rows stay as they are"
    assert ask(model, (1, 8, 8), torch.tensor([0, 1, 2])).shape == (3, 1, 8, 8)


def test_the_seed_alone_decides_the_weights():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one = build(UNET, (1, 8, 8), 4, seed=7).state_dict()
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator is left as it was"
    torch.manual_seed(4)
    two, other = build(UNET, (1, 8, 8), 4, seed=7).state_dict(), build(UNET, (1, 8, 8), 4, seed=8).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["input.weight"], other["input.weight"])


@pytest.mark.parametrize("levels", [(1,), (1, 2, 2, 2), (1, 2, 2, 2, 4)])
@pytest.mark.parametrize("shape", [(1, 9, 8), (3, 5, 7), (1, 29, 28)])
def test_a_refinenet_takes_any_sides_and_sees_the_whole_image(levels, shape):
    """From the second level on each output hears of each input (in a corner, of the opposite one)."""
    model = awake(REFINE.model_copy(update={"multipliers": levels, "width": 4}), shape)
    x = torch.randn(2, *shape, requires_grad=True)
    out = model(x, torch.tensor([5, 500]), torch.tensor([0, 1]))
    assert out.shape == x.shape
    out[0, 0, 0, 0].backward()
    reach = x.grad[0].abs().amax(0) > 0
    assert reach.all() and not x.grad[1].any(), "group normalisation looks everywhere, and at one record alone"


def test_the_levels_of_a_refinenet_look_ever_further():
    model = build(REFINE.model_copy(update={"multipliers": (1, 1, 1, 1, 1)}), (1, 16, 16), 3)
    assert [blocks[0].conv1.dilation[0] for blocks in model.levels] == [1, 1, 2, 4, 8]
    sides = []
    for blocks in model.levels:
        blocks[0].register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    ask(model, (1, 16, 16), torch.tensor([0]))
    assert sides == [16, 8, 8, 8, 8]


@pytest.mark.parametrize(
    ("multipliers", "refine", "expected"),
    [
        ((1, 2, 2, 2), (2, 2, 1, 1), [([256], 256), ([256, 256], 256), ([256, 256], 128), ([128, 128], 128)]),
        (
            (1, 2, 2, 2, 4),
            (4, 4, 2, 2, 1, 1),
            [([512], 512), ([256, 512], 512), ([256, 512], 256), ([256, 256], 256), ([128, 256], 128), ([128], 128)],
        ),
    ],
    ids=["4a", "4b"],
)
def test_the_refine_blocks_of_dppms_networks(multipliers, refine, expected):
    """Liu et al. 2024, Figure 4: channels that each block takes in, and puts out."""
    settings = Network(kind="refinenet", width=128, blocks=2, multipliers=multipliers, refine=refine, condition=8)
    with torch.device("meta"):
        model = build(settings, (3, 64, 64), 1)
    blocks = [([merge.in_channels for merge in one.merge], one.merge[0].out_channels) for one in model.refine]
    assert blocks == expected and model.output.in_channels == 128
    small = awake(settings.model_copy(update={"width": 4}), (1, 9, 8))
    assert ask(small, (1, 9, 8), torch.tensor([0])).shape == (1, 1, 9, 8)
    with pytest.raises(BadInput, match=r"network.refine=\[2\] has fewer blocks than the \d levels"):
        build(settings.model_copy(update={"refine": (2,)}), (1, 9, 8), 1)


@pytest.mark.parametrize(
    ("patch", "side", "tokens"), [(0, 7, 49), (0, 8, 64), (0, 16, 64), (0, 9, 81), (2, 8, 16), (4, 12, 9)]
)
def test_a_transformer_takes_squares_for_positions_and_tells_them_apart(patch, side, tokens):
    """With equal squares everywhere, only the sines of row and column differ."""
    model = awake(DIT.model_copy(update={"patch": patch}), (2, side, side))
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    out = model(torch.ones(1, 2, side, side), torch.tensor([500]), torch.tensor([0]))
    assert out.shape == (1, 2, side, side) and seen[0].shape == (tokens, 16)
    assert len(seen[0].unique(dim=0)) == tokens


def test_a_transformer_puts_every_square_back_where_it_was():
    """Cut off from its neighbours, each square answers for itself alone."""
    model = awake(DIT.model_copy(update={"patch": 2}), (2, 6, 10))
    for each in model.blocks:
        torch.nn.init.zeros_(each.attention.out.weight)
    x = torch.randn(1, 2, 6, 10, requires_grad=True)
    model(x, torch.tensor([500]), torch.tensor([0]))[0, 1, 3, 8].backward()
    reached = x.grad[0].abs().amax(0) > 0
    expected = torch.zeros(6, 10, dtype=torch.bool)
    expected[2:4, 8:10] = True
    assert torch.equal(reached, expected)


@pytest.mark.parametrize(
    ("change", "wrong", "way"),
    [({"patch": 3}, "network.patch=3 does not divide 8x8", {"patch": 4}), ({"width": 18}, "network.width=18.*heads=2", {"width": 20})],
)  # fmt: skip
def test_a_transformer_that_does_not_fit_is_refused_with_one_that_does(change, wrong, way):
    with pytest.raises(BadInput, match=wrong) as refusal:
        build(DIT.model_copy(update=change), (1, 8, 8), 3)
    assert str(next(iter(way.values()))) in str(refusal.value).split(":")[1]
    build(DIT.model_copy(update=way), (1, 8, 8), 3)


@pytest.mark.parametrize(("side", "kind", "width"), [(8, "mlp", 192), (15, "mlp", 192), (16, "unet", 32)])
def test_auto_chooses_by_the_side(side, kind, width):
    result = resolved(Network(), side)
    assert (result.kind, result.width) == (kind, width)
    assert resolved(Network(width=24), side).width == 24 and resolved(Network(kind="unet"), 8).kind == "unet"
