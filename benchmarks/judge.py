"""How well a paid judge reads private images, against epsilon and the number of public directions that it sees.

    .venv/bin/python benchmarks/judge.py                    # tuned on this: scikit-learn's digits, warped and redrawn
    .venv/bin/python benchmarks/judge.py --data mnist       # judged on this, never tuned on it

Public: rendered letters and Omniglot at 28x28, on which the backbone is trained (about 400 CPU seconds; `--backbone FOLDER` keeps it, and finds it
again). Each head has noise of its own from the system. Prints accuracy on test images in percent, with the seconds that a head takes; delta 1e-5.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from stand_in import drawn
from torch import Tensor

from artifacts import serialization
from sfumato import config, sources
from sfumato.backbone import Backbone, train_backbone
from sfumato.images import to_unit
from sfumato.judge import unit
from sfumato.privacy import noise
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.engine.linear_head import train_head
from sfumato.privacy.units import single_records

SIDE, CLASSES, DELTA = 28, 10, 1e-5
LETTERS = 1500
"""Renderings of each letter."""
STAND_IN = {"train": 60_000, "test": 10_000}
EPSILONS = (math.inf, 10.0, 1.0, 0.2)
DIRECTIONS = (64, 128, 256)


def main() -> None:
    """Train or find the backbone, read both parts, and train a head for every epsilon and number of directions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("stand-in", "mnist"), default="stand-in")
    parser.add_argument("--folder", default="", help="where data sets by name lie")
    parser.add_argument("--backbone", type=Path, help="folder of a trained backbone, or where to keep one")
    parser.add_argument("--steps", type=int, default=config.BackboneSettings().steps, help="of the backbone")
    parser.add_argument("--seed", type=int, default=0, help="of the public half")
    given = parser.parse_args()
    backbone = backbone_of(given)
    parts = {part: read(backbone, *images_of(given, part)) for part in STAND_IN}
    print(f"\n{given.data}: {len(parts['train'][1]):,} private records, {len(parts['test'][1]):,} test images\n")
    print("| directions | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS) + " | seconds a head |")
    print("| " + " | ".join(["---"] * (len(EPSILONS) + 2)) + " |")
    for directions in DIRECTIONS:
        started = time.process_time()
        accuracies = [accuracy(parts, directions, epsilon, config.Judge()) for epsilon in EPSILONS]
        seconds = (time.process_time() - started) / len(EPSILONS)
        print(
            f"| {directions} | " + " | ".join(f"{value:.2%}" for value in accuracies) + f" | {seconds:.1f} |",
            flush=True,
        )


def backbone_of(given: argparse.Namespace) -> Backbone:
    """The backbone of the public images, trained or found."""
    if given.backbone and given.backbone.exists():
        return serialization.load_backbone(given.backbone, torch.device("cpu"))
    public = sources.load(
        "omniglot+glyphs",
        sources.Reading(
            part="all", size=SIDE, channels=1, glyphs_per_class=LETTERS, folder=given.folder, seed=given.seed
        ),
    )
    started = time.process_time()
    trained = train_backbone(config.BackboneSettings(steps=given.steps), public, seed=given.seed)
    print(
        f"backbone: {len(public):,} public images of {len(public.classes)} classes, {given.steps} steps in "
        f"{time.process_time() - started:.0f} CPU s, reads {trained.accuracy:.1%} of those held out"
    )
    if given.backbone:
        given.backbone.mkdir(parents=True)
        serialization.save_backbone(given.backbone, trained.backbone)
    return trained.backbone


def images_of(given: argparse.Namespace, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels `[n, 1, 28, 28]` and labels of a part of the private images."""
    if given.data == "stand-in":
        pixels, labels = drawn(part, STAND_IN[part], np.random.default_rng(given.seed + (part == "test")))
        return pixels[:, None], labels.astype(np.int64)
    images = sources.load(given.data, sources.Reading(part=part, folder=given.folder))
    return images.pixels, images.labels


def read(backbone: Backbone, pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    """Features along the most directions, `[n, 256]`, and labels."""
    look = backbone.whitening_reader(max(DIRECTIONS))
    parts = [look(to_unit(pixels[at : at + 1000])) for at in range(0, len(pixels), 1000)]
    return torch.cat(parts), torch.from_numpy(labels)


def accuracy(parts: dict[str, tuple[Tensor, Tensor]], directions: int, epsilon: float, settings: config.Judge) -> float:
    """Of a head trained on the first part, on the second."""
    (x, y), (shown, true) = ((unit(features[:, :directions]), labels) for features, labels in parts.values())
    source, numbers = noise.system_source(), CLASSES * x.shape[1]

    def with_noise(_: Tensor, total: Tensor) -> Tensor:
        if epsilon == math.inf:
            return total
        return noise.noised([total], noise_multiplier=multiplier, norm=1.0, numbers=numbers, source=source)[0]

    def events(noise_multiplier: float) -> list[Gaussian]:
        return [Gaussian(noise_multiplier=noise_multiplier, count=settings.steps)]

    multiplier = 0.0 if epsilon == math.inf else accountant.calibrate(epsilon, DELTA, events)
    units = single_records(len(x))
    how = {"classes": CLASSES, "steps": settings.steps, "expected": len(x)}
    head = train_head(settings, x, y, units, noised=with_noise, **how)
    return float(((shown @ head.T).argmax(1) == true).double().mean())


if __name__ == "__main__":
    main()
