"""What DPPM's randomised response leaves open, in numbers; opens no private image.

    .venv/bin/python benchmarks/dppm.py

Three tables: the expectation of the loss by epsilon, how one record is told from the weights of a linear score, and what the Metropolis
test misses where the energy is integrated along the path and not known. What k, the step size and the momenta do to images is
`sfumato sweep dppm`.
"""

import argparse
import math
from collections.abc import Iterator

import torch
from scipy.stats import gennorm, kstest

from sfumato.config import Hamiltonian
from sfumato.diffusion.hamiltonian import Dynamics, kinetic, leapfrog, momentum, walked
from sfumato.diffusion.score_matching import exchanged, sliced_losses
from sfumato.methods.dppm import response_probabilities

EPSILONS = (0.1, 1.0, 10.0, math.inf)
DIMENSION, RECORDS, CHOICES, ROUNDS, TRIALS = 16, 32, 10, 1000, 200
STEPS = (0.1, 0.2, 0.4, 0.6, 0.8)
"""Lengths of a leapfrog step; the density's standard deviation is .82."""
NUMBERS, LEAPS, ITERATIONS, CHAINS = 3, 3, 60, 4000
"""Of the density whose energy is known: numbers of a point, leapfrog steps of an iteration, iterations, and points."""
RATE = 0.01
"""Learning rate of the one step that the linear score takes."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_num_threads(1)
    print(f"Eq. 7 for a fixed score and {RECORDS} records, {ROUNDS} draws, k = {CHOICES}; by hand {by_hand():.3f}\n")
    show(["epsilon", "a vector stays itself", "mean", "standard error"], expectations())
    print(f"\nOne step of a linear score on {RECORDS} records: all zero, or all but one; {TRIALS} trials\n")
    show(
        ["epsilon", "turning without it, most", "with it, least", "it off the plane, most", "another, least"],
        counterexample(),
    )
    print(
        f"\nThe density exp(-x^4 / 4) of {NUMBERS} numbers, {LEAPS} leapfrog steps, {CHAINS} points; then {ITERATIONS} iterations\n"
    )
    show(
        [
            "step", "error of the integral", "what the test looks at", "decisions that differ", "off, by the integral", "off, by the energy",
            "off, without a test",
        ],
        energies(),
    )  # fmt: skip


def show(head: list[str], rows: Iterator[list[str]]) -> None:
    """A Markdown table."""
    for line in (head, ["---"] * len(head), *rows):
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
        losses_drawn = torch.stack(losses)
        yield [f"{epsilon:g}", f"{keep:.3f}", f"{losses_drawn.mean():.3f}", f"{losses_drawn.std() / ROUNDS**0.5:.3f}"]


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
        extremes = [table[:, 0].max(), table[:, 1].min(), table[:, 2].max(), table[:, 3].min()]
        yield [f"{epsilon:g}", *(f"{float(value):.2g}" for value in extremes)]


def energies() -> Iterator[list[str]]:
    """By step: median error of the line integral of the score, the median energy gained, the share of Metropolis decisions on which integral and
    energy differ, and the largest difference between the distributions drawn and true (Kolmogorov-Smirnov), by either and without a test."""

    def score(x):
        return -(x**3)

    def log_density(x):
        return -(x**4).sum(1) / 4

    true = gennorm(4, scale=4**0.25)
    for step in STEPS:
        generator = torch.Generator().manual_seed(3)
        x = torch.from_numpy(true.rvs((CHAINS, NUMBERS), random_state=0))
        p = momentum("gaussian", x, generator)
        there, arrived, grown = leapfrog(score, x, p, step=step, steps=LEAPS)
        exact, lost = log_density(there) - log_density(x), kinetic(p) - kinetic(arrived)
        luck = torch.rand(CHAINS, generator=generator, dtype=x.dtype).log()
        differ = ((luck < grown + lost) != (luck < exact + lost)).double().mean()
        off = []
        for density, tests in ((None, True), (log_density, True), (None, False)):
            settings = Hamiltonian(iterations=ITERATIONS, steps=LEAPS, metropolis=tests)
            moves = Dynamics(score, step, density)
            drawn = walked(settings, lambda _, moves=moves: moves, x, generator=torch.Generator().manual_seed(4))
            off.append(kstest(drawn[:, 0].numpy(), true.cdf).statistic)
        middles = [float(part.abs().median()) for part in (grown - exact, exact + lost)]
        yield [f"{step:g}", *(f"{value:.2g}" for value in middles), f"{differ:.3f}", *(f"{value:.3f}" for value in off)]


if __name__ == "__main__":
    main()
