"""What `--preset auto` chooses, as the table of docs/recipe.md, and the table of costs that it chooses by, measured.

    .venv/bin/python benchmarks/recipe.py --table                      # nothing is measured; seconds
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/recipe.py --costs    # a minute of one quiet core
    .venv/bin/python benchmarks/recipe.py --costs --device cuda        # a minute of a GPU: the public stages' own training loops

The measured costs replace those in sfumato/costs.py by hand alone: the recipe must choose the same on every machine, so that a
change of the table is a change of what the preset means.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from sfumato.backbone import train_backbone
from sfumato.config import BackboneSettings, Latent, Network, Pretraining, Schedule
from sfumato.costs import COSTS, Cost, Work, autoencoder_work, backbone_work, denoiser_work, training_seconds
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.evaluation.classifier import BATCH_IMAGES, Classifier, train_classifier
from sfumato.evaluation.effort import classifier_work
from sfumato.images import ImageSet
from sfumato.latents import train_autoencoder
from sfumato.methods.plan import Facts
from sfumato.networks.autoencoder import build_autoencoder, latent_shape
from sfumato.networks.backbone import BackboneNetwork
from sfumato.networks.build import build
from sfumato.recipe.auto import follow
from sfumato.recipe.probe import Probe, autoencoder_step, denoiser_step, reading_step
from sfumato.settings import Settings, resolve
from sfumato.training import pretrain

SIDES, COLOURS, RECORDS, DEVICES = (8, 28, 32, 64, 128), (1, 3), (1_000, 10_000, 100_000), ("cpu", "gpu")
CLASSES, PUBLIC_CLASSES, PUBLIC_IMAGES = 10, 50, 50_000
"""What the table takes for granted."""
HEAD = (
    "| pixels | records | device | works on | denoiser | autoencoder, backbone, denoiser: steps | private: batch, steps, K | trained | moments, judge | images | judged |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def table() -> Iterator[str]:
    """The lines of docs/recipe.md: dp-sgd at epsilon 10, 60 minutes."""
    yield from HEAD.split("\n")
    for side in SIDES:
        for colours in COLOURS:
            for device in DEVICES:
                for records in RECORDS:
                    yield row(side, colours, device, records)


def row(side: int, colours: int, device: str, records: int) -> str:
    """One line: what is chosen, or what fits where nothing does."""
    image = (colours, side, side)
    facts = Facts(records=records, classes=tuple(map(str, range(CLASSES))), public_classes=PUBLIC_CLASSES, shape=image)
    first = f"| {side}x{side}, {'grey' if colours == 1 else 'colour'} | {records:,} | {device.upper()} |"
    try:
        chosen = follow(resolve("dp-sgd", "auto", [f"recipe.device={device}"]), facts, PUBLIC_IMAGES)
    except BadInput as error:
        way = str(error).split(": use ")[1].replace("--set ", "")
        return f"{first} {way} | | | | | | | |"
    return f"{first} {cells(chosen, image)} |"


def cells(chosen: Settings, image: tuple[int, int, int]) -> str:
    """What was chosen for one line."""
    c, h, w = latent_shape(chosen.latent, image)
    coder = f"{chosen.latent.steps:,}" if chosen.latent.kind != "none" else "-"
    eyes = f"{chosen.backbone.steps:,}" if chosen.judge.use != "none" else "-"
    network, tuning = chosen.network, chosen.fine_tuning
    levers = " and ".join(
        name
        for name, used in (("moments", chosen.alignment.kind != "none"), ("judge", chosen.judge.use != "none"))
        if used
    )
    return " | ".join(
        (
            f"{h}x{w}x{c} {'pixels' if chosen.latent.kind == 'none' else chosen.latent.kind}",
            f"{network.kind} {network.width} x {network.blocks}",
            f"{coder}, {eyes}, {chosen.pretraining.steps:,}",
            f"{tuning.batch:,}, {tuning.steps}, {tuning.draws}",
            ", ".join(tuning.trainable),
            levers or "-",
            f"{chosen.generation.images:,}",
            f"{chosen.evaluation.images:,}",
        )
    )


def costs() -> Iterator[str]:
    """Measured seconds of a billion multiply-adds in training, by kind, beside those of the table."""
    torch.set_num_threads(1)
    latent, settings = (2, 7, 7), resolve("dp-sgd")
    yield "| kind | seconds for 1e9 multiply-adds | table |\n| --- | --- | --- |"
    for kind, network in {
        "mlp": Network(kind="mlp", width=512, blocks=4),
        "unet": Network(kind="unet", width=32, blocks=1, multipliers=(1,)),
        "refinenet": Network(kind="refinenet", width=32, blocks=1, multipliers=(1,)),
        "dit": Network(kind="dit", width=64, blocks=4),
    }.items():
        model, work = build(network, latent, PUBLIC_CLASSES), denoiser_work(network, latent, PUBLIC_CLASSES)
        yield line(kind, work, lambda n, model=model: denoiser_step(model, settings, latent, n))
    image = (1, 28, 28)
    for chosen in (
        Latent(kind="kl", width=12, multipliers=(1, 2, 4), channels=2),
        Latent(kind="patch", multipliers=(1,), width=32, channels=2),
    ):
        coder, shape = build_autoencoder(chosen, image), latent_shape(chosen, image)
        yield line(
            chosen.kind,
            autoencoder_work(chosen, image),
            lambda n, coder=coder, shape=shape: autoencoder_step(coder, n, image, shape),
        )
    reader = BackboneNetwork(image, PUBLIC_CLASSES, width=BackboneSettings().width)
    yield line(
        "backbone", backbone_work(BackboneSettings(), image, PUBLIC_CLASSES), lambda n: reading_step(reader, n, image)
    )
    judge = Classifier(1, 10, side=28)
    yield line("classifier", classifier_work(image, 10), lambda n: reading_step(judge, n, image))


def line(kind: str, work: Work, step) -> str:
    """One kind of work, timed."""
    seconds = Probe(COSTS["cpu"]).per_image(kind, work, step)
    return f"| {kind} | {seconds / training_seconds(Cost(1.0), work, 1):.4f} | {COSTS['cpu'][kind].work:.4f} |"


SIZES_ON_GPU, STEPS_ON_GPU, ROUNDS_ON_GPU = (32, 1024), (20, 80), 2
"""Images of a small and a large step; steps of a short and a long training, whose difference is taken; rounds of both."""
SHOWN = 4096
"""Images in memory that the stages learn from, all noise."""


def gpu_costs(device: str) -> Iterator[str]:
    """Measured seconds of a step however small, and of a billion multiply-adds, by kind: the stages' own loops, beside those of the table."""
    latent, image = (2, 7, 7), (1, 28, 28)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(SHOWN, *image, generator=generator).to(device) * 2 - 1
    z = torch.randn(SHOWN, *latent, generator=generator).to(device)
    y = torch.arange(SHOWN, device=device) % PUBLIC_CLASSES
    yield f"{torch.cuda.get_device_name(device) if device.startswith('cuda') else device}, torch {torch.__version__}\n"
    yield "| kind | ms of a step | table | seconds for 1e9 multiply-adds | table |\n| --- | --- | --- | --- | --- |"
    schedule = make_schedule(Schedule())
    for kind, network in {
        "mlp": Network(kind="mlp", width=512, blocks=4),
        "dit": Network(kind="dit", width=256, blocks=6),
        "unet": Network(kind="unet", width=64, blocks=1, multipliers=(1,)),
        "refinenet": Network(kind="refinenet", width=64, blocks=1, multipliers=(1,)),
    }.items():

        def denoiser(images: int, steps: int, network: Network = network) -> object:
            model = build(network, latent, PUBLIC_CLASSES).to(device)
            return pretrain(model, schedule, z, y, Pretraining(steps=steps, batch=images), seed=0)

        yield gpu_line(kind, denoiser_work(network, latent, PUBLIC_CLASSES), denoiser, device)
    for coder in (
        Latent(kind="kl", width=12, multipliers=(1, 2, 4), channels=2),
        Latent(kind="patch", multipliers=(1,), width=32, channels=2),
    ):

        def autoencoder(images: int, steps: int, coder: Latent = coder) -> object:
            return train_autoencoder(coder.model_copy(update={"batch": images, "steps": steps}), x, seed=0)

        yield gpu_line(coder.kind, autoencoder_work(coder, image), autoencoder, device)
    seen = ImageSet(
        np.random.default_rng(0).integers(0, 256, (SHOWN, *image), dtype=np.uint8),
        y.cpu().numpy(),
        tuple(map(str, range(PUBLIC_CLASSES))),
    )

    def backbone(images: int, steps: int) -> object:
        return train_backbone(BackboneSettings(batch=images, steps=steps), seen, seed=0, device=device)

    yield gpu_line("backbone", backbone_work(BackboneSettings(), image, PUBLIC_CLASSES), backbone, device)
    step = difference(lambda steps: train_classifier(x, y, PUBLIC_CLASSES, steps=steps, device=device), device)
    cost = COSTS["gpu"]["classifier"]
    yield f"| classifier, {BATCH_IMAGES} images | {1e3 * step:.2f} | {1e3 * cost.step:.2f} | - | {cost.work:.5f} |"


def gpu_line(kind: str, work: Work, trained: Callable[[int, int], object], device: str) -> str:
    """One kind of work, timed with few and with many images in a step."""
    few, many = SIZES_ON_GPU
    small, large = (difference(lambda steps, n=n: trained(n, steps), device) for n in (few, many))
    each = max(large - small, 0.0) / (many - few)
    step, cost = max(small - few * each, 0.0), COSTS["gpu"][kind]
    measured = each / training_seconds(Cost(1.0), work, 1)
    return f"| {kind} | {1e3 * step:.2f} | {1e3 * cost.step:.2f} | {measured:.5f} | {cost.work:.5f} |"


def difference(trained: Callable[[int], object], device: str) -> float:
    """Seconds of one step: what a long training takes more than a short one, so that what comes before and after does not count."""
    short, long = STEPS_ON_GPU
    taken: dict[int, list[float]] = {short: [], long: []}
    for _ in range(ROUNDS_ON_GPU):
        for steps, seconds in taken.items():
            started = time.perf_counter()
            trained(steps)
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    return (statistics.median(taken[long]) - statistics.median(taken[short])) / (long - short)


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--device", default="cpu", help="where the costs are measured (default: cpu)")
    given = parser.parse_args()
    measured = costs() if given.device == "cpu" else gpu_costs(given.device)
    for text in itertools.chain(measured if given.costs else (), table() if given.table or not given.costs else ()):
        print(text, flush=True)


if __name__ == "__main__":
    main()
