"""Class moments of images far from the public ones: how near the covariances come, with one level for all directions and with one for each band.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/far_moments.py --folder DATA [--channels 6] [--epsilon 1 2.7]

Public: Tiny ImageNet in grey at 28x28, in latents of an autoencoder trained here (about 90 CPU s). Stand-ins for a private set of two classes, one of
them small: enlarged 8x8 digits (the class 3 and the rest), rendered letters (five and the rest), and *scenes* (a photograph a class, blurred,
shifted, relit and mixed with others: much the same from image to image, as X-rays are). *off*: Bures distance between a class's covariance
and the one that was found, over its trace; *fine*: the variance found along the public images' directions 32 to 255, over the true one. Nothing private is read.
"""

import argparse
from collections.abc import Iterator

import moments as of_moments
import numpy as np
import torch
import torch.nn.functional as F
from moments import bures, moments
from sklearn.datasets import load_digits
from torch import Tensor

from sfumato import alignment, covariances, sources
from sfumato.config import Alignment
from sfumato.images import to_unit
from sfumato.latents import train_autoencoder
from sfumato.networks.autoencoder import ANCHORS

SIDE, SHOWN, CHUNK = 28, 20_000, 500
FEW, MANY, DELTA = 388, 3494, 1e-4
"""Records of the two classes, where the stand-in has as many."""
FINE = slice(31, 255)


def main() -> None:
    """Train the autoencoder and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="data folder with tiny-imagenet-32 below it")
    parser.add_argument("--channels", type=int, default=6, help="numbers for a square of 4x4 pixels (default: 6)")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.7], help="of the moments (default: 1 2.7)")
    given = parser.parse_args()
    public = sources.load(f"{given.folder}/tiny-imagenet-32", sources.Reading(part="train", size=SIDE, channels=1))
    settings = ANCHORS[SIDE, 1].model_copy(update={"channels": given.channels})
    codec = train_autoencoder(settings, to_unit(public.pixels), seed=0).codec
    some = np.random.default_rng(0).permutation(len(public.pixels))[:SHOWN]
    photographs, labels = to_unit(public.pixels[some]), torch.as_tensor(public.labels[some]).long()

    def encoded(x: Tensor) -> Tensor:
        return torch.cat([codec.encode(part) for part in x.split(CHUNK)])

    where = alignment.measured(encoded(photographs), labels, Alignment(kind="moments"), seed=0)
    directions = torch.linalg.eigh(where.covariance).eigenvectors.flip(1)[:, FINE]
    of_moments.CLASSES, of_moments.DELTA = 2, DELTA
    banded = alignment.levelled
    print(
        "| stand-in | epsilon | records | variance, of the public | off: one level | off: bands | fine: one level | fine: bands |"
    )
    print("|" + " --- |" * 8)
    for name, x, y in stand_ins(photographs):
        z = encoded(x)
        for epsilon in given.epsilon:
            noisy = moments(z, y, where, Alignment(kind="moments"), epsilon)
            ways = []
            for way in (one_level, banded):
                alignment.levelled = way
                ways.append(alignment.covariances(noisy, where)[0])
            for label in (0, 1):
                true = torch.cov(z[y == label].flatten(1).double().T, correction=0)
                still = torch.zeros(len(true), dtype=torch.float64)
                off = [bures(still, true, still, way[label]) / float(true.trace()) for way in ways]
                fine = [float((directions.T @ way[label] @ directions).trace()) for way in ways]
                level = float((directions.T @ true @ directions).trace())
                share = float(true.trace() / where.covariance.trace())
                cells = [name, f"{epsilon:g}", f"{int((y == label).sum()):,}", f"{share:.2f}"]
                cells += [f"{value:.3f}" for value in off] + [f"{value / level:.2f}" for value in fine]
                print("| " + " | ".join(cells) + " |", flush=True)


def one_level(prior: Tensor, seen: Tensor, vectors: Tensor, *, noise: float, records: float, unsure: float) -> Tensor:
    """The plain way: a prior covariance scaled as a whole."""
    level = covariances._level(prior.diagonal(), seen.diagonal(), noise, records, covariances.UNSURE)
    return level * prior


def stand_ins(photographs: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, images `[n, 1, SIDE, SIDE]`, labels `[n]`."""
    rng, digits = torch.Generator().manual_seed(0), load_digits()
    x = torch.tensor(digits.images / 8 - 1, dtype=torch.float32)[:, None]
    x = F.interpolate(x, (SIDE, SIDE), mode="bicubic").clamp(-1, 1)
    yield "digits", x, torch.tensor(digits.target != 3).long()
    letters = sources.load("glyphs", sources.Reading(part="all", size=SIDE, channels=1, glyphs_per_class=80))
    x, of = to_unit(letters.pixels), torch.as_tensor(letters.labels)
    others = torch.nonzero(of >= 5)[:, 0]
    few, many = x[of < 5][:FEW], x[others[torch.randperm(len(others), generator=rng)[:MANY]]]
    yield "letters", torch.cat([few, many]), torch.arange(2).repeat_interleave(torch.tensor([len(few), len(many)]))
    made = [scenes(photographs, label, count, rng) for label, count in enumerate((FEW, MANY))]
    yield "scenes", torch.cat(made), torch.arange(2).repeat_interleave(torch.tensor([FEW, MANY]))


def scenes(photographs: Tensor, label: int, count: int, rng: torch.Generator) -> Tensor:
    """One photograph, again and again: blurred, shifted a little, in other light, with something of another."""
    scene = F.avg_pool2d(photographs[label : label + 1], 5, 1, 2).expand(count, -1, -1, -1)
    turn = torch.eye(2, 3).repeat(count, 1, 1) + 0.08 * torch.randn(count, 2, 3, generator=rng)
    grid = F.affine_grid(turn, list(scene.shape), align_corners=False)
    seen = F.grid_sample(scene, grid, padding_mode="reflection", align_corners=False)
    light, dark = (torch.randn(count, 1, 1, 1, generator=rng) for _ in range(2))
    other = F.avg_pool2d(photographs[torch.randint(len(photographs), (count,), generator=rng)], 7, 1, 3)
    return (seen * (1 + 0.2 * light) + 0.15 * dark + 0.35 * other).clamp(-1, 1)


if __name__ == "__main__":
    main()
