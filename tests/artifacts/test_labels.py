"""A label is the tightest of those it comes from."""

import itertools

import pytest

from artifacts.labels import ORDER, Label, combined


def test_public_is_looser_than_dp_and_dp_than_internal():
    assert ORDER == (Label.PUBLIC, Label.DP, Label.INTERNAL)


def test_nothing_private_is_public():
    assert combined([]) is Label.PUBLIC


@pytest.mark.parametrize("labels", itertools.product(ORDER, repeat=3), ids="-".join)
def test_the_tightest_wins_in_any_order(labels):
    expected = ORDER[max(ORDER.index(label) for label in labels)]
    assert combined(labels) is expected
    assert combined(str(label) for label in reversed(labels)) is expected


def test_a_label_that_does_not_exist_is_no_label():
    with pytest.raises(ValueError, match="SECRET"):
        combined(["PUBLIC", "SECRET"])
