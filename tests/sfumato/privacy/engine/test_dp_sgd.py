"""The engine as it runs: who takes part, how much noise arrives, what moves, and what repeats it."""

import math

import pytest
import torch
from sklearn.datasets import load_digits

from sfumato.config import FineTuning, Network, Schedule
from sfumato.diffusion.objective import denoising_examples, record_losses
from sfumato.diffusion.schedule import make_schedule
from sfumato.networks.build import build
from sfumato.networks.denoiser import groups_of
from sfumato.privacy.engine import dp_sgd
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import add_gaussian, poisson_sample, train_privately, trainable_parameters
from tests.seeded import seeded_source

SCHEDULE = make_schedule(Schedule(timesteps=50))
TUNING = FineTuning(steps=3, sample_rate=0.5, draws=2, clip=0.1, trainable=("rows", "film"), warm_up=0)


def network(kind="mlp"):
    width = {"mlp": 64, "unet": 8}[kind]
    model = build(Network(kind=kind, width=width, blocks=1, condition=32, attention=(4,)), (1, 8, 8), 10)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def digits(count):
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images[:count] / 8 - 1).float().view(-1, 1, 8, 8)
    return x, torch.from_numpy(labels[:count]).long()


def corrupt(x, y, generator):
    return denoising_examples(SCHEDULE, x, y, draws=TUNING.draws, low=1, high=50, generator=generator)


@pytest.fixture
def gradients(monkeypatch):
    """What the optimiser is given at each step: a list of {name: gradient}, filled while training runs."""
    seen = []

    class Watched(torch.optim.Adam):
        def step(self, *args, **kwargs):
            seen.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
            return super().step(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "Adam", Watched)
    return seen


def run(model, x, y, settings=TUNING, *, noise=1.0, seed=0, expected=20.0, chunk=16, **others):
    source = seeded_source(seed)
    return train_privately(
        model, x, y, others.pop("corrupt", corrupt), settings, noise_multiplier=noise, source=source,
        pairs=source.generator(), expected_batch=expected, physical_batch=chunk, **others,
    )  # fmt: skip


# Who takes part


def test_each_record_takes_part_on_its_own_with_the_sample_rate():
    source, rate, steps, records = seeded_source(), 0.3, 4000, 25
    part = torch.zeros(steps, records, dtype=torch.double)
    for step in range(steps):
        index = poisson_sample(records, rate, source)
        assert len(index.unique()) == len(index), "no record twice in a step"
        part[step, index] = 1
    spread = math.sqrt(rate * (1 - rate) / steps)
    assert part.mean(0).tolist() == pytest.approx([rate] * records, abs=5 * spread)
    sizes = part.sum(1)
    assert float(sizes.mean()) == pytest.approx(records * rate, abs=5 * spread * records**0.5)
    assert float(sizes.var()) == pytest.approx(records * rate * (1 - rate), rel=5 * math.sqrt(2 / steps))
    together = torch.corrcoef(part.T).fill_diagonal_(0)
    assert together.abs().max() < 5.5 / steps**0.5, "no two records come or stay away together"


def test_the_rate_one_takes_all_and_a_small_one_may_take_none():
    source = seeded_source()
    assert poisson_sample(50, 1.0, source).tolist() == list(range(50))
    empty = sum(len(poisson_sample(10, 0.05, source)) == 0 for _ in range(2000))
    assert empty / 2000 == pytest.approx(0.95**10, abs=5 * 0.5 / 2000**0.5)
    assert poisson_sample(0, 0.5, source).shape == (0,)


def test_the_engine_sees_a_fresh_sample_in_each_step():
    seen = []

    def spy(x, y, generator):
        seen.append(x[:, 0, 0, 0].tolist())
        return corrupt(x, y, generator)

    x, y = digits(200)
    x[:, 0, 0, 0] = torch.arange(200) / 200
    run(network(), x, y, TUNING.model_copy(update={"steps": 30, "sample_rate": 0.1}), corrupt=spy)
    sizes = torch.tensor([len(step) for step in seen], dtype=torch.double)
    assert len(seen) == 30 and len({tuple(step) for step in seen}) == 30
    assert float(sizes.mean()) == pytest.approx(20, abs=5 * math.sqrt(18 / 30))
    assert sizes.unique().numel() > 5, "a Poisson sample has no fixed size"


# How much noise arrives


@pytest.mark.parametrize("kind", ["mlp", "unet"])
@pytest.mark.parametrize(("noise", "clip", "expected"), [(1.0, 0.1, 20.0), (2.7, 5.0, 0.5)])
def test_without_records_the_gradient_is_noise_of_the_stated_level(gradients, kind, noise, clip, expected):
    x, y = digits(4)
    settings = TUNING.model_copy(
        update={"clip": clip, "steps": 4, "trainable": ("rows", "film", "attention", "time", "rest")}
    )
    run(network(kind), x[:0], y[:0], settings, noise=noise, expected=expected)
    deviation = noise * clip / expected
    assert len(gradients) == 4
    per_parameter = [torch.cat([step[i].flatten() for step in gradients]).double() for i in range(len(gradients[0]))]
    for values in per_parameter:  # every tensor by itself, so that none goes without
        bound = 5.5 * math.sqrt(2 / len(values)) + (0.5 if len(values) < 40 else 0)
        assert float(values.square().mean()) / deviation**2 == pytest.approx(1, abs=bound)
    everything = torch.cat(per_parameter) / deviation
    count = len(everything)
    assert count > 20_000 and len(everything.unique()) > 0.8 * count, "whole steps of a grid may be equal"
    assert float(everything.mean()) == pytest.approx(0, abs=5 / count**0.5)
    assert float(everything.square().mean()) == pytest.approx(1, abs=5 * math.sqrt(2 / count))
    first, second = (torch.cat([g.flatten() for g in step]) / deviation for step in gradients[:2])
    assert float((first * second).mean()) == pytest.approx(0, abs=5 / len(first) ** 0.5), "each step draws anew"


def test_an_empty_poisson_batch_is_a_step_like_any_other(gradients):
    """Who is in a batch must not show: no step is left out, none has another scale."""
    x, y = digits(5)
    settings = TUNING.model_copy(update={"steps": 40, "sample_rate": 1e-6})
    run(network(), x, y, settings, noise=1.5, expected=3.0)
    assert len(gradients) == 40
    level = torch.stack([torch.cat([g.flatten() for g in step]).square().mean().sqrt() for step in gradients])
    assert level.tolist() == pytest.approx([1.5 * 0.1 / 3.0] * 40, rel=0.1)


def test_the_sum_is_divided_by_the_expected_batch_and_not_by_the_real_one(gradients):
    x, y = digits(30)
    model = network()
    trainable = trainable_parameters(model, TUNING.trainable)
    made = []

    def spy(x, y, generator):
        made.append(corrupt(x, y, generator))
        return made[-1]

    expected = 8.0
    one_step = TUNING.model_copy(update={"steps": 1})
    before = {name: p.detach().clone() for name, p in trainable.items()}
    run(model, x, y, one_step, noise=1e-9, expected=expected, corrupt=spy)
    assert len(made[0].y) not in (0, 8, 30)
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(before[name])
    total = clipped_sum(model, trainable, made[0], clip=one_step.clip, chunk=100)
    rows = [total[name] for name in total if groups_of(model)(name) == "rows"]
    other = [total[name] for name in total if groups_of(model)(name) != "rows"]
    for got, want in zip(gradients[0], [*rows, *other], strict=True):
        torch.testing.assert_close(got, want / expected, rtol=1e-4, atol=1e-7)


def test_the_chunk_is_only_a_matter_of_memory(gradients):
    x, y = digits(40)
    for chunk in (1, 7, 1000):
        run(network(), x, y, TUNING.model_copy(update={"steps": 1}), chunk=chunk)
    for a, b, c in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_batch_that_memory_does_not_hold_is_halved_and_said(gradients, monkeypatch, error):
    x, y = digits(40)
    one = TUNING.model_copy(update={"steps": 1})
    run(network(), x, y, one, chunk=16)
    tried, stated = [], []

    def little_memory(*given, chunk, real=dp_sgd.clipped_sum, **named):
        tried.append(chunk)
        if chunk > 5:
            raise error
        return real(*given, chunk=chunk, **named)

    monkeypatch.setattr(dp_sgd, "clipped_sum", little_memory)
    run(network(), x, y, one.model_copy(update={"steps": 2}), chunk=16, note=stated.append)
    assert tried == [16, 8, 4, 4] and len(stated) == 2
    assert "machine.physical_batch=8: going on with 4" in stated[1]
    for a, b in zip(gradients[0], gradients[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_what_no_memory_would_mend_is_not_tried_again(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(dp_sgd, "clipped_sum", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        run(network(), *digits(40))


def test_noise_goes_on_every_number_with_its_own_draw():
    total = {"a": torch.zeros(300, 100), "b": torch.full((50,), 7.0)}
    noisy = add_gaussian(total, noise_multiplier=0.5, clip=0.5, source=seeded_source())
    assert float(noisy["a"].std()) == pytest.approx(0.25, rel=0.03) and len(noisy["a"].unique()) > 29_000
    assert float(noisy["b"].mean()) == pytest.approx(7, abs=5 * 0.25 / 50**0.5)
    assert not total["a"].any(), "the sum itself is left as it was"


# What moves


@pytest.mark.parametrize("groups", [("rows",), ("film",), ("time",), ("rest",), ("rows", "film")], ids=str)
def test_only_the_chosen_groups_move(groups):
    x, y = digits(20)
    model = network()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = run(model, x, y, TUNING.model_copy(update={"trainable": groups}))
    for name, parameter in trained.named_parameters():
        assert torch.equal(parameter, before[name]) == (groups_of(model)(name) not in groups), name


def test_rows_of_absent_classes_move_like_the_others():
    """Noise falls on every row, or the rows would show which classes there are."""
    x, y = digits(100)
    here = y < 5
    model = network()
    before = model.condition.rows.weight.detach().clone()
    settings = TUNING.model_copy(update={"trainable": ("rows",), "steps": 30, "ema_decay": 0.0})
    trained = run(model, x[here], y[here], settings, noise=30.0)
    moved = (trained.condition.rows.weight - before).norm(dim=1)
    assert moved.min() > 0.5 * moved.max() > 0


def test_rows_and_the_rest_have_rates_of_their_own():
    """Adam's first step moves every number by its learning rate."""
    x, y = digits(20)
    model = network()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    settings = TUNING.model_copy(update={"steps": 1, "rate_rows": 0.2, "rate_other": 0.01})
    trained = run(model, x, y, settings, noise=100.0)
    for name, parameter in trained.named_parameters():
        moved = (parameter.detach() - before[name]).abs()
        rate = {"rows": 0.2, "film": 0.01}.get(groups_of(model)(name), 0.0)
        assert float(moved.max()) == pytest.approx(rate, rel=0.02)


def test_it_learns_where_there_is_no_noise_to_speak_of(gradients):
    x, y = digits(100)
    settings = FineTuning(
        steps=40, sample_rate=1.0, draws=2, clip=10.0, trainable=("rows", "film", "time", "rest"), warm_up=0
    )
    trained = run(network(), x, y, settings, noise=1e-6, expected=100.0)

    def loss(model):
        examples = corrupt(x, y, torch.Generator().manual_seed(9))
        return float(record_losses(model, examples).mean().detach())

    assert loss(trained) < 0.75 * loss(network())


# What is told


def test_the_callback_hears_step_numbers_and_nothing_else():
    heard = []
    x, y = digits(10)
    run(network(), x, y, progress=lambda *reported: heard.append(reported))
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_an_injected_generator_repeats_the_run():
    x, y = digits(30)
    one, two, other = (run(network(), x, y, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.condition.rows.weight, other.condition.rows.weight)


def test_the_global_seed_plays_no_part():
    x, y = digits(30)
    result = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        result.append(run(network(), x, y, seed=3).condition.rows.weight)
    assert torch.equal(*result)


def test_the_average_is_what_leaves():
    """With decay d and three steps: d^2 w1 + d (1 - d) w2 + (1 - d) w3."""
    x, y = digits(10)
    places, model = [], network()
    settings = TUNING.model_copy(update={"ema_decay": 0.6})
    trained = run(
        model, x, y, settings, progress=lambda *_: places.append(model.condition.rows.weight.detach().clone())
    )
    expected = 0.36 * places[0] + 0.24 * places[1] + 0.4 * places[2]
    torch.testing.assert_close(trained.condition.rows.weight.detach(), expected)
    assert dp_sgd.moving_average(model, 0.6).module is not model


def test_further_averages_are_of_the_same_steps_and_change_nothing():
    x, y = digits(10)
    places, model, result = [], network(), {}
    settings = TUNING.model_copy(update={"ema_decay": 0.6, "averages": (0.0, 0.9)})
    run(
        model, x, y, settings, keep=result.__setitem__,
        progress=lambda *_: places.append(model.condition.rows.weight.detach().clone()),
    )  # fmt: skip
    assert list(result) == [0.0, 0.9] and len(places) == 3
    torch.testing.assert_close(result[0.0].condition.rows.weight.detach(), places[2])
    expected = 0.81 * places[0] + 0.09 * places[1] + 0.1 * places[2]
    torch.testing.assert_close(result[0.9].condition.rows.weight.detach(), expected)
