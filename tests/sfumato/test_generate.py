"""More images of a released model, from the library alone."""

import csv
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from sfumato import generate
from sfumato.errors import BadInput
from sfumato.image_folder import SYNTHETIC, XMP_KEY
from sfumato.methods.plan import Certificate
from tests.sfumato.test_continuations import make_model

HERE = generate.Origin("Drawn here.", "scans-synthetic", "run-1", ("scans",))


class Model:
    """Draws what it is asked for, and remembers it."""

    classes, shape = ("a", "b, c", "d"), (1, 4, 4)
    certificate = Certificate(
        epsilon=1.0, delta=1e-5, relation="add_remove", accountant="test", unit="one image", images="any"
    )

    def __init__(self):
        self.given = []

    def draw(self, count, *, classes, seed, progress):
        self.given.append((count, list(classes), seed))
        labels = np.arange(count, dtype=np.int64) % 3
        return np.full((count, 1, 4, 4), 7, np.uint8) * labels[:, None, None, None].astype(np.uint8), labels


def test_each_image_is_signed_where_there_is_a_way_to(tmp_path):
    to = generate.write_more(Model(), 5, tmp_path / "more", HERE, seed=3, sign=lambda png: png + b"signed")
    assert all(path.read_bytes().endswith(b"signed") for path in to.rglob("*.png"))


def test_the_folder_holds_class_folders_a_table_and_the_certificate(tmp_path):
    model = Model()
    to = generate.write_more(model, 5, tmp_path / "deep" / "more", HERE, seed=3)
    assert to == (tmp_path / "deep" / "more").resolve() and model.given == [(5, [], 3)]
    with (to / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["a", "b, c", "d", "a", "b, c"]
    for row in rows:
        with Image.open(to / row["file"]) as image:
            assert np.asarray(image).max() == 7 * int(row["label"]) and SYNTHETIC in image.text[XMP_KEY]
    text = (to / "README.md").read_text()
    assert "5 synthetic images in 3 classes" in text and model.certificate.sentence() in text and HERE.sentence in text
    assert sorted(path.name for path in tmp_path.glob("deep/*")) == ["more"], "nothing half-written"


def test_with_continuations_a_picture_shows_what_they_go_on_from(tmp_path):
    model = make_model()
    to = generate.write_more(model, 8, tmp_path / "more", HERE, seed=3, continuations=4)
    with Image.open(to / "continuations.png") as image:
        assert SYNTHETIC in image.text[XMP_KEY] and image.width > image.height
    with (to / "labels.csv").open() as file:
        assert [row["class"] for row in csv.DictReader(file)] == list("abcdbcda")
    text = (to / "README.md").read_text()
    assert "go on from 2 noised ones, 4 from each" in text and model.certificate.sentence() in text
    with pytest.raises(BadInput, match="7 images, 4 from each"):
        generate.write_more(model, 7, tmp_path / "others", HERE, continuations=4)
    assert not (tmp_path / "others").exists()


@pytest.mark.parametrize(
    ("texts", "names"), [(["a", "d"], ["a", "d"]), (["a,d"], ["a", "d"]), (["b, c", "a"], ["b, c", "a"])]
)
def test_classes_are_named_one_by_one_or_with_commas(texts, names):
    assert generate.named(texts, Model.classes) == names


def test_a_folder_that_is_taken_is_refused_before_anything_is_drawn(tmp_path):
    (tmp_path / "there.txt").write_text("x")
    model = Model()
    with pytest.raises(BadInput, match="is not an empty folder"):
        generate.write_more(model, 5, tmp_path, HERE)
    assert not model.given


def test_a_folder_without_a_card_is_one_line(tmp_path):
    call = [sys.executable, "-m", "sfumato.generate", str(tmp_path), "--images", "3", "--to", str(tmp_path / "more")]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 2 and "no published folder" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["--classes", "a", "d"], ["--classes", "a", "--classes", "d"]])
def test_classes_that_are_named_twice_over_are_all_drawn(monkeypatch, tmp_path, words):
    asked_for = []
    monkeypatch.setattr(generate, "load", lambda *_, **__: Model())
    monkeypatch.setattr(generate, "from_folder", lambda _: HERE)

    def write_more(model, images, to, origin, *, classes, **how):
        asked_for.extend(classes)
        return to

    monkeypatch.setattr(generate, "write_more", write_more)
    monkeypatch.setattr("sys.argv", ["sfumato generate", str(tmp_path), "--images", "2", *words])
    generate.main()
    assert asked_for == ["a", "d"]
