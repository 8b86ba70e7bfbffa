"""The rows that the recipes are judged by: real private sets, one command a row, figures and a picture of each.

    .venv/bin/python benchmarks/targets.py mnist --epsilon 10 [--minutes 60] [--seed 0] [--method dp-sgd]
    .venv/bin/python benchmarks/targets.py xrays --epsilon 3
    .venv/bin/python benchmarks/targets.py photos --epsilon 10

Runs `sfumato run METHOD --preset auto` on the data of `SFUMATO_DATA` in a home of its own (`sfumato-home/targets`), where public
stages are found again by the next row, and prints what came of it: the certificate, the minutes up to the images, scores against
real test images (INTERNAL), and the ceilings beside them. `--to` takes the picture of the samples. Nothing is tuned here: the recipe
follows from declared facts, and was chosen on public or stand-in data.
"""

import argparse
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput, Refused
from tasks.runtime.environment import CHECKOUT, configure

UNTIL_IMAGES = "generate"
"""The stage that ends the minutes; what judges comes after it."""
SHOWN = {
    "images": "images",
    "readable": "readable",
    "paper_cnn": "papers' CNN",
    "resnet9": "ResNet-9",
    "cnn": "small CNN",
    "cnn_balanced": "balanced",
    "cnn_auc": "ROC AUC",
    "two_sample_auc": "two-sample AUC",
    "frechet": "Frechet",
    "frechet_backbone": "in the backbone's features",
    "frechet_latents": "in latents",
    "density": "density",
    "coverage": "coverage",
}
"""Score -> heading."""


@dataclass(frozen=True)
class Target:
    """A private set, its public side, and the terms it is judged in."""

    why: str
    changes: tuple[str, ...]
    delta: float


JUDGED = (
    "evaluation.classifiers=all",
    "evaluation.images=30000",
    "evaluation.epochs=50",
    "evaluation.baseline=false",
    "evaluation.scikit_images=200",
)
"""As the papers judge, however long it takes: the minutes end with the images."""
TARGETS = {
    "mnist": Target(
        "MNIST at 28x28; public are Omniglot and rendered letters, no digit of any source",
        ("data.private=mnist", "data.public=omniglot+glyphs", "data.glyphs_per_class=1500"),
        1e-5,
    ),
    "xrays": Target(
        "chest X-rays of children (pneumoniamnist), public Tiny ImageNet in grey",
        ("data.private={data}/pneumoniamnist/pneumoniamnist.npz", "data.public={data}/tiny-imagenet-32"),
        1e-4,
    ),
    "photos": Target(
        "five classes of Tiny ImageNet at 32x32 in colour, the other 195 public",
        (
            "data.private={data}/tiny-imagenet-32",
            "data.private_classes=[0, 40, 80, 120, 160]",
            "data.public={data}/tiny-imagenet-32",
            "data.public_without=[0, 40, 80, 120, 160]",
            "data.name=photos",
        ),
        1e-4,
    ),
    "cells": Target(
        "white blood cells at 64x64, each with all photographs of one cell, public Tiny ImageNet",
        ("data.private={data}/wbc-64", "data.public={data}/tiny-imagenet-32"),
        1e-3,
    ),
}


def main() -> None:
    """Run one row and print it."""
    arguments = options()
    changes = settings_of(arguments)
    from flows.synthesize import synthesize
    from tasks.server.embedded import start_server

    start_server()
    try:
        record = synthesize(method=arguments.method, preset="auto", changes=changes, go_on=arguments.go_on)
    except (BadInput, Refused) as error:
        raise SystemExit(f"targets: {error}") from None
    show(record)
    if arguments.to:
        arguments.to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(record.samples, arguments.to)


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What a command asks for; by default this process's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=list(TARGETS), help="which private set")
    parser.add_argument("--method", default="dp-sgd", help="method (default: dp-sgd)")
    parser.add_argument("--epsilon", type=float, default=10.0, help="target epsilon, inf for none (default: 10)")
    parser.add_argument("--minutes", type=float, default=60.0, help="what the recipe may take (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the public stages (default: 0)")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    parser.add_argument(
        "--go-on", action="store_true", help="go on after a rehearsal that failed, which the record says"
    )
    parser.add_argument("--home", type=Path, default=CHECKOUT / "sfumato-home" / "targets", help="where runs are kept")
    parser.add_argument("--to", type=Path, help="copy the picture of the samples there")
    return parser.parse_args(words)


def settings_of(arguments: argparse.Namespace) -> list[str]:
    """The settings of a row, in the home that was asked for."""
    changes = [*set_up(arguments), f"privacy.epsilon={arguments.epsilon}", f"seed={arguments.seed}", *JUDGED]
    changes += ["privacy.reason=what the noise costs"] if arguments.epsilon == math.inf else []
    return changes + arguments.set


def set_up(arguments: argparse.Namespace) -> list[str]:
    """Turn to the home that was asked for; the settings of a target's data, its delta and the minutes."""
    os.environ["SFUMATO_HOME"] = str(arguments.home.resolve())
    place = configure()
    if arguments.target not in TARGETS:
        return []
    target = TARGETS[arguments.target]
    data = [change.format(data=place.data) for change in target.changes]
    return [*data, f"privacy.delta={target.delta}", f"recipe.minutes={arguments.minutes}"]


def show(record: Any) -> None:
    """The certificate, the minutes, and a row of scores for each judged set."""
    names = [stage.name for stage in record.stages]
    last = max(index for index, name in enumerate(names) if name.startswith(UNTIL_IMAGES) and "(" not in name)
    minutes = sum(stage.made_in for stage in record.stages[: last + 1]) / 60
    print(f"\n{record.run}: {record.certificate.sentence() if record.certificate else 'no certificate'}")
    print(f"minutes up to the images, as each stage took when it was made: {minutes:.1f}\n")
    print("| set | " + " | ".join(SHOWN.values()) + " |\n|" + " --- |" * (len(SHOWN) + 1))
    for name, row in record.metrics.items():
        print(f"| {name} | " + " | ".join(_cell(row, score) for score in SHOWN) + " |")


def _cell(row: dict[str, Any], score: str) -> str:
    value = row.get(score)
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    span = (row.get("intervals") or {}).get(score)
    low_high = f" ({span['low']:.3f} to {span['high']:.3f})" if isinstance(span, dict) and "low" in span else ""
    return f"{value:.3f}{low_high}"


if __name__ == "__main__":
    main()
