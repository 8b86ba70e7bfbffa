"""What only the store holds comes back as it was; what a model is made of is the library's (`tests/sfumato/test_formats.py`)."""

import numpy as np
import pytest

from artifacts import serialization
from sfumato.errors import BadInput
from sfumato.latents import PIXELS
from tests.examples import picture_set
from tests.sfumato.test_formats import CPU, made_autoencoder


def test_an_autoencoder_of_the_same_public_images_is_read(tmp_path):
    serialization.save_autoencoder(tmp_path, made_autoencoder(), "d1")
    assert serialization.load_codec(tmp_path, CPU, trained_on=["d0", "d1"]).image == (1, 8, 8)


def test_an_autoencoder_trained_on_other_data_is_refused_by_name(tmp_path):
    folder = tmp_path / ("c0ffee" + "0" * 58)
    folder.mkdir()
    serialization.save_autoencoder(folder, made_autoencoder(), "a" * 64)
    with pytest.raises(
        BadInput, match=r"autoencoder c0ffee000000 was trained on the public images a{12}, not on"
    ) as no:
        serialization.load_codec(folder, CPU, trained_on=["b" * 64])
    assert "\n" not in str(no.value) and "train one" in str(no.value)


def test_without_an_autoencoder_pixels_stay_as_they_are():
    assert serialization.load_codec(None, CPU, trained_on=[]) is PIXELS


def test_a_curve_comes_back(tmp_path):
    serialization.save_curve(tmp_path, [1.5, 0.25, 1e-9])
    assert serialization.load_curve(tmp_path) == [1.5, 0.25, 1e-9]


def test_labels_that_images_were_drawn_for_stand_beside_those_that_count(tmp_path):
    images = picture_set()
    serialization.save_images(tmp_path, images)
    assert serialization.load_drawn(tmp_path) is None
    serialization.save_relabelled(tmp_path, images, 1 - images.labels)
    assert np.array_equal(serialization.load_drawn(tmp_path), 1 - images.labels)
    assert np.array_equal(serialization.load_images(tmp_path).labels, images.labels)
