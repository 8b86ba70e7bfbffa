"""Covariances against the truth that made them: shrinking, levels, colours, and transport."""

import math

import numpy as np
import pytest
import torch

from sfumato.covariances import coloured, cosines, levelled, octaves, shrunk, transport

D, SHAPE = 6, (3, 4, 4)
LINE = torch.tensor([[1.0, 0.8, 0.5]], dtype=torch.float64)


def spread(seed, numbers=D):
    """A covariance of the usual kind, near the identity."""
    turn = torch.randn(numbers, numbers, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    turn = torch.eye(numbers) + turn / 8
    return turn @ turn.T


def of_channels(colours, falling):
    """The covariance of images whose frequencies have the channels' covariance, less of it in each higher band."""
    basis = torch.kron(torch.eye(3).double(), cosines(4, 4))
    levels = torch.diag(falling ** octaves(4, 4).double())
    return basis.T @ torch.kron(colours, levels) @ basis


def noisy(covariance, noise, seed=0):
    """With noise of this deviation on the diagonal, and 1 / sqrt(2) of it elsewhere."""
    more = torch.randn(covariance.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (
        covariance
        + noise * (torch.triu(more, 1) + torch.triu(more, 1).T) / math.sqrt(2)
        + noise * torch.diag(more.diag())
    )


def test_the_transport_is_symmetric_and_turns_one_covariance_into_the_other():
    one, other = (spread(seed) for seed in (8, 9))
    there, back = transport(one, other)
    assert torch.allclose(there, there.T) and torch.allclose(there @ one @ there, other, atol=1e-6)
    assert torch.allclose(there @ back, torch.eye(D, dtype=torch.float64), atol=1e-6)


def test_transport_of_flat_covariances_stays_finite():
    flat = torch.zeros(D, D, dtype=torch.float64)
    flat[0, 0] = 1.0
    there, back = transport(flat, torch.eye(D, dtype=torch.float64))
    assert there.isfinite().all() and back.isfinite().all()
    assert torch.allclose(there @ back, torch.eye(D, dtype=torch.float64), atol=1e-6)


def test_a_level_without_variance_or_with_a_negative_one_stays_above_nothing():
    prior = spread(0)
    directions = torch.linalg.eigh(prior).eigenvectors
    for seen in (torch.zeros(D, D, dtype=torch.float64), -prior):
        result = levelled(prior, seen, directions, noise=1e-6, records=4000.0, unsure=0.5)
        assert torch.linalg.eigvalsh(result).min() > 0 and result.trace() < 0.05 * prior.trace()


@pytest.mark.parametrize("left", [0.0, 1e-160])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_directions_in_which_public_images_do_not_vary_stay_as_they_are(left, noise):
    """A public side of one colour, or of one pixel that is always black: nothing is there that a level could scale."""
    prior, seen = (torch.eye(D, dtype=torch.float64) for _ in range(2))
    prior[:3, :3] *= left
    result = levelled(prior, 2 * seen, torch.eye(D, dtype=torch.float64), noise=noise, records=4000.0, unsure=0.5)
    assert result.isfinite().all() and result[:3, :3].abs().max() <= 100 * left and result[5, 5] > 1


def test_waves_are_orthonormal_and_each_octave_holds_frequencies_twice_as_high():
    for height, width in ((7, 7), (8, 8), (4, 6)):
        basis = cosines(height, width)
        assert torch.allclose(basis @ basis.T, torch.eye(height * width, dtype=torch.float64))
        assert torch.allclose(basis[0], torch.full_like(basis[0], 1 / math.sqrt(height * width))), (
            "the mean of an image"
        )
    assert torch.bincount(octaves(8, 8)).tolist() == [1, 3, 12, 48] and torch.bincount(octaves(7, 7)).tolist() == [
        1,
        3,
        12,
        33,
    ]


def test_without_noise_the_channels_vary_as_they_were_seen_in_each_band():
    prior, truth = of_channels(torch.eye(3).double(), 0.5), of_channels(LINE.T @ LINE + 0.05 * torch.eye(3), 0.3)
    result = coloured(prior, truth, SHAPE, noise=1e-9, records=1e9)
    assert torch.allclose(result, truth, atol=1e-3)


def test_colours_on_a_line_are_found_where_noise_hides_every_single_number():
    """Public images of all colours, private ones of reds from dark to bright."""
    prior, truth = of_channels(torch.eye(3).double(), 0.5), of_channels(LINE.T @ LINE + 0.02 * torch.eye(3), 0.5)
    noise, distance = 0.3, {"prior": [], "shrunk": [], "coloured": []}
    for seed in range(5):
        seen = noisy(truth, noise, seed)
        level = coloured(prior, seen, SHAPE, noise=noise, records=1e4)
        alone, _ = shrunk(seen, prior, noise=noise, records=1e4)
        for name, result in (("prior", prior), ("shrunk", alone), ("coloured", level)):
            assert torch.linalg.eigvalsh(result).min() > 0
            distance[name].append(float((result - truth).norm()))
    assert max(distance["coloured"]) < 0.5 * min(distance["shrunk"]) < 0.5 * min(distance["prior"])


@pytest.mark.parametrize("noise", [0.5, 2.0, 10.0, 1e3])
def test_where_all_is_noise_the_prior_mostly_stays(noise):
    """Chance passes a band by in most draws, and hardly ever takes it far."""
    prior = of_channels(torch.eye(3).double(), 0.5)
    moved = [
        float(
            (coloured(prior, noisy(prior, noise, seed), SHAPE, noise=noise, records=1e4) - prior).norm() / prior.norm()
        )
        for seed in range(20)
    ]
    assert float(np.median(moved)) < 0.15 and sum(one < 0.5 for one in moved) >= 16


def test_shrinking_by_chance_alone_is_left_out_where_numbers_are_few():
    prior = spread(0)
    stays = [
        torch.allclose(shrunk(noisy(prior, 5.0, seed), prior, noise=5.0, records=1e4)[0], prior) for seed in range(20)
    ]
    assert sum(stays) >= 15


def test_a_band_without_variance_stays_as_it_is():
    """Public images that are each of one flat colour."""
    prior = of_channels(torch.eye(3).double(), 0.0)
    seen = of_channels(LINE.T @ LINE + 0.02 * torch.eye(3), 0.5)
    result = coloured(prior, seen, SHAPE, noise=1e-3, records=1e5)
    assert result.isfinite().all()
    shown = (
        torch.kron(torch.eye(3).double(), cosines(4, 4)) @ result @ torch.kron(torch.eye(3).double(), cosines(4, 4)).T
    )
    flat = (octaves(4, 4) == 0).repeat(3)
    assert shown[~flat][:, ~flat].abs().max() < 1e-9
    assert torch.allclose(shown[flat][:, flat], LINE.T @ LINE + 0.02 * torch.eye(3), atol=0.02)


def test_where_in_the_image_a_prior_varies_more_stays():
    """Images that are still at their upper edge, and whose colours are others than those of the public images."""
    still = torch.ones(4, 4, dtype=torch.float64)
    still[0] = 0.1
    scale = torch.diag(still.flatten().repeat(3))
    prior, truth = (
        scale @ of_channels(one, 0.9) @ scale for one in (torch.eye(3).double(), LINE.T @ LINE + 0.02 * torch.eye(3))
    )
    result = coloured(prior, noisy(truth, 0.05), SHAPE, noise=0.05, records=1e5)
    edge = torch.nonzero((still.flatten() < 1).repeat(3))[:, 0]
    assert result.diagonal()[edge].mean() < 0.2 * result.diagonal().mean()
    assert (result - truth).norm() < 0.5 * (prior - truth).norm()
