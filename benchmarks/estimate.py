"""Does the time that a plan promises hold? The plans of recorded runs, made anew, beside what their stages took.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/estimate.py targets-mnist-moments-inf targets-xrays-shapes

Takes results of `benchmarks/targets.py` by name, plans the same run on this machine, and adds up the stages before the images. *took*: the minutes
up to the images that the record states, as each stage took when it was made; *jobs beside it*: the machine's load when the run began. Nothing is
trained, and no private image is opened.
"""

import argparse
import json
import os
import re
import shlex
import tempfile
from pathlib import Path

from record import RESULTS
from targets import options, settings_of

from sfumato.recipe.estimate import OVERHEAD_SECONDS, estimate
from tasks.planning import plan_run
from tasks.runtime.environment import configure

AFTER_IMAGES = {"judging", "copies", "nearest public images", "drawing for comparison"}
"""Stages of an estimate that a record's minutes do not count."""


def main() -> None:
    """Print a row for each record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", help="results of benchmarks/targets.py, by name")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["SFUMATO_HOME"] = home
        configure()
        for name in given.records:
            stored = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
            _, *words = shlex.split(stored["command"])
            took = float(re.search(r"minutes up to the images.*: ([\d.]+)", "\n".join(stored["lines"]))[1])
            minutes = planned(options(words), Path(home))
            beside = stored["machine"].get("load_before", "")
            rows.append(f"| `{' '.join(words[:7])}` | {minutes:.1f} | {took} | {minutes / took:.2f} | {beside} |")
    print("| run | estimate, minutes | its stages took | ratio | jobs beside it |\n|" + " --- |" * 5)
    print("\n".join(rows))


def planned(arguments: argparse.Namespace, home: Path) -> float:
    """Minutes of the stages up to the images, by a plan on this machine."""
    arguments.home = home
    run = plan_run(arguments.method, "auto", settings_of(arguments))
    stages = estimate(run.settings, run.plan).stages
    return (sum(seconds for name, seconds in stages if name not in AFTER_IMAGES) + OVERHEAD_SECONDS) / 60


if __name__ == "__main__":
    main()
