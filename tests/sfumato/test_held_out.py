"""One part of the public images is held out from all that learns from them: the same everywhere, and never much."""

import numpy as np
import pytest

from sfumato.held_out import MOST, held_out, positions
from sfumato.images import ImageSet


@pytest.mark.parametrize(
    ("count", "retained"), [(0, 0), (1, 0), (2, 1), (9, 1), (200, 20), (20_000, MOST), (60_000, MOST)]
)
def test_a_tenth_is_held_out_and_never_more_than_is_of_use(count, retained):
    learnt, out = positions(count, 3)
    assert len(out) == retained and sorted([*learnt.tolist(), *out.tolist()]) == list(range(count))


def test_the_seed_alone_decides_and_both_parts_keep_their_labels():
    images = ImageSet(np.arange(200, dtype=np.uint8).reshape(200, 1, 1, 1), np.arange(200) % 7, tuple("abcdefg"))
    one, two, other = (held_out(images, seed).withheld.pixels for seed in (1, 1, 2))
    assert (one == two).all() and (one != other).any()
    for part in held_out(images, 0):
        assert (part.pixels.flatten() % 7 == part.labels).all() and part.classes == images.classes
