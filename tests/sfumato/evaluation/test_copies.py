"""The copy check passes independent draws and fails for a single planted copy among two thousand images."""

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom

from sfumato import sources
from sfumato.errors import BadInput
from sfumato.evaluation.attack_results import CopyCheck
from sfumato.evaluation.copies import CLOSEST, COPY_SHARE, HALF_GREY_LEVEL, check_copies, copy_distance, copy_limits
from sfumato.images import to_pixels, to_unit


def digits(part):
    return to_unit(sources.load("digits", sources.Reading(part=part, held_out=0.2)).pixels)


@pytest.fixture(scope="module")
def real():
    return digits("train"), digits("test")


def blurred(images, *, seed=0):
    """Images like digits that repeat none: pairs of held-back digits mixed."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return 0.6 * images + 0.4 * images[order]


@pytest.fixture(scope="module")
def drawn(real):
    """Two thousand digit-like images, the real parts without those that they were mixed from."""
    train, test = real
    pool = torch.cat([train[:1000], train[:1000].flip(3)])
    images = to_unit(to_pixels(blurred(pool)))
    return images, train[1000:], test


def test_independent_images_pass(drawn):
    images, train, test = drawn
    check, to_train, to_test = check_copies(images, train, test)
    assert check.passed and (check.copies, check.copies_held_out, check.unexplained) == (0, 0, 0)
    assert (check.images, check.train, check.test) == (2000, 437, 360)
    assert check.expected_train == pytest.approx(437 / 797) and abs(check.nearest_train - check.expected_train) < 0.1
    assert 1e-3 < check.p_value <= 1
    assert len(to_train) == len(to_test) == 2000 and check.median_train == pytest.approx(float(to_train.median()))


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize("noise", [0, 0.03])
def test_one_copy_in_two_thousand_fails(drawn, copies, noise):
    images, train, test = drawn
    images = images.clone()
    places, records = torch.arange(copies) * 37 + 5, torch.arange(copies) * 3 + 11
    planted = train[records] + noise * torch.randn(train[records].shape, generator=torch.Generator().manual_seed(0))
    images[places] = to_unit(to_pixels(planted))
    check, to_train, _ = check_copies(images, train, test)
    assert not check.passed and check.unexplained == check.copies == copies
    result = {(pair.image, pair.record) for pair in check.closest}
    assert len(check.closest) == CLOSEST
    assert len(result & set(zip(places.tolist(), records.tolist(), strict=True))) == min(copies, CLOSEST)
    distances = [pair.distance for pair in check.closest]
    assert distances == sorted(distances) and distances[0] == pytest.approx(float(to_train.min()))


def test_unseen_records_are_no_copies_of_seen_ones(real):
    train, test = real
    check, _, _ = check_copies(test[:180], train, test[180:])
    assert check.passed and check.copies == 0


def test_a_copy_that_the_held_out_part_holds_too_explains_itself(drawn):
    images, train, test = drawn
    both = torch.cat([test, train[:5]])
    check, _, _ = check_copies(torch.cat([images, train[:5]]), train, both)
    assert check.passed and check.copies == check.copies_held_out == 5 and check.unexplained == 0
    blank = torch.full((20, 1, 8, 8), -1.0)
    check, _, _ = check_copies(torch.cat([images, blank]), torch.cat([train, blank]), torch.cat([test, blank[:1]]))
    assert check.passed and check.copies == 20


def test_the_edge_a_trivial_picture_that_only_training_holds_is_called_a_copy(drawn):
    images, train, test = drawn
    blank = torch.full((1, 1, 8, 8), -1.0)
    check, _, _ = check_copies(torch.cat([images, blank]), torch.cat([train, blank]), test)
    assert not check.passed and check.closest[0].image == 2000 and check.closest[0].distance == 0


@pytest.mark.parametrize(("copied", "passes"), [(False, True), (True, False)])
def test_plain_images_do_not_copy_a_record_that_is_nearly_plain(drawn, copied, passes):
    """A cloudless sky that only training holds: every white image is near it, and none repeats its faint clouds."""
    images, train, test = drawn
    sky = 0.96 + 0.02 * torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    white = torch.ones(50, 1, 8, 8)
    images = torch.cat([images, white, to_unit(to_pixels(sky))]) if copied else torch.cat([images, white])
    check, to_train, _ = check_copies(images, torch.cat([train, sky]), test)
    assert (to_train[2000:] < check.copy_distance).all(), "by the spread of all real images each is near it"
    assert check.passed == passes and check.copies == copied


def test_a_record_with_contrast_is_met_at_the_distance_of_all(real):
    train, _ = real
    limit = copy_distance(train)
    assert (copy_limits(train, limit) == limit).all()


def test_a_copy_is_measured_by_the_spread_of_real_images():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(400, 1, 5, 5, generator=generator).double()
    for scale in (1.0, 0.5):
        assert copy_distance(scale * images + 0.3) == pytest.approx(COPY_SHARE * scale, rel=0.02)
    assert copy_distance(torch.ones(4, 1, 5, 5)) == HALF_GREY_LEVEL
    with pytest.raises(BadInput, match="no real images"):
        copy_distance(images[:0])


def test_leaning_counts_each_record_once():
    record = torch.arange(10.0).view(10, 1, 1, 1) / 5 - 1
    train, test = record[:6], record[6:]
    images = torch.cat([record[:1].repeat(500, 1, 1, 1), record[1:2], record[7:8]]) + 0.01
    check, _, _ = check_copies(images, train, test)
    assert check.nearest_train == pytest.approx(501 / 502)
    assert check.p_value == pytest.approx(hypergeom.sf(1, 10, 6, 3)), "two training records of three that are nearest"


def test_the_p_value_is_uniform_where_the_parts_are_split_at_random():
    rng, small = np.random.default_rng(0), 0
    for _ in range(200):
        real = torch.from_numpy(rng.normal(size=(60, 1, 2, 2)))
        images = torch.from_numpy(rng.normal(size=(40, 1, 2, 2)))
        small += check_copies(images, real[:40], real[40:])[0].p_value <= 0.1
    assert small <= 30, "about 20 of 200 or fewer"


def test_ties_count_by_half_and_a_value_survives_json():
    blank = torch.zeros(4, 1, 2, 2)
    check, _, _ = check_copies(blank, blank, blank)
    assert check.nearest_train == 0.5 and check.passed and check.p_value == 1
    assert CopyCheck.model_validate_json(check.model_dump_json()) == check
    assert len(check.closest) == 4


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_empty_sets_are_refused(empty):
    sets = [torch.zeros(3, 1, 2, 2)] * 3
    sets[empty] = torch.zeros(0, 1, 2, 2)
    with pytest.raises(BadInput, match="there are none"):
        check_copies(*sets)
