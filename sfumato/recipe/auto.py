"""A recipe that follows the data: settings, each with its reason, from declared facts and a time alone.

The recipe looks at no image, uses no private number that is not declared or public knowledge (records, classes, size), and measures
nothing: costs come from a fixed table (`sfumato.costs`), so that two machines choose the same. Settings of a person or a preset stay,
and later choices follow from them. A rule reads the settings so far and yields choices; the rules in their order are the recipe. Not
covered: tuning on the data, which would cost epsilon, and the quality of the images, which the run judges.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfumato.alignment import refuse_size
from sfumato.config import Choice, Section
from sfumato.costs import COSTS
from sfumato.errors import BadInput
from sfumato.evaluation.effort import Sizes, judging_seconds
from sfumato.methods import METHODS
from sfumato.methods.plan import Facts
from sfumato.networks.autoencoder import PATCHES, Shape, latent_shape
from sfumato.networks.build import resolved
from sfumato.recipe.averaging import BESIDE_AVERAGES, averages_in_latents, averages_of, branches, number_of
from sfumato.recipe.embedding import GENERATOR_WIDTH, latent_generator, matching_of
from sfumato.recipe.ensemble import drawing_of, draws_any_number, members_of
from sfumato.recipe.paid_judge import ENOUGH_RECORDS, allowing_for_judge, bears_judge, judge_of
from sfumato.recipe.stage_costs import (
    USUAL_EPSILON,
    Declared,
    needs_backbone,
    stage_costs,
    strokes,
    target_epsilon,
    trains_privately,
)
from sfumato.recipe.stage_steps import SHARES, fewest_of, path_of, stated, steps_for
from sfumato.retrieval.choice import recipe_of, times_above
from sfumato.settings import Settings, written

PIXELS_UP_TO = 16
"""Largest side in pixels that is drawn pixel by pixel; above, an autoencoder makes a few numbers of an image first."""
POSITIONS = (7, 16)
"""Fewest and most positions of a latent along a side."""
FOLDS = (4, 8, 2, 16)
"""Factors by which an autoencoder may shrink a side, of which the first that fits is used."""
CPU_SIDE = 128
"""Largest side that a person without a GPU is told to take."""
VARIED = 0.2
"""Largest angle, in radians, by which drawn strokes vary. From scikit-learn's digits as they are, enlarged to 28x28, with other hands to read: a CNN
learnt .989 where it learnt .971, no easier to tell from real ones, at a Frechet distance of 14.4 in place of 13.0; from .3 no more, at 19.0
(docs/results/quality.md)."""
CHANNELS = {
    "strokes": {2: 1, 4: 2, 8: 4, 16: 4},
    "grey": {2: 2, 4: 6, 8: 4, 16: 4},
    "colour": {2: 3, 4: 6, 8: 8, 16: 8},
}
"""Channels of a latent: by what the public images are, and by how much a side shrinks. Of public photographs in colour, squares of 4x4 to 4
numbers, about 73 % of what a classifier reads survives, to 6 about 86 %; of grey ones 40 % with 2 and 77 % with 4
(`benchmarks/results/targets.md`)."""
CROWDED = {4: 4}
"""The most where there are more than `UNET_UP_TO` positions a side: 16x16x6 numbers would be too many for class moments."""
WIDTHS = ((64, 192, 2), (128, 384, 3), (256, 512, 4), (512, 640, 4), (math.inf, 768, 4))
"""Numbers in an image or latent up to which an MLP has this width and this many blocks."""
JUDGING_SHARE = 0.25
"""Share of the time that judging may take, on top of it."""
EPOCHS = (10, 50)
"""Fewest and most epochs of the papers' networks, where they are asked for."""
FULL_ALONE = 2
"""Sets that all classifiers learn from where plain DP-SGD is not set beside: what is drawn, and as many real images."""
FEWEST_TAUGHT = 2000
"""Smallest number of drawn images that teach the classifiers."""
OVERHEAD_MINUTES = 0.5
"""Minutes for reading, rendering, starting and reporting."""
SMALL_EPSILON = 1.5
"""Target epsilon below which a weak class condition wants more guidance."""
RICH, SOME, POOR = 200_000, 90_000, 5_000
"""Epsilon times records: above the first all layers of an MLP may bear noise; below the second more steps add more noise than they teach; below the third
the class rows alone are trained."""
FEW_STEPS, ALIGNED_RATE = 60, 0.01
"""Private steps below the second, and the rate of class rows there after class moments: of a stand-in for X-rays the Frechet distance is .40 without private
steps, .46 at this rate and .86 at .05 (`benchmarks/far_steps.py`)."""
DRAWS = (2, 4)
"""Noised copies of a record above and below the second. Averaged before clipping they lengthen what a step learns
(`benchmarks/private_steps.py signal`); at the same cost images taught no more on a stand-in, and no less (`benchmarks/results/targets.md`)."""
BATCHES = (16, 8192)
"""Smallest and largest expected number of records in a step."""
PART_OF_ALL = 4
"""A step samples about one in this many of the records, at most."""
MLP_UP_TO, UNET_UP_TO = 128, 8
"""Numbers of a latent up to which an MLP does on a CPU, and positions a side up to which a U-Net does; above, a transformer over positions
(`benchmarks/results/denoisers.md`)."""
UNET: dict[str, int | float] = {"batch": 32, "learning_rate": 2e-3, "warm_up": 50, "ema_decay": 0.998}
"""Public training of a U-Net on a CPU: many small steps."""
UNET_WIDTHS = {8: 64, 256: 32}
"""Channels of a U-Net, by the positions a side up to which they hold."""
DIT, DIT_BATCH = {"cpu": (64, 4), "gpu": (256, 6)}, {"cpu": 64, "gpu": 256}
"""Width and blocks of a transformer that takes each position by itself, and images in a public step."""
TOKENS, DIT_OF_SQUARES = 16, (128, 6)
"""Squares of positions that a transformer on a CPU takes one by one, where the latent divides into so many; and its width and blocks then."""
MOMENTS, JUDGE, MATCHING = (0.71, 2.7, 0.55), (0.65, 2.0, 0.5), (2.0, 3.0, 0.3)
"""Epsilon of the class moments, of the judge, or of mean embeddings, by itself: with `REFERENCE_RECORDS` in a class, and with fewer, which need less noise for
the same accuracy, in proportion up to the second number; never more than this share of the target."""
MOST_OF_ALL = 0.7
"""Share of the moments where `forgets` says that private steps harm: of a stand-in for X-rays, without any, the Frechet distance falls with all that they get
(`benchmarks/far_steps.py`)."""
REFERENCE_RECORDS = 6000
"""Records in a class with which the first numbers of `MOMENTS` and `JUDGE` were found to serve."""
RECORDS_OF_CELL, CELLS = 700, (64, 32, 16, 8)
"""Epsilon of the moments by themselves times records, for each of so many cells of a class (`benchmarks/own_cells.py`)."""
VOTERS = 2
"""Records for each candidate that they vote for, at least."""
DISTILLATION_RATE = 0.25
"""Of the rate at which the public denoiser learnt, where it goes on with candidates that have votes."""
SAMPLING_STEPS = 30
VOTES_FROM = 2.0
"""Target epsilon from which votes are affordable as they are; below, they get more noise in proportion."""
VOTE_NOISE = 6.0
SIZES = (64, 48, 32, 28, 16, 8)
"""Sides that are tried where one is too large for the time."""


@dataclass(frozen=True)
class Pick:
    """A rule's choice for one setting."""

    setting: str
    value: Any
    why: str


Rule = Callable[[Settings, Declared], Iterator[Pick]]


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
    _refuse_size(declared, CPU_SIDE if settings.recipe.device == "cpu" else max(FOLDS) * POSITIONS[1])
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


def paths_set(section: Section, *path: str) -> Iterator[str]:
    """The settings that were set explicitly, as `section.field`."""
    for name in sorted(section.model_fields_set):
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from paths_set(value, *path, name)
        else:
            yield ".".join((*path, name))


def placed(section: Any, path: Sequence[str], value: Any) -> Any:
    """The section with one setting, possibly nested, replaced."""
    name, *rest = path
    return section.model_copy(update={name: placed(getattr(section, name), rest, value) if rest else value})


# --- what it works on -------------------------------------------------------------------------------------------------


def represent(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Pixels where they are few, latents above."""
    _, height, width = declared.shape
    if max(height, width) <= PIXELS_UP_TO:
        yield Pick("latent.kind", "none", f"{height}x{width} pixels are few enough to be drawn one by one")
        return
    yield Pick("latent.kind", "patch", f"above {PIXELS_UP_TO} pixels a side; public images alone teach the autoencoder")


def represent_size(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The size of a latent, by the kind of the autoencoder."""
    channels, height, width = declared.shape
    fold = fold_of(height, width)
    if settings.latent.kind == "none" or fold is None:
        return
    if settings.latent.kind == "patch":
        yield Pick("latent.patch", fold, f"{height // fold}x{width // fold} positions, each for {fold}x{fold} pixels")
        yield Pick("latent.multipliers", PATCHES.multipliers, "the patches do what levels would")
        yield Pick("latent.width", PATCHES.width, "convolutions at the small size cost little")
        yield Pick("latent.loss", PATCHES.loss, "squared errors of small steps come down fastest")
        yield Pick("latent.learning_rate", PATCHES.learning_rate, "as high as small steps bear")
        yield Pick("latent.batch", PATCHES.batch, "small steps bring an error down faster than large ones")
    else:
        levels = tuple(2**n for n in range(int(math.log2(fold)) + 1))
        yield Pick(
            "latent.multipliers", levels, f"{height // fold}x{width // fold} positions, each for {fold}x{fold} pixels"
        )
        yield Pick("latent.width", 12, "convolutions at full size are what costs")
    shown = "colour" if channels > 1 else "strokes" if strokes(settings, declared) else "grey"
    crowded = max(height, width) // fold > UNET_UP_TO
    numbers = min(CHANNELS[shown][fold], CROWDED.get(fold, math.inf) if crowded else math.inf)
    why = f"numbers at each of {height // fold}x{width // fold} positions; strokes need few, photographs more"
    yield Pick("latent.channels", int(numbers), why)


def fold_of(height: int, width: int) -> int | None:
    """The factor by which a side shrinks to a number of positions within `POSITIONS`; None where nothing fits."""
    fewest, most = POSITIONS
    fitting = [
        fold
        for fold in FOLDS
        if not (height % fold or width % fold)
        and min(height, width) >= fewest * fold
        and max(height, width) <= most * fold
    ]
    return next(iter(fitting), None)


def _refuse_size(declared: Declared, largest: int) -> None:
    """`BadInput` for a size that no latent fits, where a person has not set the representation; it names one of at most `largest`."""
    _, height, width = declared.shape
    free = not {"latent.kind", "latent.multipliers", "latent.patch"} & declared.set_fields
    if free and max(height, width) > PIXELS_UP_TO and fold_of(height, width) is None:
        near = min(
            (side for side in range(min(FOLDS) * POSITIONS[0], largest + 1) if fold_of(side, side)),
            key=lambda side: (abs(side - min(height, width)), side),
        )
        raise BadInput(
            f"images of {height}x{width} pixels do not divide into {POSITIONS[0]} to {POSITIONS[1]} positions a side: use "
            f"--set data.size={near}"
        )


def denoiser(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The kind of network; each kind has sizes of its own."""
    shape = latent_shape(settings.latent, declared.shape)
    numbers = math.prod(shape)
    if settings.latent.kind == "none":
        yield Pick("network.kind", "mlp", f"{numbers} numbers: an MLP does most with a second of a CPU")
        return
    if METHODS[settings.method.name].embeds:
        yield Pick(
            "network.kind",
            "mlp",
            f"{numbers} numbers in one step: an MLP sees them all, and is asked thousands of times",
        )
        return
    cpu = settings.recipe.device == "cpu"
    kind = "mlp" if numbers <= MLP_UP_TO and cpu else "unet" if max(shape[1:]) <= UNET_UP_TO and cpu else "dit"
    reasons = {
        "mlp": "an MLP does most with a second of a CPU",
        "unet": "convolutions learn for all positions at once what an MLP learns for each",
        "dit": "a transformer learns for all positions at once what an MLP learns for each",
    }
    yield Pick("network.kind", kind, f"{numbers} numbers: {reasons[kind]}")
    yield Pick("network.prediction", "velocity", "well scaled where nearly all is noise")


def denoiser_size(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Width and depth by the kind."""
    shape = latent_shape(settings.latent, declared.shape)
    network, numbers = resolved(settings.network, shape[1]), math.prod(shape)
    if network.kind == "mlp":
        width, blocks = next((width, blocks) for most, width, blocks in WIDTHS if numbers <= most)
        if settings.latent.kind != "none":
            least = GENERATOR_WIDTH if METHODS[settings.method.name].embeds else 512
            width, blocks = max(width, least), 4
        yield Pick("network.width", width, f"for {numbers} numbers")
        yield Pick("network.blocks", blocks, f"for {numbers} numbers")
        return
    if network.kind == "dit":
        width, blocks = DIT[settings.recipe.device]
        side = math.isqrt(shape[1] * shape[2] // TOKENS)
        if settings.recipe.device == "cpu" and side > 1 and not (shape[1] % side or shape[2] % side):
            width, blocks = DIT_OF_SQUARES
            yield Pick(
                "network.patch",
                side,
                f"squares of {side}x{side} positions: fewer and wider products learn more in a CPU second",
            )
        yield Pick("network.width", width, f"a transformer that a {settings.recipe.device.upper()} bears")
        yield Pick("network.blocks", blocks, f"a transformer that a {settings.recipe.device.upper()} bears")
        yield Pick("pretraining.batch", DIT_BATCH[settings.recipe.device], "smaller steps, and more of them")
        yield Pick("pretraining.learning_rate", 1e-3, "a transformer bears less than an MLP")
        return
    width = next(width for side, width in UNET_WIDTHS.items() if max(shape[1:]) <= side)
    yield Pick("network.width", width, f"a {network.kind} that a CPU bears")
    yield Pick("network.blocks", 1, f"a {network.kind} that a CPU bears")
    if network.kind == "unet" and settings.latent.kind != "none":
        for name, value in UNET.items():
            yield Pick(f"pretraining.{name}", value, "convolutions want many small steps")
    yield Pick("network.multipliers", levels(shape), f"levels for {shape[1]}x{shape[2]}")


def levels(shape: Shape) -> tuple[int, ...]:
    """Multiples of a U-Net's width, level by level, for images or latents of this shape."""
    _, height, width = shape
    if max(height, width) <= UNET_UP_TO or height % 2 or width % 2:
        return (1,)
    return (1, 2) if height % 4 or width % 4 or height < 16 else (1, 2, 2)


# --- what is private --------------------------------------------------------------------------------------------------


def private_batch(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Records in a step: fewer where the fewest steps would take the public half's time."""
    facts = declared.facts
    if trains_privately(settings) and "fine_tuning.sample_rate" not in declared.set_fields:
        part = facts.records / PART_OF_ALL
        least = max(1, min(BATCHES[0], facts.records // 2))
        batch = max(least, min(BATCHES[1], 2 ** round(math.log2(max(1.0, part)))))
        why = f"about a quarter of {facts.records}, and {BATCHES[1]} at most"
        affordable = SHARES["fine_tuning"] * 60 * settings.recipe.minutes / fewest_of("fine_tuning", settings, declared)
        while batch // 2 >= least and _step_of(batch, settings, declared) > affordable:
            batch, why = batch // 2, f"as many as {settings.recipe.minutes:g} minutes bear"
        yield Pick("fine_tuning.batch", batch, why)


def _step_of(batch: int, settings: Settings, declared: Declared) -> float:
    """Seconds of a private step of `batch` records."""
    trial = placed(settings, ("fine_tuning", "batch"), batch)
    if "fine_tuning.draws" not in declared.set_fields:
        few = USUAL_EPSILON * declared.facts.records < SOME
        trial = placed(trial, ("fine_tuning", "draws"), DRAWS[few])
    return stage_costs(trial, declared)["fine_tuning"]


def private_weights(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Draws, and what is trained."""
    facts = declared.facts
    if not trains_privately(settings):
        return
    weight = target_epsilon(settings) * facts.records
    few = weight < SOME
    why = (
        "little can be learnt from many noisy steps: fewer, of more copies"
        if few
        else "their mean is clipped, and less of it is noise"
    )
    yield Pick("fine_tuning.draws", DRAWS[few], f"noised copies of a record; {why}")
    groups: tuple[str, ...] = ("rows",)
    why = f"epsilon x {facts.private} is little: class rows alone"
    if settings.alignment.kind == "moments" and forgets(settings, declared):
        why = "after class moments class rows alone: private steps on more make the public model forget"
    elif weight >= POOR:
        groups, why = ("rows", "film"), f"epsilon x {facts.private} bears class rows and modulation"
    if weight >= RICH and groups != ("rows",):
        groups, why = (
            ("rows", "film", "rest"),
            f"epsilon x {facts.private} bears noise on all layers but those of the time",
        )
    if len(groups) > 1 and over_positions(settings, declared):
        groups = (*groups, "attention")
    yield Pick("fine_tuning.trainable", groups, why)


def over_positions(settings: Settings, declared: Declared) -> bool:
    """Whether the network is a U-Net or a transformer, and no MLP."""
    return resolved(settings.network, declared.shape[1]).kind in ("unet", "dit")


def forgets(settings: Settings, declared: Declared) -> bool:
    """Whether private steps on more than the class rows would harm the public model more than they help, once its images are aligned.

    A U-Net or a transformer has forgotten more than it learnt wherever it was tried: on a stand-in for X-rays (`benchmarks/far_steps.py`), and on
    10,000 cells in colour, which came out as noise (docs/results/tracks.md). Many records and the many steps of a GPU were never tried.
    """
    tried = settings.recipe.device == "cpu" or target_epsilon(settings) * declared.facts.records < RICH
    return tried and over_positions(settings, declared)


def private_rates(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Clipping and rates, by what is trained."""
    groups = settings.fine_tuning.trainable
    if not trains_privately(settings):
        return
    if len(groups) > 1:
        yield Pick("fine_tuning.clipping", "per_group", "so that the class rows have a share of the clip to themselves")
    everything = "rest" in groups
    if groups == ("rows",) and settings.alignment.kind == "moments" and forgets(settings, declared):
        yield Pick(
            "fine_tuning.rate_rows", ALIGNED_RATE, "aligned classes leave little to learn, and a higher rate is noise"
        )
    elif groups == ("rows",):
        yield Pick("fine_tuning.rate_rows", 0.05, "class rows alone bear a higher rate")
    elif everything:
        yield Pick("fine_tuning.rate_other", 8e-4, "all layers at once; 3e-3 climbs in the middle")
        yield Pick("fine_tuning.ema_decay", 0.98, "all layers at once")


def levers(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Class moments and the paid judge, where there are enough records in a class for them to pay."""
    facts, chosen, epsilon = declared.facts, METHODS[settings.method.name], target_epsilon(settings)
    shape, each = latent_shape(settings.latent, declared.shape), facts.records / len(facts.classes)
    averages, judged = averages_in_latents(settings), bears_judge(settings)
    if chosen.embeds and each >= ENOUGH_RECORDS:
        yield Pick("alignment.kind", "none", "mean embeddings say more of a class than its moments")
        yield from paid_judge(settings, declared)
        return
    if not (judged or averages) or chosen.labels or each < ENOUGH_RECORDS:
        yield Pick(
            "alignment.kind",
            "none",
            "not for this method" if each >= ENOUGH_RECORDS else f"{each:.0f} records in a class are few",
        )
        return
    alone = chosen.needs_moments
    if settings.central.images:
        yield Pick("alignment.kind", "none", "central images pay for the means of the classes")
    elif _alignable(shape, len(facts.classes)):
        why = f"{each:.0f} records in a class: the strongest lever before any gradient"
        if trains_privately(settings):
            why += "; alone (method moments) as good or better on digits, MNIST and X-rays at epsilon 10"
        if averages:
            why = "averages of private records say more where public images lie among them"
        yield Pick("alignment.kind", "moments", why)
        share, most = 1.0, alone or (trains_privately(settings) and forgets(settings, declared))
        if not alone:
            share = MOST_OF_ALL if most else lever_share(MOMENTS, each, epsilon)
            share = max(BESIDE_AVERAGES, share) if averages else share
            more = "; such a network learns more from moments than by private steps" if most else ""
            yield Pick("alignment.share", round(share, 4) or share, f"epsilon {share * epsilon:.2f} by itself{more}")
        cells = next((number for number in CELLS if share * epsilon * each >= number * RECORDS_OF_CELL), 1)
        if cells > 1 and most:  # beside other training, cells were never measured on a stand-in
            yield Pick("alignment.cells", cells, f"{each:.0f} records in a class bear {cells} cells of their own")
    else:
        yield Pick("alignment.kind", "none", f"{math.prod(shape)} numbers are too many for second moments")
    if judged:
        yield from paid_judge(settings, declared)


def match(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Mean embeddings that drawn images are moved to, where they can be and stand out from their noise."""
    epsilon, each = target_epsilon(settings), declared.facts.records / len(declared.facts.classes)
    share = lever_share(MATCHING, each, epsilon) if each >= ENOUGH_RECORDS else 0.0
    for name, value, why in matching_of(settings, declared, epsilon, share):
        yield Pick(f"matching.{name}", value, why)


def paid_judge(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The judge, at its share of the target."""
    share = lever_share(JUDGE, declared.facts.records / len(declared.facts.classes), target_epsilon(settings))
    yield from (Pick(f"judge.{name}", value, why) for name, value, why in judge_of(settings, declared, share))


def lever_share(cost: tuple[float, float, float], each: float, epsilon: float) -> float:
    """The share of the target for a lever of this cost, with `each` records in a class."""
    enough, most, largest_share = cost
    alone = min(most, max(enough, enough * REFERENCE_RECORDS / each))
    return min(alone / epsilon, largest_share)


def eyes(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Training of the public classifier, where one is needed."""
    if needs_backbone(settings) and declared.shape[0] == 3:
        yield Pick("backbone.mirror", True, "colour: photographs may be mirrored")
        yield Pick("backbone.edge", "reflection", "colour: photographs have no one ground")


def _alignable(shape: Shape, classes: int) -> bool:
    try:
        refuse_size(shape, classes)
    except BadInput:
        return False
    return True


# --- the method -------------------------------------------------------------------------------------------------------


def method(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The method's own settings, by what it declares of itself."""
    chosen_method, facts, epsilon = METHODS[settings.method.name], declared.facts, target_epsilon(settings)
    if chosen_method.retrieves:
        pixels = settings.latent.kind == "none" and math.prod(declared.shape) <= 64
        k, v = (0.5, 0.4) if pixels else (0.7, 0.6)
        own: Any = settings.method
        above = own.v if "method.v" in declared.set_fields else v
        chosen_by_hand = {"method.k", "method.neighbour"} & declared.set_fields
        times = () if chosen_by_hand else times_above(above, facts.learnt_classes)
        if not times:
            yield Pick("method.k", k, "at larger times a latent is noise, and retrieval a guess")
        for name, value, why in recipe_of(times, facts.learnt_classes, declared.shape[0]):
            yield Pick(f"method.{name}", value, why)
        yield Pick("method.v", v, "a long private walk learns more")
        yield Pick("method.nearest", 5, "the mean of five neighbours is steadier than one")
        aligned = settings.alignment.kind != "none"
        why = (
            "aligned classes lie among all public ones"
            if aligned
            else "each class begins at the public class nearest to it"
        )
        yield Pick("method.votes", facts.learnt_classes > 1 and not aligned, why)
        noise = VOTE_NOISE * max(1.0, VOTES_FROM / epsilon)
        yield Pick("method.vote_noise", noise, f"small beside epsilon {epsilon:g}")
        distinct = facts.learnt_classes >= 2 * len(facts.classes) and not aligned
        yield Pick("method.distinct", distinct, f"classes: {facts.learnt_classes} public, {len(facts.classes)} private")
        yield Pick("method.reference", 0.3, "the rest of the public images trains the denoiser")
    if chosen_method.evolves:
        learnt = settings.pretraining
        yield Pick("method.distillation.batch", learnt.batch, "as the public denoiser learnt")
        rate = learnt.learning_rate * DISTILLATION_RATE
        yield Pick("method.distillation.learning_rate", rate, "a part of the rate at which the public denoiser learnt")
    own = members_of if chosen_method.has_members else averages_of if chosen_method.draw_privately else None
    if own:
        yield from (Pick(f"method.{name}", value, why) for name, value, why in own(settings, declared))
    if chosen_method.embeds:
        yield Pick("pretraining.steps", 0, "the generator is begun afresh, and asks no public denoiser")
        if settings.latent.kind != "none":
            for name, value, why in latent_generator(chosen_method.embeds(settings)):
                yield Pick(f"method.{name}", value, why)
    elif chosen_method.blueprint:
        yield Pick("pretraining.steps", 0, "its network is its own, and asks no public denoiser")
        yield Pick("method.network.kind", "mlp", "its sampler asks the network thousands of times")


# --- time -------------------------------------------------------------------------------------------------------------


def drawing(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Settings of the drawing, where the number of images is not paid for."""
    pixels, chosen_method = settings.latent.kind == "none", METHODS[settings.method.name]
    why = "a class of strokes as drawn varies less than hands do"
    varies = [Pick("generation.vary", VARIED, why)] if not pixels and strokes(settings, declared) else []
    if chosen_method.has_members:
        yield from (Pick(f"generation.{name}", value, why) for name, value, why in drawing_of(settings, declared))
        yield from varies if draws_any_number(settings, declared) else []
        return
    if chosen_method.draw_privately:
        yield Pick("generation.images", *number_of(settings))
        yield from varies if branches(settings) else []
        return
    yield Pick("generation.solver", "dpm++", f"made for few steps: {SAMPLING_STEPS} do")
    yield Pick("generation.steps", SAMPLING_STEPS, "more change little")
    few = pixels and target_epsilon(settings) * declared.facts.records < RICH and len(declared.facts.classes) > 1
    guidance = (1.0 if target_epsilon(settings) < SMALL_EPSILON else 0.5) if few else 0.0
    why = "little is learnt of the classes: guidance helps" if guidance else "without guidance images teach most"
    if not chosen_method.needs_moments:  # whose classes are told apart by their moments alone
        yield Pick("generation.guidance", guidance, why)
    yield from varies


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
    if how.classifiers == "all" and "evaluation.epochs" not in declared.set_fields:
        fewest, most = EPOCHS
        epochs = next((many for many in range(most, fewest, -1) if takes(images, many) <= seconds), fewest)
        why = "as in the papers" if epochs == most else f"more would take beyond {limit}; the papers take {most}"
        yield Pick("evaluation.epochs", epochs, why)
    candidates = [drawn, *(int(drawn * part / 10) for part in range(9, 0, -1))]
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
        + (settings.matching.share > 0)
        + len(settings.fine_tuning.averages) * trains_privately(settings),
        ceilings=int(settings.latent.kind != "none"),
    )


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
