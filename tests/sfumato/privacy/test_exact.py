"""Exact laws: against mpmath, against the mass function, and where floating point leaves a decision open."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from sfumato.privacy import exact
from tests.seeded import Scripted, seeded_source


def slowly(u, v, scale):
    """Both rounded normals of a pair by 60 digits, from 63 bits each and no more."""
    with mpmath.workdps(60):
        u, v = (mpmath.mpf(int(part) & exact.SIGN) / 2**63 for part in (u, v))
        radius, angle = scale * mpmath.sqrt(-2 * mpmath.log(u)), 2 * mpmath.pi * v
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


@pytest.mark.parametrize("scale", [0.3, 12.0, 1e6])
def test_normals_are_those_of_the_words_rounded(scale):
    """As many-digit arithmetic has them; in `MARGIN` there is room for the functions of this machine."""
    words = seeded_source().words(400)
    result = exact.rounded_normals(Scripted(*words.tolist()).words, 400, scale)
    expected = [slowly(u, v, scale) for u, v in zip(words[:200], words[200:], strict=True)]
    assert result.view(2, -1).T.tolist() == [[float(mpmath.nint(z)) for z in pair] for pair in expected]


def test_floating_point_is_well_within_the_margin():
    words = seeded_source(1).words(4000)
    bits = torch.from_numpy(words.view(np.int64)).view(2, -1) & exact.SIGN
    radius, angle = bits.double().mul_(2.0**-63)
    radius, angle = radius.log().mul(-2).sqrt(), angle.mul(2 * math.pi)
    result = torch.stack([radius * angle.cos(), radius * angle.sin()]).T.tolist()
    pairs = [slowly(u, v, 1) for u, v in zip(words[:2000], words[2000:], strict=True)]
    retained = (radius >= exact.NEAREST) & (radius <= exact.FARTHEST)
    off = [max(abs(float(z - x)) for z, x in zip(*pair, strict=True)) for pair in zip(pairs, result, strict=True)]
    assert retained.sum() > 1990 and max(np.array(off)[retained.numpy()]) < exact.MARGIN / 4


def test_an_open_decision_is_taken_with_further_words(monkeypatch):
    """With a margin that leaves all open, every pair is decided so, and nearly always as before."""
    sure = exact.rounded_normals(seeded_source().words, 200, 50.0)
    seen = []

    def decided(words, bits, scale, real=exact._decided):
        seen.append(bits)
        return real(words, bits, scale)

    monkeypatch.setattr(exact, "_decided", decided)
    assert torch.equal(exact.rounded_normals(seeded_source().words, 200, 50.0), sure) and not seen
    monkeypatch.setattr(exact, "MARGIN", 1.0)
    assert torch.equal(exact.rounded_normals(seeded_source().words, 200, 50.0), sure) and len(seen) == 100


@pytest.mark.parametrize("word", [0, 1, 2**40, 2**63 - 1])
def test_the_tails_and_the_middle_are_continued(word):
    """A first word of 0 stands for all numbers below 2^-63: farther words say which."""
    result = exact.rounded_normals(Scripted(word, 0).words, 2, 1e9)
    radius = float(result.norm()) / 1e9
    nearest = math.sqrt(-2 * math.log((word + 1) / 2**63))
    farthest = math.sqrt(-2 * math.log(word / 2**63)) if word else math.inf
    assert math.isfinite(radius) and nearest - 1e-6 <= radius <= farthest + 1e-6


def test_an_odd_number_of_normals_and_none_at_all():
    source = seeded_source()
    assert exact.rounded_normals(source.words, 3, 5.0).shape == (3,)
    assert exact.rounded_normals(source.words, 0, 5.0).shape == (0,)
    assert not exact.rounded_normals(source.words, 4, 0.0).any()


@pytest.mark.parametrize("sigma", [0.4, 0.7, 1.0, 6.0, 50.5])
def test_the_discrete_gaussian_has_its_mass_function(sigma):
    count = 40_000
    result = exact.discrete_gaussian(seeded_source().words, count, sigma)
    reach = math.ceil(9 * sigma) + 1
    k = np.arange(-reach, reach + 1)
    mass = np.exp(-(k**2) / (2 * sigma**2))
    expected = count * mass / mass.sum()
    seen = np.bincount(result + reach, minlength=len(k))
    often = expected > 10
    rest = [seen[~often].sum()], [expected[~often].sum()]
    gathered = [
        np.concatenate([part[often], *([other] if expected[~often].sum() > 1 else [])])
        for part, other in zip((seen, expected), rest, strict=True)
    ]
    observed, wanted = gathered
    assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4
    assert result.dtype == np.int64 and abs(result.mean()) < 6 * sigma / count**0.5 + 0.01


def test_a_coin_that_floating_point_leaves_open_is_decided_exactly():
    """exp(-1) 2^64 lies between two words: with the one below it the further words decide."""
    with mpmath.workdps(60):
        chance = mpmath.exp(-1) * 2**64
        edge, share = int(mpmath.floor(chance)), float(chance - mpmath.floor(chance))
    ones, exactly = np.ones(1), lambda place: Fraction(1)

    def coin(*words):
        return bool(exact.falls(Scripted(*words).words, ones, exactly)[0])

    assert coin(edge - 1) and not coin(edge + 1)
    assert coin(edge, int((share - 0.01) * 2**64)) and not coin(edge, int((share + 0.01) * 2**64))


def test_coins_that_always_fall_and_that_never_do():
    assert exact.falls(Scripted(2**64 - 1, 0).words, np.zeros(2), lambda place: Fraction(0)).all()
    assert not exact.falls(Scripted(1, 0).words, np.full(2, 5000.0), lambda place: Fraction(5000)).any()


def test_noise_of_a_tiny_parameter_is_none():
    assert not exact.discrete_gaussian(seeded_source().words, 1000, 1e-3).any()
