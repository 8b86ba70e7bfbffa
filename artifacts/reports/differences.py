"""Differences between the halves of ablation pairs, with their intervals; INTERNAL like the scores themselves.

Both halves of a pair have the same seeds, so that public training, the first noise of every image, and judging draw the same numbers. The
noise of private mechanisms comes from the operating system, afresh in each run, and is part of the spread. Over several seeds the interval
is Student's, of the mean of the paired differences. One seed leaves the spread over held-out images alone: an interval for the scores that
are a share of these, by a bootstrap of both halves image by image, and none for the others.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from scipy.stats import t as student

from artifacts.record import SYNTHETIC, RunRecord
from artifacts.reports.in_short import LESS_IS_BETTER, SCORES
from artifacts.reports.page import PageSection, Picture, Table, Text
from sfumato.evaluation.intervals import paired_interval
from sfumato.evaluation.scores import unpacked

CONFIDENCE = 0.95
"""Confidence of the intervals over seeds, from Student's distribution."""
RESAMPLES = 2000
"""Resamples of the held-out images."""
PAIRS = "differences-internal.png"
DECIMALS = 9
"""Further ones are rounding noise of a difference."""
MARK = "*"
"""Stands after a difference whose interval does not hold zero."""


class AblationPair(BaseModel):
    """Two variants that differ in one part."""

    model_config = ConfigDict(frozen=True)

    part: str
    variant: str
    """With the part."""
    without: str


class PairedDifference(BaseModel):
    """The score with a part minus the score without it."""

    model_config = ConfigDict(frozen=True)

    mean: float | None
    """None where a score could not be measured."""
    low: float | None = None
    high: float | None = None
    over: Literal["seeds", "held-out images", ""] = ""
    """The draws over which the interval would hold; empty without one."""

    @property
    def clear(self) -> bool:
        """Whether the interval does not hold zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        span = f" ({self.low:.3g} to {self.high:.3g})" if self.low is not None else ""
        return f"{round(self.mean, DECIMALS):+.3g}{span}{MARK * self.clear}"


class PairRow(BaseModel):
    """A pair at one target epsilon."""

    model_config = ConfigDict(frozen=True)

    pair: AblationPair
    target: float
    seeds: int
    scores: dict[str, PairedDifference]


def row_of_pair(pair: AblationPair, target: float, records: Sequence[tuple[RunRecord, RunRecord]]) -> PairRow:
    """The differences of a pair from its runs, with and without, one of each for every seed."""
    judged = [(one.metrics[SYNTHETIC], other.metrics[SYNTHETIC]) for one, other in records]
    differences = {key: difference([(one.get(key), other.get(key)) for one, other in judged]) for key in SCORES}
    if len(judged) == 1:
        bits = [scores.get("by_image", {}) for scores in judged[0]]
        differences = {key: _by_image(value, key, bits) for key, value in differences.items()}
    return PairRow(pair=pair, target=target, seeds=len(judged), scores=differences)


def difference(values: Sequence[tuple[float | None, float | None]]) -> PairedDifference:
    """Mean of the differences of paired scores and, for two or more pairs, its Student interval; None where a score is missing."""
    known = [one - other for one, other in values if one is not None and other is not None]
    if len(known) < len(values):
        return PairedDifference(mean=None)
    mean = statistics.fmean(known)
    if len(known) < 2:
        return PairedDifference(mean=mean)
    half = half_width(known)
    return PairedDifference(mean=mean, low=mean - half, high=mean + half, over="seeds")


def half_width(values: Sequence[float]) -> float:
    """Half the width of Student's interval around the mean of two or more values."""
    quantile = student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(quantile * statistics.stdev(values) / math.sqrt(len(values)))


def _by_image(value: PairedDifference, key: str, bits: Sequence[Mapping[str, str]]) -> PairedDifference:
    """The difference of one seed with its interval over the held-out images, where both halves say which of these count."""
    if value.mean is None or not all(key in own for own in bits):
        return value
    rows = [unpacked(own[key]) for own in bits]
    if len(rows[0]) != len(rows[1]):
        return value
    low, high = paired_interval(rows[0], rows[1], resamples=RESAMPLES)
    return value.model_copy(update={"low": low, "high": high, "over": "held-out images"})


def heads(keys: Sequence[str]) -> list[str]:
    """Names of the scores, each with the direction that is better."""
    return [f"{SCORES[key]} {'↓' if key in LESS_IS_BETTER else '↑'}" for key in keys]


def basis(rows: Sequence[PairRow]) -> str:
    """The kind of the intervals, in a sentence."""
    seeds = max(row.seeds for row in rows)
    if seeds == 1:
        return (
            "One seed: intervals are over the held-out images alone, for the scores that are a share of these (bootstrap, image by "
            "image); they hold neither the noise of training nor that of drawing."
        )
    return f"{CONFIDENCE:.0%} t interval over {seeds} paired seeds; {MARK}: it does not hold zero."


SHARED = (
    "With the part minus without it. Both halves of a pair have the same seeds, so public training, the noise that each image begins with, "
    "and judging draw the same numbers; the noise of private mechanisms is never seeded, differs between the halves, and is part of the spread over "
    "seeds. Of twenty differences that are none, one is marked by chance."
)


def section_of(rows: Sequence[PairRow]) -> PageSection:
    """The differences as a section of the page of a comparison."""
    columns = ["part", "with", "without", "target", *heads(list(SCORES))]
    cells: list[list[Any]] = [
        [
            row.pair.part,
            row.pair.variant,
            row.pair.without,
            f"{row.target:g}",
            *(str(row.scores[key]) for key in SCORES),
        ]
        for row in rows
    ]
    shown = "Differences with their intervals; the line is zero, an arrow points to what is better."
    return PageSection(
        "With and without",
        [Table("differences", columns, cells), Text(f"{basis(rows)} {SHARED}"), Picture(PAIRS, shown)],
    )
