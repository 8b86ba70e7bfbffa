"""One loss per record, which is a function of that record alone; K copies stand with the record that they come from."""

import copy

import pytest
import torch

from sfumato.config import Network, Schedule
from sfumato.diffusion.objective import (
    denoising_examples,
    grouped,
    record_losses,
    renoising_loss,
    repeat_records,
    uniform_times,
)
from sfumato.diffusion.schedule import make_schedule
from sfumato.networks.build import build

SHAPE = (1, 8, 8)
NETWORKS = {
    "mlp": Network(kind="mlp", width=16, blocks=1, condition=8),
    "unet": Network(kind="unet", width=8, blocks=1, condition=8, attention=(4,)),
}


def awake(kind):
    """A network whose zero-initialised layers are random, so that every part of it has a say."""
    model = build(NETWORKS[kind], SHAPE, 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def some_examples(records=4, draws=3, seed=0):
    x = torch.rand(records, *SHAPE, generator=torch.Generator().manual_seed(5)) * 2 - 1
    y = torch.arange(records) % 3
    schedule, generator = make_schedule(Schedule(timesteps=50)), torch.Generator().manual_seed(seed)
    return x, y, denoising_examples(schedule, x, y, draws=draws, low=4, high=9, generator=generator)


def test_the_copies_of_a_record_are_its_own_at_times_and_noises_of_their_own():
    x, y, examples = some_examples(records=40, draws=30)
    assert examples.x_t.shape == (40, 30, *SHAPE) and examples.t.shape == examples.y.shape == (40, 30)
    level = make_schedule(Schedule(timesteps=50)).alpha_bar[examples.t][..., None, None, None]
    undone = (examples.x_t - (1 - level).sqrt() * examples.target) / level.sqrt()
    torch.testing.assert_close(undone, x[:, None].expand_as(undone), rtol=1e-4, atol=1e-4)
    assert torch.equal(examples.y, y[:, None].expand(40, 30))
    assert set(examples.t.flatten().tolist()) == {4, 5, 6, 7, 8, 9}  # 1,200 draws: both ends belong to it
    assert len(examples.target.flatten(0, 1).unique(dim=0)) == 1200
    assert float(examples.target.var()) == pytest.approx(1, rel=0.03)


def test_repeating_and_grouping_are_each_other_undone():
    x, y = torch.arange(6.0).view(3, 2), torch.tensor([7, 8, 9])
    copies, labels = repeat_records(x, y, 4)
    examples = grouped(copies, labels, labels, copies, draws=4)
    assert torch.equal(examples.x_t, x[:, None].expand(3, 4, 2)) and torch.equal(examples.y[:, 2], y)


def test_times_are_uniform_over_both_ends():
    t = uniform_times(30_000, 3, 5, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert (torch.bincount(t) / 30_000)[3:].tolist() == pytest.approx([1 / 3] * 3, abs=0.015)
    assert t.min() == 3 and t.max() == 5


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_records_loss_is_the_mean_over_its_copies_and_pixels(kind):
    model = awake(kind)
    _, _, examples = some_examples()
    losses = record_losses(model, examples)
    assert losses.shape == (4,)
    for record in range(4):
        each = [
            (model(examples.x_t[record, k][None], examples.t[record, k][None], examples.y[record, k][None])[0]
             - examples.target[record, k]).square().sum() / 64
            for k in range(3)
        ]  # fmt: skip
        torch.testing.assert_close(losses[record], sum(each) / 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", NETWORKS)
def test_changing_one_record_changes_its_own_loss_and_gradient_only(kind):
    model = awake(kind)
    _, _, examples = some_examples()

    def each_gradient(examples):
        losses = record_losses(model, examples)
        whole = [torch.autograd.grad(loss, model.parameters(), retain_graph=True) for loss in losses]
        return losses.detach(), [torch.cat([g.flatten() for g in gradient]) for gradient in whole]

    def exchange(field):
        field = copy.deepcopy(field)
        field[2] = field[2].flip(0) * -1 + 3 if field.is_floating_point() else (field[2] + 1) % 3
        return field

    losses, gradients = each_gradient(examples)
    changed, other = each_gradient(examples.map(exchange))
    for record in range(4):
        same = record != 2
        assert torch.allclose(losses[record], changed[record], rtol=1e-6) == same
        assert torch.allclose(gradients[record], other[record], rtol=1e-5, atol=1e-7) == same


@pytest.mark.parametrize("kind", NETWORKS)
def test_no_loss_depends_on_another_records_pixels(kind):
    model = awake(kind)
    _, _, examples = some_examples(draws=1)
    x_t = examples.x_t.clone().requires_grad_()
    losses = record_losses(model, type(examples)(x_t, examples.t, examples.y, examples.target))
    for record, loss in enumerate(losses):
        reach = torch.autograd.grad(loss, x_t, retain_graph=True)[0].flatten(1).abs().sum(1)
        assert (reach > 0).tolist() == [other == record for other in range(4)]


def test_an_empty_batch_has_no_losses():
    x, y, _ = some_examples()
    generator = torch.Generator().manual_seed(0)
    schedule = make_schedule(Schedule(timesteps=50))
    examples = denoising_examples(schedule, x[:0], y[:0], draws=3, low=1, high=9, generator=generator)
    assert examples.x_t.shape == (0, 3, *SHAPE) and examples.t.shape == (0, 3)
    for kind in NETWORKS:
        assert record_losses(awake(kind), examples).shape == (0,)


# Learning from latents alone


def test_what_is_learnt_from_latents_is_the_noise_prediction_of_the_data():
    """For Gaussian data the exact prediction is known; no multiple of it fits the latents better."""
    schedule, boundary, mean, spread = make_schedule(Schedule(timesteps=1000)), 500, 0.3, 0.2
    level = schedule.alpha_bar.double()
    generator = torch.Generator().manual_seed(0)
    data = mean + spread * torch.randn(40_000, 1, 2, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(data.shape, generator=generator, dtype=torch.float64)
    latents = level[boundary].sqrt() * data + (1 - level[boundary]).sqrt() * noise
    times, scale = [], torch.ones((), dtype=torch.float64, requires_grad=True)

    def exact(x, t, y):
        times.append(t)
        at = level[t].view(-1, 1, 1, 1)
        return scale * (1 - at).sqrt() * (x - at.sqrt() * mean) / (at * spread**2 + 1 - at)

    y = torch.zeros(len(data), dtype=torch.long)
    loss = renoising_loss(exact, schedule, latents, y, boundary=boundary, generator=generator)
    (slope,) = torch.autograd.grad(loss, scale)
    assert float(slope) == pytest.approx(0, abs=0.01) and 0 < float(loss.detach()) < 1
    assert int(times[0].min()) == boundary + 1 and int(times[0].max()) == 1000


def test_the_weight_keeps_times_next_to_the_boundary_from_shouting():
    """At t = S + 1 an unweighted target would be some thirty times the noise here."""
    schedule = make_schedule(Schedule(timesteps=200))
    ratio = schedule.alpha_bar[101] / schedule.alpha_bar[100]
    assert float((1 - schedule.alpha_bar[101]) / (1 - ratio)) > 30
    latents, y = torch.randn(5000, 1, 2, 2), torch.zeros(5000, dtype=torch.long)
    for boundary in (100, 199):
        generator = torch.Generator().manual_seed(0)
        off = renoising_loss(
            lambda x, t, y: x, schedule, latents, y, boundary=boundary, generator=generator
        )  # the exact prediction for data without any signal
        assert float(off) <= 1.05
