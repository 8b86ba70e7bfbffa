"""Collections in memory: what they check, tensors, digests, sample grids."""

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato import images
from sfumato.images import ImageSet, enlargement, grid, to_pixels, to_unit
from sfumato.sources import load


def test_image_set_checks_what_it_is_made_of():
    pixels, labels = np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1])
    assert len(ImageSet(pixels, labels, ("a", "b"))) == 2
    for wrong in (
        (pixels.astype(float), labels, ("a", "b")),
        (pixels[:, 0], labels, ("a", "b")),
        (pixels.repeat(2, 1), labels, ("a", "b")),
        (pixels, labels.astype(np.int32), ("a", "b")),
        (pixels, labels[:1], ("a", "b")),
        (pixels, labels, ("a",)),
        (pixels, labels - 1, ("a", "b")),
        (pixels, labels, ("a", "a")),
    ):
        with pytest.raises(ValueError):
            ImageSet(*wrong)


def test_subset_keeps_all_classes():
    digits = load("digits")
    some = digits.subset(np.flatnonzero(digits.labels == 3))
    assert set(some.labels) == {3} and some.classes == digits.classes
    assert len(digits.subset(slice(0, 5))) == 5 and len(digits.subset(digits.labels < 0)) == 0


def test_unit_values_go_there_and_back():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    unit = to_unit(pixels)
    assert unit.dtype == torch.float32 and unit.min() == -1 and unit.max() == 1
    assert np.array_equal(to_pixels(unit), pixels)
    assert to_pixels(torch.tensor([-9.0, 9.0, 0.004])).tolist() == [0, 255, 128]


def test_enlargement():
    assert [enlargement(size) for size in (8, 16, 28, 32, 64, 256)] == [7, 4, 3, 3, 2, 1]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_grid_shows_each_pixel_as_a_square(channels, mode):
    pictures = np.random.default_rng(0).integers(0, 256, (5, channels, 4, 6), dtype=np.uint8)
    page = grid(pictures, columns=3, scale=3)
    assert page.mode == mode and page.size == (3 * (18 + 2) + 2, 2 * (12 + 2) + 2)
    shown = np.asarray(page).reshape(page.height, page.width, channels)
    last = shown[2 + 14 : 2 + 14 + 12, 2 + 20 : 2 + 20 + 18]
    assert np.array_equal(last[::3, ::3].transpose(2, 0, 1), pictures[4])
    assert np.array_equal(last[2::3, 2::3], last[::3, ::3])
    assert (shown[:2] == images.GAP_GREY).all()
    with pytest.raises(ValueError, match="at least one"):
        grid(pictures[:0], columns=3, scale=3)


def test_saved_png_comes_back_and_says_nothing_else(tmp_path):
    page = grid(load("digits").pixels[:6], columns=3, scale=enlargement(8))
    images.save_png(tmp_path / "page.png", page)
    again = Image.open(tmp_path / "page.png")
    assert np.array_equal(np.asarray(again), np.asarray(page)) and not again.info
