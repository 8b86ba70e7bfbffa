"""A recipe that follows the data: settings, each with its reason, from declared facts and a time alone.

The recipe looks at no image, uses no private number that is not declared or public knowledge (records, classes, size), and measures
nothing: costs come from a fixed table (`sfumato.costs`), so that two machines choose the same. Settings of a person or a preset stay,
and later choices follow from them. A rule reads the settings so far and yields choices; the rules in their order are the recipe. Not
covered: tuning on the data, which would cost epsilon, and the quality of the images, which the run judges.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from sfumato.config import Choice
from sfumato.errors import BadInput
from sfumato.methods.plan import Facts
from sfumato.recipe.denoiser import denoiser, denoiser_size
from sfumato.recipe.judging import judging
from sfumato.recipe.levers import eyes, levers, match
from sfumato.recipe.method_settings import drawing, method
from sfumato.recipe.paid_judge import allowing_for_judge
from sfumato.recipe.picks import Pick, Rule, paths_set, placed
from sfumato.recipe.private_steps import DRAWS, FEW_STEPS, SOME, private_batch, private_rates, private_weights
from sfumato.recipe.representation import refuse_undivided, represent, represent_size
from sfumato.recipe.stage_costs import USUAL_EPSILON, Declared, needs_backbone, stage_costs, target_epsilon
from sfumato.recipe.stage_steps import SHARES, fewest_of, path_of, stated, steps_for
from sfumato.settings import Settings, written

OVERHEAD_MINUTES = 0.5
"""Minutes for reading, rendering, starting and reporting."""
VOTERS = 2
"""Records for each candidate that they vote for, at least."""
SIZES = (64, 48, 32, 28, 16, 8)
"""Sides that are tried where one is too large for the time."""


def follow(settings: Settings, facts: Facts, public_images: int) -> Settings:
    """The settings with every choice that `recipe.kind=auto` leaves open; unchanged where that was done before.

    `BadInput` where the time is too short for the size, with what fits, and where a time is given that decides nothing.
    """
    recipe = settings.recipe
    if recipe.kind == "none":
        usual = type(recipe)()
        for name in ("minutes", "device"):
            if getattr(recipe, name) != getattr(usual, name):
                raise BadInput(
                    f"recipe.{name}={getattr(recipe, name)} decides nothing, because the preset has its own settings: use --preset auto"
                )
        return settings
    if recipe.choices:
        return settings
    declared = Declared(facts, public_images, frozenset(paths_set(settings)))
    refuse_undivided(declared, recipe.device)
    try:
        settings, choices = chosen(settings, declared)
    except TooShort as short:
        raise BadInput(_too_short(settings, declared, short.seconds)) from None
    resolved_recipe = settings.recipe.model_copy(update={"choices": choices, "public_images": public_images})
    # Read again, so that every chosen value is checked as one of a person is.
    return Settings.model_validate(settings.model_copy(update={"recipe": resolved_recipe}).model_dump())


class TooShort(Exception):
    """Not even the fewest steps fit into the time."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds


def chosen(settings: Settings, declared: Declared) -> tuple[Settings, tuple[Choice, ...]]:
    """Apply every rule in turn; set fields stay, and later rules see them. Raises `TooShort`."""
    choices: list[Choice] = []
    for rule in RULES:
        for pick in rule(settings, declared):
            if pick.setting not in declared.set_fields:
                settings = placed(settings, pick.setting.split("."), pick.value)
                choices.append(Choice(setting=pick.setting, value=written(pick.value), why=pick.why))
    return settings, tuple(choices)


def steps(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Steps of every stage, from the time and the table of costs; `BadInput` where the time is too short for the size."""
    seconds = 60 * (settings.recipe.minutes - OVERHEAD_MINUTES)
    allowed = allowing_for_judge(settings, declared)
    stages = stage_costs(allowed, declared)
    set_fields = declared.set_fields
    least = sum(cost * fewest_of(name, settings, declared) for name, cost in stages.items())
    if least > max(0.0, seconds):
        raise TooShort(least)
    time = f"{settings.recipe.minutes:g} minutes on a {settings.recipe.device.upper()}"
    left, numbers = seconds, {}
    records = declared.facts.records
    for name, cost in stages.items():
        if name == "pretraining":
            continue
        usual = cost
        if name == "fine_tuning" and "fine_tuning.draws" not in set_fields:
            draws = DRAWS[USUAL_EPSILON * records < SOME]
            usual = stage_costs(placed(allowed, ("fine_tuning", "draws"), draws), declared)[name]
        share = steps_for(name, SHARES[name] * seconds / usual, settings, declared)
        if name == "fine_tuning" and USUAL_EPSILON * records < SOME:
            share = min(share, FEW_STEPS)
        if name == "candidates":
            share = max(2 * len(declared.facts.classes), min(share, records // VOTERS))
        numbers[name] = stated(name, settings, declared) if path_of(name) in set_fields else share
        left -= numbers[name] * usual
    if "pretraining" in stages:
        numbers["pretraining"] = steps_for("pretraining", left / stages["pretraining"], settings, declared)
    stages |= stage_costs(settings, declared)  # without a judge each drawn image is kept
    if "drawing" in numbers and path_of("drawing") not in set_fields:
        numbers["drawing"] = steps_for("drawing", SHARES["drawing"] * seconds / stages["drawing"], settings, declared)
    for name, number in numbers.items():
        if name == "backbone" and not needs_backbone(settings):
            continue
        why = f"{number * stages[name] / 60:.1f} of {time}"
        if name == "fine_tuning" and target_epsilon(settings) * records < SOME and number >= FEW_STEPS:
            number = FEW_STEPS
            why = f"with epsilon {target_epsilon(settings):g} and {declared.facts.private} more steps add more noise than they teach"
        yield Pick(path_of(name), number, why)


def _too_short(settings: Settings, declared: Declared, least: float) -> str:
    """The message for a time that is too short for the size of the images, with the way out."""
    minutes = _enough(settings, declared, least)
    _, height, width = declared.shape
    way = f"--set recipe.minutes={minutes}"
    given = " and ".join(name for name in map(path_of, stage_costs(settings, declared)) if name in declared.set_fields)
    for side in SIZES:
        if side < min(height, width) and _fits(settings, declared, side):
            way += f", or --set data.size={side}"
            break
    return (
        f"recipe.minutes={settings.recipe.minutes:g} is too short for images of {height}x{width} on a "
        f"{settings.recipe.device.upper()}{f' with the steps that {given} asks for' if given else ''}: use {way}"
    )


def _enough(settings: Settings, declared: Declared, least: float) -> int:
    """Minutes in which the fewest steps fit; with more time the recipe may want larger steps, so each answer is tried."""
    minutes = math.ceil(least / 60 + OVERHEAD_MINUTES)
    try:
        chosen(placed(settings, ("recipe", "minutes"), minutes), declared)
    except TooShort as short:
        return _enough(settings, declared, max(short.seconds, 60 * minutes))
    return minutes


def _fits(settings: Settings, declared: Declared, side: int) -> bool:
    """Whether the time suffices for images of this side, with a person's settings."""
    facts = declared.facts.model_copy(update={"shape": (declared.shape[0], side, side)})
    try:
        chosen(settings, replace(declared, facts=facts))
    except (BadInput, TooShort):
        return False
    return True


RULES: tuple[Rule, ...] = (
    represent,
    represent_size,
    denoiser,
    denoiser_size,
    private_batch,
    levers,
    match,
    private_weights,
    private_rates,
    eyes,
    method,
    drawing,
    steps,
    judging,
)
"""The recipe, in order: a later rule sees what the earlier ones chose."""
