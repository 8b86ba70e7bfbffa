"""The table of the README: RAPID and plain DP-SGD on the embedded default, several seeds and budgets.

    .venv/bin/python benchmarks/digits.py [--seeds 3] [--epsilons 10 1]

Each seed retrains the public stages; budgets share them through the cache. Runs in a home of its own
(`sfumato-home/benchmarks`), so that its spending does not count against the ledger of real runs. Prints a Markdown
table of medians with the range over seeds.
"""

import argparse
import os
import statistics

from tasks.where import CHECKOUT, configure

COLUMNS = {
    "frechet": "Frechet distance",
    "coverage": "coverage",
    "readable": "readable",
    "logistic": "LR",
    "cnn": "CNN",
}


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[10.0, 1.0], help="budgets (default: 10 1)")
    arguments = parser.parse_args()
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from flows.synthesize import synthesize

    rows = []
    for epsilon in arguments.epsilons:
        scores: dict[str, dict[str, list[float]]] = {}
        for seed in range(arguments.seeds):
            record = synthesize(method="rapid", preset="digits", changes=[f"privacy.epsilon={epsilon}", f"seed={seed}"])
            for name, found in record.metrics.items():
                for key in COLUMNS:
                    scores.setdefault(name, {}).setdefault(key, []).append(found[key])
        rows += [[f"{epsilon:g}", name, *(spread(found[key]) for key in COLUMNS)] for name, found in scores.items()]
    print(f"\nmedian (least to greatest) of {arguments.seeds} seeds; Frechet distance in a small CNN's features\n")
    for line in (["epsilon", "images", *COLUMNS.values()], ["---"] * (2 + len(COLUMNS)), *rows):
        print("| " + " | ".join(line) + " |")


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
