"""How many steps of each stage the recipe may take: shares of the time, fewest and most, and the settings that say how long a stage is.

Not covered: what a step costs, which is `sfumato.recipe.stage_costs`.
"""

import math
from typing import Any

from sfumato.recipe.ensemble import most_prototypes
from sfumato.recipe.presumed import ensemble, retrieving
from sfumato.recipe.stage_costs import Declared, strokes
from sfumato.settings import Settings

SHARES = {
    "latent": 0.12, "backbone": 0.12, "extractor": 0.04, "fine_tuning": 0.2, "drawing": 0.12, "candidates": 0.1, "distillation": 0.2,
    "training": 0.5, "trajectories": 0.1, "members": 0.2, "prototypes": 0.1,
}  # fmt: skip
"""Shares of the time, stage by stage; what they leave is the public denoiser's."""
FEWEST = {
    "latent": 500, "backbone": 300, "pretraining": 1000, "extractor": 50, "fine_tuning": 40, "candidates": 200, "distillation": 300,
    "training": 300, "drawing": 1000, "trajectories": 500, "members": 20, "prototypes": 1,
}  # fmt: skip
"""Steps, images or trajectories below which a stage is not worth beginning."""
FEWEST_OF_PHOTOGRAPHS = {"latent": 1300, "pretraining": 3000}
"""The same where images are no strokes, and a U-Net learns their latents: with fewer, the rehearsal stops the run, after votes if there are any. Of what
a classifier reads in grey public photographs of 28x28, 64 % survived an autoencoder of 848 steps, 79 % of 1,100, 86 % of 1,400, 90 % of 2,000
(`sfumato rehearse dp-sgd` on the X-rays, with `recipe.minutes=15 pretraining.steps=0 latent.steps=848` and so on). How far public samples lie by
steps of the denoiser: docs/results/quality.md#few-public-steps."""
MOST = {
    "latent": 4000, "backbone": 2200, "pretraining": 60000, "extractor": 400, "fine_tuning": 500, "candidates": 30000, "distillation": 8000,
    "training": 6000, "drawing": 30000, "trajectories": 50000, "members": 60, "prototypes": 100,
}  # fmt: skip
"""Steps, images or trajectories beyond which more bring little."""
MOST_DRAWN = 5 * 10**8
"""Numbers of all drawn images together: these are twice in memory, four bytes each. Some 10,000 images of 128x128 in colour."""
PATHS = {
    "drawing": "generation.images",
    "extractor": "method.extractor.steps",
    "trajectories": "method.trajectories",
    "candidates": "method.candidates",
    "distillation": "method.distillation.steps",
    "training": "method.training.steps",
    "members": "method.training.steps",
    "prototypes": "method.prototypes",
}
"""Settings that say how long a stage is, where these are not its own `steps`."""


def path_of(stage: str) -> str:
    """The setting with the number of steps of a stage."""
    return PATHS.get(stage, f"{stage}.steps")


def stated(stage: str, settings: Settings, declared: Declared) -> int:
    """What a stage's setting of `path_of` says: steps, images, or trajectories, of which there are no more than reference images."""
    value: Any = settings
    for name in path_of(stage).split("."):
        value = getattr(value, name)
    return int(value) or most_of(stage, settings, declared)


def most_of(stage: str, settings: Settings, declared: Declared) -> int:
    """The most steps that are worth it, or that there can be."""
    if stage == "prototypes" and (own := ensemble(settings)):
        return min(MOST[stage], most_prototypes(own.members, settings.privacy.epsilon, len(declared.facts.classes)))
    if stage == "trajectories" and (looked_up := retrieving(settings)):
        return max(1, min(MOST[stage], round(looked_up.reference * declared.public_images)))
    if stage == "drawing":
        return min(MOST[stage], MOST_DRAWN // math.prod(declared.shape))
    return MOST[stage]


def steps_for(stage: str, affordable: float, settings: Settings, declared: Declared) -> int:
    """The affordable number of steps, between the fewest and the most."""
    most, fewest = most_of(stage, settings, declared), FEWEST[stage]
    small_steps = stage != "pretraining" or settings.network.kind == "unet"
    if small_steps and not strokes(settings, declared):
        fewest = FEWEST_OF_PHOTOGRAPHS.get(stage, fewest)
    return int(max(min(fewest, most), min(most, affordable)))


def fewest_of(stage: str, settings: Settings, declared: Declared) -> int:
    """The fewest steps of a stage, or those that a person has set."""
    by_hand = path_of(stage) in declared.set_fields
    return stated(stage, settings, declared) if by_hand else steps_for(stage, 0, settings, declared)
