"""Pictures large enough to see, one class a row."""

import numpy as np
import pytest
from PIL import Image

from artifacts.pictures import (
    APART,
    MOST_CLASSES,
    MOST_COLUMNS,
    PAGE,
    PAIRS,
    SIDE,
    columns_of,
    draw_images,
    draw_pairs,
    of_each,
    scale_of,
)
from sfumato.images import ImageSet
from tests.examples import picture_set


@pytest.mark.parametrize("side", [8, 10, 16, 28, 32, 64, 128])
def test_images_are_large_enough_to_see_and_a_row_fits_on_a_page(tmp_path, side):
    images = picture_set(60, side=side, channels=3)
    assert SIDE <= side * scale_of(side) < max(2 * SIDE, side + 1)
    draw_images(tmp_path / "shown.png", images, columns_of(images))
    with Image.open(tmp_path / "shown.png") as result:
        assert result.mode == "RGB" and result.width <= PAGE
        gap = 2 if scale_of(side) > 1 else 1
        assert result.height == 2 * (side * scale_of(side) + gap) + gap
    assert columns_of(images) <= MOST_COLUMNS


def test_each_image_stands_left_of_its_nearest(tmp_path):
    images = picture_set(20)
    shown = of_each(images)
    assert len(shown) == 2 * PAIRS and shown.labels.tolist() == [0] * PAIRS + [1] * PAIRS
    nearest = 255 - shown.pixels
    draw_pairs(tmp_path / "pairs.png", shown, nearest)
    with Image.open(tmp_path / "pairs.png") as result:
        page, wide = np.asarray(result), (result.width + APART) // PAIRS
    own = 2 + 8 * scale_of(8) + 2
    for number in (0, 2):
        left = page[2 : 2 + 64 : 8, number * wide + 2 : number * wide + 66 : 8]
        right = page[2 : 2 + 64 : 8, number * wide + own : number * wide + own + 64 : 8]
        assert np.array_equal(left, shown.pixels[number, 0]) and np.array_equal(right, nearest[number, 0])


def test_of_many_classes_the_first_are_paired_and_an_empty_one_has_no_row(tmp_path):
    classes = tuple(map(str, range(MOST_CLASSES + 5)))
    labels = np.array([label for label in range(len(classes)) if label != 1], np.int64)
    images = ImageSet(np.zeros((len(labels), 1, 8, 8), np.uint8), labels, classes)
    shown = of_each(images)
    assert shown.labels.tolist() == [0, *range(2, MOST_CLASSES + 1)]
    draw_pairs(tmp_path / "pairs.png", shown, shown.pixels)
    with Image.open(tmp_path / "pairs.png") as result:
        assert result.height == MOST_CLASSES * (64 + 4)
