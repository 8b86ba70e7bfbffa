"""Runs side by side: scores over seeds as a table, pictures as one page, scores against epsilon as a plot.

A row is a variant at one target epsilon. Scores were measured against private images, so all of it is INTERNAL.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict
from scipy.stats import t as student

from artifacts.labels import combined
from artifacts.record import RunRecord
from artifacts.report import SCORES, table
from sfumato.drawing import first_of_each
from sfumato.evaluation.extractors import only_extractor
from sfumato.images import ImageSet, enlargement, grid
from sfumato.methods.plan import ANY_NUMBER

SYNTHETIC = "synthetic"
"""The judged set of a run that is compared."""
CONFIDENCE = 0.95
"""Of the intervals over seeds, from Student's distribution."""
PLOTTED = ("frechet", "cnn")
"""Scores that are drawn against epsilon."""
COMPARISON, TABLE, PAGE, PLOT = "comparison.json", "comparison-internal.md", "samples.png", "trade-off-internal.png"


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
    """Images covered by the certificate."""
    evaluations: int
    """Network evaluations per image."""
    scores: dict[str, Spread]
    feature_extractor: str = ""
    """In whose features the distances were measured."""


class Comparison(BaseModel):
    """What was compared; INTERNAL."""

    model_config = ConfigDict(frozen=True)

    name: str
    folder: str
    rows: tuple[Row, ...]


def row_of(variant: str, target: float, records: Sequence[RunRecord]) -> Row:
    """One row from the runs that differ by their seed alone; `BadInput` where two feature extractors measured them."""
    certificates = [record.certificate for record in records]
    first, judged = records[0], [record.metrics[SYNTHETIC] for record in records]
    return Row(
        variant=variant,
        target=target,
        runs=tuple(record.run for record in records),
        label=combined(record.label for record in records),
        claim=max(record.claim.epsilon for record in records),
        certificate=None if None in certificates else max(one.epsilon for one in certificates),
        relation=first.plan.privacy.relation,
        images=first.certificate.images if first.certificate else ANY_NUMBER,
        evaluations=first.plan.evaluations,
        scores={key: spread([scores[key] for scores in judged]) for key in SCORES},
        feature_extractor=only_extractor(scores.get("feature_extractor", "") for scores in judged),
    )


def spread(values: Sequence[float | None]) -> Spread:
    """Mean, and half the width of its interval; nothing of values that are not all there."""
    if None in values:
        return Spread(mean=None, half=None)
    if len(values) < 2:
        return Spread(mean=values[0], half=None)
    wide = student.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Spread(mean=statistics.fmean(values), half=float(wide))


def comparison_table(rows: Sequence[Row]) -> str:
    """The table in Markdown; INTERNAL. Refuses rows from two feature extractors."""
    only_extractor(row.feature_extractor for row in rows)
    head = ["variant", "target", "claim", "certificate", "relation", "covers", "label", "evaluations", *SCORES.values()]
    lines = [
        [
            row.variant,
            f"{row.target:g}",
            f"{row.claim:.3f}",
            "none" if row.certificate is None else f"{row.certificate:.3f}",
            row.relation,
            row.images,
            row.label,
            row.evaluations,
            *(str(row.scores[key]) for key in SCORES),
        ]
        for row in rows
    ]
    return table(head, lines)


def report(comparison: Comparison, captions: Sequence[str]) -> str:
    """What is written beside the pictures; INTERNAL."""
    seeds = max(len(row.runs) for row in comparison.rows)
    return "\n".join(
        [
            f"# {comparison.name}",
            "",
            "> INTERNAL. The scores were measured against private images without noise. Do not share this file.",
            "",
            comparison_table(comparison.rows),
            "",
            f"Over {seeds} seeds: mean and {CONFIDENCE:.0%} interval of the mean (Student). A claim is what a paper's own analysis "
            "says; only a certificate is a promise. `evaluations`: network evaluations per image. Frechet distance and coverage in: "
            f"{comparison.rows[0].feature_extractor or 'features not named'}.",
            "",
            f"![scores against epsilon, by certificate (full) and claim (dashed)]({PLOT})",
            "",
            f"![one image of each class]({PAGE})",
            "",
            "Rows of the picture: " + "; ".join(captions) + ".",
            "",
            "Runs: " + ", ".join(run for row in comparison.rows for run in row.runs),
            "",
        ]
    )


def draw_trade_off(path: Path, rows: Sequence[Row]) -> None:
    """Scores against epsilon, each variant a colour: by certificate as a full line, by claim dashed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(PLOTTED), figsize=(5.2 * len(PLOTTED), 4.4), squeeze=False, layout="constrained"
    )
    for panel, key in zip(panels[0], PLOTTED, strict=True):
        for number, (variant, own) in enumerate(by_variant(rows).items()):
            own = [row for row in own if row.scores[key].mean is not None]
            colour, scores = f"C{number}", [row.scores[key] for row in own]
            certified = [(row.certificate, score) for row, score in zip(own, scores, strict=True) if row.certificate]
            bars = [score.half or 0.0 for _, score in certified]
            panel.errorbar(
                [x for x, _ in certified], [score.mean for _, score in certified], bars,
                color=colour, marker="o", markersize=4, linewidth=1.2, capsize=2, label=variant,
            )  # fmt: skip
            claims = [row.claim for row in own]
            panel.plot(
                claims, [score.mean for score in scores], color=colour, linestyle="--", marker="x", linewidth=0.9
            )
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.set_xlabel("epsilon: certificate (full), claim (dashed)", fontsize=8)
        panel.set_ylabel(SCORES[key], fontsize=9)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def page(samples: Sequence[ImageSet]) -> Image.Image:
    """The first image of each class, one set a row."""
    rows = [first_of_each(images, 1) for images in samples]
    widest = max(map(len, rows))
    every = np.concatenate([np.resize(row, (widest, *row.shape[1:])) for row in rows])
    return grid(every, widest, enlargement(every.shape[2]))


def by_variant(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Rows of each variant, smallest epsilon first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.target):
        found.setdefault(row.variant, []).append(row)
    return found
