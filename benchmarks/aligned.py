"""Whether private training among aligned classes pays, and a paid judge beside it: class moments alone, with a judge, with a method, and all three.

    .venv/bin/python benchmarks/aligned.py [--method rapid dp-sgd] [--epsilon 10 1] [--seeds 0 1 2] [--shares default]

The pairs `mechanism` and `judge` of `sfumato compare --pairs`, on the embedded digits, in a home of its own (`sfumato-home/benchmarks`). Beside
training, the moments and the judge have the shares of epsilon that the recipe (preset `auto`) gives them, or with `--shares default` those of a
run where nothing is said. Prints the scores of each condition and the differences with their paired intervals. The scores look at private
images and are INTERNAL; those of the embedded digits may be shown, since these are public.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tasks.runtime.environment import CHECKOUT, configure

SHOWN = ("frechet", "coverage", "readable", "logistic", "cnn")
"""Scores of the tables."""
SIZES = [
    *("pretraining.steps=1500", "fine_tuning.draws=4", "generation.solver=dpm++", "generation.steps=20"),
    *("generation.images=500", "evaluation.images=500", "evaluation.resamples=20"),
]
"""Of all runs: as many images of each, so that the scores compare."""
TAUGHT = ("rapid", "dp-sgd", "dp-promise")
JUDGED = " judge.use=weigh"


def main() -> None:
    """Run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", nargs="+", default=list(TAUGHT))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shares", choices=("recipe", "default"), default="recipe")
    arguments = parser.parse_args()
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from artifacts.reports.comparison import certified
    from artifacts.reports.differences import heads
    from artifacts.reports.in_short import SCORES
    from flows.compare import compare_planned
    from flows.variants import RunGrid, planned

    comparisons = []
    for epsilon in arguments.epsilon:
        changes = [*SIZES, *(recipe_shares(epsilon) if arguments.shares == "recipe" else [])]
        grid = conditions(RunGrid((), "digits", [epsilon], arguments.seeds, changes, title="aligned"), arguments.method)
        comparisons.append(compare_planned(grid, planned(grid), go_on=True))
    head = ["settings", "epsilon", "certificate", *(SCORES[key] for key in SHOWN)]
    print(f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in (row for comparison in comparisons for row in comparison.rows):
        scores = (str(row.scores[key]) for key in SHOWN)
        print(f"| {' | '.join([row.variant, f'{row.target:g}', certified(row), *scores])} |")
    head = ["part", "with", "epsilon", *heads(SHOWN)]
    print(f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for pair in (pair for comparison in comparisons for pair in comparison.pairs):
        cells = [pair.pair.part, pair.pair.variant, f"{pair.target:g}", *(str(pair.scores[key]) for key in SHOWN)]
        print(f"| {' | '.join(cells)} |")


def conditions(grid: Any, methods: Sequence[str]) -> Any:
    """Class moments alone and with a judge, and each method among aligned classes with and without one; each run once."""
    from flows.ablations import moments_alone
    from flows.pairs import paired

    parts = [paired(["judge"], replace(grid, variants=[moments_alone()]))]
    for method in methods:
        (pair,) = paired(["mechanism"], replace(grid, variants=[method])).pairs
        parts.append(paired(["mechanism", "judge"], replace(grid, variants=[pair.variant])))
        parts.append(paired(["mechanism"], replace(grid, variants=[pair.variant + JUDGED])))
    variants = dict.fromkeys(variant for part in parts for variant in part.variants)
    pairs = dict.fromkeys(pair for part in parts for pair in part.pairs)
    return replace(grid, variants=list(variants), pairs=tuple(pairs))


def recipe_shares(epsilon: float) -> list[str]:
    """The shares of epsilon that the recipe gives to moments and judge beside training, for as many records as the digits have."""
    from sfumato.recipe import JUDGE, MOMENTS, lever_share
    from tasks.planning import plan_run

    facts = plan_run("dp-sgd", "digits").plan.facts
    each = facts.records / len(facts.classes)
    levers = {"alignment.share": MOMENTS, "judge.share": JUDGE}
    return [f"{setting}={lever_share(cost, each, epsilon):g}" for setting, cost in levers.items()]


if __name__ == "__main__":
    main()
