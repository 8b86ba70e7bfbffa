"""Class moments of images in colour: what the channels' covariance in bands of frequencies brings (`sfumato.covariances.coloured`).

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/colours.py [--epsilon 10 1] [--picture FILE]

*tissue*: four kinds of stained tissue, drawn here (fat, glands, lymph, muscle; 6,000 records, 28x28); *discs*: those of
`benchmarks/own_cells.py` (10,000). Public are `shapes` that the program draws, in the latents of an autoencoder of theirs. Both rows of an epsilon
come from the same noisy moments. *far*: squared Bures distance of a class's Gaussian from its exact one, on average; the other scores as in
`own_cells.py`, of public images that the maps took to the private classes, without a denoiser. Nothing private is read; fresh noise each time.
About ten minutes.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import moments as of_moments
import numpy as np
import torch
from moments import bures, moments
from own_cells import CHUNK, DRAWN, HELD_OUT, SHOWN, SIDE, Stand, discs
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from sfumato import sources
from sfumato.alignment import ClassMaps, Moments, Reference, fitted, measured
from sfumato.config import Alignment
from sfumato.images import to_pixels, to_unit

FINE, RECORDS, SPECKS, ENLARGED = 4, 6000, 3.0, 2
"""Pixels of a side that one is drawn from; records of the tissue; deviation of the noise on each of its pixels, of 255; pixels of one in the picture."""
STAINS = {
    "fat": ((245, 235, 240), (250, 246, 249), (215, 140, 180)),
    "gland": ((235, 190, 210), (220, 150, 190), (110, 65, 140)),
    "lymph": ((205, 170, 205), (205, 170, 205), (95, 60, 135)),
    "muscle": ((225, 140, 165), (205, 105, 140), (105, 55, 120)),
}
"""Colours (red, green, blue) of the ground of a kind, of what lies on it, and of walls or nuclei."""
VARIED = 9.0
"""Deviation of a colour from image to image, of 255."""


def tissue(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Images `[count, 3, 28, 28]` in -1..1 and their kinds `[count]`."""
    kinds, labels = list(STAINS), rng.integers(len(STAINS), size=count)
    pixels = np.stack([one_piece(kinds[label], rng) for label in labels])
    return to_unit(pixels), torch.from_numpy(labels)


def one_piece(kind: str, rng: np.random.Generator) -> np.ndarray:
    """A piece of tissue, uint8 `[3, 28, 28]`."""
    ground, body, dark = [tuple(rng.normal(colour, VARIED).clip(0, 255).astype(int)) for colour in STAINS[kind]]
    side = SIDE * FINE
    image = Image.new("RGB", (side, side), ground)
    pen = ImageDraw.Draw(image)
    if kind == "fat":
        for _ in range(rng.integers(5, 10)):
            disc(
                pen,
                rng.uniform(0, side, 2),
                rng.uniform(0.14, 0.27) * side,
                fill=body,
                outline=dark,
                width=int(rng.integers(3, 6)),
            )
    elif kind == "gland":
        centre, radius = rng.uniform(0.25 * side, 0.75 * side, 2), rng.uniform(0.17, 0.31) * side
        disc(pen, centre, radius, fill=body)
        disc(pen, centre, radius / 2, fill=ground)
        for turn in np.arange(0, 2 * math.pi, rng.uniform(0.3, 0.5)):
            disc(pen, centre + 0.8 * radius * np.array([math.cos(turn), math.sin(turn)]), 0.04 * side, fill=dark)
    elif kind == "lymph":
        for place in rng.uniform(0, side, (rng.integers(60, 110), 2)):
            disc(pen, place, rng.uniform(0.03, 0.055) * side, fill=dark)
    else:
        turn = rng.uniform(0, math.pi)
        along, across = np.array([math.cos(turn), math.sin(turn)]), np.array([-math.sin(turn), math.cos(turn)])
        for off in np.arange(-side, side, rng.uniform(0.07, 0.13) * side):
            stroke(pen, np.array([side, side]) / 2 + off * across, side * along, body, int(rng.integers(4, 8)))
        for place in rng.uniform(0, side, (rng.integers(4, 12), 2)):
            stroke(pen, place, 0.06 * side * along, dark, 4)
    small = np.asarray(
        image.filter(ImageFilter.GaussianBlur(1.2)).resize((SIDE, SIDE), Image.Resampling.LANCZOS), dtype=np.float64
    )
    return (small + rng.normal(0, SPECKS, small.shape)).clip(0, 255).astype(np.uint8).transpose(2, 0, 1)


def disc(pen: ImageDraw.ImageDraw, centre: np.ndarray, radius: float, **how: object) -> None:
    """A disc around a centre (x, y)."""
    pen.ellipse((*(centre - radius), *(centre + radius)), **how)  # type: ignore[arg-type]


def stroke(pen: ImageDraw.ImageDraw, centre: np.ndarray, half: np.ndarray, ink: tuple[int, ...], width: int) -> None:
    """A straight stroke as far as `half` to both sides of its centre."""
    pen.line((*(centre - half), *(centre + half)), fill=ink, width=width)


def stand(name: str) -> Stand:
    """A stand-in by its name."""
    rng = np.random.default_rng(0)
    public = sources.load("shapes", sources.Reading(part="all", size=SIDE, channels=3))
    some = rng.permutation(len(public.pixels))
    draw, records = (tissue, RECORDS) if name == "tissue" else (discs, 10_000)
    pixels, of = to_unit(public.pixels[some]), torch.as_tensor(public.labels[some]).long()
    return Stand(draw(records, rng), draw(HELD_OUT, rng), pixels, of)


def far(made: Stand, maps: ClassMaps) -> float:
    """Squared Bures distance of the classes' Gaussians from the exact ones, on average."""
    flat, apart = made.z.flatten(1).double(), []
    for label in range(made.classes):
        own, share, centres = flat[made.y == label], maps.weights[label], maps.centres[label]
        middle = share @ centres
        spread = (centres - middle).T * share @ (centres - middle)
        within = maps.back[label] @ maps.reference.covariance @ maps.back[label].T
        apart.append(float(bures(middle + maps.reference.mean, within + spread, own.mean(0), torch.cov(own.T))))
    return sum(apart) / len(apart)


def mapped(made: Stand, maps: ClassMaps) -> tuple[Tensor, Tensor]:
    """Public images as the maps bring them to the private classes, in the private shares."""
    rng = torch.Generator().manual_seed(2)
    y = made.y[torch.randperm(len(made.y), generator=rng)[:DRAWN]]
    back = maps.to_private(made.public[torch.randperm(len(made.public), generator=rng)[: len(y)]], y, rng)
    return torch.cat([made.codec.decode(part).clamp(-1, 1) for part in back.split(CHUNK)]), y


def ways(noisy: Moments, where: Reference) -> list[tuple[str, ClassMaps]]:
    """The maps from the same noisy moments, without and with the bands."""
    return [("without", fitted(noisy, replace(where, shape=()))), ("with", fitted(noisy, where))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument(
        "--picture",
        type=Path,
        help="where to write real tissue, and both ways at the first epsilon, a row for each class",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| stand-in | epsilon | bands | far | readable | CNN | Frechet |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for name in ("tissue", "discs"):
        made = stand(name)
        of_moments.CLASSES = made.classes
        shown = [(made.x, made.y)]
        print(f"| {name} |  | real images |  | {made.row(made.x[:DRAWN], made.y[:DRAWN])} |", flush=True)
        for epsilon in given.epsilon:
            settings = Alignment(kind="moments", cells=16)
            where = measured(made.public, made.of, settings, seed=0)
            for way, maps in ways(moments(made.z, made.y, where, settings, epsilon), where):
                images, y = mapped(made, maps)
                shown.append((images, y))
                print(f"| {name} | {epsilon:g} | {way} | {far(made, maps):.2f} | {made.row(images, y)} |", flush=True)
        if given.picture and name == "tissue":
            save(given.picture, shown[:3], made.classes)


def save(path: Path, sets: list[tuple[Tensor, Tensor]], classes: int) -> None:
    """A picture of several sets beside each other, a row for each class."""
    blocks = [
        torch.cat([torch.cat(list(images[y == label][:SHOWN]), 2) for label in range(classes)], 1) for images, y in sets
    ]
    gap = torch.ones(3, blocks[0].shape[1], SIDE // 2)
    whole = torch.cat([part for block in blocks for part in (block, gap)][:-1], 2)
    picture = Image.fromarray(to_pixels(whole.permute(1, 2, 0)))
    picture.resize((ENLARGED * picture.width, ENLARGED * picture.height), Image.Resampling.NEAREST).save(path)


if __name__ == "__main__":
    main()
