"""Noise on public images: its size, its bounds, and that it is the same each time."""

import numpy as np
import pytest

from sfumato.degraded import degraded
from sfumato.errors import BadInput
from sfumato.images import ImageSet
from sfumato.settings import resolve


def grey(level, count=40):
    return ImageSet(np.full((count, 1, 16, 16), level, np.uint8), np.zeros(count, np.int64), ("a",))


def test_the_noise_has_the_deviation_of_the_setting_as_a_share_of_all_grey_levels():
    noised = degraded(grey(128), 0.1, seed=1).pixels.astype(float)
    assert noised.mean() == pytest.approx(128, abs=1) and noised.std() == pytest.approx(25.5, rel=0.03)
    assert not np.array_equal(noised[0], noised[1])


def test_levels_stay_within_their_bounds():
    noised = degraded(grey(250), 1.0, seed=1).pixels
    share_of_white = (noised == 255).mean()
    assert share_of_white == pytest.approx(0.5, abs=0.03) and (noised == 0).mean() == pytest.approx(0.164, abs=0.02)


def test_without_noise_nothing_changes_and_a_seed_decides():
    images = grey(90)
    assert degraded(images, 0.0, seed=1) is images
    one, same, other = (degraded(images, 0.2, seed=seed).pixels for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert (images.pixels == 90).all(), "the images themselves stay as they are"


def test_a_deviation_below_zero_is_refused():
    with pytest.raises(BadInput, match="public_noise"):
        resolve("rapid", changes=["data.public_noise=-0.1"])
