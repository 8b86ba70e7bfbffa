"""Moment alignment on a stand-in: how near the classes it comes, and what is learnt from public letters that it takes there.

    .venv/bin/python benchmarks/moments.py

Private: the warped digits of `benchmarks/stand_in.py`, brought to 10x10; public: rendered letters. The letters themselves stand in for
what a public denoiser draws, so that the maps are measured and no network. *far*: the Bures distance (squared 2-Wasserstein) between a
class's Gaussian and the one that was found, a class, mean over classes; *MLP*: accuracy of a small MLP on held-out
stand-in digits after training on letters that were taken to the classes. *kept* is the plain way: eigenvalues above 1.2 times
the edge of the noise, the rest like the public images. Nothing private is read. Fresh noise each time. Two minutes on one core.
"""

import argparse
import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.neural_network import MLPClassifier
from stand_in import drawn
from torch import Tensor

from sfumato import sources
from sfumato.alignment import ClassMaps, Moments, Reference, covariances, fitted, measured, unpacked
from sfumato.config import Alignment, Privacy
from sfumato.images import ImageSet, to_unit
from sfumato.methods.plan import aligning
from sfumato.privacy.accounting.events import MomentEvents
from sfumato.privacy.engine.class_moments import moments_of
from sfumato.privacy.noise import system_source

SIDE, CLASSES, DELTA = 10, 10, 1e-5
LEAST = 1e-4
"""Variance that the plain way adds along every direction, and share of the trace that it leaves at least."""
EDGE = 1.2
"""How far above the noise's edge an eigenvalue has to lie to be kept by the plain way."""


def small(pixels: np.ndarray) -> Tensor:
    """Grey images as `[n, 1, SIDE, SIDE]` in -1..1."""
    return F.interpolate(to_unit(pixels), (SIDE, SIDE), mode="bilinear", antialias=True)


@dataclass(frozen=True)
class Known:
    """In the place of a codec: records that are known already, `[n, ...]`."""

    z: Tensor
    limit: float = math.inf

    def encode(self, x: Tensor) -> Tensor:
        """The records, whatever the pixels are."""
        return self.z

    def decode(self, z: Tensor) -> Tensor:
        """The same."""
        return z

    def largest_norm(self, shape: tuple[int, int, int]) -> float:
        """None is known."""
        return math.inf


def moments(x: Tensor, y: Tensor, where: Reference, settings: Alignment, epsilon: float) -> Moments:
    """What the mechanism lets out of records `x` `[n, ...]` at `epsilon`."""
    spends = aligning(settings.model_copy(update={"share": 1.0}), Privacy(epsilon=epsilon, delta=DELTA))
    pixels, labels = np.zeros((len(x), 1, 1, 1), np.uint8), y.numpy()
    images = ImageSet(pixels, labels, tuple(map(str, range(CLASSES))))
    events, still = MomentEvents.of([spend.event for spend in spends]), torch.device("cpu")
    return moments_of(
        images, events, where, settings, classes=CLASSES, codec=Known(x), device=still, source=system_source()
    )


def unshrunk_maps(noisy: Moments, where: Reference) -> ClassMaps:
    """The plain way."""
    maps = fitted(noisy, where)
    number = noisy.counts.double().clamp(min=1)
    there, back = [], []
    for one in plain_covariances(noisy, where):
        there.append(power(where.covariance, 0.5) @ power(one, -0.5))
        back.append(power(one, 0.5) @ power(where.covariance, -0.5))
    means = noisy.sums / number[..., None]
    return replace(maps, centres=means, there=torch.stack(there).mT, back=torch.stack(back).mT)


def plain_covariances(noisy: Moments, where: Reference) -> list[Tensor]:
    """Eigenvalues above the edge as they were seen, the rest like the public images, scaled to the trace that is left."""
    made = []
    for second, count in zip(unpacked(noisy.seconds), noisy.counts.double().sum(1).clamp(min=1), strict=True):
        one, eye = second / count, torch.eye(len(second), dtype=torch.float64)
        values, vectors = torch.linalg.eigh(one)
        own = values > EDGE * 2 * math.sqrt(len(one)) * noisy.second_noise / float(count)
        span = vectors[:, own]
        rest = (eye - span @ span.T) @ where.covariance @ (eye - span @ span.T)
        left = max(float(one.trace() - values[own].sum()), LEAST * len(one))
        made.append((span * values[own]) @ span.T + rest * left / float(rest.trace()) + LEAST * eye)
    return made


def power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of a symmetric positive matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=LEAST) ** exponent) @ vectors.T


def bures(mean: Tensor, one: Tensor, other_mean: Tensor, other: Tensor) -> float:
    """Squared 2-Wasserstein distance of two Gaussians."""
    root = power(one, 0.5)
    middle = torch.linalg.eigvalsh(root @ other @ root).clamp(min=0).sqrt().sum()
    return float((mean - other_mean).square().sum() + one.trace() + other.trace() - 2 * middle)


def far(means: Tensor, made: list[Tensor], x: Tensor, y: Tensor, where: Reference) -> float:
    """Mean over classes of how far the found Gaussian lies from the class's own."""
    each = []
    for label in range(CLASSES):
        own = x[y == label].flatten(1).double() - where.mean
        each.append(bures(own.mean(0), torch.cov(own.T, correction=0), means[label], made[label]))
    return float(np.mean(each))


def learnt(maps: ClassMaps, letters: Tensor, test: tuple[Tensor, Tensor], images: int, seed: int) -> float:
    """Accuracy on the test digits after training on letters that were taken to the classes."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(images) % CLASSES
    shown = letters[torch.randint(len(letters), (images,), generator=rng)]
    x = maps.to_private(shown, y, rng).clamp(-1, 1).flatten(1)
    with warnings.catch_warnings():  # it stops where it is told to
        warnings.simplefilter("ignore")
        judge = MLPClassifier((128,), max_iter=15, random_state=seed).fit(x.numpy(), y.numpy())
    return float(judge.score(test[0].flatten(1).numpy(), test[1].numpy()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.2, 1.0, 10.0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--clusters", type=int, default=12)
    parser.add_argument("--proportions", type=float, nargs=3, default=Alignment().proportions)
    parser.add_argument("--residual", type=float, default=Alignment().residual)
    parser.add_argument("--quantile", type=float, default=Alignment().quantile)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    (pixels, labels), (unseen, names) = drawn("train", given.records, rng), drawn("test", 4000, rng)
    x, y = small(pixels[:, None]), torch.as_tensor(labels).long()
    test = small(unseen[:, None]), torch.as_tensor(names).long()
    glyphs = sources.load("glyphs", sources.Reading(part="all", size=28, glyphs_per_class=200))
    letters, of = small(glyphs.pixels), torch.as_tensor(glyphs.labels).long()
    how = {"proportions": given.proportions, "residual": given.residual, "quantile": given.quantile}
    print("| epsilon | maps | far | MLP |\n| --- | --- | --- | --- |")
    for epsilon in given.epsilons:
        for name, clusters in (("kept", 1), ("shrunk", 1), (f"shrunk, {given.clusters} cells", given.clusters)):
            settings = Alignment(kind="moments", clusters=clusters, **how)
            where = measured(letters, of, settings, seed=given.seed)
            seen = moments(x, y, where, settings, epsilon)
            maps = unshrunk_maps(seen, where) if name == "kept" else fitted(seen, where)
            made = plain_covariances(seen, where) if name == "kept" else list(covariances(seen, where)[0])
            distance = f"{far(maps.centres[:, 0], made, x, y, where):.3f}" if clusters == 1 else ""
            score = learnt(maps, letters, test, given.images, given.seed)
            print(f"| {epsilon:g} | {name} | {distance} | {score:.3f} |", flush=True)


if __name__ == "__main__":
    main()
