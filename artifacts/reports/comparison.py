"""Runs side by side: scores over seeds as a table, pictures as one page.

A row is a variant at one target epsilon. Scores were measured against private images, so all of it is INTERNAL.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict

from artifacts.labels import Label, combined
from artifacts.record import SYNTHETIC, RunRecord
from artifacts.reports.audit import NOTICE
from artifacts.reports.differences import CONFIDENCE, PairRow, half_width, section_of
from artifacts.reports.in_short import SCORES, in_gigabytes
from artifacts.reports.page import Page, PageSection, Picture, Table, Text
from sfumato.drawing import some_of_each
from sfumato.evaluation.extractors import only_extractor
from sfumato.images import ImageSet, enlargement, grid

COMPARISON, REPORT, PICTURES = "comparison.json", "comparison-internal.html", "samples.png"
TRADE_OFF, SWEEP = "trade-off-internal.png", "sweep-internal.png"


EVENLY = "uniform"
"""`generation.classes` where each class has as many images."""
NONE = "none"
"""Stands for a missing certificate, or its number of images."""


class Spread(BaseModel):
    """A score over seeds."""

    model_config = ConfigDict(frozen=True)

    mean: float | None
    """None where the score could not be measured for one of the seeds."""
    half: float | None
    """Half the interval's width; none for a single seed."""

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        return f"{self.mean:.3g}" if self.half is None else f"{self.mean:.3g} ± {self.half:.2g}"


class Row(BaseModel):
    """A variant at one target epsilon, over its seeds."""

    model_config = ConfigDict(frozen=True)

    variant: str
    target: float
    runs: tuple[str, ...]
    label: str
    claim: float
    certificate: float | None
    """The largest among the runs; None where one of them has none."""
    relation: str
    images: int | str
    """Images covered by the certificate; `none` without one."""
    evaluations: int
    """Network evaluations per image."""
    memory: tuple[float, float] = (0.0, 0.0)
    """Largest memory (GB) among the runs, of a process and of a GPU; 0 where not measured."""
    scores: dict[str, Spread]
    classes: str = EVENLY
    """How the number of images of each class is chosen (`generation.classes`)."""
    feature_extractor: str = ""
    """Extractor in whose features the distances were measured."""


class Comparison(BaseModel):
    """A comparison of runs; INTERNAL."""

    model_config = ConfigDict(frozen=True)

    name: str
    folder: str
    rows: tuple[Row, ...]
    axes: Mapping[str, Mapping[str, str]] = {}
    """The settings that a sweep varied: setting -> value as it is shown -> variant; empty where only variants were compared."""
    pairs: tuple[PairRow, ...] = ()
    """Differences with and without a part; empty where no pairs were compared."""

    @property
    def plot(self) -> str:
        """The file that draws the scores: against the values of a sweep, or against epsilon."""
        return SWEEP if self.axes else TRADE_OFF

    @property
    def heads(self) -> tuple[str, ...]:
        """Heads of the columns with the names of a line."""
        return ("setting", "value") if self.axes else ("variant",)


class TableRow(NamedTuple):
    """A row as shown: in a sweep once for each value that it stands for."""

    names: tuple[str, ...]
    row: Row


def lines(comparison: Comparison) -> list[TableRow]:
    """The lines of table and page, in order."""
    if not comparison.axes:
        return [TableRow((row.variant,), row) for row in comparison.rows]
    return [
        TableRow((setting, value), row)
        for setting, values in comparison.axes.items()
        for value, variant in values.items()
        for row in comparison.rows
        if row.variant == variant
    ]


def certified(row: Row) -> str:
    """The certificate as it is shown."""
    return NONE if row.certificate is None else f"{row.certificate:.3f}"


def standing(row: Row) -> str:
    """The permitted use of a row's runs, in a line: label, images covered, and classes of unequal numbers."""
    covered = "no certificate" if row.certificate is None else f"covers {row.images}"
    return ", ".join([row.label, covered, *([] if row.classes == EVENLY else [f"classes {row.classes}"])])


def row_of(variant: str, target: float, records: Sequence[RunRecord]) -> Row:
    """One row from the runs that differ by their seed alone; `BadInput` where two feature extractors measured them."""
    certificates = [record.certificate for record in records if record.certificate]
    first, judged = records[0], [record.metrics[SYNTHETIC] for record in records]
    return Row(
        variant=variant,
        target=target,
        runs=tuple(record.run for record in records),
        label=combined(record.label for record in records),
        claim=max(record.claim.epsilon for record in records),
        certificate=max(one.epsilon for one in certificates) if len(certificates) == len(records) else None,
        relation=first.plan.privacy.relation,
        images=first.certificate.images if first.certificate else NONE,
        evaluations=first.plan.evaluations,
        memory=tuple(max(each) for each in zip(*(record.memory for record in records), strict=True)),
        classes=first.plan.generation.classes,
        scores={key: spread([scores.get(key) for scores in judged]) for key in SCORES},
        feature_extractor=only_extractor(scores.get("feature_extractor", "") for scores in judged),
    )


def spread(values: Sequence[float | None]) -> Spread:
    """Mean, and half the width of its interval; None where a value is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Spread(mean=None, half=None)
    if len(known) < 2:
        return Spread(mean=known[0], half=None)
    return Spread(mean=statistics.fmean(known), half=half_width(known))


def comparison_table(comparison: Comparison) -> Table:
    """The table; INTERNAL. Refuses rows from two feature extractors."""
    only_extractor(row.feature_extractor for row in comparison.rows)
    head = [
        "target",
        "claim",
        "certificate",
        "relation",
        "covers",
        "label",
        "classes",
        "evaluations",
        "memory (GB)",
        *SCORES.values(),
    ]
    cells = [
        [
            *names,
            f"{row.target:g}",
            f"{row.claim:.3f}",
            certified(row),
            row.relation,
            row.images,
            row.label,
            row.classes,
            row.evaluations,
            in_gigabytes(*row.memory),
            *(str(row.scores[key]) for key in SCORES),
        ]
        for names, row in lines(comparison)
    ]
    return Table("comparison", [*comparison.heads, *head], cells)


def comparison_page(comparison: Comparison) -> Page:
    """The page of a comparison; INTERNAL."""
    seeds = max(len(row.runs) for row in comparison.rows)
    drawn = "each value" if comparison.axes else "epsilon, by certificate (full) and claim (dashed)"
    captions = "; ".join(f"{' '.join(names)} at {row.target:g}" for names, row in lines(comparison))
    explained = (
        f"Over {seeds} seed{'s' * (seeds > 1)}: mean and {CONFIDENCE:.0%} interval of the mean (Student). A claim is what a paper's own "
        "analysis says; only a certificate is a promise. evaluations: network evaluations per image; memory: the largest of a stage. Frechet distance and coverage in: "
        f"{comparison.rows[0].feature_extractor or 'features not named'}."
    )
    sections = [
        *([section_of(comparison.pairs)] if comparison.pairs else []),
        PageSection("Scores against private images", [comparison_table(comparison), Text(explained)]),
        PageSection("Trade-off", [Picture(comparison.plot, f"Scores against {drawn}.")]),
        PageSection("Pictures", [Picture(PICTURES, f"One image of each class. Rows of the picture: {captions}.")]),
        PageSection("Runs", [Text(", ".join(run for row in comparison.rows for run in row.runs))]),
    ]
    return Page(comparison.name, Label.INTERNAL, NOTICE, sections)


def pictures(samples: Sequence[ImageSet]) -> Image.Image:
    """The first image of each class, one set a row."""
    rows = [some_of_each(images, 1) for images in samples]
    widest = max(map(len, rows))
    every = np.concatenate([np.resize(row, (widest, *row.shape[1:])) for row in rows])
    return grid(every, widest, enlargement(every.shape[2]))
