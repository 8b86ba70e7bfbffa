"""The one-run canary audit: a lower bound on epsilon from one finished training.

After Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run": m canaries are made, a fair coin
for each says whether it joins the private set, the mechanism runs once, an attacker scores all canaries and guesses the
coins of those he is surest of. Under (epsilon, delta)-DP he is right no more often than randomised response allows
(Theorem 5.2); so many right guesses refute every epsilon below the bound, with the confidence asked for.

The promise: whatever scores are given, if the training was (epsilon, delta)-DP under add/remove, and the scores depend on
the coins through its result alone, then the bound exceeds epsilon in at most 1 - confidence of all audits.
Not covered: a low bound proves nothing (this attack failed on this training); a promise that holds only under
`replace_one`, since the coin adds a record or leaves it out; side channels and rounding inside float32 sums.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from sfumato.errors import BadInput
from sfumato.privacy.auditing.findings import Bound

GUESS_SHARES = (1.0, 0.5, 0.25, 0.1)
"""Shares of the canaries whose coin is guessed; the best of the bounds counts, after a Bonferroni correction."""
CONFIDENCE = 0.95
"""Confidence of the bound."""
LARGEST_EPSILON = 100.0
"""Largest bound of the search; 100 right guesses of 100 give 3.5."""
ROUNDING = 1e-9
"""Added before a number of guesses is rounded down, which a share of them may miss by rounding."""
PRECISION = 1e-6
"""Width at which the search for the bound stops."""


def epsilon_lower_bound(
    scores: Tensor | np.ndarray,
    included: Tensor | np.ndarray,
    *,
    delta: float,
    confidence: float = CONFIDENCE,
    guess_shares: Sequence[float] = GUESS_SHARES,
) -> Bound:
    """The largest epsilon refuted by scores `[m]` (higher: more likely to have joined) and the coins `[m]`.

    Of r guesses, the r/2 highest scores are guessed "joined" and the r/2 lowest "not", the rest abstain; ties are broken by
    position, which knows nothing of the coins. Each share of guesses is tried at level (1 - confidence) / number of shares,
    so that the best of them still holds with `confidence`.
    """
    scores, included = _checked(scores, included, delta, confidence, guess_shares)
    order = np.argsort(scores, kind="stable")
    terms = {"delta": delta, "level": (1 - confidence) / len(guess_shares)}
    bounds = []
    for half in (max(1, int(share * len(scores) / 2 + ROUNDING)) for share in guess_shares):
        correct = int((~included[order[:half]]).sum() + included[order[-half:]].sum())
        bounds.append((refuted_epsilon(len(scores), 2 * half, correct, **terms), 2 * half, correct))
    epsilon, guesses, correct = max(bounds, key=lambda row: row[0])
    return Bound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        canaries=len(scores),
        guesses=guesses,
        correct=correct,
        attainable=max(
            refuted_epsilon(len(scores), guesses_made, guesses_made, **terms) for _, guesses_made, _ in bounds
        ),
    )


def refuted_epsilon(canaries: int, guesses: int, correct: int, *, delta: float, level: float) -> float:
    """The largest epsilon with `chance` at most `level`, by bisection; 0 where even epsilon 0 is not refuted."""
    low, high = 0.0, LARGEST_EPSILON
    if chance(canaries, guesses, correct, 0.0, delta=delta) > level:
        return 0.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        if chance(canaries, guesses, correct, middle, delta=delta) <= level:
            low = middle
        else:
            high = middle
    return low


def chance(canaries: int, guesses: int, correct: int, epsilon: float, *, delta: float) -> float:
    """The largest probability of v = `correct` or more right guesses of r = `guesses` under (epsilon, delta)-DP (Steinke et al. 2023, Theorem 5.2).

    P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i with W ~ Binomial(r, e^epsilon / (1 + e^epsilon)) and i from 1 to v. It
    grows with epsilon as long as 2 m delta <= 1, which `epsilon_lower_bound` demands, so bisection finds the one crossing:
    the derivative of each term is r (P[W' = v - 1] (1 - 2 m delta / i) + P[W' = v - i - 1] 2 m delta / i) dq, W' with r - 1.
    """
    q = 1 / (1 + math.exp(-epsilon))
    at_least = float(binom.sf(correct - 1, guesses, q))
    if not delta or not correct:
        return min(1.0, at_least)
    just_below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, q))
    return min(1.0, at_least + 2 * canaries * delta * float((just_below / np.arange(1, correct + 1)).max()))


def _checked(
    scores: Any, included: Any, delta: float, confidence: float, shares: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    scores = torch.as_tensor(scores).detach().cpu().double().numpy()
    included = torch.as_tensor(included).cpu().numpy()
    if scores.ndim != 1 or included.shape != scores.shape or included.dtype != bool:
        raise BadInput(
            f"scores {list(scores.shape)} and coins {list(included.shape)} {included.dtype}: give [m] numbers and [m] booleans"
        )
    if len(scores) < 2:
        raise BadInput(f"{len(scores)} canaries are too few to guess by: give 2 or more, better some hundreds")
    if not np.isfinite(scores).all():
        raise BadInput("some canary scores are NaN or infinite: the model diverged, so nothing can be concluded")
    if not 0 <= delta < 1 or not 0 < confidence < 1:
        raise BadInput(f"delta={delta} and confidence={confidence}: use 0 <= delta < 1 and 0 < confidence < 1")
    if not shares or not all(0 < share <= 1 for share in shares):
        raise BadInput(f"shares of guesses {list(shares)}: give at least one, each above 0 and at most 1")
    if 2 * len(scores) * delta > 1:
        raise BadInput(
            f"{len(scores)} canaries are too many for delta={delta:g}, nothing could be concluded: use {int(1 / (2 * delta))} or fewer"
        )
    return scores, included
