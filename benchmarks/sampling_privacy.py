"""What sampling with averaged private images costs and is worth: window x C x sample rate x images, and a step's memory.

    .venv/bin/python benchmarks/sampling_privacy.py [--seeds 3] [--part success,figures,kernel,study,window]

The public half is trained through the flow that users run, in a home of its own (`sfumato-home/benchmarks`). Images are
then drawn from the embedded digits, which are public in truth, outside the ledger, with repeatable noise; C is the largest
that the budget bears, unless said. Scores as in `sfumato.evaluation` (they look at private images). Prints tables, and
writes `docs/sampling-privacy.png`: utility against certified epsilon, cost of a window, the critical window (the class
probability that a classifier trained on rendered digits gives to the expected image, level by level), samples; and
`docs/sampling-privacy-paper.png`: Figures 4 to 6 and 10 of the paper from our claim.
"""

import argparse
import os
import resource
import statistics
import time
from dataclasses import replace

from tasks.runtime.environment import CHECKOUT, configure

METHOD, REASON = "empirical-denoiser", "privacy.reason=what little privacy would give"
PICTURE = CHECKOUT / "docs" / "sampling-privacy.png"
PAPER_PICTURE = CHECKOUT / "docs" / "sampling-privacy-paper.png"
WINDOWS = {
    "early, 80 to 3.2": (0, 45),
    "mid, 8 to 0.4": (35, 67.5),
    "mid, 3.2 to 0.4": (45, 67.5),
    "mid, 3.2 to 0.1": (45, 77.5),
    "late, 0.7 to 0": (60, 100),
}
"""Name, with the noise levels -> percent and until."""
RATES, IMAGES, EPSILONS = (1.0, 0.1), (100, 500), (10.0, 3.0, 1.0, 0.3)
WITHOUT = {
    "the preset": [],
    "every record, whatever its class": ["method.by_class=false"],
    "images themselves are averaged": ["method.centre=zero"],
    "public density as it is (beta 1)": ["method.beta=1"],
    "nothing cut to a length": ["method.longest=null"],
    "records of the class weigh alike (beta 1e-30)": ["method.beta=1e-30"],
    "constant p_t, 1": ["method.density=constant", "method.beta=1"],
}
"""Parts of the preset, each left out."""
PAPER = [
    "method.by_class=false",
    "method.centre=zero",
    "method.density=constant",
    "method.beta=1",
    "method.longest=null",
]
"""The paper's own form; its tables take 2C / (p_t |D|) = 1."""
PAPER_STEPS = {"one step after 93 %": (93, True), "one step after 75 %": (75, True), "all after 50 %": (50, False)}
TABLE_2 = {0.5: 39, 0.01: 50, 0.005: 39}
"""Sample rate -> levels of the grid with which the paper's Table 2 comes out."""
STOPS = {0.5: 64.7, 0.09: 78.4, 0.05: 80.4}
"""Noise level at which sampling stops -> share of the 50 steps down to .002 that are taken, those from a level of at least that on (Figures 7 and 10)."""
LARGE = (60_000, 3_072)


def main() -> None:
    """Train the public half, then each part in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="draws of the preset that are judged (default: 3)")
    parser.add_argument(
        "--part", default="success,figures,kernel,study,window", help="what to do, comma-separated (default: all)"
    )
    arguments = parser.parse_args()
    parts = arguments.part.split(",")
    if "success" in parts:
        attack_success()
    if "figures" in parts:
        figures()
    if "kernel" in parts:
        large_step()
    if not {"study", "window"} & set(parts):
        return
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from flows.synthesize import synthesize

    settings = ["evaluation.baseline=false", "generation.images=100"]
    world = World(synthesize(method=METHOD, preset="digits", changes=settings))
    rows = study(world, arguments.seeds) if "study" in parts else []
    picture(world, rows, critical_window(world))


class World:
    """The public half of a run, the digits, and a judge."""

    def __init__(self, record):
        import torch

        from artifacts.references import PublicImages, PublicModel
        from sfumato import sources
        from sfumato.evaluation.scores import train_reader
        from sfumato.images import to_unit
        from sfumato.progress import silent
        from sfumato.settings import resolve
        from tasks.inputs import Inputs, PublicParts, load_parts
        from tasks.runtime.artifact import Draft
        from tasks.runtime.environment import where

        torch.set_num_threads(1)
        family = {m["kind"]: (digest, m["label"]) for digest, m in where().store().ancestry(record.samples_artifact)}
        stored = {
            kind: kind(digest=family[kind.__name__][0], label=family[kind.__name__][1])
            for kind in (PublicModel, PublicImages)
        }
        self.facts = record.plan.facts
        public = PublicParts(model=stored[PublicModel], images=stored[PublicImages])
        draft = Draft(where().store(), where().runs, silent)
        settings = resolve(METHOD)
        inputs = Inputs(settings=settings, facts=self.facts, public=public)
        self.parts = load_parts(draft, inputs, settings.machine)
        train, test = (sources.load("digits", sources.Reading(part=part)) for part in ("train", "test"))
        self.private = to_unit(train.pixels), torch.from_numpy(train.labels)
        self.test = to_unit(test.pixels), torch.from_numpy(test.labels)
        self.judge = train_reader(*self.private, classes=len(self.facts.classes))

    def planned(self, *changes):
        """Settings and plan."""
        from sfumato.preflight import plan_for, preflight
        from sfumato.settings import resolve

        settings, facts, _ = preflight(resolve(METHOD, changes=[REASON, *changes]))
        return settings, plan_for(settings, facts)

    def trajectory(self, settings, plan, seed):
        """Labels, and the steps that draw images of them."""
        import torch

        from sfumato.methods import empirical_denoiser
        from sfumato.methods.plan import STAGE_DRAWING
        from sfumato.privacy.noise import KEY_BYTES, Source

        count = settings.generation.images
        y = torch.arange(count) * len(self.facts.classes) // count
        parts = replace(self.parts, facts=self.facts, paid=plan.events(STAGE_DRAWING))
        source = Source(seed.to_bytes(KEY_BYTES, "big"))
        return y, empirical_denoiser.trajectory(settings, parts, self.private, y, source)

    def drawn(self, *changes, seed=0):
        """Images `[n, c, h, w]` and labels, with the plan."""
        settings, plan = self.planned(*changes)
        y, steps = self.trajectory(settings, plan, seed)
        *_, (_, _, x) = steps
        return x.clamp(-1, 1), y, plan

    def scores(self, x, y) -> dict[str, float]:
        """Share read as the wanted digit, accuracy of a logistic regression trained on the images, coverage."""
        from sfumato.config import Evaluation
        from sfumato.evaluation.classifier import features, predict
        from sfumato.evaluation.fidelity import neighbours
        from sfumato.evaluation.utility import answers

        ((_, right, _),) = answers(("logistic",), x, y, *self.test, how=Evaluation())
        near = neighbours(features(self.judge, self.test[0]), features(self.judge, x))
        return {
            "readable": float((predict(self.judge, x).argmax(1) == y).double().mean()),
            "LR": float(right.double().mean()),
            "coverage": float(near.covered.mean()),
        }


SCORES = ("readable", "LR", "coverage")


def study(world: World, seeds: int) -> list[dict]:
    """The sweep, what each part of the preset adds, the paper's own form, and the preset over seeds."""
    started, rows = time.process_time(), []
    for epsilon in EPSILONS:
        for images in IMAGES:
            for name, (percent, until) in WINDOWS.items():
                for rate in RATES:
                    settings = [f"method.percent={percent}", f"method.until={until}", f"method.sample_rate={rate}"]
                    rows.append(scored(world, name, epsilon, images, *settings))
    print("\n**Window x sample rate x images**, C as large as epsilon allows\n")
    table(rows, ["certified", "claim", "images", "title", "rate", "C", *SCORES])
    parts = [scored(world, name, 10.0, 500, *changes) for name, changes in WITHOUT.items()]
    print("\n**The preset with a part left out**, epsilon 10, 500 images\n")
    table(parts, ["title", "C", *SCORES])
    print("\n**The paper's own form**, 100 images, 2C / (p_t |D|) = 1\n")
    table([paper(world, *settings) for settings in papers()], ["title", "rate", "certified", "claim", *SCORES])
    print(f"\n**The preset**, median (least to greatest) of {seeds} draws\n")
    table(preset(world, seeds), ["epsilon", "images", "title", *SCORES])
    print(f"\n{(time.process_time() - started) / 60:.1f} CPU minutes")
    return rows


def scored(world: World, title: str, epsilon: float, images: int, *changes: str, seed: int = 0) -> dict:
    """One row."""
    from sfumato.diffusion.edm import step_noise
    from sfumato.methods import empirical_denoiser as method

    settings_changed = [f"privacy.epsilon={epsilon}", f"generation.images={images}", *changes]
    x, y, plan = world.drawn(*settings_changed, seed=seed)
    settings, _ = world.planned(*settings_changed)
    noise = step_noise(*method.empirical_steps(settings.method)[0])
    clip = method.expected_terms(settings.method, plan.facts) * noise
    return {
        "title": title,
        "epsilon": epsilon,
        "images": images,
        "rate": settings.method.sample_rate,
        "C": clip / plan.spends[0].event.noise_multiplier,
        "certified": plan.certificate.epsilon,
        "claim": plan.claim.epsilon,
        **world.scores(x, y),
    }


def papers():
    """Each of the paper's windows with all records, and with one expected in a sample."""
    for title, (percent, single) in PAPER_STEPS.items():
        for rate in (1.0, 1 / 1437):
            yield title, [f"method.percent={percent}", "method.until=100", f"method.single_step={single}"], rate


def paper(world: World, title: str, changes: list[str], rate: float) -> dict:
    """A row of the paper's form, whatever it costs; where nothing finite can be certified the drawing is not even planned."""
    from sfumato.errors import BadInput

    settings = [*PAPER, *changes, f"method.sample_rate={rate}", f"method.clip={world.facts.records / 2}"]
    try:
        row = scored(world, title, 1e12, 100, *settings)
    except BadInput as refusal:
        print(f"{title}, rate {rate:.2g}: {refusal}")
        return {"title": title, "rate": rate, "certified": float("inf"), "claim": float("nan")}
    return row


def preset(world: World, seeds: int) -> list[dict]:
    """The preset at three numbers of images and two budgets, beside as many real images and the public model's."""
    rows = []
    import torch

    for images in (*IMAGES, 1000, 2000):
        for epsilon in EPSILONS[:3]:
            rows_scored = [scored(world, "drawn", epsilon, images, seed=seed) for seed in range(seeds)]
            rows.append({"epsilon": f"{epsilon:g}", "images": images, "title": "drawn"} | spread(rows_scored))
        rows_scored = []
        for seed in range(seeds):
            index = torch.randperm(world.facts.records, generator=torch.Generator().manual_seed(seed))[:images]
            rows_scored.append(world.scores(*(part[index] for part in world.private)))
        rows.append({"epsilon": "-", "images": len(index), "title": "real training images"} | spread(rows_scored))
    return rows


def spread(scored_rows: list[dict]) -> dict[str, str]:
    """Median and range of each score."""
    columns = {key: [one[key] for one in scored_rows] for key in SCORES}
    return {key: f"{statistics.median(v):.3f} ({min(v):.3f} to {max(v):.3f})" for key, v in columns.items()}


def critical_window(world: World) -> dict[str, list[tuple[float, float]]]:
    """Name of a way to draw -> (noise level, mean probability of the wanted digit) of what is expected at each level."""
    import torch

    from sfumato import sources
    from sfumato.evaluation.classifier import predict, train_classifier
    from sfumato.images import to_unit

    shown = sources.load(
        "glyphs", sources.Reading(part="all", size=8, glyphs_per_class=400, characters=sources.ALPHABETS["digits"])
    )
    reader = train_classifier(to_unit(shown.pixels), torch.from_numpy(shown.labels), len(shown.classes))
    ways = {
        "preset, epsilon 10": [],
        "preset, epsilon 1": ["privacy.epsilon=1"],
        "all levels, no privacy": ["privacy.epsilon=1e9", "method.percent=0", "method.until=100"],
    }
    curves = {}
    for name, changes in ways.items():
        settings, plan = world.planned(*changes, "generation.images=500")
        y, steps = world.trajectory(settings, plan, seed=0)
        curve = []
        for sigma, image, _ in steps:
            curve.append((sigma, float(predict(reader, image).gather(1, y[:, None]).mean())))
        curves[name] = curve
    print("\n**Probability of the wanted digit**, of the image that is expected at a noise level\n")
    levels = [sigma for sigma, _ in curve]
    table(
        [{"way": name} | {f"{s:.2g}": p for s, p in curve[10:32:3]} for name, curve in curves.items()],
        ["way", *(f"{sigma:.2g}" for sigma in levels[10:32:3])],
    )
    return curves


def attack_success() -> None:
    """Table 2 of the paper: all steps of one image from T down to a share of the way."""
    from sfumato.methods import empirical_denoiser as method

    rows = []
    for rate, count in TABLE_2.items():
        row = {"p": rate, "N": count}
        for title, until in {"T": 2.5, "3/4 T": 25, "1/2 T": 50, "1/4 T": 75}.items():
            promise = method.claim(rate, 0, 1, 1e-5, False, method.Grid(N=count), until=until)
            row[title] = f"{method.attack_success(promise.epsilon):.4f}"
        rows.append(row)
    print("\n**Attack success by the claim** (Table 2), one image, delta 1e-5\n")
    table(rows, list(rows[0]))


def figures() -> None:
    """Figures 4 to 6 and 10 of the paper from our claim: mu over noise levels, epsilon over delta and error trade-offs, of the whole sampling by
    `sigma_min` and of one that stops; one image, 50 levels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np
    from scipy.stats import norm

    from sfumato.methods import empirical_denoiser as method
    from sfumato.privacy.accounting.accountant import gdp_epsilon

    figure, ((a, b, c), (blank, d, e)) = plt.subplots(2, 3, figsize=(15, 9), layout="constrained")
    deltas, errors = np.logspace(-10, -1, 40), np.linspace(1e-4, 1, 400)

    def claimed(axes, start: dict, grid, until: float, **style) -> dict:
        """A row of the table, and both curves for all records and for half of them."""
        row = start
        for rate, line in ((1.0, "-"), (0.5, "--")):
            promise = method.claim(rate, 0, 1, 1e-5, False, grid, until)
            row |= {
                f"mu, p = {rate:g}": promise.mu,
                f"epsilon, p = {rate:g}": promise.epsilon,
                f"gamma, p = {rate:g}": promise.gamma,
            }
            label = f"{next(iter(start.values()))}, p = {rate:g}"
            axes[0].plot(deltas, [gdp_epsilon(promise.mu, delta) for delta in deltas], ls=line, label=label, **style)
            axes[1].plot(errors, norm.cdf(norm.isf(errors) - promise.mu), ls=line, label=label, **style)
        return row

    whole, stopped = [], []
    for number, sigma_min in enumerate((5, 0.2, 0.01, 0.002)):
        grid = method.Grid(N=50, sigma_min=sigma_min)
        a.plot(grid.levels()[:-1], grid.mus(), color=f"C{number}", label=f"down to {sigma_min}")
        whole.append(claimed((b, c), {"sigma_min": sigma_min}, grid, 100, color=f"C{number}"))
    for number, (level, until) in enumerate(STOPS.items()):
        stopped.append(claimed((d, e), {"stops at t": level}, method.Grid(N=50), until, color=f"C{number}"))
    a.set(
        xscale="log",
        yscale="log",
        xlabel="noise level t",
        ylabel="mu of the step",
        title="all records, 2C / (p_t |D|) = 1",
    )
    for axis, what in ((b, "whole sampling of one image"), (d, "one image, by where sampling stops")):
        axis.set(xscale="log", yscale="log", xlabel="delta", ylabel="claimed epsilon", title=what)
    for axis in (c, e):
        axis.set(xlabel="type I error", ylabel="type II error", title="error trade-off, claimed")
    blank.axis("off")
    for axis in (a, b, c, d, e):
        axis.legend(fontsize=7)
    figure.savefig(PAPER_PICTURE, dpi=80)
    print("\n**Whole sampling of one image**, claimed, delta 1e-5 (Figures 4 to 6)\n")
    table(whole, [name for name in whole[0] if "gamma" not in name])
    print("\n**One image, by the noise level at which sampling stops**, claimed, delta 1e-5 (Figure 10)\n")
    table(stopped, list(stopped[0]))


def large_step() -> None:
    """Seconds and memory of one step over a large private set."""
    import torch

    from sfumato.privacy.engine.kernel_mean import kernel_mean
    from sfumato.privacy.noise import system_source

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    records = torch.rand(*LARGE, generator=generator).mul_(2).sub_(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for images in (1, 10, 100):
        x = records[:images] + torch.randn(images, LARGE[1], generator=generator)
        common = {"clip": 10.0, "expected": 6e4, "log_density": torch.full((images,), -1600.0), "centre": x.tanh()}
        started = time.perf_counter(), time.process_time()
        kernel_mean(records, x, 1.0, **common, sample_rate=0.5, source=system_source())
        taken = time.perf_counter() - started[0], time.process_time() - started[1]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"one step of {images} images over {LARGE[0]:,} x {LARGE[1]:,}: {taken[0]:.1f} s, {taken[1]:.1f} CPU s; peak "
            f"{peak / 2**20:.2f} GiB in all, {(peak - before) / 2**20:.2f} more than with the records alone"
        )


def table(rows: list[dict], columns: list[str]) -> None:
    """A Markdown table."""
    print("| " + " | ".join(columns) + " |\n| " + " | ".join(["---"] * len(columns)) + " |")
    for row in rows:
        cells = (row.get(column, "-") for column in columns)
        print("| " + " | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")


def picture(world: World, rows: list[dict], curves: dict[str, list[tuple[float, float]]]) -> None:
    """The four panels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplot_mosaic([["a", "b", "c"], ["d"] * 3], figsize=(18, 12), layout="constrained")
    a, b, c, d = axes.values()
    for number, name in enumerate(WINDOWS):
        for images, line in zip(IMAGES, ("-", "--"), strict=True):
            of = [row for row in rows if (row["title"], row["images"], row["rate"]) == (name, images, 1.0)]
            style = {"color": f"C{number}", "ls": line, "marker": "o", "label": f"{name}; {images} images"}
            a.plot([row["certified"] for row in of], [row["readable"] for row in of], **style)
    a.set(
        xscale="log",
        xlabel="certified epsilon",
        ylabel="readable",
        title="utility of a window, all records in each step",
    )
    a.legend(fontsize=8)
    ends = (47.5, 50, 52.5, 55, 57.5, 60, 62.5, 65, 67.5, 70, 75, 80)
    for images in (10, 100, 1000, 10_000):
        costs = []
        for until in ends:
            settings = [
                "privacy.epsilon=1e12",
                "method.clip=15",
                f"method.until={until}",
                f"generation.images={images}",
            ]
            costs.append(world.planned(*settings)[1].certificate.epsilon)
        b.plot(ends, costs, marker=".", label=f"{images} images")
    b.axhline(10, color="grey", lw=0.8)
    b.set(
        yscale="log",
        xlabel="window ends at, % of the sampling",
        ylabel="certified epsilon",
        title="cost, C = 15, from 45 %",
    )
    b.legend()
    for name, curve in curves.items():
        c.plot(*zip(*curve, strict=True), marker=".", label=name)
    c.axvspan(0.384, 3.17, color="grey", alpha=0.15)
    c.set(
        xscale="log",
        xlabel="noise level",
        ylabel="probability of the wanted digit",
        title="critical window (grey: the preset's)",
    )
    c.invert_xaxis()
    c.legend()
    samples(world, d)
    figure.savefig(PICTURE, dpi=80)
    print(f"\n{PICTURE.relative_to(CHECKOUT)}")


def samples(world: World, axis) -> None:
    """Two of each digit: the preset at two budgets and with many images, and the paper's single step."""
    import numpy as np

    from sfumato.images import grid, to_pixels

    ways = {
        "epsilon 10, 100 images": ["generation.images=100"],
        "epsilon 10, 1,000 images": ["generation.images=1000"],
        "epsilon 1, 100 images": ["generation.images=100", "privacy.epsilon=1"],
        "epsilon 1, 1,000 images": ["generation.images=1000", "privacy.epsilon=1"],
        "window 3.2 to 0.4, paper's form": [*PAPER, "generation.images=100"],
    }
    pages = []
    for changes in ways.values():
        x, y, _ = world.drawn(*changes)
        step = len(y) // 20
        pages.append(to_pixels(x[::step][:20]))
    axis.imshow(grid(np.concatenate(pages), 20, 7), cmap="gray")
    axis.set_yticks([(i + 0.5) * 8 * 7 + i for i in range(len(ways))], list(ways), fontsize=8)
    axis.set(xticks=[], title="samples, two of each digit")


if __name__ == "__main__":
    main()
