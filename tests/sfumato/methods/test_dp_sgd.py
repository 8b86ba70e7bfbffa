"""The baseline: all diffusion times, all walked by the tuned model, and the paper's own accounting as its claim."""

from dataclasses import replace

import pytest
import torch
from opacus.accountants import RDPAccountant

from sfumato.errors import BadInput
from sfumato.methods import dp_sgd
from sfumato.methods.parts import untuned
from sfumato.methods.voting import nearest_image_class
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting.accountant import dp_sgd_epsilon
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


def test_the_claim_is_opacus_rdp_of_the_same_steps():
    settings, facts, _ = preflight(resolve("dp-sgd", changes=["privacy.epsilon=4"]))
    plan = plan_for(settings, facts)
    theirs = RDPAccountant()
    for _ in range(3):
        theirs.history.append((plan.noise_multiplier, plan.fine_tuning.sample_rate, 50))
    assert plan.claim.epsilon == pytest.approx(theirs.get_epsilon(plan.certificate.delta), rel=1e-6)
    assert plan.claim.epsilon > plan.certificate.epsilon, "Renyi accounting is the looser of the two"


def test_votes_compare_with_the_public_images_start_the_rows_and_are_paid_for(world):
    plain, voting = world("dp-sgd"), world("dp-sgd", "method.votes=true", "method.vote_noise=7")
    assert voting.plan.images_of_ballot and not plain.plan.images_of_ballot
    assert [spend.stage for spend in voting.plan.spends] == ["votes", "fine_tuning"]
    assert voting.plan.event("votes").noise_multiplier == 7.0
    assert voting.plan.noise_multiplier > plain.plan.noise_multiplier, "out of the same epsilon"
    x, parts = torch.rand(30, 1, 8, 8) * 2 - 1, voting.parts
    near = (x[:, None] - parts.images[None]).flatten(2).norm(dim=2).argmin(1)
    assert torch.equal(nearest_image_class(parts)(x, torch.zeros(30, dtype=torch.long)), parts.image_classes[near])


@pytest.mark.parametrize(
    ("changes", "public", "culprit"),
    [
        (["alignment.kind=moments"], 52, "takes each to where all public ones lie"),
        (["method.distinct=true"], 3, "needs 10 public classes"),
        ([], 1, "the public images are one class"),
    ],
)
def test_votes_with_nothing_to_choose_are_refused(changes, public, culprit):
    settings, facts, _ = preflight(resolve("dp-sgd", changes=["method.votes=true", *changes]))
    with pytest.raises(BadInput, match=culprit):
        plan_for(settings, facts.model_copy(update={"public_classes": public}))


def test_a_target_below_what_votes_cost_names_them_and_their_noise():
    def at(*changes):
        settings, facts, _ = preflight(resolve("dp-sgd", changes=["privacy.epsilon=.2", "method.votes=true", *changes]))
        return plan_for(settings, facts.model_copy(update={"public_classes": 52}))

    with pytest.raises(BadInput, match=r"= 0.2 is out of reach: votes .* cost 0\.4\d+ .*raise method.vote_noise, "):
        at()
    assert at("method.vote_noise=20").certificate.epsilon <= 0.2


EDM = ("schedule.kind=edm", "schedule.law=lognormal", "network.prediction=edm", "schedule.timesteps=60")


def test_dpdm_draws_its_noise_levels_by_the_law_in_private_steps_and_walks_to_images(world):
    tiny = world("dp-sgd", *EDM, "fine_tuning.draws=40", "generation.solver=heun", "generation.churn=5")
    x, y = torch.rand(100, 1, 8, 8) * 2 - 1, torch.arange(100) % 10
    examples = dp_sgd.corrupt(tiny.settings, tiny.parts)(x, y, torch.Generator().manual_seed(0))
    levels = tiny.parts.schedule.alpha_bar.double()
    drawn = (1 / levels[examples.t] - 1).log() / 2
    assert float(drawn.mean()) == pytest.approx(-1.2, abs=0.1) and float(drawn.std()) == pytest.approx(1.2, rel=0.05)
    parts = replace(tiny.parts, tuned=untuned(tiny.parts))
    images = dp_sgd.draw(tiny.settings, parts, y[:6], torch.Generator().manual_seed(1))
    assert images.shape == (6, 1, 8, 8) and float(images.abs().max()) <= 1 and float(images.std()) > 0


@pytest.mark.parametrize(
    "form", [[], ["generation.solver=heun", "generation.churn=50", "generation.steps=100"], ["pretraining.steps=3000"]]
)
def test_the_forms_of_dpdm_are_certified_as_any_dp_sgd(form):
    settings, facts, _ = preflight(resolve("dp-sgd", "dpdm", form))
    plan, tuning = plan_for(settings, facts), settings.fine_tuning
    assert (settings.schedule.kind, settings.schedule.law, settings.network.prediction) == ("edm", "lognormal", "edm")
    epsilon = dp_sgd_epsilon(plan.noise_multiplier, tuning.sample_rate, tuning.steps, plan.certificate.delta)
    assert plan.certificate.epsilon == pytest.approx(epsilon, rel=1e-6) and epsilon <= 10
    assert len(plan.spends) == 1 and set(tuning.trainable) == {"rows", "film", "attention", "time", "rest"}
