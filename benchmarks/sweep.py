"""A named sweep with its scores as a table in Markdown, so that `benchmarks/record.py` keeps them.

    .venv/bin/python benchmarks/record.py sweep-retrieval benchmarks/sweep.py retrieval
    .venv/bin/python benchmarks/record.py sweep-dp-promise-published benchmarks/sweep.py dp-promise --axis "S / T, as published"

Runs what `sfumato sweep NAME` runs, in a home of its own (`sfumato-home/benchmarks`). The scores look at private images and are INTERNAL; those of
the embedded digits may be shown, since these are public.
"""

import argparse
import os

from tasks.runtime.environment import CHECKOUT, configure

SHOWN = ("frechet", "coverage", "readable", "logistic", "cnn")
"""Scores of the table."""


def main() -> None:
    """Run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the sweep")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--axis", default="", help="one axis of it alone, by its name")
    arguments = parser.parse_args()
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from artifacts.reports.comparison import certified, lines
    from artifacts.reports.in_short import SCORES
    from flows.compare import compare_planned
    from flows.variants import RunGrid, named_sweep, planned, variants_of

    sweep = named_sweep(arguments.name)
    axes = {name: values for name, values in sweep.axes.items() if arguments.axis in ("", name)}
    if not axes:
        parser.error(f"no axis {arguments.axis!r}: {', '.join(sweep.axes)}")
    grid = RunGrid(
        variants_of(axes),
        sweep.preset,
        seeds=arguments.seeds,
        changes=sweep.changes,
        title=f"sweep-{arguments.name}",
        axes=axes,
    )
    comparison = compare_planned(grid, planned(grid), go_on=True)
    head = [*comparison.heads, "certificate", "evaluations", *(SCORES[key] for key in SHOWN)]
    print(f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for names, row in lines(comparison):
        scores = (str(row.scores[key]) for key in SHOWN)
        print(f"| {' | '.join([*names, certified(row), str(row.evaluations), *scores])} |")


if __name__ == "__main__":
    main()
