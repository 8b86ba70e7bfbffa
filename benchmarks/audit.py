"""Is the audit blind? One private run and one that hardly adds noise, attacked in the same way.

    .venv/bin/python benchmarks/audit.py [--canaries 200] [--pictures DIR]

Both are plain DP-SGD on the embedded digits, through the flows that users run, in a home of their own
(`sfumato-home/benchmarks`). The second trains all parameters on 100 records at a target epsilon of a million. Prints a
Markdown table; `--pictures` copies the two pictures of the audits.
"""

import argparse
import os
import shutil
from pathlib import Path

from tasks.where import CHECKOUT, configure

RUNS = {
    "private": ["privacy.epsilon=10", "privacy.delta=1e-5", "pretraining.steps=1500"],
    "hardly any noise": [
        *(
            "privacy.epsilon=1e6",
            "privacy.reason=something to find",
            "privacy.delta=1e-5",
            "pretraining.steps=1500",
            "data.share=0.0648",
        ),
        *("fine_tuning.trainable=[rows,film,attention,time,rest]", "fine_tuning.ema_decay=0.9", "fine_tuning.clip=1"),
        *("fine_tuning.rate_other=3e-3", "fine_tuning.rate_rows=3e-3", "fine_tuning.sample_rate=0.25"),
        "fine_tuning.steps=800",
    ],
}
HEAD = ("run", "certificate", "canary bound", "at best", "canary AUC", "loss AUC", "nearest-image AUC", "copies")


def main() -> None:
    """Run both, audit both, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canaries", type=int, default=200, help="canaries of each audit (default: 200)")
    parser.add_argument("--pictures", type=Path, help="folder for the pictures")
    arguments = parser.parse_args()
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from artifacts.audit_report import AUDIT_PICTURE
    from artifacts.record import run_folder
    from flows.audit import audit_run
    from flows.synthesize import synthesize
    from sfumato.evaluation.membership import COMBINED, NEAREST

    rows = []
    for name, changes in RUNS.items():
        run = synthesize(method="dp-sgd", preset="digits", changes=[*changes, "evaluation.baseline=false"])
        record = audit_run(run.run, canaries=arguments.canaries)
        found = record.audit
        areas = {one.name: f"{one.auc:.3f}" for one in found.memberships}
        bound, attack = found.bound, found.canary_attack
        rows.append(
            [
                *(name, f"{found.certificate:.4g}", f"{bound.epsilon:.2f}", f"{bound.attainable:.2f}"),
                *(f"{attack.auc:.3f}", areas[COMBINED], areas[NEAREST], str(found.copies.unexplained)),
            ]
        )
        if arguments.pictures:
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            target = arguments.pictures / f"audit-{name.replace(' ', '-')}.png"
            shutil.copyfile(run_folder(record) / AUDIT_PICTURE, target)
    print(f"\n{arguments.canaries} canaries, bounds with 95 % confidence at delta 1e-5\n")
    for line in (HEAD, ["---"] * len(HEAD), *rows):
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
