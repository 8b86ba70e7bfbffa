"""What a paid judge should do with drawn images: weigh their labels, or keep the surest, on photographs that stand for a private set.

    .venv/bin/python benchmarks/judge_uses.py [--method moments] [--epsilon 10] [--minutes 20] [--uses "keep .5"]

Private are four or five labels of Tiny ImageNet, 500 records each, three times over with other labels; public are all labels that are in none of these and not in
the target of `benchmarks/targets.py photos`, so that all share one public half. Every use of the judge has one run on each, in a home of its own
(`sfumato-home/benchmarks`). Prints the scores of each use, the mean over the three sets, and the differences to `weigh` with their paired intervals over the
sets. The scores look at private images and are INTERNAL; those of public data may be shown.
"""

import argparse
import statistics
from pathlib import Path

from targets import TARGETS, set_up

from sfumato.errors import BadInput, Refused
from tasks.runtime.environment import CHECKOUT

SETS = ((22, 62, 102, 142, 182), (10, 90, 130, 170), (35, 75, 115, 155, 195))
"""Labels of Tiny ImageNet that stand for a private set."""
NEITHER = (50,)
"""Shares pictures with other labels, so that it could not be private, and is not public here either."""
FILTER = "judge.use=filter judge.keep="
REFERENCE = "weigh"
USES = {
    REFERENCE: "judge.use=weigh",
    "keep .8": f"{FILTER}.8",
    "keep .5": f"{FILTER}.5",
    "keep .3": f"{FILTER}.3",
    "keep .5, refined": f"{FILTER}.5 generation.refine=.1",
    "keep .5, refined from .2": f"{FILTER}.5 generation.refine=.2",
}
"""What is done with drawn images: the judge's use, and `refined` before it by the public model."""
SHOWN = ("frechet", "coverage", "two_sample_auc", "readable", "cnn")
SIZES = (
    *("generation.images=1500", "evaluation.images=1500", "evaluation.classifiers=fast"),
    *("evaluation.baseline=false", "evaluation.resamples=20"),
    *("pretraining.steps=3036", "latent.steps=928", "backbone.steps=300"),
)
"""Of all runs; the steps are those of ten minutes, the same for each use, though what is thrown away takes time to draw."""


def main() -> None:
    """Run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="moments", help="method (default: moments)")
    parser.add_argument("--epsilon", type=float, default=10.0, help="target epsilon (default: 10)")
    parser.add_argument("--minutes", type=float, default=20.0, help="that the recipe follows (default: 20)")
    parser.add_argument("--uses", nargs="+", choices=list(USES), default=list(USES), help="default: all")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    parser.add_argument(
        "--home", type=Path, default=CHECKOUT / "sfumato-home" / "benchmarks", help="where runs are kept"
    )
    arguments = parser.parse_args()
    arguments.target = "photos"
    common = [*set_up(arguments), f"privacy.epsilon={arguments.epsilon}", *SIZES]
    from artifacts.record import SYNTHETIC
    from artifacts.reports.differences import AblationPair, heads, row_of_pair
    from artifacts.reports.in_short import SCORES
    from flows.synthesize import synthesize
    from tasks.server.embedded import start_server

    theirs = next(each for each in TARGETS["photos"].changes if each.startswith("data.private_classes=")).partition("=")
    away = [*NEITHER, *map(int, theirs[2].strip("[]").split(","))]
    without = sorted({*away, *(label for labels in SETS for label in labels)})
    start_server()
    runs = {}
    for use in dict.fromkeys([REFERENCE, *arguments.uses]):
        runs[use] = []
        for labels in SETS:
            data = [
                f"data.private_classes={list(labels)}",
                f"data.public_without={without}",
                f"data.name=photos-{labels[0]}",
            ]
            try:
                changes = [*common, *data, *USES[use].split(), *arguments.set]
                runs[use].append(synthesize(method=arguments.method, preset="auto", changes=changes))
            except (BadInput, Refused) as error:
                raise SystemExit(f"judge_uses: {error}") from None
    print(f"\n| use | {' | '.join(SCORES[key] for key in SHOWN)} |\n|{' --- |' * (len(SHOWN) + 1)}")
    for use, records in runs.items():
        means = [statistics.mean(record.metrics[SYNTHETIC][key] for record in records) for key in SHOWN]
        print(f"| {use} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    print(f"\n| use | {' | '.join(heads(SHOWN))} |\n|{' --- |' * (len(SHOWN) + 1)}")
    for use in list(runs)[1:]:
        pair = AblationPair(part="judge", variant=use, without=REFERENCE)
        row = row_of_pair(pair, arguments.epsilon, list(zip(runs[use], runs[REFERENCE], strict=True)))
        print(f"| {use} | {' | '.join(str(row.scores[key]) for key in SHOWN)} |")


if __name__ == "__main__":
    main()
