"""The autoencoder: shapes, sizes that fit, one record at a time, weights by the seed."""

import math
import re

import numpy as np
import pytest
import torch

from sfumato.config import Latent
from sfumato.errors import BadInput
from sfumato.networks.autoencoder import (
    ANCHORS,
    FIRST_LOG_VARIANCE,
    LOG_VARIANCE,
    SEAMS,
    build_autoencoder,
    largest_norm,
    latent_shape,
)
from sfumato.privacy.engine.validation import refuse_mixers

TINY = Latent(kind="kl", width=6, multipliers=(1, 2), channels=2)
PATCH = TINY.model_copy(update={"kind": "patch", "patch": 2, "multipliers": (1,)})
LINEAR = PATCH.model_copy(update={"linear": True})


def images(count, *shape):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize(
    ("image", "changes", "latent"),
    [
        ((1, 8, 8), {}, (2, 4, 4)),
        ((3, 12, 20), {"multipliers": (1, 1, 2), "attention": (6,)}, (2, 3, 5)),
        ((1, 7, 9), {"multipliers": (2,), "blocks": 2}, (2, 7, 9)),
        ((3, 8, 8), {"multipliers": (1, 1, 1), "channels": 5, "attention": (8, 2)}, (5, 2, 2)),
        ((1, 28, 28), {"kind": "patch", "patch": 4, "multipliers": (1,), "blocks": 2}, (2, 7, 7)),
        ((3, 12, 20), {"kind": "patch", "patch": 2, "attention": (3,)}, (2, 3, 5)),
        ((3, 12, 20), {"kind": "patch", "patch": 2, "linear": True}, (2, 3, 5)),
        ((1, 8, 12), {"linear": True}, (2, 4, 6)),
    ],
)
def test_shapes_follow_the_settings(image, changes, latent):
    settings = TINY.model_copy(update=changes)
    network = build_autoencoder(settings, image)
    assert latent_shape(settings, image) == latent
    for count in (3, 1, 0):
        again, mean, log_variance = network(images(count, *image), torch.zeros(count, *latent))
        assert again.shape == (count, *image) and mean.shape == log_variance.shape == (count, *latent)


def test_attention_stands_on_both_ways_at_the_sides_that_were_asked_for():
    settings, sides = TINY.model_copy(update={"multipliers": (1, 1, 1), "attention": (4,)}), []
    network = build_autoencoder(settings, (1, 8, 8))
    for layer in network.modules():
        if type(layer).__name__ == "Attention":
            layer.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    network(images(1, 1, 8, 8), torch.zeros(1, 2, 2, 2))
    assert sides == [4, 4]


def test_a_patch_is_one_position_at_once_and_only_a_thin_convolution_sees_full_size():
    seen = []
    network = build_autoencoder(PATCH, (3, 8, 8))
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[1::2])))
    network(images(1, 3, 8, 8), torch.zeros(1, 2, 4, 4))
    assert seen[-1] == (SEAMS, 8) and {side for _, side in seen[:-1]} == {4}


def test_patches_are_laid_out_and_back_without_loss():
    network, x = build_autoencoder(PATCH, (3, 4, 6)), images(2, 3, 4, 6)
    gathered, back = network.encoder[0](x), next(m for m in network.decoder if type(m).__name__ == "_Spread")
    assert gathered.shape == (2, 12, 2, 3)
    assert set(gathered[1, :, 1, 2].tolist()) == set(x[1, :, 2:, 4:].flatten().tolist())
    assert torch.equal(back(gathered), x)


@pytest.mark.parametrize("changes", [{}, {"multipliers": (1, 1)}, {"kind": "kl", "multipliers": (1, 2)}])
def test_a_linear_path_begins_as_the_principal_components_of_the_squares(changes):
    settings, x = LINEAR.model_copy(update=changes), images(40, 3, 8, 12) * torch.tensor([1, 0.5, 0.1]).view(3, 1, 1)
    _, height, _ = latent_shape(settings, (3, 8, 12))
    side = 8 // height
    squares = np.stack(
        [
            image[:, row : row + side, column : column + side].ravel()
            for image in x.double().numpy()
            for row in range(0, 8, side)
            for column in range(0, 12, side)
        ]
    )
    network = build_autoencoder(settings, (3, 8, 12))
    network.begin_linear([x])
    latent, log_variance = network.posterior(x)
    wide = np.linalg.svd(squares - squares.mean(0))[2][: settings.channels]
    projected = squares.mean(0) + (squares - squares.mean(0)) @ wide.T @ wide
    error = (network.decoder(latent) - x).double().square().sum()
    assert error.item() == pytest.approx(((projected - squares) ** 2).sum(), rel=1e-4)
    torch.testing.assert_close(latent.std((0, 2, 3)), torch.ones(settings.channels), atol=0.02, rtol=0)
    assert (log_variance == FIRST_LOG_VARIANCE).all()


def test_a_linear_path_bears_more_channels_than_numbers_and_images_of_one_colour():
    network = build_autoencoder(LINEAR.model_copy(update={"channels": 6}), (1, 8, 8))
    x = images(5, 1, 1, 1).expand(5, 1, 8, 8)
    network.begin_linear([x])
    torch.testing.assert_close(network.decoder(network.posterior(x)[0]), x, atol=1e-4, rtol=0)


def test_without_a_linear_path_nothing_begins_there():
    network = build_autoencoder(PATCH, (1, 8, 8))
    before = {name: values.clone() for name, values in network.state_dict().items()}
    network.begin_linear([images(3, 1, 8, 8)])
    assert all(torch.equal(before[name], values) for name, values in network.state_dict().items())


def test_without_an_autoencoder_the_shape_is_the_images():
    assert latent_shape(Latent(), (1, 7, 7)) == (1, 7, 7)
    assert largest_norm(Latent(), (3, 4, 5)) == pytest.approx(torch.ones(3, 4, 5).norm().item())


@pytest.mark.parametrize(("side", "colours"), ANCHORS)
def test_what_serves_a_size_fits_it_and_leaves_few_numbers(side, colours):
    settings = ANCHORS[side, colours]
    channels, height, width = latent_shape(settings, (colours, side, side))
    assert 7 <= height == width <= 16 and channels * height * width <= colours * side**2 / 8
    assert Latent.model_validate(settings.model_dump()) == settings, "within the bounds of the settings"


def test_the_largest_norm_is_known_from_the_settings():
    assert largest_norm(TINY.model_copy(update={"bound": 1.25}), (1, 8, 8)) == pytest.approx(1.25 * math.sqrt(32))


@pytest.mark.parametrize(
    ("side", "levels", "fits"),
    [(28, 5, ["14x14", "7x7"]), (8, 4, ["4x4", "2x2"]), (6, 3, ["3x3"]), (9, 2, []), (2, 2, [])],
)
def test_a_latent_that_does_not_fit_is_refused_with_the_sizes_that_do(side, levels, fits):
    with pytest.raises(BadInput, match=rf"{side}x{side} pixels do not allow") as refusal:
        latent_shape(TINY.model_copy(update={"multipliers": (1,) * levels}), (1, side, side))
    message = str(refusal.value)
    assert "\n" not in message and f"latent.multipliers={[1] * levels}" in message
    offered = re.findall(r"latents of (\d+x\d+) \((\d+) multipliers\)", message)
    assert [size for size, _ in offered] == fits and (fits or "latent.kind=none" in message)
    for size, count in offered:
        assert latent_shape(TINY.model_copy(update={"multipliers": (1,) * int(count)}), (1, side, side))[1:] == tuple(
            map(int, size.split("x"))
        )
    advised = int(message.rsplit("data.size=", 1)[1])
    assert latent_shape(TINY.model_copy(update={"multipliers": (1,) * levels}), (1, advised, advised))[1] >= 1


@pytest.mark.parametrize(
    ("side", "patch", "levels", "result"),
    [
        (28, 4, 2, [("7x7", 4, 1), ("14x14", 2, 1), ("7x7", 2, 2)]),
        (30, 4, 1, [("10x10", 3, 1), ("15x15", 2, 1)]),
        (7, 2, 1, []),
        (6, 4, 1, [("2x2", 3, 1), ("3x3", 2, 1)]),
    ],
)
def test_a_patch_that_does_not_divide_is_refused_with_those_that_do(side, patch, levels, result):
    settings = PATCH.model_copy(update={"patch": patch, "multipliers": (1,) * levels})
    with pytest.raises(BadInput, match=rf"^latent.patch={patch} .* {side}x{side} pixels do not allow") as refusal:
        latent_shape(settings, (1, side, side))
    message = str(refusal.value)
    offered = re.findall(r"latents of (\d+x\d+) \(latent.patch=(\d+), (\d+) multiplier", message)
    assert "\n" not in message and {(size, int(p), int(n)) for size, p, n in offered} == set(result)
    assert result or "latent.kind=none" in message
    for size, p, n in result:
        way = settings.model_copy(update={"patch": p, "multipliers": (1,) * n})
        assert latent_shape(way, (1, side, side))[1:] == tuple(map(int, size.split("x")))
    advised = int(message.rsplit("data.size=", 1)[1])
    assert latent_shape(settings, (1, advised, advised))[1] >= 2


def test_a_side_that_halves_only_one_way_is_refused():
    with pytest.raises(BadInput, match="8x7 pixels"):
        latent_shape(TINY, (1, 8, 7))


def test_each_record_is_seen_by_itself():
    """No batch statistics, in training mode or out of it: other records change nothing."""
    settings = TINY.model_copy(update={"attention": (4,)})
    patched = PATCH.model_copy(update={"attention": (4,)})
    for network in (
        build_autoencoder(settings, (1, 8, 8)).train(),
        build_autoencoder(settings, (1, 8, 8)).eval(),
        build_autoencoder(patched, (1, 8, 8)),
    ):
        x, noise = images(5, 1, 8, 8), images(5, 2, 4, 4)
        others, other_noise = -3 * x, noise + 1
        others[2], other_noise[2] = x[2], noise[2]
        for one, two, alone in zip(
            network(x, noise), network(others, other_noise), network(x[2:3], noise[2:3]), strict=True
        ):
            torch.testing.assert_close(one[2], two[2], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(one[2], alone[0], rtol=1e-5, atol=1e-5)
            assert not torch.allclose(one[1], two[1], atol=1e-3)
        refuse_mixers(network, dict(network.named_parameters()))
        assert not list(network.buffers()), "nothing that remembers records"


def test_the_seed_alone_decides_the_weights():
    before = torch.random.get_rng_state()
    one = build_autoencoder(TINY, (1, 8, 8), seed=7).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before), "nobody else's randomness is touched"
    torch.manual_seed(3)
    two, other = (build_autoencoder(TINY, (1, 8, 8), seed=seed).state_dict() for seed in (7, 8))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["encoder.0.weight"], other["encoder.0.weight"])


def test_the_latent_is_drawn_from_the_posterior():
    network, x = build_autoencoder(TINY, (1, 8, 8)), images(2, 1, 8, 8)
    mean, log_variance = network.posterior(x)
    noise = images(2, 2, 4, 4)
    torch.testing.assert_close(network(x, noise)[0], network.decoder(mean + (log_variance / 2).exp() * noise))
    with torch.no_grad():
        network.encoder[-1].bias[2:] += torch.tensor([1e6, -1e6])
    extreme = network.posterior(x)[1]
    assert (extreme.amin(), extreme.amax()) == LOG_VARIANCE
