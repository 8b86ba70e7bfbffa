"""How many images of each class: shares as a person means them, counts with noise made into shares, whole numbers of images."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.class_shares import (
    class_shares,
    images_of_each,
    most_of_one,
    numbers_of_each,
    shares_among,
    shares_of,
    wanted_classes,
    with_shares,
)
from sfumato.config import Generation
from sfumato.errors import BadInput

NAMES = ("cat", "dog", "1")


def declared(shares, **changes):
    return with_shares(Generation(classes="declared", shares=shares, **changes), NAMES)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cat": 900, "dog": 100}, (0.9, 0.1, 0)),
        ({"0": 0.2, "dog": 0.6}, (0.25, 0.75, 0)),
        ({0: 1, 2: 1}, (0.5, 0, 0.5)),
        ({1: 5}, (0, 0, 1)),
    ],
    ids=["counts", "not-one-in-all", "positions", "a-name-before-a-position"],
)
def test_only_proportions_count_and_a_class_that_is_left_out_gets_nothing(given, expected):
    result = declared(given)
    assert shares_of(result, NAMES) == pytest.approx(expected) and list(result.shares) == list(NAMES)
    assert with_shares(result, NAMES) == result, "what is filled in stays as it is"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cow": 1}, r"names the class 'cow', which is not there: use cat, dog, 1, or a position from 0 on$"),
        ({"7": 1}, "names the class '7'"),
        ({"-1": 1}, "names the class '-1'"),
        ({"cat": 1, "0": 2}, "names the class 'cat' twice"),
        ({}, "needs generation.shares with one above 0"),
        ({"cat": 0}, r"--set 'generation.shares=\{cat: 3, 1: 1\}'$"),
    ],
)
def test_shares_that_cannot_be_meant_are_one_line(given, words):
    with pytest.raises(BadInput, match=words) as error:
        declared(given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [-1, float("nan"), float("inf")])
def test_a_share_is_a_number_from_0_up(share):
    with pytest.raises(ValueError, match=r"shares\.cat"):
        Generation(classes="declared", shares={"cat": share})


def test_shares_need_their_setting_and_a_bound_must_leave_room():
    with pytest.raises(BadInput, match=r"is for generation\.classes=declared, and that is uniform"):
        with_shares(Generation(shares={"cat": 1}), NAMES)
    with pytest.raises(BadInput, match=r"largest_share=0.3 of each of 3 classes is not all of the images: use 0.333"):
        with_shares(Generation(classes="queried", largest_share=0.3), NAMES)
    assert with_shares(Generation(), NAMES) == Generation()


def test_uniform_images_are_those_of_always():
    for count in (1, 2, 7, 60, 2000):
        for classes in (2, 3, 10):
            assert wanted_classes((), classes, count).tolist() == [i * classes // count for i in range(count)]
    assert shares_of(Generation(), NAMES) == () and class_shares(Generation(), NAMES) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(lambda w: sum(w) > 0), st.integers(1, 5000))
@settings(deadline=None, max_examples=200)
def test_every_image_has_a_class_and_none_is_off_by_more_than_one(weights, count):
    shares = np.array(weights) / sum(weights)
    each = images_of_each(shares, count)
    assert sum(each) == count and min(each) >= 0
    assert all(abs(images - share * count) < 1 + 1e-6 for images, share in zip(each, shares, strict=True))
    assert wanted_classes(tuple(shares), len(shares), count).bincount(minlength=len(shares)).tolist() == each


@pytest.mark.parametrize(
    ("shares", "count", "expected"),
    [
        ((0.999, 0.001), 100, [100, 0]),
        ((0.25, 0.25, 0.25, 0.25), 2, [1, 1, 0, 0]),
        ((0.0, 1.0), 1, [0, 1]),
        ((0.5, 0.3, 0.2), 7, [4, 2, 1]),
    ],
    ids=["rounds-to-none", "fewer-than-classes", "one", "remainders"],
)
def test_small_numbers(shares, count, expected):
    assert images_of_each(shares, count) == expected


QUERIED = Generation(classes="queried")


@pytest.mark.parametrize(
    ("noisy", "largest", "expected"),
    [
        ([30.0, -4.0, 10.0], 1.0, (0.75, 0, 0.25)),
        ([-3.0, -4.0, 0.0], 1.0, (1 / 3, 1 / 3, 1 / 3)),
        ([80.0, 15.0, 5.0], 0.5, (0.5, 0.375, 0.125)),
        ([80.0, 0.0, 0.0], 0.5, (0.5, 0.25, 0.25)),
        ([60.0, 35.0, 5.0], 0.4, (0.4, 0.4, 0.2)),
        ([9.0, 1.0, 2.0], 1 / 3, (1 / 3, 1 / 3, 1 / 3)),
    ],
    ids=["below-0", "nothing-left", "cut", "evenly", "cut-twice", "all-at-the-bound"],
)
def test_counts_with_noise_become_shares(noisy, largest, expected):
    result = shares_of(QUERIED.model_copy(update={"largest_share": largest}), NAMES, torch.tensor(noisy))
    assert result == pytest.approx(expected) and sum(result) == pytest.approx(1)


@given(st.lists(st.floats(-100, 1e4), min_size=2, max_size=30), st.floats(0, 1), st.integers(1, 3000))
@settings(deadline=None, max_examples=200)
def test_no_class_gets_more_than_was_priced(counts, slack, images):
    largest = min(1.0, 1 / len(counts) + slack)
    names = tuple(map(str, range(len(counts))))
    generation = QUERIED.model_copy(update={"largest_share": largest, "images": images})
    shares = shares_of(with_shares(generation, names), names, torch.tensor(counts, dtype=torch.float64))
    assert max(images_of_each(shares, images)) <= most_of_one(generation, len(counts))


def test_some_classes_keep_their_proportions():
    assert shares_among((), NAMES, ["dog", "cat"]) == (0.5, 0.5, 0.0)
    assert shares_among((0.6, 0.2, 0.2), NAMES, ["cat", "dog"]) == pytest.approx((0.75, 0.25, 0.0))
    assert shares_among((1.0, 0.0, 0.0), NAMES, ["dog", "1"]) == (0.0, 0.5, 0.5), "evenly where they had none"
    assert shares_among((), NAMES, ["1"]) == (0.0, 0.0, 1.0) and shares_among((), NAMES, [1]) == (0.0, 1.0, 0.0)
    for strange in ("bird", "3", 3, -1):
        with pytest.raises(
            BadInput, match=f"^classes names the class '{strange}', which is not there: use cat, dog, 1, or"
        ):
            shares_among((), NAMES, [strange])


@pytest.mark.parametrize("shares", [(), (0.7, 0.3, 0.0)])
def test_numbers_are_those_of_the_images_that_are_drawn(shares):
    assert numbers_of_each(shares, 3, 10) == wanted_classes(shares, 3, 10).bincount(minlength=3).tolist()
    assert sum(numbers_of_each(shares, 3, 10)) == 10


def test_the_most_images_of_a_class():
    assert most_of_one(Generation(images=20), 3) == 7 and most_of_one(Generation(images=21), 3) == 7
    assert most_of_one(declared({"cat": 3, "dog": 1}, images=20), 3) == 15
    assert most_of_one(QUERIED.model_copy(update={"images": 20}), 3) == 20
    with pytest.raises(ValueError, match="give the counts"):
        shares_of(QUERIED, NAMES)


def test_a_report_says_where_shares_come_from():
    reported = class_shares(declared({"cat": 3, "dog": 1}), NAMES)
    assert "Declared by the custodian" in reported.source and reported.counts == {}
    assert reported.rows(10) == [["cat", "75.00%", "8"], ["dog", "25.00%", "2"], ["1", "0.00%", "0"]]
    requested = class_shares(QUERIED, NAMES, torch.tensor([30, -4, 10]))
    assert "discrete Gaussian noise of parameter 10" in requested.source and requested.rows(4)[1] == [
        "dog",
        "0.00%",
        "0",
        "-4",
    ]
    written = json.loads(requested.model_dump_json())["counts"]
    assert written == {"cat": 30, "dog": -4, "1": 10} and {type(count) for count in written.values()} == {int}, (
        "fractions of counts with float noise named the exact count in 18 of 20 cards"
    )
