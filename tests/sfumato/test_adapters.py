"""Members as heads behind one public network: trained and asked together as they are one by one, and apart from each other."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato import adapters
from sfumato.config import Network, Pretraining, Schedule
from sfumato.diffusion.samplers import NO_CLASS, guided
from sfumato.diffusion.schedule import add_noise, make_schedule
from sfumato.networks.build import build

SHAPE, CLASSES, WIDTH = (1, 8, 8), 3, 5
SCHEDULE = make_schedule(Schedule(timesteps=50))
TRAINING = Pretraining(steps=6, batch=7, learning_rate=0.03, warm_up=2, ema_decay=0.5, label_dropout=0.3)


def public(kind="mlp", shape=SHAPE):
    """A small frozen network whose last layer is not zero."""
    network = Network(kind=kind, width=16, blocks=1, condition=8)
    model = build(network, shape, 4, seed=1, alpha_bar=SCHEDULE.alpha_bar)
    with torch.no_grad():
        model.output.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    return model.eval().requires_grad_(False)


def shards_of(*sizes, shape=SHAPE):
    """Records of each shard, which lacks classes where it is small."""
    generator = torch.Generator().manual_seed(3)
    records = [torch.rand(size, *shape, generator=generator) * 2 - 1 for size in sizes]
    return [(x, torch.arange(len(x)) % CLASSES) for x in records]


def trained(shards, settings=TRAINING, **others):
    return adapters.heads_trained(
        adapters.Trunk(public()), SCHEDULE, shards, settings, classes=CLASSES, width=WIDTH, seed=9, **others
    )


class Alone(nn.Module):
    """One member, spelt out: the network's own body, then down, scale and shift by class, and up."""

    def __init__(self, body, beginning):
        super().__init__()
        self.body = body
        self.down = nn.Parameter(beginning.down[0].clone())
        self.rows = nn.Parameter(torch.zeros(CLASSES, 2 * WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, math.prod(SHAPE)))

    def forward(self, x, t, y):
        model = self.body
        condition = model.condition(t, torch.full_like(t, NO_CLASS))
        hidden = model.input(x.flatten(1))
        for block in model.blocks:
            hidden = block(hidden, condition)
        features = model.norm(hidden)
        noise = model.output(features).view_as(x)
        rows = torch.stack([self.rows.mean(0) if label < 0 else self.rows[label] for label in y.tolist()])
        scale, shift = rows[:, :WIDTH], rows[:, WIDTH:]
        out = F.silu((features @ self.down) * (1 + scale) + shift) @ self.up
        return noise + SCHEDULE.alpha_bar[t].sqrt().view(-1, 1, 1, 1) * out.view_as(x)


def trained_alone(body, shard, seed, settings=TRAINING):
    """A member trained by a plain loop, with Adam, warm-up, decay and the average written out."""
    beginning = adapters.heads_for(adapters.Trunk(body), SHAPE, CLASSES, count=1, width=WIDTH, seed=9)
    member, generator = Alone(body, beginning), torch.Generator().manual_seed(seed)
    own = [member.down, member.rows, member.up]
    optimiser, average = torch.optim.Adam(own), [value.detach().clone() for value in own]
    x, y = shard
    for step in range(settings.steps):
        place = torch.rand(settings.batch, generator=generator)
        dropped = torch.rand(settings.batch, generator=generator) < settings.label_dropout
        t = torch.randint(1, 51, (settings.batch,), generator=generator)
        noise = torch.randn(settings.batch, *SHAPE, generator=generator)
        index = (place * len(x)).long()
        predicted = member(add_noise(SCHEDULE, x[index], t, noise), t, y[index].masked_fill(dropped, NO_CLASS))
        weights = (1 / SCHEDULE.alpha_bar[t]).clamp(max=adapters.LARGEST_WEIGHT)
        loss = (weights * (predicted - noise).square().flatten(1).mean(1)).mean()
        optimiser.zero_grad()
        loss.backward()
        rise, fall = min(1, (step + 1) / settings.warm_up), 1 - (1 - settings.final_rate) * step / settings.steps
        optimiser.param_groups[0]["lr"] = settings.learning_rate * rise * fall
        optimiser.step()
        decay = min(settings.ema_decay, (1 + step) / (10 + step)) if step else 0.0
        average = [decay * old + (1 - decay) * new.detach() for old, new in zip(average, own, strict=True)]
    with torch.no_grad():
        for value, mean in zip(own, average, strict=True):
            value.copy_(mean)
    return member


def test_members_trained_and_asked_together_are_those_of_a_loop(monkeypatch):
    """In chunks of two, with shards of very different sizes, guided or not."""
    monkeypatch.setattr(adapters, "TRAINED_AT_ONCE", 2)
    monkeypatch.setattr(adapters, "NUMBERS_AT_ONCE", 2 * 4 * 64)
    body, shards = public(), shards_of(20, 3, 1, 40, 5)
    heads = trained(shards)
    alone = [trained_alone(body, shard, 9 + adapters.APART * k) for k, shard in enumerate(shards)]
    for k, member in enumerate(alone):
        for name in ("down", "rows", "up"):
            torch.testing.assert_close(heads.get_parameter(name)[k], getattr(member, name), rtol=1e-4, atol=1e-5)
    x, t, y = torch.randn(4, *SHAPE), torch.tensor([1, 20, 40, 50]), torch.tensor([0, 1, 2, NO_CLASS])
    noise, features = adapters.Trunk(body)(x, t)
    for guidance in (0.0, 2.0):
        parts = list(adapters.deviations(heads, features, y, guidance))
        assert [len(part) for part in parts] == [2, 2, 1]
        requested = noise + SCHEDULE.signal(t) * torch.cat(parts)
        with torch.no_grad():
            one_by_one = torch.stack([guided(member, guidance)(x, t, y) for member in alone])
        torch.testing.assert_close(requested, one_by_one, rtol=1e-4, atol=1e-4)
    assert (alone[0].up - alone[1].up).abs().max() > 1e-2, "they have learnt, each something else"


def test_one_record_changes_one_member():
    """Every other member is bit for bit what it was, whatever the record: changed, huge, not finite, added or taken away."""
    shards = shards_of(6, 4, 8)
    before, (x, y) = trained(shards), shards[1]
    others = [
        (torch.cat([x[:-1], -x[-1:]]), y), (torch.cat([x[:-1], 1e6 * x[-1:]]), y),
        (torch.cat([x[:-1], math.nan * x[-1:]]), y), (torch.cat([x, x[:1]]), torch.cat([y, y[:1]])), (x[:-1], y[:-1]), (x[:0], y[:0]),
    ]  # fmt: skip
    for own in others:
        after = trained([shards[0], own, shards[2]])
        for name, value in before.named_parameters():
            for k in (0, 2):
                assert torch.equal(value[k], after.get_parameter(name)[k]), (name, k)
        assert not torch.equal(before.up[1], after.up[1])


def test_an_empty_shard_leaves_the_public_network():
    heads = trained(shards_of(5, 0))
    assert heads.up[1].abs().max() == 0 == heads.rows[1].abs().max() and heads.up[0].abs().max() > 0
    trunk, y = adapters.Trunk(public()), torch.arange(2)
    _, features = trunk(torch.randn(2, *SHAPE), y + 1)
    (out,) = adapters.deviations(heads, features, y, 2.0)
    assert out[1].abs().max() == 0 < out[0].abs().max()


def test_members_are_frozen_and_nothing_of_the_public_network_learns():
    body = public()
    before = {name: value.clone() for name, value in body.state_dict().items()}
    heads = adapters.heads_trained(
        adapters.Trunk(body), SCHEDULE, shards_of(4, 4), TRAINING, classes=CLASSES, width=WIDTH, seed=0
    )
    assert all(torch.equal(value, before[name]) for name, value in body.state_dict().items())
    assert heads.count == 2 and not any(p.requires_grad for p in heads.parameters())


@pytest.mark.parametrize(
    ("kind", "shape"), [("mlp", SHAPE), ("unet", (2, 16, 16)), ("dit", SHAPE), ("refinenet", SHAPE)]
)
def test_the_trunk_gives_the_input_of_the_last_layer_of_every_network(kind, shape):
    """Its prediction is that of the whole network, the features are of each image alone, and no hook stays behind."""
    body = public(kind, shape)
    trunk, x, t = adapters.Trunk(body), torch.randn(3, *shape), torch.tensor([1, 25, 50])
    noise, features = trunk(x, t)
    torch.testing.assert_close(noise, body(x, t, torch.full_like(t, NO_CLASS)))
    torch.testing.assert_close(trunk(x[1:2], t[1:2])[1], features[1:2], rtol=1e-4, atol=1e-5)
    assert features.shape[0] == 3 and features.shape[1] <= 64 * 64 and not trunk.last._forward_pre_hooks
    assert features.std() > 0.1
    heads = adapters.heads_for(trunk, shape, CLASSES, count=4, width=WIDTH)
    (out,) = adapters.deviations(heads, features, torch.arange(3), 1.0)
    assert out.shape == (4, 3, *shape) and out.abs().max() == 0


def test_progress_counts_the_steps_of_all_members(monkeypatch):
    monkeypatch.setattr(adapters, "TRAINED_AT_ONCE", 2)
    seen = []
    trained(shards_of(2, 2, 2), TRAINING.model_copy(update={"steps": 3}), progress=lambda *now: seen.append(now))
    assert seen == [(2, 9), (4, 9), (6, 9), (7, 9), (8, 9), (9, 9)]
