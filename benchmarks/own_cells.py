"""Class moments of images far from the public ones: what a histogram of distances and cells among the private records bring.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/own_cells.py discs --folder DATA [--epsilon 10 1] [--picture FILE]
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/own_cells.py digits

*discs*: four kinds of stained blobs in colour, drawn here in the place of microscope images (10,000 records, 28x28), by an autoencoder of Tiny
ImageNet. *digits*: the warped digits of `benchmarks/stand_in.py` (60,000), by an autoencoder of rendered letters. Images are drawn as Gaussians
around the cells and decoded, without a denoiser. *readable*: read as their class by a CNN of real images; *CNN*: what one that learnt from them
reads of held-out ones; *Frechet*: in the features of the first. Nothing private is read; fresh noise each time. About ten minutes a stand-in.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import moments as of_moments
import numpy as np
import stand_in
import torch
import torch.nn.functional as F
from moments import moments
from PIL import Image
from torch import Tensor

from sfumato import sources
from sfumato.alignment import ClassMaps, fitted, measured
from sfumato.config import Alignment
from sfumato.evaluation.classifier import Classifier, predict, train_classifier
from sfumato.evaluation.fidelity import frechet_distance
from sfumato.images import to_pixels, to_unit
from sfumato.latents import Codec, train_autoencoder
from sfumato.networks.autoencoder import ANCHORS

SIDE, CHUNK, PUBLIC, DRAWN, SHOWN, STEPS = 28, 500, 20_000, 8000, 14, 600
FINE, SPREAD = 3, 0.15
"""Pixels of a side that one is drawn from; how much the shape of a blob varies."""
KINDS: tuple[tuple[int, float, tuple[float, float, float]], ...] = (
    (1, 0.75, (0.67, 0.64, 0.85)),
    (2, 0.38, (0.90, 0.65, 0.54)),
    (1, 0.50, (0.63, 0.66, 0.90)),
    (3, 0.33, (0.77, 0.68, 0.80)),
)
"""Number of nuclei of a kind, the size of one as a share of the body, and the body's colour (red, green, blue)."""
PAPER, DARK, OTHER = (0.85, 0.80, 0.74), (0.35, 0.20, 0.55), (0.85, 0.55, 0.57)
"""Colours of the ground, of nuclei, and of the discs around."""
SHARES, HELD_OUT = (0.32, 0.24, 0.24, 0.20), 2500
WAYS: tuple[tuple[str, dict[str, object]], ...] = (
    ("bound of the public images", {"distances": 0.0}),
    ("bound by the histogram", {}),
    ("8 own cells", {"cells": 8}),
    ("32 own cells", {"cells": 32}),
    ("64 own cells", {"cells": 64}),
    ("12 public cells", {"clusters": 12}),
)


class Stand:
    """A stand-in: images `[n, c, 28, 28]` with labels, held-out ones, and an autoencoder of public images with these images' latents."""

    def __init__(self, private: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], public: Tensor, of: Tensor):
        settings = ANCHORS[(SIDE, 1) if public.shape[1] == 1 else (32, 3)]
        self.codec = train_autoencoder(settings, public, seed=0).codec
        (self.x, self.y), self.test = private, test
        self.z, self.public = encoded(self.codec, self.x), encoded(self.codec, public[:PUBLIC])
        self.of, self.classes = of[:PUBLIC], int(self.y.max()) + 1
        self.judge = train_classifier(self.x, self.y, self.classes, steps=STEPS, seed=0)
        self.features = features(self.judge, test[0])

    def row(self, images: Tensor, y: Tensor) -> str:
        """Scores of images for their classes."""
        student = train_classifier(images, y, self.classes, steps=STEPS, seed=1)
        readable, right = (
            float((predict(model, x).argmax(1) == labels).float().mean())
            for model, x, labels in ((self.judge, images, y), (student, *self.test))
        )
        distance = frechet_distance(self.features, features(self.judge, images))
        return f"{readable:.3f} | {right:.3f} | {distance:.2f}"

    def drawn(self, maps: ClassMaps) -> tuple[Tensor, Tensor]:
        """Decoded Gaussian draws of the classes, in the private shares."""
        rng, where = torch.Generator().manual_seed(2), maps.reference
        y = self.y[torch.randperm(len(self.y), generator=rng)[:DRAWN]]
        values, vectors = torch.linalg.eigh(where.covariance)
        white = torch.randn(len(y), len(values), generator=rng, dtype=torch.float64)
        x = where.mean + white * values.clamp(min=0).sqrt() @ vectors.T
        back = maps.to_private(x.float().view(-1, *self.z.shape[1:]), y, rng)
        return torch.cat([self.codec.decode(part).clamp(-1, 1) for part in back.split(CHUNK)]), y


def encoded(codec: Codec, x: Tensor) -> Tensor:
    """Latents `[n, c, h, w]`."""
    return torch.cat([codec.encode(part) for part in x.split(CHUNK)])


def features(model: Classifier, x: Tensor) -> Tensor:
    """The classifier's features `[n, d]`."""
    with torch.inference_mode():
        return torch.cat([model.features(part) for part in x.split(CHUNK)])


# ------------------------------------------------------------------------------------------------------- the discs


def discs(count: int, rng: np.random.Generator, side: int = SIDE) -> tuple[Tensor, Tensor]:
    """Images `[count, 3, side, side]` in -1..1 and their kinds `[count]`."""
    labels = rng.choice(len(KINDS), count, p=SHARES)
    parts = [one_disc(KINDS[label], rng, side) for label in labels]
    return torch.stack(parts).clamp(0, 1) * 2 - 1, torch.from_numpy(labels)


def one_disc(kind: tuple[int, float, tuple[float, float, float]], rng: np.random.Generator, small: int) -> Tensor:
    """A body with nuclei off the middle, on a ground with discs at the border; `[3, small, small]` in about 0..1."""
    nuclei, share, body = kind
    side, middle, away_by = small * FINE, small * FINE / 2, small * FINE / SIDE
    image = colour(PAPER, 0.05, rng) * torch.ones(3, side, side)
    for _ in range(rng.integers(0, 4)):
        turn, far = rng.uniform(0, 2 * math.pi), side * rng.uniform(0.45, 0.6)
        place = (middle + far * math.cos(turn), middle + far * math.sin(turn))
        image = painted(image, blob(place, 0.13 * side, side, rng) * 0.7, colour(OTHER, 0.02, rng))
    centre, radius = middle + rng.normal(0, 2 * away_by, 2), side * rng.normal(0.24, 0.03)
    image = painted(image, blob(tuple(centre), radius, side, rng) * 0.9, colour(body, 0.03, rng))
    turn, ink, cover = rng.uniform(0, 2 * math.pi), colour(DARK, 0.05, rng), torch.zeros(side, side)
    for number in range(nuclei):
        way = turn + 0.8 * number * 2 * math.pi / nuclei
        away = 0.42 * radius * (nuclei > 1) * np.array([math.cos(way), math.sin(way)])
        place = tuple(centre + away + rng.normal(0, away_by, 2))
        cover = torch.maximum(cover, blob(place, share * radius * math.exp(rng.normal(0, 0.1)), side, rng))
    coarse = F.avg_pool2d(painted(image, cover * 0.95, ink)[None], FINE)[0]
    return coarse + 0.015 * torch.from_numpy(rng.standard_normal(coarse.shape)).float()


def blob(centre: tuple[float, ...], radius: float, side: int, rng: np.random.Generator) -> Tensor:
    """How far each pixel of a fine grid `[side, side]` lies inside a blob, 0..1."""
    line = torch.arange(side, dtype=torch.float32)
    across, down = line[None] - centre[0], line[:, None] - centre[1]
    turn, long = rng.uniform(0, math.pi), math.exp(rng.normal(0, SPREAD))
    u = (across * math.cos(turn) + down * math.sin(turn)) / long
    v = (down * math.cos(turn) - across * math.sin(turn)) * long
    edge = radius * (1 + rng.normal(0, SPREAD / 2) * torch.cos(2 * torch.atan2(v, u) + rng.uniform(0, 2 * math.pi)))
    return torch.sigmoid((edge - (u.square() + v.square()).sqrt()) / 1.2)


def colour(mean: tuple[float, float, float], spread: float, rng: np.random.Generator) -> Tensor:
    """A colour near another, `[3, 1, 1]`."""
    return torch.tensor(mean).view(3, 1, 1) + spread * torch.from_numpy(rng.standard_normal((3, 1, 1))).float()


def painted(image: Tensor, cover: Tensor, ink: Tensor) -> Tensor:
    """The image under as much ink as `cover` `[h, w]` says."""
    return image * (1 - cover) + cover * ink


# ---------------------------------------------------------------------------------------------------------- the table


def stand(name: str, folder: str) -> Stand:
    """A stand-in by its name."""
    rng = np.random.default_rng(0)
    if name == "discs":
        public = sources.load(f"{folder}/tiny-imagenet-32", sources.Reading(part="train", size=SIDE, channels=3))
        some = rng.permutation(len(public.pixels))[: 2 * PUBLIC]
        pixels, of = to_unit(public.pixels[some]), torch.as_tensor(public.labels[some]).long()
        return Stand(discs(10_000, rng), discs(HELD_OUT, rng), pixels, of)
    letters = sources.load("glyphs", sources.Reading(part="all", size=SIDE, channels=1, glyphs_per_class=1000))
    some = rng.permutation(len(letters.pixels))
    sets = [stand_in.drawn(part, count, rng) for part, count in (("train", 60_000), ("test", HELD_OUT))]
    private, test = ((to_unit(x[:, None]), torch.as_tensor(y).long()) for x, y in sets)
    return Stand(private, test, to_unit(letters.pixels[some]), torch.as_tensor(letters.labels[some]).long())


def rows(made: Stand, epsilons: list[float]) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Epsilon, way, and what was drawn."""
    of_moments.CLASSES = made.classes
    yield "", "real images", made.x[:DRAWN], made.y[:DRAWN]
    for epsilon in epsilons:
        for name, changes in WAYS:
            settings = Alignment(kind="moments", **changes)  # type: ignore[arg-type]
            where = measured(made.public, made.of, settings, seed=0)
            maps = fitted(moments(made.z, made.y, where, settings, epsilon), where)
            yield f"{epsilon:g}", name, *made.drawn(maps)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stand_in", choices=("discs", "digits"))
    parser.add_argument("--folder", default="", help="data folder with tiny-imagenet-32 below it, for the discs")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument("--picture", type=Path, help="where to write images of each way, a row for each class")
    given = parser.parse_args()
    torch.set_num_threads(1)
    made, shown = stand(given.stand_in, given.folder), []
    print("| epsilon | moments | readable | CNN | Frechet |\n| --- | --- | --- | --- | --- |")
    for epsilon, name, images, y in rows(made, given.epsilon):
        print(f"| {epsilon} | {name} | {made.row(images, y)} |", flush=True)
        lines = [torch.cat(list(images[y == label][:SHOWN]), 2) for label in range(made.classes)]
        shown.append(torch.cat(lines, 1))
    if given.picture:
        whole = to_pixels(torch.cat(shown, 1).permute(1, 2, 0))
        Image.fromarray(whole.squeeze()).save(given.picture)


if __name__ == "__main__":
    main()
