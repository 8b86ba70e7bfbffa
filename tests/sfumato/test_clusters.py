"""Clusters of public images that look alike, the votes for them, and the images of the winners."""

import itertools

import numpy as np
import pytest
import torch

from sfumato import clusters
from sfumato.clusters import (
    ballot,
    centroids_of,
    clusters_for,
    gathered,
    kinds_of,
    looks,
    looks_of,
    nearest,
    of_kinds,
    quotas,
    taken,
    winners,
)
from sfumato.held_out import held_out
from sfumato.images import ImageSet, to_unit
from sfumato.sources.shapes import render_shapes


@pytest.fixture(scope="module")
def shapes() -> ImageSet:
    return render_shapes(60, 16, seed=0)


def toned(tones: list[int], each: int = 1) -> ImageSet:
    """Plain images of these grey levels."""
    pixels = np.repeat(np.array(tones, np.uint8), each)[:, None, None, None] * np.ones((1, 1, 8, 8), np.uint8)
    return ImageSet(pixels, np.zeros(len(pixels), np.int64), ("grey",))


def levels(images: ImageSet) -> list[int]:
    return images.pixels[:, 0, 0, 0].tolist()


def test_looks_are_the_colours_and_the_contrast_of_each_cell():
    image = torch.zeros(1, 3, 14, 14)
    image[:, 0, :2, :2] = 1.0
    image[:, :, 12:, 12:] = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    seen = looks(image).view(4, 7, 7)
    assert seen[0, 0, 0] == 1 and seen[1:, 0, 0].abs().max() == 0, "an even cell has its colour and no contrast"
    assert seen[:3, 6, 6].abs().max() == 0 and seen[3, 6, 6] == pytest.approx(clusters.CONTRAST)
    assert seen[:, 1:6, 1:6].abs().max() == 0


def test_a_record_looks_the_same_whoever_stands_beside_it(shapes):
    """Otherwise a record would change the votes of others, and the price of one vote would not cover it."""
    images = to_unit(shapes.pixels)
    assert torch.equal(looks(images)[3:4], looks(images[3:4]))
    vote = ballot(centroids_of(looks(images), 20, seed=1))
    together = vote(images, torch.zeros(len(images)))
    assert together.dtype == torch.int64 and together.min() >= 0 and together.max() < 20
    assert [int(vote(one[None], torch.zeros(1))) for one in images[:40]] == together[:40].tolist()


def test_clusters_part_what_differs_and_join_what_is_alike():
    points = looks_of(toned([0, 100, 250], each=30))
    where = nearest(points, centroids_of(points, 12, seed=0)).view(3, 30)
    assert all(len(set(row.tolist())) == 1 for row in where) and len(set(where[:, 0].tolist())) == 3


def test_more_clusters_than_images_are_refused(shapes):
    with pytest.raises(ValueError, match="do not make 1000 clusters"):
        centroids_of(looks_of(shapes), 1000, seed=0)


def test_those_win_that_stand_out_of_the_noise():
    votes = torch.tensor([100, 29, 28, -50, 0])
    assert winners(votes, noise=7.0, threshold=4.0).tolist() == [100, 29, 0, 0, 0]


def test_pure_noise_wins_next_to_nothing():
    """Votes that nobody cast, with noise of a fixed seed, since this looks at the threshold and not at a mechanism."""
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 7
    assert winners(noise, noise=7.0, threshold=4.0).count_nonzero() <= 1
    assert winners(noise, noise=7.0, threshold=2.0).count_nonzero() > 20


def test_places_follow_the_votes_and_are_filled_by_those_that_come_first():
    places = quotas(torch.tensor([30, 0, 10]), 8)
    assert places.tolist() == [6, 0, 2]
    assert taken(torch.tensor([2, 1, 0, 2, 2, 0, 1]), places).tolist() == [0, 2, 3, 5]
    assert taken(torch.empty(0, dtype=torch.int64), places).tolist() == []


@pytest.mark.parametrize("count", [1, 3, 8])
def test_every_kind_has_its_share_of_the_images_in_the_order_of_their_classes(shapes, count):
    some = shapes.subset(np.arange(0, len(shapes), 3)[:101])
    images = of_kinds(some, count)
    sizes = np.bincount(images.labels, minlength=count)
    assert len(images.classes) == count and sizes.sum() == 101 and sizes.max() - sizes.min() <= 1
    assert np.array_equal(images.pixels, some.pixels)
    firsts = [some.labels[images.labels == kind] for kind in range(count)]
    assert all(one.max() <= other.min() for one, other in itertools.pairwise(firsts))


def test_images_of_the_winners_are_taken_and_further_ones_drawn_until_there_are_enough(monkeypatch):
    monkeypatch.setattr(clusters, "LEAST", 0)
    own = toned([0] * 10 + [100] * 10 + [250] * 80)
    centroids, drawings = looks_of(toned([0, 100, 250])), []

    def further():
        for number in range(100):
            drawings.append(number)
            yield toned([2] * 15 + [250] * 85)

    chosen = levels(gathered(own, further(), centroids, torch.tensor([40, 10, 0]), seed=0))
    assert sorted(chosen) == [0] * 10 + [2] * 70 + [100] * 10, "80 and 20 places, of which all of the first are filled"
    assert len(drawings) > 5, "the second cluster has open places, and no further image like it was drawn"


def test_drawing_ends_with_the_last_place(monkeypatch):
    monkeypatch.setattr(clusters, "LEAST", 0)
    centroids, drawings = looks_of(toned([0, 250])), []
    further = (drawings.append(number) or toned([0] * 50) for number in range(100))
    chosen = gathered(toned([250] * 60 + [0] * 40), further, centroids, torch.tensor([9, 0]), seed=0)
    assert levels(chosen) == [0] * 100 and drawings == [0, 1]


def test_too_few_images_have_others_beside_them(monkeypatch):
    monkeypatch.setattr(clusters, "LEAST", 30)
    chosen = gathered(toned([0] * 5 + [250] * 95), (), looks_of(toned([0, 250])), torch.tensor([9, 0]), seed=0)
    assert sorted(levels(chosen)) == [0] * 5 + [250] * 25


def test_all_public_images_stay_where_nothing_stands_out():
    own = toned(list(range(100)))
    drawings = []
    chosen = gathered(own, (drawings.append(n) for n in range(5)), looks_of(toned([0, 99])), torch.zeros(2), seed=0)
    assert sorted(levels(chosen)) == list(range(100)) and not drawings
    assert set(levels(held_out(of_kinds(chosen, 4), 0).withheld)) == set(levels(held_out(own, 0).withheld))


def test_what_no_public_stage_has_learnt_from_is_withheld_of_the_choice_too(monkeypatch):
    monkeypatch.setattr(clusters, "LEAST", 0)
    own = toned(list(range(100)) + [200] * 100)
    known = set(levels(held_out(own, 3).learnt))
    chosen = gathered(own, (), looks_of(toned([50, 200])), torch.tensor([9, 0]), seed=3)
    withheld = set(levels(held_out(of_kinds(chosen, 2), 3).withheld))
    assert withheld and not withheld & known


@pytest.mark.parametrize(
    ("records", "noise", "images", "count"),
    [
        (10_000, 7.0, 20_000, 952),
        (10_000, 7.0, 900, 90),
        (10_000, 7.0, 79, 0),
        (80, 7.0, 20_000, 8),
        (70, 7.0, 20_000, 0),
        (10**7, 1.0, 20_000, 2000),
    ],
)
def test_as_many_clusters_as_the_records_can_tell_apart(records, noise, images, count):
    assert clusters_for(records, noise, images) == count and kinds_of(count) == min(count, 8)
