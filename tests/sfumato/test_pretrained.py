"""Settings that follow from the folder of a public model, and its weights read in place of training."""

import json

import diffusers
import pytest
import torch

from sfumato.config import Latent, Network
from sfumato.errors import BadInput
from sfumato.formats import load_codec, load_denoiser, save_autoencoder, save_denoiser
from sfumato.pretrained import brought, load_latents, with_pretrained
from sfumato.pretrained import load_denoiser as load_elsewhere
from sfumato.settings import resolve
from tests import elsewhere

WHY = "privacy.public_because=made by a test"
SHAPE = (1, 8, 8)
PUBLIC = torch.rand(40, *SHAPE, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.fixture
def folder(tmp_path):
    """A pipeline with an autoencoder and a denoiser of its latents."""
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=50, prediction_type="v_prediction")
    elsewhere.save(tmp_path / "model", elsewhere.unet(2), scheduler)
    return elsewhere.save(tmp_path / "model", elsewhere.autoencoder(), part="vae")


def settled(*changes):
    return with_pretrained(resolve("dp-sgd", "", changes))


def test_schedule_size_and_prediction_follow_from_the_folder(folder):
    settings = settled(f"network.from={folder}", f"latent.from={folder}", WHY)
    assert settings.schedule.timesteps == 50 and settings.network.prediction == "velocity"
    assert (settings.network.kind, settings.network.width, settings.network.multipliers) == ("unet", 8, (1, 2))
    assert (settings.latent.kind, settings.latent.channels, settings.latent.multipliers) == ("kl", 2, (1, 2))
    assert settings.pretraining.steps == 0, "it came trained"
    assert settled(f"network.from={folder}", WHY, "pretraining.steps=7").pretraining.steps == 7
    assert with_pretrained(settings) == settings
    assert settled() == resolve("dp-sgd")


def test_what_leaves_says_the_name_of_the_folder_and_not_where_it_lies(folder):
    settings = settled(f"network.from={folder}", f"latent.from={folder}", WHY)
    assert str(folder.parent) not in json.dumps(settings.what())
    assert [one.folder for one in brought(settings)] == ["model", "model"]
    assert brought(settings)[0].sentence().startswith("network.from=model (UNet2DModel, SHA-256 ")
    assert brought(settings)[0].sentence().endswith('counts as public because: "made by a test"')


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["network.from={}"], "brings weights from elsewhere: say in --public-because"),
        (["latent.from={}"], "brings weights from elsewhere: say in --public-because"),
        (["network.from={}", WHY, "schedule.timesteps=60"], "schedule.timesteps=60 is not that of"),
        (
            ["network.from={}", WHY, "network.width=64"],
            "network.width=64 is not what network.from brings (8): leave it out",
        ),
        (["network.from={}", WHY, "latent.from=/nowhere"], "latent.from=/nowhere is no folder"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(folder, changes, words):
    with pytest.raises(BadInput) as refusal:
        settled(*(change.format(folder) for change in changes))
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_method_with_a_network_of_its_own_takes_no_other(folder):
    with pytest.raises(BadInput, match="method.name=dppm trains a network of its own"):
        with_pretrained(resolve("dppm", "", [f"network.from={folder}", WHY]))


def test_weights_come_back_from_our_own_folder_without_theirs(folder, tmp_path):
    settings = settled(f"network.from={folder}", WHY)
    model = load_elsewhere(settings.network, settings.schedule, (2, 4, 4), 3, limit=1.0)
    save_denoiser(tmp_path, model, settings.network, (2, 4, 4), 3)
    assert str(folder) not in (tmp_path / "facts.json").read_text()
    again = load_denoiser(tmp_path, torch.device("cpu"))
    x, t, y = torch.randn(3, 2, 4, 4), torch.tensor([1, 20, 50]), torch.tensor([0, 2, -1])
    torch.testing.assert_close(again(x, t, y), model(x, t, y))


def test_files_that_changed_since_the_plan_are_refused(folder):
    settings = settled(f"network.from={folder}", f"latent.from={folder}", WHY)
    for part in ("unet", "vae"):
        config = folder / part / "config.json"
        config.write_text(config.read_text() + " ")
    with pytest.raises(BadInput, match="network.from=.*its files changed since the plan was made"):
        load_elsewhere(settings.network, settings.schedule, (2, 4, 4), 3, limit=1.0)
    with pytest.raises(BadInput, match="latent.from=.*its files changed since the plan was made"):
        load_latents(settings.latent, PUBLIC, own_scale=True)


@pytest.mark.parametrize("own_scale", [True, False])
def test_latents_are_scaled_by_the_folder_or_to_unit_variance(folder, tmp_path, own_scale):
    settings = settled(f"latent.from={folder}", WHY, "latent.bound=1000")
    codec = load_latents(settings.latent, PUBLIC, own_scale=own_scale)
    z = codec.encode(PUBLIC)
    assert codec.shape(SHAPE) == z.shape[1:] == (2, 4, 4)
    if own_scale:
        means = elsewhere.autoencoder().encode(PUBLIC).latent_dist.mean
        torch.testing.assert_close(z, 0.18215 * means, rtol=1e-4, atol=1e-5)
    else:
        torch.testing.assert_close(z.std((0, 2, 3), correction=0), torch.ones(2), rtol=1e-3, atol=0)
    save_autoencoder(tmp_path, codec, "digest")
    torch.testing.assert_close(load_codec(tmp_path, torch.device("cpu")).decode(z), codec.decode(z))


def test_images_of_another_size_or_colour_are_refused(folder):
    settings = settled(f"latent.from={folder}", WHY)
    with pytest.raises(BadInput, match=r"halves images 1 times, which 7x7 pixels do not allow: use data.size=6"):
        load_latents(settings.latent, PUBLIC[:, :, :7, :7], own_scale=True).shape((1, 7, 7))
    with pytest.raises(
        BadInput, match=r"AutoencoderKL of 1 channels in and 1 out, and the images have 3: use --set data.channels=1"
    ):
        load_latents(settings.latent, PUBLIC.expand(-1, 3, -1, -1), own_scale=True)


def test_by_either_name_a_folder_is_the_same_setting():
    assert Network.model_validate({"from": "x"}) == Network(from_="x") and Latent(from_="x").model_dump()["from"] == "x"
