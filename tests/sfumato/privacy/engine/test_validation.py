"""What is refused before training, by name and with the way out, and what is only slower."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.config import FineTuning
from sfumato.errors import BadInput
from sfumato.privacy.engine import clipping, dp_sgd
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.validation import survey
from tests.oracle import Wrapped, clipped, distance, loop, norm, pictures
from tests.seeded import seeded_source

SHAPE = (3, 6, 6)


class Centred(nn.Module):
    """Subtracts the mean over the batch, by hand."""

    def forward(self, x):
        return x - x.detach().mean(0)


class Remembers(nn.Module):
    """Keeps a moving average of what it sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += x.detach().abs().mean()
        return x


class Packed(nn.Module):
    """torch's own attention."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        x = x.flatten(1, 2)
        return self.attention(x, x, x)[0]


class Scaled(nn.Module):
    """A power, which has no rule."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x):
        return x * self.scale**2


class Merged(nn.Module):
    """A low-rank adapter whose product is added to the weight."""

    def __init__(self):
        super().__init__()
        self.frozen, self.up, self.down = (
            nn.Linear(36, 36),
            nn.Parameter(torch.randn(36, 2)),
            nn.Parameter(torch.randn(2, 36)),
        )

    def forward(self, x):
        return F.linear(x.flatten(2), self.frozen.weight + self.up @ self.down)


class Sideways(nn.Module):
    """A layer on an axis order in which records come second."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(36, 5)

    def forward(self, x):
        return self.inner(x.flatten(2).transpose(0, 1)).transpose(0, 1)


class Idle(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(36, 5), nn.Linear(36, 5)

    def forward(self, x):
        return self.used(x.flatten(2))


class Recurrent(nn.Module):
    """Nothing that torch can vectorise over records."""

    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(36, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x.flatten(2))[0]


class Mixes(nn.Module):
    """A denoiser whose images lose the mean over the batch, by way of a rule of its own."""

    def __init__(self, rule):
        super().__init__()
        self.rule, self.inner, self.seen = rule, nn.Conv2d(3, 3, 1), torch.zeros(())

    def forward(self, x, t, y):
        return self.inner(self.rule(self, x, t, y))


def where(condition, one, other):
    return torch.where(condition[:, None, None, None], one, other)


def remembers(net, x, t, y):
    out = x - net.seen
    net.seen = x.detach().mean()
    return out


def keeps_the_first(net, x, t, y):
    if not net.seen.any():
        net.seen = x[0].detach().clone()
    return x


def counts(net, x, t, y):
    net.calls = getattr(net, "calls", 0) + 1
    return x


MIXERS = {
    "dropout before the mean": lambda net, x, t, y: x - F.dropout(x.detach(), 0.5).mean(0),
    "state in an attribute": remembers,
    "a class": lambda net, x, t, y: where(y == 3, x - x.detach().mean(0), x),
    "a time": lambda net, x, t, y: where(t > 5, x - x.detach().mean(0), x),
    "a large batch": lambda net, x, t, y: x - x.detach().mean(0) if len(x) > 8 else x,
    "the latest time": lambda net, x, t, y: x * (t / t.max())[:, None, None, None],
    "the number of images": lambda net, x, t, y: x / len(x),
    "dropout of its own": lambda net, x, t, y: x - (x.detach() * torch.rand_like(x)).mean(0),
    "the first image": keeps_the_first,
    "a counter": counts,
}
"""Those up to the latest time passed the survey once, and moved the clipped sum by up to 39 clips."""


@pytest.mark.parametrize("kind", MIXERS)
def test_what_mixes_records_in_some_passes_only_is_refused(kind):
    torch.manual_seed(0)
    model = Mixes(MIXERS[kind])
    before = torch.get_rng_state()
    with pytest.raises(
        BadInput, match="Mixes.*(mixes records|at random)|inner.*another result|attribute '(seen|calls)'"
    ):
        clipped_sum(model, learnt(model), pictures(2, 1), clip=1.0, chunk=2)
    assert torch.equal(torch.get_rng_state(), before) and not model.seen.any(), "a copy was used"


@pytest.mark.parametrize(
    "rule",
    [
        lambda net, x, t, y: F.dropout(x, 0.5),
        lambda net, x, t, y: x * (t / 1000)[:, None, None, None] + y[:, None, None, None],
        lambda net, x, t, y: F.scaled_dot_product_attention(x, x, x, None, 0.3),
        lambda net, x, t, y: x + net.__dict__.setdefault("place", {}).setdefault(x.shape[1:], len(x.shape)),
    ],
    ids=["dropout by call", "time and class", "attention with dropout", "a table by shape"],
)
def test_what_looks_at_one_record_at_a_time_is_not(rule):
    torch.manual_seed(0)
    model = Mixes(rule)
    assert survey(model, learnt(model), SHAPE).missing == ""


def with_middle(layer):
    return Wrapped(nn.Sequential(nn.Conv2d(3, 3, 1), layer, nn.Conv2d(3, 3, 1)))


def learnt(model):
    return {name: p for name, p in model.named_parameters() if "frozen" not in name}


REFUSED = {
    "batch norm": (nn.BatchNorm2d(3), r"net.1.*BatchNorm2d.*nn.GroupNorm"),
    "frozen batch norm": (nn.BatchNorm2d(3, affine=False), r"net.1.*BatchNorm2d.*nn.GroupNorm"),
    "running instance norm": (nn.InstanceNorm2d(3, track_running_stats=True), r"net.1.*running statistics.*GroupNorm"),
    "centring by hand": (Centred(), r"net.1.*Centred.*mixes records.*nn.GroupNorm"),
    "a memory": (Remembers(), r"net.1.seen.*would remember"),
    "packed attention": (nn.Sequential(Packed(), nn.Unflatten(1, (3, 6))), r"net.1.0.attention.*nn.Linear"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_mixes_or_remembers_records_is_refused_by_name(kind):
    layer, message = REFUSED[kind]
    model = with_middle(layer)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(BadInput, match=message):
        clipped_sum(model, learnt(model), pictures(2, 1), clip=1.0, chunk=2)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items()), "nothing was touched"


def test_it_is_refused_before_any_record_is_used(monkeypatch):
    model = with_middle(nn.BatchNorm2d(3))
    monkeypatch.setattr(dp_sgd, "trainable_parameters", lambda model, groups: learnt(model))
    used = []
    with pytest.raises(BadInput, match="net.1"):
        dp_sgd.train_privately(
            model, torch.zeros(4, *SHAPE), torch.zeros(4).long(), lambda *given: used.append(given), FineTuning(),
            noise_multiplier=1.0, source=seeded_source(), pairs=torch.Generator(), expected_batch=2.0, physical_batch=4,
        )  # fmt: skip
    assert not used


@pytest.mark.parametrize("clip", [0.0, -1.0, 1e-20, float("nan"), float("inf")])
def test_a_clip_that_bounds_nothing_is_refused(clip):
    model = with_middle(nn.Identity())
    with pytest.raises(BadInput, match="fine_tuning.clip"):
        clipped_sum(model, learnt(model), pictures(2, 1), clip=clip, chunk=2)


SLOW = {
    "a power": (lambda: with_middle(Scaled()), "net.1.scale is used by pow"),
    "a merged adapter": (lambda: Wrapped(Merged()), "net.up is"),
    "records in second place": (lambda: Wrapped(Sideways()), "net.inner.weight meets an input"),
    "a recurrent net": (lambda: Wrapped(Recurrent()), "net.inner.weight_ih_l0 is used by gru"),
    "batch norm that is switched off": (lambda: with_middle(nn.BatchNorm2d(3).eval()), "net.1.weight is used by"),
}


@pytest.mark.parametrize("kind", SLOW)
def test_what_has_no_rule_is_named_and_still_right(kind):
    torch.manual_seed(0)
    make, message = SLOW[kind]
    model, examples = make(), pictures(5, 2)
    trainable = learnt(model)
    assert message in survey(model, trainable, SHAPE).missing
    each = loop(model, trainable, examples)
    clip = float(sorted(map(norm, each))[2])
    assert distance(clipped_sum(model, trainable, examples, clip=clip, chunk=2), clipped(each, clip)) < 1e-5


def test_training_tells_of_a_model_that_will_be_slow(monkeypatch):
    model, reported = with_middle(Scaled()), []
    monkeypatch.setattr(dp_sgd, "trainable_parameters", lambda model, groups: learnt(model))
    dp_sgd.train_privately(
        model, torch.zeros(4, *SHAPE), torch.zeros(4).long(),
        lambda x, y, generator: pictures(len(x), 1), FineTuning(steps=2, warm_up=0),
        noise_multiplier=1.0, source=seeded_source(), pairs=torch.Generator(), expected_batch=2.0, physical_batch=4, note=reported.append,
    )  # fmt: skip
    assert len(reported) == 1 and "record by record" in reported[0] and "net.1.scale" in reported[0]


def test_a_layer_that_is_not_used_sums_to_zero():
    model = Wrapped(Idle())
    assert survey(model, learnt(model), SHAPE).silent == {"net.unused.weight", "net.unused.bias"}
    result = clipped_sum(model, learnt(model), pictures(3, 1), clip=1.0, chunk=3)
    assert not result["net.unused.weight"].any() and result["net.used.weight"].any()


def test_a_parameter_without_a_norm_stops_the_step(monkeypatch):
    model, original = Wrapped(Idle()), clipping.weigh_records

    def forgets(*given, **named):
        weighed = original(*given, **named)
        return {names: one for names, one in weighed.items() if "net.used.bias" not in names}

    monkeypatch.setattr(clipping, "weigh_records", forgets)
    with pytest.raises(AssertionError, match="net.used.* has received no norm"):
        clipped_sum(model, learnt(model), pictures(3, 1), clip=1.0, chunk=3)


def test_dropout_is_each_records_own_affair():
    model = with_middle(nn.Dropout(0.5))
    assert survey(model, learnt(model), SHAPE).missing == ""
    assert model.net[1].training


@pytest.mark.parametrize("frozen", ["net.0.weight", "net.2.bias", "net.0.bias"])
def test_a_frozen_parameter_receives_nothing(frozen):
    torch.manual_seed(0)
    model, examples = with_middle(nn.GroupNorm(1, 3)), pictures(4, 2)
    trainable = {name: p for name, p in model.named_parameters() if name != frozen}
    model.get_parameter(frozen).requires_grad_(False)
    each = loop(model, trainable, examples)
    result = clipped_sum(model, trainable, examples, clip=0.1, chunk=4)
    assert set(result) == set(trainable) and distance(result, clipped(each, 0.1)) < 1e-5
    assert all(p.grad is None for p in model.parameters())
