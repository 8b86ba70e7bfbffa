"""Is the audit blind? One private run and one that hardly adds noise, attacked in the same way.

    .venv/bin/python benchmarks/audit.py [--canaries 200] [--pictures DIR]
    .venv/bin/python benchmarks/audit.py --power

Both are plain DP-SGD on the embedded digits, through the flows that users run, in a home of their own
(`sfumato-home/benchmarks`). The second trains all parameters on 100 records at a target epsilon of a million. Prints a
Markdown table; `--pictures` copies the two pictures of the audits.

`--power` plays the mechanisms alone, what is asked of the records once among them, with their noise as it is and halved, `REPEATS` times each at epsilon 1 and 10, and audits
`TOSSED` times with coins that nothing depends on: how many of these show an epsilon above 0?
"""

import argparse
import contextlib
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sfumato.config import Judge
from sfumato.diffusion import edm
from sfumato.diffusion.schedule import make_schedule
from sfumato.methods import METHODS, dp_ensemble
from sfumato.methods.algorithm import begun, worst_pair
from sfumato.methods.parts import Parts
from sfumato.methods.plan import STAGE_DRAWING, STAGE_TUNING, Plan
from sfumato.networks.build import build
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import DiscreteHistogram, Gaussian
from sfumato.privacy.auditing.audit import epsilon_lower_bound
from sfumato.privacy.auditing.games import play_drawing
from sfumato.privacy.auditing.query_games import Query, counting, learning_head, play_queries, taking_moments, voting
from sfumato.privacy.auditing.white_box import play_training
from sfumato.privacy.engine import dp_sgd, queries
from sfumato.privacy.noise import Source
from sfumato.settings import Settings, resolve
from tasks.runtime.environment import CHECKOUT, configure

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


REPEATS, TOSSED = 10, 100
DELTA = 1e-5
SAMPLERS = {"dp-ensemble": dp_ensemble, "empirical-denoiser": edm}
"""Methods whose drawing pays, and where the noise of their steps is added."""


def power() -> None:
    """Print how often halved noise is found, and how often coins that mean nothing show something."""
    print("| mechanism | epsilon | as it is: faults found | halved noise: faults found |")
    print("| --- | --- | --- | --- |")
    for epsilon in (1, 10):
        for method in ("dp-sgd", *SAMPLERS):
            settings, facts, _ = preflight(resolve(method, changes=[f"privacy.epsilon={epsilon}"]))
            plan = plan_for(settings, facts)
            sound = sum(bool(faults_of(settings, plan)) for _ in range(REPEATS))
            with halved(method):
                caught = sum(bool(faults_of(settings, plan)) for _ in range(REPEATS))
            print(f"| {method} | {epsilon} | {sound} of {REPEATS} | {caught} of {REPEATS} |", flush=True)
        for query in queries_at(epsilon):
            sound = sum(bool(play_queries([query], delta=DELTA)[0][0].faults) for _ in range(REPEATS))
            with with_half_noise():
                caught = sum(bool(play_queries([query], delta=DELTA)[0][0].faults) for _ in range(REPEATS))
            print(f"| {query.what} | {epsilon} | {sound} of {REPEATS} | {caught} of {REPEATS} |", flush=True)
    random, above = np.random.default_rng(0), 0
    for _ in range(TOSSED):
        coins = random.random(200) < 0.5
        above += epsilon_lower_bound(random.random(200), coins, delta=1e-5).epsilon > 0
    print(f"\nCoins tossed and nothing trained on them: {above} of {TOSSED} audits show an epsilon above 0.")


def queries_at(epsilon: float) -> list[Query]:
    """What may be asked of the records once, each with the noise that costs `epsilon`."""

    def noise(events) -> float:
        return accountant.calibrate(epsilon, DELTA, events)

    def histogram(z: float) -> DiscreteHistogram:
        return DiscreteHistogram(noise_multiplier=z)

    def moments(z: float) -> tuple[DiscreteHistogram, Gaussian, Gaussian]:
        return histogram(2 * z), Gaussian(noise_multiplier=z), Gaussian(noise_multiplier=z)

    def gradients(z: float) -> Gaussian:
        return Gaussian(noise_multiplier=z, count=Judge().steps)

    counts = histogram(noise(lambda z: [histogram(z)]))
    return [
        counting(counts),
        voting(counts),
        taking_moments(moments(noise(lambda z: list(moments(z))))),
        learning_head(gradients(noise(lambda z: [gradients(z)])), Judge()),
    ]


@contextlib.contextmanager
def with_half_noise() -> Iterator[None]:
    """Half the noise in what is asked once."""
    real, whole = queries.noised, Source.discrete_gaussian

    def noised(values, *, noise_multiplier, **given):
        return real(values, noise_multiplier=noise_multiplier / 2, **given)

    def discrete_gaussian(self, shape, sigma):
        return whole(self, shape, sigma / 2)

    queries.noised, Source.discrete_gaussian = noised, discrete_gaussian
    try:
        yield
    finally:
        queries.noised, Source.discrete_gaussian = real, whole


def faults_of(settings: Settings, plan: Plan) -> tuple[str, ...]:
    """What a white-box test finds."""
    facts, method = plan.facts, METHODS[plan.method]
    schedule = make_schedule(settings.schedule)
    public = build(settings.network, facts.shape, facts.public_classes)
    parts = Parts(schedule, facts.shape, facts, public)
    terms = {"delta": plan.privacy.delta, "relation": plan.privacy.relation}
    if events := plan.events(STAGE_DRAWING):
        return play_drawing(
            worst_pair(method, settings, parts, events), events, numbers=math.prod(facts.shape), **terms
        )[0].faults
    return play_training(
        begun(method, settings, parts)[0],
        facts.shape,
        method.corrupt(settings, parts),
        settings.fine_tuning,
        plan.event(STAGE_TUNING),
        physical_batch=settings.machine.physical_batch,
        **terms,
    ).faults


@contextlib.contextmanager
def halved(method: str) -> Iterator[None]:
    """Half the noise in what this method pays for."""
    module, name = (SAMPLERS[method], "normal") if method in SAMPLERS else (dp_sgd, "add_gaussian")
    real = getattr(module, name)

    def normal(like, source):
        return real(like, source) / 2

    def add_gaussian(total, *, noise_multiplier, clip, source):
        return real(total, noise_multiplier=noise_multiplier / 2, clip=clip, source=source)

    setattr(module, name, normal if method in SAMPLERS else add_gaussian)
    try:
        yield
    finally:
        setattr(module, name, real)


def main() -> None:
    """Run both, audit both, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canaries", type=int, default=200, help="canaries of each audit (default: 200)")
    parser.add_argument("--pictures", type=Path, help="folder for the pictures")
    parser.add_argument("--power", action="store_true", help="play the mechanisms alone, with halved noise too")
    arguments = parser.parse_args()
    if arguments.power:
        return power()
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from artifacts.record import run_folder
    from artifacts.reports.audit import AUDIT_PICTURE
    from flows.audit import audit_run
    from flows.synthesize import synthesize
    from sfumato.evaluation.membership import COMBINED, NEAREST

    rows = []
    for name, changes in RUNS.items():
        run = synthesize(method="dp-sgd", preset="digits", changes=[*changes, "evaluation.baseline=false"])
        record = audit_run(run.run, canaries=arguments.canaries)
        audit = record.audit
        areas = {one.name: f"{one.auc:.3f}" for one in audit.memberships}
        bound, attack = audit.bound, audit.canary_attack
        rows.append(
            [
                *(name, f"{audit.certificate:.4g}", f"{bound.epsilon:.2f}", f"{bound.attainable:.2f}"),
                *(f"{attack.auc:.3f}", areas[COMBINED], areas[NEAREST], str(audit.copies.unexplained)),
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
