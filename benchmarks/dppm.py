"""DPPM in small: what k, the step size and the momenta do to the images, and what the randomised response leaves open.

    .venv/bin/python benchmarks/dppm.py [--steps 1500] [--images 1000] [--leak-only]

The runs are those of `sfumato sweep` on the embedded default, through the flow that users run, in a home of its own
(`sfumato-home/benchmarks`); samplers are varied without training again. Prints where the comparison lies (table, plot
and one image of each class), and two tables about the leak, which open no private image: the expectation of the loss
by epsilon, and how one record is told from the weights of a linear score.
"""

import argparse
import math
import os
from collections.abc import Iterator

import torch

from sfumato.diffusion.score_matching import exchanged, sliced_losses
from sfumato.methods.dppm import response_probabilities
from tasks.where import CHECKOUT, configure

SWEEP = [
    "dppm",
    "dppm method.k=2",
    "dppm method.k=100",
    "dppm generation.hamiltonian.step_size=0.006",
    "dppm generation.hamiltonian.step_size=0.05",
    "dppm generation.hamiltonian.momentum=rayleigh",
    "dppm generation.hamiltonian.momentum=uniform",
    "dppm generation.hamiltonian.metropolis=false",
    "dppm method.objective=plain generation.hamiltonian.start=1 generation.hamiltonian.step_size=1e-4",
    "dppm method.network.kind=refinenet method.network.width=16 method.network.blocks=1 method.training.steps=600",
]
SOUND = (
    "dppm method.mechanism=dp_sgd fine_tuning.trainable=[film,time,rest] fine_tuning.steps=500 fine_tuning.sample_rate=0.25 "
    "fine_tuning.draws=8 fine_tuning.clip=0.1 fine_tuning.rate_other=0.01 fine_tuning.ema_decay=0.98"
)
"""The certified sibling, by the recipe of the preset `dpdm`."""
EPSILONS = (0.1, 1.0, 10.0, math.inf)
DIMENSION, RECORDS, CHOICES, ROUNDS, TRIALS = 16, 32, 10, 1000, 200
RATE = 0.01
"""Learning rate of the one step that the linear score takes."""


def main() -> None:
    """Sweep, then print the leak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="training steps of each model (default: 1500)")
    parser.add_argument("--images", type=int, default=1000, help="images that are drawn and judged (default: 1000)")
    parser.add_argument("--leak-only", action="store_true", help="no runs, only the two tables about the leak")
    arguments = parser.parse_args()
    if not arguments.leak_only:
        os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
        configure()
        from flows.compare import compare

        usual = [f"method.training.steps={arguments.steps}", "pretraining.steps=1000", "evaluation.resamples=20"]
        usual += [f"{section}.images={arguments.images}" for section in ("generation", "evaluation")]
        found = compare(variants=[*SWEEP, SOUND], epsilons=[10.0], changes=usual, title="dppm")
        print(f"table, plot and page: {found.folder}")
    leak()


def leak() -> None:
    """Both tables."""
    torch.set_num_threads(1)
    print(
        f"\nExpectation of Eq. 7 for a fixed score, {ROUNDS * RECORDS} draws, k = {CHOICES}; by hand {by_hand():.3f}\n"
    )
    for line in (["epsilon", "a vector stays itself", "mean", "standard error"], ["---"] * 4, *expectations()):
        print("| " + " | ".join(line) + " |")
    print(
        f"\nOne step of a linear score on {RECORDS} records that are zero, or {RECORDS - 1} and one that is not; {TRIALS} trials\n"
    )
    head = [
        "epsilon",
        "turning without the record, largest",
        "with it, least",
        "record outside the plane, largest",
        "another, least",
    ]
    for line in (head, ["---"] * len(head), *counterexample()):
        print("| " + " | ".join(line) + " |")


def fixed(seed: int):
    """Records and a score that is neither linear nor a gradient."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(DIMENSION, DIMENSION, generator=generator) / DIMENSION**0.5
    return torch.randn(RECORDS, DIMENSION, generator=generator), lambda u: torch.sin(u @ mix) - u


def by_hand() -> float:
    """tr(grad s) + |s|^2 / 2, with the whole Jacobian."""
    records, score = fixed(0)
    traces = torch.stack([torch.autograd.functional.jacobian(score, record).trace() for record in records])
    return float((traces + score(records).square().sum(1) / 2).mean())


def expectations() -> Iterator[list[str]]:
    """The loss of those records with exchanged projections, by epsilon."""
    records, score = fixed(0)
    for epsilon in EPSILONS:
        generator, losses = torch.Generator().manual_seed(1), []
        keep, _ = response_probabilities(epsilon, CHOICES)
        for _ in range(ROUNDS):
            v = torch.randn(records.shape, generator=generator)
            answered = exchanged(v, keep=keep, k=CHOICES, generator=generator)
            losses.append(sliced_losses(score, records, v, answered).mean().detach())
        found = torch.stack(losses)
        yield [f"{epsilon:g}", f"{keep:.3f}", f"{found.mean():.3f}", f"{found.std() / ROUNDS**0.5:.3f}"]


def counterexample() -> Iterator[list[str]]:
    """What the antisymmetric part of the weights tells of one record, by epsilon."""

    def weights_after(records, keep: float, generator):
        weights = torch.diag(torch.arange(1.0, DIMENSION + 1)).requires_grad_()
        v = torch.randn(records.shape, generator=generator)
        answered = exchanged(v, keep=keep, k=CHOICES, generator=generator)
        loss = sliced_losses(lambda u: u @ weights.T, records, v, answered).mean()
        step = RATE * torch.autograd.grad(loss, weights)[0]
        after = weights.detach() - step
        return (after - after.T) / 2

    def outside(record, turning) -> float:
        plane = torch.linalg.svd(turning)[0][:, :2]
        return float((record - plane @ (plane.T @ record)).norm() / record.norm())

    for epsilon in EPSILONS:
        generator, rows = torch.Generator().manual_seed(2), []
        keep, _ = response_probabilities(epsilon, CHOICES)
        for _ in range(TRIALS):
            member, other = torch.randn(2, DIMENSION, generator=generator)
            zeros = torch.zeros(RECORDS, DIMENSION)
            without, turning = (
                weights_after(records, keep, generator) for records in (zeros, torch.cat([zeros[1:], member[None]]))
            )
            rows.append((without.norm(), turning.norm(), outside(member, turning), outside(other, turning)))
        table = torch.tensor(rows)
        found = [table[:, 0].max(), table[:, 1].min(), table[:, 2].max(), table[:, 3].min()]
        yield [f"{epsilon:g}", *(f"{float(value):.2g}" for value in found)]


if __name__ == "__main__":
    main()
