"""Low-rank adapters: nothing changes at the start, only they learn, and the ordinary network comes back."""

import pytest
import torch

from sfumato.config import FineTuning, Network, Schedule
from sfumato.diffusion.objective import denoising_examples
from sfumato.diffusion.schedule import make_schedule
from sfumato.networks.build import build
from sfumato.networks.denoiser import parameters_by_group
from sfumato.networks.low_rank import LowRank, adapted, merged
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import train_privately, trainable_parameters
from sfumato.privacy.engine.validation import survey
from tests import oracle
from tests.seeded import seeded_source

NETWORKS = {
    "mlp": Network(kind="mlp", width=24, blocks=2, condition=8),
    "unet": Network(kind="unet", width=8, blocks=1, condition=8, multipliers=(1, 2), attention=(4,)),
    "dit": Network(kind="dit", width=8, blocks=1, condition=8, heads=2, patch=2),
}
SCHEDULE = make_schedule(Schedule(timesteps=20))
GROUPS = ("rows", "film", "attention")
each_network = pytest.mark.parametrize("kind", NETWORKS)


def moved(model, size=0.1):
    """Every parameter pushed by random numbers, so that nothing stays at zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model


def with_adapters(kind, rank=3):
    return adapted(moved(build(NETWORKS[kind], (1, 8, 8), 10)), GROUPS, rank, torch.Generator().manual_seed(2))


def ask(model):
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    return model(x, torch.arange(1, 6), torch.arange(5))


@each_network
def test_adapters_change_nothing_until_they_learn_and_then_as_much_once_merged(kind):
    plain = moved(build(NETWORKS[kind], (1, 8, 8), 10))
    model = with_adapters(kind)
    torch.testing.assert_close(ask(model), ask(plain))
    learnt = moved(model, 0.3)
    before = ask(learnt)
    assert not torch.allclose(before, ask(plain), atol=1e-3)
    ordinary = merged(learnt)
    torch.testing.assert_close(ask(ordinary), before, rtol=1e-4, atol=1e-4)
    assert ordinary.state_dict().keys() == plain.state_dict().keys()
    assert merged(ordinary) is ordinary


@each_network
def test_only_linear_layers_of_the_groups_get_adapters_whose_size_follows_the_rank(kind):
    model = with_adapters(kind, rank=3)
    wrapped = {name: part for name, part in model.named_modules() if isinstance(part, LowRank)}
    assert wrapped and all(".film" in name or ".attention." in name for name in wrapped)
    sizes = parameters_by_group(model)
    linear = sum(3 * (part.frozen.in_features + part.frozen.out_features) for part in wrapped.values())
    norms = sum(p.numel() for name, p in model.named_parameters() if ".attention.norm." in name)
    assert sizes["film"] + sizes.get("attention", 0) == linear + norms
    chosen = trainable_parameters(model, GROUPS)
    assert not any(".frozen." in name for name in chosen)
    assert not any(p.requires_grad for name, p in model.named_parameters() if ".frozen." in name)


@each_network
def test_the_clipping_engine_knows_them(kind):
    model = moved(with_adapters(kind), 0.2)
    trainable = trainable_parameters(model, GROUPS)
    x = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(4)) * 2 - 1
    generator = torch.Generator().manual_seed(5)
    examples = denoising_examples(SCHEDULE, x, torch.arange(9), draws=3, low=1, high=20, generator=generator)
    assert survey(model, trainable, (1, 8, 8)).missing == "", "no record-by-record fallback"
    model.condition.time[0].register_forward_pre_hook(lambda layer, inputs: (inputs[0].to(layer.weight.dtype),))
    each = oracle.loop(model, trainable, examples)
    clip = float(sorted(map(oracle.norm, each))[4])
    result = clipped_sum(model, trainable, examples, clip=clip, chunk=4)
    assert oracle.distance(result, oracle.clipped(each, clip)) < 1e-4


@each_network
def test_private_training_hands_back_an_ordinary_network_that_moved_by_that_rank(kind):
    plain = moved(build(NETWORKS[kind], (1, 8, 8), 10))
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    settings = FineTuning(steps=6, sample_rate=1.0, draws=1, clip=1.0, trainable=GROUPS, rank=2, warm_up=0)

    def corrupt(x, y, generator):
        return denoising_examples(SCHEDULE, x, y, draws=1, low=1, high=20, generator=generator)

    x, y = torch.rand(30, 1, 8, 8) * 2 - 1, torch.arange(30) % 10
    tuned = train_privately(
        plain, x, y, corrupt, settings,
        noise_multiplier=1.0, source=seeded_source(), pairs=torch.Generator().manual_seed(0), expected_batch=30,
        physical_batch=30,
    )  # fmt: skip
    assert tuned.state_dict().keys() == before.keys()
    for name, value in tuned.state_dict().items():
        change = value - before[name]
        adapter = name.endswith("film.weight") or name.endswith(("attention.qkv.weight", "attention.out.weight"))
        learns = adapter or name == "condition.rows.weight" or ".attention.norm." in name
        assert bool(change.abs().max() > 1e-5) == learns, name
        if adapter:
            assert int((torch.linalg.svdvals(change.double()) > 1e-4 * change.norm()).sum()) <= 2, name
