"""D_pre, D_ref and the queries never share an image, and the same seed deals them the same way in every stage.

The queries are what every public stage holds out.
"""

import itertools

import numpy as np
import pytest
import torch

from sfumato.held_out import held_out
from sfumato.images import ImageSet, to_unit
from sfumato.retrieval.split import SERIES_POINTS, split_public, thinned

PIXELS = np.arange(200, dtype=np.uint8).reshape(200, 1, 1, 1)  # each picture names itself
IMAGES = ImageSet(PIXELS, np.arange(200) % 7, tuple("abcdefg"))


def names(x):
    return ((x.flatten() + 1) * 127.5).round().long().tolist()


@pytest.mark.parametrize(("reference", "sizes"), [(0.5, (90, 90, 20)), (0.0, (180, 0, 20)), (0.25, (135, 45, 20))])
def test_the_parts_are_disjoint_and_hold_everything(reference, sizes):
    parts = split_public(IMAGES, reference, 0, torch.device("cpu"))
    each = [names(part[0]) for part in (parts.pre, parts.reference, parts.queries)]
    assert tuple(map(len, each)) == sizes
    assert sorted(itertools.chain(*each)) == list(range(200))
    assert each[2] == names(to_unit(held_out(IMAGES, 0).withheld.pixels))
    for x, y in (parts.pre, parts.reference, parts.queries):
        assert [name % 7 for name in names(x)] == y.tolist()
    assert (parts.shape, parts.classes) == ((1, 1, 1), 7)
    torch.testing.assert_close(parts.pre[0], to_unit(PIXELS[each[0]]))


def test_the_seed_decides():
    one, two, other = (split_public(IMAGES, 0.5, seed, torch.device("cpu")) for seed in (1, 1, 2))
    assert torch.equal(one.reference[0], two.reference[0]) and not torch.equal(one.reference[0], other.reference[0])


@pytest.mark.parametrize("count", [0, 1, 200, 201, 1000, 1999])
def test_a_curve_is_thinned_to_means(count):
    series = [float(i) for i in range(count)]
    result = thinned(series)
    assert len(result) <= SERIES_POINTS and (count > SERIES_POINTS or result == series)
    assert result == sorted(result)
    if count == 1000:
        assert result[:2] == [2.0, 7.0]
