"""Whether private training among aligned classes pays, and a paid judge beside it: class moments alone, with a judge, with a method, and all three.

    .venv/bin/python benchmarks/aligned.py [--method rapid dp-sgd] [--epsilon 10 1] [--seeds 0 1 2] [--shares default]
    .venv/bin/python benchmarks/aligned.py --on xrays --minutes 10 --epsilon 10

The pairs `mechanism` and `judge` of `sfumato compare --pairs`, on the embedded digits or on a set of `benchmarks/targets.py`, in a home of its own
(`sfumato-home/benchmarks`). Beside training, the moments and the judge have the shares of epsilon that the recipe (preset `auto`) gives them, or
with `--shares default`, on the digits alone, those of a run where nothing is said. Prints the scores of each condition and the differences with
their paired intervals. The scores look at private images and are INTERNAL; those of public data may be shown.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from targets import TARGETS, set_up

from sfumato.errors import BadInput, Refused
from tasks.runtime.environment import CHECKOUT

DIGITS = "digits"
SHOWN = {
    DIGITS: ("frechet", "coverage", "readable", "logistic", "cnn"),
    "": ("frechet", "coverage", "two_sample_auc", "readable", "cnn"),
}
"""Scores of the tables: of the digits, and of any other set."""
SIZES = {
    DIGITS: [
        *("pretraining.steps=1500", "fine_tuning.draws=4", "generation.solver=dpm++", "generation.steps=20"),
        *("generation.images=500", "evaluation.images=500", "evaluation.resamples=20"),
    ],
    "": [
        *("latent.steps=1000", "pretraining.steps=1700", "backbone.steps=400"),
        *("generation.images=2000", "evaluation.images=2000", "evaluation.classifiers=fast"),
        *("evaluation.baseline=false", "evaluation.resamples=20"),
    ],
}
"""Of all runs: the same public models and as many images of each, so that the scores compare. All else of a larger set is the recipe's."""
TAUGHT = ("rapid", "dp-sgd", "dp-promise")
USES = ("weigh", "filter")
"""What a paid judge may be for: the first on the digits, the second as the recipe has it for larger sets."""


def main() -> None:
    """Run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", dest="target", choices=[DIGITS, *TARGETS], default=DIGITS, help="the private set")
    parser.add_argument(
        "--method", nargs="*", default=list(TAUGHT), help="those to pair (nothing after it: the judge alone)"
    )
    parser.add_argument("--epsilon", type=float, nargs="+", default=[10.0, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=10.0, help="what the recipe may take, but on the digits")
    parser.add_argument("--shares", choices=("recipe", "default"), default="recipe")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    parser.add_argument("--no-judge", action="store_true", help="leave the conditions with a paid judge out")
    parser.add_argument("--only-judged", action="store_true", help="leave those without a paid judge out")
    parser.add_argument("--judge", choices=USES, default=USES[0], help="what the paid judge is for")
    parser.add_argument(
        "--home", type=Path, default=CHECKOUT / "sfumato-home" / "benchmarks", help="where runs are kept"
    )
    arguments = parser.parse_args()
    if arguments.no_judge and not arguments.method:
        parser.error(
            "without methods and without a judge there is nothing to pair: name methods, or leave --no-judge out"
        )
    if arguments.only_judged and (arguments.no_judge or not arguments.method):
        parser.error("--only-judged pairs methods that have a judge: name methods, and leave --no-judge out")
    kind = DIGITS if arguments.target == DIGITS else ""
    data = set_up(arguments)
    from artifacts.reports.comparison import certified
    from artifacts.reports.differences import heads
    from artifacts.reports.in_short import SCORES
    from flows.compare import compare_planned
    from flows.variants import RunGrid, planned

    comparisons = []
    for epsilon in arguments.epsilon:
        shares = recipe_shares(epsilon) if kind == DIGITS and arguments.shares == "recipe" else []
        changes = [*data, *SIZES[kind], *shares, *arguments.set]
        grid = RunGrid((), kind or "auto", [epsilon], arguments.seeds, changes, title=f"aligned-{arguments.target}")
        try:
            grid = conditions(grid, arguments.method, uses_of_judge(arguments))
            comparisons.append(compare_planned(grid, planned(grid), go_on=True))
        except (BadInput, Refused) as error:
            raise SystemExit(f"aligned: {error}") from None
    shown = SHOWN[kind]
    head = ["settings", "epsilon", "certificate", *(SCORES[key] for key in shown)]
    print(f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in (row for comparison in comparisons for row in comparison.rows):
        scores = (str(row.scores[key]) for key in shown)
        print(f"| {' | '.join([row.variant, f'{row.target:g}', certified(row), *scores])} |")
    head = ["part", "with", "epsilon", *heads(shown)]
    print(f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for pair in (pair for comparison in comparisons for pair in comparison.pairs):
        cells = [pair.pair.part, pair.pair.variant, f"{pair.target:g}", *(str(pair.scores[key]) for key in shown)]
        print(f"| {' | '.join(cells)} |")


def uses_of_judge(arguments: argparse.Namespace) -> list[str]:
    """What each condition says of a paid judge: nothing, that there is none, what it is for."""
    if arguments.no_judge:
        return [""]
    judged = f" judge.use={arguments.judge}"
    return [judged] if arguments.only_judged else [" judge.use=none", judged]  # a recipe may have a judge already


def conditions(grid: Any, methods: Sequence[str], uses: Sequence[str]) -> Any:
    """Class moments alone, and each method among aligned classes, with each use of a judge (an unjudged one first); each run once."""
    from artifacts.reports.differences import AblationPair
    from flows.ablations import moments_alone
    from flows.pairs import paired

    alone = moments_alone()
    bases = (
        [pair.variant for pair in paired(["mechanism"], replace(grid, variants=list(methods))).pairs] if methods else []
    )
    pairs = [AblationPair(part="mechanism", variant=base + use, without=alone + use) for base in bases for use in uses]
    pairs += [
        AblationPair(part="judge", variant=base + judged, without=base + uses[0])
        for base in [alone, *bases]
        for judged in uses[1:]
    ]
    variants = dict.fromkeys(half for pair in pairs for half in (pair.without, pair.variant))
    return replace(grid, variants=list(variants), pairs=tuple(pairs))


def recipe_shares(epsilon: float) -> list[str]:
    """The shares of epsilon that the recipe gives to moments and judge beside training, for as many records as the digits have."""
    from sfumato.recipe.levers import JUDGE, MOMENTS, lever_share
    from tasks.planning import plan_run

    facts = plan_run("dp-sgd", "digits").plan.facts
    each = facts.records / len(facts.classes)
    levers = {"alignment.share": MOMENTS, "judge.share": JUDGE}
    return [f"{setting}={lever_share(cost, each, epsilon):g}" for setting, cost in levers.items()]


if __name__ == "__main__":
    main()
