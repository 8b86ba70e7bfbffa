"""What the recipe chooses for the paid judge of drawn images: whether there is one, and the share of the images that it keeps.

Not covered: the epsilon that it may cost, which `sfumato.recipe.auto` shares out.
"""

from collections.abc import Iterator

from sfumato.judge import NOISE_OF_JUDGE
from sfumato.methods import METHODS
from sfumato.methods.plan import noise_in_gradient, with_numbers
from sfumato.recipe.ensemble import learns_from_paid
from sfumato.recipe.picks import Pick
from sfumato.recipe.stage_costs import Declared, strokes, target_epsilon, trains_privately
from sfumato.settings import Settings

ENOUGH_RECORDS = 50
"""Records in a class, on average, from which its moments and a judge pay."""
KEEP = {"strokes": 0.8, "other": 0.5}
"""Share of the drawn images that a judge keeps (`benchmarks/judge_uses.py`)."""


def judge_of(settings: Settings, declared: Declared, share: float) -> Iterator[Pick]:
    """The settings of the judge, at a share of the target epsilon; nothing where there are no classes to tell apart on one side."""
    facts, epsilon = declared.facts, target_epsilon(settings)
    if not has_classes_to_tell(declared):
        return
    judge, privacy = (
        settings.judge.model_copy(update={"share": share}),
        with_numbers(settings.privacy, epsilon, facts.records),
    )
    length = noise_in_gradient(judge, privacy, facts.records, len(facts.classes))
    if length > NOISE_OF_JUDGE:
        each = facts.records / len(facts.classes)
        yield Pick(
            "judge.use", "none", f"{each:.0f} records in a class: {length:.2f} of what teaches it would be noise"
        )
        return
    why = f"{facts.public_classes} public classes teach it what to look at; a CNN learns more where both agree"
    yield Pick("judge.use", "filter", why)
    yield Pick(
        "judge.keep", share_to_keep(settings, declared), "the surest of each class, of so many more that are drawn"
    )
    yield Pick("judge.share", round(share, 4) or share, f"epsilon {share * epsilon:.2f} by itself")


def share_to_keep(settings: Settings, declared: Declared) -> float:
    """The share of the drawn images that a judge keeps."""
    return KEEP["strokes" if strokes(settings, declared) else "other"]


def has_classes_to_tell(declared: Declared) -> bool:
    """Whether there are classes to tell apart on both sides."""
    return declared.facts.public_classes > 1 and len(declared.facts.classes) > 1


def bears_judge(settings: Settings, declared: Declared) -> bool:
    """Whether the method learns from private images something that images are drawn by, and pays for none of them one by one."""
    method = METHODS[settings.method.name]
    return bool(
        trains_privately(settings) or method.needs_moments or method.evolves or learns_from_paid(settings, declared)
    )


def could_be_judged(settings: Settings, declared: Declared) -> bool:
    """Whether a judge would be chosen at some epsilon."""
    method, facts = METHODS[settings.method.name], declared.facts
    return bool(
        "judge.use" not in declared.set_fields
        and has_classes_to_tell(declared)
        and facts.records >= ENOUGH_RECORDS * len(facts.classes)
        and (method.embeds or (bears_judge(settings, declared) and not method.labels))
    )


def allowing_for_judge(settings: Settings, declared: Declared) -> Settings:
    """The settings with a judge where one might be chosen: its features and its drawing are allowed for at each epsilon, so that all share one
    public half."""
    if not could_be_judged(settings, declared):
        return settings
    keep = settings.judge.keep if "judge.keep" in declared.set_fields else share_to_keep(settings, declared)
    return settings.model_copy(update={"judge": settings.judge.model_copy(update={"use": "filter", "keep": keep})})
