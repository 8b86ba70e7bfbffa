"""The backbone learns public classes, and its features come with the scale that they have on public images."""

import dataclasses

import numpy as np
import pytest
import torch

from artifacts import serialization
from sfumato import config, training
from sfumato.backbone import Backbone, affine, train_backbone
from sfumato.errors import BadInput
from sfumato.images import ImageSet, to_unit
from sfumato.networks.backbone import BackboneNetwork

QUICK = config.BackboneSettings(width=8, steps=25, batch=32, learning_rate=1e-2)


def bars(count: int = 240, side: int = 12) -> ImageSet:
    """Upright, lying and missing bars, at random places."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 40, (count, 1, side, side), dtype=np.uint8), np.arange(count) % 3
    for image, label, at in zip(pixels, labels, rng.integers(3, side - 3, count), strict=True):
        if label == 0:
            image[0, :, at] = 255
        elif label == 1:
            image[0, at] = 255
    return ImageSet(pixels, labels, ("upright", "lying", "none"))


@pytest.fixture(scope="module")
def trained():
    return train_backbone(QUICK, bars(), seed=0)


def test_it_learns_the_public_classes(trained):
    x, y = to_unit(bars().pixels), torch.from_numpy(bars().labels)
    assert (trained.backbone.logits(x).argmax(1) == y).float().mean() > 0.9
    assert trained.losses[-1] < trained.losses[0] / 2 and 0 <= trained.accuracy <= 1


def test_rounded_products_as_on_a_gpu_teach_it_as_much(trained, monkeypatch):
    monkeypatch.setattr(training, "HALVES", {"cpu": torch.bfloat16})
    rounded = train_backbone(QUICK, bars(), seed=0)
    assert rounded.losses != trained.losses and rounded.accuracy >= trained.accuracy - 0.05
    assert {weights.dtype for weights in rounded.backbone.network.parameters()} == {torch.float32}


def test_whitened_features_have_mean_0_and_deviation_1_on_public_images(trained):
    result = trained.backbone.whitened(to_unit(bars().pixels), 4)
    assert result.shape == (240, 4)
    assert result.mean(0).abs().max() < 0.1
    assert torch.allclose(result.T @ result / len(result), torch.eye(4), atol=0.15)


def test_the_same_seed_gives_the_same_features(trained):
    x = to_unit(bars().pixels[:5])
    assert torch.equal(train_backbone(QUICK, bars(), seed=0).backbone.features(x), trained.backbone.features(x))


def test_gradients_flow_to_the_images_and_not_to_the_weights(trained):
    x = to_unit(bars().pixels[:3]).requires_grad_()
    trained.backbone.logits(x).sum().backward()
    assert x.grad.abs().sum() > 0
    assert all(p.grad is None for p in trained.backbone.network.parameters())


def test_it_comes_back_from_its_folder_as_it_was(trained, tmp_path):
    serialization.save_backbone(tmp_path, trained.backbone)
    again = serialization.load_backbone(tmp_path, torch.device("cpu"))
    x = to_unit(bars().pixels[:5])
    assert torch.allclose(again.whitened(x, 8), trained.backbone.whitened(x, 8), atol=1e-4)
    assert (again.settings, again.shape, again.classes) == (QUICK, (1, 12, 12), 3)
    assert {f.name for f in dataclasses.fields(Backbone)} == set(vars(again))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 33, 20), (3, 128, 128)])
def test_it_reads_every_side_and_grows_little_with_it(shape):
    network = BackboneNetwork(shape, 5, width=8)
    assert network.features(torch.zeros(2, *shape)).shape == (2, 128)
    first = next(layer for layer in network.trunk if layer[0].stride == (1, 1))
    assert network.trunk[: list(network.trunk).index(first)](torch.zeros(1, *shape)).shape[-1] <= 32


def test_an_affine_map_of_no_size_changes_nothing_and_mirroring_turns_half_round():
    still = {"rotation": 0, "shear": 0, "scale": 0, "shift": 0}
    x, generator = to_unit(bars(60).pixels), torch.Generator().manual_seed(0)
    assert torch.allclose(affine(x, config.BackboneSettings(**still), generator), x, atol=1e-5)
    turned = affine(x, config.BackboneSettings(**still, mirror=True), generator)
    mirrored = [torch.allclose(a, b.flip(2), atol=1e-4) for a, b in zip(turned, x, strict=True)]
    assert 15 < sum(mirrored) < 45


@pytest.mark.parametrize("edge", ["border", "reflection"])
def test_augmentation_follows_its_generator_and_stays_in_range(edge):
    x, settings = to_unit(bars(30).pixels), config.BackboneSettings(edge=edge)
    one, other = (affine(x, settings, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other) and not torch.equal(one, x)
    assert one.abs().max() <= 1 + 1e-6


def test_public_images_of_one_class_are_refused_in_one_line():
    images = bars(30)
    with pytest.raises(BadInput, match="all of one class") as caught:
        train_backbone(QUICK, images.subset(images.labels == 0), seed=0)
    assert "\n" not in str(caught.value)


def test_images_of_another_shape_are_refused(trained):
    with pytest.raises(BadInput, match="reads images of"):
        trained.backbone.features(torch.zeros(1, 3, 12, 12))
