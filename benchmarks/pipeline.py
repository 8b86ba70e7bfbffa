"""Where the time of the demo goes: each stage of a first run, and of the same run again with everything cached.

    .venv/bin/python benchmarks/pipeline.py [--preset digits] [--set SECTION.FIELD=VALUE ...] [--home DIR]

Runs RAPID twice through the flow that users run, in a fresh temporary home that is removed afterwards (`--home` keeps one),
in one process. The times of stages are those of the runs' own records; what is left is Prefect's server, MLflow, the
reports and the checks of the private set.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from tasks.runtime.environment import configure

ELSEWHERE = (
    *("SFUMATO_LEDGER", "MLFLOW_TRACKING_URI"),
    *("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_LOCAL_STORAGE_PATH"),
)
"""Places of a real installation, which a benchmark must not use."""


def main() -> None:
    """Run twice and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="digits", help="settings to start from (default: digits, as `make demo`)")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    parser.add_argument("--home", type=Path, help="an empty folder to work in, which is kept")
    arguments = parser.parse_args()
    if arguments.home and arguments.home.exists() and any(arguments.home.iterdir()):
        parser.error(f"--home {arguments.home} is not empty: a first run needs a folder without anything cached")
    with tempfile.TemporaryDirectory(prefix="sfumato-pipeline-", ignore_cleanup_errors=True) as temporary:
        home = str(arguments.home or f"{temporary}/home")
        os.environ["SFUMATO_KEYS"] = f"{temporary}/keys"
        for name in ELSEWHERE:
            os.environ.pop(name, None)
        os.environ["SFUMATO_HOME"] = home
        configure()
        from flows.synthesize import synthesize

        records, walls = [], []
        for _ in range(2):
            started = time.perf_counter()
            records.append(synthesize(method="rapid", preset=arguments.preset, changes=arguments.set))
            walls.append(time.perf_counter() - started)
    show(*records, *walls)


def show(first, again, first_wall: float, again_wall: float) -> None:
    """The table of both runs, stage by stage."""
    print("\n| stage | first run, s | share | again, s | again from cache |\n| --- | --- | --- | --- | --- |")
    for one, other in zip(first.stages, again.stages, strict=True):
        share = one.seconds / first_wall
        print(
            f"| {one.name} | {one.seconds:.2f} | {share:.0%} | {other.seconds:.2f} | {'yes' if other.cached else 'no'} |"
        )
    rest, rest_again = first_wall - first.seconds, again_wall - again.seconds
    print(f"| server, tracking, reports, checks | {rest:.2f} | {rest / first_wall:.0%} | {rest_again:.2f} | |")
    print(f"| **all** | {first_wall:.2f} | | {again_wall:.2f} | |")


if __name__ == "__main__":
    main()
