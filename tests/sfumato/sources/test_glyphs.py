"""Rendered letters: deterministic, boxed and inked like the handwriting they stand beside."""

import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt, label
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from sfumato.errors import BadInput
from sfumato.sources import glyphs
from sfumato.sources.glyphs import LETTERS, render_glyphs


@pytest.fixture(scope="module")
def letters():
    return render_glyphs(LETTERS, 20, 8, seed=0)


@pytest.fixture(scope="module")
def handwriting() -> np.ndarray:
    return np.round(load_digits().images * 255 / 16)


def test_shape_order_and_classes(letters):
    assert letters.pixels.shape == (52 * 20, 1, 8, 8)
    assert letters.classes == tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert letters.labels.tolist() == [i for i in range(52) for _ in range(20)]


def test_a_seed_fixes_the_images_and_another_changes_them():
    first, again, other = (render_glyphs("aB3", 200, 8, seed).pixels for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_small_images_have_the_digits_17_grey_levels(letters):
    assert set(np.unique(letters.pixels)) <= {round(v * 255 / 16) for v in range(17)}


def test_small_images_fill_the_height_and_leave_the_sides(letters):
    picture = letters.pixels[:, 0]
    assert (picture.max(2) > 0).all()  # every row, as in the original
    assert picture[:, :, [0, 7]].mean() < 0.1 * picture.mean()


def test_intensity_is_that_of_the_digits(letters, handwriting):
    picture = letters.pixels[:, 0].astype(float)
    assert picture.mean() == pytest.approx(handwriting.mean(), rel=0.05)
    assert picture.mean((1, 2)).std() == pytest.approx(handwriting.mean((1, 2)).std(), rel=0.25)
    assert picture.var(0).mean() == pytest.approx(handwriting.var(0).mean(), rel=0.25)
    assert np.mean(picture == 0) == pytest.approx(np.mean(handwriting == 0), abs=0.05)


def test_no_two_images_are_alike(letters):
    assert len(np.unique(letters.pixels.reshape(len(letters), -1), axis=0)) > 0.97 * len(letters)


def test_rendered_digits_teach_a_classifier_about_written_ones(handwriting):
    drawn = render_glyphs("0123456789", 60, 8, seed=0)
    reader = LogisticRegression(max_iter=300).fit(drawn.pixels.reshape(len(drawn), -1) / 255, drawn.labels)
    assert reader.score(handwriting.reshape(-1, 64) / 255, load_digits().target) > 0.5  # chance is .1


@pytest.mark.parametrize("size", [16, 28, 32])
def test_larger_images_sit_in_a_box_as_mnist_does(size):
    picture = render_glyphs("agMQl7", 10, size, seed=0).pixels[:, 0].astype(float)
    assert picture.shape == (60, size, size) and picture.max() == 255
    place = np.arange(size)
    rows = (picture.max(2) > 0).sum(1)
    columns = (picture.max(1) > 0).sum(1)
    box = np.maximum(rows, columns)
    assert (abs(box - size * 20 / 28) <= 2).all()
    for axis in (1, 2):
        centre = (picture.sum(3 - axis) * place).sum(1) / picture.sum((1, 2))
        assert abs(centre - (size - 1) / 2).max() < 0.7


def test_edges_are_smooth():
    levels = np.unique(render_glyphs("o", 10, 28, seed=0).pixels)
    assert len(levels) == 17


def test_every_font_draws_every_character():
    fields = glyphs.distance_fields(glyphs.DRAWABLE, glyphs.DIGITS_LOOK)
    assert fields.shape == (62, 15, glyphs.FIELD, glyphs.FIELD)
    inked = (fields > 0).float().mean((2, 3))
    assert inked.min() > 0.01 and inked.max() < 0.3
    flat = fields.transpose(0, 1).flatten(2)  # no font draws one placeholder for several letters
    for font in flat:
        assert len(font.unique(dim=0)) == 62


def test_a_skeleton_is_one_pixel_wide_and_whole():
    bars = np.zeros((2, 20, 20), bool)
    bars[0, 3:17, 8:13] = True  # a bar
    bars[1, 4:16, 4:16] = True  # a ring
    bars[1, 8:12, 8:12] = False
    bar, ring = glyphs.thinned(bars)
    assert (bar.sum(1) <= 1).all() and bar.sum() >= 9 and set(np.flatnonzero(bar.any(0))) == {10}
    assert label(ring, np.ones((3, 3)))[1] == 1 and label(~ring)[1] == 2  # one line around one hole
    assert ring.sum() < bars[1].sum() / 3 and not (ring & ~bars[1]).any()


def test_the_pen_keeps_its_width_in_every_letter():
    drawn = render_glyphs("oMlW", 100, 28, seed=0)
    ink = drawn.pixels[:, 0] > 127
    thickness = np.array([2 * distance_transform_edt(one).max() for one in ink])
    means = [thickness[drawn.labels == i].mean() for i in range(4)]
    assert min(means) > 2.5 and max(means) < 5.5  # Omniglot's, cut and boxed in the same way: 4.4


def test_no_image_is_empty_and_hardly_one_reaches_the_border():
    picture = render_glyphs(LETTERS, 10, 28, seed=3).pixels[:, 0]
    assert (picture.max((1, 2)) == 255).all()
    border = np.concatenate([picture[:, [0, -1]], picture[:, :, [0, -1]].transpose(0, 2, 1)], 1)
    assert np.mean(border.max((1, 2)) > 0) < 0.01  # an `L` or `J` whose mass lies far from the middle of its box


def test_one_image_is_enough():
    assert len(render_glyphs("a", 1, 8, seed=0)) == 1


@pytest.mark.parametrize(
    ("characters", "per_class", "size", "words"),
    [
        ("", 1, 8, "is empty"),
        ("aa", 1, 8, "repeats 'a'"),
        ("aé", 1, 8, "holds 'é'"),
        ("a", 0, 8, "glyphs_per_class=0"),
        ("a", 1, 4, "data.size=8"),
    ],
)
def test_impossible_requests_are_refused(characters, per_class, size, words):
    with pytest.raises(BadInput, match=words):
        render_glyphs(characters, per_class, size, seed=0)
