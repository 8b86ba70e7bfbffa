"""Random shapes: fixed by a seed, told apart by class, dull and rough as photographs are."""

import numpy as np
import pytest
from PIL import Image
from scipy.stats import linregress
from sklearn.datasets import load_sample_images
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sfumato.sources import Reading, describe, load
from sfumato.sources.shapes import ARRANGEMENTS, render_shapes

SIZE, EACH = 32, 60


@pytest.fixture(scope="module")
def shapes():
    return render_shapes(EACH, SIZE, seed=0)


@pytest.fixture(scope="module")
def crops() -> np.ndarray:
    """Squares of the two photographs that scikit-learn ships, at half their size, `[n, 3, SIZE, SIZE]`."""
    halves = [np.asarray(Image.fromarray(photo).reduce(2)) for photo in load_sample_images().images]
    places = [(top, left) for top in range(0, 180, SIZE) for left in range(0, 280, SIZE)]
    return np.stack([half[y : y + SIZE, x : x + SIZE] for half in halves for y, x in places]).transpose(0, 3, 1, 2)


def amplitudes(pixels: np.ndarray) -> np.ndarray:
    """Mean amplitude at each frequency from 1 to half the side, of grey levels around their mean; `[n, side / 2]`."""
    grey = pixels.mean(1) / 255
    field = np.abs(np.fft.fft2(grey - grey.mean((1, 2), keepdims=True)))
    far = np.hypot(*np.meshgrid(*[np.fft.fftfreq(SIZE) * SIZE] * 2)).round()
    return np.stack([field[:, far == ring].mean(1) for ring in range(1, SIZE // 2 + 1)], 1)


def in_common(pixels: np.ndarray) -> float:
    """Share of the variance within images that all channels have in common."""
    around = pixels - pixels.mean((2, 3), keepdims=True)
    return float(around.mean(1).var() / around.var())


def test_shape_order_and_classes(shapes):
    assert shapes.pixels.shape == (8 * EACH, 3, SIZE, SIZE) and shapes.pixels.dtype == np.uint8
    assert shapes.classes == tuple(ARRANGEMENTS)
    assert shapes.labels.tolist() == [label for label in range(8) for _ in range(EACH)]


def test_a_seed_fixes_the_images_and_another_changes_them(shapes):
    assert np.array_equal(shapes.pixels, render_shapes(EACH, SIZE, seed=0).pixels)
    other = render_shapes(EACH, SIZE, seed=1).pixels
    assert (shapes.pixels != other).any((1, 2, 3)).all()


def test_no_two_images_are_alike_and_few_are_flat(shapes):
    assert len(np.unique(shapes.pixels.reshape(len(shapes.pixels), -1), axis=0)) == len(shapes.pixels)
    assert np.mean(shapes.pixels.std((2, 3)).max(1) < 4) < 0.02


def test_ways_of_laying_out_can_be_told_apart(shapes):
    seen = np.concatenate([np.log(amplitudes(shapes.pixels) + 1e-3), shapes.pixels.std((2, 3))], 1)
    reader = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    reader.fit(seen[::2], shapes.labels[::2])
    assert reader.score(seen[1::2], shapes.labels[1::2]) > 0.3  # chance is .125; a CNN sees more than a spectrum


def test_they_are_as_rough_and_as_dull_as_photographs(shapes, crops):
    rings = np.log(np.arange(1, SIZE // 2 + 1))
    drawn, real = (linregress(rings, np.log(amplitudes(one)).mean(0)).slope for one in (shapes.pixels, crops))
    assert drawn == pytest.approx(real, abs=0.5) and real < -1  # a little smoother: specks are left out
    assert in_common(shapes.pixels) == pytest.approx(in_common(crops), abs=0.15)


def test_as_a_source_they_come_at_any_size_and_grey_where_asked():
    facts = describe("shapes", Reading(part="all"))
    assert (facts.records, facts.channels, facts.height, facts.classes) == (20_000, 3, 32, tuple(ARRANGEMENTS))
    assert load("shapes", Reading(part="all", size=20, shapes_per_class=2)).pixels.shape == (16, 3, 20, 20)
    grey = load("shapes", Reading(part="all", size=16, channels=1, shapes_per_class=3, only=("objects", "grains")))
    assert grey.pixels.shape == (6, 1, 16, 16) and grey.classes == ("objects", "grains")


def test_they_mix_with_others():
    mixed = load("digits+shapes", Reading(part="all", size=8, channels=1, shapes_per_class=1))
    assert mixed.classes[9:11] == ("digits:9", "shapes:leaves") and len(mixed) == 1797 + 8
