"""The public loop: its average, its learning rate, its batches, and that a seed repeats it bit for bit."""

import gc
import itertools

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from sfumato import training
from sfumato.config import Network, Pretraining, Schedule
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import make_schedule
from sfumato.networks.build import build
from sfumato.networks.layers import SeededDropout
from sfumato.training import batches, denoiser_training, moving_average, pretrain, train, warm_then_decay, young_average

SCHEDULE = make_schedule(Schedule())
SMALL = Pretraining(steps=120, batch=64, warm_up=10)


def digits(count=400):
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images[:count] / 8 - 1).float().view(-1, 1, 8, 8), torch.from_numpy(labels[:count]).long()


def pretrained(seed=0, settings=SMALL, wrap=lambda model: model, **others):
    model = build(Network(kind="mlp", width=32, blocks=1, condition=16), (1, 8, 8), 10, seed=seed)
    return pretrain(wrap(model), SCHEDULE, *digits(), settings, seed=seed, **others)


def test_the_average_is_exponential_from_the_first_step_on():
    model, decay, seen = nn.Linear(1, 1, bias=False), 0.9, []
    average = moving_average(model, decay)
    for value in (5.0, 1.0, -2.0, 4.0):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update_parameters(model)
        seen.append(average.module.weight.item())
    expected = [5.0]  # the start is the first step's weights, not the initial ones
    for value in (1.0, -2.0, 4.0):
        expected.append(decay * expected[-1] + (1 - decay) * value)
    assert seen == pytest.approx(expected)


def test_the_average_of_a_short_training_does_not_remember_where_it_began():
    """At a decay of .999 a plain average would still be half of its first weights after 700 steps."""
    model, young, plain = nn.Linear(1, 1, bias=False), [], []
    for make, result in ((young_average, young), (moving_average, plain)):
        average = make(model, 0.999)
        for step in range(700):
            nn.init.constant_(model.weight, min(step / 100, 1.0))
            average.update_parameters(model)
        result.append(average.module.weight.item())
    assert plain[0] < 0.6 and young[0] > 0.999


def test_an_old_average_has_the_decay_that_was_asked_for():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = young_average(model, 0.9)
    for _ in range(100):
        average.update_parameters(model)
    nn.init.ones_(model.weight)
    average.update_parameters(model)
    assert average.module.weight.item() == pytest.approx(0.1)


def test_the_learning_rate_rises_then_falls_to_its_final_share():
    factor = warm_then_decay(10, 100, 0.2)
    assert [factor(step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5 * (1 - 0.032), 1 - 0.072])
    assert [factor(step) for step in (50, 100)] == pytest.approx([0.6, 0.2])
    rates = [factor(step) for step in range(101)]
    assert all(a < b for a, b in itertools.pairwise(rates[:10]))
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))
    assert warm_then_decay(0, 10, 1.0)(0) == 1.0


def test_the_loop_applies_the_rate_and_returns_the_average():
    """Adam's first steps move by the learning rate: that shows both the schedule and the average."""
    model, places, losses = nn.Linear(1, 1, bias=False), [], [7.0, 7.0, 7.0]
    nn.init.zeros_(model.weight)
    trained, result = train(
        model,
        lambda: model.weight.sum() + 7.0 - model.weight.item(),
        steps=3,
        learning_rate=0.1,
        warm_up=2,
        final_rate=0.5,
        ema_decay=0.5,
        progress=lambda done, total: places.append((done, total, model.weight.item())),
    )
    rates = [0.1 * 0.5, 0.1 * (1 - 0.5 / 3), 0.1 * (1 - 1 / 3)]
    expected = [-rates[0], -rates[0] - rates[1], -sum(rates)]
    assert [place for _, _, place in places] == pytest.approx(expected, rel=1e-4)
    assert [(done, total) for done, total, _ in places] == [(1, 3), (2, 3), (3, 3)]
    two = (
        2 / 11 * expected[0] + 9 / 11 * expected[1]
    )  # young: (1 + n) / (10 + n) is below the decay after one step and two
    assert trained.weight.item() == pytest.approx(3 / 12 * two + 9 / 12 * expected[2], rel=1e-4)
    assert result == pytest.approx(losses)


def test_no_tensor_outlives_its_step():
    """One that does scatters the heap: 2 GB grew to 18 in 2,000 steps of mean embeddings."""
    alive = []

    def counted(done, of):
        gc.collect()
        alive.append(sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects()))

    model = nn.Linear(2, 1)
    nn.init.ones_(model.weight)  # far from the solution, where some of torch's own draws lie
    rates = {"learning_rate": 0.1, "warm_up": 1, "final_rate": 0.1, "ema_decay": 0.9}
    _, losses = train(model, lambda: model(torch.ones(3, 2)).square().mean(), steps=12, progress=counted, **rates)
    assert len(set(alive[2:])) == 1
    assert losses[-1] < losses[0] and all(losses)


@pytest.mark.parametrize(("records", "batch"), [(12, 4), (13, 4), (5, 100)])
def test_each_pass_is_a_fresh_permutation_without_the_incomplete_rest(records, batch):
    feed = iter(batches(records, batch, torch.Generator().manual_seed(0)))
    size, passes = min(batch, records), []
    for _ in range(6):
        seen = torch.cat([next(feed) for _ in range(records // size)])
        assert len(seen) == records - records % size
        assert len(seen.unique()) == len(seen) and 0 <= int(seen.min()) <= int(seen.max()) < records
        passes.append(tuple(seen.tolist()))
    assert len(set(passes)) == 6
    assert set(itertools.chain(*passes)) == set(range(records)), "the dropped rest is another one each time"


def test_pretraining_lowers_the_loss_and_hands_out_a_frozen_model():
    model, losses = pretrained()
    assert len(losses) == 120
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
    assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_the_same_seed_gives_the_same_weights_to_the_last_bit():
    settings = SMALL.model_copy(update={"steps": 15})
    torch.manual_seed(1)
    one, losses = pretrained(seed=3, settings=settings)
    torch.manual_seed(2)
    two, again = pretrained(seed=3, settings=settings)
    other, _ = pretrained(seed=4, settings=settings)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert losses == again
    assert not torch.equal(one.input.weight, other.input.weight)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_that_share_of_the_images_is_shown_without_a_class(share):
    requested = []

    class Spy(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, t, y):
            requested.append((t, y))
            return self.inner(x, t, y)

    pretrained(settings=SMALL.model_copy(update={"steps": 40, "label_dropout": share}), wrap=Spy)
    t, y = (torch.cat(part) for part in zip(*requested, strict=True))
    assert float((y == NO_CLASS).float().mean()) == pytest.approx(share, abs=0.05 * (0 < share < 1))
    assert t.min() >= 1 and t.min() < 20 and t.max() <= 1000 and t.max() > 980


DROPPING = Network(kind="unet", width=8, blocks=1, condition=8, multipliers=(1, 2), attention=(), dropout=0.5)


def test_dropout_follows_from_the_seed_and_ends_with_the_training():
    settings, result = Pretraining(steps=4, batch=16, warm_up=1), {}
    for name, seed in {"one": 3, "again": 3, "other": 4}.items():
        torch.manual_seed(len(name))  # which is nobody's business
        model = build(DROPPING, (1, 8, 8), 10, seed=0)
        trained, losses = pretrain(model, SCHEDULE, *digits(), settings, seed=seed)
        result[name] = losses, trained.output.weight
        for net in (model, trained):
            assert all(layer.seed is None for layer in net.modules() if isinstance(layer, SeededDropout))
    assert result["one"][0] == result["again"][0] and torch.equal(result["one"][1], result["again"][1])
    assert result["one"][0] != result["other"][0]
    plain = build(DROPPING.model_copy(update={"dropout": 0.0}), (1, 8, 8), 10, seed=0)
    _, losses = pretrain(plain, SCHEDULE, *digits(), settings, seed=3)
    assert losses != result["one"][0]


def test_weights_decay_beside_adam():
    """Loshchilov and Hutter 2019: without a gradient a weight shrinks by rate times decay, which Adam's own moments do not see."""
    layer = nn.Linear(2, 2, bias=False)
    before = layer.weight.detach().clone()
    trained, _ = train(
        layer, lambda: (0 * layer.weight).sum(), steps=1, learning_rate=0.1, warm_up=0, final_rate=1.0, ema_decay=0.0, weight_decay=0.5
    )  # fmt: skip
    torch.testing.assert_close(trained.weight.detach(), before * (1 - 0.1 * 0.5))


def test_without_images_another_network_stands_in():
    settings = Pretraining(steps=3, batch=4)
    fresh, public = (build(Network(kind="mlp", width=16), (1, 8, 8), 10, seed=seed) for seed in (1, 2))
    train_on = denoiser_training(fresh, SCHEDULE, settings, seed=0, idle=public)
    images, labels = digits(12)
    idle = train_on(images[:0], labels[:0])
    assert torch.equal(idle.input.weight, public.input.weight)
    learnt = train_on(images, labels)
    assert not torch.equal(learnt.input.weight, public.input.weight) and not torch.equal(
        learnt.output.weight, idle.output.weight
    )


def test_no_steps_leave_the_model_as_it_was():
    model, losses = pretrained(settings=SMALL.model_copy(update={"steps": 0}))
    fresh = build(Network(kind="mlp", width=32, blocks=1, condition=16), (1, 8, 8), 10, seed=0)
    assert losses == [] and torch.equal(model.input.weight, fresh.input.weight)


NETWORKS = {
    "mlp": Network(kind="mlp", width=32, blocks=1, condition=16),
    "dit": Network(kind="dit", width=32, blocks=1),
    "unet": Network(kind="unet", width=16, blocks=1, multipliers=(1,), attention=(8,)),
    "refinenet": Network(kind="refinenet", width=16, blocks=1, multipliers=(1,)),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in ("dit", "refinenet") else []) for kind in NETWORKS]
)
def test_public_training_with_rounded_products_comes_to_the_same(kind, monkeypatch):
    """As on a GPU; a CPU can round too, and shows that no layer minds. Weights and losses stay float32, and outside nothing is rounded."""
    result = {}
    for rounded in (False, True):
        monkeypatch.setattr(training, "HALVES", {"cpu": torch.bfloat16} if rounded else {})
        model = build(NETWORKS[kind], (1, 8, 8), 10, seed=0)
        trained, losses = pretrain(model, SCHEDULE, *digits(), Pretraining(steps=40, batch=32, warm_up=10), seed=0)
        assert {weights.dtype for weights in trained.parameters()} == {torch.float32}
        result[rounded] = losses
    exact, rounded = (torch.tensor(result[key]) for key in (False, True))
    assert not torch.equal(exact, rounded)
    assert float(rounded[-20:].mean()) == pytest.approx(float(exact[-20:].mean()), rel=0.02)
    assert not torch.is_autocast_enabled("cpu")
