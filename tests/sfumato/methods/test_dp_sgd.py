"""The baseline: all diffusion times, all walked by the tuned model, and the paper's own accounting as its claim."""

from dataclasses import replace

import pytest
import torch
from opacus.accountants import RDPAccountant

from sfumato.diffusion.objective import denoising_examples
from sfumato.errors import BadInput
from sfumato.methods import dp_sgd
from sfumato.methods.parts import untuned
from sfumato.methods.plan import Facts
from sfumato.methods.voting import nearest_image_class
from sfumato.networks.autoencoder import latent_shape
from sfumato.networks.build import build
from sfumato.networks.denoiser import parameters_by_group
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting.accountant import dp_sgd_epsilon
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.settings import resolve
from tests import oracle


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


AUGMENTED = ("method.mirror=true", "method.shift=2")
MIXTURE = ("method.times=[0,30,600,800]", "method.time_shares=[0.05,0.9,0.05]")


def undone(schedule, examples):
    """The pictures in noised copies, `[b, K, c, h, w]`."""
    level = schedule.alpha_bar[examples.t][..., None, None, None]
    return (examples.x_t - (1 - level).sqrt() * examples.target) / level.sqrt()


def test_without_augmentation_the_copies_are_those_of_earlier_versions(world):
    tiny = world("dp-sgd", "fine_tuning.draws=3")
    x, y = torch.rand(7, 1, 8, 8) * 2 - 1, torch.arange(7)
    examples = dp_sgd.corrupt(tiny.settings, tiny.parts)(x, y, torch.Generator().manual_seed(3))
    high, generator = tiny.settings.schedule.timesteps, torch.Generator().manual_seed(3)
    before = denoising_examples(tiny.parts.schedule, x, y, draws=3, low=1, high=high, generator=generator)
    assert all(
        torch.equal(one, other) for one, other in zip(vars(examples).values(), vars(before).values(), strict=True)
    )


def test_each_copy_is_augmented_and_noised_by_itself_and_stands_with_its_record(world):
    tiny = world("dp-sgd", "schedule.timesteps=50", "fine_tuning.draws=30", *AUGMENTED)
    # a record's own number in every pixel, but for one that says how it was mirrored and shifted
    x = torch.linspace(-0.9, 0.9, 10)[:, None, None, None].repeat(1, 1, 8, 8)
    x[:, :, 3, 2] = 1.0
    y = torch.arange(10)
    pictures = undone(
        tiny.parts.schedule, dp_sgd.corrupt(tiny.settings, tiny.parts)(x, y, torch.Generator().manual_seed(0))
    )
    for record, copies in enumerate(pictures):
        marked = (copies - 1).abs() < 1e-3
        torch.testing.assert_close(copies[~marked], x[record, 0, 0, 0].expand_as(copies[~marked]), rtol=1e-3, atol=1e-3)
        places = {tuple(map(tuple, copy[0].nonzero().tolist())) for copy in marked}
        assert len(places) > 10, "copies of one record differ"


def test_private_steps_draw_their_times_by_the_mixture_and_public_training_does_not(world):
    tiny = world("dp-sgd", "schedule.timesteps=1000", "fine_tuning.draws=50", *MIXTURE)
    x, y = torch.rand(400, 1, 8, 8) * 2 - 1, torch.arange(400) % 10
    t = dp_sgd.corrupt(tiny.settings, tiny.parts)(x, y, torch.Generator().manual_seed(0)).t.flatten()
    shares = torch.histogram(t.float(), torch.tensor([0.5, 30.5, 600.5, 800.5, 1000.5]), density=False).hist / len(t)
    assert shares.tolist() == pytest.approx([0.05, 0.9, 0.05, 0], abs=0.01)
    assert tiny.parts.schedule.law is None


def test_augmented_copies_of_a_record_add_one_clip_at_most_and_cost_what_they_cost(world):
    """Against a loop over records in float64: the mean over a record's copies is clipped, not each of them."""
    plain, tiny = (
        world("dp-sgd", "fine_tuning.draws=6", "schedule.timesteps=1000", *more)
        for more in ((), (*AUGMENTED, *MIXTURE))
    )
    assert tiny.plan.spends == plain.plan.spends and tiny.plan.certificate == plain.plan.certificate
    x, y = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(8)) * 2 - 1, torch.arange(9)
    examples = dp_sgd.corrupt(tiny.settings, tiny.parts)(x, y, torch.Generator().manual_seed(1))
    model = untuned(tiny.parts).requires_grad_(True)
    trainable = trainable_parameters(model, tiny.settings.fine_tuning.trainable)
    each = oracle.loop(model, trainable, examples)
    norms = sorted(float(oracle.norm(gradient)) for gradient in each)
    clip = norms[4]
    computed = clipped_sum(model, trainable, examples, clip=clip, chunk=64)
    assert oracle.distance(computed, oracle.clipped(each, clip)) < 1e-4
    for record in range(9):
        alone = clipped_sum(
            model, trainable, examples.map(lambda field, at=record: field[at : at + 1]), clip=clip, chunk=64
        )
        assert float(oracle.norm(alone)) <= clip * (1 + 1e-6)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        (["method.mirror=true", "latent.kind=kl"], "method.mirror=true .*latent.kind=kl"),
        (["method.shift=2", "alignment.kind=moments"], "method.shift=2 .*alignment.kind=moments"),
        (["method.shift=8"], "method.shift=8 takes images of 8 pixels out of sight: use at most 7"),
        ([*MIXTURE, "schedule.timesteps=700"], "method.times ends at 800, and there are 700 times"),
    ],
)
def test_copies_of_what_is_no_picture_and_times_that_are_not_there_are_refused(changes, culprit):
    with pytest.raises(BadInput, match=culprit) as refusal:
        settings, facts, _ = preflight(resolve("dp-sgd", changes=changes))
        plan_for(settings, facts)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        (["method.times=[0,30]"], "one time more than"),
        (["method.time_shares=[1]"], "one time more than"),
        (["method.times=[0,30,30]", "method.time_shares=[1,1]"], "must rise"),
        (["method.times=[0,30]", "method.time_shares=[0]"], "time_shares"),
        (["method.shift=-1"], "shift"),
    ],
)
def test_spans_without_shares_are_refused(changes, culprit):
    with pytest.raises(BadInput, match=culprit):
        resolve("dp-sgd", changes=changes)


def sizes(preset):
    """Settings, the private set's facts, and the numbers of parameters by group, without numbers."""
    settings, shape = (
        resolve("dp-sgd", preset),
        {"dp-diffusion-cifar10": (3, 32, 32), "dp-ldm-mnist": (1, 32, 32)}[preset],
    )
    records = {"dp-diffusion-cifar10": 50_000, "dp-ldm-mnist": 60_000}[preset]
    facts = Facts(records=records, classes=tuple("0123456789"), public_classes=10, shape=shape)
    tuning = settings.fine_tuning.model_copy(update={"sample_rate": settings.fine_tuning.batch / records})
    with torch.device("meta"):
        model = build(settings.network, latent_shape(settings.latent, shape), 10)
    return settings.model_copy(update={"fine_tuning": tuning}), facts, parameters_by_group(model)


def test_dp_diffusion_is_planned_at_its_papers_size():
    """Ghalebikesabi et al. 2023, abstract: more than 80 million parameters, fine-tuned at epsilon 10."""
    settings, facts, groups = sizes("dp-diffusion-cifar10")
    plan = dp_sgd.plan(settings, facts)
    assert sum(groups.values()) > 80_000_000 and set(settings.fine_tuning.trainable) == set(groups)
    assert plan.certificate.epsilon <= 10 and plan.certificate.delta == 1e-5 and len(plan.spends) == 1
    assert settings.latent.kind == "none" and settings.method.mirror and settings.method.shift and settings.method.times


def test_dp_ldm_is_planned_at_its_papers_size_with_a_tenth_of_the_parameters():
    """The authors' configuration: 200 epochs of 60,000 digits in batches of 2,000, on latents of 4x4x3."""
    settings, facts, groups = sizes("dp-ldm-mnist")
    assert latent_shape(settings.latent, facts.shape) == (3, 4, 4)
    assert settings.fine_tuning.steps * settings.fine_tuning.batch == 200 * facts.records
    assert settings.pretraining.steps == 120 * 124_800 // settings.pretraining.batch
    trained = sum(groups[name] for name in settings.fine_tuning.trainable)
    assert trained / sum(groups.values()) < 0.15
    assert dp_sgd.plan(settings, facts).certificate.epsilon <= 10


def test_dp_ldm_on_the_digits_works_in_latents_and_trains_attention_and_rows_alone():
    settings, facts, _ = preflight(resolve("dp-sgd", "dp-ldm-latents"))
    assert latent_shape(settings.latent, facts.shape) == (3, 4, 4)
    assert settings.fine_tuning.trainable == ("rows", "attention") and set(settings.network.attention) == {4, 2}
    assert plan_for(settings, facts).certificate.epsilon <= 10
