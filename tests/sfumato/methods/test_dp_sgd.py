"""The baseline: all diffusion times, all walked by the tuned model, and the paper's own accounting as its claim."""

import pytest
import torch
from opacus.accountants import RDPAccountant

from sfumato.methods import dp_sgd
from sfumato.preflight import plan_for, preflight
from sfumato.settings import resolve


def test_examples_cover_every_time_with_fresh_noise(world):
    tiny = world("dp-sgd", "schedule.timesteps=6", "fine_tuning.draws=5")
    x, y = torch.rand(800, 1, 8, 8) * 2 - 1, torch.arange(800) % 10
    examples = dp_sgd.corrupt(tiny.settings, tiny.parts)(x, y, torch.Generator().manual_seed(0))
    shares = torch.bincount(examples.t.flatten(), minlength=7) / 4000
    assert shares.tolist() == pytest.approx([0] + [1 / 6] * 6, abs=5 * 0.4 / 4000**0.5)
    assert float(examples.target.var()) == pytest.approx(1, rel=0.02)
    copies = examples.target.flatten(2)
    assert float((copies[:, 0] * copies[:, 1]).mean()) == pytest.approx(0, abs=0.03), "each copy has noise of its own"


def test_the_tuned_model_walks_the_whole_way():
    settings = resolve("dp-sgd", changes=["schedule.timesteps=50", "generation.steps=7"])
    assert (dp_sgd.walk(settings)[0], dp_sgd.walk(settings)[-1], len(dp_sgd.walk(settings))) == (50, 0, 8)
    more = resolve("dp-sgd", changes=["schedule.timesteps=50", "generation.steps=99"])
    assert list(dp_sgd.walk(more)) == list(range(50, -1, -1))


def test_the_claim_is_opacus_rdp_of_the_same_steps():
    settings, facts, _ = preflight(resolve("dp-sgd", changes=["privacy.epsilon=4"]))
    plan = plan_for(settings, facts)
    theirs = RDPAccountant()
    for _ in range(3):
        theirs.history.append((plan.noise_multiplier, plan.fine_tuning.sample_rate, 50))
    assert plan.claim.epsilon == pytest.approx(theirs.get_epsilon(plan.certificate.delta), rel=1e-6)
    assert plan.claim.epsilon > plan.certificate.epsilon, "Renyi accounting is the looser of the two"
