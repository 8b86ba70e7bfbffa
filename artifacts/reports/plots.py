"""The pictures of a report: losses of public training, epsilon against delta, and (INTERNAL) scores against epsilon."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.record import SYNTHETIC, RunRecord
from artifacts.reports.comparison_plots import PLOTTED, epsilon_axis
from artifacts.reports.in_short import SCORES

DOTS = 110
GREEN, RED = "#2e7d32", "#b3261e"
DASHED = ("#8a8f98", "#b26a00", "#1b1b1f", "#2e7d32", "#7b3fa0", "#b3261e")
"""Colours of the sets that a run is judged beside."""
MOST_RUNS = 60
"""Earlier runs in the picture of scores, the latest ones."""


def draw_curves(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Losses of the public stages, each in its own panel."""
    _write(path, ("curves", dict(curves)), lambda: _curves(curves))


def _curves(curves: Mapping[str, Sequence[float]]) -> Any:
    figure, panels = _panels(max(1, len(curves)), width=4.2, height=2.8)
    for panel, (name, values) in zip(panels, curves.items(), strict=False):
        panel.plot(values, linewidth=1.2)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("training progress", fontsize=8)
        panel.set_ylabel("loss", fontsize=8)
        panel.set_xticks([])
    return figure


def draw_privacy(path: Path, record: RunRecord) -> None:
    """Epsilon of the spends over delta, the certificate on that line, and the paper's claim beside it."""
    shown = (record.certificate, record.claim, record.curve, record.plan.privacy.delta)
    _write(path, ("privacy", *shown), lambda: _privacy(record))


def _privacy(record: RunRecord) -> Any:
    certificate, claim = record.certificate, record.claim
    assert certificate  # without one there is no curve
    figure, (panel,) = _panels(1, width=6.4, height=3.4)
    panel.plot(*zip(*record.curve, strict=True), color=GREEN, linewidth=1.5, label="the same spends")
    own = f"certificate: {certificate.shown_epsilon}"
    panel.plot(certificate.delta, certificate.epsilon, "o", color=GREEN, markersize=8, label=own)
    claimed = f"claim of the paper: {claim.epsilon:.3f}"
    panel.plot(record.plan.privacy.delta, claim.epsilon, "x", color=RED, markersize=8, markeredgewidth=2, label=claimed)
    panel.set_xscale("log")
    if max(claim.epsilon, certificate.epsilon) > WIDE * min(claim.epsilon, certificate.epsilon) > 0:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(_as_number)
        panel.yaxis.set_minor_formatter(_as_number)
    else:
        panel.set_ylim(bottom=0)
    panel.set_xlabel(f"delta ({certificate.relation})", fontsize=9)
    panel.set_ylabel("epsilon", fontsize=9)
    panel.legend(fontsize=8, frameon=False)
    return figure


WIDE = 5.0
"""A claim so many times away from the certificate is drawn on a logarithmic axis."""


def draw_trade_off(path: Path, record: RunRecord, others: Iterable[RunRecord] = ()) -> None:
    """Scores of this run and of `others` on the same images against epsilon, and of the sets it was judged beside; INTERNAL.

    Distances in other features than this run's are left out.
    """
    known = [other for other in others if _alike(record, other)][-MOST_RUNS:]
    points = [(one.method, one.certificate, one.claim, one.metrics[SYNTHETIC]) for one in known]
    own = (record.method, record.certificate, record.claim, record.metrics)
    _write(path, ("trade-off", points, own), lambda: _trade_off(record, known))


def _trade_off(record: RunRecord, known: Sequence[RunRecord]) -> Any:
    judged = [record.metrics[SYNTHETIC], *(other.metrics[SYNTHETIC] for other in known)]
    keys = [key for key in PLOTTED if any(row.get(key) is not None for row in judged)] or [PLOTTED[0]]
    figure, panels = _panels(len(keys), width=4.6, height=3.6)
    for panel, key in zip(panels, keys, strict=True):
        beside = [(name, row) for name, row in record.metrics.items() if name != SYNTHETIC]
        for number, (name, row) in enumerate(beside):
            if row.get(key) is not None:
                panel.axhline(row[key], color=DASHED[number % len(DASHED)], linestyle="--", linewidth=1.4, label=name)
        methods = list(dict.fromkeys(other.method for other in (record, *known)))
        for other in (*known, record):
            _point(panel, other, key, f"C{methods.index(other.method)}", filled=other is record)
        epsilon_axis(panel, [_epsilon(other) for other in (*known, record)])
        panel.set_xlabel("epsilon", fontsize=9)
        panel.set_ylabel(SCORES[key], fontsize=9)
    named: dict[str, Any] = {}
    for panel in panels:
        named |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", fontsize=8, frameon=False, ncols=3)
    return figure


def _alike(record: RunRecord, other: RunRecord) -> bool:
    same = other.settings["data"]["name"] == record.settings["data"]["name"] and other.run != record.run
    judged, own = other.metrics.get(SYNTHETIC, {}), record.metrics[SYNTHETIC]
    return same and bool(judged) and judged.get("feature_extractor") == own.get("feature_extractor")


def _point(panel: Any, record: RunRecord, key: str, colour: str, *, filled: bool) -> None:
    row = record.metrics[SYNTHETIC]
    at, marker = _epsilon(record), "o" if record.certificate else "x"
    if row.get(key) is None or at == math.inf:
        return
    bars = row.get("intervals", {}).get(key) if filled else None
    reach = [[max(0.0, row[key] - bars[0])], [max(0.0, bars[1] - row[key])]] if bars else None
    inner = {} if marker == "x" else {"markerfacecolor": colour if filled else "none"}
    size = 9 if filled else 5
    panel.errorbar(
        at, row[key], reach, fmt=marker, color=colour, markersize=size, capsize=3, label=record.method, **inner
    )


def _epsilon(record: RunRecord) -> float:
    """What is certified, else what is claimed."""
    return record.certificate.epsilon if record.certificate else record.claim.epsilon


def _as_number(value: float, _: int) -> str:
    return f"{value:g}"


def _panels(columns: int, *, width: float, height: float) -> tuple[Any, Sequence[Any]]:
    """A figure and a row of panels, each of this size in inches."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, columns, figsize=(width * columns, height), squeeze=False, layout="constrained")
    return figure, panels[0]


def _write(path: Path, shown: object, draw: Callable[[], Any]) -> None:
    """Write a picture of what is `shown`; one that this process has drawn is not drawn again."""
    name = repr(shown)
    if name not in _DRAWN:
        _DRAWN[name] = _picture(draw())
        while len(_DRAWN) > MOST_DRAWN:
            _DRAWN.pop(next(iter(_DRAWN)))
    path.write_bytes(_DRAWN[name])


_DRAWN: dict[str, bytes] = {}
MOST_DRAWN = 16
"""Pictures that a process remembers: a run writes the same few into its folder, its report, what it publishes and MLflow."""


def _picture(figure: Any) -> bytes:
    """The figure as a PNG file."""
    import matplotlib.pyplot as plt

    for panel in figure.axes:
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, dpi=DOTS, format="png")
    plt.close(figure)
    return file.getvalue()
