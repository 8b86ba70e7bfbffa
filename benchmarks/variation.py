"""What varying drawn images brings: handwritten digits as they are, enlarged to 28x28, in place of a private set; no warp that could favour it.

    .venv/bin/sfumato rehearse dp-sgd --set data.private=stand-in ...            # the public half, in a home
    python benchmarks/variation.py --autoencoder F --denoiser F --backbone F

F are folders of a home's store, as for `benchmarks/private_steps.py`. Private are scikit-learn's 1,437 training digits, test images its other
360, of other hands. Images are drawn by class moments without noise and moved to the classes' mean embeddings, so that what they lack is not due
to noise; each row varies the same ones by another amount. The CNN is the mean over five seeds.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import private_steps
import stand_in
import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato import config, fourier
from sfumato.diffusion.samplers import dpm_solver
from sfumato.diffusion.schedule import time_grid
from sfumato.evaluation.classifier import predict, train_classifier
from sfumato.evaluation.fidelity import frechet_distance
from sfumato.evaluation.two_samples import two_sample_test
from sfumato.latents import PIXELS, Codec
from sfumato.matching import matched
from sfumato.methods.parts import Target
from sfumato.sources.glyphs import LATTICE
from sfumato.variation import varied

AMOUNTS, BOTH_WAYS = (0.0, 0.1, 0.15, 0.2, 0.3), 0.1
"""Largest angles, and the one that is shown without the autoencoder too."""
SEEDS, LEARNT_FROM, COMPARED = range(5), 6000, 2000
"""Seeds of the CNN; images that it learns from; images that are told from real ones."""
NO_NOISE, NEARLY_NONE = 200.0, 0.01
"""Epsilon of the moments, and noise on the sums of features: as good as none."""
LEVEL = 0.47
"""Grey level that becomes the border of the ink."""


def as_they_are(part: str, images: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Digits of a part in MNIST's frame, `[images, 28, 28]`, not warped, and their labels: in the place of `stand_in.drawn`."""
    originals, labels = stand_in.fields(part)
    order = rng.permutation(len(originals))[:images]
    large = F.interpolate(originals[order][:, None], LATTICE, mode="bicubic", antialias=True)[:, 0]
    inked = (255 * torch.sigmoid(stand_in.SHARPNESS * (large - LEVEL))).byte().view(-1, LATTICE, LATTICE, 1)
    inked[inked < 32] = 0
    return np.stack([stand_in.boxed(image)[..., 0] for image in inked.numpy()]), labels[order]


def drawn(bench: private_steps.Bench, images: int) -> tuple[Tensor, Tensor]:
    """Images `[images, 1, 28, 28]` as the moments draw them, moved to the mean embeddings; and the classes they were drawn for."""
    maps, model, rng = bench.maps(NO_NOISE, 1), bench.start(), torch.Generator().manual_seed(1)
    y, parts = torch.arange(images) % private_steps.CLASSES, []
    with torch.inference_mode():
        for part in y.split(private_steps.CHUNK):
            walk = time_grid(bench.schedule.timesteps, 0, private_steps.STEPS)
            noise = torch.randn(len(part), *bench.z.shape[1:], generator=rng)
            parts.append(maps.to_private(dpm_solver(bench.schedule, model, noise, part, walk), part, rng))
    how = config.Matching(share=0.5, frequencies=1000)
    features = fourier.random_features(how, math.prod(bench.z.shape[1:]), 0)
    counted = torch.full((len(bench.z), 1), math.sqrt(how.count_share))
    summed = torch.cat([math.sqrt(1 - how.count_share) * features(bench.z), counted], 1)
    sums = torch.zeros(private_steps.CLASSES, summed.shape[1]).index_add_(0, bench.y, summed)
    means = fourier.class_means(sums, how.count_share, noise_multiplier=NEARLY_NONE)
    to = Target(features.frequencies, means, how)
    z, _ = matched(torch.cat(parts).clone(), y, to, limit=bench.codec.limit, seed=0)
    return in_pieces(z, lambda part: bench.codec.decode(part).clamp(-1, 1)), y


def in_pieces(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The function of all, piece by piece, outside `inference_mode`."""
    with torch.inference_mode():
        return torch.cat([function(part) for part in x.split(private_steps.CHUNK)]).clone()


def row(bench: private_steps.Bench, images: Tensor, y: Tensor) -> str:
    """What the small CNN learns, the Frechet distance in the backbone's features, and how well a classifier tells the images from real ones."""
    real, labels = bench.test
    network = bench.backbone.network
    read = [
        float((predict(train_classifier(images[:LEARNT_FROM], y[:LEARNT_FROM], private_steps.CLASSES, steps=600, seed=seed), real).argmax(1) == labels).float().mean())
        for seed in SEEDS
    ]  # fmt: skip
    far = frechet_distance(in_pieces(real, network.features), in_pieces(images, network.features))
    test: Any = two_sample_test(real, labels, images[:COMPARED], y[:COMPARED])
    return f"{np.mean(read):.4f} | {min(read):.4f} to {max(read):.4f} | {far:.2f} | {test.auc:.3f}"


def main() -> None:
    """Read the command line, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("autoencoder", "denoiser", "backbone"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="a folder of a store")
    parser.add_argument("--folder", default="", help="where data sets by name lie")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    private_steps.drawn, private_steps.TESTED = as_they_are, 360
    bench = private_steps.Bench(given)
    images, y = drawn(bench, given.images)
    print("| angle | through the autoencoder | CNN | CNN by seed | Frechet | told from real |\n|" + " --- |" * 6)
    ways: list[tuple[str, Codec]] = [("yes", bench.codec), ("no", PIXELS)]
    for amount in AMOUNTS:
        for passed, codec in ways if amount == BOTH_WAYS else ways[:1]:
            rng = torch.Generator().manual_seed(5)
            shown = in_pieces(images, lambda part: varied(codec, part, amount, rng).clamp(-1, 1))  # noqa: B023
            print(f"| {amount:g} | {passed if amount else '-'} | {row(bench, shown, y)} |", flush=True)


if __name__ == "__main__":
    main()
