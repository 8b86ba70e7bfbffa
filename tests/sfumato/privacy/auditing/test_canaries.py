"""Canaries: black and white noise with fair coins, new ones each time."""

import numpy as np
import pytest

from sfumato.errors import BadInput
from sfumato.privacy.auditing.canaries import images_each, make_canaries
from tests.seeded import seeded_source


def test_canaries_are_black_and_white_noise_with_fair_coins():
    made = make_canaries(2000, shape=(3, 4, 5), classes=10, source=seeded_source())
    assert made.pixels.shape == (2000, 3, 4, 5) and made.pixels.dtype == np.uint8 and len(made) == 2000
    assert set(np.unique(made.pixels)) == {0, 255} and abs((made.pixels == 255).mean() - 0.5) < 0.01
    assert 900 < made.included.sum() < 1100 and made.included.dtype == bool
    assert set(made.labels) == set(range(10)) and made.labels.dtype == np.int64
    assert abs(np.corrcoef(made.labels, made.included)[0, 1]) < 0.1
    joined = made.joined(tuple("abcdefghij"))
    assert np.array_equal(joined.pixels, made.pixels[made.included]) and len(joined.classes) == 10


def test_canaries_differ_each_time():
    one, other = (make_canaries(64, shape=(1, 4, 4), classes=2) for _ in range(2))
    assert not np.array_equal(one.pixels, other.pixels) and not np.array_equal(one.included, other.included)


def test_one_canary_is_refused():
    with pytest.raises(BadInput, match="1 canaries are too few"):
        make_canaries(1, shape=(1, 2, 2), classes=2)


def test_a_canary_may_be_a_whole_group():
    made = make_canaries(50, shape=(1, 4, 4), classes=3, each=4)
    assert len(made) == 50 and made.each == 4 and made.pixels.shape == (200, 1, 4, 4)
    assert all(len(set(labels)) == 1 for labels in made.labels.reshape(50, 4))
    joined = made.joined("abc")
    names, sizes = np.unique(joined.groups, return_counts=True)
    assert names.tolist() == np.flatnonzero(made.included).tolist() and set(sizes) == {4}
    assert np.array_equal(joined.pixels, made.pixels.reshape(50, 4, 1, 4, 4)[made.included].reshape(-1, 1, 4, 4))
    assert make_canaries(5, shape=(1, 4, 4), classes=3).joined("abc").groups is None


@pytest.mark.parametrize(("records", "images", "each"), [(10, 40, 4), (10, 41, 5), (10, 10, 2), (2, 900, 16)])
def test_a_canary_has_as_many_images_as_a_group(records, images, each):
    assert images_each(records, images) == each
