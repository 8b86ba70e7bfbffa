"""What the recipe chooses for the empirical denoiser: the window of its averages, how they weigh records, and what is paid for.

Images branch from trajectories of each class that are paid for once, which costs nothing more. Not covered: latents of other sizes and other
kinds of images than a stand-in of warped digits, where these were chosen.
"""

import math
from collections.abc import Iterator

from sfumato.networks.autoencoder import latent_shape
from sfumato.recipe.picks import Pick
from sfumato.recipe.presumed import averaging
from sfumato.recipe.stage_costs import Declared, target_epsilon
from sfumato.settings import Settings

WINDOW = (("percent", 33.0), ("until", 60.0))
"""The share of the sampling after which averages begin, and end, in latents. On a stand-in at epsilon 10, a thousand paid trajectories: .754 of the
images are read as what they were drawn for, .215 with a window from 45 to 67.5; from 28 to 56 it is .965, of images so alike that a CNN learns less."""
BETA, LONGEST = 0.001, {"pixels": 0.5, "latents": 0.7}
"""Weight of the public images' density: where private images lie, there are few public ones (.03 in its place: .418 are read). Longest distance of an average
from the public prediction, in roots of the number of numbers."""
PRICE_OF_A_TRAJECTORY, MOST_TRAJECTORIES = 600.0, 100
"""Epsilon times the records of a class for one of its paid trajectories, and the most: with many at a small epsilon none reads as its class."""
BESIDE_AVERAGES = 0.15
"""Smallest share of the class moments beside averages. On the stand-in at epsilon 10, 2,000 images of a recipe of 12 minutes: .975 are read as what they were drawn
for and a CNN learns .901, without aligned classes .674 and .830 (docs/results/empirical-denoiser.md)."""
BRANCHED, PAID = 5000, 500
"""Images that branch from paid trajectories, and images where each is paid for."""


def averages_of(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The settings of the averages and of what is paid for."""
    latents = settings.latent.kind != "none"
    shape = latent_shape(settings.latent, declared.shape) if latents else declared.shape
    numbers, facts = math.prod(shape), declared.facts
    if latents:
        for name, value in WINDOW:
            yield Pick(f"method.{name}", value, "a class is decided at larger noise in latents than in a few pixels")
    yield Pick("method.beta", BETA, "public images are rare where private ones lie")
    longest = LONGEST["latents" if latents else "pixels"] * math.sqrt(numbers)
    why = f"{numbers} numbers: an average goes no farther from the public prediction"
    yield Pick("method.longest", round(longest, 1), why)
    if latents:
        epsilon = target_epsilon(settings)
        own, parted = averaging(settings), 1
        if own and own.pay == "cluster":
            parted = own.clusters
        cells = len(facts.classes) * parted
        borne = min(MOST_TRAJECTORIES, epsilon * facts.records / cells / PRICE_OF_A_TRAJECTORY)
        yield Pick("method.pay", "class", "any number of images branches from what is paid for once")
        why = f"of each {'cluster' if parted > 1 else 'class'} of {facts.private}, at epsilon {epsilon:g}"
        yield Pick("method.trajectories", max(1, int(borne)), why)


def averages_in_latents(settings: Settings) -> bool:
    """Whether averages of private latents move what the public model draws."""
    return averaging(settings) is not None and settings.latent.kind != "none"


def number_of(settings: Settings) -> Pick:
    """How many images are drawn."""
    number, why = (
        (BRANCHED, "they branch from paid trajectories") if branches(settings) else (PAID, "each image is paid for")
    )
    return Pick("generation.images", number, why)


def branches(settings: Settings) -> bool:
    """Whether any number of images branches from what is paid for."""
    own = averaging(settings)
    return own is not None and own.pay != "image"
