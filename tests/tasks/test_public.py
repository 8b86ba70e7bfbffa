"""Public stages in latents: the autoencoder belongs to its own images, and nobody works with another one."""

import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from artifacts import classifiers, serialization
from artifacts.references import PublicImages, PublicModel
from sfumato.config import BackboneSettings, Data, Latent, Machine, Network
from sfumato.errors import BadInput, Stopped
from sfumato.evaluation.classifier import predict
from sfumato.images import to_unit
from sfumato.methods.plan import Facts
from sfumato.networks.build import build
from sfumato.progress import silent
from sfumato.settings import resolve
from tasks.inputs import Inputs, PublicParts, TrainingSet, load_parts
from tasks.public import RECONSTRUCTIONS, dealt, read_public, train_autoencoder, train_backbone, train_classifier
from tasks.runtime.artifact import Draft, draft_of
from tasks.runtime.checkpoints import FolderKeeper
from tests.examples import picture_set
from tests.tasks.runtime.test_artifact import CONTEXT, place, reported  # noqa: F401 (fixtures)

TINY = Latent(kind="kl", width=4, steps=3, batch=8)
MACHINE = Machine(device="cpu")
NETWORK = Network(kind="mlp", width=8, blocks=1, condition=4)


@pytest.fixture
def world(place, reported):  # noqa: F811
    """The store, MLflow's ears, and two sets of public images."""
    store, sets = place.store(), []
    for classes in (("a", "b"), ("c", "d")):
        with store.writing() as folder:
            serialization.save_images(folder, picture_set(count=30, classes=classes))
            sets.append(store.keep(PublicImages, folder, parents=[]))
    return store, reported, sets


def trained(images):
    return train_autoencoder.fn(CONTEXT, images, TINY, seed=0, machine=MACHINE)


def drafted(store, tmp_path):
    return Draft(store, tmp_path, lambda *_: None)


def test_the_autoencoder_is_public_and_shows_what_it_loses(world):
    store, reported, (images, _) = world  # noqa: F811
    ref = trained(images)
    assert ref.label == "PUBLIC" and store.manifest(ref)["parents"] == [images.digest]
    assert trained(images).digest == ref.digest, "the same images and seed give the same autoencoder"
    result = Image.open(store.folder(ref) / RECONSTRUCTIONS)
    assert result.width > result.height > 100 and np.asarray(result).std() > 0
    call = reported[0]
    assert call["label"] == "PUBLIC" and call["files"] == [store.folder(ref) / RECONSTRUCTIONS]
    assert call["metrics"]["reconstruction_error"] > 0 and 0 < call["metrics"]["spread"] < 1
    assert len(call["series"]["loss"]) == TINY.steps


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_public_training_that_a_signal_stops_goes_on_to_the_same_artifact(world, place, monkeypatch, number, code):  # noqa: F811
    store, _, (images, _) = world
    whole = trained(images)
    with monkeypatch.context() as patched:
        patched.setattr(FolderKeeper, "stretch", lambda *_: os.kill(os.getpid(), number) or 1)
        with pytest.raises(Stopped, match="stopped after step 1 of 3 and saved") as stopped:
            trained(images)
    assert stopped.value.exit_code == code and list((place.home / "states").iterdir())
    assert trained(images).digest == whole.digest and not list((place.home / "states").iterdir())


def test_with_a_backbone_it_says_what_that_reads_after_the_round_trip(world):
    store, reported, (images, _) = world  # noqa: F811
    ask = {"seed": 0, "machine": MACHINE}
    reader = train_backbone.fn(CONTEXT, images, BackboneSettings(width=8, steps=3, batch=8), **ask)
    ref = train_autoencoder.fn(CONTEXT, images, TINY.model_copy(update={"perceptual": 0.1}), backbone=reader, **ask)
    assert store.manifest(ref)["parents"] == [images.digest, reader.digest] and ref.label == "PUBLIC"
    metrics = reported[-1]["metrics"]
    assert 0 <= metrics["read_after"] <= 1 and 0 <= metrics["read_before"] <= 1


def test_the_eyes_are_public_and_learn_from_public_images_alone(world):
    store, reported, (images, others) = world  # noqa: F811
    ask = {"source": "letters", "seed": 0, "machine": MACHINE}
    ref = train_classifier.fn(CONTEXT, images, **ask)
    assert ref.label == "PUBLIC" and store.manifest(ref)["parents"] == [images.digest] and store.entries(ref) == []
    assert (
        train_classifier.fn(CONTEXT, images, **ask).digest
        == ref.digest
        != train_classifier.fn(CONTEXT, others, **ask).digest
    )
    model, name = classifiers.load_classifier(store.folder(ref), torch.device("cpu"))
    result = serialization.load_images(store.folder(images))
    read = predict(model, to_unit(result.pixels)).argmax(1)
    assert (read.numpy() == result.labels).mean() > 0.9, "it has learnt these images"
    assert name == "letters" and reported[0]["label"] == "PUBLIC"


def test_public_stages_refuse_an_autoencoder_trained_on_other_images(world, tmp_path):
    store, _, (images, others) = world
    draft, ref = drafted(store, tmp_path), trained(images)
    shown = TrainingSet(images=images, autoencoder=ref, seed=0, machine=MACHINE)
    parts = dealt(draft, shown, 0.5)
    assert parts.shape == (3, 4, 4) and parts.reference_images.shape[1:] == (1, 8, 8)
    assert parts.pre[0].shape[1:] == parts.reference[0].shape[1:] == (3, 4, 4)
    with pytest.raises(BadInput, match=f"{ref.digest[:12]} was trained on the public images {images.digest[:12]}, not"):
        dealt(draft, shown.model_copy(update={"images": others}), 0.5)


def test_private_stages_refuse_one_that_their_denoiser_did_not_learn_with(world, tmp_path):
    """Another set of images by its digest, another shape of private images by the sizes."""
    store, _, (images, others) = world
    draft, ref = drafted(store, tmp_path), trained(images)
    models = []
    for parents in ([images, ref], [others]):
        with draft_of(PublicModel, "a denoiser", CONTEXT, parents=parents) as made:
            serialization.save_denoiser(made.folder, build(NETWORK, (3, 4, 4), 2), NETWORK, (3, 4, 4), 2)
        models.append(PublicParts(model=made.ref, autoencoder=ref))
    facts = Facts(records=9, classes=("x", "y"), public_classes=2, shape=(1, 8, 8))
    inputs = Inputs(settings=resolve("dp-sgd"), facts=facts, public=models[0])
    parts = load_parts(draft, inputs, MACHINE)
    assert parts.shape == (3, 4, 4) and parts.schedule.limit == parts.codec.limit != 1
    with pytest.raises(BadInput, match="was trained on the public images"):
        load_parts(draft, inputs.model_copy(update={"public": models[1]}), MACHINE)
    with pytest.raises(BadInput, match="trained on images of 8x8 with 1 channel, these are 16x16"):
        larger = facts.model_copy(update={"shape": (1, 16, 16)})
        load_parts(draft, inputs.model_copy(update={"facts": larger}), MACHINE)


def test_noise_joins_the_public_images_and_nothing_else_of_them():
    data = Data(glyphs_per_class=2)
    clean = read_public(data, 8, 0, silent)
    noised = read_public(data.model_copy(update={"public_noise": 0.3}), 8, 0, silent)
    assert np.array_equal(clean.labels, noised.labels) and clean.classes == noised.classes
    moved = noised.pixels.astype(float) - clean.pixels
    inside = (clean.pixels > 100) & (clean.pixels < 155)
    assert moved[inside].std() == pytest.approx(0.3 * 255, rel=0.15)
