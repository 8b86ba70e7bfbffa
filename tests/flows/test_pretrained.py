"""A public model that exists already, from its folder to a published one that diffusers and Sfumato draw alike; and what is refused."""

import contextlib
import json

import diffusers
import numpy as np
import pytest
import torch

import sfumato
from artifacts import serialization
from artifacts.labels import Label
from flows import synthesize as flow
from sfumato.errors import BadInput
from tasks.planning import Wishes
from tasks.runtime.environment import where
from tests import elsewhere
from tests.examples import UNCHOSEN, UNREHEARSED

pytestmark = pytest.mark.usefixtures("quick_judges")
WHY = "made for a test, Apache-2.0; saw no record of anybody"
TINY = [
    *(change for change in UNCHOSEN if not change.startswith("network.")),
    *UNREHEARSED,
    *("data.glyphs_per_class=10", "fine_tuning.steps=3", "fine_tuning.draws=1", "evaluation.resamples=20"),
    *("generation.images=60", "generation.steps=5", "evaluation.images=60", "evaluation.baseline=false"),
    f"privacy.public_because={json.dumps(WHY)}",
]


def run(changes, to=""):
    return run_method("dp-sgd", changes, to)


def run_method(method, changes, to=""):
    return flow.run_changed(method, "auto", changes, Wishes(publish_to=to))


@pytest.fixture
def brought(tmp_path):
    """A pipeline as diffusers saves one: a UNet of latents, its autoencoder, its schedule."""
    elsewhere.save(tmp_path / "brought", elsewhere.unet(2), diffusers.DDPMScheduler(num_train_timesteps=50))
    return elsewhere.save(tmp_path / "brought", elsewhere.autoencoder(), part="vae")


@contextlib.contextmanager
def predictions(model):
    """What a model from elsewhere puts out while this is open."""
    seen = []
    watched = model.register_forward_hook(lambda _, inputs, outputs: seen.append(outputs[0].clone()))
    yield seen
    watched.remove()


def test_a_model_from_elsewhere_is_fine_tuned_privately_published_and_drawn_alike(no_servers, tmp_path, brought):
    changes = [
        *TINY,
        f"network.from={brought}",
        f"latent.from={brought}",
        "fine_tuning.trainable=[rows,film,attention]",
    ]
    record = run([*changes, "fine_tuning.rank=2"], str(tmp_path / "out"))
    made = {stage for stage, _ in no_servers.values()}
    assert {"load-denoiser", "load-autoencoder"} <= made and not {"pretrain", "train-autoencoder"} & made
    labels = {ref.label for stage, ref in no_servers.values() if stage.startswith("load-")}
    assert labels == {Label.PUBLIC}

    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert [(one["setting"], one["folder"], one["kind"]) for one in card["public_models"]] == [
        ("network.from", "brought", "UNet2DModel"),
        ("latent.from", "brought", "AutoencoderKL"),
    ]
    assert all(one["because"] == WHY and len(one["digest"]) == 64 for one in card["public_models"])
    digest = card["public_models"][0]["digest"]
    readme = (tmp_path / "out" / "README.md").read_text()
    assert f"What these weights were trained on: network.from=brought (UNet2DModel, SHA-256 {digest})" in readme
    with where().ledger() as ledger:
        (entry,) = [one for one in ledger.entries() if one.kind == "reserve"]
    assert digest in entry.body["reason"] and WHY in entry.body["reason"]
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or str(brought).encode() not in path.read_bytes(), path

    samples = serialization.load_images(where().store().folder(record.samples_artifact))
    model = sfumato.load(tmp_path / "out")
    with predictions(next(part for part in model.parts.tuned.modules() if type(part) is diffusers.UNet2DModel)) as ours:
        pixels, labels = model.draw(60, seed=0)
    assert np.array_equal(pixels, samples.pixels) and np.array_equal(labels, samples.labels)
    pipeline = diffusers.DiffusionPipeline.from_pretrained(tmp_path / "out", trust_remote_code=True)
    with predictions(pipeline.denoiser) as theirs:
        assert np.array_equal(pipeline(60, seed=0, output_type="pt").images.numpy(), pixels)
    assert ours and all(map(torch.equal, ours, theirs)), "to the last bit, or a pixel now and then is rounded otherwise"
    assert all(parameter.requires_grad for parameter in pipeline.denoiser.parameters()), "and can learn as before"
    assert isinstance(pipeline.denoiser, diffusers.UNet2DModel) and isinstance(pipeline.vae, diffusers.AutoencoderKL)


@pytest.mark.slow
def test_the_same_weights_elsewhere_are_found_again_and_others_are_not(no_servers, tmp_path, brought):
    def runs(folder, *more):
        changes = [*TINY, f"network.from={folder}", f"latent.from={folder}", *more]
        return run(changes).samples_artifact

    first = runs(brought)
    moved = brought.rename(tmp_path / "moved")
    assert runs(moved) == first, "the folder's name is no content"
    assert runs(moved, "pretraining.steps=2") != first, "trained further on the public images"
    config = moved / "scheduler" / "scheduler_config.json"
    config.write_text(config.read_text().replace("0.02", "0.03"))
    assert runs(moved) != first


def test_our_own_network_learns_on_latents_from_elsewhere(no_servers, brought):
    changes = [*TINY, f"latent.from={brought}", "network.width=16", "network.blocks=1", "pretraining.steps=5"]
    record = run([*changes, "network.kind=mlp", "schedule.timesteps=50"])
    assert record.latents["reconstruction_error"] > 0 and record.label == Label.DP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("rapid", ["method.votes=true", "method.extractor.steps=3"]),
        ("dp-promise", ["method.phase_one='off'"]),
        ("dp-ensemble", ["method.members=2", "method.training.steps=2", "method.skip_last=0.2"]),
        ("moments", []),
    ],
)
def test_every_method_that_has_a_public_denoiser_takes_one_from_elsewhere(no_servers, tmp_path, method, changes):
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=50, prediction_type="sample")
    folder = elsewhere.save(tmp_path / "dit", elsewhere.dit(classes=26), scheduler, part="transformer")
    record = run_method(method, [*TINY, *changes, f"network.from={folder}"], str(tmp_path / "out"))
    assert {stage for stage, _ in no_servers.values()}.isdisjoint({"pretrain"})
    samples = serialization.load_images(where().store().folder(record.samples_artifact))
    if record.certificate.images == "any":
        assert np.array_equal(sfumato.load(tmp_path / "out").draw(60, seed=0)[0], samples.pixels)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["network.from={}"], "DiTTransformer2DModel for 16x16 positions, and what it is to denoise has 8x8"),
        (["latent.from={}"], "nor does vae or vqvae in it"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(no_servers, tmp_path, changes, words):
    folder = elsewhere.save(tmp_path / "dit", elsewhere.dit(side=16), diffusers.DDPMScheduler(), part="transformer")
    with pytest.raises(BadInput) as refusal:
        run([*TINY, *(change.format(folder) for change in changes)])
    assert words in str(refusal.value) and not no_servers
