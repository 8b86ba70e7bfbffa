"""What the recipe chooses for private steps: records in one, which layers bear noise, and the rates.

Not covered: the number of steps, which is a matter of time (`sfumato.recipe.auto`).
"""

import math
from collections.abc import Iterator

from sfumato.recipe.denoiser import over_positions
from sfumato.recipe.picks import Pick, placed
from sfumato.recipe.stage_costs import USUAL_EPSILON, Declared, stage_costs, target_epsilon, trains_privately
from sfumato.recipe.stage_steps import SHARES, fewest_of
from sfumato.settings import Settings

RICH, SOME, POOR = 200_000, 90_000, 5_000
"""Epsilon times records: above the first all layers of an MLP may bear noise; below the second more steps add more noise than they teach; below the third
the class rows alone are trained."""
FEW_STEPS, ALIGNED_RATE = 60, 0.01
"""Private steps below the second, and the rate of class rows there after class moments: of a stand-in for X-rays the Frechet distance is .40 without private
steps, .46 at this rate and .86 at .05 (`benchmarks/far_steps.py`)."""
RATE_OF_ROWS, RATE_OF_ALL, AVERAGE_OF_ALL = 0.05, 8e-4, 0.98
"""Rate of class rows that are trained alone; and of the rest where all layers are trained, with the decay of their average."""
GENTLE_RATE = 2e-4
"""Rate of all but the class rows, which take `ALIGNED_RATE`, after class moments: of `rapid`'s images of the stand-in for MNIST at epsilon 10 .984 are then read
as the class drawn for and Frechet is 11.9, at the higher rates .979 and 12.3; at 1 a CNN learns .932, .924 (`benchmarks/results/standin-cells.json`)."""
DRAWS = (2, 4)
"""Noised copies of a record above and below the second. Averaged before clipping they lengthen what a step learns
(`benchmarks/private_steps.py signal`); at the same cost images taught no more on a stand-in, and no less (docs/results/mnist.md)."""
BATCHES = (16, 8192)
"""Smallest and largest expected number of records in a step."""
PART_OF_ALL = 4
"""A step samples about one in this many of the records, at most."""


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


def private_rates(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Clipping and rates, by what is trained."""
    groups = settings.fine_tuning.trainable
    if not trains_privately(settings):
        return
    if len(groups) > 1:
        yield Pick("fine_tuning.clipping", "per_group", "so that the class rows have a share of the clip to themselves")
    everything, rows_alone = "rest" in groups, groups == ("rows",)
    if everything:
        yield Pick("fine_tuning.ema_decay", AVERAGE_OF_ALL, "all layers at once")
    if settings.alignment.kind == "moments" and (forgets(settings, declared) or not rows_alone):
        why = "aligned classes leave little to learn, and a higher rate is noise"
        yield Pick("fine_tuning.rate_rows", ALIGNED_RATE, why)
        if not rows_alone:
            yield Pick("fine_tuning.rate_other", GENTLE_RATE, why)
    elif rows_alone:
        yield Pick("fine_tuning.rate_rows", RATE_OF_ROWS, "class rows alone bear a higher rate")
    elif everything:
        yield Pick("fine_tuning.rate_other", RATE_OF_ALL, "all layers at once; 3e-3 climbs in the middle")


def forgets(settings: Settings, declared: Declared) -> bool:
    """Whether private steps on more than the class rows would harm the public model more than they help, once its images are aligned.

    A U-Net or a transformer has forgotten more than it learnt wherever it was tried: on a stand-in for X-rays (`benchmarks/far_steps.py`), and on
    10,000 cells in colour, which came out as noise (docs/results/tracks.md). Many records and the many steps of a GPU were never tried.
    """
    tried = settings.recipe.device == "cpu" or target_epsilon(settings) * declared.facts.records < RICH
    return tried and over_positions(settings, declared)
