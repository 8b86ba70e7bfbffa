"""What pricing a long ledger costs: a thousand different entries composed, and how near dp-accounting the result lies.

    .venv/bin/python benchmarks/accountant.py [--entries 1000] [--delta 1e-5] [--reference 30]

Seconds are CPU time on one core, imports not included (they are printed beside). dp-accounting's `PLDAccountant` would
need minutes for such a list, so the ratio is taken on `--reference` entries spread over each mix, by the same
composition (`grid_epsilon`) that prices the long one. Prints a Markdown table.
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from sfumato.config import Relation
from sfumato.privacy.accounting.accountant import epsilon
from sfumato.privacy.accounting.events import Event, Gaussian, SubsampledGaussian
from sfumato.privacy.accounting.pld import Step, grid_epsilon

INTERVAL_SHARE = 1e-4
"""dp-accounting's grid, as a share of epsilon."""

Ends = tuple[float, float]


def main() -> None:
    """Price every mix and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1000, help="different entries per mix (default: 1000)")
    parser.add_argument("--delta", type=float, default=1e-5, help="delta (default: 1e-5)")
    parser.add_argument("--reference", type=int, default=30, help="entries for dp-accounting, 0 for none (default: 30)")
    arguments = parser.parse_args()
    warm = [SubsampledGaussian(noise_multiplier=1.0 + i, sample_rate=0.01, steps=10) for i in range(10)]
    first, _ = cpu_seconds(epsilon, warm, arguments.delta)
    print(f"first call, with its imports: {first:.2f} s\n")
    columns = ["mix", "relation", "entries", "s", "epsilon", "of them", "s", "epsilon", "dp-accounting s", "ratio"]
    for line in (columns, ["---"] * len(columns)):
        print("| " + " | ".join(line) + " |")
    for name, events in mixes(arguments.entries).items():
        for relation in ("add_remove", "replace_one"):
            seconds, price = cpu_seconds(epsilon, events, arguments.delta, relation)
            row = [name, relation, f"{len(events)}", f"{seconds:.2f}", f"{price:.6g}"]
            if arguments.reference:
                row += compared(events[:: -(-len(events) // arguments.reference)], arguments.delta, relation)
            print("| " + " | ".join(row) + " |", flush=True)


def mixes(number: int) -> dict[str, list[Event]]:
    """Ledgers of `number` entries, no two alike."""
    weekly = [(5.5, 0.01, 2000), (20.0, 0.05, 1000), (40.0, 0.1, 400), (100.0, 0.25, 200)]
    grid = math.ceil(number ** (1 / 3))
    sweep = [
        (noise, rate, round(steps))
        for noise in np.geomspace(3, 50, grid)
        for rate in np.geomspace(1e-3, 0.1, grid)
        for steps in np.geomspace(10, 1e4, grid)
    ]
    return {
        "four settings, every week another noise": [
            sampled(noise * (1 + 2e-5 * week), rate, steps)
            for week in range(number)
            for noise, rate, steps in [weekly[week % 4]]
        ],
        "sweep of noise, rate, steps": [sampled(*entry) for entry in sweep[:number]],
        "all different": draw(number, (0.8, 10.0), (1e-4, 0.05), (1, 1000)),
        "all different, cheap": draw(number, (2.0, 50.0), (1e-4, 0.02), (1, 2000)),
        "one in ten a plain Gaussian": [
            *draw(number - number // 10, (2.0, 50.0), (1e-4, 0.02), (1, 2000)),
            *(Gaussian(noise_multiplier=100.0 + i) for i in range(number // 10)),
        ],
        "the widest: noise .3-50, rate 1e-4-1, steps 1-1e6": draw(number, (0.3, 50.0), (1e-4, 1.0), (1, 1e6)),
        "single steps": draw(number, (0.3, 5.0), (1e-4, 0.1), (1, 1)),
        "rare large losses": draw(number, (0.3, 0.6), (1e-4, 1e-3), (1, 50)),
        "long runs": draw(number, (5.0, 50.0), (1e-4, 1e-3), (1e5, 1e6)),
    }


def draw(number: int, noises: Ends, rates: Ends, steps: Ends) -> list[Event]:
    """`number` entries, log-uniform between the ends."""
    uniform = np.random.default_rng(0).uniform
    ends = [(math.log(low), math.log(high)) for low, high in (noises, rates, steps)]
    return [sampled(*(math.exp(uniform(*pair)) for pair in ends)) for _ in range(number)]


def sampled(noise: float, rate: float, steps: float) -> Event:
    """One entry."""
    return SubsampledGaussian(noise_multiplier=float(noise), sample_rate=float(rate), steps=round(steps))


def compared(events: list[Event], delta: float, relation: Relation) -> list[str]:
    """A short list by our composition and by dp-accounting: columns of the table."""
    wholes = [1 / event.noise_multiplier for event in events if isinstance(event, Gaussian)]
    steps = [
        Step(1 / event.noise_multiplier, event.sample_rate, event.steps)
        for event in events
        if isinstance(event, SubsampledGaussian)
    ]
    seconds, ours = cpu_seconds(grid_epsilon, wholes, steps, delta, relation)
    if not ours <= 200:
        return [str(len(events)), f"{seconds:.2f}", f"{ours:.6g}", "-", "beyond its reach"]
    took, theirs = cpu_seconds(reference, wholes, steps, delta, relation, INTERVAL_SHARE * ours)
    return [str(len(events)), f"{seconds:.2f}", f"{ours:.6g}", f"{took:.2f}", f"{ours / theirs:.5f}"]


def reference(wholes: list[float], steps: list[Step], delta: float, relation: Relation, interval: float) -> float:
    """dp-accounting from end to end."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    names = dp_accounting.NeighboringRelation
    accountant = PLDAccountant(
        names.REPLACE_ONE if relation == "replace_one" else names.ADD_OR_REMOVE_ONE,
        value_discretization_interval=interval,
    )
    for mu in wholes:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    for mu, rate, count in steps:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1 / mu)), count)
    return float(accountant.get_epsilon(delta))


def cpu_seconds(call: Callable[..., float], *arguments: Any) -> tuple[float, float]:
    """CPU seconds of a call, and its result."""
    start = time.process_time()
    result = call(*arguments)
    return time.process_time() - start, result


if __name__ == "__main__":
    main()
