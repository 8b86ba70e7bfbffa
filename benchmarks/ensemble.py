"""What the DP ensemble costs and what it gives: the paper's Figures 2 and 3 redrawn, and clipping compared on the digits.

    .venv/bin/python benchmarks/ensemble.py [--figure docs/ensemble-cost.png] [--images 200] [--no-scores]

The figure comes from the formulas alone and takes seconds. The table runs the method through the flow on the embedded
default, in a home of its own (`sfumato-home/benchmarks`), with a fixed radius and a budget that is out of the way, so
that as many images can be judged as it takes; beside the scores (they look at private images and are INTERNAL) it says
for how many images epsilon 10 would pay. The public model and the members are trained once.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

from tasks.runtime.environment import CHECKOUT, configure

TARGET, PLENTY, PAPER_DELTA = 10.0, 1e6, 1e-5
"""The budget in question, one that is out of the way, and the delta of the paper."""
CIFAR = {"schedule": "cosine", "steps": 250, "clip_diameter": 110, "members": 100, "skip_first": 25, "skip_last": 25}
"""The paper's setting for CIFAR-10 (section 4), for which it prints 16.7."""
WAYS = {
    "prediction, never clipped": ["clipped=prediction", "radius=8", "formulation=B", "skip_last=0.25"],
    "prediction": ["clipped=prediction", "radius=4", "formulation=B", "skip_last=0.25"],
    "deviation, hardly clipped": ["radius=4", "formulation=B", "skip_last=0.25"],
    "deviation, longer": ["radius=2.5", "formulation=B", "skip_last=0.15"],
    "deviation, longer still": ["radius=1.5", "formulation=B", "skip_last=0.08"],
    "the same, A where it is cheaper": ["radius=1.5", "formulation=min", "skip_last=0.08"],
    "the preset's, at 20 images": ["radius=2.676", "formulation=min", "skip_last=0.08"],
    "in 100 steps": ["radius=2.58", "formulation=min", "skip_last=0.08", "generation.steps=100"],
    "by the cosine schedule": ["radius=2.294", "formulation=min", "skip_last=0.08", "schedule.kind=cosine"],
    "down to the last 4 %": ["radius=2.266", "formulation=min", "skip_last=0.04"],
    "without the first tenth": ["radius=2.676", "formulation=min", "skip_last=0.08", "skip_first=0.1"],
}
"""Name -> settings, the method's own where no section is named."""
STEPS = (
    ("mlp", 8, 40, 20, 30),
    ("mlp", 8, 400, 20, 10),
    ("mlp", 8, 2000, 20, 3),
    ("unet", 16, 40, 20, 3),
    ("unet", 28, 20, 10, 3),
)
"""Network, side, images, members and rounds of each timed step."""
PROTOTYPES = (1, 2, 5)
"""Prototypes per class, at the full budget."""


def main() -> None:
    """Draw the figure, print its numbers, run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, default=CHECKOUT / "docs" / "ensemble-cost.png", help="where to draw to")
    parser.add_argument("--images", type=int, default=200, help="images that are judged of each way (default: 200)")
    parser.add_argument("--no-scores", action="store_true", help="only the figure, its numbers and times")
    arguments = parser.parse_args()
    draw(arguments.figure)
    time_members()
    if not arguments.no_scores:
        score(arguments.images)


def draw(path: Path) -> None:
    """Figures 2 and 3 of the paper from the settings, and the numbers that it prints."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sfumato.methods import dp_ensemble

    def epsilon(formulation: str = "A", **changes) -> float:
        return dp_ensemble.claim(**CIFAR | changes, formulation=formulation, images=1, delta=PAPER_DELTA).epsilon

    figure, panels = plt.subplots(2, 3, figsize=(13, 7))
    for panel, schedule in zip(panels[0], ("linear", "cosine"), strict=False):
        scales = dp_ensemble.noise_scales(schedule, CIFAR["steps"])
        share = CIFAR["clip_diameter"] / CIFAR["members"]
        for name, scale in zip("AB", scales, strict=True):
            panel.plot(range(1, len(scale)), [share / xi for xi in scale[1:]], label=f"formulation {name}")
        best = [share / max(pair) for pair in zip(*scales, strict=True) if max(pair)]
        panel.plot(range(1, len(best) + 1), best, "k:", label="the cheaper")
        panel.set(title=f"cost of a step, {schedule} schedule (Figure 2)", xlabel="t of 250", ylabel="mu", yscale="log")

    def progress(
        panel, name: str, schedule: str = "cosine", steps: int = 250, first: int = 25, last: int = 25, **others
    ):
        done = [*range(first + 1, steps - last, max(1, steps // 125)), steps - last]
        cost = [
            epsilon(schedule=schedule, steps=steps, skip_first=first, skip_last=steps - step, **others) for step in done
        ]
        panel.plot([step / steps for step in done], cost, label=f"{name}: {cost[-1]:.1f}")
        panel.set(xlabel="share of the sampling steps taken", ylabel="epsilon of one image so far")

    for steps in (50, 100, 250, 1000):
        progress(panels[0][2], f"{steps} steps", steps=steps, first=5, last=5)
    panels[0][2].set(title="length, 5 + 5 skipped (Figure 3a)", yscale="log")
    for skipped in (5, 10, 25, 50):
        progress(panels[1][0], f"{skipped} + {skipped} skipped", first=skipped, last=skipped)
    panels[1][0].set(title="skipping (Figure 3b)", yscale="log")
    for schedule in ("linear", "cosine"):
        for formulation, first in (("A", 25), ("B", 0)):
            progress(panels[1][1], f"{schedule}, {formulation}", schedule, first=first, formulation=formulation)
    panels[1][1].set(title="schedule (Figure 3c; 25 skipped at the end)", yscale="log")
    for side in (16, 32, 64):
        progress(panels[1][2], f"{side}x{side}", clip_diameter=CIFAR["clip_diameter"] * side / 32)
    panels[1][2].set(title="resolution (Figure 3d)")
    for panel in panels.flat:
        panel.legend(fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    print(f"{path}: drawn")
    print(
        f"formulation A, cosine, 25 + 25 of 250 skipped, C = 110, 100 members: epsilon {epsilon():.2f} (printed: 16.7)"
    )
    print(f"the same at twice the side: epsilon {epsilon(clip_diameter=220):.2f} (printed: 48.4)")


def time_members() -> None:
    """Time one step of all members, one after the other and stacked under vmap, in turns on one thread."""
    import torch
    from torch.func import functional_call, stack_module_state, vmap

    from sfumato.config import Network
    from sfumato.networks.build import build

    torch.set_num_threads(1)
    print(
        "| network | images | members | one by one, ms | stacked, ms | ratio |\n| --- | --- | --- | --- | --- | --- |"
    )
    for kind, side, images, members, rounds in STEPS:
        models = [build(Network(kind=kind), (1, side, side), 10, seed=seed).eval() for seed in range(members)]
        weights = stack_module_state(models)
        x, y = torch.randn(images, 1, side, side), torch.arange(images) % 10

        def stacked(*weights, x=x, y=y, skeleton=models[0]):
            return functional_call(skeleton, weights, (x, y, y))

        ways = {
            "one by one": lambda models=models, x=x, y=y: [model(x, y, y) for model in models],
            "stacked": lambda weights=weights, stacked=stacked: vmap(stacked)(*weights),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        with torch.no_grad():
            for turn in range(rounds + 1):
                for name, way in ways.items():
                    started = time.process_time()
                    way()
                    if turn:  # the first round warms up
                        taken[name].append(1000 * (time.process_time() - started))
        loop, batch = (statistics.median(times) for times in taken.values())
        print(f"| {kind}, {side}x{side} | {images} | {members} | {loop:.1f} | {batch:.1f} | {batch / loop:.2f} |")


def in_full(change: str) -> str:
    """A change with its section."""
    return change if "." in change.split("=")[0] else f"method.{change}"


def score(images: int) -> None:
    """Run each way on the digits, and print what it gives and for how many images epsilon 10 would pay."""
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from flows.synthesize import synthesize
    from sfumato.privacy.accounting import accountant
    from sfumato.privacy.accounting.events import Gaussian

    def most(plan) -> float:
        """Images that the target pays for, at the noise of a plan."""
        terms = plan.privacy
        needed = accountant.calibrate(
            TARGET, terms.delta, lambda noise: [Gaussian(noise_multiplier=noise)], terms.relation
        )
        return (plan.spends[0].event.noise_multiplier / needed) ** 2

    rows = []
    for name, own in WAYS.items():
        given = [
            f"privacy.epsilon={PLENTY:g}",
            "privacy.reason=scaled afterwards",
            f"generation.images={images}",
            *map(in_full, own),
        ]
        record = synthesize(method="dp-ensemble", changes=given)
        rows.append([name, ", ".join(own), f"{most(record.plan):.1f}", record])
    for each in PROTOTYPES:
        given = [f"privacy.epsilon={TARGET:g}", "generation.images=2000", f"method.prototypes={each}"]
        record = synthesize(method="dp-ensemble", changes=given)
        rows.append([f"{each} prototypes per class", "preset", "any", record])
    print("| clipped | settings | images for epsilon 10 | readable | LR | CNN |\n| --- | --- | --- | --- | --- | --- |")
    for *names, record in rows:
        scores = record.metrics["synthetic"]
        print("| " + " | ".join([*names, *(f"{scores[key]:.3f}" for key in ("readable", "logistic", "cnn"))]) + " |")


if __name__ == "__main__":
    main()
