"""What is written comes back as it was, from safetensors and JSON alone."""

import json
import pickle

import numpy as np
import pytest
import torch

from sfumato import formats
from sfumato.config import Latent, Network
from sfumato.images import Drawn, ImageSet, to_unit
from sfumato.latents import PIXELS, scaled
from sfumato.networks.autoencoder import build_autoencoder
from sfumato.networks.build import build
from sfumato.networks.denoiser import with_classes
from sfumato.retrieval.features import make_encoder
from sfumato.retrieval.knowledge_base import KnowledgeBase
from sfumato.retrieval.settings import Extractor
from tests.examples import picture_set

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)
MLP = Network(kind="mlp", width=16, blocks=1, condition=4)
UNET = Network(kind="unet", width=8, blocks=1, condition=4, attention=(4,))
DIT = Network(kind="dit", width=8, blocks=1, condition=4, heads=2)


@pytest.fixture(autouse=True)
def never_unpickles(monkeypatch):
    """Loading works with every unpickler taken away."""

    def refuse(*_, **__):
        raise AssertionError("something was unpickled")

    for place, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(place, name, refuse)


def scrambled(model):
    """The model with random weights: freshly made ones begin with layers of zeros, which hide what is lost."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def same_weights(one, other):
    assert one.keys() == other.keys() and one
    for name, value in one.items():
        assert value.dtype == other[name].dtype and torch.equal(value, other[name]), name


@pytest.mark.parametrize("channels", [1, 3])
def test_images_come_back(tmp_path, channels):
    images = picture_set(count=7, classes=("näch", "a/b", ""), channels=channels)
    formats.save_images(tmp_path, images)
    result = formats.load_images(tmp_path)
    assert result.classes == images.classes
    assert result.pixels.dtype == np.uint8 and np.array_equal(result.pixels, images.pixels)
    assert result.labels.dtype == np.int64 and np.array_equal(result.labels, images.labels)


def test_points_come_back_in_full_and_images_without_them_as_the_denoisers_see_them(tmp_path):
    images = picture_set(5)
    points = np.random.default_rng(0).normal(scale=9, size=images.pixels.shape).astype(np.float32)
    folders = [tmp_path / name for name in ("with", "without")]
    for folder, one in zip(
        folders, (Drawn(images.pixels, images.labels, images.classes, points=points), images), strict=True
    ):
        folder.mkdir()
        formats.save_images(folder, one)
        assert np.array_equal(formats.load_images(folder).pixels, images.pixels)
    there, encoded = (formats.load_prototypes(folder, PIXELS, CPU) for folder in folders)
    assert torch.equal(there, torch.from_numpy(points)) and torch.equal(encoded, to_unit(images.pixels))


def test_a_part_of_a_set_with_no_images_of_one_class_keeps_its_class(tmp_path):
    formats.save_images(tmp_path, picture_set().subset(slice(0, 1)))
    assert formats.load_images(tmp_path).classes == ("cat", "dog")


@pytest.mark.parametrize("network", [MLP, UNET, DIT], ids=["mlp", "unet", "dit"])
@pytest.mark.parametrize("classes", [3, 10])
def test_a_denoiser_comes_back_frozen_and_predicts_the_same(tmp_path, network, classes):
    model = scrambled(build(network, SHAPE, classes)).eval()
    formats.save_denoiser(tmp_path, model, network, SHAPE, classes)
    result = formats.load_denoiser(tmp_path, CPU)
    same_weights(model.state_dict(), result.state_dict())
    x, t, y = torch.randn(4, *SHAPE), torch.tensor([1, 10, 500, 1000]), torch.tensor([0, 1, 2, 0])
    with torch.no_grad():
        expected = model(x, t, y)
        assert expected.abs().max() > 0 and torch.equal(result(x, t, y), expected)
    assert not result.training and not any(parameter.requires_grad for parameter in result.parameters())


@pytest.mark.parametrize("prediction", [{"prediction": "velocity"}, {"prediction": "edm", "sigma_data": 0.4}], ids=str)
def test_a_denoiser_that_needs_levels_comes_back_with_those_of_its_schedule(tmp_path, prediction):
    network, levels = MLP.model_copy(update=prediction), torch.linspace(1, 0.01, 51)
    model = scrambled(build(network, SHAPE, 3, alpha_bar=levels)).eval()
    formats.save_denoiser(tmp_path, model, network, SHAPE, 3)
    result = formats.load_denoiser(tmp_path, CPU)
    assert torch.equal(result.prediction.alpha_bar, levels)
    x, t, y = torch.randn(2, *SHAPE), torch.tensor([1, 50]), torch.tensor([0, 2])
    assert torch.equal(result(x, t, y), model(x, t, y).detach())


def test_a_tuned_denoiser_comes_back_with_the_private_rows(tmp_path):
    model = with_classes(scrambled(build(MLP, SHAPE, 52)), torch.randn(2, MLP.condition))
    formats.save_denoiser(tmp_path, model, MLP, SHAPE, 2)
    result = formats.load_denoiser(tmp_path, CPU)
    assert torch.equal(result.condition.rows.weight, model.condition.rows.weight)


def test_an_encoder_comes_back_frozen_and_sees_the_same(tmp_path):
    settings = Extractor(width=4, features=6)
    encoder = scrambled(make_encoder(settings, (3, 8, 10)))
    formats.save_encoder(tmp_path, encoder, settings, (3, 8, 10))
    result = formats.load_encoder(tmp_path, CPU)
    same_weights(encoder.state_dict(), result.state_dict())
    x = torch.randn(3, 3, 8, 10)
    assert torch.equal(result(x), encoder(x).detach())
    assert not result.training and not any(parameter.requires_grad for parameter in result.parameters())


@pytest.mark.parametrize("by_class", [True, False])
def test_a_knowledge_base_comes_back_and_finds_the_same(tmp_path, by_class):
    generator = torch.Generator().manual_seed(0)
    keys = torch.nn.functional.normalize(torch.randn(20, 5, generator=generator), dim=1)
    pictures, noise = torch.randn(2, 20, *SHAPE, generator=generator)
    base = KnowledgeBase(keys, pictures, noise, torch.arange(20) % 4, by_class)
    formats.save_base(tmp_path, base)
    result = formats.load_base(tmp_path, CPU)
    for name in ("keys", "images", "noise", "labels"):
        assert torch.equal(getattr(result, name), getattr(base, name)), name
    assert result.by_class is by_class
    classes = torch.tensor([3, 0]) if by_class else None
    assert torch.equal(result.search(keys[:2], 3, classes), base.search(keys[:2], 3, classes))


def made_autoencoder(shape=SHAPE):
    settings = Latent(kind="kl", width=8, multipliers=(1, 2), attention=(4,), bound=1.25)
    network = scrambled(build_autoencoder(settings, shape)).eval().requires_grad_(False)
    return scaled(network, settings, shape, [torch.rand(20, *shape) * 2 - 1])


def test_an_autoencoder_comes_back_with_its_scale(tmp_path):
    codec = made_autoencoder()
    formats.save_autoencoder(tmp_path, codec, "d1")
    result = formats.load_codec(tmp_path, CPU)
    same_weights(codec.network.state_dict(), result.network.state_dict())
    x = torch.rand(5, *SHAPE) * 2 - 1
    assert torch.equal(result.encode(x), codec.encode(x)) and codec.encode(x).abs().max() > 0
    assert torch.equal(result.decode(codec.encode(x)), codec.decode(codec.encode(x)))
    assert (result.limit, result.settings, result.image) == (codec.limit, codec.settings, SHAPE)
    assert not result.network.training and not any(p.requires_grad for p in result.network.parameters())


def test_only_safetensors_and_json_are_written(tmp_path):
    formats.save_images(tmp_path, picture_set())
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["facts.json", "tensors.safetensors"]
    body = (tmp_path / "tensors.safetensors").read_bytes()
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    assert set(header) - {"__metadata__"} == {"pixels", "labels"}


def test_views_and_shared_memory_are_written_as_they_look(tmp_path):
    table = torch.arange(12.0).view(3, 4)
    shown = {"whole": table, "turned": table.T, "column": table[:, 1], "again": table}
    formats.save(tmp_path, shown, {})
    result, _ = formats.load(tmp_path)
    assert all(torch.equal(result[name], value) for name, value in shown.items())


def test_no_tensors_at_all_is_an_artifact_too(tmp_path):
    formats.save(tmp_path, {}, {"score": 1.5})
    assert formats.load(tmp_path) == ({}, {"score": 1.5})


def test_pixels_that_lie_scattered_in_memory_come_back(tmp_path):
    images = picture_set(count=6)
    turned = ImageSet(images.pixels.transpose(0, 1, 3, 2), images.labels, images.classes)
    backwards = turned.subset(np.arange(6)[::-1])
    formats.save_images(tmp_path, backwards)
    assert np.array_equal(formats.load_images(tmp_path).pixels, backwards.pixels)
