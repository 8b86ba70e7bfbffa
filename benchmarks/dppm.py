"""What DPPM's randomised response leaves open, in numbers; opens no private image.

    .venv/bin/python benchmarks/dppm.py

Two tables: the expectation of the loss by epsilon, and how one record is told from the weights of a linear score. What k,
the step size and the momenta do to images is `sfumato sweep dppm`.
"""

import argparse
import math
from collections.abc import Iterator

import torch

from sfumato.diffusion.score_matching import exchanged, sliced_losses
from sfumato.methods.dppm import response_probabilities

EPSILONS = (0.1, 1.0, 10.0, math.inf)
DIMENSION, RECORDS, CHOICES, ROUNDS, TRIALS = 16, 32, 10, 1000, 200
RATE = 0.01
"""Learning rate of the one step that the linear score takes."""


def main() -> None:
    """Print both tables."""
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


if __name__ == "__main__":
    main()
