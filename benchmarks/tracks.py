"""Tracks: on one private set, all methods, or those that may be worth it, at several budgets, one seed: a table, a picture, a plot.

    .venv/bin/python benchmarks/tracks.py digits                       # ten methods at epsilon 10, 1 and .2
    .venv/bin/python benchmarks/tracks.py xrays --minutes 20           # rapid, dp-sgd and moments at 10 and 1

Sets, public sides and deltas are those of `benchmarks/targets.py`; the recipe follows from them and the minutes, and was chosen on public or
stand-in data. A track is one `sfumato compare`: what was made stays in its home, and a track that was interrupted goes on where it was. Scores
looked at private images: INTERNAL. `--to` takes the picture of the samples and the plot of scores against epsilon.
"""

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path

from targets import TARGETS, set_up

from artifacts.reports.comparison import PICTURES, Comparison, certified
from artifacts.reports.in_short import SCORES
from sfumato.errors import BadInput, Refused
from tasks.runtime.environment import CHECKOUT

JUDGED = ("evaluation.classifiers=fast", "evaluation.baseline=false")
"""The quick classifiers: a track compares methods, and `benchmarks/targets.py` measures as the papers do."""


@dataclass(frozen=True)
class Track:
    """A private set, and what runs on it."""

    why: str
    methods: tuple[str, ...]
    epsilons: tuple[float, ...]
    images: int
    """Images that are judged, at most."""


FEW = ("rapid", "dp-sgd", "moments")
ANY_NUMBER = ("rapid", "dp-sgd", "dp-promise", "moments", "private-evolution", "dp-merf", "dp-mepf")
"""Methods whose certificate covers any number of images."""
TRACKS = {
    "digits": Track(
        "scikit-learn's digits at 8x8, public are rendered letters",
        (
            "rapid method.vote_noise=20",
            *ANY_NUMBER[1:],
            "dp-ensemble generation.images=100",
            "empirical-denoiser generation.images=100",
            "dppm preset=dppm-certified method.vote_noise=20",
        ),
        (10, 1, 0.2),
        2000,
    ),
    "mnist": Track(TARGETS["mnist"].why, (*ANY_NUMBER, "dp-ensemble", "empirical-denoiser"), (10, 1, 0.2), 10_000),
    "xrays": Track(TARGETS["xrays"].why, FEW, (10, 1), 4000),
    "photos": Track(TARGETS["photos"].why, FEW, (10, 1), 5000),
    "cells": Track(TARGETS["cells"].why, FEW, (10, 1), 2000),
}


def main() -> None:
    """Run one track and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="track", choices=list(TRACKS), help="which private set")
    parser.add_argument("--minutes", type=float, default=15.0, help="what the recipe of a run may take (default: 15)")
    parser.add_argument("--methods", nargs="+", help="these in place of the track's own")
    parser.add_argument("--epsilons", type=float, nargs="+", help="these in place of the track's own")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    parser.add_argument("--go-on", action="store_true", help="go on after a rehearsal that failed, which reports say")
    parser.add_argument("--home", type=Path, default=CHECKOUT / "sfumato-home" / "tracks", help="where runs are kept")
    parser.add_argument("--to", type=Path, help="copy the picture and the plot into this folder")
    arguments = parser.parse_args()
    track = TRACKS[arguments.target]
    changes = [*set_up(arguments), *JUDGED, f"evaluation.images={track.images}", *arguments.set]
    from flows.compare import compare
    from tasks.server.embedded import start_server

    start_server()
    try:
        comparison = compare(
            variants=arguments.methods or list(track.methods),
            preset="" if arguments.target == "digits" else "auto",
            epsilons=arguments.epsilons or list(track.epsilons),
            changes=changes,
            title=f"track-{arguments.target}",
            go_on=arguments.go_on,
        )
    except (BadInput, Refused) as error:
        raise SystemExit(f"tracks: {error}") from None
    show(comparison)
    if arguments.to:
        arguments.to.mkdir(parents=True, exist_ok=True)
        for file, name in ((PICTURES, "samples"), (comparison.plot, "plot")):
            shutil.copyfile(Path(comparison.folder) / file, arguments.to / f"track-{arguments.target}-{name}.png")


def show(comparison: Comparison) -> None:
    """A row for each method and budget."""
    print("| method | epsilon asked | claim | certified | covers | " + " | ".join(SCORES.values()) + " |")
    print("|" + " --- |" * (5 + len(SCORES)))
    for row in comparison.rows:
        scores = [str(row.scores[name]) if name in row.scores else "-" for name in SCORES]
        print(
            f"| {row.variant} | {row.target:g} | {row.claim:.4g} | {certified(row)} | {row.images} | "
            + " | ".join(scores)
            + " |"
        )


if __name__ == "__main__":
    main()
