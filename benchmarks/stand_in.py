"""A stand-in for MNIST, so that recipes can be tuned without looking at it: scikit-learn's digits, warped and redrawn.

    .venv/bin/python benchmarks/stand_in.py --to stand-in
    .venv/bin/sfumato run rapid --preset mnist-small --set data.private=stand-in

Writes a folder of IDX files in MNIST's form: 60,000 training images made of the 1,437 digits that the embedded default
trains on, and 10,000 test images made of its other 360, so no writing is in both. Each 8x8 image is enlarged, warped as
the public letters are, sharpened at a random level (thin and thick pens), and brought to MNIST's frame. What it cannot
show: sixty thousand different hands. Forty images are one writing, so a model may learn more of each than it may there.
"""

import argparse
import struct
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from sfumato.sources.built_in import open_digits
from sfumato.sources.glyphs import FIELD, LATTICE, PEN_LOOK, warp, warps
from sfumato.sources.idx import IDX_IMAGES, IDX_LABELS
from sfumato.sources.named import boxed

PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}
"""Part of the digits: the beginning of its files' names, and how many images are made of it."""
WRITING = 40
"""Side that the 8x8 images are enlarged to, in a field of `FIELD` pixels; the margin takes the warp."""
LEVELS = (0.35, 0.6)
"""Grey level, of 0 to 1, that becomes the border of the ink; drawn evenly for each image."""
SHARPNESS = 12.0
"""Slope of the ink's border, per grey level."""
CHUNK = 1000


def fields(part: str) -> tuple[torch.Tensor, np.ndarray]:
    """The digits of a part, enlarged; float32 `[n, FIELD, FIELD]` in 0..1, and their labels `[n]`."""
    records = list(open_digits(part).records())
    small = torch.from_numpy(np.stack([record.pixels[..., 0] for record in records])).float()[:, None] / 255
    large = F.interpolate(small, WRITING, mode="bicubic", antialias=True).clamp(0, 1)
    margin = (FIELD - WRITING) // 2
    return F.pad(large, (margin,) * 4)[:, 0], np.array([record.label for record in records], np.uint8)


def drawn(part: str, images: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images `[images, 28, 28]` of the digits of a part in random order, each digit as often as another, and labels."""
    originals, labels = fields(part)
    order = rng.permutation(np.arange(images) % len(originals))
    made = []
    for chosen in np.array_split(order, -(-images // CHUNK)):
        warped = warp(originals[chosen], *warps(rng, len(chosen), PEN_LOOK.elastic))
        levels = torch.from_numpy(rng.uniform(*LEVELS, len(chosen))).float().view(-1, 1, 1)
        inked = (255 * torch.sigmoid(SHARPNESS * (warped - levels))).byte().view(-1, LATTICE, LATTICE, 1)
        inked[inked < 32] = 0  # the sigmoid's foot is paper, which the box must not hold
        made += [boxed(image)[..., 0] for image in inked.numpy()]
    return np.stack(made), labels[order]


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, required=True, help="folder to write; must not exist")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.to.exists():
        parser.error(f"--to: {given.to} exists; name another folder")
    rng = np.random.default_rng(given.seed)
    given.to.mkdir(parents=True)
    for part, (beginning, images) in PARTS.items():
        pixels, labels = drawn(part, images, rng)
        for kind, magic, values in (("images-idx3", IDX_IMAGES, pixels), ("labels-idx1", IDX_LABELS, labels)):
            header = struct.pack(f">{1 + values.ndim}I", magic, *values.shape)
            (given.to / f"{beginning}-{kind}-ubyte").write_bytes(header + values.tobytes())
        print(f"{part}: {images:,} images, mean ink {pixels.mean() / 255:.3f}")


if __name__ == "__main__":
    main()
