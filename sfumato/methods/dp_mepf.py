"""DP-MEPF: noisy mean embeddings in the features of a public network, and a generator whose images have the same (Harder et al. 2023).

Each record is turned into what the layers of a network trained on public images make of it, a vector brought to norm 1 (phi_1), and,
where `method.squares` is above 0, the squares of these numbers, brought to norm 1 by themselves (phi_2). The sums over each class are
released once, with Gaussian noise, phi_1 and phi_2 as one vector; a generator then learns, from these sums alone, to draw images whose
mean features come near. The paper takes all layers of a VGG trained on ImageNet; here it is the project's own classifier of the public images,
the one whose features the judge reads. Beyond the paper: a constant beside the features pays for the number of records of each class in the
same release, the loss is without the bias of a small batch, and the generator is the run's own network, asked once for each image.
Certificate: of one Gaussian mechanism, exact.

Not covered: what the means of these features do not show. Images far from all public ones get features that say little of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sfumato.config import LATER, MethodSection, SettingsOf, Training
from sfumato.methods.algorithm import Algorithm
from sfumato.methods.mean_embedding import GeneratorTraining, drawn_at_once, generator_blueprint, planned_release
from sfumato.methods.plan import Claim, Embedding, Facts, Plan
from sfumato.privacy.accounting import accountant

PROMISE = """\
The paper claims the epsilon of Gaussian mechanisms on the mean features of the private set, whose sensitivity is known because each record's features \
are brought to norm 1 (Harder et al. 2023): one for the features, and one of the same noise for their squares. The run can be certified and comes to the \
claim but for rounding: private images are opened once, each adds one vector of norm 1 at most to the sum of its class (features, squares, the image if it has a share, and a count), and the closed form of Gaussian differential privacy, or PLD beside other queries, prices the one release under add/remove or exchange. The network behind \
the features has seen public images alone, and the generator's training sees noisy sums and public parts alone, so any number of images is covered."""
"""What the paper claims, what can be certified, and why they differ (Markdown)."""


class PerceptualTraining(GeneratorTraining):
    """Training of the generator on mean perceptual features, whose steps take longer than those of a kernel."""

    steps: int = Field(default=1000, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=320, ge=2)
    """Images per step, of all classes together; of each class at least two."""


class Method(MethodSection):
    """Features, and what is learnt from their sums."""

    name: Literal["dp-mepf"] = "dp-mepf"
    """Noisy mean embeddings of the classes in a public network's features; a one-step generator learns to have the same."""
    squares: float = Field(default=0.5, ge=0, lt=1)
    """Share of the squared norm of a record's features that their squares have (phi_2); at .5 both have the same noise, as in the paper; 0 leaves
    the squares out (phi_1 alone)."""
    cells: int = Field(default=8, ge=1)
    """Largest side of a layer's maps; larger ones are averaged over so many cells a side, where the paper takes every position. Fewer mean less noise
    in all, and say less of where strokes lie."""
    image: Annotated[float, Field(ge=0, lt=1), LATER] = 0.0
    """Share of a record's squared norm that the image itself has, as means and mean squares over the cells; beyond the paper. The norms of the
    classifier hide brightness, colour and contrast, and a generator of latents that sees nothing of these draws glaring patterns."""
    count_share: float = Field(default=0.05, gt=0, lt=1)
    """Share of a record's squared norm that counts it in its class."""
    training: PerceptualTraining = PerceptualTraining()
    """Training of the generator, which costs nothing more; a step costs many times what it does with features of a kernel."""


def claim(noise_multiplier: float, delta: float) -> Claim:
    """The epsilon of one Gaussian mechanism of sensitivity 1 (Harder et al. 2023, by Balle and Wang 2018).

    Features and squares with noise s each are one vector of norm 1 with noise s / sqrt(2).
    """
    return Claim(
        epsilon=accountant.gdp_epsilon(1 / noise_multiplier, delta),
        source="Harder et al. 2023: one Gaussian mechanism on the mean features, add/remove; without moments and judge",
    )


def plan(settings: SettingsOf[Method], facts: Facts) -> Plan:
    """The whole run; raises `BadInput` where the budget does not fit."""
    return planned_release(settings, facts, embedding(settings), "sums of perceptual features of each class", claim)


def embedding(settings: SettingsOf[Method]) -> Embedding:
    """Which features are summed, and what learns from the sums."""
    method = settings.method
    return Embedding(
        features="perceptual",
        squares=method.squares,
        cells=method.cells,
        image=method.image,
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
