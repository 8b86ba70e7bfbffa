"""What central images bring plain DP-SGD after public training: the embedded digits, the same seeds for every variant.

    .venv/bin/python benchmarks/central.py [--epsilon 1 10] [--seeds 3] [--set central.images=4]

Each `--set` is a variant beside the run without (several changes in one are joined by spaces). Public training is done once; noise comes
from the system and no ledger is written, since the digits are public in truth. Prints, of held-out digits: how many a logistic regression and a
small CNN read that learnt from the drawn images; how many drawn images a CNN of the real ones reads as meant; and the Frechet distance in
that CNN's features. Means over the seeds, with the standard deviation.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from sfumato import sources
from sfumato.alignment import measured
from sfumato.central import central_images, warmed
from sfumato.diffusion.schedule import make_schedule
from sfumato.drawing import draw_images
from sfumato.evaluation.classifier import features, predict, train_classifier
from sfumato.evaluation.fidelity import frechet_distance
from sfumato.images import ImageSet, to_unit
from sfumato.latents import PIXELS
from sfumato.methods import METHODS
from sfumato.methods.algorithm import begun
from sfumato.methods.parts import Parts
from sfumato.methods.plan import STAGE_CENTRAL
from sfumato.networks.build import build
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.engine.dp_sgd import train_privately
from sfumato.privacy.engine.queries import central_sums
from sfumato.privacy.noise import system_source
from sfumato.settings import resolve
from sfumato.training import pretrain

METHOD, CPU = "dp-sgd", torch.device("cpu")
NAMES = ("logistic", "CNN", "readable", "Frechet")


def main() -> None:
    """Train what is public, and run every variant at every epsilon with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", dest="variants", action="append", default=[], help="settings of a variant")
    given = parser.parse_args()
    torch.set_num_threads(1)
    public = sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=400))
    train, test = (sources.load("digits", sources.Reading(part=part)) for part in ("train", "test"))
    seen, held_out = to_unit(train.pixels), to_unit(test.pixels)
    judge = train_classifier(seen, torch.from_numpy(train.labels), 10, seed=0)
    denoiser: nn.Module | None = None
    print("| epsilon | settings | " + " | ".join(NAMES) + " | CPU s a run |\n| " + " | ".join(["---"] * 7) + " |")
    for epsilon in given.epsilon:
        for variant in ["", *(given.variants or ["central.images=4"])]:
            changes = [f"privacy.epsilon={epsilon:g}", *variant.split()]
            scores, started = [], time.process_time()
            for seed in range(given.seeds):
                world = parts_of([*changes, f"seed={seed}"], public, denoiser)
                denoiser = world.public
                if not scores:
                    started = time.process_time()
                drawn = run([*changes, f"seed={seed}"], world, public, train)
                scores.append(score(drawn, held_out, torch.from_numpy(test.labels), judge))
            each = (time.process_time() - started) / given.seeds
            cells = [f"{statistics.mean(row):.4g} ± {statistics.pstdev(row):.2g}" for row in zip(*scores, strict=True)]
            print(f"| {epsilon:g} | {variant or 'without'} | " + " | ".join(cells) + f" | {each:.0f} |", flush=True)


def parts_of(changes: Sequence[str], public: ImageSet, denoiser: nn.Module | None) -> Parts:
    """The public half; the denoiser is trained once."""
    settings, facts, _ = preflight(resolve(METHOD, changes=changes))
    schedule = make_schedule(settings.schedule)
    if denoiser is None:
        denoiser = build(settings.network, facts.shape, facts.public_classes, alpha_bar=schedule.alpha_bar)
        x, y = to_unit(public.pixels), torch.from_numpy(public.labels)
        denoiser, _ = pretrain(denoiser, schedule, x, y, settings.pretraining, seed=0)
    return Parts(schedule=schedule, shape=facts.shape, facts=facts, public=denoiser)


def run(changes: Sequence[str], parts: Parts, public: ImageSet, train: ImageSet) -> ImageSet:
    """One private training, and what it draws."""
    settings, facts, _ = preflight(resolve(METHOD, changes=changes))
    plan, method, source = plan_for(settings, facts), METHODS[METHOD], system_source()
    if plan.central and plan.measured:
        event = plan.event(STAGE_CENTRAL)
        where = measured(to_unit(public.pixels), torch.from_numpy(public.labels), plan.measured, seed=0)
        sums = central_sums(train, event, where, classes=10, codec=PIXELS, device=CPU, source=source)
        images = central_images(sums, event, where, records=facts.records, shape=facts.shape, limit=1.0)
        groups = settings.fine_tuning.trainable
        parts = replace(parts, warm=warmed(parts, images, plan.central, groups, seed=settings.seed)[0])
    model, _ = begun(method, settings, parts)
    tuned = train_privately(
        model,
        to_unit(train.pixels),
        torch.from_numpy(train.labels),
        method.corrupt(settings, parts),
        settings.fine_tuning,
        noise_multiplier=plan.noise_multiplier,
        source=source,
        pairs=source.generator(),
        expected_batch=settings.fine_tuning.sample_rate * facts.records,
        physical_batch=1024,
    )
    return draw_images(method.draw, settings, replace(parts, tuned=tuned), facts, settings.generation.images, CPU)


def score(drawn: ImageSet, held_out: Tensor, labels: Tensor, judge: nn.Module) -> list[float]:
    """Percentages, and the distance."""
    x, y = to_unit(drawn.pixels), torch.from_numpy(drawn.labels)
    line = LogisticRegression(max_iter=1000).fit(x.flatten(1).numpy(), y.numpy())
    learnt = train_classifier(x, y, 10, seed=0)
    return [
        100 * float(line.score(held_out.flatten(1).numpy(), labels.numpy())),
        100 * float((predict(learnt, held_out).argmax(1) == labels).double().mean()),
        100 * float((predict(judge, x).argmax(1) == y).double().mean()),
        frechet_distance(features(judge, x), features(judge, held_out)),
    ]


if __name__ == "__main__":
    main()
