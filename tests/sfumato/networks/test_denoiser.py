"""A network from elsewhere takes the place of ours: its classes are exchanged, its groups chosen, and it is fine-tuned by DP-SGD."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfumato.config import FineTuning, Network, Schedule
from sfumato.diffusion.objective import denoising_examples
from sfumato.diffusion.samplers import NO_CLASS, ddim
from sfumato.diffusion.schedule import make_schedule, time_grid
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts, private_rows, untuned
from sfumato.methods.plan import Facts
from sfumato.networks.build import build
from sfumato.networks.denoiser import (
    Denoiser,
    as_denoiser,
    class_rows,
    groups_of,
    parameters_by_group,
    with_classes,
)
from sfumato.networks.low_rank import adapted, merged
from sfumato.privacy.engine.dp_sgd import train_privately, trainable_parameters
from sfumato.privacy.engine.validation import survey
from sfumato.settings import Settings
from tests.seeded import seeded_source

SHAPE, CLASSES = (1, 8, 8), 10
SCHEDULE = make_schedule(Schedule(timesteps=50))
FOREIGN = {"vocabulary": "rows", "clock": "time"}
"""How the network below calls what we call otherwise."""


class Foreign(nn.Module):
    """A network with names of its own: no `condition`, no `film`; the class moves the channels of a convolution."""

    def __init__(self, classes=26, width=16):
        super().__init__()
        self.vocabulary = nn.Linear(classes, width, bias=False)
        self.clock = nn.Linear(1, width)
        self.lift, self.fall = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.mix = nn.Linear(width, width)

    def forward(self, x, t, y):
        known = self.vocabulary.in_features
        wanted = F.one_hot(y.clamp(min=0), known).to(x.dtype)
        reported = self.vocabulary(torch.where((y < 0)[:, None], 1 / known, wanted)) + self.clock(t[:, None] / 50)
        return self.fall(F.silu(self.lift(x) + self.mix(F.silu(reported))[:, :, None, None]))

    def class_rows(self):
        return self.vocabulary.weight.T

    def exchange_rows(self, rows):
        self.vocabulary = nn.Linear(len(rows), rows.shape[1], bias=False)
        self.vocabulary.weight = nn.Parameter(rows.T.contiguous())

    def group_of(self, name):
        return FOREIGN.get(name.split(".")[0], "film" if name.startswith("mix.") else "rest")


@pytest.fixture
def foreign():
    torch.manual_seed(0)
    return Foreign()


def parts_of(model):
    facts = Facts(records=30, classes=tuple("0123456789"), public_classes=26, shape=SHAPE)
    return Parts(schedule=SCHEDULE, shape=SHAPE, facts=facts, public=model)


def test_ours_and_a_foreign_one_keep_the_contract_and_another_module_does_not(foreign):
    for kind in ("mlp", "unet", "refinenet", "dit"):
        assert isinstance(build(Network(kind=kind, width=32, blocks=1, condition=8), SHAPE, 3), Denoiser)
    assert isinstance(foreign, Denoiser)
    with pytest.raises(TypeError, match="Linear is no Denoiser: give it class_rows, exchange_rows and group_of"):
        as_denoiser(nn.Linear(2, 2))
    assert set(parameters_by_group(nn.Linear(2, 2))) == {"rest"}


def test_its_rows_become_those_of_the_private_classes(foreign):
    parts, before = parts_of(foreign), class_rows(foreign).detach().clone()
    started = untuned(parts)
    torch.testing.assert_close(class_rows(started).detach(), before.mean(0).expand(CLASSES, -1))
    assert torch.equal(class_rows(foreign), before) and private_rows(parts).shape == (CLASSES, 16)
    x, t = torch.randn(3, *SHAPE), torch.full((3,), 9)
    none = foreign(x, t, torch.full((3,), NO_CLASS))
    torch.testing.assert_close(started(x, t, torch.tensor([0, 4, 9])), none)


def test_its_own_names_decide_what_is_trained_and_an_adapter_belongs_to_its_layer(foreign):
    assert list(trainable_parameters(foreign, ("rows", "time"))) == ["vocabulary.weight", "clock.weight", "clock.bias"]
    weight = foreign.mix.weight.detach().clone()
    group_of = groups_of(adapted(foreign, ("film",), 2))
    names = ("mix.down.weight", "mix.up.weight", "mix.frozen.weight", "mix.frozen.bias", "fall.weight")
    assert [group_of(name) for name in names] == ["film", "film", "frozen", "frozen", "rest"]
    assert torch.equal(merged(foreign).mix.weight, weight) and "frozen" not in parameters_by_group(foreign)


@pytest.mark.parametrize(("groups", "rank"), [(("rows", "film"), 0), (("film",), 2), (("rows", "rest"), 0)], ids=str)
def test_it_is_fine_tuned_by_dp_sgd_and_drawn_from(foreign, groups, rank):
    model, method = with_classes(foreign, torch.randn(CLASSES, 16)), METHODS["dp-sgd"]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    tuning = FineTuning(steps=3, sample_rate=1.0, draws=2, clip=0.1, trainable=groups, rank=rank, warm_up=0)
    settings = Settings(method=method.section(), schedule=Schedule(timesteps=50), fine_tuning=tuning)
    x, y = torch.rand(30, *SHAPE) * 2 - 1, torch.arange(30) % CLASSES
    trainable = trainable_parameters(model, groups)
    assert survey(model, trainable, SHAPE).missing == "", "no record-by-record fallback"
    tuned = train_privately(
        model, x, y, method.corrupt(settings, parts_of(model)), tuning,
        noise_multiplier=1.0, source=seeded_source(), pairs=torch.Generator().manual_seed(0), expected_batch=30,
        physical_batch=16,
    )  # fmt: skip
    group_of = groups_of(tuned)
    for name, parameter in tuned.named_parameters():
        learns = group_of(name) in groups and not (rank and name.endswith("bias"))
        assert torch.equal(parameter, before[name]) == (not learns), name
    walk = time_grid(50, 0, 5)
    drawn = ddim(SCHEDULE, tuned, torch.randn(4, *SHAPE), torch.arange(4), walk, generator=torch.Generator())
    assert drawn.shape == (4, *SHAPE) and drawn.isfinite().all()


def test_its_examples_do_not_know_whose_network_it_is(foreign):
    x, y = torch.rand(5, *SHAPE), torch.arange(5)
    seen = denoising_examples(SCHEDULE, x, y, draws=2, low=1, high=50, generator=torch.Generator().manual_seed(0))
    assert foreign(seen.x_t.flatten(0, 1), seen.t.flatten(), seen.y.flatten()).shape == (10, *SHAPE)
