"""What `--preset auto` chooses, as the table of docs/recipe.md, and the table of costs that it chooses by, measured.

    .venv/bin/python benchmarks/recipe.py --table                      # nothing is measured; seconds
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/recipe.py --costs    # a minute of one quiet core

The measured costs replace those in sfumato/costs.py by hand alone: the recipe must choose the same on every machine, so that a
change of the table is a change of what the preset means.
"""

import argparse
from collections.abc import Iterator

import torch

from sfumato.config import BackboneSettings, Latent, Network
from sfumato.costs import COSTS, Cost, Work, autoencoder_work, backbone_work, denoiser_work, training_seconds
from sfumato.errors import BadInput
from sfumato.estimate import Probe, _autoencoder_step, _denoiser_step, _read
from sfumato.evaluation.classifier import Classifier
from sfumato.evaluation.effort import classifier_work
from sfumato.methods.plan import Facts
from sfumato.networks.autoencoder import build_autoencoder, latent_shape
from sfumato.networks.backbone import BackboneNetwork
from sfumato.networks.build import build
from sfumato.recipe import follow
from sfumato.settings import Settings, resolve

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
        yield line(kind, work, lambda n, model=model: _denoiser_step(model, settings, latent, n))
    image = (1, 28, 28)
    for chosen in (
        Latent(kind="kl", width=12, multipliers=(1, 2, 4), channels=2),
        Latent(kind="patch", multipliers=(1,), width=32, channels=2),
    ):
        coder, shape = build_autoencoder(chosen, image), latent_shape(chosen, image)
        yield line(
            chosen.kind,
            autoencoder_work(chosen, image),
            lambda n, coder=coder, shape=shape: _autoencoder_step(coder, n, image, shape),
        )
    reader = BackboneNetwork(image, PUBLIC_CLASSES, width=BackboneSettings().width)
    yield line("backbone", backbone_work(BackboneSettings(), image, PUBLIC_CLASSES), lambda n: _read(reader, n, image))
    judge = Classifier(1, 10, side=28)
    yield line("classifier", classifier_work(image, 10), lambda n: _read(judge, n, image))


def line(kind: str, work: Work, step) -> str:
    """One kind of work, timed."""
    seconds = Probe(COSTS["cpu"]).per_image(kind, work, step)
    return f"| {kind} | {seconds / training_seconds(Cost(1.0), work, 1):.4f} | {COSTS['cpu'][kind].work:.4f} |"


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--costs", action="store_true")
    given = parser.parse_args()
    for text in (*(costs() if given.costs else ()), *(table() if given.table or not given.costs else ())):
        print(text)


if __name__ == "__main__":
    main()
