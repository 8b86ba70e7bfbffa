"""A released model in MLflow's registry is loaded by MLflow's own call, and draws what the folder that was handed over draws."""

import io
import shutil

import mlflow
import numpy as np
import pytest
from pandas import DataFrame
from PIL import Image

import sfumato
from artifacts import flavour
from artifacts.tracking import Tracker
from sfumato import mlflow_model
from sfumato.errors import BadInput


@pytest.fixture(scope="module")
def loaded(released, tmp_path_factory):
    """The model of a real run, as MLflow loads it from a registry."""
    place = tmp_path_factory.mktemp("registry")
    tracker = Tracker(f"sqlite:///{place / 'mlflow.db'}", place / "files")
    run = tracker.log("run", label="DP")
    shutil.copytree(released, place / "model" / flavour.BUNDLE)
    flavour.write_flavour(place / "model", run=run)
    tracker.release("digits-rapid", place / "model", run=run, tags={}, note="a sentence")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(tracker.uri)
    yield mlflow.pyfunc.load_model("models:/digits-rapid@released")
    mlflow.set_tracking_uri(before)


def pixels(row):
    with Image.open(io.BytesIO(row["png"])) as image:
        assert image.format == "PNG" and "trainedAlgorithmicMedia" in str(image.text)
        return np.asarray(image)


def test_mlflow_draws_what_the_released_folder_draws(loaded, released):
    table = DataFrame({"class": ["7", ""], "images": [3, 5], "seed": [4, 4]})
    drawn = loaded.predict(table)
    assert list(drawn.columns) == ["class", "png"] and len(drawn) == 8 and set(drawn["class"][:3]) == {"7"}
    model = sfumato.load(released)
    for part, requested in ((drawn[:3], {"count": 3, "classes": ["7"]}), (drawn[3:], {"count": 5})):
        images, labels = model.draw(**requested, seed=4)
        assert [model.classes[label] for label in labels] == list(part["class"])
        assert np.array_equal(np.stack([pixels(row) for _, row in part.iterrows()]), images[:, 0])


def test_its_signature_and_example_are_those_of_the_table(loaded):
    stated = loaded.metadata
    assert [column.name for column in stated.signature.inputs] == ["class", "images", "seed"]
    assert [str(column.type) for column in stated.signature.outputs] == ["DataType.string", "DataType.binary"]
    example = stated.load_input_example()
    assert list(example.iloc[0]) == ["", 4, 0] and len(loaded.predict(example)) == 4
    flavours = stated.flavors["python_function"]
    assert flavours["loader_module"] == "sfumato.mlflow_model" and "python_model" not in flavours, "nothing is pickled"


def test_other_images_come_where_no_seed_is_given(loaded):
    table = DataFrame({"class": ["1"], "images": [4]})
    first, second = (list(loaded.predict(table)["png"]) for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("requested", "stated"),
    [({"class": "seven", "images": 2}, "no class 'seven'"), ({"class": "7", "images": 0}, "cannot draw 0")],
)
def test_what_cannot_be_drawn_is_named(loaded, requested, stated):
    with pytest.raises(Exception, match=stated) as refusal:
        loaded.predict(DataFrame([requested]))
    assert "\n" not in str(refusal.value)


def test_a_bundle_that_was_edited_is_refused(released, tmp_path):
    bundle = tmp_path / flavour.BUNDLE
    shutil.copytree(released, bundle)
    flavour.write_flavour(tmp_path, run="0" * 32)
    assert mlflow_model._load_pyfunc(str(bundle)).model.classes == tuple("0123456789")
    (bundle / "README.md").write_text("better than it is")
    with pytest.raises(BadInput, match="README.md"):
        mlflow.pyfunc.load_model(str(tmp_path))
