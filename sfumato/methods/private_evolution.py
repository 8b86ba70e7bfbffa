"""Private Evolution: private records vote for images that the public model drew, and a denoiser learns from those with votes.

After Lin et al. 2024 ("Differentially Private Synthetic Data via Foundation Model APIs 1: Images"): draw candidates, let each private
record vote for the nearest one, release the histogram with noise, draw the next candidates as variations of those with votes.
Beyond the paper: candidates may be drawn where class moments put them (`alignment`), votes of one candidate are bounded by a multiple of
the mean, and the result is no list of images but a denoiser that learnt from them plainly, so that any number may be drawn. Certificate: PLD of the histograms.

Not covered: what no candidate resembles gets no votes that mean much; look at the images.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sfumato.config import MethodSection, Pretraining, SettingsOf
from sfumato.errors import BadInput
from sfumato.methods.algorithm import Algorithm
from sfumato.methods.plan import STAGE_VOTES, UNCLAIMED, Claim, Evolution, Facts, Plan, Spend, calibrated, shared_spends
from sfumato.methods.sampling import draw, network_evaluations, walk
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import DiscreteHistogram

ADVISED = 100
"""Candidates of a class that are advised where there are too few of any."""
PROMISE = """\
The paper claims the epsilon of one Gaussian mechanism for all rounds together: each round releases a histogram to which a record adds 1 \
in one cell, and rounds compose as one query of a longer vector (Lin et al. 2024, section 4.3). The run can be certified and comes close to \
the claim: PLD prices the histograms with discrete Gaussian noise, class moments and judge included, under add/remove or exchange. Drawing \
candidates, their variations and the training on them see noisy histograms alone, so any number of images is covered."""
"""What the paper claims, what can be certified, and why they differ (Markdown)."""


class CandidateTraining(Pretraining):
    """Training of the denoiser on candidates, from what it learnt of public images on."""

    learning_rate: float = Field(default=5e-4, gt=0)
    """Peak learning rate of Adam."""


class Method(MethodSection):
    """Candidates, rounds of votes, and what is learnt from them."""

    name: Literal["private-evolution"] = "private-evolution"
    """Private records vote for drawn images; a denoiser learns from those with votes."""
    candidates: int = Field(default=2000, ge=2)
    """Images that private records vote for in a round, of all classes together."""
    rounds: int = Field(default=1, ge=1)
    """Rounds of votes; before each but the first, the candidates with votes are varied."""
    features: Literal["backbone", "pixels"] = "backbone"
    """In which features the nearest candidate is found: those of the public classifier, or pixels."""
    directions: int = Field(default=64, ge=1)
    """Directions of the classifier's features, the widest ones of public images."""
    threshold: float = Field(default=2.0, ge=0)
    """Votes that are at most so many deviations of their noise count as none."""
    largest: float = Field(default=4.0, ge=1)
    """Most votes of a candidate that count, in means of those that its class gave to candidates whose votes count."""
    variation: float = Field(default=0.25, gt=0, le=1)
    """Part of all times that a candidate is noised to for a variation."""
    distillation: CandidateTraining = CandidateTraining()
    """Plain training of the denoiser on the candidates with votes."""


def claim(noise_multiplier: float, rounds: int, delta: float) -> Claim:
    """The epsilon of a Gaussian mechanism whose noise is less by the root of the rounds (Lin et al. 2024, section 4.3)."""
    mu = accountant.compose_gdp([1 / noise_multiplier] * rounds)
    return Claim(
        epsilon=accountant.gdp_epsilon(mu, delta),
        source="Lin et al. 2024: one Gaussian mechanism for all rounds of votes, add/remove; without moments and judge",
    )


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where the budget does not fit."""
    method, privacy, classes = settings.method, settings.privacy, len(facts.classes)
    if method.candidates < 2 * classes:
        raise BadInput(
            f"method.candidates={method.candidates} gives {classes} classes fewer than 2 each: use --set method.candidates={ADVISED * classes}"
        )
    if not settings.pretraining.steps:
        raise BadInput("pretraining.steps=0 leaves no public model to draw candidates: use more, or another method")
    shared = shared_spends(settings)

    def spends(noise: float) -> list[Spend]:
        votes = Spend(
            stage=STAGE_VOTES, what="votes for drawn candidates", event=DiscreteHistogram(noise_multiplier=noise)
        )
        return [*shared, *([votes] * method.rounds)]

    noise, certificate = calibrated(privacy, spends)
    return Plan(
        method=method.name,
        facts=facts,
        evolution=evolution(settings),
        noise_multiplier=noise,
        generation=settings.generation,
        evaluations=network_evaluations(settings),
        spends=tuple(spends(noise)),
        privacy=privacy,
        certificate=certificate,
        claim=claim(noise, method.rounds, privacy.delta) if noise else UNCLAIMED,
    )


def evolution(settings: SettingsOf[Method]) -> Evolution:
    """What private records vote for, and how the votes are read."""
    method = settings.method
    return Evolution(
        candidates=method.candidates,
        features=method.features,
        directions=method.directions,
        threshold=method.threshold,
        largest=method.largest,
        variation=method.variation,
        training=Pretraining(**method.distillation.model_dump()),
    )


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=draw,
    evolves=evolution,
    walk=walk,
)
