"""What waiting threads cost where several jobs share the cores: training steps with OpenMP's `passive` waiting, as a ratio to its default.

    .venv/bin/python benchmarks/threads.py

`sfumato` sets OMP_WAIT_POLICY=passive before torch is loaded, unless the environment has a value. Each process trains a small network on all cores;
one alone, then one beside another of its kind. Steps a second of the first, medians of interleaved rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys

POLICIES = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}
WIDTH, DEPTH, BATCH, INPUTS = 512, 4, 256, 98
WORKER = """
import sys, time, torch
from torch import nn
width, depth, batch, inputs = map(int, sys.argv[1:5])
hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.SiLU())]
network = nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), *hidden, nn.Linear(width, inputs))
optimiser, x = torch.optim.Adam(network.parameters()), torch.randn(batch, inputs)
start, steps = time.perf_counter(), 0
while (spent := time.perf_counter() - start) < float(sys.argv[5]):
    optimiser.zero_grad()
    network(x).square().mean().backward()
    optimiser.step()
    steps += 1
print(steps / spent)
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (default: 3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one (default: 5)")
    given = parser.parse_args()
    rates: dict[tuple[int, str], list[float]] = {}
    for _ in range(given.rounds):
        for jobs in (1, 2):
            for policy in POLICIES:
                rates.setdefault((jobs, policy), []).append(steps_a_second(jobs, policy, given.seconds))
    print("| jobs on all cores | default, steps/s | passive, steps/s | passive by default |\n| --- | --- | --- | --- |")
    for jobs in (1, 2):
        default, passive = (statistics.median(rates[jobs, policy]) for policy in POLICIES)
        print(f"| {jobs} | {default:.1f} | {passive:.1f} | {passive / default:.2f} |")


def steps_a_second(jobs: int, policy: str, seconds: float) -> float:
    """Mean over so many processes that train at once, each with a thread for every core."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", WORKER, *map(str, (WIDTH, DEPTH, BATCH, INPUTS, seconds))]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment, **POLICIES[policy]})
        for _ in range(jobs)
    ]
    return statistics.mean(float(process.communicate()[0]) for process in running)


if __name__ == "__main__":
    main()
