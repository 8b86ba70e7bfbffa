"""Gaussian differential privacy in closed form, and the central-limit formulas by which papers state their claims.

`gdp_*` and `compose_gdp` are exact (Dong et al. 2022). `subsampled_gaussian_clt` and `poisson_clt` under-report and certify nothing: they
restate what papers print. The input checks at the end are shared by everything that prices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, get_args

from sfumato.config import Relation
from sfumato.errors import BadInput

if TYPE_CHECKING:  # what lists settings needs no numpy
    import numpy as np

BERRY_ESSEEN = 0.56
"""Constant in the distance from the limit (Dong et al. 2022, Theorem 3.4)."""
FAR_FROM_LIMIT = 0.5
"""gamma from which on that theorem says nothing."""
BLOCK = 1 / 4
"""Width of an integral's panels."""
NODES = 16
"""Nodes of the Gauss-Legendre rule in a panel."""
LOWEST, HIGHEST = -40.0, 12.0
"""Ends of the integrals, in deviations from the mean mu: below, delta is 1 to the last digit of a float and the densities are none; above, they
have vanished too."""
ROOT_SLACK = 1e-9
"""Added to the upper end of a search, so that rounding leaves the root inside."""
ROOT_DIGITS, ROOT_ROUNDS = 4, 1000
"""Precision of that search in units of a float's, the finest that SciPy's `brentq` takes, and its rounds at most."""
LARGEST_MU = 1e100
"""Largest mean that the central-limit formulas take: its square, the size of a privacy loss, is still a float."""
SMALL_SQUARE = 1e-8
"""Square s below which log(e^s - 1) is taken as log s, from which it differs by less than s / 2 and which cannot underflow."""

# ------------------------------------------------------------------------------------------------- Gaussian, exactly


def gdp_delta(mu: float, epsilon: float) -> float:
    """The delta of a mu-GDP mechanism at `epsilon`: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

    `mu` >= 0, `epsilon` >= 0. Dong et al. 2022, Corollary 1; Balle and Wang 2018, Theorem 8. Written with Mills' ratio,
    in which e^eps cancels, so that nothing overflows.
    """
    mu = checked_mu("mu", mu)
    if math.isnan(epsilon) or epsilon < 0:
        raise BadInput(f"epsilon = {epsilon}: must be 0 or more")
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    return _gdp_delta_at(mu, epsilon / mu - mu / 2)


def gdp_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at which a mu-GDP mechanism is (epsilon, delta)-DP; 0 where delta covers it all. `mu` >= 0.

    The inverse of `gdp_delta`, same source. `math.inf` only where mu^2/2 itself exceeds a float.
    """
    import numpy as np
    from scipy.optimize import brentq
    from scipy.special import ndtri

    mu, delta = checked_mu("mu", mu), checked_delta(delta)
    if mu * mu == math.inf:
        return math.inf
    if mu == 0 or _gdp_delta_at(mu, -mu / 2) <= delta:
        return 0.0
    # With y = eps/mu - mu/2: delta(y) <= Phi(-y) bounds y above, up to rounding; below `LOWEST` delta is 1 to the last digit.
    low, high = max(-mu / 2, LOWEST), ROOT_SLACK - float(ndtri(delta))
    digits = ROOT_DIGITS * float(np.finfo(float).eps)
    y = brentq(lambda y: _gdp_delta_at(mu, y) - delta, low, high, xtol=digits, rtol=digits, maxiter=ROOT_ROUNDS)
    return max(0.0, mu * (y + mu / 2))


def compose_gdp(mus: Iterable[float]) -> float:
    """The mu of Gaussian mechanisms used together: the root of the sum of squares. Dong et al. 2022, Corollary 2."""
    return math.hypot(*(checked_mu("mu", mu) for mu in mus))


def _gdp_delta_at(mu: float, y: float) -> float:
    """delta of mu-GDP at epsilon = mu (y + mu/2): Phi(-y) - phi(y) R(y + mu) with Mills' ratio R, y + mu > 0."""
    from scipy.special import erfcx, ndtr

    half_pi = math.sqrt(math.pi / 2)
    density = math.exp(-y * y / 2) / math.sqrt(2 * math.pi)
    far = half_pi * float(erfcx((y + mu) / math.sqrt(2)))
    if y < 0:
        return min(1.0, max(0.0, float(ndtr(-y)) - density * far))
    return density * max(0.0, half_pi * float(erfcx(y / math.sqrt(2))) - far)


# ------------------------------------------------------------------------------------------------ what papers claim


def subsampled_gaussian_clt(mus: Iterable[float], sample_rate: float, repeats: int = 1) -> float:
    """The mu that f-DP's central limit theorem gives to subsampled Gaussians with noise of their own. A claim only.

    2 K / s with K = repeats sum_i kl(C_p(G_mu_i)), s^2 = repeats sum_i kappa_2(C_p(G_mu_i)): Lemma A.1 of "How private
    is diffusion-based sampling?" (Dong et al. 2022, Theorem 3.5 and Lemma 5.5). `mus` >= 0 finite, one entry per step;
    the whole list is done `repeats` times.

    Under-reports, grossly where one step's mu is well above 1: there it tends to 2 sqrt(p repeats) however large the
    mus grow. `subsampled_gaussian_epsilon` is the sound number.
    """
    mus, rate = checked_mus(mus, sample_rate, repeats, top=LARGEST_MU)
    if not repeats or not mus.any():
        return 0.0
    (kl, kappa, _), counts, _ = _moments_of_all(mus, rate)
    return 2 * math.sqrt(repeats) * float(counts @ kl) / math.sqrt(float(counts @ kappa))


class Closeness(NamedTuple):
    """How close a composition is to its Gaussian limit (Dong et al. 2022)."""

    kappa_3: float
    """Sum of the steps' third absolute central moments, which Theorem 3.5 needs to vanish; 0 or more, infinite beyond a float."""
    gamma: float
    """0.56 kappa_3 / (kappa_2 - kl^2)^1.5 in sums over the steps (Theorem 3.4): both errors of any test may lie as far beside those of the
    limit. From 1/2 on the theorem says nothing."""

    @property
    def holds(self) -> bool:
        """Whether the theorem says anything."""
        return self.gamma < FAR_FROM_LIMIT


def subsampled_gaussian_closeness(mus: Iterable[float], sample_rate: float, repeats: int = 1) -> Closeness:
    """What the central limit theorem behind `subsampled_gaussian_clt` needs to be small; same arguments and errors.

    kappa_3 of C_p(G_mu) is the integral of | log|f'| + kl |^3 over 0..1 (Dong et al. 2022, section 3.2): Lemma A.1 of "How private is
    diffusion-based sampling?" and kl^3 (1 - p) (1 - 2 Phi(-mu/2)) for the flat middle part, which the lemma leaves out. Without any step both are 0.
    """
    import numpy as np

    mus, rate = checked_mus(mus, sample_rate, repeats, top=LARGEST_MU)
    if not repeats or not mus.any():
        return Closeness(0.0, 0.0)
    (kl, kappa, third), counts, unit = _moments_of_all(mus, rate)
    spread = repeats * float(counts @ (kappa - kl * kl))
    total = repeats * float(counts @ third)
    with np.errstate(over="ignore"):
        return Closeness(float(np.float64(unit) ** 3 * total), BERRY_ESSEEN * total / spread**1.5)


def poisson_clt(mus: Iterable[float], sample_rate: float, repeats: int = 1) -> float:
    """The mu that dp-promise and much of the DP-SGD literature report. A claim only.

    p sqrt(repeats sum_i (e^(mu_i^2) - 1)): dp-promise, Theorem 2; Bu et al. 2020, Section 3. Not the number of
    `subsampled_gaussian_clt`, which follows another statement of the limit theorem; both under-report at small sample
    rates or large mus. `math.inf` only where the true value exceeds a float.
    """
    import numpy as np
    from scipy.special import logsumexp

    mus, rate = checked_mus(mus, sample_rate, repeats, top=math.inf)
    mus = mus[mus > 0]
    if not mus.size or not repeats:
        return 0.0
    with np.errstate(over="ignore"):
        squares = mus * mus
    # log(e^s - 1) is log s for small s, in which form nothing underflows.
    terms = np.where(
        squares < SMALL_SQUARE, 2 * np.log(mus), squares + np.log(-np.expm1(-np.maximum(squares, SMALL_SQUARE)))
    )
    log_mu = math.log(rate) + (math.log(repeats) + float(logsumexp(terms))) / 2
    return math.exp(log_mu) if log_mu < math.log(np.finfo(float).max) else math.inf


def _moments_of_all(mus: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray, float]:
    """kl / u, kappa_2 / u^2 and kappa_3 / u^3 of each different mu `[3, n]`, how often it comes `[n]`, and the unit u; one mu is above 0."""
    import numpy as np

    distinct, counts = np.unique(mus, return_counts=True)
    unit = float(mus.max()) * max(1.0, float(mus.max()))  # losses are of this size, so that their cubes fit a float
    return np.transpose([_clt_moments(float(mu), rate, unit) for mu in distinct]), counts, unit


def _clt_moments(mu: float, rate: float, unit: float) -> tuple[float, float, float]:
    """kl, kappa_2 and kappa_3 of C_p(G_mu) in powers of `unit` (Lemma A.1), by Gauss-Legendre panels over x >= mu/2."""
    import numpy as np
    from scipy.special import ndtr

    if mu == 0:
        return 0.0, 0.0, 0.0
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # u = x - mu, so that large mu keeps its digits. The densities vanish beyond these ends; the panels resolve
    # them and, wherever they do not vanish, the bend of Z, whose width is 1/mu.
    edges = np.arange(max(-mu / 2, LOWEST), HIGHEST, BLOCK)
    u = (edges[:, None] + BLOCK / 2 * (1 + nodes)).ravel()
    weights = np.tile(BLOCK / 2 * weights, edges.size)
    exponent = mu * (u + mu / 2)
    z = log_ratio(exponent, rate) / unit
    here = np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    origin = here * np.exp(-exponent)
    gap = here * -np.expm1(-exponent)
    kl = rate * float(weights @ (z * gap))
    kappa = float(weights @ (z * z * (rate * here + (2 - rate) * origin)))
    apart = abs(z - kl) ** 3 * (rate * here + (1 - rate) * origin) + (z + kl) ** 3 * origin
    flat = kl**3 * (1 - rate) * (1 - 2 * float(ndtr(-mu / 2)))
    return kl, kappa, float(weights @ apart) + flat


def log_ratio(exponent: np.ndarray, rate: float | np.ndarray) -> np.ndarray:
    """log((1 - q) + q e^x) for exponents x `[...]`: the log density ratio of the mixture to N(0), at x = mu z - mu^2/2, with q = `rate`, 0 to 1."""
    import numpy as np

    with np.errstate(divide="ignore"):
        # The first keeps the digits of small results, the second cannot overflow and serves q near 1.
        near = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
        far = np.logaddexp(np.log1p(-np.asarray(rate, dtype=float)), np.log(rate) + exponent)
    return np.where((exponent < 1.0) & ((exponent > -1.0) | (np.asarray(rate) < 0.5)), near, far)


# -------------------------------------------------------------------------------------------------------- the inputs


def checked_mu(name: str, mu: float) -> float:
    """A mean of Gaussian privacy, 0 or more; `BadInput` names another."""
    if not mu >= 0:
        raise BadInput(f"{name} = {mu}: must be 0 or more")
    return float(mu)


def checked_mus(mus: Iterable[float], sample_rate: float, repeats: int, *, top: float) -> tuple[np.ndarray, float]:
    """Means of Gaussian privacy `[n]` up to `top`, and the sample rate; `BadInput` for others."""
    import numpy as np

    values = np.array([checked_mu("mus", mu) for mu in mus], dtype=float)
    if values.size and values.max() > top:
        raise BadInput(f"mus up to {values.max():g}: the limit formula needs noise in every step (mu <= {top:g})")
    checked_count("repeats", repeats)
    return values, checked_rate(sample_rate)


def checked_delta(delta: float) -> float:
    """A delta between 0 and 1, both excluded; `BadInput` for another."""
    if not 0 < delta < 1:
        raise BadInput(f"delta = {delta}: must lie between 0 and 1, both excluded")
    return float(delta)


def checked_rate(sample_rate: float) -> float:
    """A sample rate above 0 and at most 1; `BadInput` for another."""
    if not 0 < sample_rate <= 1:
        raise BadInput(f"sample_rate = {sample_rate}: must be above 0 and at most 1")
    return float(sample_rate)


def checked_positive(name: str, value: float) -> float:
    """A number above 0; `BadInput` names another."""
    if not value > 0:
        raise BadInput(f"{name} = {value}: must be above 0")
    return float(value)


def checked_count(name: str, value: int) -> int:
    """A whole number, 0 or more; `BadInput` names another."""
    if not (value >= 0 and float(value).is_integer()):
        raise BadInput(f"{name} = {value}: must be a whole number, 0 or more")
    return int(value)


def checked_relation(relation: Relation) -> Relation:
    """One of the relations there are; `BadInput` for another."""
    if relation not in get_args(Relation):
        raise BadInput(f"relation = {relation!r}: choose one of {', '.join(get_args(Relation))}")
    return relation
