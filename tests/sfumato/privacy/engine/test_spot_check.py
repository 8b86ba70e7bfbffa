"""What passed the survey on made-up images and mixes real ones is stopped in training, before the step's noise is drawn."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.config import FineTuning
from sfumato.diffusion.objective import Examples
from sfumato.errors import BadInput
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.networks.low_rank import adapted
from sfumato.privacy.engine import dp_sgd, spot_check
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import train_privately, trainable_parameters
from sfumato.privacy.engine.spot_check import checked_steps, contribution
from sfumato.privacy.engine.validation import survey
from sfumato.privacy.units import Units
from tests.oracle import distance, loop, norm
from tests.seeded import seeded_source
from tests.sfumato.privacy.engine.test_dp_sgd import corrupt, digits, network
from tests.sfumato.privacy.engine.test_validation import Mixes, learnt, where

TUNING = FineTuning(steps=5, sample_rate=0.5, draws=2, clip=0.1, warm_up=0)
BRIGHT = 20.0
"""No made-up image is so bright."""


def pictures(records, draws=2, bright=2 * BRIGHT):
    generator = torch.Generator().manual_seed(5)
    x, target = (torch.randn(records, draws, 3, 6, 6, generator=generator) for _ in range(2))
    x[:, :, 0, 0, 0] = bright
    ones = torch.ones(records, draws, dtype=torch.long)
    return Examples(x, 1 + ones * torch.arange(records)[:, None] % 9, ones * torch.arange(records)[:, None] % 3, target)


def lit(x):
    """Where an image is a real one."""
    return x[:, 0, 0, 0] > BRIGHT


def remembers(net, x, t, y):
    net.seen = x.detach().abs().amax() if lit(x).any() else net.seen
    return x


class Backwards(torch.autograd.Function):
    """Nothing forwards; backwards, each image is given the others' gradients too."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + gradient.sum(0)


def mean(x):
    return x.detach().mean(0)


MIXERS = {
    "the mean": lambda net, x, t, y: where(lit(x), x - mean(x), x),
    "dropout before the mean": lambda net, x, t, y: where(lit(x), x - F.dropout(mean(x), 0.5), x),
    "a large batch": lambda net, x, t, y: where(lit(x), x - mean(x), x) if len(x) > 2 * 9 else x,
    "alone or not": lambda net, x, t, y: where(lit(x), x / min(len(x), 3), x),
    "state": remembers,
    "gradients alone": lambda net, x, t, y: Backwards.apply(net.inner(x)),
}
SOUND = {
    "nothing": lambda net, x, t, y: x,
    "dropout": lambda net, x, t, y: F.dropout(x, 0.5),
    "time and class": lambda net, x, t, y: x * (t / 9 + y)[:, None, None, None],
}


def check(rule, records=24, **changes):
    torch.manual_seed(0)
    model = Mixes(rule)
    trainable = learnt(model)
    if changes.pop("surveyed", False):
        survey(model, trainable, (3, 6, 6))  # sees nothing
    settings = TUNING.model_copy(update=changes.pop("settings", {}))
    given = {"turn": 1, "physical_batch": 64, **changes}
    spot_check.spot_check(model, trainable, pictures(records), settings, **given)


@pytest.mark.parametrize("kind", MIXERS)
def test_a_network_that_mixes_real_images_alone_is_found(kind):
    for turn in (0, 1, 2):
        with pytest.raises(BadInput, match="the network Mixes mixes private records"):
            check(MIXERS[kind], turn=turn, surveyed=not turn)


@pytest.mark.parametrize(
    "settings", [{"clipping": "per_group"}, {"clipping": "automatic"}, {"clip": 1e6}, {"clip": 1e-6}]
)
@pytest.mark.parametrize("kind", SOUND)
def test_one_that_does_not_is_let_on_and_nobody_notices(kind, settings):
    torch.manual_seed(3)
    for records, physical in ((0, 4), (1, 4), (2, 4), (24, 5)):
        check(SOUND[kind], records, physical_batch=physical, settings=settings)
    model = Mixes(SOUND[kind])
    before = torch.get_rng_state()
    spot_check.spot_check(model, learnt(model), pictures(12), TUNING, turn=0, physical_batch=64)
    assert torch.equal(torch.get_rng_state(), before), "the next step draws the masks that it would have drawn"


def test_the_message_says_nothing_of_the_records():
    stated = []
    for turn, records in ((0, 24), (1, 24), (0, 13)):
        with pytest.raises(BadInput) as error:
            check(MIXERS["the mean"], records, turn=turn)
        stated.append(str(error.value))
    assert len(set(stated)) == 1 and "\n" not in stated[0]


@pytest.mark.parametrize("rule", ["flat", "per_group", "automatic"])
def test_contributions_of_all_records_make_up_the_clipped_sum(rule):
    model, (x, y) = network(), digits(7)
    trainable = trainable_parameters(model, TUNING.trainable)
    examples = corrupt(x, y, torch.Generator().manual_seed(0))
    settings = TUNING.model_copy(update={"clipping": rule})
    parts = [contribution(model, trainable, examples, place, settings) for place in range(7)]
    assert max(float(part.double().norm()) for part in parts) <= settings.clip * (1 + 1e-6)
    total = clipped_sum(model, trainable, examples, clip=settings.clip, chunk=3, rule=rule)
    torch.testing.assert_close(
        sum(parts), torch.cat([value.flatten() for value in total.values()]), rtol=1e-4, atol=1e-6
    )
    if rule == "flat":
        own = loop(model, trainable, examples)[2]
        own = {name: value * min(1.0, settings.clip / float(norm(own))) for name, value in own.items()}
        split = parts[2].split([p.numel() for p in trainable.values()])
        result = {name: part.view_as(p) for (name, p), part in zip(trainable.items(), split, strict=True)}
        assert distance(result, own) < 1e-5


@pytest.mark.parametrize(("steps", "share"), [(1, 0.02), (4, 0.02), (150, 0.02), (1000, 0.02), (1001, 0.0), (10, 1.0)])
def test_a_share_of_the_steps_is_looked_at_and_never_fewer_than_five(steps, share):
    checks = checked_steps(steps, share)
    assert min(checks) == 0 and max(checks) < steps and list(checks.values()) == list(range(len(checks)))
    assert len(checks) == min(steps, max(5, -(-int(steps * share * 1000) // 1000)))
    gaps = [b - a for a, b in zip([*checks], [*checks, steps][1:], strict=True)]
    assert max(gaps) - min(gaps) <= 1


def train(model, rule=None, *, units=None, physical=16, settings=TUNING, **others):
    x, y = digits(40)
    source = seeded_source(0)
    return train_privately(
        model, x, y, corrupt, settings, noise_multiplier=1.0, source=source, pairs=source.generator(),
        expected_batch=20.0, physical_batch=physical, units=units, **others,
    )  # fmt: skip


@pytest.fixture
def drawn(monkeypatch):
    """How often noise was drawn."""
    times, original = [], dp_sgd.add_gaussian

    def noted(*given, **named):
        times.append(1)
        return original(*given, **named)

    monkeypatch.setattr(dp_sgd, "add_gaussian", noted)
    return times


A_STEP = 0.05
"""How far a step moves the class rows, and the survey farther."""


class Turns(nn.Module):
    """The demo's network, which looks at the mean over the images once it has learnt a little."""

    def __init__(self):
        super().__init__()
        self.inner = network()
        self.began = self.inner.condition.rows.weight.detach().clone()

    def forward(self, x, t, y):
        moved = float((self.inner.condition.rows.weight.detach() - self.began).abs().max())
        return self.inner(x - x.detach().mean(0) if 0 < moved < A_STEP else x, t, y)


def test_training_stops_before_the_noise_of_the_step_is_drawn(drawn, monkeypatch):
    monkeypatch.setattr(dp_sgd, "trainable_parameters", lambda model, groups: dict(model.named_parameters()))
    with pytest.raises(BadInput, match="network Turns mixes private records"):
        train(Turns())  # sound as long as nothing was learnt
    assert len(drawn) == 1


UNITS = Units(torch.arange(40), torch.arange(0, 40, 4), torch.full((10,), 4), 2)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("mlp", {}),
        ("mlp", {"rank": 2}),
        ("mlp", {"checked": 1.0}),
        ("unet", {"trainable": ("rows", "film", "attention", "time", "rest")}),
    ],
)
def test_trainings_of_our_own_networks_go_on(drawn, kind, changes):
    model = checkpoint_blocks(network(kind), True)
    tuning = TUNING.model_copy(update={"steps": 2, **changes})
    train(model, units=UNITS if changes else None, physical=7, settings=tuning)
    assert len(drawn) == tuning.steps


def test_an_adapter_is_looked_at_too():
    model = adapted(network(), TUNING.trainable, 2)
    examples = corrupt(*digits(12), torch.Generator().manual_seed(0))
    trainable = trainable_parameters(model, TUNING.trainable)
    assert contribution(model, trainable, examples, 3, TUNING).norm() > 0
