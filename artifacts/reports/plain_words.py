"""The meaning of a run's scores, in sentences for readers who look at its pictures; INTERNAL, as the scores are."""

from collections.abc import Mapping
from typing import Any

from artifacts.record import SYNTHETIC
from sfumato.privacy.auditing.looks import CEILING, REAL

Row = Mapping[str, Any]
"""The scores of a judged set, by name; those of earlier versions lack some."""
NO_VERDICT = "No number here is a verdict by itself: grey blobs have taught a classifier better than real images did. Look at the pictures."


def plain_words(metrics: Mapping[str, Row]) -> list[str]:
    """A sentence for each measured quantity, from scores by judged set."""
    own, real, ceiling = (metrics.get(name, {}) for name in (SYNTHETIC, REAL, CEILING))
    return [
        sentence
        for sentence in (_separated(own, real), _use(own, real), _read(own), _near(own), _cost(ceiling))
        if sentence
    ] + [NO_VERDICT]


def _separated(own: Row, real: Row) -> str:
    if own.get("two_sample_auc") is None:
        return ""
    floor = (
        f" (real training images beside held-out ones: {real['two_sample_auc']:.0%})"
        if real.get("two_sample_auc") is not None
        else ""
    )
    return (
        f"Shown a synthetic and a real image, a small CNN picks the synthetic one {own['two_sample_auc']:.0%} of the time; guessing "
        f"gives 50%{floor}."
    )


def _use(own: Row, real: Row) -> str:
    if own.get("cnn") is None:
        return ""
    best = f"; after real ones {_taught(real)}" if real.get("cnn") is not None else ""
    return f"After learning from the synthetic images, a small CNN names the class of {_taught(own)} of held-out real images{best}."


def _taught(row: Row) -> str:
    balanced = row.get("cnn_balanced")
    return f"{row['cnn']:.1%}" + (f" ({balanced:.1%} as the mean over classes)" if balanced is not None else "")


def _read(own: Row) -> str:
    if own.get("readable") is None:
        return ""
    judge = f"; of held-out real ones {own['judge']:.1%}" if own.get("judge") is not None else ""
    return f"A small CNN that learnt from the real images reads {own['readable']:.1%} of the synthetic ones as they were meant{judge}."


def _near(own: Row) -> str:
    if own.get("precision") is None or own.get("coverage") is None:
        return ""
    return (
        f"Of the synthetic images {own['precision']:.0%} lie among real ones, and of the real ones {own['coverage']:.0%} have a synthetic "
        "one near, in the features that the scores name."
    )


def _cost(ceiling: Row) -> str:
    if ceiling.get("readable") is None:
        return ""
    separated = (
        f"; a small CNN tells them from others {ceiling['two_sample_auc']:.0%} of the time"
        if ceiling.get("two_sample_auc") is not None
        else ""
    )
    return f"Of held-out real images that went through the autoencoder and back {ceiling['readable']:.1%} are still read{separated}."
