"""What the recipe chooses for a DP ensemble: heads in place of whole denoisers, how many of them, and how many images are paid for.

Any number of images is then drawn by what learnt from the paid ones, which costs nothing more. Not covered: which norm deviations have, which
decides how many images a budget pays for without cutting them; it was seen on two sets of digits.
"""

from collections.abc import Iterator

from sfumato.recipe.picks import Pick
from sfumato.recipe.presumed import ensemble
from sfumato.recipe.stage_costs import Declared
from sfumato.settings import Settings

RECORDS_OF_A_MEMBER, MOST_MEMBERS, MOST_DENOISERS = 7, 1000, 142
"""Records of a head, the most heads, and the most members that are whole denoisers. On the embedded digits .95 of the images of 200 heads of seven records
each are read as what was asked for, and .24 of those of 20 heads of seventy (`benchmarks/members.py`)."""
FEWEST_MEMBERS, RECORDS_OF_A_DENOISER = 4, 100
"""Fewest members of an ensemble, and about how many records each has that is a whole denoiser."""
IMAGES_ALONE, STEPS_OF_DENOISERS = 20, 250
"""Images where each one is paid for, few enough for most budgets, and sampling steps of whole denoisers."""
FEW_OF_A_CLASS = 3
"""Records of a class in a shard, on average, below which a head says nothing of classes that its shard lacks."""
HEADS = (
    Pick("method.adapters", 64, "small heads on the public denoiser: hundreds train and answer together"),
    Pick("method.training.batch", 64, "a shard has fewer records"),
    Pick("method.training.learning_rate", 0.1, "heads are small, and begin at nothing"),
)
"""Settings of heads, and why."""
STEPS, GUIDANCE = 60, 2.0
"""Sampling steps and guidance of the drawing that is paid for: 100 private steps read as well as 250, and 60 cost less to take."""
FOR_ONE_IMAGE = 209.0
"""Members times epsilon that pay for one image while deviations up to a norm of ten are not cut; for n images it takes root n times as much."""


def members_of(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The settings of the members: heads, unless a person wants whole denoisers."""
    own, facts = ensemble(settings), declared.facts
    if own is None:
        return
    if "method.adapters" in declared.set_fields and not own.adapters:
        yield Pick(
            "method.members",
            max(FEWEST_MEMBERS, min(MOST_DENOISERS, facts.records // RECORDS_OF_A_DENOISER)),
            f"about {RECORDS_OF_A_DENOISER} of {facts.private} for each",
        )
        return
    members = max(FEWEST_MEMBERS, min(MOST_MEMBERS, facts.records // RECORDS_OF_A_MEMBER))
    yield Pick("method.members", members, f"{facts.records // members} of {facts.private} for each")
    yield from HEADS
    few = facts.records / members / len(facts.classes) < FEW_OF_A_CLASS
    yield Pick("method.abstain", few, "shards lack classes" if few else "shards have records of all classes")


def drawing_of(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The settings of the drawing; how many images learn from paid ones is a matter of time."""
    own = ensemble(settings)
    if not draws_any_number(settings, declared):
        yield Pick("generation.images", IMAGES_ALONE, "each image is paid for")
    if own and own.adapters:
        yield Pick("generation.steps", STEPS, "more read no better, and take longer")
    else:
        yield Pick("generation.steps", STEPS_OF_DENOISERS, "many short steps add more noise in all than few long ones")
    yield Pick("generation.guidance", GUIDANCE, "a weak class condition wants more of it")


def draws_any_number(settings: Settings, declared: Declared) -> bool:
    """Whether images are drawn by what learnt from paid ones, and not paid for one by one, as a person may want."""
    own = ensemble(settings)
    return own is not None and (bool(own.prototypes) or "method.prototypes" not in declared.set_fields)


def learns_from_paid(settings: Settings, declared: Declared) -> bool:
    """Whether what draws the images learns from paid latents. On the stand-in at epsilon 10, a recipe of 15 minutes, such images among aligned
    classes, moved and judged, teach a CNN .934; among aligned classes alone .889 (docs/results/dp-ensemble.md)."""
    return settings.latent.kind != "none" and draws_any_number(settings, declared)


def most_prototypes(members: int, epsilon: float, classes: int) -> int:
    """The most images of each class that a budget pays for without cutting what members say; at least one."""
    return max(1, int((members * epsilon / FOR_ONE_IMAGE) ** 2 / classes))
