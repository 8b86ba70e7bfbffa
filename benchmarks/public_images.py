"""What to take for public images where there are none like the private ones: rendered letters, drawn shapes, both, or whichever private records vote for.

    .venv/bin/python benchmarks/stand_in.py --to stand-in
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/public_images.py [--private digits xrays] [--public glyphs glyphs+shapes] [--picture FILE]
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/public_images.py --private photographs cells --public shapes --clusters 0 auto

`moments` by `--preset auto` at epsilon 10, once for each private set and each public source, in a home of its own (`sfumato-home/public`). The sets
stand for what a person may bring: handwriting (the stand-in digits), a medical image, photographs of things in grey and in colour, stained cells. With `--clusters` each
row is made once for each value of `selection.clusters`. *told from real*: how well a small CNN tells them from real images, .5 is guessing; *readable*: read as their class by
a classifier of real images; *CNN*: what one that learnt from them reads of real test images; both look at private images and are INTERNAL. About a
quarter of an hour a row.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

from PIL import Image
from small_images import stacked
from targets import TARGETS, Target, set_up

from sfumato.errors import BadInput, Refused
from tasks.runtime.environment import CHECKOUT, configure

DIGITS = Target(
    "a sixth of the 60,000 stand-in digits (`benchmarks/stand_in.py`), 28x28",
    ("data.share=0.1667", "data.name=stand-in"),
    1e-5,
)
SETS = {
    "digits": DIGITS,
    "xrays": TARGETS["xrays"],
    "grey photographs": Target(
        "five classes of Tiny ImageNet at 32x32 in grey",
        (*TARGETS["photos"].changes[:2], "data.name=grey-photos", "data.channels=1"),
        TARGETS["photos"].delta,
    ),
    "photographs": Target(
        "five classes of Tiny ImageNet at 32x32 in colour",
        (*TARGETS["photos"].changes[:2], "data.name=photos"),
        TARGETS["photos"].delta,
    ),
    "cells": Target(
        "white blood cells shrunk to 28x28", ("data.private={data}/wbc-64", "data.size=28", "data.name=cells-28"), 1e-5
    ),
}
"""Private sets, by the names of the rows."""
GREY = ("digits", "xrays", "grey photographs")
"""Those of the table without clusters."""
NAMED = {"photographs": "{data}/tiny-imagenet-32"}
"""Public sources beside those that the program knows."""
NOBODY = "none"
"""Where nobody names public images: the default, by which private records vote for letters or shapes."""
SOURCES = ("glyphs", "shapes", "glyphs+shapes", NOBODY)
JUDGED = ("evaluation.classifiers=fast", "evaluation.images=2000", "generation.images=2000", "evaluation.resamples=20")
READ = {"two_sample_auc": "told from real", "readable": "readable", "logistic": "logistic regression", "cnn": "CNN"}
"""Score -> heading."""


def main() -> None:
    """Run all rows, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--private", nargs="+", choices=list(SETS), default=list(GREY), help="which sets (default: the grey ones)"
    )
    parser.add_argument(
        "--public",
        nargs="+",
        default=list(SOURCES),
        help="which public sources, as data.public takes them, photographs (Tiny ImageNet), or none",
    )
    parser.add_argument(
        "--clusters",
        nargs="+",
        default=[],
        metavar="NUMBER",
        help="values of selection.clusters, numbers or auto, each in a row of its own",
    )
    parser.add_argument("--digits", type=Path, default=Path("stand-in"), help="the stand-in digits (default: stand-in)")
    parser.add_argument("--minutes", type=float, default=12.0, help="what the recipe may take for a row (default: 12)")
    parser.add_argument("--epsilon", type=float, default=10.0, help="target epsilon of each run (default: 10)")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    parser.add_argument("--home", type=Path, default=CHECKOUT / "sfumato-home" / "public", help="where runs are kept")
    parser.add_argument("--picture", type=Path, help="where the pictures go, the last two classes of each row")
    arguments = parser.parse_args()
    TARGETS.update(
        SETS, digits=Target(DIGITS.why, (f"data.private={arguments.digits.resolve()}", *DIGITS.changes), DIGITS.delta)
    )
    from flows.synthesize import synthesize
    from tasks.server.embedded import start_server

    rows, pictures = [], []
    for private in arguments.private:
        arguments.target = private
        data = [change for change in set_up(arguments) if not change.startswith("data.public=")]
        folder = configure().data
        if not rows:
            start_server()
        for public, clusters in itertools.product(arguments.public, arguments.clusters or [""]):
            changes = [
                *data,
                *([] if public == NOBODY else [f"data.public={NAMED.get(public, public).format(data=folder)}"]),
                *([f"selection.clusters={clusters}"] if clusters else []),
                f"privacy.epsilon={arguments.epsilon}",
                *JUDGED,
                *arguments.set,
            ]
            try:
                record = synthesize(method="moments", preset="auto", changes=changes)
            except (BadInput, Refused) as error:
                raise SystemExit(f"public_images: {error}") from None
            parted = [f"{record.plan.facts.clusters:,}"] if arguments.clusters else []
            rows.append([private, public, *parted, *cells(record)])
            pictures.append(last_two(Path(record.samples), len(record.plan.facts.classes)))
    heads = [
        "private",
        "public",
        *(["clusters"] if arguments.clusters else []),
        "certified",
        *READ.values(),
        "CNN, real images",
        "readable after the autoencoder",
    ]
    print(f"\n| {' | '.join(heads)} |\n|" + " --- |" * len(heads))
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if arguments.picture:
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        stacked(pictures).save(arguments.picture)


def last_two(samples: Path, classes: int) -> Image.Image:
    """The rows of the last two classes of a picture of samples."""
    whole = Image.open(samples).convert("RGB")
    return whole.crop((0, whole.height * (classes - 2) // classes, whole.width, whole.height))


def cells(record: Any) -> list[str]:
    """What a row says of a run."""
    scores = record.metrics
    read = [f"{scores['synthetic'][name]:.3f}" for name in READ]
    real, ceiling = scores["real training images"]["cnn"], scores["ceiling of the autoencoder"]["readable"]
    return [f"{record.certificate.epsilon:.3f}", *read, f"{real:.3f}", f"{ceiling:.3f}"]


if __name__ == "__main__":
    main()
