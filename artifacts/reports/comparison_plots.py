"""The scores of a comparison as a picture: against epsilon, or, of a sweep, against the values that it tried.

Scores were measured against private images, so the pictures are INTERNAL.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from artifacts.reports.comparison import Comparison, Row
from artifacts.reports.differences import PAIRS, PairRow, heads
from artifacts.reports.in_short import SCORES

PLOTTED = ("frechet", "cnn")
"""Scores that are drawn, each with panels of its own."""
DOTS = 120
LEGEND_INCHES = 5.2
"""Width of a column of the legend: a variant's name may be long."""
WORDS = {"rotation": 25, "ha": "right"}
"""Style of the names of non-numeric values below a panel."""
LABEL_LETTERS = 44
"""Most letters in a line of a pair's name."""
WIDE = 8.0
"""Positive values are drawn on a logarithmic axis where the largest is as many times the smallest."""


def draw(folder: Path, comparison: Comparison) -> None:
    """Write the pictures that the report of a comparison shows into its folder."""
    if comparison.pairs:
        draw_pairs(folder / PAIRS, comparison.pairs)
    draw_sweep(folder / comparison.plot, comparison) if comparison.axes else draw_trade_off(
        folder / comparison.plot, comparison.rows
    )


def draw_trade_off(path: Path, rows: Sequence[Row]) -> None:
    """Scores against epsilon, each variant a colour: by certificate as a full line, by claim dashed."""
    figure, panels = _panels(1, len(PLOTTED), width=5.2, height=4.4, share="none")
    for panel, key in zip(panels[0], PLOTTED, strict=True):
        for number, (variant, own) in enumerate(by_variant(rows).items()):
            own, colour = [row for row in own if row.scores[key].mean is not None], f"C{number}"
            certified = [(row.certificate, row) for row in own if row.certificate]
            _bars(panel, certified, key, colour, line="-", label=variant)
            claims, means = [row.claim for row in own], [row.scores[key].mean for row in own]
            panel.plot(claims, means, color=colour, linestyle="--", marker="x", linewidth=0.9)
        epsilon_axis(panel, [one for row in rows for one in (row.certificate, row.claim) if one is not None])
        panel.set_xlabel("epsilon: certificate (full), claim (dashed)", fontsize=8)
        panel.set_ylabel(SCORES[key], fontsize=9)
    _save(path, figure, panels)


def epsilon_axis(panel: Any, values: Sequence[float]) -> None:
    """A logarithmic axis of epsilons, marked at the values themselves as far as their marks do not touch."""
    panel.set_xscale("log")
    panel.set_xticks([], minor=True)
    marked = list[float]()
    for value in sorted({float(f"{one:.2g}") for one in values if 0 < one < math.inf}):
        if not marked or value >= APART * marked[-1]:
            marked.append(value)
    if marked:
        panel.set_xlim(marked[0] / 2, 2 * max(one for one in values if one < math.inf))
        panel.set_xticks(marked, [f"{one:g}" for one in marked])


APART = 1.6
"""The least ratio between two marked epsilons."""


def draw_sweep(path: Path, comparison: Comparison) -> None:
    """Scores against the values of each setting, a panel each and a colour per target epsilon; bars are intervals over seeds.

    Numbers lie on an axis, joined by lines; words stand side by side. A run without certificate is a cross.
    """
    figure, panels = _panels(len(PLOTTED), len(comparison.axes), width=2.5, height=2.6, share="row")
    for line, key in zip(panels, PLOTTED, strict=True):
        line[0].set_ylabel(SCORES[key], fontsize=9)
        for panel, (setting, values) in zip(line, comparison.axes.items(), strict=True):
            _draw_values(panel, values, comparison.rows, key)
            panel.set_xlabel(setting, fontsize=8)
    _save(path, figure, panels)


def draw_pairs(path: Path, rows: Sequence[PairRow]) -> None:
    """Differences with their intervals, a panel for each score and a line for each pair; full where the interval does not hold zero."""
    keys = [key for key in SCORES if any(row.scores[key].mean is not None for row in rows)]
    figure, panels = _panels(1, len(keys), width=2.4, height=1.2 + 0.5 * len(rows), share="row")
    targets = sorted({row.target for row in rows})
    for panel, key, head in zip(panels[0], keys, heads(keys), strict=True):
        panel.axvline(0, color="0.5", linewidth=0.9)
        for place, row in enumerate(rows):
            value, colour = row.scores[key], f"C{targets.index(row.target)}"
            if value.mean is not None:
                sides = (
                    None if value.low is None or value.high is None
                    else [[value.mean - value.low], [value.high - value.mean]]
                )  # fmt: skip
                panel.errorbar(
                    [value.mean], [place], xerr=sides, color=colour, marker="o", markersize=5, linewidth=1.2, capsize=2,
                    linestyle="none", markerfacecolor=colour if value.clear else "white", label=f"epsilon {row.target:g}",
                )  # fmt: skip
        panel.set_xlabel(head, fontsize=8)
    names = [textwrap.fill(f"{row.pair.part}: {row.pair.variant}", LABEL_LETTERS) for row in rows]
    panels[0, 0].set_yticks(range(len(rows)), names)
    panels[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    _save(path, figure, panels)


def by_variant(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Rows of each variant, smallest epsilon first."""
    grouped: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.target):
        grouped.setdefault(row.variant, []).append(row)
    return grouped


def _numbers(values: Iterable[str]) -> list[float]:
    """The values as numbers; none where one of them is a word."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return []


def _draw_values(panel: Any, values: Mapping[str, str], rows: Sequence[Row], key: str) -> None:
    numbers = _numbers(values)
    places = numbers or list(range(len(values)))
    for number, target in enumerate(sorted({row.target for row in rows})):
        own = {row.variant: row for row in rows if row.target == target and row.scores[key].mean is not None}
        at = sorted((place, variant) for place, variant in zip(places, values.values(), strict=True) if variant in own)
        for certified, marker in ((True, "o"), (False, "x")):
            points = [(place, own[variant]) for place, variant in at if bool(own[variant].certificate) == certified]
            label = f"epsilon {target:g}" + ("" if certified else ", no certificate")
            line = "-" if numbers and certified else "none"
            if points:
                _bars(panel, points, key, f"C{number}", line=line, label=label, marker=marker)
    if numbers and max(numbers) >= WIDE * min(numbers) > 0:
        panel.set_xscale("log")
    panel.set_xticks(places, list(values), **({} if numbers else WORDS))
    panel.set_xticks([], minor=True)
    panel.margins(x=0.1 if numbers else 0.2)


def _bars(
    panel: Any, points: Sequence[tuple[float, Row]], key: str, colour: str, *, line: str, label: str, marker: str = "o"
) -> None:
    """Bars of one score over the points of a line.

    Many parameters: each says how matplotlib draws one line.
    """
    scores = [row.scores[key] for _, row in points]
    bars = [score.half or 0.0 for score in scores] if any(score.half for score in scores) else None
    panel.errorbar(
        [place for place, _ in points], [score.mean for score in scores], bars,
        color=colour, linestyle=line, marker=marker, markersize=5, linewidth=1.2, capsize=2, label=label,
    )  # fmt: skip


def _panels(rows: int, columns: int, *, width: float, height: float, share: Literal["row", "none"]) -> tuple[Any, Any]:
    """A figure and its panels `[rows, columns]`, each of this size in inches; those of a row may share one scale."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (width * columns, height * rows)
    return plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=share, layout="constrained")


def _save(path: Path, figure: Any, panels: Any) -> None:
    import matplotlib.pyplot as plt

    legend: dict[str, Any] = {}
    for panel in panels.flat:
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        legend = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True)) | legend
    columns = max(1, int(figure.get_figwidth() / LEGEND_INCHES))
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", fontsize=8, frameon=False, ncols=columns)
    figure.savefig(path, dpi=DOTS)
    plt.close(figure)
