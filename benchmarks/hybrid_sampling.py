"""The quality columns of Tables 1, 3 and 4, Table 2's attack in numbers, and Figures 1 and 11 of Anonymous 2025, in small.

    .venv/bin/python benchmarks/hybrid_sampling.py [--images 500] [--steps 4000]

A public network of rendered letters samples a share of the way on the paper's grid, and the empirical denoiser goes on: for one step, after
which the network takes over again (Table 4), or to the end (Table 3). The private set is scikit-learn's digits, public in truth, so that all of this
stays outside the ledger, with repeatable noise. A sample of the private records has on average 1, 10 or 100 of them, as in the paper.

Two readings of the empirical denoiser: `printed` is the paper's formula with p_t = 1 and 2C / (p_t |D|) = 1, whose terms are not weighed against each
other; `posterior` weighs the sampled records by their likelihoods, which the formula means and no C bounds. A copy is an image as near to a training record
as `sfumato.evaluation.copies` says. Table 2 attacks a network that was trained on the digits without privacy (Duan et al. 2023, one step there and
back), and the empirical denoiser itself; half of the records set the threshold, the other half is attacked. Writes `docs/hybrid-sampling.png`, and Figures 2, 5
and 9 as `docs/empirical-denoiser-figures.png`.
"""

import argparse
import copy
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from sampling_privacy import METHOD, World, table
from torch import Tensor

from sfumato.config import Pretraining
from sfumato.diffusion.edm import clean_image, noisy_step
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.evaluation.classifier import features
from sfumato.evaluation.copies import check_copies
from sfumato.evaluation.fidelity import frechet_distance, neighbours
from sfumato.evaluation.membership import nearest
from sfumato.images import grid, to_pixels, to_unit
from sfumato.methods.empirical_denoiser import Grid, attack_success, claim, window
from sfumato.privacy.accounting.accountant import subsampled_gaussian_epsilon
from sfumato.privacy.engine.kernel_mean import kernel_mean, log_peak, squared_distances
from sfumato.training import pretrain
from tasks.runtime.environment import CHECKOUT, configure

PICTURE, FIGURES_PICTURE = (
    CHECKOUT / "docs" / name for name in ("hybrid-sampling.png", "empirical-denoiser-figures.png")
)
SHOWN_IMAGES = 20
FIGURES = Grid(N=50)
"""The grid of the paper's figures."""
FIGURE_2, FIGURE_5, FIGURE_9 = (6.43, 2.754, 1.049, 0.342, 0.09), (5.0, 0.2, 0.01, 0.002), (0.5, 0.1, 0.01)
"""Levels from which the empirical denoiser goes on, smallest levels, and sample rates."""
LEVELS = Grid()
DELTA = 1e-5
PERCENTS, EXPECTED = (95, 93, 90, 83, 75, 50), (1, 10, 100)
"""The paper's shares of public steps, and records in a sample."""
SHOWN = (93, 75)
"""Shares whose images are drawn, each above its nearest training record."""
AT = {"T": 2.5, "3/4 T": 25.0, "1/2 T": 50.0, "1/4 T": 75.0}
"""Columns of Table 2, with the share of the sampling that is done there."""
RATES = (0.5, 0.01, 0.005)
Denoiser = Callable[[Tensor, float], Tensor]
"""(x `[b, c, h, w]`, noise level) -> the clean images that are expected."""


def main() -> None:
    """Train the public half, then print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=500, help="images of each setting (default: 500)")
    parser.add_argument(
        "--steps", type=int, default=4000, help="training steps of the attacked network (default: 4000)"
    )
    arguments = parser.parse_args()
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from flows.synthesize import synthesize

    settings = ["evaluation.baseline=false", "generation.images=100"]
    study = Study(World(synthesize(method=METHOD, preset="digits", changes=settings)), arguments.images)
    qualities(study)
    figures(study)
    attacks(study, arguments.steps)


@dataclass(frozen=True)
class Study:
    """The public half, the digits, and how many images are drawn."""

    world: World
    images: int

    def network(self, model: torch.nn.Module) -> Denoiser:
        """A network asked for no class."""
        return lambda x, sigma: clean_image(self.world.parts.schedule, model, x, torch.full((len(x),), NO_CLASS), sigma)

    def printed(self, expected: int, generator: torch.Generator) -> Denoiser:
        """The paper's formula on a sample."""
        records, _ = self.world.private
        coins = _Coins(generator)

        def mean(x: Tensor, sigma: float) -> Tensor:
            flat = torch.full((len(x),), -log_peak(sigma, x[0].numel()))
            return kernel_mean(
                records, x, sigma, clip=expected / 2, expected=expected, log_density=flat, centre=torch.zeros_like(x),
                sample_rate=expected / len(records), source=coins,
            ).clamp(-1, 1)  # fmt: skip

        return mean

    def posterior(self, expected: int, generator: torch.Generator) -> Denoiser:
        """The expected record of a sample given x; the public network's image where nobody was sampled."""
        records, _ = self.world.private
        public = self.network(self.world.parts.public)

        def mean(x: Tensor, sigma: float) -> Tensor:
            there = torch.rand(len(x), len(records), generator=generator) < expected / len(records)
            mixed = posterior_mean(records, x, sigma, there)
            return torch.where(there.any(1)[:, None, None, None], mixed, public(x, sigma))

        return mean

    def sampled(self, of: Denoiser, places: range, grid: Grid = LEVELS) -> Tensor:
        """Images drawn by the public network but for the steps at these places; all settings share their noise."""
        generator = torch.Generator().manual_seed(1)
        public, levels = self.network(self.world.parts.public), grid.levels().tolist()
        x = levels[0] * torch.randn(self.images, *self.world.parts.shape, generator=generator)
        for place, (sigma, after) in enumerate(itertools.pairwise(levels)):
            x = noisy_step(x, (of if place in places else public)(x, sigma), sigma, after, generator)
        return to_unit(to_pixels(x.clamp(-1, 1)))


@dataclass(frozen=True)
class _Coins:
    """Coins that can be thrown again."""

    generator: torch.Generator

    def coins(self, shape: torch.Size, rate: float) -> Tensor:
        return (torch.rand(shape, generator=self.generator) < rate).double()


def posterior_mean(records: Tensor, x: Tensor, sigma: float, there: Tensor) -> Tensor:
    """E[record | x] over the records `[n, ...]` that are `there` `[b, n]`, at x `[b, ...]`; zero where none is."""
    flat = records.flatten(1).double()
    likelihoods = -squared_distances(x.flatten(1).double(), flat) / (2 * sigma**2)
    weights = likelihoods.masked_fill(~there, -math.inf).softmax(1).nan_to_num()
    return (weights @ flat).float().view_as(x)


def qualities(study: Study) -> None:
    """Tables 3 and 4: claim, certificate, distance and copies of every setting."""
    world = study.world
    (train, _), (test, _) = world.private, world.test
    real = features(world.judge, test)

    def scores(x: Tensor) -> dict[str, float | str]:
        check, *_ = check_copies(x, train, test)
        drawn = features(world.judge, x)
        return {
            "Frechet": frechet_distance(real, drawn),
            "coverage": float(neighbours(real, drawn).covered.mean()),
            "copies": f"{check.copies} of {check.images}",
        }

    public = study.network(world.parts.public)
    rows = [
        {"steps": "public network alone", **scores(study.sampled(public, range(0)))},
        {"steps": "training images themselves", **scores(train[: study.images])},
    ]
    print("\n**What to compare with**\n")
    table(rows, list(rows[0]))
    rows, pages = [], {}
    for single, percent, expected in itertools.product((True, False), PERCENTS, EXPECTED):
        places = window(percent, 100, single, LEVELS.N)
        rate = expected / len(train)
        row: dict[str, float | str] = {
            "steps": "one" if single else "all", "after": f"{percent} %", "sample": expected,
            "claim": claim(rate, percent, study.images, DELTA, single).epsilon,
            "certified": certified(LEVELS.mus()[places.start : places.stop].tolist(), rate, study.images),
        }  # fmt: skip
        for name in ("printed", "posterior"):
            x = study.sampled(getattr(study, name)(expected, torch.Generator().manual_seed(2)), places)
            row |= {f"{score}, {name}": value for score, value in scores(x).items() if score != "coverage"}
            if single and expected == 1 and percent in SHOWN:
                pages[f"{name}, one step after {percent} %"] = x
        rows.append(row)
    print(f"\n**Tables 3 and 4 in small**: {study.images} images, delta {DELTA:g}\n")
    table(rows, list(rows[0]))
    picture(pages, train, PICTURE)


def certified(mus: list[float], rate: float, images: int) -> float | str:
    """The sound epsilon of the formula as printed; an exchange moves its mean by 1, of which a record's own share is half."""
    epsilon = subsampled_gaussian_epsilon([mu / 2 for mu in mus], rate, DELTA, images, "replace_one")
    return epsilon if math.isfinite(epsilon) else "none"


def attacks(study: Study, steps: int) -> None:
    """Table 2 with Figures 1 and 11: how alike both denoisers are at a level, and what an attack on each finds."""
    world = study.world
    (train, labels), (test, _) = world.private, world.test
    model, _ = pretrain(
        copy.deepcopy(world.parts.public).requires_grad_(True), world.parts.schedule, train, labels,
        Pretraining(steps=steps, label_dropout=1.0), seed=0,
    )  # fmt: skip
    neural = study.network(model)
    everybody = torch.ones(1, len(train), dtype=torch.bool)

    def empirical(x: Tensor, sigma: float) -> Tensor:
        return posterior_mean(train, x, sigma, everybody.expand(len(x), -1))

    generator = torch.Generator().manual_seed(3)
    members = train[torch.randperm(len(train), generator=generator)[: len(test)]]
    rows = []
    for name, percent in AT.items():
        (place, *_) = window(percent, 100, True, LEVELS.N)
        sigma = float(LEVELS.levels()[place])
        x = test + sigma * torch.randn(test.shape, generator=generator)
        ours, theirs = (x - empirical(x, sigma)).flatten(1), (x - neural(x, sigma)).flatten(1)
        row: dict[str, float | str] = {
            "t": name, "noise level": sigma, "cosine": float(torch.cosine_similarity(ours, theirs).mean()),
            "relative distance": float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).mean()),
        }  # fmt: skip
        for who, of in {"network": neural, "empirical": empirical}.items():
            errors = [round_trip(of, images, place) for images in (members, test)]
            row[f"success, {who}"] = success(*errors)
        until = {rate: claim(rate, 0, 1, DELTA, False, until=percent).epsilon for rate in RATES}
        rows.append(row | {f"theory, p = {rate:g}": attack_success(epsilon) for rate, epsilon in until.items()})
    print("\n**Table 2 in small**, with Figures 1 and 11\n")
    table(rows, list(rows[0]))


def round_trip(of: Denoiser, images: Tensor, place: int) -> Tensor:
    """The t-error `[n]` of images `[n, c, h, w]` at a place of the levels: they are carried there without noise, then one level further
    and back, and come back elsewhere (Duan et al. 2023, Eq. 9)."""
    levels = LEVELS.levels()[:-1].tolist()
    *_, x = walk(of, images, levels[: max(place, 1) - 1 : -1])
    *_, further = walk(of, x, levels[max(place, 1) : max(place, 1) - 2 if place > 1 else None : -1])
    *_, back = walk(of, further, levels[max(place, 1) - 1 : max(place, 1) + 1])
    return (back - x).flatten(1).square().sum(1)


def walk(of: Denoiser, x: Tensor, levels: list[float]) -> Iterator[Tensor]:
    """x after each step of dx / dsigma = (x - D(x)) / sigma along these levels."""
    yield x
    for sigma, after in itertools.pairwise(levels):
        x = x + (after - sigma) * (x - of(x, sigma)) / sigma
        yield x


def success(members: Tensor, others: Tensor) -> float:
    """Share of the second half of both `[n]` that is told apart by the threshold, and the side of it, that serve the first half best."""
    half = len(members) // 2
    thresholds = torch.cat([members[:half], others[:half]])
    learnt = told_apart(members[:half], others[:half], thresholds)
    best = (learnt - 0.5).abs().argmax()
    tried = told_apart(members[half:], others[half:], thresholds[best, None])
    return float(tried if learnt[best] >= 0.5 else 1 - tried)


def told_apart(members: Tensor, others: Tensor, thresholds: Tensor) -> Tensor:
    """Share of both `[n]` that lie where each of the thresholds `[m]` wants them: members at it or below, others above."""
    right = (members[:, None] <= thresholds).double().mean(0) + (others[:, None] > thresholds).double().mean(0)
    return right / 2


def figures(study: Study) -> None:
    """Figures 2, 5 and 9: sampling that ends with the empirical denoiser, from a level on, down to a level, and by samples of the records.

    The mean is that by likelihoods over all records, or a sample of them. What is drawn down to a level still has its noise.
    """
    few, pages = Study(study.world, SHOWN_IMAGES), {}
    everybody = len(study.world.private[0])
    for level in FIGURE_2:
        start = int(abs(FIGURES.levels()[:-1] - level).argmin())
        walk_on = few.posterior(everybody, torch.Generator().manual_seed(2))
        pages[f"Figure 2: all records from noise level {level:g} on"] = few.sampled(
            walk_on, range(start, FIGURES.N), FIGURES
        )
    for sigma_min in FIGURE_5:
        levels = Grid(N=FIGURES.N, sigma_min=sigma_min)
        alone = few.posterior(everybody, torch.Generator().manual_seed(2))
        pages[
            f"Figure 5: all records, levels down to {sigma_min:g}, epsilon {claim(1.0, 0, 1, DELTA, False, levels).epsilon:,.3g} an image"
        ] = few.sampled(alone, range(FIGURES.N - 1), levels)
    for rate in FIGURE_9:
        levels = Grid(N=FIGURES.N, sigma_min=0.01)
        sampled = few.posterior(round(rate * everybody), torch.Generator().manual_seed(2))
        pages[
            f"Figure 9: p = {rate:g}, levels down to 0.01, claimed {claim(rate, 0, 1, DELTA, False, levels).epsilon:.3g} an image"
        ] = few.sampled(sampled, range(FIGURES.N - 1), levels)
    picture(pages, study.world.private[0], FIGURES_PICTURE)


def picture(pages: dict[str, Tensor], train: Tensor, path: Path) -> None:
    """The first images of each setting above their nearest training records."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(pages), 1, figsize=(12, 1.9 * len(pages)), layout="constrained")
    for axis, (title, images) in zip(axes, pages.items(), strict=True):
        shown = images[:SHOWN_IMAGES]
        _, record = nearest(shown, train)
        axis.imshow(grid(to_pixels(torch.cat([shown, train[record]])), SHOWN_IMAGES, 7), cmap="gray")
        axis.set(title=f"{title}; below, the nearest training records", xticks=[], yticks=[])
    figure.savefig(path, dpi=80)
    print(f"\n{path.relative_to(CHECKOUT)}")


if __name__ == "__main__":
    main()
