"""The maps of aligned classes: exact inverses, noise that is known, classes without records."""

import math
from dataclasses import replace

import pytest
import torch

from sfumato import alignment
from sfumato.alignment import Moments, fitted, measured, packed, refuse_size, unpacked
from sfumato.config import Alignment
from sfumato.errors import BadInput

D = 6


def blob(seed, count=4000, shift=0.0, numbers=D):
    generator = torch.Generator().manual_seed(seed)
    turn = torch.eye(numbers) + torch.randn(numbers, numbers, generator=generator) / 8
    return torch.randn(count, numbers, generator=generator) @ turn + shift


def public(**changes):
    z, y = torch.cat([blob(0), blob(1, shift=1.0)]), torch.arange(2).repeat_interleave(4000)
    return measured(z.view(-1, 1, 2, 3), y, Alignment(**changes), seed=0)


def moments(classes, reference, noise=0.0):
    """What the mechanism would let out of these classes, with so much noise on each number."""
    generator = torch.Generator().manual_seed(3)
    counts, sums, seconds = [], [], []
    for z in classes:
        away = z.double() - reference.mean
        counts.append(len(z))
        sums.append(away.sum(0))
        rest = away - away.mean(0) if len(z) else away
        seconds.append(packed(rest.T @ rest))
    seconds = torch.stack(seconds)
    return Moments(
        torch.tensor(counts)[:, None],
        torch.stack(sums)[:, None],
        seconds + noise * torch.randn(seconds.shape, generator=generator, dtype=torch.float64),
        1.0,
        noise / 10 + 1e-9,
        noise + 1e-9,
        reference.residual,
    )


def test_packed_matrices_keep_their_norm_and_noise_off_the_diagonal_is_smaller_by_sqrt_2():
    matrix = torch.randn(3, 5, 5, dtype=torch.float64)
    matrix = matrix + matrix.mT
    vectors = packed(matrix)
    assert vectors.shape == (3, 15) and torch.allclose(unpacked(vectors), matrix)
    assert torch.allclose(vectors.norm(dim=1), matrix.flatten(1).norm(dim=1)), "the Frobenius norm"
    noise = unpacked(torch.randn(4000, 15, dtype=torch.float64))
    off = ~torch.eye(5, dtype=torch.bool)
    assert noise[:, ~off].std() == pytest.approx(1.0, rel=0.03)
    assert noise[:, off].std() == pytest.approx(1 / math.sqrt(2), rel=0.03), (
        "half the variance of a mirrored upper triangle"
    )
    assert torch.equal(noise, noise.mT)


def test_a_class_lands_where_the_public_images_lie_and_comes_back():
    reference, classes = public(), [blob(5, shift=-1.0), blob(6, shift=2.0)]
    maps = fitted(moments(classes, reference), reference)
    z = torch.cat(classes).view(-1, 1, 2, 3)
    y = torch.arange(2).repeat_interleave(4000)
    there = maps.to_public(z, y)
    for label in (0, 1):
        flat = there[y == label].flatten(1).double()
        assert torch.allclose(flat.mean(0), reference.mean, atol=1e-3)
        assert torch.allclose(torch.cov(flat.T), reference.covariance, atol=0.1), "but for shrinking"
    again = maps.to_private(there, y, torch.Generator())
    assert torch.allclose(again, z, atol=1e-3) and maps.shared == []


def test_each_record_is_mapped_by_itself():
    reference, z = public(clusters=3), blob(5).view(-1, 1, 2, 3)
    maps = fitted(moments([blob(5), blob(6)], public()), public())
    y = torch.arange(2).repeat(2000)
    assert torch.allclose(maps.to_public(z, y)[17:18], maps.to_public(z[17:18], y[17:18]), atol=1e-5)
    assert torch.equal(reference.cells(z.flatten(1))[17:18], reference.cells(z[17:18].flatten(1)))


def test_more_noise_leaves_less_of_a_class_and_an_empty_class_takes_the_shared_covariance():
    reference = public()
    classes = [blob(5), blob(6), torch.zeros(0, D)]
    retained = []
    for noise in (1.0, 3e3, 1e6):
        maps = fitted(moments(classes, reference, noise), reference)
        retained.append(float(maps.own[:2].mean()))
        assert maps.there.isfinite().all() and maps.back.isfinite().all() and maps.centres.isfinite().all()
        assert 2 in maps.shared and maps.weights[2].sum() == pytest.approx(1.0)
    assert retained[0] > 0.9 and retained[0] > retained[1] > retained[2] - 1e-9 and retained[2] < alignment.OWN


def test_shrinking_beats_what_was_seen():
    """By squared error, over noise levels, against the truth."""
    reference = public()
    truth = torch.cov(blob(5, 100_000).double().T, correction=0)
    for noise in (30.0, 300.0, 3000.0):
        result = moments([blob(5), blob(6)], reference, noise)
        ours = alignment.covariances(result, reference)[0][0]
        seen = unpacked(result.seconds)[0] / 4000
        assert (ours - truth).norm() < (seen - truth).norm() * 1.05


def test_fine_shapes_have_the_level_at_which_they_were_seen_and_not_that_of_the_coarse_ones():
    """Public images of much variance along all directions; a class with a twentieth of it along the fine half."""
    numbers, spread = 64, torch.cat([torch.full((8,), 4.0), torch.ones(56)])
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(numbers, numbers, generator=generator)).Q
    z = spread * torch.randn(8000, numbers, generator=generator) @ turn
    reference = measured(z.view(-1, 1, 8, 8), torch.arange(8000) % 2, Alignment(), seed=0)
    smooth = [
        (spread * torch.where(spread > 1, 1.0, 0.22) * torch.randn(n, numbers, generator=generator)) @ turn
        for n in (400, 3000)
    ]
    noise = 40.0
    result = alignment.covariances(moments(smooth, reference, noise), reference)[0]
    coarse, fine = turn[:8].double(), turn[8:].double()
    for covariance, own in zip(result, smooth, strict=True):
        truth = torch.cov(own.double().T)
        for along, off in ((coarse, 0.2), (fine, 0.6)):
            level, right = ((along @ matrix @ along.T).trace() for matrix in (covariance, truth))
            assert float(level) == pytest.approx(float(right), rel=off)
        one_for_all = float(truth.trace() / reference.inner.trace() * (fine @ reference.inner @ fine.T).trace())
        assert one_for_all > 4 * float((fine @ truth @ fine.T).trace()), "what one level for all would say"


def test_cells_are_drawn_by_their_counts():
    reference = public(clusters=2)
    maps = fitted(
        Moments(
            torch.tensor([[300, 100], [-3, -5]]),
            torch.zeros(2, 2, D, dtype=torch.float64),
            torch.zeros(2, 21, dtype=torch.float64),
            1.0,
            1.0,
            1.0,
            reference.residual,
        ),
        reference,
    )
    assert maps.weights.tolist() == [[0.75, 0.25], [0.5, 0.5]]
    y = torch.zeros(4000, dtype=torch.long)
    x = reference.mean.float().expand(4000, -1).view(-1, 1, 2, 3)
    drawn = maps.to_private(x, y, torch.Generator().manual_seed(0)).flatten(1)
    first = torch.isclose(drawn, (reference.mean + maps.centres[0, 0]).float(), atol=1e-4).all(1)
    assert first.float().mean() == pytest.approx(0.75, abs=0.03)


def test_too_many_numbers_are_refused_in_one_line():
    refuse_size((1, 32, 32), 10)
    for shape, classes in (((3, 32, 32), 2), ((1, 32, 32), 1000)):
        with pytest.raises(BadInput, match="smaller data.size") as refusal:
            refuse_size(shape, classes)
        assert "\n" not in str(refusal.value)


def refined_moments(z, reference, cells, noise=0.0, rounds=3, residual=50.0):
    """Moments of one class with rounds of k-means, each with so much noise on each number, as the mechanism makes them."""
    generator = torch.Generator().manual_seed(4)
    released = replace(moments([z], reference), residual=residual, round_noise=noise + 1e-9)
    spreads, _ = alignment.covariances(released, reference)
    middle = alignment.centres(released.counts, released.sums, released.mean_noise, reference)[:, 0]
    away, y, requested = z.double() - reference.mean, torch.zeros(len(z), dtype=torch.long), []
    centres = alignment.starting(spreads, cells)
    for _ in range(rounds):
        cell = alignment.nearest(away, y, middle[:, None] + centres)
        sums = torch.zeros(cells, D + 1, dtype=torch.float64)
        sums.index_add_(0, cell, alignment.weighed(away - middle, residual))
        requested.append((sums + noise * torch.randn(sums.shape, generator=generator, dtype=torch.float64))[None])
        centres, _ = alignment.refined(requested[-1], released, spreads)
    return replace(released, rounds=torch.stack(requested))


def test_own_cells_find_what_a_class_consists_of_and_leave_its_covariance_as_it_is():
    """A class of two heaps, one three times as large: drawn with two cells it has two again; its mean and covariance stay."""
    reference = public()
    left, right = blob(7, count=3000) / 4 - 2.0, blob(8, count=1000) / 4 + 2.0
    z = torch.cat([left, right])
    maps = fitted(refined_moments(z, reference, 2), reference)
    assert sorted(maps.weights[0].tolist()) == pytest.approx([0.25, 0.75], abs=0.02)
    x = torch.randn(8000, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    x = reference.mean + x @ torch.linalg.cholesky(reference.covariance).T
    y = torch.zeros(8000, dtype=torch.long)
    drawn = maps.to_private(x.float().view(-1, 1, 2, 3), y, torch.Generator().manual_seed(1)).flatten(1)
    assert torch.allclose(drawn.mean(0), z.mean(0), atol=0.1)
    assert torch.allclose(torch.cov(drawn.T), torch.cov(z.T), atol=0.35), "of variances of 3 to 4"
    middle = drawn.mean(1)
    assert float(((middle > -0.8) & (middle < 0.8)).float().mean()) < 0.03, "hardly anything lies between the heaps"
    one = fitted(moments([z], reference), reference)
    middle = one.to_private(x.float().view(-1, 1, 2, 3), y, torch.Generator().manual_seed(1)).flatten(1).mean(1)
    assert float(((middle > -0.8) & (middle < 0.8)).float().mean()) > 0.2, "as one Gaussian fills the gap"


def test_records_go_to_the_public_side_by_their_own_cell_and_come_back():
    reference = public()
    z = torch.cat([blob(7, count=3000) / 4 - 2.0, blob(8, count=1000) / 4 + 2.0]).view(-1, 1, 2, 3)
    maps = fitted(refined_moments(z.flatten(1), reference, 2), reference)
    there = maps.to_public(z, torch.zeros(4000, dtype=torch.long)).flatten(1)
    assert torch.allclose(there[:3000].mean(0), reference.mean.float(), atol=0.1)
    assert torch.allclose(there[3000:].mean(0), reference.mean.float(), atol=0.1)
    alone = torch.cat([maps.to_public(z[i : i + 1], torch.zeros(1, dtype=torch.long)) for i in range(20)])
    assert torch.equal(alone.flatten(1), there[:20]), "each by itself"


def test_centres_that_are_noise_shrink_to_the_mean_of_the_class():
    reference, z = public(), blob(5)
    quiet = fitted(refined_moments(z, reference, 8), reference)
    loud = fitted(refined_moments(z, reference, 8, noise=1e5), reference)
    spread = [float((maps.centres - maps.centres.mean(1, keepdim=True)).norm()) for maps in (quiet, loud)]
    assert spread[1] < 0.2 * spread[0] and bool(torch.isfinite(loud.back).all())


def test_an_empty_cell_without_noise_lies_at_the_mean_of_the_class():
    """As at epsilon infinite, where nothing is noised."""
    reference, z = public(), blob(5, count=40)
    released = replace(refined_moments(z, reference, 2), round_noise=0.0)
    rounds = released.rounds.clone()
    rounds[-1, 0, 1] = 0
    maps = fitted(replace(released, rounds=rounds), reference)
    middle = alignment.centres(released.counts, released.sums, released.mean_noise, reference)[0, 0]
    assert torch.allclose(maps.centres[0, 1], middle) and maps.weights[0].tolist() == [1.0, 0.0]


def test_what_centres_explain_leaves_a_covariance_that_is_positive():
    spread = torch.diag(torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64))[None]
    away = torch.tensor([[[3.0, 0, 0], [-3.0, 0, 0]]], dtype=torch.float64)
    left = alignment.unexplained(spread, away, torch.tensor([[0.5, 0.5]], dtype=torch.float64))[0]
    assert torch.allclose(left.diagonal()[1:], torch.ones(2, dtype=torch.float64), atol=1e-6)
    assert left[0, 0] == pytest.approx(4 * alignment.NARROWEST), "nine of four explained"
    away = torch.tensor([[[1.0, 0, 0], [-1.0, 0, 0]]], dtype=torch.float64)
    left = alignment.unexplained(spread, away, torch.tensor([[0.5, 0.5]], dtype=torch.float64))[0]
    assert torch.allclose(left, torch.diag(torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64)), atol=1e-6)


def test_a_bound_holds_its_share_of_the_records_or_is_the_public_one():
    reference = public()
    reaches = alignment.reaches(reference.radius)
    apart = torch.linspace(0.0, reference.radius, 10_000, dtype=torch.float64)
    histogram = torch.bincount((apart[:, None] <= reaches).sum(1) - 1, minlength=alignment.BINS)
    for share in (0.3, 0.5, 0.8):
        bound = alignment.bound_of(histogram, 4.0, reference, share)
        assert share <= float((apart <= bound).double().mean()) < share * alignment.FINENESS + 0.01
    assert alignment.bound_of(histogram, 1000.0, reference, 0.8) == reference.residual
    assert alignment.bound_of(-histogram, 4.0, reference, 0.8) == reference.residual
