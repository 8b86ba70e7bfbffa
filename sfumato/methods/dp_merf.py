"""DP-MERF: noisy mean embeddings of the private classes, and a generator whose images have the same (Harder et al. 2021).

Each record is turned into random features of a Gaussian kernel, a vector of norm 1; the sum of these over each class is released
once, with Gaussian noise. A generator then learns, from these sums alone, to draw images whose mean features come near (the maximum
mean discrepancy of the two). Beyond the paper: a constant beside the features pays for the number of records of each class in the same release,
several widths of the kernel stand side by side, the loss is without the bias of a small batch, and the generator is the run's own network, asked
once for each image. Certificate: of one Gaussian mechanism, exact.

Not covered: what the mean of the features does not show; fine strokes come out blurred.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sfumato.config import MethodSection, SettingsOf, Training
from sfumato.methods.algorithm import Algorithm
from sfumato.methods.mean_embedding import GeneratorTraining, drawn_at_once, generator_blueprint, planned_release
from sfumato.methods.plan import Claim, Embedding, Facts, Plan
from sfumato.privacy.accounting import accountant

PROMISE = """\
The paper claims the epsilon of one Gaussian mechanism on the mean embedding of the private set, whose sensitivity is known because random features \
of a Gaussian kernel have norm 1 (Harder et al. 2021, section 4). The run can be certified and comes to the claim but for rounding: private \
images are opened once, each adds a vector of norm 1 at most to the sum of its class, with the count of the class among its numbers, and the \
closed form of Gaussian differential privacy, or PLD beside other queries, prices the one release under add/remove or exchange. The frequencies of the features are public, and the generator's training \
sees noisy sums alone, so any number of images is covered."""
"""What the paper claims, what can be certified, and why they differ (Markdown)."""


class Method(MethodSection):
    """Features, and what is learnt from their sums."""

    name: Literal["dp-merf"] = "dp-merf"
    """Noisy mean embeddings of the classes; a one-step generator learns to have the same."""
    features: Literal["fourier"] = "fourier"
    """Which features of private records are summed: random ones of a Gaussian kernel."""
    frequencies: int = Field(default=1000, ge=1)
    """Random frequencies; each gives two features. More come nearer to the kernel, and cost memory and time, not privacy."""
    length_scales: tuple[float, ...] = Field(default=(0.4, 0.8), min_length=1)
    """Widths of the Gaussian kernels, in units of the root of the numbers of an image (its norm, were all its values 1 or -1); public."""
    count_share: float = Field(default=0.05, gt=0, lt=1)
    """Share of a record's squared norm that counts it in its class."""
    training: GeneratorTraining = GeneratorTraining()
    """Training of the generator, which costs nothing more."""


def claim(noise_multiplier: float, delta: float) -> Claim:
    """The epsilon of one Gaussian mechanism of sensitivity 1 (Harder et al. 2021, section 4, by Balle and Wang 2018)."""
    return Claim(
        epsilon=accountant.gdp_epsilon(1 / noise_multiplier, delta),
        source="Harder et al. 2021: one Gaussian mechanism on the mean embedding, add/remove; without moments and judge",
    )


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where the budget does not fit."""
    return planned_release(settings, facts, embedding(settings), "sums of random features of each class", claim)


def embedding(settings: SettingsOf[Method]) -> Embedding:
    """Which features are summed, and what learns from the sums."""
    method = settings.method
    return Embedding(
        features=method.features,
        frequencies=method.frequencies,
        length_scales=method.length_scales,
        count_share=method.count_share,
        training=Training(**method.training.model_dump()),
    )


ALGORITHM = Algorithm(
    section=Method,
    promise=PROMISE,
    claim=claim,
    plan=plan,
    draw=drawn_at_once,
    blueprint=generator_blueprint,
    embeds=embedding,
)
