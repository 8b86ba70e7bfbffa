"""What the recipe chooses for the judging of the result: as many images and epochs as a share of the time allows."""

from collections.abc import Iterator

from sfumato.costs import COSTS
from sfumato.evaluation.effort import Sizes, judging_seconds
from sfumato.methods import METHODS
from sfumato.methods.plan import Facts
from sfumato.recipe.picks import Pick
from sfumato.recipe.stage_costs import Declared, trains_privately
from sfumato.settings import Settings

JUDGING_SHARE = 0.25
"""Share of the time that judging may take, on top of it."""
EPOCHS = (10, 50)
"""Fewest and most epochs of the papers' networks, where they are asked for."""
PARTS = 10
"""Where not all drawn images are judged, so many tenths of them: numbers in steps that a person can read."""
FULL_ALONE = 2
"""Sets that all classifiers learn from where plain DP-SGD is not set beside: what is drawn, and as many real images."""
FEWEST_TAUGHT = 2000
"""Smallest number of drawn images that teach the classifiers."""


def judging(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Judging of the result: as many images and epochs as a share of the time allows."""
    yield Pick(
        "evaluation.baseline",
        False,
        "plain DP-SGD beside it would take as long again; `sfumato compare` sets the two side by side",
    )
    how, drawn = settings.evaluation, settings.generation.images
    seconds, table = JUDGING_SHARE * 60 * settings.recipe.minutes, COSTS[settings.recipe.device]
    sizes, limit = judged_sets(settings, declared.facts), f"a quarter of {settings.recipe.minutes:g} minutes"

    def takes(images: int, epochs: int) -> float:
        return judging_seconds(how.model_copy(update={"epochs": epochs}), sizes, images, table)

    images = how.images if "evaluation.images" in declared.set_fields else drawn
    epochs = how.epochs
    if how.classifiers != "fast" and "evaluation.epochs" not in declared.set_fields:
        fewest, most = EPOCHS
        epochs = next((many for many in range(most, fewest, -1) if takes(images, many) <= seconds), fewest)
        why = "as in the papers" if epochs == most else f"more would take beyond {limit}; the papers take {most}"
        yield Pick("evaluation.epochs", epochs, why)
    candidates = [drawn, *(int(drawn * part / PARTS) for part in range(PARTS - 1, 0, -1))]
    enough = [many for many in candidates if many >= FEWEST_TAUGHT]
    images = next((many for many in enough if takes(many, epochs) <= seconds), min([drawn, *enough]))
    why = "all that are drawn teach the classifiers" if images == drawn else f"judging more would take beyond {limit}"
    yield Pick("evaluation.images", images, why)


def judged_sets(settings: Settings, facts: Facts) -> Sizes:
    """The number of sets that a run judges, and the sizes of the real ones."""
    other = settings.evaluation.baseline and not METHODS[settings.method.name].is_baseline
    return Sizes(
        image=facts.shape,
        classes=len(facts.classes),
        records=facts.images or facts.records,
        full=FULL_ALONE + other,
        brief=2 * (settings.judge.use != "none")
        + (settings.matching.share > 0 and not METHODS[settings.method.name].draw_privately)
        + len(settings.fine_tuning.averages) * trains_privately(settings),
        ceilings=int(settings.latent.kind != "none"),
    )
