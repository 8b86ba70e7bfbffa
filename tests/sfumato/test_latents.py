"""Latents of real glyphs: what comes back, at which scale, how large at most, and that the seed decides."""

import math

import pytest
import torch

from sfumato import config, sources, training
from sfumato.backbone import train_backbone
from sfumato.config import Latent
from sfumato.errors import BadInput
from sfumato.held_out import held_out, positions
from sfumato.images import to_pixels, to_unit
from sfumato.latents import (
    PIXELS,
    Shown,
    latents_of,
    perceived,
    pixel_spread,
    read_after,
    reconstruction_error,
    reconstructions,
    scaled,
    train_autoencoder,
    within,
)
from sfumato.networks.autoencoder import PATCHES, build_autoencoder

SHORT = Latent(kind="kl", width=8, steps=300, batch=64)


def glyphs(per_class=20):
    return to_unit(sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=per_class)).pixels)


def digits():
    return to_unit(sources.load("digits", sources.Reading(part="train")).pixels)


@pytest.fixture(scope="module")
def trained():
    return train_autoencoder(SHORT, glyphs(), seed=3)


def test_real_glyphs_come_back_and_so_do_digits_that_were_never_seen(trained):
    """A training of a few seconds leaves less than half of what the mean image leaves."""
    for x in (trained.held_out, digits()):
        assert reconstruction_error(trained.codec, x) < pixel_spread(x) / 2
    assert trained.losses[-1] < trained.losses[0] / 2 and len(trained.losses) == SHORT.steps
    fresh = scaled(build_autoencoder(SHORT, (1, 8, 8)), SHORT, (1, 8, 8), [glyphs(2)])
    assert reconstruction_error(fresh, trained.held_out) > pixel_spread(trained.held_out) / 2


def test_what_the_decoder_makes_too_bright_can_come_back_and_goes_no_further_out():
    x = torch.tensor([-3.0, -3.0, 0.5, 3.0, 3.0], requires_grad=True)
    shown = Shown.apply(x)
    assert shown.tolist() == [-1, -1, 0.5, 1, 1]
    (gradient,) = torch.autograd.grad(shown @ torch.tensor([-1.0, 1.0, 2.0, -1.0, 1.0]), x)
    assert gradient.tolist() == [-1, 0, 2, 0, 1]


def test_latents_learn_from_pixels_that_are_too_bright(trained):
    """A plain clamp gives these no gradient at all."""
    codec, z = trained.codec, (40 * trained.codec.encode(trained.held_out[:4])).requires_grad_(True)
    too_bright = codec.network.decoder(z * codec.spread + codec.mean) > 1
    shown = codec.shown(z)
    assert too_bright.any() and (shown[too_bright] == 1).all()
    (gradient,) = torch.autograd.grad(shown[too_bright].sum(), z)
    assert gradient.abs().max() > 0


def test_public_latents_have_unit_variance_and_digits_about(trained):
    z = trained.codec.encode(glyphs())
    assert z.shape == (1040, 3, 4, 4)
    for latents, slack in ((z, 0.05), (trained.codec.encode(digits()), 0.35)):
        torch.testing.assert_close(latents.std((0, 2, 3)), torch.ones(3), rtol=slack, atol=slack)
    assert z.mean((0, 2, 3)).abs().max() < 0.05
    assert trained.codec.limit == pytest.approx(float(z.abs().max()), rel=0.3) and trained.codec.limit > 2


def test_the_scale_is_measured_on_the_images_given_alone():
    network, x = build_autoencoder(SHORT, (1, 8, 8), seed=1), glyphs(2)
    result = scaled(network, SHORT, (1, 8, 8), x.split(10))
    means = network.posterior(x)[0]
    torch.testing.assert_close(result.mean.flatten(), means.mean((0, 2, 3)))
    torch.testing.assert_close(result.spread.flatten(), means.std((0, 2, 3), correction=0), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(result.encode(x), (means - result.mean) / result.spread)
    torch.testing.assert_close(
        result.decode(result.encode(x)), network.decoder(means).clamp(-1, 1), rtol=1e-4, atol=1e-4
    )


def test_a_channel_that_carries_nothing_does_no_harm():
    network = build_autoencoder(SHORT, (1, 8, 8))
    with torch.no_grad():
        network.encoder[-1].weight[1].zero_()
    assert scaled(network, SHORT, (1, 8, 8), [glyphs(1)]).encode(digits()[:5]).isfinite().all()


def test_encoding_has_no_randomness_and_sees_one_record_at_a_time(trained):
    x = digits()[:6]
    z = trained.codec.encode(x)
    assert torch.equal(z, trained.codec.encode(x))
    among = torch.cat([-x[:3], x[2:3], torch.ones(3, 1, 8, 8)])
    torch.testing.assert_close(trained.codec.encode(among)[3], z[2], rtol=1e-4, atol=1e-5)
    assert trained.codec.encode(x[:0]).shape == (0, 3, 4, 4) and trained.codec.decode(z[:0]).shape == (0, 1, 8, 8)
    assert not trained.codec.network.training and not any(p.requires_grad for p in trained.codec.network.parameters())


def test_pieces_of_bounded_size_change_nothing(trained, monkeypatch):
    x = digits()[:7]
    whole = trained.codec.encode(x), trained.codec.decode(trained.codec.encode(x))
    monkeypatch.setattr("sfumato.latents.CHUNK", 3)
    for one, two in zip(whole, (trained.codec.encode(x), trained.codec.decode(whole[0])), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_pictures_are_encoded_part_by_part_to_the_same_latents(trained, monkeypatch):
    pictures, counts = to_pixels(digits()[:7]), []
    whole = trained.codec.encode(to_unit(pictures))
    assert torch.equal(latents_of(trained.codec, pictures, "cpu"), whole)
    assert torch.equal(latents_of(PIXELS, pictures, "cpu"), to_unit(pictures))
    assert latents_of(trained.codec, pictures[:0], "cpu").shape == (0, 3, 4, 4)
    monkeypatch.setattr("sfumato.latents.CHUNK", 3)
    monkeypatch.setattr("sfumato.latents.to_unit", lambda part: counts.append(len(part)) or to_unit(part))
    torch.testing.assert_close(latents_of(trained.codec, pictures, "cpu"), whole, rtol=1e-4, atol=1e-5)
    assert counts == [3, 3, 1]


@pytest.mark.parametrize("bound", [0.1, 0.9, 1.5])
def test_no_latent_is_longer_than_the_settings_say(trained, bound):
    """Not even one of made-up images; and a bound that glyphs keep changes none of them."""
    settings = SHORT.model_copy(update={"bound": bound})
    codec = scaled(trained.codec.network, settings, (1, 8, 8), [glyphs(5)])
    noise = torch.randint(0, 2, (200, 1, 8, 8), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    assert codec.largest_norm((1, 8, 8)) == pytest.approx(bound * math.sqrt(48))
    for x in (glyphs(2), digits(), noise, 0 * noise):
        assert codec.encode(x).flatten(1).double().norm(dim=1).max() <= codec.largest_norm((1, 8, 8))
    if bound == 1.5:
        plain = (codec.network.posterior(digits())[0] - codec.mean) / codec.spread
        assert (codec.encode(digits()) == plain).flatten(1).all(1).float().mean() > 0.99


def test_within_scales_long_records_and_no_others():
    z = torch.randn(50, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    norms = z.flatten(1).norm(dim=1)
    radius = 1.001 * float(norms.median())
    result, retained = within(z, radius), norms <= radius
    assert torch.equal(result[retained], z[retained]) and 0 < retained.sum() < 50
    assert result.flatten(1).double().norm(dim=1).max() <= radius
    torch.testing.assert_close(result[~retained].flatten(1).norm(dim=1), torch.full((int((~retained).sum()),), radius))
    directions = torch.cosine_similarity(result.flatten(1), z.flatten(1))
    torch.testing.assert_close(directions, torch.ones(50))
    assert torch.equal(within(0 * z, 1.0), 0 * z) and within(z[:0], 1.0).shape == (0, 3, 2, 2)


def test_the_seed_decides_everything():
    brief = SHORT.model_copy(update={"steps": 3})
    one, two, other = (train_autoencoder(brief, glyphs(2), seed=seed) for seed in (1, 1, 2))
    assert one.losses == two.losses and one.losses != other.losses
    assert torch.equal(one.codec.encode(digits()[:9]), two.codec.encode(digits()[:9]))
    assert torch.equal(one.held_out, two.held_out) and not torch.equal(one.held_out, other.held_out)


def test_held_out_images_are_not_learnt_from(monkeypatch):
    x, fed = glyphs(1), []
    network = build_autoencoder(SHORT, (1, 8, 8))
    monkeypatch.setattr(network, "forward", lambda x, noise, real=network.forward: fed.append(x) or real(x, noise))
    monkeypatch.setattr("sfumato.latents.build_autoencoder", lambda *_, **__: network)
    result = train_autoencoder(SHORT.model_copy(update={"steps": 8}), x, seed=0)
    assert torch.equal(result.held_out, x[positions(len(x), 0)[1]])
    seen = {tuple(row) for batch in fed for row in batch.flatten(1).tolist()}
    held = {tuple(row) for row in result.held_out.flatten(1).tolist()}
    assert seen and not seen & held and seen | held <= {tuple(row) for row in x.flatten(1).tolist()}


def test_more_weight_on_the_divergence_brings_the_posterior_to_a_normal():
    def divergence(weight):
        codec = train_autoencoder(
            SHORT.model_copy(update={"kl_weight": weight, "steps": 30, "batch": 32}), glyphs(2), seed=0
        ).codec
        mean, log_variance = codec.network.posterior(glyphs(2))
        return float((mean.square() + log_variance.exp() - 1 - log_variance).mean()) / 2

    assert divergence(1.0) < divergence(1e-3) / 5


def test_the_loss_is_the_one_that_is_named():
    brief = {"steps": 1, "kl_weight": 0.0}
    x = glyphs(2)
    first = {
        kind: train_autoencoder(SHORT.model_copy(update={**brief, "loss": kind}), x, seed=0) for kind in ("l1", "l2")
    }
    assert first["l1"].losses[0] == pytest.approx(float(x.abs().mean()), rel=0.5)
    assert first["l2"].losses[0] == pytest.approx(float(x.square().mean()), rel=0.5)
    assert first["l1"].losses[0] != first["l2"].losses[0]


def test_rounded_products_as_on_a_gpu_bring_images_back_as_well(monkeypatch):
    settings = SHORT.model_copy(update={"steps": 60})
    exact = train_autoencoder(settings, glyphs(), seed=3)
    monkeypatch.setattr(training, "HALVES", {"cpu": torch.bfloat16})
    rounded = train_autoencoder(settings, glyphs(), seed=3)
    assert rounded.losses != exact.losses
    assert rounded.losses[-1] == pytest.approx(exact.losses[-1], rel=0.05)
    assert {weights.dtype for weights in rounded.codec.network.parameters()} == {torch.float32}


@pytest.fixture(scope="module")
def few():
    """Eight letters, forty of each, and what tells them apart."""
    result = sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=40, characters="ACEHLOTX"))
    eyes = train_backbone(config.BackboneSettings(width=8, steps=60, batch=64, learning_rate=1e-2), result, seed=0)
    return result, eyes.backbone


def test_how_far_images_are_perceived_to_lie_apart(few):
    result, backbone = few
    x = to_unit(result.pixels)
    assert perceived(backbone, x[:3], x[:3]).tolist() == [0, 0, 0]
    others = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    assert float(perceived(backbone, x, others).mean()) == pytest.approx(1, rel=0.15)


@pytest.mark.slow
def test_a_perceptual_term_keeps_what_a_public_classifier_sees(few):
    result, backbone = few
    x, distance = to_unit(result.pixels), {}
    for weight in (0.0, 1.0):
        settings = SHORT.model_copy(update={"steps": 40, "channels": 1, "perceptual": weight})
        fresh = train_autoencoder(settings, x, seed=0, backbone=backbone)
        again = fresh.codec.decode(fresh.codec.encode(fresh.held_out))
        distance[weight] = float(perceived(backbone, again, fresh.held_out).mean())
    assert distance[1.0] < distance[0.0] / 1.5


def test_a_backbone_that_is_not_asked_changes_nothing_and_one_that_is_missing_is_asked_for(few):
    result, backbone = few
    x, brief = to_unit(result.pixels), SHORT.model_copy(update={"steps": 2})
    assert train_autoencoder(brief, x, seed=0, backbone=backbone).losses == train_autoencoder(brief, x, seed=0).losses
    with pytest.raises(BadInput, match=r"latent.perceptual=0.5 .* backbone.*latent.perceptual=0$") as refusal:
        train_autoencoder(brief.model_copy(update={"perceptual": 0.5}), x, seed=0)
    assert "\n" not in str(refusal.value)


def test_what_is_read_after_the_round_trip(few):
    """All of it where nothing is lost, about chance through an autoencoder that has learnt nothing."""
    result, backbone = few
    retained = held_out(result, 0).withheld
    x = to_unit(retained.pixels)
    read = read_after(PIXELS, backbone, x, retained.labels)
    right = backbone.logits(x).argmax(1).numpy() == retained.labels
    assert read.before == read.after == pytest.approx(right.mean()) and read.before > 0.7
    lost = scaled(build_autoencoder(SHORT, (1, 8, 8)), SHORT, (1, 8, 8), [x])
    after = read_after(lost, backbone, x, torch.from_numpy(retained.labels))
    assert after.before == read.before and after.after < 0.4


@pytest.mark.slow
def test_patches_bring_glyphs_back_too():
    settings = Latent(kind="patch", patch=2, multipliers=(1,), width=16, channels=3, loss="l2", batch=32, steps=300)
    result = train_autoencoder(settings, glyphs(10), seed=0)
    assert result.codec.shape((1, 8, 8)) == (3, 4, 4)
    assert reconstruction_error(result.codec, result.held_out) < pixel_spread(result.held_out) / 2
    assert result.codec.encode(digits()[:9]).flatten(1).norm(dim=1).max() <= result.codec.largest_norm((1, 8, 8))


def test_colours_are_brought_back_after_few_steps():
    """Without a linear path an autoencoder of few steps made images grey or pink that differ in all three colours."""
    colours = torch.rand(600, 3, 1, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    x = (colours + 0.1 * torch.randn(600, 3, 8, 8, generator=torch.Generator().manual_seed(1))).clamp(-1, 1)
    settings = PATCHES.model_copy(update={"width": 8, "channels": 3, "steps": 10})
    errors = {
        linear: reconstruction_error(result.codec, result.held_out)
        for linear in (True, False)
        if (result := train_autoencoder(settings.model_copy(update={"linear": linear}), x, seed=0))
    }
    assert errors[True] < 0.15 < 0.3 < errors[False], errors


def test_images_of_another_shape_are_refused(trained):
    assert trained.codec.shape((1, 8, 8)) == (3, 4, 4)
    with pytest.raises(
        BadInput, match=r"trained on images of 8x8 with 1 channel, these are 16x16 with 3 channels"
    ) as refusal:
        trained.codec.shape((3, 16, 16))
    assert "\n" not in str(refusal.value)


def test_pixels_are_left_alone():
    x = digits()[:3]
    assert PIXELS.encode(x) is x and PIXELS.decode(x) is x and PIXELS.limit == 1
    assert PIXELS.shape((1, 8, 8)) == (1, 8, 8)
    assert x.flatten(1).norm(dim=1).max() <= PIXELS.largest_norm((1, 8, 8)) == 8


def test_the_picture_shows_each_image_before_its_reconstruction(trained):
    shown = reconstructions(trained.codec, trained.held_out, 4)
    assert shown.shape == (4, 2, 1, 8, 8)
    torch.testing.assert_close(to_unit(shown[:, 0]), trained.held_out[:4], atol=5e-3, rtol=0)
    assert (to_unit(shown[:, 1]) - trained.held_out[:4]).square().mean().sqrt() < pixel_spread(trained.held_out) / 2
    assert reconstructions(trained.codec, trained.held_out[:2], 4).shape[0] == 2
