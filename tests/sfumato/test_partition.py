"""Cells of classes around public centroids: who lies in which, and how trajectories are shared out by noisy counts."""

import pytest
import torch

from sfumato.partition import STANDING, Partition, partition_of
from tests.refusals import refused


def parted(kinds: int = 3, classes: int = 2, each: int = 4, noise: float = 2.0) -> Partition:
    public = torch.randn(90, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    return partition_of(public, kinds, classes=classes, each=each, noise=noise, seed=0)


def records(count: int = 40, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, 2, 2, generator=generator)
    return x, torch.randint(classes, (count,), generator=generator)


def test_a_record_lies_in_the_cell_of_its_class_with_the_nearest_centroid():
    cells, (x, y) = parted(), records()
    actual = cells.cells_of(x, y)
    for image, label, cell in zip(x.double(), y.tolist(), actual.tolist(), strict=True):
        distances = [float((image.flatten() - centroid).square().sum()) for centroid in cells.centroids]
        assert cell == 3 * label + distances.index(min(distances))
    assert cells.cells == 6 and len(actual.unique()) == 6


def test_where_a_record_lies_does_not_depend_on_those_beside_it():
    cells, (x, y) = parted(), records()
    together = cells.cells_of(x, y)
    assert torch.equal(torch.cat([cells.cells_of(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]), together)
    assert torch.equal(cells.cells_of(x[5:], y[5:]), together[5:]) and len(cells.cells_of(x[:0], y[:0])) == 0


def test_centroids_follow_from_public_images_and_the_seed():
    assert torch.equal(parted().centroids, parted().centroids) and parted().centroids.shape == (3, 4)


def test_more_clusters_than_public_images_that_differ_are_refused():
    images = torch.arange(3.0).repeat(5).view(15, 1, 1, 1).expand(15, 1, 2, 2)
    with refused(r"method\.clusters=4 is more than the 3 different public images"):
        partition_of(images, 4, classes=2, each=1, noise=1.0, seed=0)
    assert sorted(partition_of(images, 3, classes=2, each=1, noise=1.0, seed=0).centroids[:, 0].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("counts", "numbers"),
    [
        ([60, 30, 30, 40, 40, 40], [6, 3, 3, 4, 4, 4]),
        ([100, 3, -2, 5, 50, 4], [12, 0, 0, 1, 11, 0]),  # 5 stands out of noise of 2, 4 does not
        ([0, -7, 1, 900, 0, 0], [4, 4, 4, 12, 0, 0]),
    ],
)
def test_points_are_shared_out_by_counts_that_stand_out_of_the_noise(counts, numbers):
    cells, firsts = parted().places(torch.tensor(counts))
    assert torch.bincount(cells, minlength=6).tolist() == numbers and STANDING == 2
    assert len(cells) == len(firsts) == 24 and cells.tolist() == sorted(cells.tolist())


@pytest.mark.parametrize("each", [1, 4, 5])
def test_no_cell_has_more_trajectories_than_are_paid_for(each):
    """Whatever the counts are: further points of a cell are its first ones again, each as often as the others but for one."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(50):
        counts = torch.randint(-20, 200, (6,), generator=generator)
        cells, firsts = parted(each=each).places(counts)
        assert len(cells) == 2 * 3 * each
        assert bool((firsts <= torch.arange(len(cells))).all()) and torch.equal(cells[firsts], cells)
        for cell in cells.unique():
            uses = firsts[cells == cell].unique(return_counts=True)[1]
            assert len(uses) <= each and int(uses.max() - uses.min()) <= 1
