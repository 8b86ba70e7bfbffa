"""A received folder gives its promise and its model, drawn as the run drew; whatever was changed in it is refused before anything is read."""

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from PIL import Image

import sfumato
from artifacts import serialization
from sfumato import released as module
from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.privacy.ledger.signing import Signer, signed
from tasks.runtime.environment import where
from tests.flows.test_own_data import TINY, run

KEY = Signer(Ed25519PrivateKey.generate())


def published(folder: Path) -> ImageSet:
    """The images in a published folder, in order."""
    with (folder / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    pixels = np.stack([np.asarray(Image.open(folder / row["file"])) for row in rows])[:, None]
    return ImageSet(pixels, np.array([int(row["label"]) for row in rows]), tuple("0123456789"))


@pytest.fixture
def copy(released, tmp_path) -> Path:
    """The published folder, to be changed."""
    return shutil.copytree(released, tmp_path / "out")


def signed_again(folder: Path, **changes: object) -> Path:
    """The card with other fields, signed by a key of ours as one who owns the ledger might."""
    card = json.loads((folder / "card.json").read_text()) | changes
    head = signed({**card["head"], "public_key": KEY.public_key}, KEY)
    (folder / "card.json").write_text(json.dumps(signed({**card, "head": head}, KEY)))
    return folder


def refused(*words: str):
    """Expects a BadInput in one line that holds all words."""
    return pytest.raises(BadInput, match="^" + "".join(f"(?=.*{word})" for word in words) + r"[^\n]*$")


# What is there


def test_the_model_draws_what_the_run_published_and_other_images_by_other_seeds(released):
    model, there = sfumato.load(released), published(released)
    images, labels = model.draw(len(there), seed=3)
    assert images.dtype == np.uint8 and images.shape == (60, *model.shape) and labels.dtype == np.int64
    assert np.array_equal(images, there.pixels) and np.array_equal(labels, there.labels)
    others = [model.draw(60, seed=4)[0], model.draw(60)[0], model.draw(60)[0]]
    assert all(not np.array_equal(one, other) for one in others for other in (images, *others) if one is not other)


def test_classes_are_chosen_by_name_or_position(released):
    model = sfumato.load(released)
    assert model.classes == tuple("0123456789") and "(9.9" in str(model)
    assert model.draw(5, classes=("7", 2))[1].tolist() == [2, 2, 2, 7, 7]
    assert model.draw(2, classes="4")[1].tolist() == [4, 4]
    with refused("classes", "'cat'", "not there", "0, 1"):
        model.draw(5, classes=["cat"])
    for count, seed in ((0, None), (3, -1), (2.5, None), (3, "a"), (3, 2**31)):
        with refused("cannot draw", str(count)):
            model.draw(count, seed=seed)


class ReadsTwos:
    """A judge to whom every second image is a 2, and the others what they were drawn for."""

    def of_set(self, images, device):
        labels = torch.as_tensor(images.labels).clone()
        labels[::2] = 2
        return torch.nn.functional.one_hot(labels, 10).double()


@pytest.mark.parametrize("use", ["relabel", "weigh", "filter"])
def test_only_images_of_the_classes_that_are_asked_for_come_back(released, use):
    """A judge that relabels may call them something else; whoever asks for threes wants no twos."""
    model = sfumato.load(released)
    judge = model.settings.judge.model_copy(update={"use": use, "keep": 0.5})
    model = replace(model, judge=ReadsTwos(), settings=model.settings.model_copy(update={"judge": judge}))
    assert model.draw(6, classes=["3", "5"])[1].tolist() == [3, 3, 3, 5, 5, 5]
    assert use != "relabel" or 2 in model.draw(6)[1].tolist()


class ReadsTheNext:
    """A judge to whom each image is of the class after the one it was drawn for."""

    def of_set(self, images, device):
        return torch.nn.functional.one_hot((torch.as_tensor(images.labels) + 1) % 10, 10).double().clamp(min=1e-6).log()


def test_a_judge_that_goes_by_its_own_classes_looks_for_them_among_all(released, monkeypatch):
    """What is drawn for a class shows another there."""
    model = sfumato.load(released)
    judge = model.settings.judge.model_copy(update={"use": "filter", "keep": 0.5})
    model = replace(model, judge=ReadsTheNext(), settings=model.settings.model_copy(update={"judge": judge}))
    made = []

    def drawn(settings, parts, count, device, **how):
        made.append(np.bincount(labels := np.sort(np.arange(count) % 10), minlength=10))
        return ImageSet(np.repeat(labels.astype(np.uint8), 64).reshape(count, 1, 8, 8), labels, model.classes)

    monkeypatch.setattr(module, "draw_set", drawn)
    shown, labels = replace(model, own_classes=True).draw(6, classes=["3", "5"])
    assert labels.tolist() == [3, 3, 3, 5, 5, 5] and shown[:, 0, 0, 0].tolist() == [2, 2, 2, 4, 4, 4]
    assert made[-1].tolist() == [6] * 10, "twice as many of every class"
    shown, labels = replace(model, own_classes=True).draw(20)
    assert np.bincount(labels).tolist() == [2] * 10 and made[-1].sum() == 40
    assert model.draw(20)[0][:, 0, 0, 0].tolist() == model.draw(20)[1].tolist(), "each as it was drawn for"


def test_the_models_description_says_what_a_judge_went_by(copy):
    model, place = sfumato.load(copy), copy / "model" / "model.json"
    stored = json.loads(place.read_text())
    assert "own_classes" not in stored and not model.own_classes
    said_so = module.description(stored["settings"], model.parts.facts, stored["parts"], own_classes=True)
    place.write_text(json.dumps(said_so))
    assert module.read_model(place.parent, model.certificate, model.device).own_classes


def test_the_certificate_is_that_of_the_card(released):
    card, result = json.loads((released / "card.json").read_text()), sfumato.certificate(released)
    assert (
        result.sentence() == card["statement"]
        and result.images == "any"
        and result == sfumato.load(released).certificate
    )
    assert (result.epsilon, result.delta, result.relation) == tuple(
        card["certificate"][name] for name in ("epsilon", "delta", "relation")
    )
    assert sfumato.certificate(released, key=card["head"]["public_key"]) == result


def test_every_part_is_in_the_card_with_its_label_and_size(released):
    reported = json.loads((released / "card.json").read_text())
    parts = reported["model"]["parts"]
    assert {name: part["label"] for name, part in parts.items()} == {
        **dict.fromkeys(("public", "extractor", "base"), "PUBLIC"),
        **dict.fromkeys(("votes", "tuned"), "DP"),
    }
    files = {path.relative_to(released).as_posix(): path.stat().st_size for path in (released / "model").rglob("*.*")}
    assert set(files) <= set(reported["files"]) and "model/tuned/tensors.safetensors" in files
    beside = files["model/model.json"] + files["model/README.md"]
    assert reported["model"]["bytes"] == sum(files.values()) - beside
    texts = [path.read_text() for path in (released / "model").rglob("*.json")]
    assert not any("/tmp" in text or "seed" in text for text in texts), "neither places nor seeds leave"
    assert "sfumato.load(" in (released / "README.md").read_text()


# What does not match


@pytest.mark.parametrize("read", [sfumato.load, sfumato.certificate])
def test_a_file_that_was_changed_added_or_removed_is_named(copy, read):
    (copy / "model" / "note.txt").write_text("new")
    with refused("model/note.txt", "not in the card", "ask"):
        read(copy)
    (copy / "model" / "note.txt").unlink()
    weights = copy / "model" / "tuned" / "tensors.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with refused("model/tuned/tensors.safetensors was changed", "ask"):
        read(copy)
    weights.unlink()
    with refused("model/tuned/tensors.safetensors is missing", "ask"):
        read(copy)


@pytest.mark.parametrize("read", [sfumato.load, sfumato.certificate])
def test_a_card_that_was_changed_or_signed_by_another_is_refused(copy, read):
    ledger_key = json.loads((copy / "card.json").read_text())["head"]["public_key"]
    with refused("card was changed or is not signed by the key", Signer(KEY.private).fingerprint):
        read(copy, key=KEY.public_key)
    with refused("key", "cannot be read"):
        read(copy, key="no key")
    signed_again(copy)
    assert read(copy, key=KEY.public_key)
    with refused("card was changed or is not signed by the key"):
        read(copy, key=ledger_key)
    text = (copy / "card.json").read_text()
    (copy / "card.json").write_text(text.replace('"add_remove"', '"replace_one"'))
    with refused("card was changed"):
        read(copy)
    for broken in (text[:99], "[]", "{}", json.dumps({**json.loads(text), "files": 3})):
        (copy / "card.json").write_text(broken)
        with refused("card", "ask"):
            read(copy)
    with refused("no published folder"):
        read(copy / "data")


def test_why_there_is_no_model_is_said(copy):
    why = "the certificate covers 300 images"
    with refused("holds images and no model", why):
        sfumato.load(signed_again(copy, model={"left_out": why}))
    card = json.loads((copy / "card.json").read_text())
    earlier = {name: value for name, value in card.items() if name != "model"}
    (copy / "card.json").write_text(json.dumps(signed(earlier, KEY)))
    with refused("no model", "version of Sfumato"):
        sfumato.load(copy)
    with refused("has no certificate", "differential privacy"):
        sfumato.certificate(signed_again(copy, certificate=None))


def test_a_model_that_left_without_a_part_says_so(copy):
    card = json.loads((copy / "card.json").read_text())
    signed_again(copy, model={**card["model"], "without": {"base": "nobody named a licence"}})
    with refused("model in .* cannot draw", "part 'base' is left out", "nobody named a licence"):
        sfumato.load(copy)
    assert sfumato.certificate(copy) == sfumato.certificate(copy, key=KEY.public_key)


def test_what_another_version_wrote_is_refused(copy):
    place = copy / "model" / "model.json"
    reported = json.loads(place.read_text())
    for changes, words in (
        ({"format": 99}, ("format 99", "reads format 1", "install")),
        ({"settings": reported["settings"] | {"method": {"name": "newer"}}}, ("cannot be read", "install")),
        ({"parts": [*reported["parts"], "counts"]}, ("cannot be read", "install")),
    ):
        place.write_text(json.dumps(reported | changes))
        with refused(*words):
            module.read_model(copy / "model", sfumato.certificate, "cpu")


def test_a_certificate_that_another_version_wrote_is_refused(copy):
    card = json.loads((copy / "card.json").read_text())
    signed_again(copy, certificate={**card["certificate"], "newer": 1})
    for read in (sfumato.load, sfumato.certificate):
        with refused("card.json cannot be read by this version", "install", "code_version"):
            read(copy)


def test_a_device_that_is_not_there_is_refused(released):
    with refused("no device 'abacus'"):
        sfumato.load(released, device="abacus")


# Other methods


@pytest.mark.slow
@pytest.mark.usefixtures("quick_judges", "no_servers")
@pytest.mark.parametrize(
    ("method", "changes", "parts"),
    [
        ("dp-ensemble", ["method.members=2", "method.prototypes=2", "method.training.steps=5"], {"prototypes"}),
        (
            "empirical-denoiser",
            ["method.pay=class", "alignment.kind=moments", "latent.kind=patch", "latent.steps=5"],
            {"prototypes", "moments", "autoencoder"},
        ),
        ("moments", ["latent.kind=patch", "latent.steps=5"], {"moments", "autoencoder"}),
    ],
)
def test_the_model_of_another_method_draws_what_its_run_published(tmp_path, method, changes, parts):
    record = run(method, ["data.share=0.1395", *TINY, *changes], str(tmp_path / "out"))
    there = serialization.load_images(where().store().folder(record.samples_artifact))
    images, labels = sfumato.load(tmp_path / "out").draw(60, seed=0)
    assert np.array_equal(images, there.pixels) and np.array_equal(labels, there.labels)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert set(card["model"]["parts"]) == {"public", *parts}


# The door


def test_importing_the_library_imports_nothing_heavy():
    program = "import sys, sfumato; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "sfumato" in loaded and not {"torch", "numpy", "pydantic", "cryptography", "sfumato.config"} & set(loaded)


def test_a_plan_is_made_and_printed_without_a_run():
    plan = sfumato.plan("dp-sgd", private="digits", public="glyphs", epsilon=3, changes=["generation.images=50"])
    assert 2.9 < plan.certificate.epsilon <= 3 and plan.generation.images == 50
    reported = str(plan)
    assert plan.certificate.sentence() in reported and "1437 private records" in reported and "DP-SGD" in reported
    with refused("privacy.epsilon"):
        sfumato.plan("dp-sgd", private="digits", public="glyphs", epsilon=-1)
    with refused("nowhere"):
        sfumato.plan("dp-sgd", private="/nowhere: at all", public="glyphs", epsilon=3)
