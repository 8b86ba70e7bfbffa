"""Which folders can be read, which schedules ours can express, and the one line for all others."""

import json

import diffusers
import numpy as np
import pytest
import torch

from sfumato.diffusion.schedule import signal_levels
from sfumato.errors import BadInput
from sfumato.networks import diffusers_folder
from sfumato.networks.diffusers_folder import AUTOENCODERS, DENOISERS, model_folder, schedule_of, scheduler_file
from tests import elsewhere

SETTING = "network.from"


def read(folder, kinds=DENOISERS):
    return model_folder(folder, SETTING, kinds)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("DDPMScheduler", {}),
        ("DDPMScheduler", {"num_train_timesteps": 37, "beta_start": 0.001, "beta_end": 0.3}),
        ("DDIMScheduler", {"beta_schedule": "scaled_linear", "beta_start": 0.0015, "beta_end": 0.0155}),
        ("DDPMScheduler", {"beta_schedule": "squaredcos_cap_v2", "variance_type": "learned_range"}),
        ("EulerDiscreteScheduler", {"beta_schedule": "scaled_linear"}),
        ("DPMSolverMultistepScheduler", {"prediction_type": "v_prediction"}),
        ("PNDMScheduler", {}),
    ],
)
def test_signal_levels_are_those_of_diffusers(tmp_path, kind, changes):
    scheduler = getattr(diffusers, kind)(**changes)
    scheduler.save_pretrained(tmp_path)
    ours, prediction = schedule_of(tmp_path / "scheduler_config.json")
    assert np.abs(signal_levels(ours)[1:] - scheduler.alphas_cumprod.numpy()).max() < 2e-6
    assert prediction == ("velocity" if changes.get("prediction_type") else "noise")


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (diffusers.DDPMScheduler(beta_schedule="sigmoid"), "beta_schedule=sigmoid cannot be expressed here"),
        (
            diffusers.DDIMScheduler(rescale_betas_zero_snr=True),
            "its signal levels are not those of beta_schedule=linear",
        ),
        (
            diffusers.DDPMScheduler(trained_betas=[0.1, 0.2, 0.3], num_train_timesteps=3),
            "its signal levels are not those of",
        ),
        (
            diffusers.FlowMatchEulerDiscreteScheduler(),
            "the schedule of FlowMatchEulerDiscreteScheduler cannot be expressed",
        ),
        (diffusers.EDMEulerScheduler(), "the schedule of EDMEulerScheduler cannot be expressed here"),
    ],
)
def test_other_schedules_are_refused(tmp_path, scheduler, words):
    scheduler.save_pretrained(tmp_path)
    with pytest.raises(BadInput) as refusal:
        schedule_of(tmp_path / "scheduler_config.json")
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_pipelines_folder_and_that_of_its_model_are_one(tmp_path):
    elsewhere.save(tmp_path, elsewhere.unet(), diffusers.DDPMScheduler())
    whole, part = read(tmp_path), read(tmp_path / "unet")
    assert whole.digest() == part.digest() and whole.path == part.path
    assert scheduler_file(part, SETTING) == tmp_path / "scheduler" / "scheduler_config.json"


def test_the_digest_is_of_content(tmp_path):
    for name in ("one", "same"):
        elsewhere.save(tmp_path / name, elsewhere.unet(), diffusers.DDPMScheduler())
    one, same = (read(tmp_path / name) for name in ("one", "same"))
    assert one.digest(scheduler_file(one, SETTING)) == same.digest(scheduler_file(same, SETTING))
    with torch.no_grad():
        other = elsewhere.unet()
        other.conv_out.bias += 1
    elsewhere.save(tmp_path / "other", other)
    assert read(tmp_path / "other").digest() != one.digest()


def empty(folder):
    folder.mkdir(parents=True)


def of_another_kind(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"_class_name": "UNet2DConditionModel"}))


def broken(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")


def of_no_shape(folder):
    elsewhere.save(folder, elsewhere.unet())
    path = folder / "unet" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"block_out_channels": "wide"}))


def pickled(folder):
    elsewhere.unet().save_pretrained(folder / "unet", safe_serialization=False)


def without_weights(folder):
    elsewhere.save(folder, elsewhere.unet())
    next((folder / "unet").glob("*.safetensors")).unlink()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "is no folder: give one that diffusers' save_pretrained wrote"),
        (empty, "holds no config.json, nor does unet or transformer in it"),
        (
            of_another_kind,
            "holds a model of class UNet2DConditionModel: what can be read here is UNet2DModel, DiTTransformer2DModel",
        ),
        (broken, "config.json cannot be read"),
        (of_no_shape, "config.json describes no UNet2DModel that diffusers can build"),
        (pickled, "holds pickles (diffusion_pytorch_model.bin), which can run programs, and no safetensors"),
        (without_weights, "holds no safetensors: save the model with save_pretrained(..., safe_serialization=True)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_another_folder_is_refused_in_one_line(tmp_path, make, words):
    make(tmp_path / "model")
    with pytest.raises(BadInput) as refusal:
        read(tmp_path / "model")
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_denoiser_is_no_autoencoder_and_without_a_schedule_nobody_knows_its_noise(tmp_path):
    elsewhere.save(tmp_path, elsewhere.unet())
    with pytest.raises(BadInput, match="nor does vae or vqvae in it"):
        read(tmp_path, AUTOENCODERS)
    with pytest.raises(BadInput, match=r"has no scheduler_config.json in it or in scheduler beside it"):
        scheduler_file(read(tmp_path), SETTING)


def test_without_diffusers_one_line_says_how_to_install_it(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(diffusers_folder.importlib, "import_module", missing)
    with pytest.raises(BadInput, match=r'not installed: pip install "sfumato\[models\]"'):
        diffusers_folder.diffusers()
