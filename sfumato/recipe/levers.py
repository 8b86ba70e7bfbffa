"""What the recipe chooses of what needs no private gradient: class moments, a paid judge and mean embeddings, each with its share of epsilon.

Not covered: shares beside each other, which were found one at a time.
"""

import math
from collections.abc import Iterator

from sfumato.alignment import refuse_size
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.networks.autoencoder import Shape, latent_shape
from sfumato.recipe.averaging import BESIDE_AVERAGES, averages_in_latents
from sfumato.recipe.embedding import matching_of
from sfumato.recipe.paid_judge import ENOUGH_RECORDS, bears_judge, judge_of
from sfumato.recipe.picks import Pick
from sfumato.recipe.private_steps import forgets
from sfumato.recipe.stage_costs import Declared, needs_backbone, target_epsilon, trains_privately, writing
from sfumato.settings import Settings

MOMENTS, JUDGE, MATCHING = (0.71, 2.7, 0.55), (0.65, 2.0, 0.5), (2.0, 3.0, 0.3)
"""Epsilon of the class moments, of the judge, or of mean embeddings, by itself: with `REFERENCE_RECORDS` in a class, and with fewer, which need less noise for
the same accuracy, in proportion up to the second number; never more than this share of the target."""
MOST_OF_ALL = 0.7
"""Share of the moments beside private steps that harm, as `forgets` says, and where it bears cells: of a stand-in for X-rays, without any step, the Frechet distance
falls with all that they get (`benchmarks/far_steps.py`), and of one for MNIST what `rapid` draws is nearer (`benchmarks/results/standin-cells.json`)."""
REFERENCE_RECORDS = 6000
"""Records in a class with which the first numbers of `MOMENTS` and `JUDGE` were found to serve."""
RECORDS_OF_CELL, CELLS = 700, (64, 32, 16, 8)
"""Epsilon of the moments by themselves times records, for each of so many cells of a class (`benchmarks/own_cells.py`)."""


def levers(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Class moments and the paid judge, where there are enough records in a class for them to pay."""
    own, each = METHODS[settings.method.name], declared.facts.records / len(declared.facts.classes)
    why = _without_moments(settings, declared, each)
    yield from [Pick("alignment.kind", "none", why)] if why else _moments(settings, declared, each)
    if each >= ENOUGH_RECORDS and not own.labels and (own.embeds or bears_judge(settings, declared)):
        yield from paid_judge(settings, declared)


def _without_moments(settings: Settings, declared: Declared, each: float) -> str:
    """Why classes of `each` records are not aligned; empty where they are."""
    own, shape = METHODS[settings.method.name], latent_shape(settings.latent, declared.shape)
    if each < ENOUGH_RECORDS and not own.needs_moments:
        return f"{each:.0f} records in a class are few"
    if own.embeds:
        return "mean embeddings say more of a class than its moments"
    if own.labels or not (bears_judge(settings, declared) or averages_in_latents(settings)):
        return "not for this method"
    if settings.central.images:
        return "central images pay for the means of the classes"
    if not _alignable(shape, len(declared.facts.classes)):
        return f"{math.prod(shape)} numbers are too many for second moments"
    return ""


def _moments(settings: Settings, declared: Declared, each: float) -> Iterator[Pick]:
    """Class moments, their share of epsilon, and cells where `each` class bears them."""
    epsilon, alone = target_epsilon(settings), METHODS[settings.method.name].needs_moments
    trains, averages = trains_privately(settings), averages_in_latents(settings)
    most = alone or (trains and (_cells(MOST_OF_ALL * epsilon * each) > 1 or forgets(settings, declared)))
    why = f"{each:.0f} records in a class: the strongest lever before any gradient"
    if each < ENOUGH_RECORDS:
        why = f"all that the method has; {each:.0f} records in a class are few, and their covariance is nearly that of all"
    if trains:
        why += "; alone (method moments) as good or better on digits, MNIST and X-rays at epsilon 10"
    if averages:
        why = "averages of private records say more where public images lie among them"
    yield Pick("alignment.kind", "moments", why)
    share = 1.0
    if not alone:
        share = MOST_OF_ALL if most else lever_share(MOMENTS, each, epsilon)
        share = max(BESIDE_AVERAGES, share) if averages else share
        more = "; the images gain more by it than by private steps" if most else ""
        yield Pick("alignment.share", round(share, 4) or share, f"epsilon {share * epsilon:.2f} by itself{more}")
    cells = _cells(share * epsilon * each)
    if cells > 1 and most:  # beside averages and members, cells were never measured on a stand-in
        yield Pick("alignment.cells", cells, f"{each:.0f} records in a class bear {cells} cells of their own")


def _cells(weight: float) -> int:
    """How many cells a class bears by the epsilon of its moments times its records; 1: none of its own."""
    return next((number for number in CELLS if weight >= number * RECORDS_OF_CELL), 1)


def match(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Mean embeddings that drawn images are moved to, where they can be and stand out from their noise."""
    epsilon, each = target_epsilon(settings), declared.facts.records / len(declared.facts.classes)
    share = lever_share(MATCHING, each, epsilon) if each >= ENOUGH_RECORDS else 0.0
    yield from matching_of(settings, declared, epsilon, share)


def paid_judge(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The judge, at its share of the target."""
    share = lever_share(JUDGE, declared.facts.records / len(declared.facts.classes), target_epsilon(settings))
    yield from judge_of(settings, declared, share)


def lever_share(cost: tuple[float, float, float], each: float, epsilon: float) -> float:
    """The share of the target for a lever of this cost, with `each` records in a class."""
    enough, most, largest_share = cost
    alone = min(most, max(enough, enough * REFERENCE_RECORDS / each))
    return min(alone / epsilon, largest_share)


def eyes(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Training of the public classifier, where one is needed."""
    if needs_backbone(settings) and declared.shape[0] == 3:
        if not writing(settings):
            yield Pick("backbone.mirror", True, "colour: photographs may be mirrored, other than letters")
        yield Pick("backbone.edge", "reflection", "colour: photographs have no one ground")


def _alignable(shape: Shape, classes: int) -> bool:
    try:
        refuse_size(shape, classes)
    except BadInput:
        return False
    return True
