"""Which denoiser draws best after the same processor time: MLP, transformer and U-Net on public latents.

    OMP_NUM_THREADS=1 SFUMATO_DATA=... python benchmarks/denoisers.py prepare letters --to sets
    OMP_NUM_THREADS=1 python benchmarks/denoisers.py try letters mlp-512 dit-64 unet-32 --sets sets --seconds 120
    python benchmarks/denoisers.py table --sets sets

`prepare` makes public images, an autoencoder and a classifier of them once: `letters` are rendered letters and Omniglot,
28x28, as latents 7x7x2; `photos` are 195 of the 200 labels of Tiny ImageNet, 32x32 in colour, as latents 8x8x4 (labels 0,
40, 80, 120 and 160 are a target's private side). One image in ten, at most 2,000, is held out from all of them.

`try` times a step of each network, gives it as many as fit into the processor time, draws as many images of the held-out
images' classes as are judged, and adds a line to `results.jsonl`: the loss on held-out latents (the noise and times of
all entries are the same; the squared error of the velocity), Frechet distance to held-out public images along the 64
widest directions of the classifier's features, and the share of drawn images in which it reads the wanted class. A private
step is timed beside it. `table` prints all lines as Markdown. Nothing here is private.
"""

import argparse
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sfumato import config, sources
from sfumato.backbone import train_backbone
from sfumato.config import Latent, Network, Pretraining, Schedule
from sfumato.diffusion.objective import denoising_examples, record_losses
from sfumato.diffusion.samplers import dpm_solver
from sfumato.diffusion.schedule import NoiseSchedule, make_schedule, time_grid
from sfumato.evaluation.fidelity import frechet_distance
from sfumato.held_out import held_out
from sfumato.images import ImageSet, save_png, to_pixels, to_unit
from sfumato.latents import reconstruction_error, train_autoencoder
from sfumato.networks.build import build
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import trainable_parameters
from sfumato.training import pretrain

PRIVATE_LABELS = (0, 40, 80, 120, 160)
"""Labels of Tiny ImageNet that are another target's private side."""
CODER: dict[str, Any] = {
    "kind": "patch",
    "patch": 4,
    "width": 32,
    "multipliers": (1,),
    "blocks": 2,
    "batch": 32,
    "steps": 1200,
}
SETS: dict[str, dict[str, Any]] = {
    "letters": {"latent": Latent(**CODER, channels=2), "backbone": config.BackboneSettings(steps=400, batch=64)},
    "photos": {
        "latent": Latent(**CODER, channels=4),
        "backbone": config.BackboneSettings(steps=400, batch=64, mirror=True, edge="reflection"),
    },
}
"""Name -> autoencoder, and the classifier that judges."""
V: dict[str, Any] = {"prediction": "velocity"}
ENTRIES: dict[str, tuple[Network, dict[str, Any]]] = {
    "mlp-512-noise": (Network(kind="mlp", width=512, blocks=4), {}),
    "mlp-512": (Network(kind="mlp", width=512, blocks=4, **V), {}),
    "mlp-640": (Network(kind="mlp", width=640, blocks=4, **V), {}),
    "dit-64": (Network(kind="dit", width=64, blocks=4, **V), {"batch": 64}),
    "dit-96": (Network(kind="dit", width=96, blocks=4, **V), {"batch": 64}),
    "dit-128-patch2": (Network(kind="dit", width=128, blocks=6, patch=2, **V), {"batch": 64}),
    "dit-192-patch2": (Network(kind="dit", width=192, blocks=6, patch=2, **V), {"batch": 64}),
    "unet-32": (Network(kind="unet", width=32, blocks=1, multipliers=(1,), **V), {"batch": 128}),
    "unet-64": (Network(kind="unet", width=64, blocks=1, multipliers=(1,), **V), {"batch": 64}),
    "unet-48x2": (Network(kind="unet", width=48, blocks=1, multipliers=(1, 2), attention=(4,), **V), {"batch": 64}),
}
"""Name -> network, and changes to its training."""
TRAINING = Pretraining(learning_rate=1e-3)
DRAWN, STEPS, DIRECTIONS = 600, 20, 64
"""Images that are judged, sampling steps, directions of the features."""
TIMES = 8
"""Times at which each held-out latent is denoised."""
TIMED, ENLARGED = 3, 3
"""Rounds in which a step is timed; how many times larger pictures are."""
SCHEDULE = make_schedule(Schedule())
PRIVATE = {
    "records": 64,
    "groups": {"rows and film": ("rows", "film"), "all": ("rows", "film", "attention", "time", "rest")},
}


def public_images(name: str) -> ImageSet:
    """The public images of a set."""
    if name == "letters":
        return sources.load(
            "omniglot+glyphs",
            sources.Reading(part="all", size=28, glyphs_per_class=1500, folder=os.environ["SFUMATO_DATA"]),
        )
    import numpy as np
    import pyarrow.parquet as parquet

    rows = parquet.read_table(Path(os.environ["SFUMATO_DATA"]) / "tiny-imagenet-32" / "train.parquet")
    labels = rows["label"].to_numpy()
    wanted = ~np.isin(labels, PRIVATE_LABELS)
    known, labels = np.unique(labels[wanted], return_inverse=True)
    files = [image["bytes"].as_py() for image, take in zip(rows["image"], wanted, strict=True) if take]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    return ImageSet(pixels.transpose(0, 3, 1, 2).copy(), labels.astype(np.int64), tuple(str(label) for label in known))


def prepare(name: str, folder: Path) -> None:
    """Everything that a contest on a set needs, in `folder`."""
    started, made = time.process_time(), SETS[name]
    images = public_images(name)
    print(f"{len(images):,} images, {time.process_time() - started:.0f} s", flush=True)
    learnt, withheld = held_out(images, 0)
    coder = train_autoencoder(made["latent"], to_unit(learnt.pixels), seed=0)
    shown = to_unit(withheld.pixels)
    print(
        f"autoencoder: RMSE {reconstruction_error(coder.codec, shown):.3f}, {time.process_time() - started:.0f} s",
        flush=True,
    )
    backbone = train_backbone(made["backbone"], images, seed=0)
    print(f"classifier: {backbone.accuracy:.3f} on held-out images, {time.process_time() - started:.0f} s", flush=True)
    prepared = {
        "latents": coder.codec.encode(to_unit(learnt.pixels)), "labels": torch.from_numpy(learnt.labels),
        "kept": shown, "kept_labels": torch.from_numpy(withheld.labels), "codec": coder.codec, "backbone": backbone.backbone,
        "classes": len(images.classes),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(prepared, folder / f"{name}.pt")
    print(f"done, {time.process_time() - started:.0f} s")


def scores(prepared: dict[str, Any], images: Tensor, labels: Tensor) -> dict[str, float]:
    """Frechet distance to held-out images that were not asked for, and the share of images that are read as their class."""
    backbone = prepared["backbone"]
    with torch.no_grad():
        a, b = (backbone.whitened(x, DIRECTIONS) for x in (images, prepared["kept"][-len(images) :]))
        right = (backbone.logits(images).argmax(1) == labels).float().mean()
    return {"frechet": frechet_distance(a, b), "readable": float(right)}


@torch.no_grad()
def unseen_loss(model: torch.nn.Module, schedule: NoiseSchedule, prepared: dict[str, Any]) -> float:
    """Squared error of the velocity on held-out latents, each at `TIMES` times; `[n]` images, the same noise for every model."""
    generator = torch.Generator().manual_seed(2)
    latents, labels = prepared["codec"].encode(prepared["kept"]), prepared["kept_labels"]
    how = {"draws": TIMES, "low": 1, "high": schedule.timesteps, "generator": generator}
    parts = [
        record_losses(model, denoising_examples(schedule, x, y, **how))
        for x, y in zip(latents.split(100), labels.split(100), strict=True)
    ]
    return float(torch.cat(parts).mean())


def seconds_of(step: Any, rounds: int = TIMED) -> float:
    """Processor seconds of one step."""
    step()
    started = time.process_time()
    for _ in range(rounds):
        step()
    return (time.process_time() - started) / rounds


def step_seconds(
    network: Network, settings: Pretraining, shape: tuple[int, ...], classes: int
) -> tuple[float, dict[str, float]]:
    """Processor seconds of a public step, and milliseconds per record of a private one for each choice of groups."""
    model = build(network, shape, classes, alpha_bar=SCHEDULE.alpha_bar)
    y = torch.arange(settings.batch) % classes
    generator = torch.Generator().manual_seed(0)
    times = {"low": 1, "high": SCHEDULE.timesteps, "generator": generator}
    examples = denoising_examples(SCHEDULE, torch.randn(len(y), *shape), y, draws=1, **times)
    optimiser = torch.optim.Adam(model.parameters())

    def step() -> None:
        record_losses(model, examples).mean().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    public = seconds_of(step)
    few, private = examples.map(lambda field: field[: PRIVATE["records"]]), {}
    for name, groups in PRIVATE["groups"].items():
        trainable = trainable_parameters(model, groups)
        whole = lambda trainable=trainable: clipped_sum(model, trainable, few, clip=1.0, chunk=len(few.y))  # noqa: E731
        private[name] = 1e3 * seconds_of(whole) / len(few.y)
    return public, private


def attempt(
    name: str,
    prepared: dict[str, Any],
    network: Network,
    settings: Pretraining,
    seconds: float,
    folder: Path,
    called: str,
) -> None:
    """Train, draw, judge, write down."""
    shape, classes = tuple(prepared["latents"].shape[1:]), prepared["classes"]
    each, private = step_seconds(network, settings, shape, classes)
    settings = settings.model_copy(update={"steps": max(1, round(seconds / each))})
    schedule = NoiseSchedule(SCHEDULE.alpha_bar, prepared["codec"].limit)
    model = build(network, shape, classes, alpha_bar=SCHEDULE.alpha_bar)
    started = time.process_time()
    model, losses = pretrain(model, schedule, prepared["latents"], prepared["labels"], settings, seed=0)
    spent = time.process_time() - started
    labels = prepared["kept_labels"][:DRAWN]
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(len(labels), *shape, generator=generator)
    parts = [
        dpm_solver(schedule, model, x, y, time_grid(SCHEDULE.timesteps, 0, STEPS))
        for x, y in zip(noise.split(100), labels.split(100), strict=True)
    ]
    images = prepared["codec"].decode(torch.cat(parts))
    line = {
        "set": name, "entry": called, "parameters": sum(p.numel() for p in model.parameters()),
        "training": settings.model_dump(), "network": network.model_dump(mode="json"), "seconds": spent,
        "loss": sum(losses[-200:]) / len(losses[-200:]), "unseen_loss": unseen_loss(model, schedule, prepared), "private_ms": private, **scores(prepared, images, labels),
    }  # fmt: skip
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    picture(images, folder / f"{name}-{called}-{round(seconds)}.png")
    print(
        f"{name} {called}: {line['seconds']:.0f} s, {settings.steps} steps, loss {line['unseen_loss']:.4f}, Frechet {line['frechet']:.2f}, readable {line['readable']:.3f}",
        flush=True,
    )


def picture(images: Tensor, path: Path, rows: int = 6, columns: int = 16) -> None:
    """The first images side by side."""
    pixels = to_pixels(images[: rows * columns])
    _, c, h, w = pixels.shape
    sheet = pixels.reshape(rows, columns, c, h, w).transpose(0, 3, 1, 4, 2).reshape(rows * h, columns * w, c)
    shown = Image.fromarray(sheet if c > 1 else sheet[:, :, 0])
    save_png(path, shown.resize((ENLARGED * columns * w, ENLARGED * rows * h), Image.Resampling.NEAREST))


def anchors(name: str, prepared: dict[str, Any], folder: Path) -> None:
    """The lines that nothing here can pass: held-out images, as they are and decoded; and draws from one Gaussian, decoded."""
    codec, labels = prepared["codec"], prepared["kept_labels"][:DRAWN]
    flat = prepared["latents"].flatten(1)
    centred = flat - flat.mean(0)
    factor = torch.linalg.cholesky(centred.T @ centred / len(flat) + 1e-6 * torch.eye(flat.shape[1]))
    normal = torch.randn(DRAWN, flat.shape[1], generator=torch.Generator().manual_seed(0)) @ factor.T + flat.mean(0)
    real = prepared["kept"][:DRAWN]
    shown = {
        "held-out images": real,
        "held-out images, decoded": codec.decode(codec.encode(real)),
        "one Gaussian, decoded": codec.decode(normal.view(-1, *prepared["latents"].shape[1:])),
    }
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        for called, images in shown.items():
            line = {"set": name, "entry": called, **scores(prepared, images, labels)}
            file.write(json.dumps(line) + "\n")
            print(line, flush=True)


def table(folder: Path) -> None:
    """All results as Markdown."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    for name in SETS:
        print(
            f"\n**{name}**\n\n| denoiser | parameters | CPU s | steps x batch | rate | steps a minute | Frechet | readable | ms per record, rows + film / all |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for line in sorted(
            (line for line in lines if line["set"] == name),
            key=lambda line: (line.get("seconds", 0) // 30, line["frechet"]),
        ):
            judged = f"{line['frechet']:.2f} | {line['readable']:.3f}"
            if "training" not in line:
                print(f"| {line['entry']} | | | | | | {judged} | |")
                continue
            training, private = line["training"], " / ".join(f"{ms:.2f}" for ms in line["private_ms"].values())
            pace = f"{60 * training['steps'] / line['seconds']:.0f}"
            print(
                f"| {line['entry']} | {line['parameters']:,} | {line['seconds']:.0f} | {training['steps']:,} x {training['batch']} "
                f"| {training['learning_rate']:g} | {pace} | {judged} | {private} |"
            )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare")
    one.add_argument("name", choices=list(SETS))
    one.add_argument("--to", type=Path, required=True)
    two = commands.add_parser("try")
    two.add_argument("name", choices=list(SETS))
    two.add_argument("entries", nargs="+", choices=["anchors", *ENTRIES])
    two.add_argument("--sets", type=Path, required=True)
    two.add_argument("--seconds", type=float, default=240.0)
    two.add_argument("--set", nargs="*", default=[], help="changes to the training, such as learning_rate=3e-4")
    three = commands.add_parser("table")
    three.add_argument("--sets", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.command == "prepare":
        prepare(given.name, given.to)
        return
    if given.command == "table":
        table(given.sets)
        return
    prepared = torch.load(given.sets / f"{given.name}.pt", weights_only=False)
    changes = dict(change.split("=", 1) for change in given.set)
    for called in given.entries:
        if called == "anchors":
            anchors(given.name, prepared, given.sets)
            continue
        network, own = ENTRIES[called]
        settings = Pretraining.model_validate(TRAINING.model_dump() | own | changes)
        label = called + "".join(f" {name}={value}" for name, value in changes.items())
        attempt(given.name, prepared, network, settings, given.seconds, given.sets, label)


if __name__ == "__main__":
    main()
