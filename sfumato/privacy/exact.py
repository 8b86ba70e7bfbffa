"""Random numbers whose law is exact: normals rounded to whole steps, and the discrete Gaussian, from 64-bit random words.

Floating point decides nearly every number, with a known bound on its error. Where that leaves a decision open (which integer is
nearest, whether a coin falls True), `MORE` further words continue the same random bits, and arithmetic with `PRECISION` bits
decides. The numbers therefore follow the exact distribution, but for a share below `DISTANCE`: the probability that not even
those bits decide. The tails are not cut off.

Not covered: how random the words are; how long a call takes, which tells of the words and not of private data.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import torch
from torch import Tensor

from sfumato.errors import BadInput

Words = Callable[[int], np.ndarray]
"""From a count n to independent uniform 64-bit words, uint64 `[n]`."""
WORD = 2**64
MORE = 3
"""Words by which an open decision is continued."""
PRECISION = 400
"""Bits of the arithmetic that decides then."""
DISTANCE = 2.0**-200
"""Bounds the chance that 192 further bits still leave a number open, and so its total variation distance from the exact law. For a normal
that is the mean of 2 `MOST_STEPS` 2^-255 / (u R), its uniform number u known to 2^-255: since du = u R dR, it is 2^-214 times the
largest R there is, 19. For a coin it is 2^-255."""
PAIRS = 2**14
"""Pairs of normals drawn at once, few enough for the processor's cache."""
SIGN = 2**63 - 1
"""All bits of a word but the highest: what int64 holds without a sign."""
NEAREST, FARTHEST = 2.0**-9, math.sqrt(40 * math.log(2))
"""Radii between which `MARGIN` holds; farther out u is below 2^-20."""
MARGIN = 2.0**-43
"""Twice what a normal in float64 can be off by, in units of its deviation: 2^-53 / R from rounding u, 2^-63 / (u R) from its missing bits,
R 2^-49 from the angle, R 2^-51 from what is left, with functions that are right to some units in the last place."""
MOST_STEPS = 2.0**40
"""Largest standard deviation in steps: with more, `MARGIN` leaves too much open."""
DOUBT = 2.0**-36
"""Relative error of exp(-gamma) in float64, gamma included, with a wide margin."""


def rounded_normals(words: Words, count: int, scale: float) -> Tensor:
    """`count` normals of mean 0 and standard deviation `scale`, each rounded to the nearest whole number: float64 `[count]`, exactly whole.

    0 <= `scale` <= `MOST_STEPS`; `BadInput` above. Box and Muller's method in pairs.
    """
    if not 0 <= scale <= MOST_STEPS:
        raise BadInput(
            f"noise of {scale:g} steps of its grid cannot be drawn exactly: plan for less than {MOST_STEPS:g}"
        )
    pairs = -(-count // 2)
    normals = torch.empty(2, pairs, dtype=torch.float64)
    for start in range(0, pairs, PAIRS):
        _fill(words, normals[:, start : start + PAIRS], scale)
    return normals.flatten()[:count]


def _fill(words: Words, normals: Tensor, scale: float) -> None:
    """Fill `[2, m]` with rounded normals."""
    m = normals.shape[1]
    bits = torch.from_numpy(words(2 * m).view(np.int64)).view(2, m) & SIGN
    radius, angle = torch.empty_like(normals).copy_(bits).mul_(2.0**-63)
    radius.log_().mul_(-2).sqrt_()
    angle.mul_(2 * math.pi)
    torch.cos(angle, out=normals[0])
    torch.sin(angle, out=normals[1])
    nearest, farthest = radius.aminmax()
    outside = (radius < NEAREST) | (radius > FARTHEST) if nearest < NEAREST or farthest > FARTHEST else None
    normals.mul_(radius.mul_(scale))
    whole = normals.round()
    off, most = (normals - whole).abs_(), 0.5 - MARGIN * scale
    normals.copy_(whole)
    if outside is None and off.max() < most:
        return
    doubtful = (off >= most).any(0) if outside is None else (off >= most).any(0) | outside
    for place in doubtful.nonzero()[:, 0].tolist():
        normals[:, place] = torch.tensor(_decided(words, bits[:, place].tolist(), scale), dtype=torch.float64)


def _decided(words: Words, bits: list[int], scale: float) -> list[float]:
    """The pair of rounded normals that begins with these 63 bits each, by as many more as it takes."""
    with mpmath.workprec(PRECISION):
        u, v = (_uniform(words, part, 63) for part in bits)
        radius, angle = mpmath.sqrt(-2 * mpmath.log(u)) * scale, 2 * mpmath.pi * v
        return [float(mpmath.nint(radius * turned)) for turned in (mpmath.cos(angle), mpmath.sin(angle))]


def _uniform(words: Words, bits: int, length: int) -> mpmath.mpf:
    """A uniform number in (0, 1) that begins with `length` bits."""
    for word in words(MORE).tolist():
        bits, length = bits << 64 | word, length + 64
    return (mpmath.mpf(bits) + 0.5) / 2**length


def discrete_gaussian(words: Words, count: int, sigma: float) -> np.ndarray:
    """`count` whole numbers k with probability proportional to exp(-k^2 / (2 sigma^2)), int64 `[count]`; `sigma` > 0.

    By rejection from a discrete Laplace (Canonne, Kamath, Steinke 2020, Algorithms 2 and 3), all at once.
    """
    t, variance = math.floor(sigma) + 1, Fraction(sigma) ** 2
    middle, twice = float(variance / t), float(2 * variance)
    numbers, open_places = np.zeros(count, np.int64), np.arange(count)
    while len(open_places):
        k = _discrete_laplace(words, len(open_places), t)

        def gamma(place: int, k: np.ndarray = k) -> Fraction:
            return (abs(int(k[place])) - variance / t) ** 2 / (2 * variance)

        accepted = falls(words, (np.abs(k) - middle) ** 2 / twice, gamma)
        numbers[open_places[accepted]] = k[accepted]
        open_places = open_places[~accepted]
    return numbers


def _discrete_laplace(words: Words, count: int, t: int) -> np.ndarray:
    """Whole numbers k with probability proportional to exp(-|k| / t) (Canonne, Kamath, Steinke 2020, Algorithm 2)."""
    numbers, open_places = np.zeros(count, np.int64), np.arange(count)
    while len(open_places):
        low = below(words, np.full(len(open_places), t, np.uint64)).astype(np.int64)

        def share(place: int, low: np.ndarray = low) -> Fraction:
            return Fraction(int(low[place]), t)

        begun = falls(words, low / t, share)
        high, going = np.zeros(len(open_places), np.int64), np.arange(len(open_places))
        while len(going):
            going = going[falls(words, np.ones(len(going)), lambda place: Fraction(1))]
            high[going] += 1
        size, negative = low + t * high, words(len(open_places)) >= WORD // 2
        accepted = begun & ~(negative & (size == 0))
        numbers[open_places[accepted]] = np.where(negative, -size, size)[accepted]
        open_places = open_places[~accepted]
    return numbers


def falls(words: Words, gamma: np.ndarray, exactly: Callable[[int], Fraction]) -> np.ndarray:
    """Coins that fall True with probability exp(-gamma) each, bool `[n]`: `gamma` >= 0 in float64 `[n]`, and exactly at a place."""
    bits = words(len(gamma))
    chance, near = np.exp(-gamma) * WORD, bits.astype(np.float64)
    coins = near + 1 <= chance * (1 - DOUBT)
    for place in np.flatnonzero(~coins & (near <= chance * (1 + DOUBT))).tolist():
        with mpmath.workprec(PRECISION):
            rate = exactly(place)
            u = _uniform(words, int(bits[place]), 64)
            coins[place] = bool(u < mpmath.exp(-mpmath.mpf(rate.numerator) / rate.denominator))
    return coins


def below(words: Words, bounds: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 to below each bound, all equally likely, uint64 `[n]`; `bounds` uint64 `[n]`, 1 or more."""
    numbers = words(len(bounds))
    # 2^64 modulo the bound: so many of the highest words would make the first numbers likelier
    surplus = (np.uint64(0) - bounds) % bounds
    while (over := np.flatnonzero(numbers > np.uint64(WORD - 1) - surplus)).size:
        numbers[over] = words(len(over))
    return numbers % bounds
