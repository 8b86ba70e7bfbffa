"""What it brings to try several learning rates and let private records vote: the embedded digits, plain DP-SGD, the same seeds for every variant.

    .venv/bin/python benchmarks/rates.py [--epsilon 1 10] [--seeds 3] [--rates 0.3 1 3]

One row for each rate alone, which has all of epsilon to itself, and one where all are trained and paid for and the votes are too. Public training
is done once; noise comes from the system and no ledger is written, since the digits are public in truth. Scores are those of `benchmarks/central.py`,
means over the seeds, of several with the standard deviation. `kept` are the rates with the most noisy votes, one for each seed, with the votes.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from central import CPU, METHOD, NAMES, parts_of, score
from torch import nn

from sfumato import rates, sources
from sfumato.drawing import draw_images
from sfumato.evaluation.classifier import train_classifier
from sfumato.images import ImageSet, to_unit
from sfumato.methods import METHODS
from sfumato.methods.algorithm import begun
from sfumato.methods.parts import Parts
from sfumato.methods.plan import STAGE_RATES
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.engine.dp_sgd import train_privately
from sfumato.privacy.engine.queries import voted
from sfumato.privacy.noise import system_source
from sfumato.settings import resolve


def main() -> None:
    """Train what is public, and run every variant at every epsilon with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    public = sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=400))
    train, test = (sources.load("digits", sources.Reading(part=part)) for part in ("train", "test"))
    held_out, labels = to_unit(test.pixels), torch.from_numpy(test.labels)
    judge = train_classifier(to_unit(train.pixels), torch.from_numpy(train.labels), 10, seed=0)
    usual, denoiser = resolve(METHOD).fine_tuning, None
    columns = ["epsilon", "learning rates", "noise", *NAMES, "kept", "CPU s a run"]
    print(f"| {' | '.join(columns)} |\n| {' | '.join(['---'] * len(columns))} |")
    variants = {f"{factor:g} alone": own_rates(usual.at(factor)) for factor in given.rates}
    variants["by votes"] = [f"fine_tuning.rates=[{','.join(f'{factor:g}' for factor in given.rates)}]"]
    for epsilon in given.epsilon:
        for name, own in variants.items():
            scores, seconds, retained, noise = [], 0.0, [], 0.0
            for seed in range(given.seeds):
                changes = [f"privacy.epsilon={epsilon:g}", *own, f"seed={seed}"]
                world = parts_of(changes, public, denoiser)
                denoiser, started = world.public, time.process_time()
                drawn, chosen, noise = run(changes, world, train)
                scores.append(score(drawn, held_out, labels, judge))
                seconds += time.process_time() - started
                retained.append(chosen)
            cells = [mean(row) for row in zip(*scores, strict=True)]
            each = f"{seconds / given.seeds:.0f}"
            print(
                f"| {epsilon:g} | {name} | {noise:.3g} | {' | '.join(cells)} | {' '.join(retained)} | {each} |",
                flush=True,
            )


def mean(numbers: Sequence[float]) -> str:
    """The mean, and with several numbers their standard deviation."""
    spread = f" ± {statistics.pstdev(numbers):.2g}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.4g}{spread}"


def own_rates(tuning: object) -> list[str]:
    """The learning rates of one candidate, as a person sets them."""
    return [f"fine_tuning.{name}={getattr(tuning, name):g}" for name in ("rate_rows", "rate_other")]


def run(changes: Sequence[str], parts: Parts, train: ImageSet) -> tuple[ImageSet, str, float]:
    """All trainings of a plan and the votes, and what the winner draws; which one that was, and the noise."""
    settings, facts, _ = preflight(resolve(METHOD, changes=changes))
    plan, source, models = plan_for(settings, facts), system_source(), list[nn.Module]()
    factors = settings.fine_tuning.rates or (1.0,)
    for factor in factors:
        model, _ = begun(METHODS[METHOD], settings, parts)
        tuned = train_privately(
            model,
            to_unit(train.pixels),
            torch.from_numpy(train.labels),
            METHODS[METHOD].corrupt(settings, parts),
            settings.fine_tuning.at(factor),
            noise_multiplier=plan.noise_multiplier,
            source=source,
            pairs=source.generator(),
            expected_batch=settings.fine_tuning.sample_rate * facts.records,
            physical_batch=1024,
        )
        models.append(tuned)
    winner, retained = 0, ""
    if len(models) > 1:
        event, ballot = plan.event(STAGE_RATES), rates.ballot(settings, parts, models)
        votes = voted(train, event, ballot, classes=1, options=len(models), device=CPU, source=source)
        winner = rates.elected(votes)
        retained = f"{factors[winner]:g} ({' '.join(map(str, votes[0].tolist()))})"
    drawn = replace(parts, tuned=models[winner])
    images = draw_images(METHODS[METHOD].draw, settings, drawn, facts, settings.generation.images, CPU)
    return images, retained, plan.noise_multiplier or 0.0


if __name__ == "__main__":
    main()
