"""The clipped sum against a per-record loop in float64, and its bound for records that want to break it."""

import functools
import itertools

import pytest
import torch
from sklearn.datasets import load_digits

from sfumato.config import LEAST_GAMMA, Network, Schedule
from sfumato.diffusion.objective import Examples, denoising_examples
from sfumato.diffusion.schedule import make_schedule
from sfumato.networks.build import build
from sfumato.privacy.engine.clipping import automatic_factors, clip_factors, clipped_sum
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from tests import oracle
from tests.oracle import clipped, norm

NETWORKS = {
    "mlp": Network(kind="mlp", width=24, blocks=2, condition=8),
    "unet": Network(kind="unet", width=8, blocks=1, condition=8, multipliers=(1, 2), attention=(4,)),
    "dit": Network(kind="dit", width=8, blocks=1, condition=8, heads=2, patch=2),
    "velocity": Network(kind="mlp", width=24, blocks=2, condition=8, prediction="velocity"),
    "edm": Network(kind="mlp", width=24, blocks=2, condition=8, prediction="edm"),
    "edm unet": Network(
        kind="unet",
        width=8,
        blocks=1,
        condition=8,
        multipliers=(1, 2),
        attention=(4,),
        prediction="edm",
        sigma_data=0.5,
    ),
}
ALL = ("rows", "film", "attention", "time", "rest")
SCHEDULE = make_schedule(Schedule(timesteps=100))


def awake(kind, groups=ALL):
    """A network whose zero-initialised layers are random, and its chosen parameters."""
    model = build(NETWORKS[kind], (1, 8, 8), 10, alpha_bar=SCHEDULE.alpha_bar)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model, trainable_parameters(model, groups)


def digits(records, draws):
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images[:records] / 8 - 1).float().view(-1, 1, 8, 8)
    generator = torch.Generator().manual_seed(2)
    y = torch.from_numpy(labels[:records]).long()
    return denoising_examples(SCHEDULE, x, y, draws=draws, low=1, high=100, generator=generator)


@functools.cache
def loop(kind, records, draws):
    """Each record's gradient in float64, times included, of all groups: `[b]` dictionaries."""
    slow, trainable = awake(kind)
    slow.condition.time[0].register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    return oracle.loop(slow, trainable, digits(records, draws))


@pytest.mark.parametrize("groups", [ALL, ("rows", "film"), ("attention", "rows")], ids=str)
@pytest.mark.parametrize(("draws", "chunk"), [(1, 64), (4, 64), (4, 3), (1, 1)])
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_sum_is_that_of_a_loop_over_records(kind, draws, chunk, groups):
    model, trainable = awake(kind, groups)
    examples = digits(11, draws)
    each = [{name: gradient[name] for name in trainable} for gradient in loop(kind, 11, draws)]
    norms = sorted(float(norm(gradient)) for gradient in each)
    clip = (norms[3] + norms[4]) / 2  # some are scaled down, some are not
    expected, result = clipped(each, clip), clipped_sum(model, trainable, examples, clip=clip, chunk=chunk)
    assert set(result) == set(trainable), "frozen groups have no gradient"
    scale = float(norm(expected))
    assert float(norm({name: result[name] - expected[name] for name in expected})) < 1e-4 * scale
    for name, value in expected.items():
        assert result[name].dtype == torch.float32 and result[name].shape == value.shape
        torch.testing.assert_close(result[name].double(), value, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", NETWORKS)
def test_copies_are_averaged_before_clipping(kind):
    """K equal copies weigh as much as one: K costs no privacy."""
    model, trainable = awake(kind)
    one = digits(6, 1)
    four = one.map(lambda field: field.repeat_interleave(4, 1))
    for clip in (1e-3, 1e3):
        a, b = (clipped_sum(model, trainable, examples, clip=clip, chunk=4) for examples in (one, four))
        assert float(norm({name: a[name] - b[name] for name in a})) < 1e-5 * float(norm(a))


@pytest.mark.parametrize("kind", NETWORKS)
def test_no_records_sum_to_zeros(kind):
    model, trainable = awake(kind, ("rows", "film"))
    result = clipped_sum(model, trainable, digits(4, 3).map(lambda field: field[:0]), clip=1.0, chunk=8)
    assert set(result) == set(trainable)
    assert all(value.shape == trainable[name].shape and not value.any() for name, value in result.items())


@pytest.mark.parametrize("kind", NETWORKS)
def test_neither_the_model_nor_its_gradients_are_touched(kind):
    model, trainable = awake(kind)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    clipped_sum(model, trainable, digits(4, 1), clip=1.0, chunk=2)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())


SIZES = [0.0, 1e-38, 1e-30, 1e-10, 1.0, 1e4, 1e10, 1e15, 1e18, 1e19, 1e25, 3e38, -3e38]
BROKEN = [float("nan"), float("inf"), -float("inf")]


def crafted():
    """Records of every pair of sizes of input and target, some broken, some with one wild pixel or one wild copy."""
    base = digits(1, 2)
    x_t, target = [], []
    for a, b in itertools.product([*SIZES, *BROKEN], repeat=2):
        x_t.append(base.x_t[0] * a)
        target.append(base.target[0] * b)
    for wild in SIZES[5:] + BROKEN:
        for field, other in ((x_t, target), (target, x_t)):
            record = (base.x_t if field is x_t else base.target)[0].clone()
            record[0, 0, 3, 3] = wild
            field.append(record)
            other.append((base.target if field is x_t else base.x_t)[0])
    count = len(x_t)
    t = torch.tensor([[1, 100]]).repeat(count, 1)
    return Examples(torch.stack(x_t), t, torch.full((count, 2), 3), torch.stack(target))


@pytest.mark.parametrize(
    ("kind", "clip", "every"), [("mlp", 1e-6, 1), ("mlp", 0.05, 1), ("mlp", 100.0, 1), ("unet", 0.05, 7)]
)
def test_no_record_contributes_more_than_the_clip(kind, clip, every):
    model, trainable = awake(kind)
    examples, contributions = crafted().map(lambda field: field[::every]), []
    for record in range(len(examples.y)):
        alone = examples.map(lambda field, at=record: field[at : at + 1])
        contributions.append(float(norm(clipped_sum(model, trainable, alone, clip=clip, chunk=1))))
    assert all(c <= clip * (1 + 1e-6) for c in contributions), max(contributions)  # false for nan too
    # Some lie at the edge of float32: whether their gradients are infinite, and so left out, hangs on the order of a sum.
    assert sum(c > 0.999 * clip for c in contributions) > 40 / every, "many of them do reach the clip"
    together = clipped_sum(model, trainable, examples, clip=clip, chunk=50)
    assert float(norm(together)) <= sum(contributions) * (1 + 1e-5)


@pytest.mark.parametrize("field", ["x_t", "target"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_broken_records_count_for_nothing_and_spoil_no_other(kind, field):
    model, trainable = awake(kind)
    examples, broken = digits(9, 2), torch.tensor([1, 3, 6])
    for record, value in zip(broken.tolist(), BROKEN, strict=True):
        getattr(examples, field)[record, 1, 0, 5, 5] = value
    sound = torch.tensor([n for n in range(9) if n not in broken])
    summed = clipped_sum(model, trainable, examples, clip=0.5, chunk=4)
    expected = clipped_sum(model, trainable, examples.map(lambda part: part[sound]), clip=0.5, chunk=4)
    assert float(norm({name: summed[name] - expected[name] for name in summed})) < 1e-6 * float(norm(expected))
    alone = clipped_sum(model, trainable, examples.map(lambda part: part[broken]), clip=0.5, chunk=4)
    assert not any(value.any() for value in alone.values())


def test_factors_by_hand():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [float("nan"), 0.0], [float("inf"), 1.0], [3e38, 3e38]])
    other = torch.tensor([[12.0], [0.0], [0.0], [1.0], [1.0], [1.0]])
    expected = [1 / 13, 1.0, 1.0, 0.0, 0.0, 0.0]  # the last norm is beyond float32: out, not wrong
    assert clip_factors([part.square().sum(1) for part in (rows, other)], 1.0).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("power", range(-44, 20, 3))
def test_automatic_factors_bound_gradients_whose_squares_vanish_too(power):
    """With a constant below the least one, a gradient of 1e-23 that looks like none would weigh 3e8 clips."""
    row = torch.full((1, 1000), 10.0**power)
    factors = automatic_factors([row.square().sum(1)], 1.0, LEAST_GAMMA)
    assert float(row.double().norm()) * float(factors[0]) <= 1 + 1e-6
    with pytest.raises(ValueError, match="gamma = 1e-13: from 1e-12 up"):
        automatic_factors([row.square().sum(1)], 1.0, LEAST_GAMMA / 10)
