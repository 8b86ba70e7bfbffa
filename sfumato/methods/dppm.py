"""DPPM: score matching whose projection vectors are exchanged at random (Liu et al. 2024).

A score network is trained by sliced score matching; each random projection vector is replaced, by k-ary randomised
response, with one of the k vectors nearest to it (Eq. 6), and the paper concludes epsilon-DP for the network and its
images (Theorem 1). Here: the probabilities of that response, the claim, and the event that the ledger would hold.

Not covered: any guarantee for the training data. There is none at any epsilon; see `EVENT`.
"""

import math

from sfumato.errors import BadInput
from sfumato.methods.plan import Claim
from sfumato.privacy.events import Uncertified
from sfumato.privacy.gdp import checked_count

FEWEST_CHOICES = 2
"""k >= 2 (Eq. 6)."""

EVENT = Uncertified(
    reason="the randomised response acts on projection vectors that are drawn without looking at the data, while the "
    "loss uses the private images as they are: nothing bounds or hides what one record contributes"
)
"""What training does to private data; `accountant.epsilon([EVENT], delta)` is infinite."""

PROMISE = """\
The paper claims pure epsilon-DP for the network and every image drawn from it, because the projection vectors of its \
score-matching loss pass through a k-ary randomised response: at epsilon 1 and k = 10 a vector stays itself with \
probability 0.232. Nothing can be certified at any epsilon. Those vectors are random numbers drawn without looking at \
the data, so randomising them hides no record, while the loss and its gradient use each private image as it is, \
neither clipped nor noised. The proof bounds the probability of a vector and carries the bound over to the image beside it. \
The honest epsilon for the training data is infinite, and what is drawn from such a network stays internal."""
"""What the paper claims, what can be certified, and why they differ (Markdown)."""


def response_probabilities(epsilon: float, k: int) -> tuple[float, float]:
    """(keep, other): the chance that a vector stays itself, and that it becomes one given other of its k candidates.

    Liu et al. 2024, Eq. 6: e^eps / (e^eps + k - 1) and 1 / (e^eps + k - 1), so that keep + (k - 1) other = 1. `epsilon`
    >= 0, may be infinite; `k` >= 2. Written with e^-eps, so that nothing overflows.
    """
    epsilon, choices = _checked_epsilon(epsilon), checked_count("k", k)
    if choices < FEWEST_CHOICES:
        raise BadInput(f"k = {k}: must be {FEWEST_CHOICES} or more")
    odds = math.exp(-epsilon)
    keep = 1 / (1 + (choices - 1) * odds)
    return keep, keep * odds


def claim(epsilon: float) -> Claim:
    """Theorem 1 of Liu et al. 2024: the epsilon of the randomised response, handed on unchanged, delta 0."""
    source = "Liu et al. 2024, Theorem 1: the randomised response's epsilon; it acts on vectors that hold no data"
    return Claim(epsilon=_checked_epsilon(epsilon), source=source)


def _checked_epsilon(epsilon: float) -> float:
    if not epsilon >= 0:
        raise BadInput(f"epsilon = {epsilon}: must be 0 or more")
    return float(epsilon)
